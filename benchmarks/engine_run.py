"""One measured run of the decider: fold and decide as the engine does, without any I/O.

A turn takes what the API server said, folds it, decides for a number of pods, folds the decisions,
and hands them to a stand-in for the cluster, which answers in the next turn: the binding confirmed,
the pod shown again with its node, victims deleted. Time is the run's own, so that backoffs end.
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
from benchmarks import api_texts
from benchmarks.api_texts import Pod
from benchmarks.kinds import Kind

NODES_OF_PROPORTIONS = 5_000
"""What :attr:`Kind.placed_pods` refers to."""
HOPELESS_EVERY = 10
_TURN_NS = 50_000_000
_DECISIONS_A_TURN = 200
_START_NS = 1_790_000_000_000_000_000
_MOST_ATTEMPTS = 20
"""So many decisions for each pod end a run: something can never be placed."""


class Costs(msgspec.Struct):
    """CPU time of this process, in nanoseconds, and what it was spent on."""

    decode_ns: int = 0
    """From the bytes of watch events to objects. Not part of :attr:`total_ns`."""
    observe_ns: int = 0
    """From objects and outcomes to records, and folding those."""
    assign_ns: int = 0
    """Deciding, where a node was found."""
    reject_ns: int = 0
    """Deciding, where none was."""
    fold_ns: int = 0
    """Folding the decisions."""
    assigned: int = 0
    rejected: int = 0

    @property
    def total_ns(self) -> int:
        return self.observe_ns + self.assign_ns + self.reject_ns + self.fold_ns


class Workload(NamedTuple):
    """A kind of pods in a cluster of a size."""

    kind: Kind
    nodes: int
    pods: int
    shapes: int = 1
    """Distinct templates among the pods to place."""


class StuckError(RuntimeError):
    """Pods are left that will never be placed."""


class Run:
    """A cluster in the state before the measurement, and the pods to place."""

    def __init__(self, workload: Workload, *, watched: bool = False) -> None:
        """``watched``: with the daemon's stopwatch on a tenth of the attempts."""
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
        self._observe((_PLURALS[plural], text) for plural, text in api_texts.others(kind))
        self._observe((Resource.NODES, text) for text in api_texts.nodes(kind, workload.nodes))
        self._place(workload)
        self._to_place = list(_measured_pods(workload))

    def measure(self) -> Costs:
        """Place all pods. Raises :class:`StuckError` where that cannot be done."""
        hopeless = 0
        for pod in self._to_place:
            self._pods[pod.ref.key] = pod
            self._changes.append((Resource.PODS, pod.pending))
            if pod.ref.key.rpartition("/")[2].startswith("hopeless"):
                hopeless += 1
            else:
                self._left.add(pod.ref.key)
        self.costs = Costs()
        while self._left or self.costs.rejected < hopeless:
            self._turn()
            if self.costs.rejected > _MOST_ATTEMPTS * len(self._to_place):
                raise StuckError(f"{len(self._left)} pods were not placed")
        self._turn()
        return self.costs

    # -- before the measurement ---------------------------------------------------------------

    def _place(self, workload: Workload) -> None:
        """Pods that are on nodes when the measurement begins, in turn, as a scheduler spreads them."""
        kind, names = workload.kind, self._state.nodes.names
        count = kind.placed_pods * workload.nodes // NODES_OF_PROPORTIONS
        namespaces = kind.placed_namespaces
        placed = kind.placed or kind.measured
        for number, pod in enumerate(
            api_texts.pods(placed, count, prefix="placed", namespaces=namespaces)
        ):
            self._pods[pod.ref.key] = pod
            node = names[number % workload.nodes]
            self._observe([(Resource.PODS, pod.text.bound(pod, node))])

    # -- a turn -------------------------------------------------------------------------------

    def _turn(self) -> None:
        self._now_ns = self._next_ns()
        costs, began_ns = self.costs, _cpu_ns()
        self._begin_turn()
        costs.observe_ns += _cpu_ns() - began_ns
        # As in the daemon: changes of the watches first, then outcomes.
        changes = [*self._changes]
        self._changes.clear()
        self._observe(changes)
        began_ns = _cpu_ns()
        while self._outcomes:
            self._core.outcome(self._outcomes.popleft())
        self._core.record_unconfirmed()
        while self._deleted:
            self._core.observe(Deleted(Resource.PODS, self._deleted.popleft()))
        costs.observe_ns += _cpu_ns() - began_ns
        self._decide()

    def _next_ns(self) -> int:
        """The present, or when the next backoff ends where there is nothing else to do."""
        due_ns = None
        if not (self._changes or self._outcomes or self._deleted or self._state.queue.head()):
            due_ns = self._state.queue.next_timer_ns()
        return max(due_ns or 0, self._now_ns + _TURN_NS)

    def _observe(self, changes: Iterable[tuple[Resource, bytes]]) -> None:
        # All are decoded first, as the daemon does: to look at the clock for each would cost as much
        # as some of what is measured.
        costs, began_ns = self.costs, _cpu_ns()
        seen = [
            Upserted(resource, decode(resource, text))  # type: ignore[arg-type]
            for resource, text in changes
        ]
        decoded_ns = _cpu_ns()
        for change in seen:
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
                self._carry_out(decision)
        if self._stopwatch is not None:
            began_ns = _cpu_ns()
            self._stopwatch.committed((), 0)
            costs.fold_ns += _cpu_ns() - began_ns

    def _begin_turn(self) -> None:
        self._core.take_records()
        self._core.begin_turn(self._now_ns)
        self._core.record_turn()

    # -- the cluster's part -------------------------------------------------------------------

    def _carry_out(self, decision: Decision) -> None:
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
                refused = pod.text.refused(pod, decision.message, nominated)
                self._changes.append((Resource.PODS, refused))
                for victim in decision.victims:
                    self._outcomes.append(EvictionSucceeded(victim.key, victim.uid))
                    self._deleted.append(self._state.pods[victim.key].info.pod)
            case _:
                raise StuckError(f"not expected here: {decision}")


def _measured_pods(workload: Workload) -> Iterator[Pod]:
    kind, count = workload.kind, workload.pods
    hopeless: Iterator[Pod] = iter(())
    if kind.hopeless is not None:
        hopeless = api_texts.pods(kind.hopeless, count // HOPELESS_EVERY, prefix="hopeless")
        count -= count // HOPELESS_EVERY
    for number, pod in enumerate(
        api_texts.pods(kind.measured, count, prefix="measured", shapes=workload.shapes)
    ):
        if number % (HOPELESS_EVERY - 1) == 0:
            yield from _at_most_one(hopeless)
        yield pod


def _at_most_one(pods: Iterator[Pod]) -> Iterator[Pod]:
    for pod in pods:
        yield pod
        return


def pods_of(kind: Kind, nodes: int, asked: int | None) -> int:
    """How many pods to place: as many as asked for, or as are usual, and as have room."""
    usual = nodes if kind.one_each else kind.pods
    free = nodes - kind.placed_pods * nodes // NODES_OF_PROPORTIONS
    return min(asked or usual, free) if kind.exclusive else asked or usual


_cpu_ns: Callable[[], int] = time.process_time_ns
_PLURALS = {resource.plural: resource for resource in Resource}


@cache
def _installed() -> PluginRegistry:
    return PluginRegistry.discover()


@cache
def _default_profiles() -> tuple[ProfileSpec, ...]:
    return resolve(KubeSchedulerConfiguration(), _installed())
