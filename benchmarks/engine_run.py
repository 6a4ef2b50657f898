"""One measured run of the scheduler core: fold and decide as in the engine, without I/O.

A turn observes changes, decides for a number of pods, and folds the decisions. A simulated cluster
answers in the next turn: it confirms bindings, updates pods, and deletes victims. Time is virtual,
so backoffs end.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from typing import NamedTuple

import msgspec
from prometheus_client import CollectorRegistry

from asched.config.kube_scheduler import KubeSchedulerConfiguration
from asched.config.registry import PluginRegistry
from asched.config.resolve import resolve
from asched.core.inputs import Deleted, Outcome, Upserted
from asched.core.scheduler import SchedulerCore
from asched.daemon.telemetry.scheduler_metrics import CycleMetrics
from asched.daemon.telemetry.stopwatch import CycleStopwatch
from asched.framework.runtime.profile import ProfileSpec
from asched.model.resources import AnyObject, Resource, decode
from asched.state.cluster import ClusterState
from asched.state.fold import Fold
from asched.state.records import (
    Assigned,
    Bound,
    Decision,
    EngineStarted,
    EvictionSucceeded,
    ProfilesLoaded,
    Rejected,
)
from benchmarks import api_json
from benchmarks.api_json import Pod
from benchmarks.kinds import Kind

NODES_OF_PROPORTIONS = 5_000
"""Number of nodes that :attr:`Kind.placed_pods` refers to."""
UNSCHEDULABLE_EVERY = 10
_TURN_NS = 50_000_000
_DECISIONS_A_TURN = 200
_START_NS = 1_790_000_000_000_000_000
_MAX_ATTEMPTS = 20
"""Rejections per pod after which a run fails: a pod can never be scheduled."""


class Costs(msgspec.Struct):
    """CPU time of this process by activity, in nanoseconds."""

    decode_ns: int = 0
    """Decoding watch events. Not part of :attr:`total_ns`."""
    observe_ns: int = 0
    """Deriving records from objects and outcomes, and folding them."""
    assign_ns: int = 0
    """Deciding, when a node was found."""
    reject_ns: int = 0
    """Deciding, when no node was found."""
    fold_ns: int = 0
    """Folding the decisions."""
    assigned: int = 0
    rejected: int = 0

    @property
    def total_ns(self) -> int:
        return self.observe_ns + self.assign_ns + self.reject_ns + self.fold_ns


class Workload(NamedTuple):
    """A kind of pods and the size of the cluster."""

    kind: Kind
    nodes: int
    pods: int
    shapes: int = 1
    """Distinct templates among the pods to schedule."""


class StuckError(RuntimeError):
    """Some pods can never be scheduled."""


class Run:
    """A cluster before the measurement, and the pods to schedule."""

    def __init__(self, workload: Workload, *, watched: bool = False) -> None:
        """``watched``: time a tenth of the attempts, as the daemon does."""
        kind = workload.kind
        self.costs = Costs()
        sinks = [CycleMetrics(CollectorRegistry())] if watched else []
        self._stopwatch = CycleStopwatch(time.monotonic_ns, sinks) if watched else None
        fold = Fold(ClusterState(), _installed().load)
        self._core = SchedulerCore(fold, observer=self._stopwatch)
        self._state = self._core.state
        self._now_ns = _START_NS
        self._pods: dict[str, Pod] = {}
        self._changes: deque[tuple[Resource, bytes]] = deque()
        self._outcomes: deque[Outcome] = deque()
        self._deleted: deque[AnyObject] = deque()
        self._left: set[str] = set()
        self._begin_turn()
        self._core.apply(EngineStarted("benchmark", 0))
        self._core.apply(ProfilesLoaded(_default_profiles()))
        self._observe((_PLURALS[plural], text) for plural, text in api_json.other_objects(kind))
        self._observe((Resource.NODES, text) for text in api_json.nodes(kind, workload.nodes))
        self._place(workload)
        self._to_schedule = list(_measured_pods(workload))

    def measure(self) -> Costs:
        """Schedule all pods. Raises :class:`StuckError` if some can never be scheduled."""
        unschedulable = 0
        for pod in self._to_schedule:
            self._pods[pod.ref.key] = pod
            self._changes.append((Resource.PODS, pod.pending))
            if pod.ref.key.rpartition("/")[2].startswith("unschedulable"):
                unschedulable += 1
            else:
                self._left.add(pod.ref.key)
        self.costs = Costs()
        while self._left or self.costs.rejected < unschedulable:
            self._turn()
            if self.costs.rejected > _MAX_ATTEMPTS * len(self._to_schedule):
                raise StuckError(f"{len(self._left)} pods were not placed")
        self._turn()
        return self.costs

    # -- before the measurement ---------------------------------------------------------------

    def _place(self, workload: Workload) -> None:
        """Add the pods that are bound when the measurement begins, round-robin over the nodes."""
        kind, names = workload.kind, self._state.nodes.names
        count = kind.placed_pods * workload.nodes // NODES_OF_PROPORTIONS
        namespaces = kind.placed_namespaces
        placed = kind.placed or kind.measured
        for number, pod in enumerate(
            api_json.pods(placed, count, prefix="placed", namespaces=namespaces)
        ):
            self._pods[pod.ref.key] = pod
            node = names[number % workload.nodes]
            self._observe([(Resource.PODS, pod.text.bound(pod, node))])

    # -- turns --------------------------------------------------------------------------------

    def _turn(self) -> None:
        self._now_ns = self._next_ns()
        costs, began_ns = self.costs, _cpu_ns()
        self._begin_turn()
        costs.observe_ns += _cpu_ns() - began_ns
        # Changes before outcomes, as in the daemon.
        changes = [*self._changes]
        self._changes.clear()
        self._observe(changes)
        began_ns = _cpu_ns()
        while self._outcomes:
            self._core.handle_outcome(self._outcomes.popleft())
        self._core.record_unconfirmed()
        while self._deleted:
            self._core.observe(Deleted(Resource.PODS, self._deleted.popleft()))
        costs.observe_ns += _cpu_ns() - began_ns
        self._decide()

    def _next_ns(self) -> int:
        """The time of the next turn, or the end of the next backoff if nothing else is left."""
        due_ns = None
        if not (self._changes or self._outcomes or self._deleted or self._state.queue.head()):
            due_ns = self._state.queue.next_timer_ns()
        return max(due_ns or 0, self._now_ns + _TURN_NS)

    def _observe(self, changes: Iterable[tuple[Resource, bytes]]) -> None:
        # Decode all first, as the daemon does: reading the clock for each change would distort
        # the measurement.
        costs, began_ns = self.costs, _cpu_ns()
        changed = [
            Upserted(resource, decode(resource, text))  # type: ignore[arg-type]
            for resource, text in changes
        ]
        decoded_ns = _cpu_ns()
        for change in changed:
            self._core.observe(change)
        costs.observe_ns += _cpu_ns() - decoded_ns
        costs.decode_ns += decoded_ns - began_ns

    def _decide(self) -> None:
        costs, made = self.costs, 0
        while made < _DECISIONS_A_TURN:
            began_ns = _cpu_ns()
            decisions = self._core.propose()
            decided_ns = _cpu_ns()
            for decision in decisions:
                self._core.apply(decision)
            folded_ns = _cpu_ns()
            if not decisions:
                break
            made += len(decisions)
            costs.fold_ns += folded_ns - decided_ns
            if isinstance(decisions[0], Assigned):
                costs.assign_ns += decided_ns - began_ns
            else:
                costs.reject_ns += decided_ns - began_ns
            for decision in decisions:
                self._execute(decision)
        if self._stopwatch is not None:
            began_ns = _cpu_ns()
            self._stopwatch.committed((), 0)
            costs.fold_ns += _cpu_ns() - began_ns

    def _begin_turn(self) -> None:
        self._core.take_records()
        self._core.begin_turn(self._now_ns)
        self._core.record_turn()

    # -- the simulated cluster ----------------------------------------------------------------

    def _execute(self, decision: Decision) -> None:
        match decision:
            case Assigned():
                pod = self._pods[decision.key]
                self.costs.assigned += 1
                self._left.discard(decision.key)
                self._outcomes.append(Bound(decision.key, decision.uid, decision.node))
                self._changes.append((Resource.PODS, pod.text.bound(pod, decision.node)))
            case Rejected():
                pod = self._pods[decision.key]
                self.costs.rejected += 1
                nominated = decision.nominated_node or ""
                rejected = pod.text.rejected(pod, decision.message, nominated)
                self._changes.append((Resource.PODS, rejected))
                for victim in decision.victims:
                    self._outcomes.append(EvictionSucceeded(victim.key, victim.uid))
                    self._deleted.append(self._state.pods[victim.key].info.pod)
            case _:
                raise StuckError(f"unexpected decision: {decision}")


def _measured_pods(workload: Workload) -> Iterator[Pod]:
    kind, count = workload.kind, workload.pods
    unschedulable: Iterator[Pod] = iter(())
    if kind.unschedulable is not None:
        unschedulable = api_json.pods(
            kind.unschedulable, count // UNSCHEDULABLE_EVERY, prefix="unschedulable"
        )
        count -= count // UNSCHEDULABLE_EVERY
    for number, pod in enumerate(
        api_json.pods(kind.measured, count, prefix="measured", shapes=workload.shapes)
    ):
        if number % (UNSCHEDULABLE_EVERY - 1) == 0:
            yield from _take_one(unschedulable)
        yield pod


def _take_one(pods: Iterator[Pod]) -> Iterator[Pod]:
    for pod in pods:
        yield pod
        return


def pods_of(kind: Kind, nodes: int, requested: int | None) -> int:
    """The number of pods to schedule: ``requested``, or the kind's default, limited by capacity."""
    wanted = requested or (nodes if kind.one_per_node else kind.pods)
    free = nodes - kind.placed_pods * nodes // NODES_OF_PROPORTIONS
    return min(wanted, free) if kind.exclusive else wanted


_cpu_ns: Callable[[], int] = time.process_time_ns
_PLURALS = {resource.plural: resource for resource in Resource}


@cache
def _installed() -> PluginRegistry:
    return PluginRegistry.discover()


@cache
def _default_profiles() -> tuple[ProfileSpec, ...]:
    return resolve(KubeSchedulerConfiguration(), _installed())
