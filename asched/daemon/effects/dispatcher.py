"""Dispatches durable decisions to the handlers that carry them out."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import structlog

from asched.daemon.effects.bind import PREVIOUS_TERM, BindHandler, is_served
from asched.daemon.effects.claims import ClaimReleaseHandler
from asched.daemon.effects.external_calls import ExternalCallHandler
from asched.daemon.effects.per_pod_queue import (
    EffectContext,
    EffectServices,
    PerPodQueue,
)
from asched.daemon.effects.status import PodGroupStatusHandler, PodStatusHandler, pod_ref
from asched.daemon.engine.inbox import Inbox
from asched.daemon.plugin_host.binding_calls import CancelReason
from asched.framework.cluster import Eviction
from asched.framework.pod_info import PodInfo
from asched.framework.status import REJECTIONS
from asched.kube.extenders import HttpExtender
from asched.kube.pod_writer import PodTarget, PodWriter, Reason
from asched.kube.timing import StoppableSleep
from asched.kube.write_outcomes import WriteSucceeded
from asched.model.pod import DEFAULT_SCHEDULER_NAME
from asched.state.cluster import ClusterState, PodEntry
from asched.state.group_records import PodGroupAttempted
from asched.state.records import (
    Assigned,
    AttemptFailed,
    BindFailed,
    Decision,
    EvictionFailed,
    EvictionSucceeded,
    ExtenderCallRequested,
    PermitAllowed,
    PermitRejected,
    Rejected,
)
from asched.state.session_records import EvictionDecided, PodGroupStatusDecided, SessionExecuted

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


class EffectDispatcher:
    """Carries out decisions. Outcomes return as records through the inbox."""

    def __init__(self, cluster: ClusterState, inbox: Inbox, services: EffectServices) -> None:
        self.limits = services.plugins.limits
        self._cluster = cluster
        self._events = services.events
        self.engine_waits = False
        """Whether the engine waits for the end of any effect: it has too many, or it stops."""
        self._inbox = inbox
        self._queue = PerPodQueue(services.tasks, self._ended)
        self._sleep = StoppableSleep(services.client.clock)
        context = EffectContext(cluster, self._queue, self._sleep, inbox.put_outcome, services)
        self._status = PodStatusHandler(context)
        self._bind = BindHandler(context, self._bound, self._status.expect)
        self._groups = PodGroupStatusHandler(context)
        self._evict = EvictionHandler(context, self._groups)
        self._claims = ClaimReleaseHandler(context)
        self._external = ExternalCallHandler(context)

    @property
    def in_flight(self) -> int:
        """Pods with effects that have not ended."""
        return len(self._queue)

    @property
    def has_unresolved_bindings(self) -> bool:
        """Whether a stop abandoned a binding that may still reach the API server."""
        return self._bind.has_unresolved

    def _ended(self) -> None:
        if self.engine_waits:
            self._inbox.wake()

    def binding_problem(self) -> str:
        """Why bindings do not succeed, in one line; empty if they do."""
        return self._bind.health.problem()

    @property
    def load(self) -> int:
        """:attr:`in_flight` without pods with a binding that waits for an extender, a slow plugin
        or an unanswered request: these must not delay decisions for other pods."""
        return len(self._queue) - self._bind.waiting_outside

    def dispatch(self, decision: Decision) -> None:
        """Start the effects of a decision that is folded and durable."""
        if isinstance(decision, SessionExecuted):
            if decision.error:
                log.error(
                    "batch session failed",
                    scheduler=decision.scheduler_name,
                    session=decision.number,
                    error=decision.error,
                )
            return
        if isinstance(decision, PodGroupAttempted):
            return  # its results are decisions of their own
        if isinstance(decision, PodGroupStatusDecided):
            self._groups.write(decision)
            return
        entry = self._cluster.entry(decision.key, decision.uid)
        if entry is not None:  # otherwise deleted in the turn of the decision
            self._dispatch(decision, entry)

    def _dispatch(
        self,
        decision: Assigned
        | Rejected
        | AttemptFailed
        | PermitAllowed
        | PermitRejected
        | EvictionDecided
        | ExtenderCallRequested,
        entry: PodEntry,
    ) -> None:
        match decision:
            case Assigned():
                self._status.assigned(decision.key, decision.uid)
                if decision.permit_waits and decision.key in self._cluster.waiting:
                    self._status.waits_on_permit(entry.info, decision.node)
                self._bind.start(entry)
            case PermitAllowed():
                self._bind.start(entry)
            case Rejected():
                nominated = decision.nominated_node
                self._status.write(entry.info, decision.message, "Unschedulable", nominated)
                for displaced in decision.cleared_nominations:
                    self._status.nominate(displaced.key, displaced.uid, "")
                for victim in decision.victims:
                    self._evict.evict(victim.uid)
                if decision.released_claim is not None:
                    self._claims.release(decision.released_claim.claim.uid)
            case EvictionDecided():
                self._evict.evict(decision.uid)
            case ExtenderCallRequested():
                self._external.call(decision, entry.info)
            case AttemptFailed():
                self._status.write(entry.info, decision.message, "SchedulerError", None)
            case PermitRejected():
                if is_served(self._cluster, entry.info.pod.spec.scheduler_name):
                    self._status.write(entry.info, decision.message, "Unschedulable", None)

    def use_extenders(self, extenders: Sequence[HttpExtender]) -> None:
        """Replace the extenders after a reload. Bindings by the previous ones continue."""
        self._bind.extenders = extenders
        self._external.use_extenders(extenders)

    def binding_failed(self, failure: BindFailed) -> None:
        """Write the condition of a pod after a failed binding, once the failure is durable."""
        if self._bind.is_expected(failure):
            return
        entry = self._cluster.entry(failure.key, failure.uid)
        if entry is None or not is_served(self._cluster, entry.info.pod.spec.scheduler_name):
            return
        rejected = failure.code in REJECTIONS
        reason: Reason = "Unschedulable" if rejected else "SchedulerError"
        self._status.write(entry.info, failure.message, reason, None)

    def resume(self) -> None:
        """After a start: continue every decision without a known outcome."""
        self._bind.resume()
        self._evict.resume()
        self._claims.resume()
        self._groups.resume()
        self._status.resume()
        if self._queue:
            log.info("effects resumed", effects=len(self._queue))

    def abandon_previous_term(self) -> None:
        """After the start of a standby: do not execute what an earlier term of this replica left
        unresolved, but report its outcome. Another leader may have used the capacity since."""
        self._bind.abandon_previous_term()
        self._evict.abandon_previous_term()
        self._claims.abandon_previous_term()
        self._groups.abandon_previous_term()

    def on_pod_deleted(self, key: str, uid: str) -> None:
        """The pod was deleted."""
        self._status.drop(key, uid)
        self._bind.cancel_calls(uid)

    def stop(self) -> None:
        """Let requests in flight end, and retry nothing. Plugin calls are cancelled, and the next
        start repeats them, except DefaultBinder and PostBind."""
        self._cancel(CancelReason.STOPPING)
        self._queue.close()

    def depose(self) -> None:
        """Leadership was lost: start no binding, cancel plugin calls except PostBind."""
        self._cancel(CancelReason.LEADERSHIP_LOST)

    def _cancel(self, reason: CancelReason) -> None:
        self._sleep.end()
        self._bind.cancel(reason)

    def _bound(self, info: PodInfo, node_name: str) -> None:
        self._status.drop(info.key, info.uid)
        if self._events is not None:
            self._events.scheduled(pod_ref(info), node_name)


class EvictionHandler:
    """Deletes victims and reports ``EvictionSucceeded`` or ``EvictionFailed``."""

    def __init__(self, context: EffectContext, groups: PodGroupStatusHandler) -> None:
        """``groups`` posts the Events of PodGroups that lose a pod."""
        self._context = context
        self._writer = PodWriter(context.services.client)
        self._events = context.services.events
        self._groups = groups

    def evict(self, victim_uid: str) -> None:
        """Carry out a decided eviction."""
        eviction = self._context.cluster.evictions[victim_uid]
        self._context.queue.submit(victim_uid, "evict", partial(self._run, eviction))

    def resume(self) -> None:
        """Restart the evictions that were decided before this process started."""
        for uid in self._context.cluster.evictions:
            self.evict(uid)

    def abandon_previous_term(self) -> None:
        """Fail the evictions of a previous term of this replica."""
        for eviction in self._context.cluster.evictions.values():
            victim = eviction.victim
            self._context.report(EvictionFailed(victim.key, victim.uid, PREVIOUS_TERM))

    async def _run(self, eviction: Eviction) -> None:
        victim, preemptor, cluster = eviction.victim, eviction.preemptor, self._context.cluster
        ref = PodTarget.of(victim.key, victim.uid)
        preempting = cluster.entry(preemptor.key, preemptor.uid)
        name = preempting.info.pod.spec.scheduler_name if preempting else DEFAULT_SCHEDULER_NAME
        entry = cluster.entry(victim.key, victim.uid)
        group = None
        if eviction.reason and entry is not None:
            group = self._groups.group_of_victim(entry.info.pod)
        now = self._context.clock.utc()
        outcome = await self._writer.evict(ref, now=now, scheduler_name=name)
        if isinstance(outcome, WriteSucceeded):
            self._groups.record_eviction(group, eviction.reason)
            if self._events is not None:
                by = PodTarget.of(preemptor.key, preemptor.uid)
                self._events.preempted(ref, by, eviction.node)
            self._context.report(EvictionSucceeded(victim.key, victim.uid))
            return
        log.warning("eviction failed", pod=victim.key, error=outcome.message)
        self._context.report(EvictionFailed(victim.key, victim.uid, outcome.message))
