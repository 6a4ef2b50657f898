"""The bindings that are under way: each is begun once, and what plugins do for it can be ended."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import structlog

from asched.config.settings import PluginLimits
from asched.daemon.effects.binder import BindReconciler
from asched.daemon.effects.binding_cycle import binding_cycle, given_up, plain_binding
from asched.daemon.effects.queue import EffectContext
from asched.daemon.plugin_host.binding_calls import BindingPluginCalls
from asched.daemon.plugin_host.binding_client import CancelReason
from asched.daemon.telemetry.scheduler_metrics import AttemptResult, SchedulingMetrics
from asched.daemon.telemetry.stopwatch import BindingStopwatch, CycleStopwatch
from asched.framework.pod_info import PodInfo, QueuedPod
from asched.framework.runtime.profile import Profile
from asched.framework.volumes import mounts_claims
from asched.kube.client import ApiClient
from asched.kube.extenders import HttpExtender
from asched.kube.volume_writers import VolumeWriter
from asched.kube.writers import BoundElsewhere, PodWriter
from asched.model.node import Node
from asched.model.quantity import NS_PER_S
from asched.state.cluster import ClusterState, PodEntry, PodPhase
from asched.state.records import BindFailed, Bound

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


class Bindings:
    """Binds pods to the nodes they were assigned to. Outcomes are reported as records."""

    def __init__(
        self,
        context: EffectContext,
        client: ApiClient,
        bound: Callable[[PodInfo, str], None],
        metrics: SchedulingMetrics,
        limits: PluginLimits,
        extenders: Sequence[HttpExtender],
        stopwatch: CycleStopwatch | None,
    ) -> None:
        """``bound`` is told of a pod that was bound, and where to, before that is reported.
        ``extenders`` are those of the recorded configuration, in its order. ``stopwatch`` takes the
        time of some binding cycles."""
        self.extenders = extenders
        self.taken: set[str] = set()
        """Uids of pods that somebody else bound, until the failed binding is in the journal."""
        self._cluster = context.cluster
        self._writer = PodWriter(client)
        self._volumes = VolumeWriter(client)
        self._clock = context.clock
        self._lanes = context.lanes
        self._pauses = context.pauses
        self._backoff = context.backoff
        self._report = context.report
        self._bound = bound
        self._metrics = metrics
        self._limits = limits
        self._stopwatch = stopwatch
        self.waiting_outside = 0
        """Pods whose bindings under way wait for a plugin that may take long, or for what may still
        arrive at the API server, or that an extender is to bind. Each counts once, whatever it waits for."""
        self._work: dict[str, BindingPluginCalls] = {}
        """What plugins do for bindings under way, by the pod's uid: lanes are by uid as well, so the
        binding of a pod that is gone may not have ended when that of its namesake begins."""
        self._ended: CancelReason | None = None
        """How it was ended: a binding may begin after that, for what was decided before."""
        self.left_in_doubt = False
        """Whether one was left by a stop though what it had sent may still arrive."""

    def begin_if_due(self, entry: PodEntry, *, perhaps_begun: bool = False) -> None:
        """Bind the pod, in its lane, if it has a node and nobody has it wait. ``perhaps_begun``: an
        earlier process may have sent the binding."""
        if entry.phase is PodPhase.ASSUMED and entry.info.key not in self._cluster.waiting:
            queued = self._cluster.queue.known(entry.info.key)
            now_s = self._clock.monotonic_s()
            begun_s = now_s if perhaps_begun else None
            bind = partial(self._run, entry.info, entry.node, queued, now_s, begun_s)
            self._lanes.submit(entry.info.uid, "bind", bind)

    def forget(self, uid: str) -> None:
        """That pod is gone: what plugins do for it is cancelled."""
        work = self._work.get(uid)
        if work is not None:
            work.cancel(CancelReason.POD_GONE)

    def end(self, why: CancelReason) -> None:
        """What plugins do is cancelled, also for bindings that begin later; where leadership was lost,
        none begins any more."""
        if self._ended is not CancelReason.LEADERSHIP_LOST:  # this process does not lead again
            self._ended = why
        for work in self._work.values():
            work.cancel(why)

    async def _run(
        self,
        info: PodInfo,
        node_name: str,
        queued: QueuedPod | None,
        decided_at_s: float,
        perhaps_begun_s: float | None,
    ) -> None:
        """``queued`` is what the queue knew of the pod; None for one that a session placed."""
        if self._ended is CancelReason.LEADERSHIP_LOST:
            return
        entry = self._cluster.entry(info.key, info.uid)
        if entry is None or entry.phase is not PodPhase.ASSUMED or entry.node != node_name:
            return  # gone, bound or given up while this waited in its lane
        name = info.pod.spec.scheduler_name
        profile = self._cluster.profiles.get(name)
        if profile is not None:
            profile = self._cluster.circuits.in_force(profile)
        waiting = _CountedOnce(self._wait_outside)
        binder = self.binder(perhaps_begun_s, waiting)
        # Both can only be missing for what was decided before a restart, or has waited in its lane.
        served = is_served(self._cluster, name)
        if not served or not self._node_exists(node_name):
            missing = f"node {node_name}" if served else f"profile {name}"
            why = f"{missing} is gone since the pod was assigned"
            outcome = await given_up(binder, info, node_name, why)
        else:
            watch = None
            if queued is not None and self._stopwatch is not None:
                watch = self._stopwatch.binding(info, queued.attempts)
            outcome = await self._bind(profile, binder, info, node_name, waiting, watch)
            if watch is not None:
                watch.end()
        if outcome is not None:
            self._ended_with(outcome, binder, queued, info, decided_at_s)
        else:
            self.left_in_doubt |= binder.in_doubt

    def binder(
        self, perhaps_begun_s: float | None, waiting: Callable[[int], None] | None = None
    ) -> BindReconciler:
        """For one binding. ``waiting`` is told 1 and -1 where it begins and ends to wait for what may
        still arrive; by default that is no load."""
        return BindReconciler(
            self._writer, self._volumes, self._pauses, self._clock, self._backoff(),
            self._node_exists, perhaps_begun_s, waiting or self._wait_outside,
        )  # fmt: skip

    def _ended_with(
        self,
        outcome: Bound | BindFailed,
        binder: BindReconciler,
        queued: QueuedPod | None,
        info: PodInfo,
        decided_at_s: float,
    ) -> None:
        """Tell everybody what the binding came to."""
        result = AttemptResult.SCHEDULED
        if isinstance(outcome, BindFailed):
            result = AttemptResult.ERROR
            log.warning(
                "binding failed", pod=info.key, node=outcome.node, plugin=outcome.plugin,
                error=outcome.message,
            )  # fmt: skip
            if isinstance(binder.fate, BoundElsewhere):
                self.taken.add(info.uid)
        else:
            self._bound(info, outcome.node)
            if queued is not None and queued.entered_at_ns is not None:
                waited_s = self._clock.utc().timestamp() - queued.entered_at_ns / NS_PER_S
                self._metrics.scheduled(queued.attempts, waited_s)
        name = info.pod.spec.scheduler_name
        self._metrics.attempt_ended(result, name, self._clock.monotonic_s() - decided_at_s)
        self._report(outcome)

    async def _bind(
        self,
        profile: Profile | None,
        binder: BindReconciler,
        info: PodInfo,
        node_name: str,
        waiting: Callable[[int], None],
        watch: BindingStopwatch | None,
    ) -> Bound | BindFailed | None:
        """How the binding ended; None if it was abandoned."""
        if profile is None and mounts_claims(info.pod):
            # What a session set aside for it is bound first.
            profile = self._cluster.binding_profile(info.pod.spec.scheduler_name)
        if profile is None:
            return await plain_binding(binder, info, node_name)
        binders = self._binders(info)
        work = self._work[info.uid] = BindingPluginCalls(self._limits, waiting, watch)
        if self._ended is not None:
            work.cancel(self._ended)
        waiting(len(binders))
        try:
            return await binding_cycle(profile, binder, info, node_name, binders, work)
        finally:
            waiting(-len(binders))
            del self._work[info.uid]

    def _wait_outside(self, pods: int) -> None:
        self.waiting_outside += pods

    def _binders(self, info: PodInfo) -> list[HttpExtender]:
        """The extenders that are to bind the pod in place of Bind plugins."""
        return [
            extender
            for spec, extender in zip(self._cluster.extenders, self.extenders, strict=True)
            if spec.bind_verb and spec.is_interested_in(info)
        ]

    def _node_exists(self, name: str) -> bool:
        return name in self._cluster.objects(Node)


class _CountedOnce:
    """Of one pod: counts it from the first thing that it waits for to the last."""

    __slots__ = ("_count", "_things")

    def __init__(self, count: Callable[[int], None]) -> None:
        self._count = count
        self._things = 0

    def __call__(self, change: int) -> None:
        waited = bool(self._things)
        self._things += change
        self._count(bool(self._things) - waited)


def is_served(cluster: ClusterState, scheduler_name: str) -> bool:
    """Whether pods of that scheduler name are ours, by profile or by session."""
    return scheduler_name in cluster.profiles or scheduler_name in cluster.sessions
