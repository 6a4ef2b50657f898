"""The fold of one pod: added, updated, placed on a node, released from it, deleted.

A part of :mod:`asched.state.fold`.
"""

from __future__ import annotations

import msgspec

from asched.framework.events import ActionType, ClusterEvent, EventResource
from asched.framework.pod_groups import UNSCHEDULABLE, MemberStatus, group_of
from asched.framework.pod_info import PodInfo
from asched.model.meta import Object
from asched.model.pod import FINISHED, Pod
from asched.model.resource_claims import ResourceClaim
from asched.state.cluster import ClusterState, PlacementState, PodEntry
from asched.state.cluster_events import QueuedClusterEvent, pod_changes
from asched.state.observe import bound_pod
from asched.state.pod_groups import pending_status
from asched.state.preemption import awaits_victims, was_preempted
from asched.state.records import Bound, PodObserved, PodUpdated
from asched.state.reservations import ReservationFold, profile_of

_ASSIGNED_ADD = ClusterEvent(EventResource.ASSIGNED_POD, ActionType.ADD)
_ASSIGNED_DELETE = ClusterEvent(EventResource.ASSIGNED_POD, ActionType.DELETE)
_UNSCHEDULED_ADD = ClusterEvent(EventResource.UNSCHEDULED_POD, ActionType.ADD)
_UNSCHEDULED_DELETE = ClusterEvent(EventResource.UNSCHEDULED_POD, ActionType.DELETE)


class FoldError(AssertionError):
    """A record contradicts the state: a bug, or an altered journal. Never ignored."""


class PodFold:
    """Changes the state of pods."""

    def __init__(self, state: ClusterState) -> None:
        self._state = state
        self.reservations = ReservationFold(state)

    # -- records ------------------------------------------------------------------------------

    def on_copy_observed(self, record: PodObserved) -> None:
        state, templates = self._state, self._state.templates
        try:
            info = templates.pod_of(record)
        except KeyError:
            raise FoldError(
                f"pod {record.key} refers to template {record.template}, which is unknown"
            ) from None
        templates.retain(record.template)
        placed = record.node_name and record.phase not in FINISHED and info.key not in state.pods
        if placed and not state.sessions and not templates.is_grouped(record.template):
            self._add_placed(info, record)
        else:
            self.on_observed(info, record.template)

    def _add_placed(self, info: PodInfo, record: PodObserved) -> None:
        """As :meth:`_add` for most pods of a large list. The pod itself is not read."""
        state, node = self._state, record.node_name
        entry = PodEntry(info, record.template, PlacementState.BOUND, node)
        state.pods[info.key] = entry
        state.pods_by_uid.add(entry)
        state.nodes.add_pod(node, info)
        if state.queue.uses_events:
            self.emit(_ASSIGNED_ADD, None, info.pod)

    def on_observed(self, info: PodInfo, template: int) -> None:
        """The pod was added or updated; it is already counted as a user of ``template``."""
        state = self._state
        entry = state.pods.get(info.key)
        if entry is not None and entry.info.uid != info.uid:
            self.on_deleted(info.key)
            entry = None
        if info.pod.terminal:
            state.templates.release(template)
            if entry is not None:
                self.on_deleted(info.key)
            state.sessions.on_pod_finished(info)
        elif entry is None:
            self._add(info, template)
        else:
            state.templates.release(entry.template)
            state.keep_captured(entry)
            entry.template = template
            self._update(entry, info)

    def on_updated(self, record: PodUpdated) -> None:
        entry = self._state.entry(record.key, record.uid)
        if entry is None:
            raise FoldError(f"pod {record.key} ({record.uid}) was updated but is unknown")
        old, replace = entry.info.pod, msgspec.structs.replace
        meta, spec = old.metadata, old.spec
        if spec.node_name != record.node_name:
            spec = replace(spec, node_name=record.node_name)
        annotations, claims = record.annotations, record.claims
        if claims is None:
            claims = old.status.resource_claim_statuses
        pod = replace(
            old,
            metadata=replace(
                meta,
                labels=record.labels_after(meta.labels),
                deletion_timestamp=record.deletion_timestamp,
                declared_annotations=(
                    meta.declared_annotations if annotations is None else annotations
                ),
            ),
            spec=spec,
            status=replace(
                old.status,
                phase=record.phase,
                conditions=record.conditions,
                nominated_node_name=record.nominated_node_name,
                start_time=record.start_time,
                resource_claim_statuses=claims,
            ),
        )
        # Conditions affect the shape only of a pod with resources in its container statuses.
        same_shape = annotations is None and not old.status.reports_resources
        shape = entry.info.shape if same_shape else None
        label_set = None if record.changes_labels else entry.info.label_set
        self._update(entry, PodInfo(pod, shape, label_set))

    def on_bound_observed(self, record: Bound) -> None:
        """The watch shows the pod on its assigned node."""
        entry = self._state.entry(record.key, record.uid)
        if entry is None or entry.node != record.node:
            raise FoldError(
                f"pod {record.key} ({record.uid}) was observed on {record.node}, where it was not"
                " assigned"
            )
        pod = bound_pod(
            self._state, entry.info.pod, record.node, topology_labels=record.topology_labels
        )
        shape = None if pod.status.reports_resources else entry.info.shape
        labels = None if record.topology_labels else entry.info.label_set
        self._update(entry, PodInfo(pod, shape, labels))

    # -- additions and updates ----------------------------------------------------------------

    def _add(self, info: PodInfo, template: int) -> None:
        state, pod = self._state, info.pod
        entry = state.pods[info.key] = PodEntry(info, template)
        state.pods_by_uid.add(entry)
        self.update_group(entry)
        if pod.node_name:
            self.place(entry, pod.node_name, PlacementState.BOUND)
            self.emit(_ASSIGNED_ADD, None, pod)
            return
        if self.is_ours(entry):
            self.enqueue(info)
        state.evictions.mark_needed(pod.uid)
        self.update_sessions(entry)
        self.emit(_UNSCHEDULED_ADD, None, pod)

    def enqueue(self, info: PodInfo) -> None:
        """A pending pod is ours from now on."""
        # As in kube-scheduler, nominations by other schedulers are ignored.
        self._state.nominator.nominate(info, info.pod.status.nominated_node_name)
        self._state.queue.add(info, self._state.now_ns)

    def _update(self, entry: PodEntry, info: PodInfo) -> None:
        old, new = entry.info.pod, info.pod
        if self._state.guards.quarantined and (old.metadata, old.spec) != (new.metadata, new.spec):
            self._state.guards.quarantined.pop(info.key, None)
        if info.pod.terminal:
            self.on_deleted(info.key)
            self._state.sessions.on_pod_finished(info)
            return
        if info.pod.terminating:
            self._state.evictions.end(info.uid)
        if info.pod.node_name and entry.node and entry.node != info.pod.node_name:
            # Another scheduler bound the pod first; the API server is authoritative.
            self.release_node(entry, bound_elsewhere=True)
        group = group_of(entry.info.pod)
        if group is not None and group_of(info.pod) != group:
            self._state.groups.remove(group, info.key)
        if info.pod.node_name:
            self._update_bound(entry, info)
        elif entry.placement_state is PlacementState.PENDING:
            self._update_pending(entry, info)
        else:
            # Assumed, or confirmed while this earlier state was in transit: it keeps its node.
            self._update_placed(entry, info)
        self.update_sessions(entry)
        joined = group_of(info.pod)
        if joined is not None and joined != group:
            # To the group it is a new pod: the gates of the other members may open.
            event = _ASSIGNED_ADD if entry.node else _UNSCHEDULED_ADD
            self.emit(event, None, _as_if_on(entry.node, info.pod))

    def _update_placed(self, entry: PodEntry, info: PodInfo) -> None:
        state, old = self._state, entry.info
        state.keep_captured(entry)
        entry.info = info
        self.update_group(entry)
        state.nodes.replace_pod(entry.node, info)
        state.waiting_pods.update(info)
        self._update_in_queue(old, info)

    def _update_bound(self, entry: PodEntry, info: PodInfo) -> None:
        old, node_name = entry.info, info.pod.node_name
        self._state.keep_captured(entry)
        entry.info = info
        self.update_group(entry)
        if not entry.node:
            self.place(entry, node_name, PlacementState.BOUND)
            self._end_scheduling(entry)
            self.update_group(entry)
            self.emit(_ASSIGNED_ADD, None, info.pod)
            return
        self._state.nodes.replace_pod(node_name, info)
        if entry.placement_state is PlacementState.ASSUMED:
            self.confirm(entry)
            return
        if self._state.queue.uses_events:
            for event in pod_changes(old, info, EventResource.ASSIGNED_POD):
                self.emit(event, old.pod, info.pod)

    def _update_pending(self, entry: PodEntry, info: PodInfo) -> None:
        state, old = self._state, entry.info
        state.keep_captured(entry)
        entry.info = info
        ended_on, nominated = "", info.pod.status.nominated_node_name
        if nominated != old.pod.status.nominated_node_name and self.is_ours(entry):
            ended_on = state.nominator.nominate(info, nominated)
        else:
            state.nominator.refresh(info)
        self.update_group(entry)
        if not self.is_ours(entry):
            self._leave_queue(entry)
            state.pending_evaluations.pop(info.key, None)
        elif info.key in state.queue or info.key in state.pending_evaluations:
            self._update_in_queue(old, info)
        else:
            state.queue.add(info, state.now_ns)
        for event in pod_changes(old, info, EventResource.UNSCHEDULED_POD):
            self.emit(event, old.pod, info.pod)
        self.on_nomination_ended(info, ended_on)

    def _update_in_queue(self, old: PodInfo, new: PodInfo) -> None:
        events = pod_changes(old, new, EventResource.TARGET_POD)
        queued_events = [QueuedClusterEvent(event, old.pod, new.pod) for event in events]
        self._state.queue.update(new, queued_events, self._state.now_ns)

    # -- placing, releasing and deletion ------------------------------------------------------

    def on_deleted(self, key: str) -> None:
        state = self._state
        entry = state.pods.pop(key)
        state.pods_by_uid.remove(entry.info.uid)
        pod = entry.info.pod
        state.templates.release(entry.template)
        state.guards.quarantined.pop(key, None)
        state.evictions.end(entry.info.uid)
        if entry.node:
            self.release_node(entry)
        else:
            self.emit(_UNSCHEDULED_DELETE, pod, None)
        self._end_scheduling(entry)
        state.sessions.on_pod_changed(pod, pending=False)
        state.sessions.reset_backoff(pod)
        group = group_of(pod)
        if group is not None:
            state.groups.remove(group, key)

    def on_special_claim_deleted(self, claim: ResourceClaim) -> None:
        """The pod of a left-over claim for extended resources can be scheduled again. No plugin
        listens to deletions of claims, as in kube-scheduler."""
        owner = claim.metadata.controller
        if owner is not None:
            key, queue = f"{claim.namespace}/{owner.name}", self._state.queue
            if key in queue.unschedulable and self._state.entry(key, owner.uid) is not None:
                queue.activate(key, self._state.now_ns)

    def place(self, entry: PodEntry, node_name: str, placement_state: PlacementState) -> None:
        self._state.nodes.add_pod(node_name, entry.info)
        self._state.keep_captured(entry)
        entry.node, entry.placement_state = node_name, placement_state
        self.update_sessions(entry)
        self.update_group(entry)

    def confirm(self, entry: PodEntry) -> None:
        """An assumed pod is bound to its node."""
        self._state.keep_captured(entry)
        entry.placement_state = PlacementState.BOUND
        self._end_scheduling(entry)
        if entry.reserved is not None:
            self.reservations.expect(entry)
        self.update_sessions(entry)
        self.update_group(entry)
        if self._state.queue.uses_events:
            self.emit(_ASSIGNED_ADD, None, _as_if_on(entry.node, entry.info.pod))

    def release_node(
        self,
        entry: PodEntry,
        held_since_ns: int | None = None,
        *,
        bound_elsewhere: bool = False,
    ) -> None:
        """Release the node of a placed pod. ``held_since_ns``: see :class:`QueuedClusterEvent`.
        ``bound_elsewhere``: another client bound the pod to another node."""
        state, node_name = self._state, entry.node
        pod = _as_if_on(node_name, entry.info.pod)
        if entry.placement_state is PlacementState.ASSUMED:
            runs = bound_elsewhere or entry.info.key not in state.pods
            self.reservations.undo(entry, binding_runs=runs)
        elif entry.reserved is not None:
            self.reservations.end_bound(entry)
        state.nodes.remove_pod(node_name, entry.info)
        state.keep_captured(entry)
        entry.assignment = entry.reserved = None
        entry.node, entry.placement_state = "", PlacementState.PENDING
        if entry.info.key in state.pods:
            self.update_sessions(entry)
            self.update_group(entry)
        released = QueuedClusterEvent(_ASSIGNED_DELETE, pod, None, held_since_ns)
        state.queue.move_on_event(released, state.now_ns)
        self._activate_nominated(node_name)
        if was_preempted(pod):
            self._retry_preemptors(node_name)

    def _retry_preemptors(self, node_name: str) -> None:
        """Activate the pods nominated to the node for which all victims are gone.

        kube-scheduler retries a preemptor after its backoff and behind all pods of its priority
        that wait: of many preemptors none is bound before the last one was attempted. Members of
        gangs follow :meth:`_activate_nominated`.
        """
        state = self._state
        for key, info in sorted(state.nominator.by_node.get(node_name, {}).items()):
            alone = group_of(info.pod) is None
            complete = alone and info.uid in state.evictions.completed_preemptors
            if complete and not awaits_victims(state.nodes, info, node_name):
                state.queue.retry_preemptor(key, state.now_ns)

    def _activate_nominated(self, node_name: str) -> None:
        """A pod left the node: activate the pods nominated there with a gang that waits at
        Permit.

        Permit holds the rest of the gang only for a limited time. If the backoff were longer, the
        gang would preempt again and again and never be complete. kube-scheduler takes pods out of
        the backoff whenever no other pod is active.
        """
        state = self._state
        if not state.groups.at_permit:
            return
        for key, info in sorted(state.nominator.by_node.get(node_name, {}).items()):
            waiting = group_of(info.pod) in state.groups.at_permit
            if waiting and not state.evictions.is_preempting(info.uid):
                state.queue.activate(key, state.now_ns)

    def _end_scheduling(self, entry: PodEntry) -> None:
        """The pod is bound or deleted: nothing about it remains to be decided."""
        state, key = self._state, entry.info.key
        if entry.assignment is not None:
            state.reserve_calls.bound(profile_of(state, entry), entry.info, entry.assignment)
            state.keep_captured(entry)
            entry.assignment = None
        self._leave_queue(entry)
        state.pending_evaluations.pop(key, None)
        state.waiting_pods.remove(key)
        state.evictions.mark_unneeded(entry.info.uid)
        ended_on = state.nominator.withdraw(key)
        if ended_on != entry.node:
            self.on_nomination_ended(entry.info, ended_on)

    def on_nomination_ended(self, info: PodInfo, node_name: str) -> None:
        """The pod is no longer nominated to that node; nothing if the name is empty.

        kube-scheduler emits the event of a pod that left the node when it observes that the
        nominated node of a pending pod changed or the pod was deleted
        (``updatePodInSchedulingQueue``, ``deletePodFromSchedulingQueue``). Here the event follows
        at the decision, and also if the pod got another node than the nominated one, which
        kube-scheduler leaves to the flush.
        """
        state = self._state
        if node_name and state.queue.uses_events:
            pod = _as_if_on(node_name, info.pod)
            ended = QueuedClusterEvent(_ASSIGNED_DELETE, pod, None, nomination=True)
            state.queue.move_on_event(ended, state.now_ns)

    # -- sessions and groups ------------------------------------------------------------------

    def update_sessions(self, entry: PodEntry) -> None:
        sessions = self._state.sessions
        if sessions:
            pod = entry.info.pod
            pending = entry.placement_state is PlacementState.PENDING and not pod.terminating
            sessions.on_pod_changed(pod, pending=pending)
            if entry.placement_state is PlacementState.BOUND:
                sessions.reset_backoff(pod)

    def return_to_session(self, entry: PodEntry) -> None:
        """A binding decided by a session failed: the pod waits for the next session."""
        self.release_node(entry)
        if self.is_ours(entry):
            # A profile serves its scheduler name now.
            self._state.queue.add(entry.info, self._state.now_ns)

    def update_group(self, entry: PodEntry) -> None:
        """Update the status of the pod in the group that it names, if any."""
        group = group_of(entry.info.pod)
        if group is not None:
            status = member_status(self._state, entry)
            self._state.groups.set_status(group, entry.info.key, status)

    def update_groups(self) -> None:
        """As :meth:`update_group` for all pods. Reading a pod of a restored state creates it: those
        of a template without a group are not read."""
        in_groups = self._state.templates.in_groups()
        for entry in self._state.pods.values():
            if not entry.template or entry.template in in_groups:
                self.update_group(entry)

    def _leave_queue(self, entry: PodEntry) -> None:
        """Remove the pod from the queue. A turn that it does not need is not charged."""
        state, info = self._state, entry.info
        queued = state.queue.backoff.get(info.key)
        if queued is not None and queued.turn_ns > state.now_ns:
            steps = queued.charged_steps
            state.guards.budgets.charge(info.namespace, -steps, state.now_ns)
        state.queue.remove(info.key)

    # -- profiles -----------------------------------------------------------------------------

    def is_ours(self, entry: PodEntry) -> bool:
        """Whether the pod is pending and one of our profiles schedules it."""
        if entry.placement_state is not PlacementState.PENDING:
            return False
        pod = entry.info.pod
        return not pod.terminating and pod.spec.scheduler_name in self._state.profiles

    def dequeue_if_not_ours(self, entry: PodEntry) -> None:
        """Drop a pod from the queue that is terminating, or has no profile any longer."""
        if not self.is_ours(entry):
            self._leave_queue(entry)

    def emit(self, event: ClusterEvent, old: Object | None, new: Object | None) -> None:
        queue = self._state.queue
        if queue.uses_events:
            queue.move_on_event(QueuedClusterEvent(event, old, new), self._state.now_ns)


def member_status(state: ClusterState, entry: PodEntry) -> MemberStatus:
    """The status of a pod in its group, from the rest of the state."""
    pod, key = entry.info.pod, entry.info.key
    if pod.terminating:
        return MemberStatus.TERMINATING
    if entry.node:
        return MemberStatus.WAITING if key in state.waiting else MemberStatus.ASSIGNED
    if pod.spec.scheduler_name not in state.profiles:
        return MemberStatus.FOREIGN
    if pod.spec.scheduling_gates:
        return MemberStatus.GATED
    status = pending_status(state.queue.find_queued_or_in_flight(key))
    if status in UNSCHEDULABLE and state.nominator.node_of(key):
        return MemberStatus.NOMINATED
    return status


def _as_if_on(node_name: str, pod: Pod) -> Pod:
    """The pod for hints: with its node, whether or not the API server shows it yet."""
    if pod.spec.node_name == node_name:
        return pod
    replace = msgspec.structs.replace
    return replace(pod, spec=replace(pod.spec, node_name=node_name))
