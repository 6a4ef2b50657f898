"""Evictions that the scheduler decided: the pod, the pod that needed its place, rule and result.

:class:`EvictionLog` follows a fold, that of ``asched show evictions`` and of the browser interface.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from enum import Enum
from typing import Final, NamedTuple

import msgspec

from asched.audit.history import ALWAYS, Period, fold_for
from asched.audit.pod_state import PodIdentity, identity
from asched.audit.timeline import time_of
from asched.framework.cluster import PodRef
from asched.framework.pod_groups import GANG_SCHEDULING
from asched.framework.runtime.profile import PluginLoader
from asched.framework.sessions import EvictionReason
from asched.journal.checkpoints import apply_stored
from asched.journal.statistics import last_seq_at
from asched.journal.store import JournalStore
from asched.plugins.gang_scheduling import RELEASED_FOR
from asched.state import records as r
from asched.state.cluster import ClusterState, PlacementState
from asched.state.session_records import EvictionDecided
from asched.state.stored_form import PodRecord


class EvictionKind(Enum):
    """What decided an eviction."""

    PREEMPTION = "preemption"
    """A PostFilter plugin, for a pod that no node accepts."""
    PREEMPT = "preempt"
    """The action ``preempt`` of a batch session, within a queue."""
    RECLAIM = "reclaim"
    """The action ``reclaim`` of a batch session, for another queue."""
    GANG = "gang"
    """A gang released its reservations for an earlier gang. No running pod ends."""


class EvictionResult(Enum):
    """What became of the evicted pod."""

    DECIDED = "decided"
    """The API server has not accepted the eviction yet."""
    ACCEPTED = "accepted"
    """The API server accepted it; the pod has not ended yet."""
    ENDED = "ended"
    """The pod is deleted or has finished."""
    RELEASED = "released"
    """The pod lost its reservation and is pending again."""
    FAILED = "failed"
    """The API server rejected the eviction."""


class BeneficiaryResult(Enum):
    """What became of the pod for which another one was evicted."""

    STARTED = "started"
    """It is bound."""
    WAITING = "waiting"
    DELETED = "deleted"
    """It was deleted, or has finished, without being bound."""


class EvictionReport(msgspec.Struct, frozen=True, rename="camel"):
    """An eviction, which is also its JSON form (see ``docs/how-to/show.md``)."""

    seq: int
    """The record of the decision."""
    at: datetime
    kind: EvictionKind
    by: str
    """The plugin, or the action and batch session, that decided."""
    rule: str
    """Why the rule allows it."""
    victim: PodIdentity
    node: str
    beneficiary: PodIdentity
    result: EvictionResult
    message: str = ""
    """Why the API server rejected the eviction."""
    accepted_seq: int = 0
    accepted_at: datetime | None = None
    ended_seq: int = 0
    ended_at: datetime | None = None
    """When the victim ended or released its reservation."""
    outcome: BeneficiaryResult = BeneficiaryResult.WAITING
    outcome_seq: int = 0
    outcome_at: datetime | None = None
    wait_s: float | None = None
    """From the decision until the beneficiary was bound; None if it is not."""
    started_on: str = ""
    """The node to which the beneficiary was bound."""

    def concerns(self, text: str) -> bool:
        """Whether the text is part of a name, gang, owner, queue, node, kind or plugin of it."""
        return any(text in value.casefold() for value in self._texts())

    def _texts(self) -> Iterable[str]:
        yield from (self.kind.value, self.by, self.node, self.result.value, self.outcome.value)
        for pod in (self.victim, self.beneficiary):
            yield from (f"{pod.namespace}/{pod.name}", pod.owner, pod.gang, pod.queue)


class EvictionReports(msgspec.Struct, frozen=True, rename="camel"):
    """Evictions, newest first."""

    seq: int
    """The results are as of this record."""
    total: int
    """How many there are without the limit."""
    evictions: tuple[EvictionReport, ...]


class _Step(NamedTuple):
    """A later event of an eviction."""

    seq: int
    at: datetime
    detail: str = ""


class _Eviction(msgspec.Struct, array_like=True):
    """A decided eviction, and what is known about it by now."""

    decided: EvictionReport
    accepted: _Step | None = None
    failed: _Step | None = None
    ended: _Step | None = None
    bound: _Step | None = None
    lost: _Step | None = None
    """The beneficiary was deleted first."""

    def report(self, seq: int) -> EvictionReport:
        """As of a record."""
        accepted, failed, ended, bound, lost = (
            step if step is not None and step.seq <= seq else None
            for step in (self.accepted, self.failed, self.ended, self.bound, self.lost)
        )
        decided, outcome = self.decided, bound or lost
        result = EvictionResult.DECIDED if accepted is None else EvictionResult.ACCEPTED
        if ended is not None:
            released = decided.kind is EvictionKind.GANG
            result = EvictionResult.RELEASED if released else EvictionResult.ENDED
        elif failed is not None:
            result = EvictionResult.FAILED
        started = BeneficiaryResult.DELETED if lost is not None else BeneficiaryResult.WAITING
        return msgspec.structs.replace(
            decided,
            result=result,
            message="" if failed is None else failed.detail,
            accepted_seq=0 if accepted is None else accepted.seq,
            accepted_at=None if accepted is None else accepted.at,
            ended_seq=0 if ended is None else ended.seq,
            ended_at=None if ended is None else ended.at,
            outcome=started if bound is None else BeneficiaryResult.STARTED,
            outcome_seq=0 if outcome is None else outcome.seq,
            outcome_at=None if outcome is None else outcome.at,
            wait_s=None if bound is None else (bound.at - decided.at).total_seconds(),
            started_on="" if bound is None else bound.detail,
        )


class EvictionLogForm(msgspec.Struct, array_like=True):
    """A log to be stored."""

    evictions: list[_Eviction]
    reserved_on: dict[str, str]
    requeued: PodRef | None


class EvictionLog:
    """Collects the evictions of a journal."""

    def __init__(self, form: EvictionLogForm | None = None) -> None:
        """``form``: a stored log to continue with the next record."""
        form = form or EvictionLogForm([], {}, None)
        self._evictions = form.evictions
        self._of_victim: dict[str, _Eviction] = {}
        """The last eviction of each present victim, by uid."""
        self._of_beneficiary: dict[str, list[_Eviction]] = {}
        """The evictions for each pod that waits for its node, by uid."""
        self._reserved_on = form.reserved_on
        """The node of each pod that waits on Permit, by uid."""
        self._requeued = form.requeued
        """The last pod for which gangs release reservations."""
        for one in form.evictions:
            if one.ended is None:
                self._of_victim[one.decided.victim.uid] = one
            if one.bound is None and one.lost is None:
                self._of_beneficiary.setdefault(one.decided.beneficiary.uid, []).append(one)

    @property
    def form(self) -> EvictionLogForm:
        """To be stored."""
        return EvictionLogForm(self._evictions, self._reserved_on, self._requeued)

    def apply(self, seq: int, record: r.AnyRecord, state: ClusterState) -> None:
        """Add a record; ``state`` is the one after it."""
        match record:
            case r.Rejected():
                if record.victims:
                    self._preempted(seq, record, state)
                if record.requeue_now:
                    self._requeued = PodRef(record.key, record.uid)
            case EvictionDecided():
                self._evicted(seq, record, state)
            case r.Assigned():
                if record.permit_waits:
                    self._reserved_on[record.uid] = record.node
            case r.PermitRejected():
                self._released(seq, record, state)
            case r.PermitAllowed() if self._reserved_on and record.key not in state.waiting:
                self._reserved_on.pop(record.uid, None)
            case r.ObjectDeleted():
                self._reserved_on.pop(record.uid, None)
            case r.EvictionSucceeded():
                found = self._of_victim.get(record.uid)
                if found is not None:
                    found.accepted = found.accepted or _step(seq, state)
            case r.EvictionFailed():
                found = self._of_victim.get(record.uid)
                if found is not None:
                    found.failed = _step(seq, state, record.message)
        self._follow(seq, record, state)

    def _follow(self, seq: int, record: r.AnyRecord, state: ClusterState) -> None:
        """Note when a victim ends, and when a beneficiary is bound or deleted."""
        if not (self._of_victim or self._of_beneficiary):
            return
        if isinstance(record, PodRecord | r.ObjectDeleted):
            key, uid = record.key, record.uid
        elif isinstance(record, r.ObjectObserved) and type(record.object).__name__ == "Pod":
            key, uid = record.object.key, record.object.uid
        else:
            return
        waits, evicted = self._of_beneficiary.get(uid), self._of_victim.get(uid)
        if waits is None and evicted is None:
            return
        entry = state.entry(key, uid)
        if entry is None and evicted is not None:
            evicted.ended = evicted.ended or _step(seq, state)
            del self._of_victim[uid]
        if waits is None:
            return
        if entry is None:
            for one in self._of_beneficiary.pop(uid):
                one.lost = _step(seq, state)
        elif entry.placement_state is PlacementState.BOUND:
            for one in self._of_beneficiary.pop(uid):
                one.bound = _step(seq, state, entry.node)

    def _add(self, report: EvictionReport) -> _Eviction:
        added = _Eviction(report)
        self._evictions.append(added)
        self._of_beneficiary.setdefault(report.beneficiary.uid, []).append(added)
        return added

    def _preempted(self, seq: int, record: r.Rejected, state: ClusterState) -> None:
        beneficiary = identity(state, record.key, record.uid)
        for ref in record.victims:
            victim = identity(state, ref.key, ref.uid)
            self._of_victim[ref.uid] = self._add(
                EvictionReport(
                    seq=seq,
                    at=time_of(state.date_ns),
                    kind=EvictionKind.PREEMPTION,
                    by=_post_filter_plugins(state, record.key),
                    rule=_priorities("priority", victim, beneficiary),
                    victim=victim,
                    node=record.nominated_node or "",
                    beneficiary=beneficiary,
                    result=EvictionResult.DECIDED,
                )
            )

    def _evicted(self, seq: int, record: EvictionDecided, state: ClusterState) -> None:
        victim = identity(state, record.key, record.uid)
        beneficiary = identity(state, record.preemptor.key, record.preemptor.uid)
        action = record.reason.value
        self._of_victim[record.uid] = self._add(
            EvictionReport(
                seq=seq,
                at=time_of(state.date_ns),
                kind=EvictionKind(action),
                by=f"{action} of session {record.session} of {record.scheduler_name}",
                rule=_session_rule(record, state, victim, beneficiary),
                victim=victim,
                node=record.node,
                beneficiary=beneficiary,
                result=EvictionResult.DECIDED,
            )
        )

    def _released(self, seq: int, record: r.PermitRejected, state: ClusterState) -> None:
        node = self._reserved_on.pop(record.uid, "")
        cause = self._requeued
        if record.plugin != GANG_SCHEDULING or not record.message.startswith(RELEASED_FOR):
            return
        if cause is None:
            return  # the decision is in a part of the journal that is not read
        gang = record.message.removeprefix(RELEASED_FOR)
        added = self._add(
            EvictionReport(
                seq=seq,
                at=time_of(state.date_ns),
                kind=EvictionKind.GANG,
                by=GANG_SCHEDULING,
                rule=f"gang {gang} comes first",
                victim=identity(state, record.key, record.uid),
                node=node,
                beneficiary=identity(state, cause.key, cause.uid),
                result=EvictionResult.RELEASED,
            )
        )
        added.ended = _step(seq, state)

    # -- questions --------------------------------------------------------------------------------

    def reports(
        self, seq: int, period: Period = ALWAYS, text: str = "", limit: int | None = None
    ) -> EvictionReports:
        """Those decided in the period and up to record ``seq``, with results as of it, and with
        ``text`` in a name."""
        wanted = text.casefold().strip()
        first, last = time_of(period.since_ns), period.until_ns
        end = None if last is None else time_of(last)
        found: list[EvictionReport] = []
        for one in reversed(self._evictions):
            decided = one.decided
            if decided.seq > seq or decided.at < first or (end is not None and decided.at > end):
                continue
            report = one.report(seq)
            if not wanted or report.concerns(wanted):
                found.append(report)
        return EvictionReports(seq, len(found), tuple(found[:limit]))

    def about(self, key: str, seq: int) -> tuple[int, int]:
        """How often pods of that key were evicted, and how many pods were evicted for them."""
        known = [one.decided for one in self._evictions if one.decided.seq <= seq]
        return (
            sum(_key(one.victim) == key for one in known),
            sum(_key(one.beneficiary) == key for one in known),
        )

    def for_pods(self, keys: Iterable[str], seq: int) -> Sequence[EvictionReport]:
        """The evictions for pods with these keys, oldest first."""
        wanted = {*keys}
        return [
            one.report(seq)
            for one in self._evictions
            if one.decided.seq <= seq and _key(one.decided.beneficiary) in wanted
        ]


def _key(pod: PodIdentity) -> str:
    return f"{pod.namespace}/{pod.name}"


def _step(seq: int, state: ClusterState, detail: str = "") -> _Step:
    return _Step(seq, time_of(state.date_ns), detail)


_POST_FILTER: Final = "postFilter"


def _post_filter_plugins(state: ClusterState, key: str) -> str:
    """The plugins that may choose victims for the pod."""
    entry = state.pods.get(key)
    name = "" if entry is None else entry.info.pod.spec.scheduler_name
    profile = state.profiles.get(name)
    plugins = () if profile is None else profile.spec.points.get(_POST_FILTER, ())
    # GangScheduling releases reservations and evicts no pod.
    names = [plugin.name for plugin in plugins if plugin.name not in _EVICT_NO_POD]
    return ", ".join(names) or "PostFilter"


_EVICT_NO_POD: Final = (GANG_SCHEDULING, "DynamicResources")


def _priorities(what: str, victim: PodIdentity, beneficiary: PodIdentity) -> str:
    if victim.priority is None or beneficiary.priority is None:
        return f"higher {what}"
    return f"{what} {beneficiary.priority} over {victim.priority}"


def _session_rule(
    record: EvictionDecided, state: ClusterState, victim: PodIdentity, beneficiary: PodIdentity
) -> str:
    if record.reason is EvictionReason.RECLAIM:
        profile = state.sessions.get(record.scheduler_name)
        default = "" if profile is None else profile.spec.default_queue
        source, target = victim.queue or default, beneficiary.queue or default
        return f"queue {target} reclaims its share from queue {source}"
    return _priorities("priority", victim, beneficiary)


async def evictions(
    journal: JournalStore, load: PluginLoader, period: Period = ALWAYS, text: str = ""
) -> EvictionReports:
    """The evictions of the period, with results as of its end.

    Raises :class:`~asched.journal.errors.JournalError`, ProfileError.
    """
    start = await fold_for(journal, load, period)
    end = None if period.until_ns is None else await last_seq_at(journal, period.until_ns)
    found, seq = EvictionLog(), start.seq
    async for stored in journal.read(start.seq, end):
        apply_stored(start.fold, stored)
        seq = stored.seq
        found.apply(seq, stored.record, start.fold.state)
    return found.reports(seq, period, text)
