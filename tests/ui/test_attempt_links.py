"""Which attempts the page of a decision links to."""

from __future__ import annotations

import pytest

from asched.ui.pages import some_attempts


@pytest.mark.parametrize(
    ("attempts", "shown", "links"),
    [
        ((), 0, []),
        ((1,), 1, [1]),
        ((1, 2, 3, 4), 2, [1, 2, 3, 4]),
        (tuple(range(1, 33)), 1, [1, 2, 3, 0, 32]),
        (tuple(range(1, 33)), 14, [1, 0, 12, 13, 14, 15, 16, 0, 32]),
        (tuple(range(1, 33)), 32, [1, 0, 30, 31, 32]),
        ((5, 6, 9), 9, [5, 6, 9]),
    ],
)
def test_links_lead_to_ends_and_neighbours(
    attempts: tuple[int, ...], shown: int, links: list[int]
) -> None:
    assert some_attempts(attempts, shown) == links
