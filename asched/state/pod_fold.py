"""The fold of one pod: it appears, changes, takes a node's room, gives it back, goes.

A part of :mod:`asched.state.fold`, which sends it what records say of pods.
"""

from __future__ import annotations

import msgspec

from asched.framework.events import ActionType, ClusterEvent, EventResource
from asched.framework.pod_groups import REFUSED, MemberStatus, group_of
from asched.framework.pod_info import PodInfo
from asched.framework.runtime.profile import Profile
from asched.model.meta import Object
from asched.model.pod import Pod
from asched.state.binding_echo import picture
from asched.state.cluster import ClusterState, PodEntry, PodPhase
from asched.state.cluster_events import pod_changes
from asched.state.pod_groups import standing_of_pending
from asched.state.queue_events import QueuedClusterEvent
from asched.state.records import Bound, PodChanged, PodSeen
from asched.state.rules import Rules
from asched.state.templates import reports_resources

_ASSIGNED_ADD = ClusterEvent(EventResource.ASSIGNED_POD, ActionType.ADD)
_ASSIGNED_DELETE = ClusterEvent(EventResource.ASSIGNED_POD, ActionType.DELETE)
_UNSCHEDULED_ADD = ClusterEvent(EventResource.UNSCHEDULED_POD, ActionType.ADD)
_UNSCHEDULED_DELETE = ClusterEvent(EventResource.UNSCHEDULED_POD, ActionType.DELETE)


class FoldError(AssertionError):
    """A record contradicts the state: a bug, or a journal that was altered. Never ignored."""


class PodFold:
    """Changes what the state says of pods: where each is counted, and who is told."""

    def __init__(self, state: ClusterState) -> None:
        self._state = state

    def like_another_seen(self, record: PodSeen) -> None:
        templates = self._state.templates
        try:
            info = templates.instance(record)
        except KeyError:
            what = f"pod {record.key} is like template {record.template}, which is not held"
            raise FoldError(what) from None
        templates.use(record.template)
        self.seen(info, record.template)

    def seen(self, info: PodInfo, template: int) -> None:
        """The pod is now as given; ``template`` counts it as a user already."""
        state = self._state
        entry = state.pods.get(info.key)
        if entry is not None and entry.info.uid != info.uid:
            self.gone(info.key)
            entry = None
        if info.pod.terminal:
            state.templates.release(template)
            if entry is not None:
                self.gone(info.key)
            state.sessions.finish(info)
        elif entry is None:
            self._new(info, template)
        else:
            state.templates.release(entry.template)
            entry.template = template
            self._updated(entry, info)

    def changed(self, record: PodChanged) -> None:
        entry = self._state.entry(record.key, record.uid)
        if entry is None:
            raise FoldError(f"pod {record.key} ({record.uid}) changed but was never seen")
        old, replace = entry.info.pod, msgspec.structs.replace
        same_labels = record.labels is None
        labels = old.metadata.labels if record.labels is None else record.labels
        spec = old.spec
        if spec.node_name != record.node_name:
            spec = replace(spec, node_name=record.node_name)
        pod = replace(
            old,
            metadata=replace(
                old.metadata,
                labels=labels,
                deletion_timestamp=record.deletion_timestamp,
                declared_annotations=(
                    old.metadata.declared_annotations
                    if record.annotations is None
                    else record.annotations
                ),
            ),
            spec=spec,
            status=replace(
                old.status,
                phase=record.phase,
                conditions=record.conditions,
                nominated_node_name=record.nominated_node_name,
                start_time=record.start_time,
            ),
        )
        # Conditions say something of resources only for a pod whose containers report theirs.
        same_shape = record.annotations is None and not reports_resources(old)
        shape = entry.info.shape if same_shape else None
        label_set = entry.info.label_set if same_labels else None
        self._updated(entry, PodInfo(pod, shape, label_set))

    def shown_bound(self, record: Bound) -> None:
        """The watch shows the pod on the node that it was placed on."""
        entry = self._state.entry(record.key, record.uid)
        if entry is None or entry.node != record.node:
            raise FoldError(
                f"pod {record.key} ({record.uid}) is shown bound where it was not placed"
            )
        pod = picture(self._state, entry.info.pod, record.node, labelled=record.labelled)
        shape = None if reports_resources(pod) else entry.info.shape
        labels = None if record.labelled else entry.info.label_set
        self._updated(entry, PodInfo(pod, shape, labels))

    def _new(self, info: PodInfo, template: int) -> None:
        state, pod = self._state, info.pod
        entry = state.pods[info.key] = PodEntry(info, template)
        self.regroup(entry)
        if pod.node_name:
            self.place(entry, pod.node_name, PodPhase.BOUND)
            self._tell(_ASSIGNED_ADD, None, pod)
            return
        if self.is_ours(entry):
            # As in kube-scheduler, what another scheduler nominates is no concern of ours.
            state.nominator.nominate(info, pod.status.nominated_node_name)
            state.queue.add(info, state.now_ns)
        state.evictions.remember(pod.uid)
        self.note_in_sessions(entry)
        self._tell(_UNSCHEDULED_ADD, None, pod)

    def _updated(self, entry: PodEntry, info: PodInfo) -> None:
        if info.pod.terminal:
            self.gone(info.key)
            self._state.sessions.finish(info)
            return
        if info.pod.terminating:
            # Whoever deleted it: there is nothing left to evict.
            self._state.evictions.end(info.uid)
        self._leave_group_unless(entry, info)
        if info.pod.node_name:
            self._bound_updated(entry, info)
        elif entry.phase is PodPhase.PENDING:
            self._pending_updated(entry, info)
        else:
            # Assumed, or confirmed to us while this older picture was on its way: keep its node.
            self._placed_updated(entry, info)
        self.note_in_sessions(entry)

    def _placed_updated(self, entry: PodEntry, info: PodInfo) -> None:
        state, old = self._state, entry.info
        entry.info = info
        self.regroup(entry)
        state.nodes.replace_pod(entry.node, info)
        waiting = state.waiting.get(info.key)
        if waiting is not None:
            waiting.info = info
        events = pod_changes(old, info, EventResource.TARGET_POD)
        state.queue.update(
            info, [QueuedClusterEvent(e, old.pod, info.pod) for e in events], state.now_ns
        )

    def _bound_updated(self, entry: PodEntry, info: PodInfo) -> None:
        old, node_name = entry.info, info.pod.node_name
        if entry.node and entry.node != node_name:
            # Another scheduler was faster; what the API server says counts.
            self.give_back(entry)
        entry.info = info
        self.regroup(entry)
        if not entry.node:
            self.place(entry, node_name, PodPhase.BOUND)
            self._settled(entry)
            if self._state.rules >= Rules.TAKEN_FROM_PERMIT_IS_PLACED:
                self.regroup(entry)
            self._tell(_ASSIGNED_ADD, None, info.pod)
            return
        self._state.nodes.replace_pod(node_name, info)
        if entry.phase is PodPhase.ASSUMED:
            self.bound(entry)
            return
        if self._state.queue.heeds_events:
            for event in pod_changes(old, info, EventResource.ASSIGNED_POD):
                self._tell(event, old.pod, info.pod)

    def _pending_updated(self, entry: PodEntry, info: PodInfo) -> None:
        state, old = self._state, entry.info
        entry.info = info
        kept_on, nominated = "", info.pod.status.nominated_node_name
        if nominated != old.pod.status.nominated_node_name and self.is_ours(entry):
            kept_on = state.nominator.nominate(info, nominated)
        else:
            state.nominator.refresh(info)
        self.regroup(entry)
        if not self.is_ours(entry):
            state.queue.remove(info.key)
            state.inquiries.pop(info.key, None)
        elif info.key in state.queue or self._is_asked_about(info.key):
            events = pod_changes(old, info, EventResource.TARGET_POD)
            state.queue.update(
                info, [QueuedClusterEvent(e, old.pod, info.pod) for e in events], state.now_ns
            )
        else:
            state.queue.add(info, state.now_ns)
        for event in pod_changes(old, info, EventResource.UNSCHEDULED_POD):
            self._tell(event, old.pod, info.pod)
        self.kept_no_longer(info, kept_on)

    def _is_asked_about(self, key: str) -> bool:
        """Whether the attempt of a pending pod waits for extenders, and the pod in no queue."""
        state = self._state
        return key in state.inquiries and state.rules >= Rules.ASKED_PODS_STAY_IN_FLIGHT

    def gone(self, key: str) -> None:
        state = self._state
        entry = state.pods.pop(key)
        state.templates.release(entry.template)
        state.evictions.end(entry.info.uid)
        if entry.node:
            self.give_back(entry)
        else:
            self._tell(_UNSCHEDULED_DELETE, entry.info.pod, None)
        self._settled(entry)
        state.sessions.note(entry.info.pod, pending=False)
        state.sessions.settled(entry.info.pod)
        group = group_of(entry.info.pod)
        if group is not None:
            state.groups.leave(group, key)

    def place(self, entry: PodEntry, node_name: str, phase: PodPhase) -> None:
        self._state.nodes.add_pod(node_name, entry.info)
        entry.node, entry.phase = node_name, phase
        self.note_in_sessions(entry)
        self.regroup(entry)

    def bound(self, entry: PodEntry) -> None:
        """An assumed pod is bound where it was assumed to be."""
        entry.phase = PodPhase.BOUND
        self._settled(entry)
        self.note_in_sessions(entry)
        self.regroup(entry)
        if self._state.queue.heeds_events:
            self._tell(_ASSIGNED_ADD, None, _on_node(entry))

    def give_back(self, entry: PodEntry, held_since_ns: int | None = None) -> None:
        """Free the room of a placed pod; others may use it. ``held_since_ns``: see :class:`QueuedClusterEvent`."""
        pod = _on_node(entry)
        if entry.phase is PodPhase.ASSUMED:
            self._unreserve(entry)
        elif entry.reserved is not None:
            self._state.books.release(self.profile(entry), entry.info, entry.reserved)
        self._state.nodes.remove_pod(entry.node, entry.info)
        entry.assignment = entry.reserved = None
        entry.node, entry.phase = "", PodPhase.PENDING
        if entry.info.key in self._state.pods:
            self.note_in_sessions(entry)
            self.regroup(entry)
        happened = QueuedClusterEvent(_ASSIGNED_DELETE, pod, None, held_since_ns)
        self._state.queue.happened(happened, self._state.now_ns)
        self._hurry_awaited(pod.node_name)

    def _hurry_awaited(self, node_name: str) -> None:
        """A pod left the node: members of gangs for which it may have made room there, evicted or turned
        away by Permit, go on at once if others of their gang are held. These keep room from everybody only for so long, and where that is
        shorter than the backoff the gang would evict again and again and never be complete.

        kube-scheduler takes pods out of the backoff whenever no other is active.
        """
        state = self._state
        if state.rules < Rules.AWAITED_PREEMPTORS_GO_ON or not state.groups.holding:
            return
        for key, info in sorted(state.nominator.by_node.get(node_name, {}).items()):
            awaited = group_of(info.pod) in state.groups.holding
            if awaited and not state.evictions.make_room_for(info.uid):
                state.queue.activate(key, state.now_ns)

    def _settled(self, entry: PodEntry) -> None:
        """Nothing is left to decide or to wait for: bound, or gone."""
        state, key = self._state, entry.info.key
        if entry.assignment is not None:
            state.books.close(self.profile(entry), entry.info, entry.assignment)
        entry.assignment = None
        state.queue.remove(key)
        state.inquiries.pop(key, None)
        state.permits.end(key)
        state.evictions.forget(entry.info.uid)
        kept_on = state.nominator.withdraw(key)
        if kept_on != entry.node:
            self.kept_no_longer(entry.info, kept_on)

    def kept_no_longer(self, info: PodInfo, node_name: str) -> None:
        """No room is kept any more for the pod on that node; nothing to tell where there is none.

        kube-scheduler tells of it as of a pod that left the node, where it sees that the nominated node
        of a pending pod changed or the pod went (``updatePodInSchedulingQueue``,
        ``deletePodFromSchedulingQueue``). We tell as soon as we decide it, and also where the pod got
        another node than the nominated one, which kube-scheduler leaves to the flush.
        """
        state = self._state
        if node_name and state.rules >= Rules.KEPT_ROOM_IS_TOLD and state.queue.heeds_events:
            pod = _as_if_on(node_name, info.pod)
            happened = QueuedClusterEvent(_ASSIGNED_DELETE, pod, None, nomination=True)
            state.queue.happened(happened, state.now_ns)

    # -- sessions -----------------------------------------------------------------------------

    def note_in_sessions(self, entry: PodEntry) -> None:
        """Keep up who waits for a session, and that something happened that sessions may look at."""
        if self._state.sessions:
            pod = entry.info.pod
            pending = entry.phase is PodPhase.PENDING and not pod.terminating
            self._state.sessions.note(pod, pending=pending)
            if entry.phase is PodPhase.BOUND:
                self._state.sessions.settled(pod)

    def back_to_session(self, entry: PodEntry) -> None:
        """The binding that a session decided failed: the pod waits for the next session."""
        self.give_back(entry)
        if self.is_ours(entry):
            # By now it is placed pod by pod.
            self._state.queue.add(entry.info, self._state.now_ns)

    # -- groups -------------------------------------------------------------------------------

    def regroup(self, entry: PodEntry) -> None:
        """Keep up how the pod stands in the group that it names, if it names one."""
        group = group_of(entry.info.pod)
        if group is not None:
            self._state.groups.enter(group, entry.info.key, standing_of(self._state, entry))

    def _leave_group_unless(self, entry: PodEntry, info: PodInfo) -> None:
        """A pod that changes leaves its group, unless it goes on naming it."""
        group = group_of(entry.info.pod)
        if group is not None and group_of(info.pod) != group:
            self._state.groups.leave(group, entry.info.key)

    # -- whose the pod is ---------------------------------------------------------------------

    def is_ours(self, entry: PodEntry) -> bool:
        """A pending pod that one of our profiles is to place."""
        pod = entry.info.pod
        return (
            entry.phase is PodPhase.PENDING
            and not pod.terminating
            and pod.spec.scheduler_name in self._state.profiles
        )

    def drop_if_not_ours(self, entry: PodEntry) -> None:
        """A pod that is being deleted by now, or whose profile went, is not tried again."""
        if not self.is_ours(entry):
            self._state.queue.remove(entry.info.key)

    def _unreserve(self, entry: PodEntry) -> None:
        if entry.assignment is not None:
            self._state.books.strike(self.profile(entry), entry.info, entry.assignment)

    def enter_in_new_books(self, entry: PodEntry) -> None:
        """The plugins are new instances: tell them what is assumed, and what was noted of the bound."""
        profile, books = self.profile(entry), self._state.books
        if entry.assignment is not None:
            books.enter(profile, entry.info, entry.assignment)
        elif entry.reserved is not None:
            books.enter(profile, entry.info, entry.reserved)
            books.close(profile, entry.info, entry.reserved)

    def profile(self, entry: PodEntry) -> Profile | None:
        """None where it was taken out of the configuration meanwhile, and for a pod of a session of
        which nothing was set aside."""
        name = entry.info.pod.spec.scheduler_name
        decision = entry.assignment or entry.reserved
        if decision is not None and decision.session and decision.reservations:
            return self._state.binding_profile(name)
        return self._state.profiles.get(name)

    def _tell(self, event: ClusterEvent, old: Object | None, new: Object | None) -> None:
        self._state.queue.happened(QueuedClusterEvent(event, old, new), self._state.now_ns)


def standing_of(state: ClusterState, entry: PodEntry) -> MemberStatus:
    """How a pod stands in its group, from the rest of the state."""
    pod, key = entry.info.pod, entry.info.key
    if pod.terminating:
        return MemberStatus.LEAVING
    if entry.node:
        return MemberStatus.WAITING if key in state.waiting else MemberStatus.PLACED
    if pod.spec.scheduling_gates or pod.spec.scheduler_name not in state.profiles:
        return MemberStatus.HELD_BACK
    standing = standing_of_pending(state.queue.known(key))
    if standing in REFUSED and state.nominator.node_of(key):
        return MemberStatus.AWAITING_ROOM
    return standing


def _on_node(entry: PodEntry) -> Pod:
    """The placed pod as hints are to see it: on its node, whether or not the API says so yet."""
    return _as_if_on(entry.node, entry.info.pod)


def _as_if_on(node_name: str, pod: Pod) -> Pod:
    if pod.spec.node_name == node_name:
        return pod
    replace = msgspec.structs.replace
    return replace(pod, spec=replace(pod.spec, node_name=node_name))
