"""What the daemon does to the cluster, once the decision for it is durable."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from functools import partial
from typing import NamedTuple

import structlog
from anyio.abc import TaskGroup

from asched.daemon.binding import PatientBinder, binding_cycle
from asched.daemon.inbox import Inbox
from asched.daemon.lanes import Lanes
from asched.framework.pod_info import PodInfo
from asched.kube.events import EventRecorder
from asched.kube.timing import Backoff, Clock
from asched.kube.writers import Done, PodGone, PodRef, PodWriter, Reason
from asched.state.cluster import ClusterState, Eviction, PodPhase
from asched.state.records import (
    Assigned,
    AttemptFailed,
    Bound,
    Decision,
    EvictionFailed,
    PermitAllowed,
    PermitRejected,
    Rejected,
    VictimEvicted,
)

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

BackoffFactory = Callable[[], Backoff]


class _Told(NamedTuple):
    """The condition we last wrote for a pod."""

    message: str
    reason: Reason
    nominated_node: str
    since: datetime


class Effects:
    """Carries out decisions. Outcomes come back as records in the inbox."""

    def __init__(
        self,
        cluster: ClusterState,
        writer: PodWriter,
        events: EventRecorder | None,
        tasks: TaskGroup,
        inbox: Inbox,
        clock: Clock,
        backoff: BackoffFactory,
    ) -> None:
        """``events`` None posts none; ``backoff`` paces the retries of one effect."""
        self._cluster = cluster
        self._writer = writer
        self._events = events
        self._lanes = Lanes(tasks, inbox.wake)
        self._report = inbox.put_outcome
        self._clock = clock
        self._backoff = backoff
        self._told: dict[str, _Told] = {}

    @property
    def under_way(self) -> int:
        """Pods with effects that have not ended."""
        return len(self._lanes)

    def release(self, decision: Decision) -> None:
        """Begin the effects of a decision that was just folded and is in the journal."""
        entry = self._cluster.entry(decision.key, decision.uid)
        if entry is None:
            return  # gone in the very turn that decided it
        match decision:
            case Assigned() | PermitAllowed():
                if decision.key not in self._cluster.waiting:
                    self._bind(entry.info, entry.node)
            case Rejected():
                self._tell(entry.info, decision.message, "Unschedulable", decision.nominated_node)
                for victim in decision.victims:
                    self._evict(self._cluster.evictions[victim.uid])
            case AttemptFailed():
                self._tell(entry.info, decision.message, "SchedulerError", None)
            case PermitRejected():
                self._tell(entry.info, decision.message, "Unschedulable", None)

    def binding_failed(self, key: str, uid: str, message: str) -> None:
        """A binding ended without success, as a folded record says: tell the pod's owner."""
        entry = self._cluster.entry(key, uid)
        if entry is not None and entry.phase is PodPhase.PENDING:
            self._tell(entry.info, message, "SchedulerError", None)

    def resume(self) -> None:
        """After a start: take up what was decided before and not known to be done."""
        for entry in self._cluster.pods.values():
            if entry.phase is PodPhase.ASSUMED and entry.info.key not in self._cluster.waiting:
                log.info("binding decided before the start", pod=entry.info.key, node=entry.node)
                self._bind(entry.info, entry.node)
        for eviction in self._cluster.evictions.values():
            self._evict(eviction)

    def forget(self, uid: str) -> None:
        """A pod is gone or bound."""
        self._told.pop(uid, None)

    # -- bindings -----------------------------------------------------------------------------

    def _bind(self, info: PodInfo, node_name: str) -> None:
        self._lanes.submit(info.uid, "bind", partial(self._run_binding, info, node_name))

    async def _run_binding(self, info: PodInfo, node_name: str) -> None:
        profile = self._cluster.profiles[info.pod.spec.scheduler_name]
        client = PatientBinder(self._writer, self._clock, self._backoff())
        outcome = await binding_cycle(profile, client, info, node_name)
        if isinstance(outcome, Bound):
            self.forget(info.uid)
            if self._events is not None:
                self._events.scheduled(_ref(info), node_name)
        else:
            log.warning(
                "binding failed", pod=info.key, node=node_name, plugin=outcome.plugin,
                error=outcome.message,
            )  # fmt: skip
        self._report(outcome)

    # -- conditions ---------------------------------------------------------------------------

    def _tell(self, info: PodInfo, message: str, reason: Reason, nominated: str | None) -> None:
        """Say on the pod itself why it is not scheduled, unless it says just that already."""
        if self._events is not None:
            self._events.failed_scheduling(_ref(info), message)
        known = self._told.get(info.uid)
        node = nominated if nominated is not None else (known.nominated_node if known else "")
        if known is not None and known[:3] == (message, reason, node):
            return
        told = _Told(message, reason, node, known.since if known else self._clock.utc())
        self._told[info.uid] = told
        self._lanes.submit(info.uid, "tell", partial(self._patch, info, told, nominated))

    async def _patch(self, info: PodInfo, told: _Told, nominated: str | None) -> None:
        outcome = await self._writer.patch_unschedulable(
            _ref(info),
            message=told.message,
            reason=told.reason,
            last_transition=told.since,
            nominated_node=nominated,
        )
        if not isinstance(outcome, Done | PodGone):
            self._told.pop(info.uid, None)  # so that the next attempt says it again
            log.warning("condition not written", pod=info.key, error=outcome.message)

    # -- evictions ----------------------------------------------------------------------------

    def _evict(self, eviction: Eviction) -> None:
        self._lanes.submit(eviction.victim.uid, "evict", partial(self._run_eviction, eviction))

    async def _run_eviction(self, eviction: Eviction) -> None:
        victim, preemptor = eviction.victim, eviction.preemptor
        ref = PodRef.of(victim.key, victim.uid)
        outcome = await self._writer.evict(ref, now=self._clock.utc())
        if isinstance(outcome, Done):
            if self._events is not None:
                by = PodRef.of(preemptor.key, preemptor.uid)
                self._events.preempted(ref, by, eviction.node)
            self._report(VictimEvicted(victim.key, victim.uid))
            return
        log.warning("eviction failed", pod=victim.key, error=outcome.message)
        self._report(EvictionFailed(victim.key, victim.uid, outcome.message))


def _ref(info: PodInfo) -> PodRef:
    return PodRef(info.namespace, info.name, info.uid)
