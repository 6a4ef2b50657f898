"""Derives from a journal the workload trace of a period, and the run that it records.

The fold applies each record, and the pod's state before and after it is compared. So this module
does not depend on the types of records that move pods.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import NamedTuple, cast

import msgspec

from asched.audit.history import ALWAYS, Period
from asched.audit.lookup import AuditError, fold_before
from asched.audit.timeline import time_of
from asched.audit.whatif.occupancy import percentile
from asched.audit.whatif.pod_lifetime import PodLifetime, PodSnapshot, as_created, with_node
from asched.framework.runtime.profile import PluginLoader, evaluate_in_process
from asched.journal.checkpoints import apply_stored
from asched.journal.codec import subject_of
from asched.journal.statistics import last_seq_at
from asched.journal.store import JournalStore
from asched.model.custom import CustomObject
from asched.model.groups import CustomPodGroup, PodGroup
from asched.model.meta import Object
from asched.model.node import Node
from asched.model.pod import Pod
from asched.model.resources import AnyObject, GroupResource, in_order_of_listing
from asched.simulator.loop import Latencies, SchedulerSettings
from asched.simulator.trace import (
    EndReason,
    NodeSpan,
    ObjectRemoved,
    ObjectSet,
    TraceEvent,
    WorkloadRun,
    WorkloadTrace,
)
from asched.state import records as r
from asched.state.cluster import ClusterState, PlacementState
from asched.state.fold import Fold


class RecordedHistory(NamedTuple):
    """A period of a journal."""

    trace: WorkloadTrace
    """The events that do not depend on the scheduler."""
    recorded: WorkloadRun
    """The recorded run."""
    scheduler: SchedulerSettings
    """The last recorded configuration of the period, for simulation."""
    notes: tuple[str, ...]
    """Notes for the reader."""


async def recorded_history(
    journal: JournalStore,
    load: PluginLoader,
    period: Period = ALWAYS,
    progress: Callable[[int], None] = lambda seq: None,
) -> RecordedHistory:
    """The trace and the recorded run of a period. ``progress`` receives each record's number.

    Reads the journal once, as a stream. Memory use grows with the pods and changes of the period.

    Raises :class:`AuditError` for a period without records,
    :class:`~asched.journal.errors.JournalError`, ProfileError.
    """
    first_seq = await _first_seq(journal, period)
    fold = await fold_before(journal, load, first_seq)
    extractor: TraceExtractor | None = None
    first_ns = end_ns = 0
    until_ns = period.until_ns
    last_seq = None if until_ns is None else await last_seq_at(journal, until_ns)
    async for stored in journal.read(first_seq - 1):
        record = stored.record
        progress(stored.seq)
        if isinstance(record, r.TurnStarted):
            # The trace has turn times, the period has dates.
            ahead_ns = stored.written_at_ns - record.now_ns
            if until_ns is not None and last_seq is not None and stored.seq > last_seq:
                end_ns = until_ns - ahead_ns
                break
            end_ns = record.now_ns
            if not first_ns and stored.written_at_ns >= period.since_ns:
                first_ns = record.now_ns
                if fold.state.now_ns:
                    apply_stored(fold, stored)
                    begin_ns = period.since_ns - ahead_ns
                    extractor = await _extractor(journal, fold, begin_ns)
                    continue
        if first_ns and extractor is None and subject_of(record).startswith("pod/"):
            # Without earlier records there is no state at the start of the period. What a daemon
            # lists before the first pod, in later turns, is there from the beginning on.
            extractor = await _extractor(journal, fold, first_ns)
        apply_stored(fold if extractor is None else extractor, stored)
    if not first_ns:
        raise AuditError(await _no_records(journal))
    if extractor is None:
        extractor = await _extractor(journal, fold, first_ns)
    return _history(extractor, fold, end_ns)


def _history(extractor: TraceExtractor, fold: Fold, end_ns: int) -> RecordedHistory:
    if not (fold.state.profiles or fold.state.sessions):
        raise AuditError("the journal has no configuration up to that time: nothing was scheduled")
    recorded = extractor.run(end_ns)
    return RecordedHistory(
        extractor.trace(end_ns),
        recorded,
        recorded_scheduler(fold.state, recorded),
        tuple(_notes(extractor, fold.state)),
    )


async def _extractor(journal: JournalStore, fold: Fold, begin_ns: int) -> TraceExtractor:
    return TraceExtractor(fold, begin_ns, shadow=await _in_shadow_mode(journal))


async def _first_seq(journal: JournalStore, period: Period) -> int:
    """The first record that may belong to the period."""
    if period.since_ns:
        return await last_seq_at(journal, period.since_ns - 1) + 1
    return (await journal.archived()).seq + 1


async def _in_shadow_mode(journal: JournalStore) -> bool:
    """Whether the journal's first unarchived start is in shadow mode."""
    archived = (await journal.archived()).seq
    async for stored in journal.read(archived, archived + 2):
        if isinstance(stored.record, r.EngineStarted):
            return stored.record.shadow
    return False


async def _no_records(journal: JournalStore) -> str:
    begin = end = None
    archived, head = (await journal.archived()).seq, (await journal.head()).seq
    async for stored in journal.read(archived, archived + 1):
        begin = stored.written_at_ns
    async for stored in journal.read(max(archived, head - 1), head):
        end = stored.written_at_ns
    if begin is None or end is None:
        return "the journal is empty"
    return (
        "the journal has no records of that time; it covers"
        f" {time_of(begin):%Y-%m-%dT%H:%M:%SZ} to {time_of(end):%Y-%m-%dT%H:%M:%SZ}"
    )


def recorded_scheduler(state: ClusterState, recorded: WorkloadRun) -> SchedulerSettings:
    """The configuration of a state, for a simulation with the usual time to bind of a run."""
    bind_ns = sorted(
        placement.bound_ns - placement.assigned_ns
        for pod in recorded.pods
        if not pod.pod.spec.node_name
        for placement in pod.placements
        if placement.bound_ns is not None
    )
    return SchedulerSettings(
        profiles=evaluate_in_process(profile.spec for profile in state.profiles.values()),
        sessions=state.sessions.specs,
        queue=state.queue.settings,
        seed=state.engine.seed,
        latencies=Latencies(bind_ns=percentile(bind_ns, 50) or 0),
        feature_gates=state.plugin_context.feature_gates,
    )


def _notes(extractor: TraceExtractor, state: ClusterState) -> Iterator[str]:
    if extractor.reconfigured:
        yield (
            f"the configuration changed {extractor.reconfigured} time(s) in the period; the last"
            " one is the baseline for the whole period"
        )
    if state.extenders:
        yield "extenders influenced the recorded decisions; the simulation calls none"
    if len(state.evaluators) > len(state.extenders):
        plugins = {evaluator.name for evaluator in state.evaluators[len(state.extenders) :]}
        yield (
            "the simulation calls these plugins, the recorded decisions used their recorded"
            f" answers: {', '.join(sorted(plugins))}"
        )
    if extractor.shadow:
        yield "recorded in shadow mode: the recorded decisions are another scheduler's"


class _Deletion(NamedTuple):
    pod: PodLifetime
    at_ns: int


class TraceExtractor:
    """Folds the records of a period, and collects its trace and run."""

    def __init__(self, fold: Fold, begin_ns: int, *, shadow: bool = False) -> None:
        """``fold`` contains the records before the period.

        ``shadow``: another scheduler's decisions count as those of the profiles.
        """
        self.shadow = shadow
        self.reconfigured = 0
        """Number of configuration changes in the period."""
        self._fold = fold
        self._state = fold.state
        self._begin_ns = begin_ns
        self._pods: dict[PodLifetime, None] = {}
        """The pods of the trace, in order of creation."""
        self._by_uid: dict[str, PodLifetime] = {}
        """By every uid of the pod and its replacements."""
        self._events: list[TraceEvent | PodLifetime | _Deletion] = []
        """A pod is replaced by its creation at the end, when its running time is known."""
        self._displaced: dict[str, deque[PodLifetime]] = {}
        """Evicted pods by the uid of their controller, which will replace them."""
        self._open: dict[str, NodeSpan] = {}
        self._closed: list[NodeSpan] = []
        self._add_initial_state()

    def _add_initial_state(self) -> None:
        resources = in_order_of_listing(tuple(GroupResource))
        kinds: list[type[Object]] = [*(resource.type for resource in resources), CustomObject]
        for kind in kinds:
            for item in self._state.object_store.of_kind(kind).values():
                self._events.append(ObjectSet(self._begin_ns, cast(AnyObject, item)))
                if isinstance(item, Node):
                    self._open[item.name] = NodeSpan(item, self._begin_ns)
        for entry in self._state.pods.values():
            self._appeared(entry.info.pod, entry.node, self._begin_ns)
        self._update_evictions(self._begin_ns)

    def apply(self, record: r.AnyRecord) -> None:
        """Folds the next record. Raises ProfileError."""
        if isinstance(record, r.ProfilesLoaded) and self._reconfigures(record):
            self.reconfigured += 1
        kind, _, key = subject_of(record).partition("/")
        about_pod = kind == "pod"
        pods = self._state.pods
        before = PodSnapshot.of(pods.get(key)) if about_pod else None
        status_only = isinstance(record, r.ObjectObserved) and self._only_status(record.object)
        self._fold.apply(record)
        now_ns = self._state.now_ns
        if about_pod:
            self._compare(before, PodSnapshot.of(pods.get(key)), now_ns)
        if not status_only:
            self._add_event(record, now_ns)
        if isinstance(record, r.DECISIONS):
            self._update_evictions(now_ns)

    def _only_status(self, observed: Object) -> bool:
        """Whether only the status of a PodGroup changed, which sessions write."""
        if not isinstance(observed, PodGroup | CustomPodGroup) or not self._state.sessions:
            return False
        known = self._state.object_store.of_kind(type(observed)).get(observed.key)
        return isinstance(known, PodGroup | CustomPodGroup) and (
            msgspec.structs.replace(observed, status=known.status) == known
        )

    def _reconfigures(self, record: r.ProfilesLoaded) -> bool:
        before = tuple(profile.spec for profile in self._state.profiles.values())
        return bool(before) and before != record.profiles

    def _add_event(self, record: r.AnyRecord, now_ns: int) -> None:
        match record:
            case r.ObjectObserved(object=Pod()) | r.ObjectDeleted(kind="Pod"):
                pass
            case r.ObjectObserved():
                self._events.append(ObjectSet(now_ns, record.object))
                if isinstance(record.object, Node):
                    self._close_span(record.object.name, now_ns)
                    self._open[record.object.name] = NodeSpan(record.object, now_ns)
            case r.ObjectDeleted():
                self._events.append(ObjectRemoved(now_ns, record.kind, record.key, record.uid))
                if record.kind == "Node":
                    self._node_gone(record.key, now_ns)
            case r.Assigned() | r.Rejected() | r.AttemptFailed():
                self._count_attempt(record)
            case r.EvictionFailed():
                pod = self._by_uid.get(record.uid)
                if pod is not None:
                    pod.cancel_eviction(record.uid)
            case r.ShadowCompared():
                self.shadow = True
            case _:
                pass

    def _count_attempt(self, record: r.Assigned | r.Rejected | r.AttemptFailed) -> None:
        pod = self._by_uid.get(record.uid)
        if pod is None:
            return
        pod.attempts += 1
        if isinstance(record, r.Assigned):
            return
        pod.message = record.message
        pod.rejections += isinstance(record, r.Rejected)

    def _node_gone(self, name: str, now_ns: int) -> None:
        self._close_span(name, now_ns)
        for entry in self._state.pods.values():
            pod = self._by_uid.get(entry.info.uid) if entry.node == name else None
            if pod is not None:
                self._displace(pod)

    def _close_span(self, node: str, at_ns: int) -> None:
        span = self._open.pop(node, None)
        if span is not None and span.from_ns < at_ns:
            self._closed.append(msgspec.structs.replace(span, to_ns=at_ns))

    def _compare(self, before: PodSnapshot | None, after: PodSnapshot | None, now_ns: int) -> None:
        if before is not None and (after is None or after.pod.uid != before.pod.uid):
            self._gone(before, now_ns)
            before = None
        if after is None:
            return
        if before is None:
            self._appeared(after.pod, after.node, now_ns)
            return
        pod = self._by_uid.get(after.pod.uid)
        if pod is None:
            return
        if after.node != before.node:
            self._moved(pod, before, after, now_ns)
        elif (
            after.placement_state is PlacementState.BOUND
            and before.placement_state is PlacementState.ASSUMED
        ):
            pod.bind(after.pod.uid, now_ns)
        if after.pod is not before.pod:
            self._changed(pod, before.pod, after.pod, now_ns)

    def _changed(self, pod: PodLifetime, old: Pod, new: Pod, now_ns: int) -> None:
        if new.terminating and not old.terminating and new.uid == pod.uid and not pod.evicted:
            pod.deleted_ns = now_ns
            if not pod.on_node:
                self._end(pod, now_ns, EndReason.DELETED)
        labels = pod.own_labels(new)
        if (
            labels != pod.own_labels(old)
            or with_node(new, "").spec != with_node(old, "").spec
            or new.status.resource_claim_statuses != old.status.resource_claim_statuses
        ):
            # The trace keeps the pod's first name.
            metadata = msgspec.structs.replace(pod.pod.metadata, labels=labels)
            changed = msgspec.structs.replace(as_created(new), metadata=metadata)
            self._events.append(ObjectSet(now_ns, changed))

    def _appeared(self, pod: Pod, node: str, now_ns: int) -> None:
        if pod.terminating and not node:
            return  # it will never be scheduled
        displaced = None if node else self._next_displaced(pod)
        if displaced is not None:
            displaced.replace(pod.uid)
            self._by_uid[pod.uid] = displaced
            return
        self._add(PodLifetime(pod, now_ns, node))

    def _add(self, pod: PodLifetime) -> None:
        self._pods[pod] = None
        self._by_uid[pod.uid] = pod
        self._events.append(pod)

    def _moved(
        self, pod: PodLifetime, before: PodSnapshot, after: PodSnapshot, now_ns: int
    ) -> None:
        uid, node = after.pod.uid, after.node
        if before.node:
            pod.release(uid, now_ns, EndReason.BIND_FAILED)
        if not node:
            if pod.given and len(pod.placements) == 1:
                # It was assumed at the start of the period, and never bound there.
                self._start_over(pod, after.pod, "", now_ns)
        elif after.placement_state is PlacementState.ASSUMED:
            pod.assign(uid, node, now_ns)
        elif pod.was_bound or (self.shadow and self._serves(after.pod)):
            pod.place(uid, node, now_ns)
        else:
            self._start_over(pod, after.pod, node, now_ns)

    def _start_over(self, old: PodLifetime, pod: Pod, node: str, now_ns: int) -> None:
        """Drops what was recorded of the pod so far."""
        del self._pods[old]
        self._add(PodLifetime(pod, now_ns, node))

    def _serves(self, pod: Pod) -> bool:
        """Whether a profile or a session serves the pod."""
        name = pod.spec.scheduler_name
        return name in self._state.profiles or name in self._state.sessions

    def _gone(self, before: PodSnapshot, now_ns: int) -> None:
        uid = before.pod.uid
        pod = self._by_uid.get(uid)
        if pod is None:
            return
        node_exists = before.node in self._open
        reason = pod.end_reason(uid, before.node, node_exists=node_exists)
        pod.release(uid, now_ns, reason, node_exists=node_exists)
        if uid == pod.uid and pod.end is None:
            self._end(pod, now_ns, reason)

    def _end(self, pod: PodLifetime, now_ns: int, reason: EndReason) -> None:
        pod.finish(now_ns, reason)
        self._events.append(_Deletion(pod, now_ns))

    def _update_evictions(self, now_ns: int) -> None:
        for uid, eviction in self._state.evictions.items():
            pod = self._by_uid.get(uid)
            if pod is not None and pod.uid == uid and not pod.evicted:
                pod.evict(uid, now_ns, eviction.preemptor.key)
                self._displace(pod)

    def _displace(self, pod: PodLifetime) -> None:
        owner = pod.pod.metadata.controller
        if owner is None or not pod.recreated:
            return
        displaced = self._displaced.setdefault(owner.uid, deque())
        if pod not in displaced:  # a victim on a removed node is displaced once
            displaced.append(pod)

    def _next_displaced(self, pod: Pod) -> PodLifetime | None:
        """The evicted pod that this one replaces, if any."""
        owner = pod.metadata.controller
        waiting = self._displaced.get(owner.uid) if owner is not None else None
        while waiting:
            displaced = waiting.popleft()
            lost_node = displaced.end is None and displaced.placements[-1].node not in self._open
            if displaced.evicted or displaced.end is EndReason.NODE_GONE or lost_node:
                return displaced
        return None

    def trace(self, end_ns: int) -> WorkloadTrace:
        events: list[TraceEvent] = []
        for event in self._events:
            match event:
                case PodLifetime():
                    if self._counts(event):
                        events.append(event.creation())
                case _Deletion(pod, at_ns):
                    # After several ends the last one counts: the others had replacements.
                    deletion = pod.deletion(at_ns) if at_ns == pod.ended_ns else None
                    if deletion is not None and self._counts(pod):
                        events.append(deletion)
                case _:
                    events.append(event)
        return WorkloadTrace(tuple(events), self._begin_ns, end_ns)

    def run(self, end_ns: int) -> WorkloadRun:
        pods = tuple(pod.as_run() for pod in self._pods if self._counts(pod))
        spans = [*self._closed, *self._open.values()]
        nodes = tuple(sorted(spans, key=lambda span: (span.from_ns, span.node.name)))
        return WorkloadRun(self._begin_ns, end_ns, pods, nodes)

    def _counts(self, pod: PodLifetime) -> bool:
        """Pending pods of other schedulers do not count."""
        return pod in self._pods and (pod.given or self._serves(pod.pod))
