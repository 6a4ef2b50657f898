"""Fixtures for pytest, known wherever asched is installed (entry point ``pytest11``).

``asched_schedule`` is :func:`asched.testing.schedule`, whose every decision is made once more when the
test ends; ``asched_journal`` is the journal that ``--asched-journal`` names; ``asched_diff`` compares a
plugin with what that journal holds.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Protocol

import pytest

# This module is imported by every run of pytest: the rest of the kit by those alone that use it.
if TYPE_CHECKING:
    from datetime import datetime

    from asched.audit.whatif.comparison import Comparison
    from asched.model.meta import Object
    from asched.model.pod import Pod
    from asched.testing.placements import Placements, Setup

OPTION = "--asched-journal"


class Schedules(Protocol):
    """What :func:`asched_schedule` gives."""

    def __call__(
        self,
        setup: Setup,
        cluster: Iterable[Object],
        pods: Iterable[Pod] = (),
        *,
        seed: int = 0,
        at_most_s: float = 600.0,
    ) -> Placements: ...


class Compares(Protocol):
    """What :func:`asched_diff` gives."""

    def __call__(
        self,
        setup: Setup | None = None,
        *,
        changes: str = "",
        since: datetime | None = None,
        until: datetime | None = None,
    ) -> Comparison: ...


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.getgroup("asched").addoption(
        OPTION, metavar="URL", help="A journal (file or URL) that tests of plugins compare with."
    )


@pytest.fixture
def asched_schedule() -> Iterator[Schedules]:
    """Schedules pods on described clusters. When the test ends, every decision is made once more
    with plugins built anew: a plugin whose answers differ then, and that does not declare so, fails
    the test."""
    from asched.testing.placements import schedule

    made: list[Placements] = []

    def scheduled(
        setup: Setup,
        cluster: Iterable[Object],
        pods: Iterable[Pod] = (),
        *,
        seed: int = 0,
        at_most_s: float = 600.0,
    ) -> Placements:
        placements = schedule(setup, cluster, pods, seed=seed, at_most_s=at_most_s)
        made.append(placements)
        return placements

    yield scheduled
    for placements in made:
        divergence = placements.diverges() if placements.setup.pure else None
        if divergence is not None:
            pytest.fail(
                f"decided once more, record {divergence.seq} comes out otherwise"
                f" ({divergence.reason}): {divergence.recorded} became {divergence.decided}"
            )


@pytest.fixture
def asched_journal(request: pytest.FixtureRequest) -> str:
    """The journal that the option names. Without the option the test is skipped."""
    journal: str | None = request.config.getoption(OPTION)
    if journal is None:
        pytest.skip(f"no journal to compare with: give {OPTION}")
    return journal


@pytest.fixture
def asched_diff(asched_journal: str) -> Compares:
    """:func:`asched.testing.history.diff` with that journal."""
    from asched.testing.history import diff

    def compares(
        setup: Setup | None = None,
        *,
        changes: str = "",
        since: datetime | None = None,
        until: datetime | None = None,
    ) -> Comparison:
        return diff(asched_journal, setup, changes=changes, since=since, until=until)

    return compares
