"""Status and Events of PodGroups."""

from __future__ import annotations

from datetime import datetime
from functools import partial

import structlog

from asched.daemon.effects.bind import PREVIOUS_TERM
from asched.daemon.effects.per_pod_queue import EffectContext
from asched.framework.pod_groups import find_group, group_of
from asched.kube.events import EventRecorder
from asched.kube.group_writer import (
    GroupRef,
    GroupStatus,
    GroupWriter,
    PodGroupConditionPatch,
)
from asched.kube.pod_writer import rfc3339
from asched.kube.write_outcomes import OutcomeUnknown, PatchOutcome, WriteRejected
from asched.model.pod import Pod
from asched.state.session_records import (
    PodGroupStatusDecided,
    PodGroupStatusWriteFailed,
    PodGroupStatusWritten,
)

EVICT = "Evict"
UNSCHEDULABLE = "Unschedulable"

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


class PodGroupStatusHandler:
    """Writes decided PodGroup statuses and reports ``PodGroupStatusWritten`` or
    ``PodGroupStatusWriteFailed``."""

    def __init__(
        self, context: EffectContext, writer: GroupWriter, events: EventRecorder | None
    ) -> None:
        self._context = context
        self._writes = context.cluster.sessions.writes
        self._writer = writer
        self._events = events

    def write(self, decision: PodGroupStatusDecided) -> None:
        """Write the decided status and post its Event."""
        if decision.event and self._events is not None:
            ref = GroupRef.of(decision.kind, decision.group, decision.uid)
            self._events.record_group(ref, "Warning", UNSCHEDULABLE, decision.event)
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
        return None if group is None else GroupRef.of(type(group).__name__, group.key, group.uid)

    def record_eviction(self, group: GroupRef | None, reason: str) -> None:
        """Post the Event of a batch session's eviction to the victim's PodGroup."""
        if group is not None and self._events is not None:
            self._events.record_group(group, "Normal", EVICT, reason)

    def _submit(self, decision: PodGroupStatusDecided) -> None:
        status = _status(decision, self._context.clock.utc())
        self._context.queue.submit(decision.uid, "status", partial(self._run, decision, status))

    async def _run(self, decision: PodGroupStatusDecided, status: GroupStatus) -> None:
        """Retry until the write has a definite outcome, is superseded, or the daemon stops."""
        ref = GroupRef.of(decision.kind, decision.group, decision.uid)
        backoff = self._context.backoff()
        while self._is_current(decision):
            outcome = await self._writer.write_status(ref, status)
            if not _retryable(outcome):
                self._report(decision, outcome)
                return
            if not await self._context.sleep.pause(backoff.next_s()):
                return

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
