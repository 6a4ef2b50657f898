"""Measures the engine's turns; a tenth of them in detail."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from asched.core.inputs import Change, Deleted, Listed
from asched.daemon.telemetry.scheduler_metrics import CycleMetrics, SchedulingMetrics
from asched.daemon.telemetry.stopwatch import HintStopwatch, MonotonicNs
from asched.framework.runtime.observation import OBSERVATION
from asched.framework.status import Code
from asched.model.pod import Pod
from asched.model.quantity import NS_PER_S
from asched.state.cluster import ClusterState
from asched.state.cluster_events import EVENT_RESOURCES
from asched.state.records import Decision, PermitAllowed, PermitRejected, Rejected

_SAMPLED_TURNS = 10
"""One turn in this many is measured in detail."""


class EngineObserver:
    """Turns what happens in the engine into metrics."""

    def __init__(
        self,
        cluster: ClusterState,
        now_ns: MonotonicNs,
        cycles: CycleMetrics,
        scheduling: SchedulingMetrics,
    ) -> None:
        self._cluster = cluster
        self._now_ns = now_ns
        self._cycles = cycles
        self._scheduling = scheduling
        self._hints = HintStopwatch(now_ns, cycles.hint)
        self._turns = 0
        self._sampled = False

    @contextmanager
    def turn(self) -> Iterator[None]:
        """The part of a turn that observes and decides."""
        self._turns += 1
        self._sampled = self._turns % _SAMPLED_TURNS == 0
        OBSERVATION.hints = self._hints if self._sampled else None
        try:
            yield
        finally:
            self._sampled, OBSERVATION.hints = False, None

    def observe(self, change: Change, observe: Callable[[Change], None]) -> None:
        """Call ``observe``, and time it in a sampled turn. Lists are not timed: they are no events,
        and may take several turns."""
        if not self._sampled or isinstance(change, Listed):
            observe(change)
            return
        label, began_ns = self._label(change), self._now_ns()
        observe(change)
        self._cycles.event_handled(label, self._now_ns() - began_ns)

    def decided(self, decision: Decision) -> None:
        """A decision is about to be folded."""
        match decision:
            case PermitAllowed() | PermitRejected():
                self._permit_ends(decision)
            case Rejected(session=0):
                pod = self._cluster.pods[decision.key].info.pod
                profile = self._cluster.profiles.get(pod.spec.scheduler_name)
                if profile is not None and profile.post_filter and self._cluster.nodes.cluster_size:
                    self._scheduling.preempted(len(decision.victims))

    def _permit_ends(self, decision: PermitAllowed | PermitRejected) -> None:
        waiting = self._cluster.waiting.get(decision.key)
        if waiting is None:
            return
        result = Code.UNSCHEDULABLE
        if isinstance(decision, PermitAllowed):
            if {*waiting.pending_until_ns} != {decision.plugin}:
                return  # other plugins have not allowed it yet
            result = Code.SUCCESS
        waited_s = (self._cluster.now_ns - waiting.since_ns) / NS_PER_S
        self._scheduling.permit_ended(result.title, waited_s)

    def _label(self, change: Change) -> str:
        """Such as ``NodeAdd`` or ``AssignedPodDelete``."""
        assert not isinstance(change, Listed), "a list is no event"
        seen, cluster = change.object, self._cluster
        if isinstance(seen, Pod):
            kind = "AssignedPod" if seen.node_name else "UnscheduledPod"
            known = seen.key in cluster.pods
        else:
            resource = EVENT_RESOURCES.get(type(seen))
            kind = type(seen).__name__ if resource is None else resource.value
            known = seen.key in cluster.object_store.of_kind(type(seen))
        if isinstance(change, Deleted):
            return f"{kind}Delete"
        return f"{kind}Update" if known else f"{kind}Add"
