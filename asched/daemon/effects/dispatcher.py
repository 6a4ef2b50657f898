"""Dispatches durable decisions to the handlers that carry them out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import structlog
from anyio.abc import TaskGroup

from asched.daemon.effects.bind import BindHandler, BindOptions, is_served
from asched.daemon.effects.evict import EvictionHandler
from asched.daemon.effects.external_calls import ExternalCallHandler
from asched.daemon.effects.group_status import PodGroupStatusHandler
from asched.daemon.effects.per_pod_queue import EffectContext, PerPodQueue
from asched.daemon.effects.pod_status import PodStatusHandler, pod_ref
from asched.daemon.engine.inbox import Inbox
from asched.daemon.engine.runtime import StoppableSleep
from asched.daemon.plugin_host.binding_client import CancelReason
from asched.daemon.plugin_host.external_plugins import ExternalPlugins
from asched.daemon.telemetry.metrics import Metrics
from asched.daemon.telemetry.stopwatch import CycleStopwatch
from asched.framework.pod_info import PodInfo
from asched.framework.status import REJECTIONS
from asched.kube.client import ApiClient
from asched.kube.events import EventRecorder
from asched.kube.extenders import HttpExtender
from asched.kube.group_writer import GroupWriter
from asched.kube.pod_writer import PodWriter, Reason
from asched.kube.timing import Backoff
from asched.state.cluster import ClusterState, PodEntry
from asched.state.records import (
    Assigned,
    AttemptFailed,
    BindFailed,
    Decision,
    ExtenderCallRequested,
    PermitAllowed,
    PermitRejected,
    Rejected,
)
from asched.state.session_records import EvictionDecided, PodGroupStatusDecided, SessionExecuted

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


class EffectServices(NamedTuple):
    """What effects use in addition to the state and the inbox."""

    client: ApiClient
    """Used for every write."""
    events: EventRecorder | None
    """None posts no Events."""
    tasks: TaskGroup
    backoff: Callable[[], Backoff]
    """Delays of one effect's retries."""
    metrics: Metrics
    plugins: ExternalPlugins
    """Evaluates plugins that are not called as part of a decision."""
    extenders: Sequence[HttpExtender] = ()
    """Extenders of the recorded configuration, in its order."""
    stopwatch: CycleStopwatch | None = None
    """Times some of the binding cycles."""


class EffectDispatcher:
    """Carries out decisions. Outcomes return as records through the inbox."""

    def __init__(self, cluster: ClusterState, inbox: Inbox, services: EffectServices) -> None:
        client, events = services.client, services.events
        self.limits = services.plugins.limits
        self._cluster = cluster
        self._events = events
        self._queue = PerPodQueue(services.tasks, inbox.wake)
        self._sleep = StoppableSleep(client.clock)
        context = EffectContext(
            cluster=cluster,
            queue=self._queue,
            sleep=self._sleep,
            backoff=services.backoff,
            report=inbox.put_outcome,
            clock=client.clock,
        )
        writer = PodWriter(client)
        self._bind = BindHandler(
            context,
            client,
            BindOptions(
                bound=self._bound,
                metrics=services.metrics.scheduling,
                limits=self.limits,
                extenders=services.extenders,
                stopwatch=services.stopwatch,
            ),
        )
        self._status = PodStatusHandler(context, writer, events)
        self._groups = PodGroupStatusHandler(context, GroupWriter(client), events)
        self._evict = EvictionHandler(context, writer, events, self._groups)
        self._external = ExternalCallHandler(
            cluster, services.extenders, services.tasks, inbox.put_outcome, services.plugins
        )

    @property
    def in_flight(self) -> int:
        """Pods with effects that have not ended."""
        return len(self._queue)

    @property
    def has_unresolved_bindings(self) -> bool:
        """Whether a stop abandoned a binding that may still reach the API server."""
        return self._bind.has_unresolved

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
        self._groups.resume()
        self._status.resume()
        if self._queue:
            log.info("effects of earlier decisions resumed", effects=len(self._queue))

    def abandon_previous_term(self) -> None:
        """After the start of a standby: do not execute what an earlier term of this replica left
        unresolved, but report its outcome. Another leader may have used the capacity since."""
        self._bind.abandon_previous_term()
        self._evict.abandon_previous_term()
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
        """Leadership was lost: start no binding and cancel plugin calls; only PostBind still
        runs."""
        self._cancel(CancelReason.LEADERSHIP_LOST)

    def _cancel(self, reason: CancelReason) -> None:
        self._sleep.end()
        self._bind.cancel(reason)

    def _bound(self, info: PodInfo, node_name: str) -> None:
        self._status.drop(info.key, info.uid)
        if self._events is not None:
            self._events.scheduled(pod_ref(info), node_name)
