"""The simulated cluster: the effects of API server, kubelets and controllers.

It applies the events of a trace and executes decisions, and emits the records that a scheduler
would observe.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TypeVar, cast

import msgspec

from asched.framework.status import Code
from asched.model.groups import (
    CustomPodGroup,
    CustomPodGroupCondition,
    CustomPodGroupStatus,
    NativeGroup,
    PodGroupCondition,
    PodGroupStatus,
)
from asched.model.meta import Object
from asched.model.node import Node
from asched.model.pod import SUCCEEDED, Pod, PodResourceClaimStatus
from asched.model.resource_claims import ResourceClaim
from asched.model.resources import KINDS, AnyObject
from asched.simulator.claims import SimulatedClaims
from asched.simulator.pods import EventQueue, SimulatedPod
from asched.simulator.trace import (
    EndReason,
    NodeDrained,
    NodeSpan,
    ObjectRemoved,
    ObjectSet,
    PodCreated,
    PodDeleted,
    PodRun,
    TraceEvent,
)
from asched.state.cluster import ClusterState, PlacementState
from asched.state.observe import observe_object
from asched.state.records import AnyRecord, BindFailed, Bound, EvictionSucceeded, ObjectDeleted
from asched.state.session_records import PodGroupStatusDecided, PodGroupStatusWritten

GroupT = TypeVar("GroupT", bound=NativeGroup | CustomPodGroup)


def _with_decided_status(group: GroupT, decision: PodGroupStatusDecided) -> GroupT:
    conditions = [
        {"type": c.type, "status": c.status, "reason": c.reason, "message": c.message}
        for c in decision.conditions
    ]
    if isinstance(group, NativeGroup):
        own = tuple(PodGroupCondition(**condition) for condition in conditions)
        return msgspec.structs.replace(group, status=PodGroupStatus(conditions=own))
    status = CustomPodGroupStatus(
        phase=str(decision.phase),
        conditions=tuple(CustomPodGroupCondition(**condition) for condition in conditions),
        running=decision.running,
        succeeded=decision.succeeded,
        failed=decision.failed,
    )
    return msgspec.structs.replace(group, status=status)


def _with_known_status(group: GroupT, known: Object | None) -> GroupT:
    """The group with its status in this simulation.

    In a recorded trace the status is the one that the recorded scheduler wrote.
    """
    if isinstance(known, NativeGroup | CustomPodGroup) and known.uid == group.uid:
        return msgspec.structs.replace(group, status=known.status)
    return group


def _claims_of(now: Pod, update: Pod) -> tuple[PodResourceClaimStatus, ...]:
    """The generated claims: those of the simulation, or of a recorded trace."""
    return now.status.resource_claim_statuses or update.status.resource_claim_statuses


def _is_deleted(item: Object) -> bool:
    return item.metadata.deletion_timestamp is not None


class SimulatedCluster:
    """The current cluster. The state of the fold is what the scheduler knows of it."""

    def __init__(
        self, state: ClusterState, events: EventQueue, record: Callable[[AnyRecord], None]
    ) -> None:
        """``record`` must apply each record to ``state`` before it returns."""
        self._state = state
        self._events = events
        self._record = record
        self._pods: dict[str, SimulatedPod] = {}
        self._by_uid: dict[str, SimulatedPod] = {}
        """All pods by the uid of their creation."""
        self._waiting: dict[str, deque[PodCreated]] = {}
        """Creations that wait for the end of the pod with the same key."""
        self._open_spans: dict[str, NodeSpan] = {}
        self._closed_spans: list[NodeSpan] = []
        self.claims = SimulatedClaims(state, self._observe, record)

    def pod(self, key: str, uid: str) -> SimulatedPod | None:
        """The existing pod with this key and current uid."""
        pod = self._pods.get(key)
        return pod if pod is not None and pod.uid == uid else None

    # -- events of the trace --------------------------------------------------------------------

    def apply(self, event: TraceEvent) -> None:
        match event:
            case PodCreated():
                self._create(event, event.at_ns)
            case PodDeleted():
                self._delete(event)
            case ObjectSet(object=Pod() as pod):
                self._update_pod(pod)
            case ObjectSet():
                self._set(event.object, event.at_ns)
            case ObjectRemoved():
                self._remove(event)
            case NodeDrained():
                self._drain(event)

    def _create(self, event: PodCreated, at_ns: int) -> None:
        key = event.pod.key
        if key in self._pods:
            self._waiting.setdefault(key, deque()).append(event)
            return
        pod = self._pods[key] = self._by_uid[event.pod.metadata.uid] = SimulatedPod(event, at_ns)
        pod.pod = self.claims.generate(pod.pod)
        node = event.pod.spec.node_name
        if node:
            pod.assign(node, at_ns)
            self._start(pod, at_ns)
        self._observe(pod.pod)

    def _delete(self, event: PodDeleted) -> None:
        pod = self._by_uid.get(event.uid)
        if pod is not None:
            if pod.end_reason is None:
                self._end(pod, event.at_ns, EndReason.DELETED)
            return
        waiting = self._waiting.get(event.key, deque())
        for created in [c for c in waiting if c.pod.metadata.uid == event.uid]:
            # The pod ends while waiting for its name; the result counts its waiting time.
            waiting.remove(created)
            pod = self._by_uid[event.uid] = SimulatedPod(created, created.at_ns)
            pod.end(event.at_ns, EndReason.DELETED)

    def _update_pod(self, update: Pod) -> None:
        pod = self._by_uid.get(update.metadata.uid)
        if pod is None or pod.end_reason is not None:
            return
        replace, now = msgspec.structs.replace, pod.pod
        pod.pod = replace(
            now,
            metadata=replace(now.metadata, labels=update.metadata.labels),
            spec=replace(update.spec, node_name=now.spec.node_name),
            status=replace(now.status, resource_claim_statuses=_claims_of(now, update)),
        )
        pod.pod = self.claims.generate(pod.pod, self.claims.of_others(pod.pod))
        self._observe(pod.pod)

    def _set(self, item: AnyObject, at_ns: int) -> None:
        if isinstance(item, NativeGroup | CustomPodGroup):
            known = self._state.objects(type(item)).get(item.key)
            item = _with_known_status(item, known)
        elif isinstance(item, ResourceClaim):
            shown = self.claims.observed_form(item, self._is_bound)
            if shown is None or self._follows_its_pod(item, deleted=_is_deleted(item)):
                return
            item = shown
        if self._observe(item) and isinstance(item, Node):
            self._close_span(item.name, at_ns)
            self._open_spans[item.name] = NodeSpan(item, at_ns)

    def _is_bound(self, uid: str) -> bool:
        pod = self._by_uid.get(uid)
        return pod is not None and pod.bound

    def _follows_its_pod(self, item: Object, *, deleted: bool) -> bool:
        """Whether the simulated end of the pod that owns the claim decides, not the recorded one.

        ``deleted``: whether the recorded claim is deleted.
        """
        owner = item.metadata.controller
        pod = self._by_uid.get(owner.uid) if owner is not None else None
        return pod is not None and (pod.end_reason is None) is deleted

    def _remove(self, event: ObjectRemoved) -> None:
        kind = KINDS[event.kind]
        known = self._state.objects(kind).get(event.key)
        if known is None or (event.uid and known.uid != event.uid):
            return
        if kind is ResourceClaim and self._follows_its_pod(known, deleted=True):
            return
        self._record(ObjectDeleted(event.kind, event.key, known.uid))
        if kind is Node:
            self._close_span(event.key, event.at_ns)
            for pod in self._bound_to(event.key):
                self._recreate_or_end(pod, event.at_ns, EndReason.NODE_GONE)

    def _drain(self, event: NodeDrained) -> None:
        span = self._open_spans.get(event.node)
        if span is None:
            return
        replace, node = msgspec.structs.replace, span.node
        self._set(replace(node, spec=replace(node.spec, unschedulable=True)), event.at_ns)
        for pod in self._bound_to(event.node):
            owner = pod.pod.metadata.controller
            if owner is None or owner.kind != "DaemonSet":
                self._evict(pod, event.at_ns, EndReason.DRAINED, "")

    def _bound_to(self, node: str) -> list[SimulatedPod]:
        return [pod for pod in self._pods.values() if pod.bound and pod.placements[-1].node == node]

    # -- effects of decisions -------------------------------------------------------------------

    def bind(self, key: str, uid: str, node: str, at_ns: int) -> None:
        """Complete the binding of an assigned pod; fails if the node is gone."""
        entry = self._state.entry(key, uid)
        if uid in self._state.reserve_calls.unfinished:
            gone = "the pod is gone since it was assigned"
            self._record(BindFailed(key, uid, node, Code.ERROR, "", gone))
            return
        if (
            entry is None
            or entry.placement_state is not PlacementState.ASSUMED
            or entry.node != node
        ):
            return
        pod = self._pods[key]
        if node not in self._open_spans:
            pod.release(at_ns, EndReason.BIND_FAILED)
            pod.message = f"node {node} is gone since the pod was assigned"
            self._record(BindFailed(key, uid, node, Code.ERROR, "", pod.message))
            return
        self.claims.bind(pod.pod, entry.assignment, at_ns)
        self._record(Bound(key, uid, node))
        self._start(pod, at_ns)
        self._observe(pod.pod)

    def preempt(self, key: str, uid: str, by: str, at_ns: int) -> None:
        """Delete a victim, which ends after its grace period."""
        if uid not in self._state.evictions:
            return
        self._record(EvictionSucceeded(key, uid))
        pod = self.pod(key, uid)
        if pod is not None:
            self._evict(pod, at_ns, EndReason.PREEMPTED, by)

    def write_group(self, decision: PodGroupStatusDecided, at_ns: int) -> None:
        kind, key = KINDS[decision.kind], decision.group
        self._record(PodGroupStatusWritten(decision.kind, key, decision.uid))
        group = self._state.objects(kind).get(key)
        if group is None or group.uid != decision.uid:
            return
        if isinstance(group, NativeGroup | CustomPodGroup):
            self._observe(cast("AnyObject", _with_decided_status(group, decision)))

    def _start(self, pod: SimulatedPod, at_ns: int) -> None:
        pod.bind(at_ns)
        if pod.remaining_ns is not None:
            due_ns = at_ns + max(0, pod.remaining_ns)
            self._events.schedule(due_ns, partial(self._finish, pod, pod.uid))

    def _finish(self, pod: SimulatedPod, uid: str, at_ns: int) -> None:
        if pod.end_reason is None and pod.uid == uid:
            self._end(pod, at_ns, EndReason.FINISHED)

    def _evict(self, pod: SimulatedPod, at_ns: int, reason: EndReason, by: str) -> None:
        if pod.evicted_ns is not None:
            return
        grace_ns = pod.grace_ns
        pod.evict(at_ns, reason, by)
        if grace_ns:
            self._observe(pod.pod)
            self._events.schedule(at_ns + grace_ns, partial(self._terminate, pod, pod.uid))
        else:
            self._terminate(pod, pod.uid, at_ns)

    def _terminate(self, pod: SimulatedPod, uid: str, at_ns: int) -> None:
        if pod.end_reason is None and pod.uid == uid:
            self._recreate_or_end(pod, at_ns, pod.evict_reason)

    def _recreate_or_end(self, pod: SimulatedPod, at_ns: int, reason: EndReason) -> None:
        if not pod.created.recreated:
            self._end(pod, at_ns, reason)
            return
        pod.release(at_ns, reason)
        self._record(ObjectDeleted("Pod", pod.key, pod.uid))
        generated = self.claims.generated(pod.pod)
        self.claims.release(pod.pod)
        pod.recreate(at_ns)
        pod.pod = self.claims.generate(pod.pod, generated)
        self._observe(pod.pod)

    def _end(self, pod: SimulatedPod, at_ns: int, reason: EndReason) -> None:
        pod.release(at_ns, reason)
        pod.end(at_ns, reason)
        key = pod.key
        del self._pods[key]
        if reason is EndReason.FINISHED:
            status = msgspec.structs.replace(pod.pod.status, phase=SUCCEEDED)
            self._observe(msgspec.structs.replace(pod.pod, status=status))
        else:
            self._record(ObjectDeleted("Pod", key, pod.uid))
        self.claims.release(pod.pod)
        waiting = self._waiting.get(key)
        if waiting:
            self._create(waiting.popleft(), at_ns)

    def _observe(self, item: AnyObject) -> bool:
        """Record the object as the scheduler's watch shows it. False if nothing changed."""
        record = observe_object(self._state, item)
        if record is None:
            return False
        self._record(record)
        return True

    def pods(self) -> tuple[PodRun, ...]:
        pods = [*self._by_uid.values()]
        pods += [SimulatedPod(c, c.at_ns) for waiting in self._waiting.values() for c in waiting]
        return tuple(sorted((pod.as_run() for pod in pods), key=lambda run: run.created_ns))

    def nodes(self) -> tuple[NodeSpan, ...]:
        spans = [*self._closed_spans, *self._open_spans.values()]
        return tuple(sorted(spans, key=lambda span: (span.from_ns, span.node.name)))

    def _close_span(self, node: str, at_ns: int) -> None:
        span = self._open_spans.pop(node, None)
        if span is not None and span.from_ns < at_ns:
            self._closed_spans.append(msgspec.structs.replace(span, to_ns=at_ns))
