"""pytest fixtures, available wherever asched is installed (entry point ``pytest11``).

``asched_schedule`` is :func:`asched.testing.schedule` and repeats every decision at the end of the
test. ``asched_journal`` is the journal of ``--asched-journal``. ``asched_diff`` compares a plugin
with it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import pytest

# Every run of pytest imports this module, so fixtures import what they use.
if TYPE_CHECKING:
    from datetime import datetime

    from asched.audit.whatif.comparison import Comparison
    from asched.model.meta import Object
    from asched.model.pod import Pod
    from asched.testing.placements import Placements, Setup

OPTION = "--asched-journal"


class ScheduleFixture:
    """The type of :func:`asched_schedule`; keeps the results for the check at the end."""

    def __init__(self) -> None:
        self.results: list[Placements] = []

    def __call__(
        self,
        setup: Setup,
        cluster: Iterable[Object],
        pods: Iterable[Pod] = (),
        *,
        seed: int = 0,
        max_virtual_s: float = 600.0,
    ) -> Placements:
        from asched.testing.placements import schedule

        found = schedule(setup, cluster, pods, seed=seed, max_virtual_s=max_virtual_s)
        self.results.append(found)
        return found


class DiffFixture:
    """The type of :func:`asched_diff`: :func:`asched.testing.history.diff` with a fixed journal."""

    def __init__(self, journal: str) -> None:
        self.journal = journal

    def __call__(
        self,
        setup: Setup | None = None,
        *,
        changes: str = "",
        since: datetime | None = None,
        until: datetime | None = None,
    ) -> Comparison:
        from asched.testing.history import diff

        return diff(self.journal, setup, changes=changes, since=since, until=until)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.getgroup("asched").addoption(
        OPTION, metavar="URL", help="Journal (file or URL) for comparisons in plugin tests."
    )


@pytest.fixture
def asched_schedule() -> Iterator[ScheduleFixture]:
    """Schedules pods on a virtual cluster.

    At the end of the test every decision is repeated with new plugin instances. A plugin that
    declares to be pure and gives another result fails the test.
    """
    schedule = ScheduleFixture()
    yield schedule
    for placements in schedule.results:
        divergence = placements.divergence() if placements.setup.pure else None
        if divergence is not None:
            pytest.fail(
                f"repeated decisions differ at record {divergence.seq} ({divergence.reason}):"
                f" {divergence.recorded} became {divergence.decided}"
            )


@pytest.fixture
def asched_journal(request: pytest.FixtureRequest) -> str:
    """The journal of the option. Without the option the test is skipped."""
    journal: str | None = request.config.getoption(OPTION)
    if journal is None:
        pytest.skip(f"no journal for the comparison: give {OPTION}")
    return journal


@pytest.fixture
def asched_diff(asched_journal: str) -> DiffFixture:
    """Compares a plugin or a configuration with the history in the journal."""
    return DiffFixture(asched_journal)
