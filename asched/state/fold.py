"""``fold(state, record)``: the only code that changes the state.

The live daemon, a restart, time travel and every replay go through here, record by record, and end
up with the same state. Nothing here reads a clock or anything else that the records do not hold.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from asched.framework.events import ActionType, ClusterEvent, EventResource
from asched.framework.interface import Eviction, Victim
from asched.framework.pod_info import PodInfo
from asched.framework.profile import PluginLoader, Profile, ProfileError
from asched.framework.status import REJECTIONS, Code
from asched.model.meta import Object
from asched.model.node import Node
from asched.model.pod import Pod
from asched.model.resources import KINDS
from asched.state import records as r
from asched.state.absent import incomplete_profile
from asched.state.changes import EVENT_RESOURCES, node_changes, pod_changes
from asched.state.cluster import (
    ClusterState,
    PodEntry,
    PodPhase,
    ProfileHandle,
)
from asched.state.inquiries import Inquiry
from asched.state.permits import WaitingPod
from asched.state.queue import Happened
from asched.state.templates import reports_resources

_ASSIGNED_ADD = ClusterEvent(EventResource.ASSIGNED_POD, ActionType.ADD)
_ASSIGNED_DELETE = ClusterEvent(EventResource.ASSIGNED_POD, ActionType.DELETE)
_UNSCHEDULED_ADD = ClusterEvent(EventResource.UNSCHEDULED_POD, ActionType.ADD)
_UNSCHEDULED_DELETE = ClusterEvent(EventResource.UNSCHEDULED_POD, ActionType.DELETE)


class FoldError(AssertionError):
    """A record contradicts the state: a bug, or a journal that was altered. Never ignored."""


class Fold:
    """Applies records to one state, in order."""

    def __init__(self, state: ClusterState, load: PluginLoader) -> None:
        """``load`` finds the plugins that a recorded profile names."""
        self.state = state
        self._load = load
        self._apply: dict[type[r.Record], Callable[[Any], None]] = {
            r.EngineStarted: self._engine_started,
            r.ProfilesLoaded: self._profiles_loaded,
            r.ObjectSeen: self._object_seen,
            r.ObjectGone: self._object_gone,
            r.PodSeen: self._pod_like_another_seen,
            r.PodChanged: self._pod_changed,
            r.TurnStarted: self._turn_started,
            r.Assigned: self._assigned,
            r.Rejected: self._rejected,
            r.AttemptFailed: self._attempt_failed,
            r.ExtenderAsked: self._extender_asked,
            r.ExtenderFiltered: self._extender_answered,
            r.ExtenderPrioritized: self._extender_answered,
            r.ExtenderReviewed: self._extender_answered,
            r.ExtenderFailed: self._extender_answered,
            r.PermitAllowed: self._permit_allowed,
            r.PermitRejected: self._permit_rejected,
            r.Bound: self._bound,
            r.BindFailed: self._bind_failed,
            r.VictimEvicted: self._eviction_ended,
            r.EvictionFailed: self._eviction_failed,
            r.LeadershipGained: self._leadership_gained,
            r.LeadershipLost: self._nothing,
            r.ShadowCompared: self._nothing,
            r.ShadowExplained: self._nothing,
        }

    def apply(self, record: r.AnyRecord) -> None:
        """Fold one record. Raises :class:`FoldError` where it cannot be true."""
        self._apply[type(record)](record)

    def apply_all(self, records: Iterable[r.AnyRecord]) -> None:
        for record in records:
            self.apply(record)

    # -- the engine itself --------------------------------------------------------------------

    def _nothing(self, record: r.Record) -> None:
        """Kept for history; no decision depends on it."""

    def _engine_started(self, record: r.EngineStarted) -> None:
        self.state.seed = record.seed

    def _profiles_loaded(self, record: r.ProfilesLoaded) -> None:
        state = self.state
        profiles = {}
        for spec in record.profiles:
            handle = ProfileHandle(state, spec.scheduler_name)
            try:
                profile = Profile(spec, self._load, handle)
            except ProfileError as error:
                profile = incomplete_profile(spec, handle, str(error))
            profiles[spec.scheduler_name] = profile
        state.profiles = profiles
        state.extenders = record.extenders
        for key in state.inquiries:
            # Whoever was to answer may be gone, or another one now: these attempts begin again.
            state.queue.give_up(key)
        state.inquiries.clear()
        state.queue.configure(profiles, record.queue)
        for entry in state.pods.values():
            if self._is_ours(entry) and entry.info.key not in state.queue:
                state.queue.add(entry.info, state.now_ns)
            else:
                self._enter_in_new_books(entry)

    def _is_ours(self, entry: PodEntry) -> bool:
        """A pending pod that one of our profiles is to place."""
        pod = entry.info.pod
        return (
            entry.phase is PodPhase.PENDING
            and not pod.terminating
            and pod.spec.scheduler_name in self.state.profiles
        )

    def _turn_started(self, record: r.TurnStarted) -> None:
        if record.now_ns < self.state.now_ns:
            raise FoldError(f"time runs backwards: {record.now_ns} after {self.state.now_ns}")
        self.state.now_ns = record.now_ns
        self.state.queue.tick(record.now_ns)

    def _leadership_gained(self, record: r.LeadershipGained) -> None:
        if record.epoch <= self.state.epoch:
            raise FoldError(f"epoch {record.epoch} after epoch {self.state.epoch}")
        self.state.epoch = record.epoch

    def _tell(self, event: ClusterEvent, old: Object | None, new: Object | None) -> None:
        self.state.queue.happened(Happened(event, old, new), self.state.now_ns)

    # -- objects ------------------------------------------------------------------------------

    def _object_seen(self, record: r.ObjectSeen) -> None:
        seen = record.object
        if isinstance(seen, Pod):
            info = PodInfo(seen)
            self.state.templates.keep(record.template, info)
            self._pod_seen(info, record.template)
            return
        kept = self.state.objects_of.setdefault(type(seen), {})
        old = kept.get(seen.key)
        kept[seen.key] = seen
        self.state.objects_changed[type(seen)] += 1
        if isinstance(seen, Node):
            self.state.nodes.set_node(seen)
        self._tell_of(type(seen), old, seen)

    def _object_gone(self, record: r.ObjectGone) -> None:
        kind = KINDS[record.kind]
        if kind is Pod:
            if self.state.entry(record.key, record.uid) is not None:
                self._pod_gone(record.key)
            return
        old = self.state.objects_of.get(kind, {}).pop(record.key, None)
        if old is None:
            return
        self.state.objects_changed[kind] += 1
        if isinstance(old, Node):
            self._forget_answers_about(old.name)
            self.state.nodes.remove_node(old.name)
        self._tell_of(kind, old, None)

    def _tell_of(self, kind: type[Object], old: Object | None, new: Object | None) -> None:
        resource = EVENT_RESOURCES.get(kind)
        if resource is None:
            return
        if old is None:
            self._tell(ClusterEvent(resource, ActionType.ADD), None, new)
        elif new is None:
            self._tell(ClusterEvent(resource, ActionType.DELETE), old, None)
        elif isinstance(old, Node) and isinstance(new, Node):
            for event in node_changes(old, new):
                self._tell(event, old, new)
        else:
            self._tell(ClusterEvent(resource, ActionType.UPDATE_OTHER), old, new)

    # -- pods ---------------------------------------------------------------------------------

    def _pod_like_another_seen(self, record: r.PodSeen) -> None:
        templates = self.state.templates
        try:
            info = templates.instance(record)
        except KeyError:
            what = f"pod {record.key} is like template {record.template}, which is not held"
            raise FoldError(what) from None
        templates.use(record.template)
        self._pod_seen(info, record.template)

    def _pod_seen(self, info: PodInfo, template: int) -> None:
        """The pod is now as given; ``template`` counts it as a user already."""
        state = self.state
        entry = state.pods.get(info.key)
        if entry is not None and entry.info.uid != info.uid:
            self._pod_gone(info.key)
            entry = None
        if info.pod.terminal:
            state.templates.release(template)
            if entry is not None:
                self._pod_gone(info.key)
        elif entry is None:
            self._pod_new(info, template)
        else:
            state.templates.release(entry.template)
            entry.template = template
            self._pod_updated(entry, info)

    def _pod_changed(self, record: r.PodChanged) -> None:
        entry = self.state.entry(record.key, record.uid)
        if entry is None:
            raise FoldError(f"pod {record.key} ({record.uid}) changed but was never seen")
        old, replace = entry.info.pod, msgspec.structs.replace
        labels = old.metadata.labels if record.labels is None else record.labels
        pod = replace(
            old,
            metadata=replace(
                old.metadata, labels=labels, deletion_timestamp=record.deletion_timestamp
            ),
            spec=replace(old.spec, node_name=record.node_name),
            status=replace(
                old.status,
                phase=record.phase,
                conditions=record.conditions,
                nominated_node_name=record.nominated_node_name,
                start_time=record.start_time,
            ),
        )
        # Conditions say something of resources only for a pod whose containers report theirs.
        shape = None if reports_resources(old) else entry.info.shape
        self._pod_updated(entry, PodInfo(pod, shape))

    def _pod_new(self, info: PodInfo, template: int) -> None:
        state, pod = self.state, info.pod
        entry = state.pods[info.key] = PodEntry(info, template)
        if pod.node_name:
            self._place(entry, pod.node_name, PodPhase.BOUND)
            self._tell(_ASSIGNED_ADD, None, pod)
            return
        if self._is_ours(entry):
            # As in kube-scheduler, what another scheduler nominates is no concern of ours.
            state.nominator.nominate(info, pod.status.nominated_node_name)
            state.queue.add(info, state.now_ns)
        self._tell(_UNSCHEDULED_ADD, None, pod)

    def _pod_updated(self, entry: PodEntry, info: PodInfo) -> None:
        if info.pod.terminating:
            # Whoever deleted it: there is nothing left to evict.
            self.state.evictions.end(info.uid)
        if info.pod.node_name:
            self._bound_pod_updated(entry, info)
        elif entry.phase is PodPhase.PENDING:
            self._pending_pod_updated(entry, info)
        else:
            # Assumed, or confirmed to us while this older picture was on its way: keep its node.
            self._placed_pod_updated(entry, info)

    def _placed_pod_updated(self, entry: PodEntry, info: PodInfo) -> None:
        state, old = self.state, entry.info
        entry.info = info
        state.nodes.replace_pod(entry.node, info)
        waiting = state.waiting.get(info.key)
        if waiting is not None:
            waiting.info = info
        events = pod_changes(old, info, EventResource.TARGET_POD)
        state.queue.update(info, [Happened(e, old.pod, info.pod) for e in events], state.now_ns)

    def _bound_pod_updated(self, entry: PodEntry, info: PodInfo) -> None:
        old, node_name = entry.info, info.pod.node_name
        if entry.node and entry.node != node_name:
            # Another scheduler was faster; what the API server says counts.
            self._give_back(entry)
        entry.info = info
        if not entry.node:
            self._place(entry, node_name, PodPhase.BOUND)
            self._settled(entry)
            self._tell(_ASSIGNED_ADD, None, info.pod)
            return
        self.state.nodes.replace_pod(node_name, info)
        if entry.phase is PodPhase.ASSUMED:
            entry.phase = PodPhase.BOUND
            self._settled(entry)
            self._tell(_ASSIGNED_ADD, None, info.pod)
            return
        for event in pod_changes(old, info, EventResource.ASSIGNED_POD):
            self._tell(event, old.pod, info.pod)

    def _pending_pod_updated(self, entry: PodEntry, info: PodInfo) -> None:
        state, old = self.state, entry.info
        entry.info = info
        nominated = info.pod.status.nominated_node_name
        if nominated != old.pod.status.nominated_node_name and self._is_ours(entry):
            state.nominator.nominate(info, nominated)
        else:
            state.nominator.refresh(info)
        if not self._is_ours(entry):
            state.queue.remove(info.key)
            state.inquiries.pop(info.key, None)
        elif info.key in state.queue:
            events = pod_changes(old, info, EventResource.TARGET_POD)
            state.queue.update(info, [Happened(e, old.pod, info.pod) for e in events], state.now_ns)
        else:
            state.queue.add(info, state.now_ns)
        for event in pod_changes(old, info, EventResource.UNSCHEDULED_POD):
            self._tell(event, old.pod, info.pod)

    def _pod_gone(self, key: str) -> None:
        state = self.state
        entry = state.pods.pop(key)
        state.templates.release(entry.template)
        state.evictions.end(entry.info.uid)
        if entry.node:
            self._give_back(entry)
        else:
            self._tell(_UNSCHEDULED_DELETE, entry.info.pod, None)
        self._settled(entry)

    def _place(self, entry: PodEntry, node_name: str, phase: PodPhase) -> None:
        self.state.nodes.add_pod(node_name, entry.info)
        entry.node, entry.phase = node_name, phase

    def _give_back(self, entry: PodEntry) -> None:
        """Free the room of a placed pod; others may use it."""
        pod = _on_node(entry)
        if entry.phase is PodPhase.ASSUMED:
            self._unreserve(entry)
        elif entry.reserved is not None:
            self.state.books.release(self._profile(entry), entry.info, entry.reserved)
        self.state.nodes.remove_pod(entry.node, entry.info)
        entry.assignment = entry.reserved = None
        entry.node, entry.phase = "", PodPhase.PENDING
        self._tell(_ASSIGNED_DELETE, pod, None)

    def _settled(self, entry: PodEntry) -> None:
        """Nothing is left to decide or to wait for: bound, or gone."""
        state, key = self.state, entry.info.key
        if entry.assignment is not None:
            state.books.close(self._profile(entry), entry.info, entry.assignment)
        entry.assignment = None
        state.queue.remove(key)
        state.inquiries.pop(key, None)
        state.permits.end(key)
        state.nominator.withdraw(key)

    # -- decisions ----------------------------------------------------------------------------

    def _assigned(self, record: r.Assigned) -> None:
        state = self.state
        entry = self._decided(record.key, record.uid)
        if state.nodes.row_of(record.node) is None:
            raise FoldError(f"pod {record.key} assigned to {record.node}, which is no node")
        self._place(entry, record.node, PodPhase.ASSUMED)
        entry.assignment = record
        entry.reserved = record if record.reservations else None
        state.nominator.withdraw(record.key)
        self._advance_start(record.examined)
        if record.holds:
            deadlines = {hold.plugin: hold.deadline_ns for hold in record.holds}
            held = WaitingPod(entry.info, record.node, state.now_ns, deadlines)
            state.permits.hold(held)
        state.books.enter(self._profile(entry), entry.info, record)

    def _rejected(self, record: r.Rejected) -> None:
        state = self.state
        entry = self._decided(record.key, record.uid)
        entry.rejection = record.message
        if record.nominated_node is not None:
            state.nominator.nominate(entry.info, record.nominated_node)
        preemptor = Victim(record.key, record.uid)
        for victim in record.victims:
            node = record.nominated_node or ""
            state.evictions.begin(Eviction(victim, preemptor, node))
        for displaced in record.displaced:
            if state.entry(displaced.key, displaced.uid) is not None:
                state.nominator.withdraw(displaced.key)
        self._advance_start(record.examined)
        state.queue.reject(record.key, record.plugins, record.pending_plugins, state.now_ns)

    def _attempt_failed(self, record: r.AttemptFailed) -> None:
        entry = self._decided(record.key, record.uid)
        entry.rejection = record.message
        self.state.queue.fail(record.key, self.state.now_ns)

    def _permit_allowed(self, record: r.PermitAllowed) -> None:
        if not self.state.permits.allow(record.key, record.plugin):
            raise FoldError(f"{record.plugin} allowed pod {record.key} but does not hold it")

    def _permit_rejected(self, record: r.PermitRejected) -> None:
        if not self.state.permits.end(record.key):
            raise FoldError(f"pod {record.key} was rejected by Permit but is not waiting")
        entry = self.state.pods[record.key]
        entry.rejection = record.message
        self._give_back(entry)
        self.state.queue.reject(record.key, (record.plugin,), (), self.state.now_ns)
        self._drop_if_not_ours(entry)

    def _decided(self, key: str, uid: str) -> PodEntry:
        """The pod that a decision is about: its attempt ended, it leaves the active queue."""
        self.state.inquiries.pop(key, None)
        return self._taken_off(key, uid)

    def _taken_off(self, key: str, uid: str) -> PodEntry:
        """The pod leaves the queue, wherever it waits. A decision was made of an active pod; where
        it is not active here, a plugin that this fold asked (a hint, PreEnqueue) has changed since.
        What was decided counts all the same; a replay that verifies says so."""
        state = self.state
        entry = state.entry(key, uid)
        if entry is None or entry.phase is not PodPhase.PENDING:
            raise FoldError(f"a decision for pod {key} ({uid}), which is not pending")
        if not state.queue.take_off(key):
            raise FoldError(f"a decision for pod {key} ({uid}), which waits in no queue")
        return entry

    def _extender_asked(self, record: r.ExtenderAsked) -> None:
        self._taken_off(record.key, record.uid)
        inquiry = self.state.inquiries.get(record.key)
        if inquiry is None or not inquiry.is_of(record.uid, record.attempt):
            inquiry = self.state.inquiries[record.key] = Inquiry(record.uid, record.attempt)
        inquiry.ask(record, self.state.nodes.size)
        self._advance_start(record.examined)

    def _extender_answered(self, record: r.ExtenderAnswer) -> None:
        inquiry = self.state.inquiries.get(record.key)
        if inquiry is None or not inquiry.expects(record):
            return  # too late: the pod is gone, or the attempt was given up
        inquiry.enter(record)
        if not inquiry.pending:
            self.state.queue.resume(record.key)

    def _forget_answers_about(self, node_name: str) -> None:
        row = self.state.nodes.row_of(node_name)
        if row is not None:
            for inquiry in self.state.inquiries.values():
                inquiry.node_gone(row)

    def _advance_start(self, examined: int) -> None:
        if examined:
            size = max(1, self.state.nodes.size)
            self.state.next_start_row = (self.state.next_start_row + examined) % size

    # -- outcomes -----------------------------------------------------------------------------

    def _bound(self, record: r.Bound) -> None:
        entry = self.state.entry(record.key, record.uid)
        if entry is None or entry.phase is not PodPhase.ASSUMED or entry.node != record.node:
            return  # the watch was faster than the answer, or the pod is gone
        entry.phase = PodPhase.BOUND
        self._settled(entry)
        self._tell(_ASSIGNED_ADD, None, _on_node(entry))

    def _bind_failed(self, record: r.BindFailed) -> None:
        state = self.state
        entry = state.entry(record.key, record.uid)
        if entry is None or entry.phase is not PodPhase.ASSUMED or entry.node != record.node:
            return
        state.permits.end(record.key)
        entry.rejection = record.message
        self._give_back(entry)
        if record.code in REJECTIONS and record.plugin:
            by = (record.plugin,)
            refused, pending = ((), by) if record.code is Code.PENDING else (by, ())
            state.queue.reject(record.key, refused, pending, state.now_ns)
        else:
            state.queue.fail(record.key, state.now_ns)
        self._drop_if_not_ours(entry)

    def _drop_if_not_ours(self, entry: PodEntry) -> None:
        """A pod that is being deleted by now, or whose profile went, is not tried again."""
        if not self._is_ours(entry):
            self.state.queue.remove(entry.info.key)

    def _eviction_ended(self, record: r.VictimEvicted) -> None:
        self.state.evictions.end(record.uid)

    def _eviction_failed(self, record: r.EvictionFailed) -> None:
        """No room will be made by this: the pod that waits for it is to look for other victims."""
        eviction = self.state.evictions.end(record.uid)
        if eviction is not None and self.state.entry(*_ref(eviction.preemptor)) is not None:
            self.state.queue.activate(eviction.preemptor.key)

    def _unreserve(self, entry: PodEntry) -> None:
        if entry.assignment is not None:
            self.state.books.strike(self._profile(entry), entry.info, entry.assignment)

    def _enter_in_new_books(self, entry: PodEntry) -> None:
        """The plugins are new instances: tell them what is assumed, and what was noted of the bound."""
        profile, books = self._profile(entry), self.state.books
        if entry.assignment is not None:
            books.enter(profile, entry.info, entry.assignment)
        elif entry.reserved is not None:
            books.enter(profile, entry.info, entry.reserved)
            books.close(profile, entry.info, entry.reserved)

    def _profile(self, entry: PodEntry) -> Profile | None:
        """None where it was taken out of the configuration meanwhile."""
        return self.state.profiles.get(entry.info.pod.spec.scheduler_name)


def _ref(pod: Victim) -> tuple[str, str]:
    return pod.key, pod.uid


def _on_node(entry: PodEntry) -> Pod:
    """The placed pod as hints are to see it: on its node, whether or not the API says so yet."""
    pod = entry.info.pod
    if pod.spec.node_name == entry.node:
        return pod
    replace = msgspec.structs.replace
    return replace(pod, spec=replace(pod.spec, node_name=entry.node))
