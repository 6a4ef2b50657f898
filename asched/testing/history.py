"""Simulates a recorded history with another plugin or configuration, as ``asched diff`` does.

The workload comes from a journal. It is simulated twice on a virtual clock, with the recorded and
with the other configuration (``docs/how-to/what-if.md``).
"""

from __future__ import annotations

import inspect
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import anyio

from asched.audit.history import Period
from asched.audit.whatif.candidate import (
    BASELINE,
    CandidateConfig,
    PluginChange,
    PluginChangeAction,
    compare_candidate,
    parse_changes,
)
from asched.audit.whatif.comparison import Comparison
from asched.journal.opening import open_journal
from asched.model.quantity import NS_PER_S
from asched.testing.placements import Setup
from asched.testing.profiles import ProfileSetup, installed_plugins, profile_setup

__all__ = ["BASELINE", "Comparison", "diff", "diff_async"]


def diff(
    journal: str | Path,
    setup: Setup | None = None,
    *,
    changes: str = "",
    since: datetime | None = None,
    until: datetime | None = None,
) -> Comparison:
    """Compare the history in ``journal`` (a file or URL) as recorded with the same under ``setup``.

    A plugin class means the recorded configuration with that plugin enabled; None means the
    recorded configuration. ``changes`` apply to it: ``Name=WEIGHT``, ``+Name`` or ``-Name``,
    separated by commas. The journal is opened read-only. Times without an offset are in UTC.

    Raises :class:`~asched.audit.lookup.AuditError` if a comparison is impossible, ConfigFileError
    and :class:`~asched.journal.errors.JournalError`.
    """

    return anyio.run(partial(diff_async, journal, setup, changes=changes, since=since, until=until))


async def diff_async(
    journal: str | Path,
    setup: Setup | None = None,
    *,
    changes: str = "",
    since: datetime | None = None,
    until: datetime | None = None,
) -> Comparison:
    """:func:`diff` for asynchronous tests."""
    candidate = _candidate(setup)
    if changes:
        all_changes = (*candidate.changes, *parse_changes(changes))
        candidate = candidate._replace(changes=all_changes)
    period = Period(0 if since is None else _ns(since), None if until is None else _ns(until))
    async with open_journal(str(journal), read_only=True) as store:
        return await compare_candidate(store, candidate, period)


def _candidate(setup: Setup | None) -> CandidateConfig:
    if setup is None:
        return CandidateConfig(BASELINE, installed_plugins())
    if inspect.isclass(setup):
        change = PluginChange(PluginChangeAction.ENABLE, setup.name)
        registry = installed_plugins().including(setup)
        return CandidateConfig(f"{BASELINE} with {setup.name}", registry, changes=(change,))
    found = setup if isinstance(setup, ProfileSetup) else profile_setup(setup)
    name = setup.name if isinstance(setup, Path) else "candidate"
    return CandidateConfig(name, found.registry, found.scheduler())


def _ns(at: datetime) -> int:
    at = at if at.tzinfo is not None else at.replace(tzinfo=UTC)
    return round(at.timestamp()) * NS_PER_S
