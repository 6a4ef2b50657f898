"""A plugin on a recorded history: what would have been different last week?

As ``asched diff`` does it (``docs/what-if.md``): what happened by itself is taken from a journal and
simulated twice on a virtual clock, once under the recorded configuration and once under another one.
"""

from __future__ import annotations

import inspect
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import anyio

from asched.audit.history import Period
from asched.audit.whatif.candidate import (
    PluginChange,
    PluginChangeAction,
    candidate_scheduler,
    parse_changes,
)
from asched.audit.whatif.comparison import Comparison, NamedRun, compare
from asched.audit.whatif.extraction import recorded_history
from asched.config.registry import PluginRegistry
from asched.journal.opening import open_journal
from asched.model.quantity import NS_PER_S
from asched.simulator.loop import Scheduler, simulate
from asched.testing.placements import Setup
from asched.testing.profiles import ProfileSetup, configured, installed

__all__ = ["BASELINE", "Comparison", "compared", "diff"]

BASELINE: Final = "recorded configuration"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def diff(
    journal: str | Path,
    setup: Setup | None = None,
    *,
    changes: str = "",
    since: datetime | None = None,
    until: datetime | None = None,
) -> Comparison:
    """Simulate the history in ``journal`` (a file or URL) as it was configured, and under ``setup``.

    A plugin's class stands for the recorded configuration with that plugin enabled as well, None for
    the recorded one. ``changes`` are made to it: ``Name=WEIGHT``, ``+Name``, ``-Name``, with commas
    between. The journal is opened for reading only. Times without an offset are meant in UTC.

    Raises :class:`~asched.audit.lookup.AuditError` for what cannot be compared, ConfigFileError for a
    configuration with mistakes, and :class:`~asched.journal.errors.JournalError`.
    """

    async def run() -> Comparison:
        return await compared(journal, setup, changes=changes, since=since, until=until)

    return anyio.run(run)


async def compared(
    journal: str | Path,
    setup: Setup | None = None,
    *,
    changes: str = "",
    since: datetime | None = None,
    until: datetime | None = None,
) -> Comparison:
    """As :func:`diff`, for asynchronous tests."""
    tried, scheduler, registry, name = _read(setup)
    wanted = (*tried, *(parse_changes(changes) if changes else ()))
    period = Period(0 if since is None else _ns(since), None if until is None else _ns(until))
    async with open_journal(str(journal), read_only=True) as store:
        history = await recorded_history(store, registry.load, period)
    candidate = candidate_scheduler(history, scheduler, wanted, registry, name)
    return compare(
        NamedRun(BASELINE, simulate(history.history, history.scheduler, registry.load)),
        NamedRun(name, simulate(history.history, candidate, registry.load)),
        history.recorded,
        history.notes,
    )


def _read(
    setup: Setup | None,
) -> tuple[tuple[PluginChange, ...], Scheduler | None, PluginRegistry, str]:
    """What is to be changed of the recorded configuration, or used in place of it."""
    if setup is None:
        return (), None, installed(), BASELINE
    if inspect.isclass(setup):
        change = PluginChange(PluginChangeAction.ENABLE, setup.name)
        return (change,), None, installed().including(setup), f"{BASELINE} with {setup.name}"
    found = setup if isinstance(setup, ProfileSetup) else configured(setup)
    name = setup.name if isinstance(setup, Path) else "candidate"
    return (), found.scheduler(), found.registry, name


def _ns(at: datetime) -> int:
    at = at if at.tzinfo is not None else at.replace(tzinfo=UTC)
    return round((at - _EPOCH).total_seconds()) * NS_PER_S
