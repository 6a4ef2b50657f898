"""The simulated cluster: what happens in it, by itself and to carry out decisions.

It does what API server, kubelets and controllers would do, and says what a scheduler would see of
that as records.

What the API server says of PodGroups once a scheduler wrote their status.
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
    PodGroup,
    PodGroupCondition,
    PodGroupStatus,
)
from asched.model.meta import Object
from asched.model.node import Node
from asched.model.pod import SUCCEEDED, Pod
from asched.model.resources import KINDS, AnyObject
from asched.simulator.trace import (
    EndReason,
    TraceEvent,
    NodeDrained,
    NodeSpan,
    ObjectRemoved,
    ObjectSet,
    PodCreated,
    PodDeleted,
    PodRun,
)
from asched.simulator.pods import EventQueue, SimulatedPod
from asched.state.cluster import ClusterState, PodPhase
from asched.state.observe import observe_object
from asched.state.records import AnyRecord, BindFailed, Bound, ObjectGone, VictimEvicted
from asched.state.session_records import PodGroupDecided, PodGroupWritten

GroupT = TypeVar("GroupT", bound=PodGroup | CustomPodGroup)


def with_status(group: GroupT, decision: PodGroupDecided) -> GroupT:
    """The group with the status that was decided for it."""
    if isinstance(group, PodGroup):
        own = tuple(
            PodGroupCondition(type=c.type, status=c.status, reason=c.reason, message=c.message)
            for c in decision.conditions
        )
        return msgspec.structs.replace(group, status=PodGroupStatus(conditions=own))
    custom = tuple(
        CustomPodGroupCondition(type=c.type, status=c.status, reason=c.reason, message=c.message)
        for c in decision.conditions
    )
    status = CustomPodGroupStatus(
        phase=str(decision.phase),
        conditions=custom,
        running=decision.running,
        succeeded=decision.succeeded,
        failed=decision.failed,
    )
    return msgspec.structs.replace(group, status=status)


def with_status_of(group: GroupT, known: Object | None) -> GroupT:
    """The group with the status that it has here already: in a recorded history it is what the
    scheduler of then wrote."""
    if isinstance(known, PodGroup | CustomPodGroup) and known.uid == group.uid:
        return msgspec.structs.replace(group, status=known.status)
    return group


class SimulatedCluster:
    """The cluster as it is. What the scheduler knows of it is the state of the fold."""

    def __init__(
        self, state: ClusterState, agenda: EventQueue, record: Callable[[AnyRecord], None]
    ) -> None:
        """``record`` is told what a scheduler sees, and folds it into ``state`` at once."""
        self._state = state
        self._agenda = agenda
        self._record = record
        self._lives: dict[str, SimulatedPod] = {}
        """The pods that are there, by key."""
        self._by_uid: dict[str, SimulatedPod] = {}
        """All pods that ever were, by the uid they were created with."""
        self._queued: dict[str, deque[PodCreated]] = {}
        """Pods that wait until their name is free."""
        self._open: dict[str, NodeSpan] = {}
        self._closed: list[NodeSpan] = []

    def life(self, key: str, uid: str) -> SimulatedPod | None:
        """The pod that is there under that key and present uid."""
        life = self._lives.get(key)
        return life if life is not None and life.uid == uid else None

    # -- what happens by itself -----------------------------------------------------------------

    def happen(self, event: TraceEvent) -> None:
        match event:
            case PodCreated():
                self._create(event, event.at_ns)
            case PodDeleted():
                self._delete(event)
            case ObjectSet(object=Pod() as pod):
                self._change_pod(pod)
            case ObjectSet():
                self._set(event.object, event.at_ns)
            case ObjectRemoved():
                self._remove(event)
            case NodeDrained():
                self._drain(event)

    def _create(self, event: PodCreated, at_ns: int) -> None:
        key = event.pod.key
        if key in self._lives:
            self._queued.setdefault(key, deque()).append(event)
            return
        life = self._lives[key] = self._by_uid[event.pod.metadata.uid] = SimulatedPod(event, at_ns)
        node = event.pod.spec.node_name
        if node:
            life.assign(node, at_ns)
            self._bound(life, at_ns)
        self._show(life.pod)

    def _delete(self, event: PodDeleted) -> None:
        life = self._by_uid.get(event.uid)
        if life is not None:
            if life.end is None:
                self._end(life, event.at_ns, EndReason.DELETED)
            return
        queued = self._queued.get(event.key, deque())
        for created in [c for c in queued if c.pod.metadata.uid == event.uid]:
            # It never got its name; what it waited for is told all the same.
            queued.remove(created)
            life = self._by_uid[event.uid] = SimulatedPod(created, created.at_ns)
            life.finish(event.at_ns, EndReason.DELETED)

    def _change_pod(self, pod: Pod) -> None:
        life = self._by_uid.get(pod.metadata.uid)
        if life is None or life.end is not None:
            return
        replace, now = msgspec.structs.replace, life.pod
        life.pod = replace(
            now,
            metadata=replace(now.metadata, labels=pod.metadata.labels),
            spec=replace(pod.spec, node_name=now.spec.node_name),
        )
        self._show(life.pod)

    def _set(self, item: AnyObject, at_ns: int) -> None:
        if isinstance(item, PodGroup | CustomPodGroup):
            known = self._state.objects_of.get(type(item), {}).get(item.key)
            item = with_status_of(item, known)
        if self._show(item) and isinstance(item, Node):
            self._close_span(item.name, at_ns)
            self._open[item.name] = NodeSpan(item, at_ns)

    def _remove(self, event: ObjectRemoved) -> None:
        kind = KINDS[event.kind]
        kept = self._state.objects_of.get(kind, {}).get(event.key)
        if kept is None or (event.uid and kept.uid != event.uid):
            return
        self._record(ObjectGone(event.kind, event.key, kept.uid))
        if kind is Node:
            self._close_span(event.key, event.at_ns)
            for life in self._bound_on(event.key):
                self._return_or_end(life, event.at_ns, EndReason.NODE_GONE)

    def _drain(self, event: NodeDrained) -> None:
        span = self._open.get(event.node)
        if span is None:
            return
        replace, node = msgspec.structs.replace, span.node
        self._set(replace(node, spec=replace(node.spec, unschedulable=True)), event.at_ns)
        for life in self._bound_on(event.node):
            owner = life.pod.metadata.controller
            if owner is None or owner.kind != "DaemonSet":
                self._evict(life, event.at_ns, EndReason.DRAINED, "")

    def _bound_on(self, node: str) -> list[SimulatedPod]:
        return [
            life for life in self._lives.values() if life.bound and life.placements[-1].node == node
        ]

    # -- what follows from decisions --------------------------------------------------------------

    def bind(self, key: str, uid: str, node: str, at_ns: int) -> None:
        """The binding of an assigned pod ends, one way or the other; nothing if the pod went."""
        entry = self._state.entry(key, uid)
        if entry is None or entry.phase is not PodPhase.ASSUMED or entry.node != node:
            return
        life = self._lives[key]
        if node not in self._open:
            life.leave(at_ns, EndReason.BIND_FAILED)
            life.message = f"node {node} is gone since the pod was assigned"
            self._record(BindFailed(key, uid, node, Code.ERROR, "", life.message))
            return
        self._record(Bound(key, uid, node))
        self._bound(life, at_ns)
        self._show(life.pod)

    def preempt(self, key: str, uid: str, by: str, at_ns: int) -> None:
        """A victim is deleted; it ends after its grace period."""
        if uid not in self._state.evictions:
            return
        self._record(VictimEvicted(key, uid))
        life = self.life(key, uid)
        if life is not None:
            self._evict(life, at_ns, EndReason.PREEMPTED, by)

    def write_group(self, decision: PodGroupDecided, at_ns: int) -> None:
        """A PodGroup gets the status that was decided for it."""
        kind, key = KINDS[decision.kind], decision.group
        self._record(PodGroupWritten(decision.kind, key, decision.uid))
        group = self._state.objects_of.get(kind, {}).get(key)
        if group is None or group.uid != decision.uid:
            return
        if isinstance(group, PodGroup | CustomPodGroup):
            self._show(cast("AnyObject", with_status(group, decision)))

    def _bound(self, life: SimulatedPod, at_ns: int) -> None:
        life.bind(at_ns)
        if life.run_left_ns is not None:
            due_ns = at_ns + max(0, life.run_left_ns)
            self._agenda.enter(due_ns, partial(self._finished, life, life.uid))

    def _finished(self, life: SimulatedPod, uid: str, at_ns: int) -> None:
        if life.end is None and life.uid == uid:
            self._end(life, at_ns, EndReason.FINISHED)

    def _evict(self, life: SimulatedPod, at_ns: int, why: EndReason, by: str) -> None:
        if life.evicted_ns is not None:
            return
        grace_ns = life.grace_ns
        life.evict(at_ns, why, by)
        if grace_ns:
            self._show(life.pod)
            self._agenda.enter(at_ns + grace_ns, partial(self._evicted, life, life.uid))
        else:
            self._evicted(life, life.uid, at_ns)

    def _evicted(self, life: SimulatedPod, uid: str, at_ns: int) -> None:
        if life.end is None and life.uid == uid:
            self._return_or_end(life, at_ns, life.evicted_for)

    def _return_or_end(self, life: SimulatedPod, at_ns: int, why: EndReason) -> None:
        if not life.created.returns:
            self._end(life, at_ns, why)
            return
        life.leave(at_ns, why)
        self._record(ObjectGone("Pod", life.key, life.uid))
        life.come_back(at_ns)
        self._show(life.pod)

    def _end(self, life: SimulatedPod, at_ns: int, why: EndReason) -> None:
        life.leave(at_ns, why)
        life.finish(at_ns, why)
        key = life.key
        del self._lives[key]
        if why is EndReason.FINISHED:
            status = msgspec.structs.replace(life.pod.status, phase=SUCCEEDED)
            self._show(msgspec.structs.replace(life.pod, status=status))
        else:
            self._record(ObjectGone("Pod", key, life.uid))
        queued = self._queued.get(key)
        if queued:
            self._create(queued.popleft(), at_ns)

    def _show(self, item: AnyObject) -> bool:
        """The scheduler's watch brings the object. False where it is no news."""
        news = observe_object(self._state, item)
        if news is None:
            return False
        self._record(news)
        return True

    # -- what became of it all --------------------------------------------------------------------

    def pods(self) -> tuple[PodRun, ...]:
        """Every pod that was created, in that order."""
        lives = [*self._by_uid.values()]
        lives += [SimulatedPod(c, c.at_ns) for queued in self._queued.values() for c in queued]
        runs = [life.as_run() for life in lives]
        return tuple(sorted(runs, key=lambda run: run.created_ns))

    def nodes(self) -> tuple[NodeSpan, ...]:
        spans = [*self._closed, *self._open.values()]
        return tuple(sorted(spans, key=lambda span: (span.from_ns, span.node.name)))

    def _close_span(self, node: str, at_ns: int) -> None:
        span = self._open.pop(node, None)
        if span is not None and span.from_ns < at_ns:
            self._closed.append(msgspec.structs.replace(span, to_ns=at_ns))
