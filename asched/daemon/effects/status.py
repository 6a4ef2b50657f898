"""The status of pods that were not scheduled, and of PodGroups."""

from __future__ import annotations

from datetime import datetime
from functools import partial
from typing import Final, NamedTuple

import structlog

from asched.daemon.effects.bind import PREVIOUS_TERM
from asched.daemon.effects.per_pod_queue import EffectContext
from asched.framework.pod_groups import (
    DISRUPTION_TARGET,
    POD_GROUP_SCHEDULED,
    find_group,
    group_of,
)
from asched.framework.pod_info import PodInfo
from asched.framework.sessions import PodGroupPhase
from asched.kube.group_writer import (
    GroupRef,
    GroupStatus,
    GroupWriter,
    PodGroupConditionPatch,
)
from asched.kube.pod_writer import PodTarget, PodWriter, Reason, rfc3339
from asched.kube.write_outcomes import (
    ObjectGone,
    OutcomeUnknown,
    PatchOutcome,
    WriteRejected,
    WriteSucceeded,
)
from asched.model.groups import NativeGroup
from asched.model.pod import POD_SCHEDULED, Pod
from asched.state.cluster import PlacementState
from asched.state.preemption import awaits_victims
from asched.state.session_records import (
    PodGroupStatusDecided,
    PodGroupStatusWriteFailed,
    PodGroupStatusWritten,
)

NOMINATION_RETRY_S: Final = 5.0
"""After this time a nomination that could not be written is tried again."""

_OWN_CONDITIONS: Final = frozenset({POD_GROUP_SCHEDULED, DISRUPTION_TARGET})

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


class _LatestStatus(NamedTuple):
    """The latest status of a pod, written or about to be."""

    uid: str
    message: str
    reason: Reason
    nominated_node: str
    since: datetime | None
    """When the pod became unschedulable; None if its condition was false before the start."""
    written: bool = False


class PodStatusHandler:
    """Writes why a pod was not scheduled (condition ``PodScheduled=False``) and its nomination.

    Only the latest message of a pod is written. A nomination is kept until it was written, because
    a later decision may change the message alone.
    """

    def __init__(self, context: EffectContext) -> None:
        self._context = context
        self._cluster = context.cluster
        self._writer = PodWriter(context.services.client)
        self._events = context.services.events
        self._statuses: dict[str, _LatestStatus] = {}
        """By pod key; removed when the pod is bound or deleted."""
        self._nominations: dict[str, str] = {}
        """By UID: the node of the next nomination to be written; empty clears it."""
        self._failed_nominations: dict[str, str] = {}
        """By UID: the node of a nomination that could not be written, to be tried again."""
        self._expectations: dict[str, str] = {}
        """By UID: the node written by :meth:`expect`, until the binding ends."""

    def write(self, info: PodInfo, message: str, reason: Reason, nominated: str | None) -> None:
        """Write the condition unless the pod has it. ``nominated`` None keeps the nomination."""
        if self._events is not None:
            self._events.failed_scheduling(pod_ref(info), message)
        known = self._statuses.get(info.key)
        if known is not None and known.uid != info.uid:
            known = None
        node = self._nomination_to_write(info, nominated, known)
        failed = self._failed_nominations.pop(info.uid, None)
        carried_out = failed and failed == info.pod.status.nominated_node_name
        if node is None and not carried_out:
            node = failed
        expected = self._expectations.pop(info.uid, None)
        if node is None and expected is not None:
            # The watch may not show the expectation yet.
            held = self._cluster.nominator.node_of(info.key)
            node = held if held != expected else None
        if node is not None:
            self._nominations[info.uid] = node
        elif known is not None and (
            (known.message, known.reason) == (message, reason) or self._awaits_victims(info, known)
        ):
            return
        if node is None:
            node = known.nominated_node if known else info.pod.status.nominated_node_name
        since = known.since if known else self._unschedulable_since(info)
        status = self._statuses[info.key] = _LatestStatus(info.uid, message, reason, node, since)
        self._context.queue.submit(info.uid, "status", partial(self._patch, info, status))

    def nominate(self, key: str, uid: str, node: str) -> None:
        """Write the nominated node alone; empty clears it."""
        self.drop(key, uid)
        self._nominations[uid] = node
        job = partial(self._patch_nomination, PodTarget.of(key, uid), node)
        self._context.queue.submit(uid, "nominate", job)

    async def expect(self, info: PodInfo, node: str) -> None:
        """Nominate a pod to the node that it will be bound to, unless the API server shows it.

        Used if the binding has to wait (``NominatedNodeNameForExpectation``). A failure is logged,
        and the binding continues, as in kube-scheduler.
        """
        entry = self._cluster.entry(info.key, info.uid)
        if entry is None or entry.placement_state is not PlacementState.ASSUMED:
            return  # rejected, deleted or bound meanwhile
        if entry.node != node or self._expectations.get(info.uid) == node:
            return
        if entry.info.pod.status.nominated_node_name == node:
            return
        # Kept if the write fails: an earlier try without an answer may have been carried out.
        self._expectations[info.uid] = node
        outcome = await self._writer.nominate(pod_ref(info), node)
        if isinstance(outcome, WriteRejected | OutcomeUnknown):
            log.warning("nomination not written", pod=info.key, node=node, error=outcome.message)

    def waits_on_permit(self, info: PodInfo, node: str) -> None:
        """As :meth:`expect`, before later effects on the pod."""
        if self._cluster.plugin_context.feature_gates.nominated_node_name_for_expectation:
            self._context.queue.submit(info.uid, "expect", partial(self.expect, info, node))

    def assigned(self, key: str, uid: str) -> None:
        """The pod got a node: a nomination that was not written yet is no longer needed."""
        if self._nominations.get(uid) or self._failed_nominations.get(uid):
            self.drop(key, uid)

    def drop(self, key: str, uid: str) -> None:
        """The pod was bound or deleted."""
        self._nominations.pop(uid, None)
        self._failed_nominations.pop(uid, None)
        self._expectations.pop(uid, None)
        known = self._statuses.get(key)
        if known is not None and known.uid == uid:
            del self._statuses[key]

    def resume(self) -> None:
        """Write the nominations that were decided before this process started."""
        for held in self._cluster.waiting.values():
            self.waits_on_permit(held.info, held.node_name)
        for node, pods in self._cluster.nominator.by_node.items():
            for info in pods.values():
                if info.pod.status.nominated_node_name != node:
                    self.nominate(info.key, info.uid, node)

    def _nomination_to_write(
        self, info: PodInfo, decided: str | None, known: _LatestStatus | None
    ) -> str | None:
        """The node to nominate, empty to clear; None if the API server has it or is about to.

        A decided nomination is written unless the pod has it, as in kube-scheduler (``updatePod``
        with ``ModeOverride``). A decision without one writes nothing (``ModeNoop``), unless an
        earlier write failed: then the state differs from what the watch shows.
        """
        shown = info.pod.status.nominated_node_name
        if decided is None:
            held = self._cluster.nominator.node_of(info.key)
            return None if held == shown or (known and held == known.nominated_node) else held
        if known is None or (known.written and decided == known.nominated_node):
            return None if decided == shown else decided  # another client may have changed it
        return None if decided == known.nominated_node else decided

    def _awaits_victims(self, info: PodInfo, known: _LatestStatus) -> bool:
        """Whether victims of the nominated pod are still terminating: its condition, which shows
        the nomination, stays until they are gone. Many preemptors would need as many patches
        again."""
        node = known.nominated_node
        nominated = bool(node) and self._cluster.nominator.node_of(info.key) == node
        return nominated and awaits_victims(self._cluster.nodes, info, node)

    def _unschedulable_since(self, info: PodInfo) -> datetime | None:
        known = [c.status for c in info.pod.status.conditions if c.type == POD_SCHEDULED]
        return None if known == ["False"] else self._context.clock.utc()

    async def _patch(self, info: PodInfo, status: _LatestStatus) -> None:
        if self._statuses.get(info.key, status) is not status:
            return  # a later job writes a newer one
        nominated = self._nominations.pop(info.uid, None)
        entry = self._cluster.entry(info.key, info.uid)
        if entry is None or entry.placement_state is not PlacementState.PENDING:
            self._discard(info.key, status)  # assigned or deleted meanwhile
            return
        outcome = await self._writer.patch_unschedulable(
            pod_ref(info),
            message=status.message,
            reason=status.reason,
            last_transition=status.since,
            nominated_node=nominated,
        )
        if not isinstance(outcome, WriteSucceeded):
            self._discard(info.key, status)
            if nominated is not None:
                self._keep_nomination(pod_ref(info), nominated, outcome)
        elif self._statuses.get(info.key) is status:
            self._statuses[info.key] = status._replace(written=True)
        if isinstance(outcome, WriteRejected | OutcomeUnknown):
            log.warning("condition not written", pod=info.key, error=outcome.message)

    async def _patch_nomination(self, ref: PodTarget, node: str) -> None:
        if self._nominations.get(ref.uid) != node:
            return  # written with a condition, or replaced
        del self._nominations[ref.uid]
        entry = self._cluster.entry(ref.key, ref.uid)
        if entry is None or (node and entry.placement_state is not PlacementState.PENDING):
            return
        outcome = await self._writer.nominate(ref, node)
        if not isinstance(outcome, WriteSucceeded):
            self._keep_nomination(ref, node, outcome)
        if isinstance(outcome, WriteRejected | OutcomeUnknown):
            log.warning("nomination not written", pod=ref.key, node=node, error=outcome.message)

    def _discard(self, key: str, status: _LatestStatus) -> None:
        """The status was not written: the next attempt writes it again."""
        if self._statuses.get(key) is status:
            del self._statuses[key]

    def _keep_nomination(self, ref: PodTarget, node: str, outcome: PatchOutcome) -> None:
        """The nomination was not written: the next queued status of the pod carries it, or a later
        try. The API server may show an older nomination, which keeps other pods from a node."""
        waiting = self._statuses.get(ref.key)
        if waiting is not None and waiting.uid == ref.uid:
            self._nominations.setdefault(ref.uid, node)
        elif _retryable(outcome) and self._cluster.entry(ref.key, ref.uid) is not None:
            self._failed_nominations[ref.uid] = node
            self._context.services.tasks.start_soon(self._nominate_later, ref, node)

    async def _nominate_later(self, ref: PodTarget, node: str) -> None:
        """Not in the queue of the pod's effects, which must not wait."""
        goes_on = await self._context.sleep.pause(NOMINATION_RETRY_S)
        if goes_on and self._failed_nominations.get(ref.uid) == node:
            self._nominations[ref.uid] = self._failed_nominations.pop(ref.uid)
            job = partial(self._patch_nomination, ref, node)
            self._context.queue.submit(ref.uid, "nominate", job)


def pod_ref(info: PodInfo) -> PodTarget:
    return PodTarget(info.namespace, info.name, info.uid)


# -- PodGroups ------------------------------------------------------------------------------------


class PodGroupStatusHandler:
    """Writes decided PodGroup statuses and reports ``PodGroupStatusWritten`` or
    ``PodGroupStatusWriteFailed``."""

    def __init__(self, context: EffectContext) -> None:
        self._context = context
        self._writes = context.cluster.sessions.writes
        self._writer = GroupWriter(context.services.client)
        self._events = context.services.events

    def write(self, decision: PodGroupStatusDecided) -> None:
        """Write the decided status and post its Event."""
        if decision.event and self._events is not None:
            ref = self._ref(decision.kind, decision.group, decision.uid)
            self._events.record_group(ref, "Warning", "Unschedulable", decision.event)
        self._submit(decision)

    def resume(self) -> None:
        """Restart the writes that were decided before this process started."""
        for write in self._writes.values():
            if write.in_flight:
                self._submit(write.decision)

    def abandon_previous_term(self) -> None:
        """Fail the writes of a previous term of this replica."""
        for (kind, group), write in self._writes.items():
            if write.in_flight:
                uid = write.decision.uid
                self._context.report(PodGroupStatusWriteFailed(kind, group, uid, PREVIOUS_TERM))

    def group_of_victim(self, pod: Pod) -> GroupRef | None:
        """The pod's PodGroup, if it has one."""
        key = group_of(pod)
        group = None if key is None else find_group(self._context.cluster, key)
        return None if group is None else self._ref(type(group).__name__, group.key, group.uid)

    def _ref(self, kind: str, key: str, uid: str) -> GroupRef:
        served = self._context.cluster.object_store.api_versions.get(kind, "")
        return GroupRef.of(kind, key, uid, served)

    def record_eviction(self, group: GroupRef | None, reason: str) -> None:
        """Post the Event of a batch session's eviction to the victim's PodGroup."""
        if group is not None and self._events is not None:
            self._events.record_group(group, "Normal", "Evict", reason)

    def _submit(self, decision: PodGroupStatusDecided) -> None:
        job = partial(self._run, decision, self._context.clock.utc())
        self._context.queue.submit(decision.uid, "status", job)

    async def _run(self, decision: PodGroupStatusDecided, decided_at: datetime) -> None:
        """Retry until the write has a definite outcome, is superseded, or the daemon stops.

        404 is none for a group of ``scheduling.k8s.io``: the API version may have been withdrawn.
        Either the watch shows that the group is deleted, or the state names another version.
        """
        backoff = self._context.services.backoff()
        while self._is_current(decision):
            ref = self._ref(decision.kind, decision.group, decision.uid)
            shown = self._context.cluster.objects(ref.resource.type).get(decision.group)
            status = (
                _own_conditions(decision, shown, decided_at)
                if isinstance(shown, NativeGroup)
                else _custom_status(decision, decided_at)
            )
            outcome = await self._write(ref, status, decided_at)
            if not _retryable(outcome) and not (ref.native and isinstance(outcome, ObjectGone)):
                self._report(decision, outcome)
                return
            if not await self._context.sleep.pause(backoff.next_s()):
                return

    async def _write(self, ref: GroupRef, status: GroupStatus, now: datetime) -> PatchOutcome:
        outcome = await self._writer.write_status(ref, status)
        if ref.native and isinstance(outcome, WriteRejected) and outcome.status == 422:
            # A condition with another name than in an earlier version of the API has no time yet.
            outcome = await self._writer.write_status(ref, status.with_times(rfc3339(now)))
        return outcome

    def _is_current(self, decision: PodGroupStatusDecided) -> bool:
        write = self._writes.get((decision.kind, decision.group))
        return write is not None and write.decision is decision

    def _report(self, decision: PodGroupStatusDecided, outcome: PatchOutcome) -> None:
        kind, group, uid = decision.kind, decision.group, decision.uid
        if isinstance(outcome, WriteRejected | OutcomeUnknown):
            log.warning("PodGroup status not written", group=group, error=outcome.message)
            self._context.report(PodGroupStatusWriteFailed(kind, group, uid, outcome.message))
        else:
            self._context.report(PodGroupStatusWritten(kind, group, uid))


def _retryable(outcome: PatchOutcome) -> bool:
    """Whether the server failed or was not reached."""
    return isinstance(outcome, OutcomeUnknown) or (
        isinstance(outcome, WriteRejected) and not outcome.status
    )


def _custom_status(decision: PodGroupStatusDecided, now: datetime) -> GroupStatus:
    """The whole status. A session names the conditions that it sets."""
    return GroupStatus(
        tuple(
            PodGroupConditionPatch(
                type=c.type,
                status=c.status,
                reason=c.reason,
                message=c.message,
                transition_id=c.transition_id,
                last_transition_time=rfc3339(now) if c.transition_id else "",
            )
            for c in decision.conditions
        ),
        decision.phase.value,
        decision.running,
        decision.succeeded,
        decision.failed,
    )


def _own_conditions(
    decision: PodGroupStatusDecided, shown: NativeGroup, now: datetime
) -> GroupStatus:
    """The scheduler's own conditions: those of other clients stay. All of them, because the watch
    may not show an earlier write yet. As in ``SetStatusCondition`` the time changes with the
    status."""
    decided = {c.type: c for c in decision.conditions if c.type in _OWN_CONDITIONS}
    before = {c.type: c.status for c in shown.status.conditions}
    conditions = tuple(
        PodGroupConditionPatch(
            type=c.type,
            status=c.status,
            reason=c.reason,
            message=c.message,
            last_transition_time="" if c.status == before.get(c.type) else rfc3339(now),
        )
        for c in decided.values()
    )
    # Only a group that is scheduled loses a condition.
    ended = decision.phase is PodGroupPhase.RUNNING and DISRUPTION_TARGET not in decided
    return GroupStatus(conditions, removed=(DISRUPTION_TARGET,) if ended else ())
