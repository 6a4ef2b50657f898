"""The binding cycle: PreBind, Bind and PostBind of a pod, concurrent with later decisions."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import cached_property, partial
from typing import NamedTuple

import structlog

from asched.daemon.effects.per_pod_queue import EffectContext
from asched.daemon.effects.reconciler import (
    AbandonedError,
    BindHealth,
    BindingIO,
    BindReconciler,
    WriterCheck,
)
from asched.daemon.plugin_host.binding_calls import BindingPluginCalls, CancelReason
from asched.daemon.telemetry.scheduler_metrics import AttemptResult
from asched.framework.binding import BindingClient
from asched.framework.interface import BindPlugin, PostBindPlugin, PreBindPlugin
from asched.framework.pod_info import PodInfo, QueuedPod
from asched.framework.runtime.observation import FAILURES, failure_reason, to_printable
from asched.framework.runtime.profile import Profile
from asched.framework.status import SUCCESS, Code, Status
from asched.framework.volumes import mounts_claims
from asched.kube.claim_writer import ClaimWriter
from asched.kube.extenders import HttpExtender, kept_open
from asched.kube.pod_writer import PodWriter
from asched.kube.volume_writer import VolumeWriter
from asched.kube.write_outcomes import BoundElsewhere, WriteSucceeded
from asched.model.node import Node
from asched.model.quantity import NS_PER_S
from asched.model.resource_claims import ResourceClaim
from asched.state.cluster import ClusterState, PlacementState, PodEntry
from asched.state.records import BindFailed, Bound

PREVIOUS_TERM = "decided in a previous term of leadership, and abandoned"

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


class BindHandler:
    """Binds assumed pods to their nodes and reports ``Bound`` or ``BindFailed``."""

    def __init__(
        self,
        context: EffectContext,
        bound: Callable[[PodInfo, str], None],
        expect: Callable[[PodInfo, str], Awaitable[None]],
    ) -> None:
        """``bound`` is called with a pod and its node before a successful binding is reported.
        ``expect`` nominates a pod to its node before PreBind."""
        services = context.services
        self.extenders = services.extenders
        """Extenders of the recorded configuration, in its order."""
        self.waiting_outside = 0
        """Pods with a binding that waits for a slow plugin, an extender, or an unanswered request.
        They do not count as load."""
        self.has_unresolved = False
        """Whether the stop abandoned a binding that may still reach the API server."""
        self._context = context
        self._cluster = context.cluster
        self.health = BindHealth(context.clock)
        self._io = BindingIO(
            writer=PodWriter(services.client),
            volumes=VolumeWriter(services.client),
            claims=ClaimWriter(services.client, self._shown_claim, WriterCheck(context)),
            sleep=context.sleep,
            clock=context.clock,
            node_exists=self._node_exists,
            health=self.health,
        )
        self._limits = services.plugins.limits
        self._metrics = services.metrics.scheduling
        self._stopwatch = services.stopwatch
        self._bound = bound
        self._expect = expect
        self._expected_failures: set[str] = set()
        """UIDs of pods that need no condition for their ``BindFailed``: bound by another scheduler,
        or decided in a previous term."""
        self._calls: dict[str, BindingPluginCalls] = {}
        """Plugin calls in flight by UID, because a pod of the same name may be bound meanwhile."""
        self._cancelled: CancelReason | None = None

    def start(self, entry: PodEntry, *, possibly_sent: bool = False) -> None:
        """Start the binding cycle if the pod is assumed and does not wait on Permit.
        ``possibly_sent``: a previous process may have sent the binding."""
        if (
            entry.placement_state is not PlacementState.ASSUMED
            or entry.info.key in self._cluster.waiting
        ):
            return
        now_s = self._context.clock.monotonic_s()
        queued = self._cluster.queue.find_queued_or_in_flight(entry.info.key)
        binding = _StartedBinding(
            entry.info, entry.node, queued, now_s, now_s if possibly_sent else None
        )
        self._context.queue.submit(entry.info.uid, "bind", partial(self._run, binding))

    def resume(self) -> None:
        """Restart the bindings that were decided before this process started."""
        self._end_unfinished()
        for entry in self._cluster.pods.values():
            self.start(entry, possibly_sent=True)

    def _end_unfinished(self, uid: str = "") -> None:
        """Report the end of bindings that never began here, of pods that were deleted or bound
        elsewhere: of that pod, or all."""
        for entry in self._cluster.reserve_calls.unfinished.values():
            pod = entry.info
            if uid in ("", pod.uid):
                message = "the pod was deleted or bound elsewhere before its binding began"
                failed = BindFailed(pod.key, pod.uid, entry.node, Code.ERROR, message=message)
                self._context.report(failed)

    def abandon_previous_term(self) -> None:
        """Fail what a previous term of this replica decided. Another leader may have used the
        capacity.

        A pod that waits on Permit fails at once, because its binding was never sent. Any other
        binding may still arrive, so its pod keeps the node until the outcome is known. Nothing is
        written.
        """
        self._end_unfinished()
        assumed = [
            e for e in self._cluster.pods.values() if e.placement_state is PlacementState.ASSUMED
        ]
        now_s, held = self._context.clock.monotonic_s(), self._cluster.waiting.keys()
        for entry in assumed:
            pod, node = entry.info, entry.node
            self._expected_failures.add(pod.uid)
            if pod.key in held:
                failed = BindFailed(pod.key, pod.uid, node, Code.ERROR, message=PREVIOUS_TERM)
                self._context.report(failed)
                continue
            backoff = self._context.services.backoff()
            reconciler = BindReconciler(self._io, backoff, now_s, self._wait_outside)
            resolve = partial(self._resolve, reconciler, pod, node)
            self._context.queue.submit(pod.uid, "resolve", resolve)
        if assumed:
            log.info("bindings of a previous term abandoned", bindings=len(assumed))

    def cancel_calls(self, uid: str) -> None:
        """The pod was deleted: cancel its plugin calls."""
        calls = self._calls.get(uid)
        if calls is not None:
            calls.cancel(CancelReason.POD_GONE)

    def cancel(self, reason: CancelReason) -> None:
        """Cancel present and later plugin calls. Without leadership no binding starts."""
        if self._cancelled is not CancelReason.LEADERSHIP_LOST:  # this process does not lead again
            self._cancelled = reason
        for calls in self._calls.values():
            calls.cancel(reason)

    def is_expected(self, failure: BindFailed) -> bool:
        """Whether the failure needs no condition on the pod; asked once for each failure."""
        if failure.uid not in self._expected_failures:
            return False
        self._expected_failures.remove(failure.uid)
        return True

    async def _run(self, binding: _StartedBinding) -> None:
        info, node = binding.info, binding.node
        entry = self._cluster.entry(info.key, info.uid)
        if self._cancelled is CancelReason.LEADERSHIP_LOST:
            return
        assumed = entry is not None and entry.placement_state is PlacementState.ASSUMED
        if entry is None or not assumed or entry.node != node:
            # Deleted, bound or given up while this job waited.
            self._end_unfinished(info.uid)
            return
        name, waiting = info.pod.spec.scheduler_name, _CountedOnce(self._wait_outside)
        backoff = self._context.services.backoff()
        reconciler = BindReconciler(self._io, backoff, binding.possibly_sent_at_s, waiting)
        cycle = BindingCycle(self._profile(info), reconciler, info, node)
        if not is_served(self._cluster, name):
            outcome = await cycle.fail(f"profile {name} was removed after the pod was assigned")
        elif not self._node_exists(node):
            outcome = await cycle.fail(f"node {node} was removed after the pod was assigned")
        else:
            cycle.calls = self._begin_calls(binding, waiting)
            try:
                if cycle.pre_bind_plugins and self._nominates_first(binding, entry):
                    await self._expect(info, node)
                extenders = self._binding_extenders(info)
                waiting(len(extenders))
                with kept_open(extenders):
                    outcome = await cycle.run(extenders)
                waiting(-len(extenders))
            finally:
                del self._calls[info.uid]
                cycle.calls.end()
        if outcome is not None:
            self._report(binding, outcome, reconciler)
        else:
            self.has_unresolved |= reconciler.unresolved

    def _nominates_first(self, binding: _StartedBinding, entry: PodEntry) -> bool:
        """Whether a pod with PreBind work is nominated to its node first. A binding of a previous
        process may have been sent, and a bound pod has no nomination."""
        return (
            self._cluster.plugin_context.feature_gates.nominated_node_name_for_expectation
            and binding.possibly_sent_at_s is None
            and entry.assignment is not None
            and not entry.assignment.session
        )

    def _begin_calls(
        self, binding: _StartedBinding, waiting: Callable[[int], None]
    ) -> BindingPluginCalls:
        """The plugin calls of the binding; cancelled with the handler."""
        info, queued, stopwatch = binding.info, binding.queued, None
        if queued is not None and self._stopwatch is not None:
            stopwatch = self._stopwatch.binding(info, queued.attempts)
        calls = self._calls[info.uid] = BindingPluginCalls(self._limits, waiting, stopwatch)
        if self._cancelled is not None:
            calls.cancel(self._cancelled)
        return calls

    async def _resolve(self, reconciler: BindReconciler, pod: PodInfo, node: str) -> None:
        outcome = await BindingCycle(None, reconciler, pod, node).fail(PREVIOUS_TERM)
        if outcome is not None:
            self._context.report(outcome)

    def _report(
        self, binding: _StartedBinding, outcome: Bound | BindFailed, reconciler: BindReconciler
    ) -> None:
        info, queued, clock = binding.info, binding.queued, self._context.clock
        result = AttemptResult.SCHEDULED
        if isinstance(outcome, BindFailed):
            result = AttemptResult.ERROR
            log.warning(
                "binding failed",
                pod=info.key,
                node=outcome.node,
                plugin=outcome.plugin,
                error=outcome.message,
            )
            if isinstance(reconciler.bind_result, BoundElsewhere):
                self._expected_failures.add(info.uid)
        else:
            self._bound(info, outcome.node)
            if queued is not None and queued.entered_at_ns is not None:
                waited_s = clock.utc().timestamp() - queued.entered_at_ns / NS_PER_S
                self._metrics.scheduled(queued.attempts, waited_s)
        name, duration_s = info.pod.spec.scheduler_name, clock.monotonic_s() - binding.started_at_s
        self._metrics.attempt_ended(result, name, duration_s)
        self._context.report(outcome)

    def _profile(self, info: PodInfo) -> Profile | None:
        """The profile that binds the pod; None if no plugin takes part."""
        name = info.pod.spec.scheduler_name
        profile = self._cluster.profiles.get(name)
        if profile is not None:
            return self._cluster.guards.circuits.in_force(profile)
        return (
            self._cluster.plugin_context.binding_profile(name) if mounts_claims(info.pod) else None
        )

    def _binding_extenders(self, info: PodInfo) -> list[HttpExtender]:
        """Extenders that bind the pod instead of the Bind plugins."""
        return [
            extender
            for spec, extender in zip(self._cluster.extenders, self.extenders, strict=True)
            if spec.bind_verb and spec.is_interested_in(info)
        ]

    def _wait_outside(self, pods: int) -> None:
        self.waiting_outside += pods

    def _shown_claim(self, key: str) -> ResourceClaim | None:
        return self._cluster.objects(ResourceClaim).get(key)

    def _node_exists(self, name: str) -> bool:
        return name in self._cluster.objects(Node)


class _StartedBinding(NamedTuple):
    """A binding that was started."""

    info: PodInfo
    node: str
    queued: QueuedPod | None
    """State of the pod in the queue; None for a pod that a batch session placed."""
    started_at_s: float
    possibly_sent_at_s: float | None


class BindingCycle:
    """One pod's binding cycle. Its outcome is None if the daemon abandons it."""

    def __init__(
        self, profile: Profile | None, reconciler: BindReconciler, pod: PodInfo, node_name: str
    ) -> None:
        """``profile`` None binds without plugins: a batch session placed the pod."""
        self.calls = BindingPluginCalls()
        self._profile = profile
        self._reconciler = reconciler
        self._pod = pod
        self._node_name = node_name
        self._to_undo: list[PreBindPlugin] = []

    @cached_property
    def pre_bind_plugins(self) -> Sequence[PreBindPlugin]:
        """The PreBind plugins that have work for the pod."""
        return [
            plugin
            for plugin in (self._profile.binding.pre_bind if self._profile else ())
            if _has_pre_bind_work(plugin, self._pod, self._node_name)
        ]

    async def run(self, extenders: Sequence[HttpExtender] = ()) -> Bound | BindFailed | None:
        """Run PreBind, Bind and PostBind. The first of ``extenders`` that does not fail, or is not
        ignorable, binds the pod; without one the Bind plugins do. Never raises for a plugin."""
        try:
            status = await self._pre_bind()
            if status.is_success:
                status = await self._bind_by_extender(extenders) or await self._bind()
            if not status.is_success:
                status = await self._reconciler.reconcile(self._pod, self._node_name, status)
                if isinstance(self._outcome(status), BindFailed):
                    await self._undo_pre_bind()
        except AbandonedError:
            return None
        outcome = self._outcome(status)
        if isinstance(outcome, Bound):
            await self._post_bind()
        return outcome

    async def fail(self, message: str) -> Bound | BindFailed | None:
        """Fail without writing anything, unless the pod turns out to be bound."""
        try:
            status = await self._reconciler.reconcile(
                self._pod, self._node_name, Status.error(message)
            )
        except AbandonedError:
            return None
        return self._outcome(status)

    def _outcome(self, status: Status) -> Bound | BindFailed:
        pod, node_name = self._pod, self._node_name
        # A pod that the API server bound is bound, whatever a plugin reports.
        if status.is_success or isinstance(self._reconciler.bind_result, WriteSucceeded):
            return Bound(pod.key, pod.uid, node_name)
        return BindFailed(pod.key, pod.uid, node_name, status.code, status.plugin, status.message)

    async def _pre_bind(self) -> Status:
        pod, node_name = self._pod, self._node_name
        for plugin in self.pre_bind_plugins:
            if type(plugin).undo_pre_bind is not PreBindPlugin.undo_pre_bind:
                self._to_undo.append(plugin)

            async def call(client: BindingClient, plugin: PreBindPlugin = plugin) -> object:
                return await plugin.pre_bind(client, pod, node_name)

            status = await self.calls.call(plugin, "PreBind", self._reconciler, call)
            if not status.is_success:
                return status
        return SUCCESS

    async def _undo_pre_bind(self) -> None:
        """Undo PreBind of the plugins that were called, the last one first."""
        pod, node_name = self._pod, self._node_name
        self.calls.begin_undo()
        for plugin in reversed(self._to_undo):

            async def call(client: BindingClient, plugin: PreBindPlugin = plugin) -> object:
                await plugin.undo_pre_bind(client, pod, node_name)
                return SUCCESS

            await self.calls.call(plugin, "PreBind", self._reconciler, call)

    async def _bind_by_extender(self, extenders: Sequence[HttpExtender]) -> Status | None:
        """Status of an extender's binding (``extendersBinding`` of kube-scheduler); None if the
        Bind plugins have to bind."""
        pod = self._pod
        if extenders and self.calls.deferred:  # an extender may take long, as a plugin
            raise AbandonedError
        for extender in extenders:
            status = await self._reconciler.bind_by(extender, pod, self._node_name)
            if status.is_success or not extender.config.ignorable:
                return status
            log.info("ignorable extender failed to bind", pod=pod.key, error=status.message)
        return None

    async def _bind(self) -> Status:
        pod, node_name = self._pod, self._node_name
        if self._profile is None:
            return await self._reconciler.bind(pod, node_name)
        for plugin in self._profile.binding.bind:

            async def call(client: BindingClient, plugin: BindPlugin = plugin) -> object:
                return await plugin.bind(client, pod, node_name)

            status = await self.calls.call(plugin, "Bind", self._reconciler, call)
            if self.calls.cancelled:
                self._reconciler.mark_unknown()  # it may have bound the pod in its own way
                return status
            if not status.is_skip:
                return status
        return Status.error("every Bind plugin answered Skip")

    async def _post_bind(self) -> None:
        pod, node_name = self._pod, self._node_name

        async def call(plugin: PostBindPlugin, client: BindingClient) -> Status:
            await plugin.post_bind(client, pod, node_name)
            return SUCCESS

        for plugin in self._profile.binding.post_bind if self._profile else ():
            status = await self.calls.call(
                plugin, "PostBind", self._reconciler, partial(call, plugin)
            )
            if not status.is_success:
                log.warning("PostBind failed", pod=pod.key, error=status.message)


def is_served(cluster: ClusterState, scheduler_name: str) -> bool:
    """Whether a profile or a batch session schedules pods of that scheduler name."""
    return scheduler_name in cluster.profiles or scheduler_name in cluster.sessions


class _CountedOnce:
    """Counts a pod once, from the first of its waits to the last."""

    __slots__ = ("_count", "_waits")

    def __init__(self, count: Callable[[int], None]) -> None:
        self._count = count
        self._waits = 0

    def __call__(self, change: int) -> None:
        waited = bool(self._waits)
        self._waits += change
        self._count(bool(self._waits) - waited)


def _has_pre_bind_work(plugin: PreBindPlugin, pod: PodInfo, node_name: str) -> bool:
    try:
        return bool(plugin.pre_bind_pre_flight(pod, node_name))
    except BaseException as error:  # noqa: BLE001  third-party code; it awaits nothing
        FAILURES.note(plugin.name, "PreBindPreFlight", failure_reason(error))
        log.warning(
            "PreBindPreFlight raised", pod=pod.key, plugin=plugin.name, error=to_printable(error)
        )
        return True  # its PreBind reports the fault
