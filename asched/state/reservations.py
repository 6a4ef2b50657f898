"""The fold of what Reserve plugins hold for pods.

A part of :mod:`asched.state.fold`.
"""

from __future__ import annotations

import msgspec

from asched.framework.devices import special_claim_owner
from asched.framework.events import ActionType, ClusterEvent, EventResource
from asched.framework.runtime.profile import Profile
from asched.model.meta import Object
from asched.model.resource_claims import ResourceClaim
from asched.state.cluster import ClusterState, PodEntry
from asched.state.records import Assigned, Reservation

_FREED = ClusterEvent(EventResource.ASSIGNED_POD, ActionType.DELETE).label


class ReservationFold:
    """Changes and ends reservations."""

    def __init__(self, state: ClusterState) -> None:
        self._state = state

    def repeat(self, entry: PodEntry) -> None:
        """Repeat the calls about the pod to new instances of Reserve plugins."""
        if entry.assignment is None and entry.reserved is None:
            return
        profile, calls = profile_of(self._state, entry), self._state.reserve_calls
        if entry.assignment is not None:
            calls.reserved(profile, entry.info, entry.reserved or entry.assignment)
        elif entry.reserved is not None:
            calls.reserved(profile, entry.info, entry.reserved)
            calls.bound(profile, entry.info, entry.reserved)
            if entry.info.uid not in calls.unsettled:
                # The profile was not there when the pod was bound, or when the time was over.
                calls.expect(profile, entry.info, entry.reserved, self._state.now_ns)

    def repeat_deleted(self) -> None:
        """Repeat the calls about deleted pods with reservations that last."""
        calls = self._state.reserve_calls
        for entry in calls.unfinished.values():
            self.repeat(entry)
        for entry in calls.deleted_unsettled.values():
            assert entry.reserved is not None
            calls.restored(profile_of(self._state, entry), entry.info, entry.reserved)

    # -- pods that are not bound ------------------------------------------------------------------

    def undo(self, entry: PodEntry, *, binding_runs: bool) -> None:
        """Undo the assignment of a pod that we did not bind, at once or when its binding ended.

        ``binding_runs``: the pod was deleted, or another client bound it to another node.
        """
        state, key = self._state, entry.info.key
        writes = entry.assignment is not None and entry.assignment.reservations
        if writes and binding_runs and key not in state.waiting:
            # The binding cycle may write what it reserved.
            state.reserve_calls.unfinished[entry.info.uid] = msgspec.structs.replace(entry)
        else:
            self._unreserve(entry)

    def end_binding(self, uid: str) -> None:
        """The binding cycle of a deleted pod ended; nothing if there is none."""
        entry = self._state.reserve_calls.unfinished.pop(uid, None)
        if entry is not None:
            self._unreserve(entry)

    def end_all_bindings(self) -> None:
        """The process that ran the binding cycles of deleted pods ended."""
        for uid in [*self._state.reserve_calls.unfinished]:
            self.end_binding(uid)

    def _unreserve(self, entry: PodEntry) -> None:
        """Undo the assignment, and retry the pods that wait for what it reserved."""
        state, assignment = self._state, entry.assignment
        if assignment is None:
            return
        state.reserve_calls.unreserved(profile_of(state, entry), entry.info, assignment)
        self._retry_others(assignment)

    # -- pods that are bound ----------------------------------------------------------------------

    def expect(self, entry: PodEntry) -> None:
        """The pod is bound: its reservations end once the API server shows what it has."""
        state = self._state
        self.settle(entry.info.pod)
        if entry.reserved is not None and entry.reserved.reservations:
            profile = profile_of(state, entry)
            state.reserve_calls.expect(profile, entry.info, entry.reserved, state.now_ns)

    def end_bound(self, entry: PodEntry) -> None:
        """A bound pod was deleted. Its reservations last until the API server shows what it has:
        the watch of claims may be behind that of pods."""
        calls = self._state.reserve_calls
        assert entry.reserved is not None
        kept = calls.deleted(profile_of(self._state, entry), entry.info, entry.reserved)
        if kept:
            left = msgspec.structs.replace(entry, reserved=_with(entry.reserved, [*kept]))
            calls.deleted_unsettled[entry.info.uid] = left
            self.settle(entry.info.pod)

    def on_claim_deleted(self, claim: ResourceClaim) -> None:
        """What deleted pods reserved of the claim is free."""
        calls = self._state.reserve_calls
        before = {uid: entry.reserved for uid, entry in calls.deleted_unsettled.items()}
        if not before:
            return
        self.settle(claim)
        owner = calls.deleted_unsettled.get(special_claim_owner(claim))
        if owner is not None:
            self._give_up(owner)
        for uid, reserved in before.items():
            if uid not in calls.deleted_unsettled:
                self._retry_others(reserved)

    def settle(self, changed: Object) -> None:
        """Change and end reservations because of an observed object, or a pod that was bound."""
        state = self._state
        for uid, plugin, after in state.reserve_calls.settle(state.profiles.values(), changed):
            # A pod that is deleted while it is bound keeps its reservation until the binding ends.
            entry = state.reserve_calls.deleted_unsettled.get(uid) or self._entry(uid)
            if entry is not None and entry.reserved is not None:
                kept = [r for r in entry.reserved.reservations if r.plugin != plugin]
                if after.value is not None:
                    kept.append(Reservation(plugin, after.value))
                state.keep_captured(entry)
                entry.reserved = _with(entry.reserved, kept)
            if after.value is None:
                state.reserve_calls.unsettled.pop(uid, None)
                state.reserve_calls.deleted_unsettled.pop(uid, None)
            if after.frees:
                self._retry(plugin)

    def end_unsettled(self) -> None:
        """End the reservations of bound pods that the API server did not show in time."""
        state = self._state
        for uid in state.reserve_calls.take_overdue(state.now_ns):
            entry = state.reserve_calls.deleted_unsettled.get(uid) or self._entry(uid)
            if entry is not None and entry.reserved is not None:
                self._give_up(entry)

    def _give_up(self, entry: PodEntry) -> None:
        """End the reservations that were not settled."""
        profile, held, calls = (
            profile_of(self._state, entry),
            entry.reserved,
            self._state.reserve_calls,
        )
        assert held is not None
        calls.unsettled.pop(entry.info.uid, None)
        calls.deleted_unsettled.pop(entry.info.uid, None)
        ended = calls.give_up(profile, entry.info, held)
        self._state.keep_captured(entry)
        entry.reserved = _with(held, [r for r in held.reservations if r.plugin not in ended])
        for plugin in ended:
            self._retry(plugin)

    def _entry(self, uid: str) -> PodEntry | None:
        state = self._state
        return state.pods.get(state.pods_by_uid.key_of(uid) or "")

    def _retry_others(self, ended: Assigned | None) -> None:
        """Retry the pods that wait for what was reserved."""
        for reservation in () if ended is None else ended.reservations:
            self._retry(reservation.plugin)

    def _retry(self, plugin: str) -> None:
        """Retry the pods that the plugin rejected."""
        self._state.queue.retry_rejected_by(plugin, self._state.now_ns, _FREED)


def _with(decision: Assigned, reservations: list[Reservation]) -> Assigned:
    return msgspec.structs.replace(decision, reservations=tuple(reservations))


def profile_of(state: ClusterState, entry: PodEntry) -> Profile | None:
    """The profile that placed the pod. None if it was removed, or for a pod of a session without
    reservations."""
    name = entry.info.pod.spec.scheduler_name
    decision = entry.assignment or entry.reserved
    if decision is not None and decision.session and decision.reservations:
        return state.plugin_context.binding_profile(name)
    return state.profiles.get(name)
