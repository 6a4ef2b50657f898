"""What a batch session does to the cluster beside binding and evicting: statuses of PodGroups, and
Events about them."""

from __future__ import annotations

from datetime import datetime
from functools import partial

import structlog

from asched.daemon.effects.queue import EffectContext
from asched.framework.pod_groups import find_group, group_of
from asched.kube.events import EventRecorder
from asched.kube.group_writer import (
    GroupRef,
    GroupStatus,
    GroupWriter,
    PodGroupConditionPatch,
    rfc3339,
)
from asched.kube.writers import OutcomeUnknown, PatchOutcome, WriteRejected
from asched.model.pod import Pod
from asched.state.session_records import PodGroupStatusDecided, PodGroupStatusWriteFailed, PodGroupStatusWritten

EVICT = "Evict"
UNSCHEDULABLE = "Unschedulable"

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


class SessionEffects:
    """Carries out what sessions decided about PodGroups."""

    def __init__(
        self, context: EffectContext, writer: GroupWriter, events: EventRecorder | None
    ) -> None:
        self._cluster = context.cluster
        self._writer = writer
        self._events = events
        self._lanes = context.lanes
        self._report = context.report
        self._pauses = context.pauses
        self._clock = context.clock
        self._backoff = context.backoff

    def group_decided(self, decision: PodGroupStatusDecided) -> None:
        """A PodGroup gets a status."""
        if decision.event and self._events is not None:
            ref = GroupRef.of(decision.kind, decision.group, decision.uid)
            self._events.of_group(ref, "Warning", UNSCHEDULABLE, decision.event)
        self._write(decision)

    def resume(self) -> None:
        """After a start: write what was decided before and is not known to be written."""
        for write in self._cluster.sessions.writes.values():
            if write.under_way:
                self._write(write.decision)

    def victim_of(self, pod: Pod) -> GroupRef | None:
        """The PodGroup that is to be told of the pod's eviction, if it has one."""
        named = group_of(pod)
        group = None if named is None else find_group(self._cluster, named)
        return None if group is None else GroupRef.of(type(group).__name__, group.key, group.uid)

    def evicted(self, group: GroupRef | None, reason: str) -> None:
        """A pod of the group was evicted by that action."""
        if group is not None and self._events is not None:
            self._events.of_group(group, "Normal", EVICT, reason)

    # -- statuses -----------------------------------------------------------------------------

    def _write(self, decision: PodGroupStatusDecided) -> None:
        status = _status(decision, self._clock.utc())
        self._lanes.submit(decision.uid, "status", partial(self._run_write, decision, status))

    async def _run_write(self, decision: PodGroupStatusDecided, status: GroupStatus) -> None:
        """Until it is known how it ended, a newer decision takes its place, or the daemon stops."""
        group = GroupRef.of(decision.kind, decision.group, decision.uid)
        backoff = self._backoff()
        while self._is_wanted(decision):
            outcome = await self._writer.write_status(group, status)
            if not _worth_another_try(outcome):
                self._ended(decision, outcome)
                return
            if not await self._pauses.pause(backoff.next_s()):
                return

    def _is_wanted(self, decision: PodGroupStatusDecided) -> bool:
        write = self._cluster.sessions.writes.get((decision.kind, decision.group))
        return write is not None and write.decision is decision

    def _ended(self, decision: PodGroupStatusDecided, outcome: PatchOutcome) -> None:
        kind, group, uid = decision.kind, decision.group, decision.uid
        if isinstance(outcome, WriteRejected | OutcomeUnknown):
            log.warning("status of a PodGroup not written", group=group, error=outcome.message)
            self._report(PodGroupStatusWriteFailed(kind, group, uid, outcome.message))
        else:
            self._report(PodGroupStatusWritten(kind, group, uid))


def _worth_another_try(outcome: PatchOutcome) -> bool:
    """Whether the server is at fault, or was not reached."""
    return isinstance(outcome, OutcomeUnknown) or (
        isinstance(outcome, WriteRejected) and not outcome.status
    )


def _status(decision: PodGroupStatusDecided, now: datetime) -> GroupStatus:
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
