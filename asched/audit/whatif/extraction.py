"""A journal as the input of a simulation, and as the run that it tells of."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from asched.audit.history import ALWAYS, Period
from asched.audit.lookup import AuditError, fold_before
from asched.audit.timeline import time_of
from asched.audit.whatif.following import HistoryFollower
from asched.audit.whatif.occupancy import percentile
from asched.framework.runtime.profile import PluginLoader, evaluate_in_process
from asched.journal.statistics import last_seq_at
from asched.journal.store import JournalStore
from asched.simulator.loop import Latencies, Scheduler
from asched.simulator.trace import Run, WorkloadTrace
from asched.state.cluster import ClusterState
from asched.state.records import EngineStarted, TurnStarted

PROGRESS_EVERY: Final = 500
"""Records between two reports of progress."""


class RecordedHistory(NamedTuple):
    """What a journal holds of a period."""

    history: WorkloadTrace
    """What happened by itself: what any scheduler would have had to deal with."""
    recorded: Run
    """What really came of it."""
    scheduler: Scheduler
    """The recorded configuration, as it decides in a simulation: the last of the period."""
    notes: tuple[str, ...]
    """What a reader should know."""


async def recorded_history(
    journal: JournalStore,
    load: PluginLoader,
    period: Period = ALWAYS,
    progress: Callable[[int], None] = lambda seq: None,
) -> RecordedHistory:
    """The history of a period, and what came of it.

    The journal is read once, as a stream; kept are the pods and other changes of the period.
    ``progress`` is told the number of a record now and then.

    Raises :class:`AuditError` for a period that the journal says nothing of, and
    :class:`~asched.journal.errors.JournalError`, ProfileError and FoldError.
    """
    first_seq = await _first_seq(journal, period)
    fold = await fold_before(journal, load, first_seq)
    follower: HistoryFollower | None = None
    end_ns = 0
    async for stored in journal.read(first_seq - 1):
        record = stored.record
        if isinstance(record, TurnStarted):
            if period.until_ns is not None and record.now_ns > period.until_ns:
                end_ns = period.until_ns
                break
            end_ns = record.now_ns
            if follower is None and record.now_ns >= period.since_ns:
                # What the journal says first began before: there is no state to begin with.
                begin_ns = period.since_ns if fold.state.now_ns else record.now_ns
                fold.apply(record)
                follower = HistoryFollower(fold, begin_ns, shadow=await _of_shadow_mode(journal))
                continue
        if follower is None:
            fold.apply(record)
        else:
            follower.follow(record)
        if stored.seq % PROGRESS_EVERY == 0:
            progress(stored.seq)
    if follower is None:
        raise AuditError(await _nothing_there(journal))
    if not (fold.state.profiles or fold.state.sessions):
        raise AuditError("the journal holds no configuration up to then: nothing was scheduled")
    recorded = follower.run(end_ns)
    return RecordedHistory(
        follower.exogenous(end_ns),
        recorded,
        _scheduler(fold.state, recorded),
        tuple(_notes(follower, fold.state)),
    )


async def _first_seq(journal: JournalStore, period: Period) -> int:
    """The first record that may belong to the period."""
    if period.since_ns:
        return await last_seq_at(journal, period.since_ns - 1) + 1
    return (await journal.archived()).seq + 1


async def _of_shadow_mode(journal: JournalStore) -> bool:
    """Whether the journal is one of shadow mode, as far as its beginning is there to say so."""
    archived = (await journal.archived()).seq
    async for stored in journal.read(archived, archived + 2):
        if isinstance(stored.record, EngineStarted):
            return stored.record.shadow
    return False


async def _nothing_there(journal: JournalStore) -> str:
    begin = end = None
    archived, head = (await journal.archived()).seq, (await journal.head()).seq
    async for stored in journal.read(archived, archived + 1):
        begin = stored.written_at_ns
    async for stored in journal.read(max(archived, head - 1), head):
        end = stored.written_at_ns
    if begin is None or end is None:
        return "the journal is empty"
    return (
        f"the journal holds nothing of that time; it reaches from {_moment(begin)} to"
        f" {_moment(end)}"
    )


def _moment(at_ns: int) -> str:
    return f"{time_of(at_ns):%Y-%m-%dT%H:%M:%SZ}"


def _scheduler(state: ClusterState, recorded: Run) -> Scheduler:
    bind_ns = sorted(
        placement.bound_ns - placement.assigned_ns
        for pod in recorded.pods
        if not pod.pod.spec.node_name
        for placement in pod.placements
        if placement.bound_ns is not None
    )
    return Scheduler(
        profiles=evaluate_in_process(profile.spec for profile in state.profiles.values()),
        sessions=state.sessions.specs,
        queue=state.queue.settings,
        seed=state.seed,
        latencies=Latencies(bind_ns=percentile(bind_ns, 50) or 0),
    )


def _notes(follower: HistoryFollower, state: ClusterState) -> list[str]:
    notes = []
    if follower.reconfigured:
        notes.append(
            f"the configuration was changed {follower.reconfigured} time(s) in the period; the last"
            " one is the baseline for all of it"
        )
    if state.extenders:
        notes.append("extenders took part in the recorded decisions; none is asked here")
    if len(state.evaluators) > len(state.extenders):
        names = ", ".join(sorted({who.name for who in state.evaluators[len(state.extenders) :]}))
        notes.append(f"asked anew here, where their recorded answers counted: plugins {names}")
    if follower.shadow:
        notes.append("recorded in shadow mode: what was recorded is another scheduler's doing")
    return notes
