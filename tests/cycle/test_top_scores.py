"""Incrementally updated best nodes equal those of a full scan."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from asched.cycle.node_selection import TopScores

ROWS = 12
totals = st.integers(-1, 3)


@given(
    first=st.lists(totals, min_size=ROWS, max_size=ROWS),
    changes=st.lists(st.tuples(st.integers(0, ROWS - 1), totals, st.booleans()), max_size=40),
)
def test_set_updates_best_rows(first: list[int], changes: list[tuple[int, int, bool]]) -> None:
    scores = TopScores(np.array(first, np.int64))
    column = list(first)
    for row, total, looked_at in changes:
        scores.set(row, total)
        column[row] = total
        if looked_at:
            best = scores.best
            rows = [r for r, own in enumerate(column) if own == max(column)]
            assert (best.score, best.count) == (max(column), len(rows))
            assert best.rows.tolist() == rows


def test_set_many_updates_best_rows() -> None:
    scores = TopScores(np.array([1, 2, 3], np.int64))
    assert scores.best.rows.tolist() == [2]
    scores.set_many(np.arange(2), np.full(2, 5, np.int64))
    assert scores.best.rows.tolist() == [0, 1]
