"""``fold(state, record)``: the only code that changes the state. It reads only the records."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from asched.framework.cluster import Eviction, PodRef
from asched.framework.devices import is_special_claim
from asched.framework.events import ActionType, ClusterEvent, EventResource
from asched.framework.feature_gates import without_gated_fields
from asched.framework.interface import ExtensionPoint
from asched.framework.pod_groups import group_of, key_of, only_status_changed
from asched.framework.pod_info import PodInfo
from asched.framework.runtime.profile import PluginLoader, Profile, ProfileError, ProfileSpec
from asched.framework.status import REJECTIONS, Code
from asched.model.groups import CustomPodGroup, PodGroup
from asched.model.meta import Object
from asched.model.node import Node
from asched.model.pod import Pod
from asched.model.resource_claims import ResourceClaim, ResourceClaimStatus
from asched.model.resources import KINDS
from asched.state import group_records as gr
from asched.state import records as r
from asched.state import session_records as sr
from asched.state.attempt_charges import AttemptCharges
from asched.state.circuits import circuit_as_plugin
from asched.state.cluster import ClusterState, PlacementState, PodEntry, ProfileHandle
from asched.state.cluster_events import EVENT_RESOURCES, node_changes
from asched.state.pending_evaluations import PendingEvaluation
from asched.state.plugins import incomplete_profile
from asched.state.pod_fold import FoldError, PodFold
from asched.state.reservations import profile_of
from asched.state.sessions import binding_spec
from asched.state.waiting_pods import WaitingPodState

__all__ = ["Fold", "FoldError"]


class Fold:
    """Applies records to one state, in order."""

    def __init__(self, state: ClusterState, load: PluginLoader) -> None:
        """``load`` returns the plugins that a recorded profile names."""
        self.state = state
        self.load = load
        self._pods = PodFold(state)
        self._charges = AttemptCharges(state)
        self._binding_profiles: dict[str, Profile] = {}
        state.plugin_context.binding_profile = self._binding_profile
        self._apply: dict[type[r.Record], Callable[[Any], None]] = {
            r.EngineStarted: self._engine_started,
            r.ProfilesLoaded: self._profiles_loaded,
            sr.SessionsLoaded: self._sessions_loaded,
            sr.SessionExecuted: self._session_executed,
            sr.EvictionDecided: self._eviction_decided,
            gr.PodGroupAttempted: self._group_attempted,
            sr.PodGroupStatusDecided: self._group_status_decided,
            sr.PodGroupStatusWritten: self._group_write_ended,
            sr.PodGroupStatusWriteFailed: self._group_write_ended,
            r.ApiVersionServed: self._api_version_served,
            r.ObjectObserved: self._object_observed,
            r.ObjectDeleted: self._object_deleted,
            r.PodObserved: self._pods.on_copy_observed,
            r.PodUpdated: self._pods.on_updated,
            r.PodQuarantined: self._pod_quarantined,
            r.TurnStarted: self._turn_started,
            r.ClockStepped: self._clock_stepped,
            r.Assigned: self._assigned,
            r.Rejected: self._rejected,
            r.AttemptFailed: self._attempt_failed,
            r.ExtenderCallRequested: self._extender_call_requested,
            r.ExtenderFiltered: self._extender_answered,
            r.ExtenderPrioritized: self._extender_answered,
            r.ExtenderPreemptionProcessed: self._extender_answered,
            r.ExtenderCallFailed: self._extender_answered,
            r.PermitAllowed: self._permit_allowed,
            r.PermitRejected: self._permit_rejected,
            r.Bound: self._bound,
            r.BindFailed: self._bind_failed,
            r.EvictionSucceeded: self._eviction_succeeded,
            r.EvictionFailed: self._eviction_failed,
            r.ClaimReleaseEnded: self._claim_release_ended,
            r.LeadershipGained: self._leadership_gained,
            r.LeadershipLost: self._ignored,
            r.ShadowCompared: self._ignored,
            r.ShadowExplained: self._ignored,
            r.ConsolidationDecided: self._ignored,
            r.ConsolidationEnded: self._ignored,
        }

    def apply(self, record: r.AnyRecord) -> None:
        """Apply one record. Raises :class:`FoldError` if it contradicts the state."""
        self._apply[type(record)](record)

    def apply_all(self, records: Iterable[r.AnyRecord]) -> None:
        for record in records:
            self.apply(record)

    # -- the engine ---------------------------------------------------------------------------

    def _ignored(self, record: r.Record) -> None:
        """No decision depends on it."""

    def _engine_started(self, record: r.EngineStarted) -> None:
        self.state.engine.seed = record.seed
        self.state.engine.step_ns = self.state.guards.budgets.step_ns = record.step_ns
        self._pods.reservations.end_all_bindings()

    def _api_version_served(self, record: r.ApiVersionServed) -> None:
        self.state.object_store.api_versions[record.kind] = record.api_version

    def _profiles_loaded(self, record: r.ProfilesLoaded) -> None:
        state = self.state
        self._binding_profiles.clear()
        state.plugin_context.feature_gates = record.feature_gates
        state.plugin_context.shared.clear()
        profiles = {spec.scheduler_name: self._build(spec) for spec in record.profiles}
        state.profiles = profiles
        state.guards.circuits.configure(profiles.values())
        for key in state.pending_evaluations:
            # The evaluators may have changed: these attempts start again.
            state.queue.abandon_attempt(key)
        state.pending_evaluations.clear()
        plugins = (plugin for profile in profiles.values() for plugin in profile.external)
        state.pending_evaluations.configure(record.extenders, plugins)
        # PreEnqueue, which the queue calls, may read the groups: other pods are ours now.
        self._pods.update_groups()
        early = record.feature_gates.scheduler_pop_from_backoff_q
        state.queue.configure(profiles, record.queue, state.now_ns, pop_from_backoff=early)
        for entry in state.pods.values():
            if self._pods.is_ours(entry) and entry.info.key not in state.queue:
                self._pods.enqueue(entry.info)
            else:
                self._pods.reservations.repeat(entry)
        self._pods.reservations.repeat_deleted()
        self._end_waits_for_removed()

    def _end_waits_for_removed(self) -> None:
        """End waits and nominations that depend on a removed plugin or profile."""
        state = self.state
        for held in state.waiting_pods.handles():
            name = held.info.pod.spec.scheduler_name
            profile = state.profiles.get(name)
            if profile is None:
                held.reject(min(held.pending), f"profile {name} was removed")
                continue
            permit = {plugin.name for plugin in profile.spec.plugins_at(ExtensionPoint.PERMIT)}
            for plugin in sorted(held.pending - permit):
                held.allow(plugin)
        for pods in [*state.nominator.by_node.values()]:
            for info in [*pods.values()]:
                if info.pod.spec.scheduler_name not in state.profiles:
                    state.nominator.withdraw(info.key)

    def _binding_profile(self, scheduler_name: str) -> Profile:
        """Built when first used: most sessions place no pods with volumes."""
        profile = self._binding_profiles.get(scheduler_name)
        if profile is None:
            profile = self._build(binding_spec(scheduler_name))
            self._binding_profiles[scheduler_name] = profile
        return profile

    def _build(self, spec: ProfileSpec) -> Profile:
        """The profile, or an incomplete one if a plugin is not installed."""
        handle = ProfileHandle(self.state, spec.scheduler_name)
        try:
            return Profile(spec, self.load, handle)
        except ProfileError as error:
            return incomplete_profile(spec, handle, str(error))

    def _sessions_loaded(self, record: sr.SessionsLoaded) -> None:
        self.state.sessions.load(record.sessions)
        for entry in self.state.pods.values():
            self._pods.update_sessions(entry)

    def _turn_started(self, record: r.TurnStarted) -> None:
        if record.now_ns < self.state.now_ns:
            raise FoldError(f"time goes backwards: {record.now_ns} after {self.state.now_ns}")
        self.state.now_ns = record.now_ns
        self.state.queue.flush(record.now_ns)
        if self.state.reserve_calls.unsettled:
            self._pods.reservations.end_unsettled()
        if self.state.guards.circuits:
            for key in self.state.guards.circuits.tick(record.now_ns):
                self.state.queue.activate(key, record.now_ns)

    def _clock_stepped(self, record: r.ClockStepped) -> None:
        self.state.engine.clock_offset_ns = record.offset_ns

    def _leadership_gained(self, record: r.LeadershipGained) -> None:
        if record.epoch <= self.state.engine.epoch:
            raise FoldError(f"epoch {record.epoch} after epoch {self.state.engine.epoch}")
        self.state.engine.epoch = record.epoch
        self._pods.reservations.end_all_bindings()

    def _pod_quarantined(self, record: r.PodQuarantined) -> None:
        # The pod may be unknown: the turn that observed it may have been lost with the process.
        self.state.guards.quarantined[record.key] = record.uid

    # -- objects ------------------------------------------------------------------------------

    def _object_observed(self, record: r.ObjectObserved) -> None:
        observed = record.object
        if isinstance(observed, Pod):
            info = PodInfo(without_gated_fields(observed, self.state.plugin_context.feature_gates))
            self.state.templates.add(record.template, info)
            self._pods.on_observed(info, record.template)
            return
        old = self.state.object_store.put(observed)
        self.state.sessions.on_object_observed(observed)
        if isinstance(observed, Node):
            self.state.nodes.set_node(observed)
        elif isinstance(observed, ResourceClaim):
            self._pods.reservations.settle(observed)
        self._emit_change(type(observed), old, observed)

    def _object_deleted(self, record: r.ObjectDeleted) -> None:
        kind = KINDS[record.kind]
        if kind is Pod:
            if self.state.entry(record.key, record.uid) is not None:
                self._pods.on_deleted(record.key)
            else:
                self.state.sessions.on_finished_deleted(record.key, record.uid)
            return
        old = self.state.object_store.remove(kind, record.key)
        if old is None:
            return
        self.state.sessions.on_object_deleted(old)
        if isinstance(old, Node):
            row = self.state.nodes.row_of(old.name)
            if row is not None:
                for evaluation in self.state.pending_evaluations.values():
                    evaluation.on_node_deleted(row)
            self.state.nodes.remove_node(old.name)
        if isinstance(old, ResourceClaim):
            self._pods.reservations.on_claim_deleted(old)
        if isinstance(old, ResourceClaim) and old.status.allocation is not None:
            # Plugins listen to deallocations, but not to deletions, as in kube-scheduler.
            freed = msgspec.structs.replace(old, status=ResourceClaimStatus())
            self._emit_change(kind, old, freed)
        self._emit_change(kind, old, None)
        if isinstance(old, ResourceClaim) and is_special_claim(old):
            self._pods.on_special_claim_deleted(old)

    def _emit_change(self, kind: type[Object], old: Object | None, new: Object | None) -> None:
        resource = EVENT_RESOURCES.get(kind)
        if resource is None:
            return
        if resource is EventResource.POD_GROUP:
            self._sort_group_again(old, new)
        if old is None:
            self._pods.emit(ClusterEvent(resource, ActionType.ADD), None, new)
        elif new is None:
            self._pods.emit(ClusterEvent(resource, ActionType.DELETE), old, None)
        elif isinstance(old, Node) and isinstance(new, Node):
            for event in node_changes(old, new):
                self._pods.emit(event, old, new)
        else:
            self._pods.emit(ClusterEvent(resource, ActionType.UPDATE_OTHER), old, new)

    def _sort_group_again(self, old: Object | None, new: Object | None) -> None:
        """PreEnqueue, QueueSort and Permit may depend on the PodGroup of a pod."""
        group = new or old
        if isinstance(group, PodGroup | CustomPodGroup) and not only_status_changed(old, new):
            self.state.groups.note_change(key_of(group))
            for key in sorted(self.state.groups.members(key_of(group)).statuses):
                self.state.queue.sort_again(key, self.state.now_ns)

    # -- decisions ----------------------------------------------------------------------------

    def _assigned(self, record: r.Assigned) -> None:
        state = self.state
        entry = self._decided(record)
        if state.nodes.row_of(record.node) is None:
            raise FoldError(f"pod {record.key} was assigned to {record.node}, which is unknown")
        self._pods.place(entry, record.node, PlacementState.ASSUMED)
        state.keep_captured(entry)
        entry.assignment = record
        entry.reserved = record if record.reservations else None
        ended_on = state.nominator.withdraw(record.key)
        if ended_on != record.node:
            self._pods.on_nomination_ended(entry.info, ended_on)
        if state.guards.circuits:
            state.guards.circuits.succeeded(entry.info.pod.spec.scheduler_name)
        self._advance_start(record.evaluated_nodes)
        if record.permit_waits:
            deadlines = {wait.plugin: wait.deadline_ns for wait in record.permit_waits}
            was_nominated = ended_on == record.node
            state.waiting_pods.add(
                WaitingPodState(entry.info, record.node, state.now_ns, deadlines, was_nominated)
            )
            self._pods.update_group(entry)
        state.reserve_calls.reserved(profile_of(state, entry), entry.info, record)
        for key in record.activate:
            state.queue.activate(key, state.now_ns)

    def _rejected(self, record: r.Rejected) -> None:
        state = self.state
        entry = self._decided(record)
        self.state.keep_captured(entry)
        entry.rejection = record.message
        if record.session:
            return
        if record.nominated_node is not None:
            ended_on = state.nominator.nominate(entry.info, record.nominated_node)
            self._pods.on_nomination_ended(entry.info, ended_on)
        preemptor = PodRef(record.key, record.uid)
        for victim in record.victims:
            state.evictions.begin(Eviction(victim, preemptor, record.nominated_node or ""))
        for cleared in record.cleared_nominations:
            other = state.entry(cleared.key, cleared.uid)
            if other is not None:
                ended_on = state.nominator.withdraw(cleared.key)
                self._pods.update_group(other)
                self._pods.on_nomination_ended(other.info, ended_on)
        if record.released_claim is not None:
            state.claim_releases.begin(record.released_claim, preemptor)
        self._advance_start(record.evaluated_nodes)
        if record.put_off_until_ns:
            yields = state.guards.costs.yields(entry.info)
            state.queue.put_off(record.key, record.put_off_until_ns, state.now_ns, yields=yields)
            if record.grouped:
                state.guards.budgets.note_group_turn(
                    entry.info.namespace, record.put_off_until_ns, state.now_ns
                )
            self._pods.update_group(entry)
            return
        plugins, pending = record.unschedulable_plugins, record.pending_plugins
        if record.open_circuit:
            scheduler_name = entry.info.pod.spec.scheduler_name
            state.guards.circuits.reject(scheduler_name, record.open_circuit, record.key)
            plugins, pending = (circuit_as_plugin(record.open_circuit),), ()
        if record.requeue_now and not record.open_circuit:
            state.queue.requeue_now(record.key, state.now_ns)
        else:
            state.queue.reject(record.key, plugins, pending, state.now_ns)
        self._pods.update_group(entry)

    def _attempt_failed(self, record: r.AttemptFailed) -> None:
        entry = self._decided(record)
        self.state.keep_captured(entry)
        entry.rejection = record.message
        self._plugin_failed(entry, record.plugin)
        self.state.queue.fail(record.key, self.state.now_ns)
        self._pods.update_group(entry)

    def _plugin_failed(self, entry: PodEntry, plugin: str) -> None:
        if self.state.guards.circuits:
            scheduler_name = entry.info.pod.spec.scheduler_name
            self.state.guards.circuits.failed(scheduler_name, plugin, self.state.now_ns)

    def _permit_allowed(self, record: r.PermitAllowed) -> None:
        if not self.state.waiting_pods.allow(record.key, record.plugin):
            raise FoldError(f"{record.plugin} allowed pod {record.key}, which does not wait for it")
        self._pods.update_group(self.state.pods[record.key])

    def _permit_rejected(self, record: r.PermitRejected) -> None:
        held = self.state.waiting.get(record.key)
        if held is None:
            raise FoldError(f"pod {record.key} was rejected on Permit but does not wait")
        self.state.waiting_pods.remove(record.key)
        entry = self.state.pods[record.key]
        self.state.keep_captured(entry)
        entry.rejection = record.message
        grouped = group_of(entry.info.pod) is not None
        # Pods rejected before the wait may have been rejected because of the nomination.
        held_since_ns = held.since_ns if grouped and not held.was_nominated else None
        self._pods.release_node(entry, held_since_ns)
        # A plugin that the pod does not wait for preempted it: its hints do not show when the pod
        # fits, so the pod backs off.
        preempted = record.plugin not in held.pending_until_ns
        rejected_by = () if preempted else (record.plugin,)
        self.state.queue.reject(record.key, rejected_by, (), self.state.now_ns)
        self._pods.update_group(entry)
        self._pods.dequeue_if_not_ours(entry)

    def _decided(self, record: r.Assigned | r.Rejected | r.AttemptFailed) -> PodEntry:
        """The pod of a decision, which ends its attempt."""
        self.state.pending_evaluations.pop(record.key, None)
        if not isinstance(record, r.AttemptFailed) and record.session:
            # The pod of a session is in no queue.
            entry = self.state.entry(record.key, record.uid)
            if entry is None or not self.state.sessions.is_pending(entry.info.pod):
                raise FoldError(
                    f"a session decided pod {record.key} ({record.uid}), which does not wait for it"
                )
            return entry
        turn_ns = search_steps = 0
        rejected = False
        if isinstance(record, r.Rejected):
            turn_ns, rejected = record.put_off_until_ns, True
            search_steps = record.search_steps
        entry = self._dequeue(
            record.key,
            record.uid,
            preemption=rejected,
            turn_ns=turn_ns,
            search_steps=search_steps,
            grouped=record.grouped,
        )
        if record.long_search:
            self.state.guards.costs.note_search(entry.info, record.long_search)
        return entry

    def _dequeue(
        self,
        key: str,
        uid: str,
        *,
        preemption: bool = False,
        turn_ns: int = 0,
        search_steps: int = 0,
        grouped: bool = False,
    ) -> PodEntry:
        """Take the pod from the queue, wherever it waits.

        Every decision was made about an active pod, or about a member of a group with an active
        head (``grouped``). If it is not active here, a plugin that the fold calls (a hint,
        PreEnqueue) has changed. The decision counts nevertheless; a replay
        reports it.
        """
        state = self.state
        entry = state.entry(key, uid)
        if entry is None or entry.placement_state is not PlacementState.PENDING:
            raise FoldError(f"a decision for pod {key} ({uid}), which is not pending")
        queued = state.queue.pop(key, waiting=grouped)
        if queued is None:
            raise FoldError(f"a decision for pod {key} ({uid}), which is in no queue")
        self._charges.settle(
            queued,
            preemption=preemption,
            turn_ns=turn_ns,
            search_steps=search_steps,
            grouped=grouped,
        )
        return entry

    def _extender_call_requested(self, record: r.ExtenderCallRequested) -> None:
        self._dequeue(record.key, record.uid)
        evaluations = self.state.pending_evaluations
        evaluation = evaluations.get(record.key)
        if evaluation is None or not evaluation.is_of(record.uid, record.attempt):
            evaluation = evaluations[record.key] = PendingEvaluation(record.uid, record.attempt)
        evaluation.begin(record, self.state.nodes.size)
        self._advance_start(record.evaluated_nodes)

    def _extender_answered(self, record: r.ExtenderAnswer) -> None:
        evaluation = self.state.pending_evaluations.get(record.key)
        if evaluation is None or not evaluation.expects(record):
            return  # too late: the pod was deleted or the attempt abandoned
        evaluator = self.state.evaluators[record.extender]
        if isinstance(record, r.ExtenderCallFailed) and evaluator.ignorable:
            # The attempt will not fail, so this is the only record of the failure.
            self._plugin_failed(self.state.pods[record.key], evaluator.reported_as)
        evaluation.add(record, evaluator.reported_as)
        if not evaluation.pending:
            self.state.queue.resume_attempt(record.key)

    def _advance_start(self, evaluated_nodes: int) -> None:
        if evaluated_nodes:
            size, engine = max(1, self.state.nodes.size), self.state.engine
            engine.next_start_row = (engine.next_start_row + evaluated_nodes) % size

    # -- sessions -----------------------------------------------------------------------------

    def _session_executed(self, record: sr.SessionExecuted) -> None:
        profile = self.state.sessions.get(record.scheduler_name)
        if profile is None or record.number != profile.number + 1:
            session = f"session {record.number} of {record.scheduler_name!r}"
            raise FoldError(f"{session} is not the next one")
        profile.ran(record.number, self.state.now_ns)

    def _eviction_decided(self, record: sr.EvictionDecided) -> None:
        entry = self.state.entry(record.key, record.uid)
        if entry is None or not entry.node:
            raise FoldError(f"the evicted pod {record.key} ({record.uid}) is on no node")
        victim = PodRef(record.key, record.uid)
        self.state.evictions.begin(
            Eviction(victim, record.preemptor, record.node, record.reason.value)
        )
        self._pods.update_sessions(entry)

    def _group_attempted(self, record: gr.PodGroupAttempted) -> None:
        """The decisions about the members follow."""
        group = self.state.object_store.of_kind(KINDS[record.kind]).get(record.group)
        if group is None or group.uid != record.uid:
            raise FoldError(f"a group cycle of {record.group} ({record.uid}), which is unknown")
        guards = self.state.guards
        if record.steps and guards.costs.limits(group.namespace, record.steps):
            guards.budgets.charge(group.namespace, record.steps, self.state.now_ns)

    def _group_status_decided(self, record: sr.PodGroupStatusDecided) -> None:
        group = self.state.object_store.of_kind(KINDS[record.kind]).get(record.group)
        if group is None or group.uid != record.uid:
            raise FoldError(
                f"a status for PodGroup {record.group} ({record.uid}), which is unknown"
            )
        self.state.sessions.begin_write(record)

    def _group_write_ended(
        self, record: sr.PodGroupStatusWritten | sr.PodGroupStatusWriteFailed
    ) -> None:
        self.state.sessions.end_write(record.kind, record.group, record.uid)

    # -- outcomes -----------------------------------------------------------------------------

    def _bound(self, record: r.Bound) -> None:
        if record.observed:
            self._pods.on_bound_observed(record)
            return
        entry = self._assumed_on(record)
        if entry is not None:
            self._pods.confirm(entry)
        else:  # the watch was faster, or the pod was deleted
            self._pods.reservations.end_binding(record.uid)

    def _assumed_on(self, record: r.Bound | r.BindFailed) -> PodEntry | None:
        """The pod if it is still assumed on the node of the binding."""
        entry = self.state.entry(record.key, record.uid)
        if (
            entry is None
            or entry.placement_state is not PlacementState.ASSUMED
            or entry.node != record.node
        ):
            return None
        return entry

    def _bind_failed(self, record: r.BindFailed) -> None:
        state = self.state
        entry = self._assumed_on(record)
        if entry is None:
            self._pods.reservations.end_binding(record.uid)
            return
        state.waiting_pods.remove(record.key)
        self.state.keep_captured(entry)
        entry.rejection = record.message
        if entry.assignment is not None and entry.assignment.session:
            self._pods.return_to_session(entry)
            state.sessions.on_bind_failed(
                entry.info.pod, record.node, state.now_ns, state.queue.backoff_ns
            )
            return
        self._pods.release_node(entry)
        if record.code in REJECTIONS and record.plugin:
            by = (record.plugin,)
            plugins, pending = ((), by) if record.code is Code.PENDING else (by, ())
            state.queue.reject(record.key, plugins, pending, state.now_ns)
        else:
            self._plugin_failed(entry, record.plugin)
            state.queue.fail(record.key, state.now_ns)
        self._pods.update_group(entry)
        self._pods.dequeue_if_not_ours(entry)

    def _claim_release_ended(self, record: r.ClaimReleaseEnded) -> None:
        """The change of the claim itself requeues the pod."""
        self.state.claim_releases.end(record.claim_uid)

    def _eviction_succeeded(self, record: r.EvictionSucceeded) -> None:
        state = self.state
        eviction = state.evictions.get(record.uid)
        if eviction is None or eviction.reason:
            # A session's eviction lasts until the victim is terminating: until then the session
            # must not choose another victim.
            return
        state.evictions.end(record.uid)
        preemptor = eviction.preemptor
        known = state.entry(preemptor.key, preemptor.uid) is not None
        if record.unplaced and known and not state.evictions.is_preempting(preemptor.uid):
            state.queue.activate(preemptor.key, state.now_ns)

    def _eviction_failed(self, record: r.EvictionFailed) -> None:
        """The preemptor has to look for other victims."""
        state = self.state
        eviction = state.evictions.end(record.uid)
        if eviction is not None:
            preemptor = eviction.preemptor
            if state.entry(preemptor.key, preemptor.uid) is not None:
                state.queue.activate(preemptor.key, state.now_ns)
        entry = state.entry(record.key, record.uid)
        if entry is not None:
            self._pods.update_sessions(entry)
