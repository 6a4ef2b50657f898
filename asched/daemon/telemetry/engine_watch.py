"""Measures the engine's turns. A tenth of them is looked at more closely."""

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

_WATCHED_TURNS = 10
"""One turn in so many."""


class EngineWatch:
    """What the engine tells of itself."""

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
        self._hints = HintStopwatch(now_ns, cycles)
        self._turns = 0
        self._watching = False

    @contextmanager
    def turn(self) -> Iterator[None]:
        """The part of a turn that observes and decides."""
        self._turns += 1
        self._watching = self._turns % _WATCHED_TURNS == 0
        OBSERVATION.hints = self._hints if self._watching else None
        try:
            yield
        finally:
            self._watching, OBSERVATION.hints = False, None

    def observe(self, change: Change, observe: Callable[[Change], None]) -> None:
        """Have a change folded, which is timed in turns that are watched. A list is none of these
        events: it takes as many turns as it needs."""
        if not self._watching or isinstance(change, Listed):
            observe(change)
            return
        label, began_ns = self._label(change), self._now_ns()
        observe(change)
        self._cycles.event_handled(label, self._now_ns() - began_ns)

    def decided(self, decision: Decision) -> None:
        """A decision that is about to be folded."""
        match decision:
            case PermitAllowed() | PermitRejected():
                self._permit_ends(decision)
            case Rejected(session=0):
                profile = self._cluster.profiles.get(self._profile_of(decision))
                if profile is not None and profile.post_filter and self._cluster.nodes.cluster_size:
                    self._scheduling.preempted(len(decision.victims))

    def _permit_ends(self, decision: PermitAllowed | PermitRejected) -> None:
        held = self._cluster.waiting.get(decision.key)
        if held is None:
            return
        result = Code.UNSCHEDULABLE
        if isinstance(decision, PermitAllowed):
            if {*held.pending_until_ns} != {decision.plugin}:
                return  # another plugin holds it still
            result = Code.SUCCESS
        held_s = (self._cluster.now_ns - held.since_ns) / NS_PER_S
        self._scheduling.permit_ended(result.title, held_s)

    def _profile_of(self, decision: Rejected) -> str:
        return self._cluster.pods[decision.key].info.pod.spec.scheduler_name

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
            known = seen.key in cluster.objects_of.get(type(seen), {})
        if isinstance(change, Deleted):
            return f"{kind}Delete"
        return f"{kind}Update" if known else f"{kind}Add"
