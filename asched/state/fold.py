"""``fold(state, record)``: the only code that changes the state.

The live daemon, a restart, time travel and every replay go through here, record by record, and end
up with the same state. Nothing here reads a clock or anything else that the records do not hold.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from asched.framework.events import ActionType, ClusterEvent, EventResource
from asched.framework.interface import Eviction, ExtensionPoint, Victim
from asched.framework.pod_groups import group_of, key_of, only_status_changed
from asched.framework.pod_info import PodInfo
from asched.framework.runtime.profile import PluginLoader, Profile, ProfileError, ProfileSpec
from asched.framework.status import REJECTIONS, Code
from asched.model.custom import CustomObject
from asched.model.groups import CustomPodGroup, PodGroup
from asched.model.meta import Object
from asched.model.node import Node
from asched.model.pod import Pod
from asched.model.resources import KINDS
from asched.state import records as r
from asched.state import session_records as sr
from asched.state.absent import incomplete_profile
from asched.state.circuits import waits_for_circuit
from asched.state.cluster import (
    ClusterState,
    PodEntry,
    PodPhase,
    ProfileHandle,
)
from asched.state.cluster_events import EVENT_RESOURCES, node_changes
from asched.state.inquiries import PendingEvaluation
from asched.state.permits import WaitingPod
from asched.state.pod_fold import FoldError, PodFold
from asched.state.queue_events import QueuedClusterEvent
from asched.state.rules import Rules
from asched.state.sessions import binding_spec

__all__ = ["Fold", "FoldError"]


class Fold:
    """Applies records to one state, in order."""

    def __init__(self, state: ClusterState, load: PluginLoader) -> None:
        """``load`` finds the plugins that a recorded profile names."""
        self.state = state
        self._load = load
        self._pods = PodFold(state)
        self._binding_profiles: dict[str, Profile] = {}
        state.binding_profile = self._binding_profile
        self._apply: dict[type[r.Record], Callable[[Any], None]] = {
            r.EngineStarted: self._engine_started,
            r.ProfilesLoaded: self._profiles_loaded,
            sr.SessionsLoaded: self._sessions_loaded,
            sr.SessionHeld: self._session_held,
            sr.EvictionDecided: self._eviction_decided,
            sr.PodGroupDecided: self._group_decided,
            sr.PodGroupWritten: self._group_write_ended,
            sr.PodGroupWriteFailed: self._group_write_ended,
            r.ObjectSeen: self._object_seen,
            r.ObjectGone: self._object_gone,
            r.PodSeen: self._pods.like_another_seen,
            r.PodChanged: self._pods.changed,
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
        self.state.seed, self.state.lottery = record.seed, record.lottery
        self.state.follow(record.rules)

    def _profiles_loaded(self, record: r.ProfilesLoaded) -> None:
        state = self.state
        self._binding_profiles.clear()
        profiles = {spec.scheduler_name: self._built(spec) for spec in record.profiles}
        state.profiles = profiles
        state.extenders = record.extenders
        plugins = (plugin for profile in profiles.values() for plugin in profile.outside)
        state.outsiders = (*record.extenders, *plugins)
        state.circuits.configure(profiles.values())
        for key in state.inquiries:
            # Whoever was to answer may be gone, or another one now: these attempts begin again.
            state.queue.give_up(key)
        state.inquiries.clear()
        state.queue.configure(profiles, record.queue, state.now_ns)
        for entry in state.pods.values():
            if self._pods.is_ours(entry) and entry.info.key not in state.queue:
                state.queue.add(entry.info, state.now_ns)
            else:
                self._pods.enter_in_new_books(entry)
        for entry in state.pods.values():
            self._pods.regroup(entry)
        if record.lets_go:
            self._let_go()

    def _let_go(self) -> None:
        """Of what waits for a plugin or a profile that is gone nobody would speak any more."""
        state = self.state
        for held in state.permits.held():
            name = held.info.pod.spec.scheduler_name
            profile = state.profiles.get(name)
            if profile is None:
                held.reject(min(held.pending), f"there is no profile {name} any more")
                continue
            permit = {plugin.name for plugin in profile.spec.plugins_at(ExtensionPoint.PERMIT)}
            for plugin in sorted(held.pending - permit):
                held.allow(plugin)
        for pods in [*state.nominator.by_node.values()]:
            for info in [*pods.values()]:
                if info.pod.spec.scheduler_name not in state.profiles:
                    state.nominator.withdraw(info.key)

    def _binding_profile(self, scheduler_name: str) -> Profile:
        """Made when it is first needed: most sessions place no pods with volumes."""
        profile = self._binding_profiles.get(scheduler_name)
        if profile is None:
            profile = self._built(binding_spec(scheduler_name))
            self._binding_profiles[scheduler_name] = profile
        return profile

    def _built(self, spec: ProfileSpec) -> Profile:
        """The profile, or what stands for it where a plugin cannot be had any more."""
        handle = ProfileHandle(self.state, spec.scheduler_name)
        try:
            return Profile(spec, self._load, handle)
        except ProfileError as error:
            return incomplete_profile(spec, handle, str(error))

    def _sessions_loaded(self, record: sr.SessionsLoaded) -> None:
        self.state.sessions.load(record.sessions)
        for entry in self.state.pods.values():
            self._pods.note_in_sessions(entry)

    def _turn_started(self, record: r.TurnStarted) -> None:
        if record.now_ns < self.state.now_ns:
            raise FoldError(f"time runs backwards: {record.now_ns} after {self.state.now_ns}")
        self.state.now_ns = record.now_ns
        self.state.queue.tick(record.now_ns)
        if self.state.circuits:
            for key in self.state.circuits.tick(record.now_ns):
                self.state.queue.activate(key, record.now_ns)

    def _leadership_gained(self, record: r.LeadershipGained) -> None:
        if record.epoch <= self.state.epoch:
            raise FoldError(f"epoch {record.epoch} after epoch {self.state.epoch}")
        self.state.epoch = record.epoch

    # -- objects ------------------------------------------------------------------------------

    def _object_seen(self, record: r.ObjectSeen) -> None:
        seen = record.object
        if isinstance(seen, Pod):
            info = PodInfo(seen)
            self.state.templates.keep(record.template, info)
            self._pods.seen(info, record.template)
            return
        kept = self.state.objects_of.setdefault(type(seen), {})
        old = kept.get(seen.key)
        kept[seen.key] = seen
        self.state.objects_changed[type(seen)] += 1
        self.state.sessions.object_seen(seen)
        if isinstance(seen, Node):
            self.state.nodes.set_node(seen)
        elif isinstance(seen, CustomObject):
            self.state.custom.seen(seen)
        self._tell_of(type(seen), old, seen)

    def _object_gone(self, record: r.ObjectGone) -> None:
        kind = KINDS[record.kind]
        if kind is Pod:
            if self.state.entry(record.key, record.uid) is not None:
                self._pods.gone(record.key)
            else:
                self.state.sessions.finished_gone(record.key, record.uid)
            return
        old = self.state.objects_of.get(kind, {}).pop(record.key, None)
        if old is None:
            return
        self.state.objects_changed[kind] += 1
        self.state.sessions.object_gone(old)
        if isinstance(old, Node):
            self._forget_answers_about(old.name)
            self.state.nodes.remove_node(old.name)
        elif isinstance(old, CustomObject):
            self.state.custom.gone(old)
        self._tell_of(kind, old, None)

    def _tell(self, event: ClusterEvent, old: Object | None, new: Object | None) -> None:
        self.state.queue.happened(QueuedClusterEvent(event, old, new), self.state.now_ns)

    def _tell_of(self, kind: type[Object], old: Object | None, new: Object | None) -> None:
        resource = EVENT_RESOURCES.get(kind)
        if resource is None:
            return
        if resource is EventResource.POD_GROUP:
            self._sort_in_again(old, new)
        if old is None:
            self._tell(ClusterEvent(resource, ActionType.ADD), None, new)
        elif new is None:
            self._tell(ClusterEvent(resource, ActionType.DELETE), old, None)
        elif isinstance(old, Node) and isinstance(new, Node):
            for event in node_changes(old, new):
                self._tell(event, old, new)
        else:
            self._tell(ClusterEvent(resource, ActionType.UPDATE_OTHER), old, new)

    def _sort_in_again(self, old: Object | None, new: Object | None) -> None:
        """What PreEnqueue and QueueSort say of a group's pods may come from their PodGroup."""
        group = new or old
        if isinstance(group, PodGroup | CustomPodGroup) and not only_status_changed(old, new):
            for key in sorted(self.state.groups.members(key_of(group)).standings):
                self.state.queue.sort_in_again(key, self.state.now_ns)

    # -- decisions ----------------------------------------------------------------------------

    def _assigned(self, record: r.Assigned) -> None:
        state = self.state
        entry = self._decided(record)
        if state.nodes.row_of(record.node) is None:
            raise FoldError(f"pod {record.key} assigned to {record.node}, which is no node")
        self._pods.place(entry, record.node, PodPhase.ASSUMED)
        entry.assignment = record
        entry.reserved = record if record.reservations else None
        kept_on = state.nominator.withdraw(record.key)
        if kept_on != record.node:
            self._pods.kept_no_longer(entry.info, kept_on)
        if state.circuits:
            state.circuits.worked(entry.info.pod.spec.scheduler_name)
        self._advance_start(record.examined)
        if record.holds:
            deadlines = {hold.plugin: hold.deadline_ns for hold in record.holds}
            held = WaitingPod(entry.info, record.node, state.now_ns, deadlines)
            state.permits.hold(held)
            self._pods.regroup(entry)
        state.books.enter(self._pods.profile(entry), entry.info, record)
        for key in record.activate:
            state.queue.activate(key, state.now_ns)

    def _rejected(self, record: r.Rejected) -> None:
        state = self.state
        entry = self._decided(record)
        entry.rejection = record.message
        if record.session:
            return
        if record.nominated_node is not None:
            kept_on = state.nominator.nominate(entry.info, record.nominated_node)
            self._pods.kept_no_longer(entry.info, kept_on)
        preemptor = Victim(record.key, record.uid)
        for victim in record.victims:
            node = record.nominated_node or ""
            state.evictions.begin(Eviction(victim, preemptor, node))
        for displaced in record.displaced:
            other = state.entry(displaced.key, displaced.uid)
            if other is not None:
                kept_on = state.nominator.withdraw(displaced.key)
                self._pods.regroup(other)
                self._pods.kept_no_longer(other.info, kept_on)
        self._advance_start(record.examined)
        if record.circuit:
            state.circuits.hold(entry.info.pod.spec.scheduler_name, record.circuit, record.key)
            waits_for = (waits_for_circuit(record.circuit),)
            state.queue.reject(record.key, waits_for, (), state.now_ns)
        elif record.at_once:
            state.queue.try_again(record.key, state.now_ns)
        else:
            state.queue.reject(record.key, record.plugins, record.pending_plugins, state.now_ns)
        self._pods.regroup(entry)

    def _attempt_failed(self, record: r.AttemptFailed) -> None:
        entry = self._decided(record)
        entry.rejection = record.message
        self._plugin_failed(entry, record.plugin)
        self.state.queue.fail(record.key, self.state.now_ns)
        self._pods.regroup(entry)

    def _plugin_failed(self, entry: PodEntry, plugin: str) -> None:
        if self.state.circuits:
            scheduler_name = entry.info.pod.spec.scheduler_name
            self.state.circuits.failed(scheduler_name, plugin, self.state.now_ns)

    def _permit_allowed(self, record: r.PermitAllowed) -> None:
        if not self.state.permits.allow(record.key, record.plugin):
            raise FoldError(f"{record.plugin} allowed pod {record.key} but does not hold it")
        self._pods.regroup(self.state.pods[record.key])

    def _permit_rejected(self, record: r.PermitRejected) -> None:
        held = self.state.waiting.get(record.key)
        if held is None:
            raise FoldError(f"pod {record.key} was rejected by Permit but is not waiting")
        self.state.permits.end(record.key)
        entry = self.state.pods[record.key]
        entry.rejection = record.message
        grouped = group_of(entry.info.pod) is not None
        self._pods.give_back(entry, held.since_ns if grouped else None)
        rejected_by = {record.plugin}
        if record.plugin not in held.pending_until_ns:
            # It made room without being evicted, and is itself in need of some now: nobody has said yet
            # what would help it.
            if self.state.rules >= Rules.WHO_MADE_ROOM_IS_TRIED:
                rejected_by.clear()
            else:
                self.state.evictions.has_use(record.key, record.uid)
        self.state.queue.reject(record.key, rejected_by, (), self.state.now_ns)
        self._pods.regroup(entry)
        self._pods.drop_if_not_ours(entry)

    def _decided(self, record: r.Assigned | r.Rejected | r.AttemptFailed) -> PodEntry:
        """The pod that a decision is about: its attempt ended, it leaves the active queue."""
        self.state.inquiries.pop(record.key, None)
        if not isinstance(record, r.AttemptFailed) and record.session:
            return self._in_session(record)
        return self._taken_off(record.key, record.uid)

    def _in_session(self, record: r.Assigned | r.Rejected) -> PodEntry:
        """The pod that a session decided about: it waits in no queue."""
        entry = self.state.entry(record.key, record.uid)
        if entry is None or not self.state.sessions.awaits_one(entry.info.pod):
            raise FoldError(f"a session decided pod {record.key} ({record.uid}), which awaits none")
        return entry

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
            inquiry = self.state.inquiries[record.key] = PendingEvaluation(
                record.uid, record.attempt
            )
        inquiry.ask(record, self.state.nodes.size)
        self._advance_start(record.examined)

    def _extender_answered(self, record: r.ExtenderAnswer) -> None:
        inquiry = self.state.inquiries.get(record.key)
        if inquiry is None or not inquiry.expects(record):
            return  # too late: the pod is gone, or the attempt was given up
        outsider = self.state.outsiders[record.extender]
        if isinstance(record, r.ExtenderFailed) and outsider.ignorable:
            # No attempt fails with it, so nothing else will say so.
            self._plugin_failed(self.state.pods[record.key], outsider.speaks_as)
        inquiry.enter(record, outsider.speaks_as)
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

    # -- sessions -----------------------------------------------------------------------------

    def _session_held(self, record: sr.SessionHeld) -> None:
        profile = self.state.sessions.get(record.scheduler_name)
        if profile is None or record.number != profile.number + 1:
            what = f"session {record.number} of {record.scheduler_name!r}"
            raise FoldError(f"{what}, which is not the next one")
        profile.held(record.number, self.state.now_ns)

    def _eviction_decided(self, record: sr.EvictionDecided) -> None:
        entry = self.state.entry(record.key, record.uid)
        if entry is None or not entry.node:
            raise FoldError(f"pod {record.key} ({record.uid}) is to be evicted but is on no node")
        victim = Victim(record.key, record.uid)
        self.state.evictions.begin(
            Eviction(victim, record.preemptor, record.node, record.reason.value)
        )
        self._pods.note_in_sessions(entry)

    def _group_decided(self, record: sr.PodGroupDecided) -> None:
        group = self.state.objects_of.get(KINDS[record.kind], {}).get(record.group)
        if group is None or group.uid != record.uid:
            raise FoldError(
                f"a status for PodGroup {record.group} ({record.uid}), which is not there"
            )
        self.state.sessions.decide_group(record)

    def _group_write_ended(self, record: sr.PodGroupWritten | sr.PodGroupWriteFailed) -> None:
        self.state.sessions.end_write(record.kind, record.group, record.uid)

    # -- outcomes -----------------------------------------------------------------------------

    def _bound(self, record: r.Bound) -> None:
        if record.shown:
            self._pods.shown_bound(record)
            return
        entry = self.state.entry(record.key, record.uid)
        if entry is None or entry.phase is not PodPhase.ASSUMED or entry.node != record.node:
            return  # the watch was faster than the answer, or the pod is gone
        self._pods.bound(entry)

    def _bind_failed(self, record: r.BindFailed) -> None:
        state = self.state
        entry = state.entry(record.key, record.uid)
        if entry is None or entry.phase is not PodPhase.ASSUMED or entry.node != record.node:
            return
        state.permits.end(record.key)
        entry.rejection = record.message
        if entry.assignment is not None and entry.assignment.session:
            self._pods.back_to_session(entry)
            if state.rules >= Rules.SESSIONS_BACK_OFF:
                state.sessions.binding_failed(
                    entry.info.pod, record.node, state.now_ns, state.queue.backoff_ns
                )
            return
        self._pods.give_back(entry)
        if record.code in REJECTIONS and record.plugin:
            by = (record.plugin,)
            refused, pending = ((), by) if record.code is Code.PENDING else (by, ())
            state.queue.reject(record.key, refused, pending, state.now_ns)
        else:
            self._plugin_failed(entry, record.plugin)
            state.queue.fail(record.key, state.now_ns)
        self._pods.regroup(entry)
        self._pods.drop_if_not_ours(entry)

    def _eviction_ended(self, record: r.VictimEvicted) -> None:
        state = self.state
        eviction = state.evictions.get(record.uid)
        if eviction is None or eviction.reason:
            # A session's goes on until the victim is seen to go: meanwhile no other is to be chosen.
            return
        state.evictions.end(record.uid)
        preemptor = eviction.preemptor
        waits = state.entry(*_ref(preemptor)) is not None
        if record.roomless and waits and not state.evictions.make_room_for(preemptor.uid):
            state.queue.activate(preemptor.key, state.now_ns)

    def _eviction_failed(self, record: r.EvictionFailed) -> None:
        """No room will be made by this: the pod that waits for it is to look for other victims."""
        eviction = self.state.evictions.end(record.uid)
        if eviction is not None and self.state.entry(*_ref(eviction.preemptor)) is not None:
            self.state.queue.activate(eviction.preemptor.key, self.state.now_ns)
        entry = self.state.entry(record.key, record.uid)
        if entry is not None:
            self._pods.note_in_sessions(entry)


def _ref(pod: Victim) -> tuple[str, str]:
    return pod.key, pod.uid
