"""Compares every recorded decision of a period with the one of another configuration or version.

Each decision is made in the recorded state before it, so one difference causes no others. The rules
are those of shadow mode: a recorded node agrees if it is among the best nodes.
"""

from __future__ import annotations

from datetime import datetime
from typing import Final

import msgspec

from asched.audit.lookup import fold_before
from asched.audit.timeline import time_of
from asched.core.scheduler import SchedulerCore
from asched.cycle.shadow import ShadowDecider
from asched.framework.runtime.profile import PluginLoader
from asched.journal.checkpoints import FOLD_ERRORS, contradiction_reason
from asched.journal.statistics import last_seq_at
from asched.journal.store import JournalStore
from asched.planning.workloads import JournalPeriod
from asched.simulator.loop import SchedulerSettings
from asched.state.records import (
    AnyRecord,
    Assigned,
    AttemptFailed,
    ExtenderAnswer,
    ExtenderCallRequested,
    ProfilesLoaded,
    Rejected,
)

MAX_DIFFERENCES: Final = 100
"""Differences beyond this number are only counted."""
MAX_NODES: Final = 3


class DecisionDifference(msgspec.Struct, frozen=True, rename="camel"):
    """A decision that the candidate makes differently."""

    seq: int
    at: datetime
    pod: str
    recorded: str
    """The node; empty if there was none."""
    decided: tuple[str, ...]
    """The candidate's best nodes, the first ones by name; empty if it finds none."""
    message: str = ""
    """Why it finds none."""


class Agreement(msgspec.Struct, frozen=True, rename="camel"):
    """How often the candidate makes the recorded decision."""

    bindings: int = 0
    agreed_bindings: int = 0
    """The recorded node is among the candidate's nodes with the highest total score."""
    rejections: int = 0
    agreed_rejections: int = 0
    """The candidate finds no node either."""
    not_compared: int = 0
    """Decisions of batch sessions and about whole groups, and attempts that failed."""
    differences: tuple[DecisionDifference, ...] = ()
    note: str = ""
    """Why later decisions could not be compared."""

    @property
    def share(self) -> float | None:
        """Of the compared bindings; None without any."""
        return self.agreed_bindings / self.bindings if self.bindings else None

    @property
    def rejection_share(self) -> float | None:
        return self.agreed_rejections / self.rejections if self.rejections else None


async def agreement_of(
    journal: JournalStore,
    period: JournalPeriod,
    candidate: SchedulerSettings | None,
    load: PluginLoader,
) -> Agreement:
    """Compares the decisions of a period with those of the code of this process; ``candidate`` is
    None for the recorded configuration.

    Raises JournalError, and ProfileError for a plugin that is not installed.
    """
    archived = (await journal.archived()).seq
    first_seq = max(archived, await last_seq_at(journal, period.since_ns - 1)) + 1
    core = SchedulerCore(await fold_before(journal, load, first_seq))
    comparison = _Comparison(core, candidate)
    async for stored in journal.read(first_seq - 1, period.head.seq):
        if stored.written_at_ns > period.until_ns:
            break
        try:
            comparison.apply(stored.seq, stored.record)
        except FOLD_ERRORS as error:
            reason = contradiction_reason(error)
            return comparison.result(f"not compared from record {stored.seq} on: {reason}")
    return comparison.result()


class _Comparison:
    """Counts the decisions of records that are folded one after the other."""

    def __init__(self, core: SchedulerCore, candidate: SchedulerSettings | None) -> None:
        self._core = core
        self._candidate = candidate
        self._decider = ShadowDecider(core.state)
        self._counts = dict.fromkeys(
            ("bindings", "agreed_bindings", "rejections", "agreed_rejections", "not_compared"), 0
        )
        self._differences: list[DecisionDifference] = []
        if candidate is not None and core.state.profiles:
            self._core.replay(self._loaded(ProfilesLoaded(())))

    def apply(self, seq: int, record: AnyRecord) -> None:
        """Compare a record and fold it."""
        if isinstance(record, ExtenderCallRequested | ExtenderAnswer):
            # No decision here uses the answers, and the candidate may have no such evaluator.
            return
        match record:
            case Assigned() | Rejected():
                self._compare(seq, record)
            case AttemptFailed():
                self._counts["not_compared"] += 1
            case ProfilesLoaded():
                record = self._loaded(record)
        self._core.replay(record)

    def _loaded(self, record: ProfilesLoaded) -> ProfilesLoaded:
        """The recorded configuration, with the candidate's profiles."""
        if self._candidate is None:
            return record
        return msgspec.structs.replace(
            record,
            profiles=self._candidate.profiles,
            queue=self._candidate.queue,
            feature_gates=self._candidate.feature_gates,
        )

    def _compare(self, seq: int, record: Assigned | Rejected) -> None:
        state = self._core.state
        entry = state.entry(record.key, record.uid)
        scheduler = "" if entry is None else entry.info.pod.spec.scheduler_name
        if entry is None or record.session or record.grouped or scheduler not in state.profiles:
            self._counts["not_compared"] += 1
            return
        own = self._decider.decide(entry.info)
        recorded = record.node if isinstance(record, Assigned) else ""
        kind = "bindings" if recorded else "rejections"
        agreed = recorded in own.best if recorded else not own.best
        self._counts[kind] += 1
        self._counts[f"agreed_{kind}"] += agreed
        if not agreed and len(self._differences) < MAX_DIFFERENCES:
            at, best = time_of(state.date_ns), own.best[:MAX_NODES]
            self._differences.append(
                DecisionDifference(seq, at, record.key, recorded, best, own.message)
            )

    def result(self, note: str = "") -> Agreement:
        return Agreement(**self._counts, differences=tuple(self._differences), note=note)
