"""Queues of batch sessions over time, and what recent sessions decided, in order.

:class:`QueueLog` follows a fold, that of ``asched show shares`` and of the browser interface.
"""

from __future__ import annotations

from collections import deque
from datetime import datetime
from functools import cache
from typing import Final

import msgspec

from asched.audit.history import ALWAYS, Period, fold_for
from asched.audit.queues import opening
from asched.audit.timeline import time_of
from asched.batch.registry import SessionRegistry
from asched.framework.pod_groups import group_of
from asched.framework.runtime.profile import PluginLoader
from asched.framework.sessions import ActionCounts
from asched.journal.checkpoints import apply_stored
from asched.journal.statistics import last_seq_at
from asched.journal.store import JournalStore
from asched.state import records as r
from asched.state.cluster import ClusterState
from asched.state.session_records import EvictionDecided, SessionExecuted

MAX_SAMPLES: Final = 1024
"""Above this number every second sample is dropped, and later ones are taken half as often."""
MAX_SESSIONS: Final = 500
"""Sessions with decisions that are kept."""

CREDIT_PODS: Final = 20_000
"""Pods that samples may visit at the beginning."""
PODS_PER_RECORD: Final = 1
"""Pods that samples may visit for each record that is folded."""


class QueueAmounts(msgspec.Struct, frozen=True, rename="camel"):
    """Cpu in millicores, memory in bytes, others in thousandths."""

    deserved: float
    allocated: float
    requested: float


class QueuePoint(msgspec.Struct, frozen=True, rename="camel"):
    """A queue when a session opened."""

    at: datetime
    seq: int
    scheduler_name: str
    queue: str
    share: float
    """The largest ratio of used to deserved over all resources."""
    resources: dict[str, QueueAmounts]


class SessionPart(msgspec.Struct, frozen=True, rename="camel"):
    """Pods of one gang or owner that a session placed or evicted, one after the other."""

    operation: str
    """``bind``, ``preempt`` or ``reclaim``."""
    group: str
    """``namespace/name`` of the gang; empty for a pod without one."""
    pods: int
    first_pod: str
    """``namespace/name``."""
    first_seq: int
    beneficiary: str = ""
    """For which pod others were evicted."""


class SessionDecisions(msgspec.Struct, frozen=True, rename="camel"):
    """A session that decided something, and its decisions in order."""

    scheduler_name: str
    number: int
    seq: int
    at: datetime
    actions: tuple[ActionCounts, ...]
    error: str
    parts: tuple[SessionPart, ...]


class QueueHistory(msgspec.Struct, frozen=True, rename="camel"):
    """The queues of batch sessions over time."""

    seq: int
    points: tuple[QueuePoint, ...]
    """Oldest first. Not every session has one: see ``docs/how-to/show.md``."""
    sessions: tuple[SessionDecisions, ...]
    """The newest ones with decisions, newest first."""


class _Session(msgspec.Struct, array_like=True):
    """A session, and its decisions so far."""

    head: SessionDecisions
    """Without its decisions."""
    parts: list[SessionPart] = []

    def add(self, part: SessionPart) -> None:
        """Add a decision to the last ones of the same gang, or after them."""
        last = self.parts[-1] if self.parts else None
        if last is not None and part.group and _sort(last) == _sort(part):
            self.parts[-1] = msgspec.structs.replace(last, pods=last.pods + part.pods)
        else:
            self.parts.append(part)

    def read(self) -> SessionDecisions:
        return msgspec.structs.replace(self.head, parts=tuple(self.parts))


def _sort(part: SessionPart) -> tuple[str, str, str]:
    return part.operation, part.group, part.beneficiary


class QueueLogForm(msgspec.Struct, array_like=True):
    """A log to be stored."""

    points: list[QueuePoint] = []
    sessions: list[_Session] = []
    open: _Session | None = None
    credit: int = CREDIT_PODS
    gap_ns: int = 0
    sampled_ns: dict[str, int] = {}
    samples: int = 0


class QueueLog:
    """Collects samples of queues, and the decisions of sessions."""

    def __init__(self, form: QueueLogForm | None = None) -> None:
        """``form``: a stored log to continue with the next record."""
        form = form or QueueLogForm()
        self.points = form.points
        self.sessions = deque(form.sessions, MAX_SESSIONS)
        self._registry = cache(SessionRegistry.discover)
        self._credit = form.credit
        """How many pods samples may visit."""
        self._gap_ns = form.gap_ns
        """The least time between two samples of a scheduler name."""
        self._sampled_ns = form.sampled_ns
        self._samples = form.samples
        self._open = form.open
        """The session to which the next decisions belong."""
        if form.open is not None and form.open.parts:
            self.sessions[-1] = form.open

    @property
    def form(self) -> QueueLogForm:
        """To be stored."""
        return QueueLogForm(
            points=self.points,
            sessions=[*self.sessions],
            open=self._open,
            credit=self._credit,
            gap_ns=self._gap_ns,
            sampled_ns=self._sampled_ns,
            samples=self._samples,
        )

    def apply(self, seq: int, record: r.AnyRecord, state: ClusterState) -> None:
        """Add a record; ``state`` is the one after it."""
        self._credit += PODS_PER_RECORD
        match record:
            case SessionExecuted():
                self._open = _Session(
                    SessionDecisions(
                        scheduler_name=record.scheduler_name,
                        number=record.number,
                        seq=seq,
                        at=time_of(state.date_ns),
                        actions=record.actions,
                        error=record.error,
                        parts=(),
                    )
                )
                if record.error:
                    self.sessions.append(self._open)
                if self._is_due(record.scheduler_name, state):
                    self._sample(seq, record.scheduler_name, state)
            case r.Assigned() if record.session:
                self._decided(seq, "bind", record.key, "", state)
            case EvictionDecided():
                what, pod = record.reason.value, record.preemptor.key
                self._decided(seq, what, record.key, pod, state)

    def _is_due(self, scheduler_name: str, state: ClusterState) -> bool:
        """Opening a session visits all pods: sampling must not cost more than following the
        journal."""
        last_ns = self._sampled_ns.get(scheduler_name)
        if last_ns is None:
            return True
        return self._credit >= len(state.pods) and state.now_ns - last_ns >= self._gap_ns

    def _sample(self, seq: int, scheduler_name: str, state: ClusterState) -> None:
        profile = state.sessions.get(scheduler_name)
        if profile is None:
            return
        self._credit -= len(state.pods)
        self._sampled_ns[scheduler_name] = state.now_ns
        try:
            found = opening(state, profile, self._registry())
        except Exception:  # noqa: BLE001  a plugin of a third party; the session's record has it
            return
        self._samples += 1
        self.points += (
            QueuePoint(
                at=time_of(state.date_ns),
                seq=seq,
                scheduler_name=scheduler_name,
                queue=usage.name,
                share=usage.share,
                resources={
                    one.resource: QueueAmounts(one.deserved, one.allocated, one.requested)
                    for one in usage.resources
                },
            )
            for usage in found.queues
        )
        if self._samples > MAX_SAMPLES:
            self._thin()

    def _thin(self) -> None:
        seqs = [*dict.fromkeys(point.seq for point in self.points)]
        kept = {*seqs[::2], seqs[-1]}
        self.points = [point for point in self.points if point.seq in kept]
        self._samples = len(kept)
        length = self.points[-1].at - self.points[0].at
        self._gap_ns = int(length.total_seconds() * 1e9) // MAX_SAMPLES * 2

    def _decided(
        self, seq: int, what: str, key: str, beneficiary: str, state: ClusterState
    ) -> None:
        session = self._open
        if session is None:
            return
        entry = state.pods.get(key)
        group = None if entry is None else group_of(entry.info.pod)
        name = "" if group is None else group.key
        if not session.parts:
            self.sessions.append(session)
        session.add(SessionPart(what, name, 1, key, seq, beneficiary))

    def history(self, seq: int, period: Period = ALWAYS, limit: int = 50) -> QueueHistory:
        """Points in the period, and the last ``limit`` sessions, up to record ``seq``."""
        first, last = time_of(period.since_ns), period.until_ns
        end = None if last is None else time_of(last)

        def within(one: QueuePoint | SessionDecisions) -> bool:
            return one.seq <= seq and first <= one.at and (end is None or one.at <= end)

        sessions = [one for one in reversed(self.sessions) if within(one.head)]
        points = tuple(point for point in self.points if within(point))
        return QueueHistory(seq, points, tuple(one.read() for one in sessions[:limit]))


async def queue_history(
    journal: JournalStore, load: PluginLoader, period: Period = ALWAYS
) -> QueueHistory:
    """The queues in the period.

    Raises :class:`~asched.journal.errors.JournalError`, ProfileError.
    """
    start = await fold_for(journal, load, period)
    end = None if period.until_ns is None else await last_seq_at(journal, period.until_ns)
    log, seq = QueueLog(), start.seq
    async for stored in journal.read(start.seq, end):
        apply_stored(start.fold, stored)
        seq = stored.seq
        log.apply(seq, stored.record, start.fold.state)
    return log.history(seq, period)
