"""How far the placements of a moment are from the best possible ones."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import NamedTuple

import msgspec

from asched.audit.lookup import state_at
from asched.audit.timeline import time_of
from asched.framework.runtime.profile import PluginLoader
from asched.journal.store import JournalStore
from asched.model.node import Node
from asched.model.pod import Pod
from asched.model.requests import PODS
from asched.planning.bounds import (
    ProvenBound,
    ProvenCost,
    least_cost,
    least_nodes,
    most_of,
    most_pods,
)
from asched.planning.packing import PackingProblem, packing_problem
from asched.pricing.costs import HourlyCosts, hourly_costs
from asched.pricing.prices import Prices
from asched.simulator.trace import PodPlacement, WorkloadRun


class AuditedPod(NamedTuple):
    """A pod and its node; empty if it is pending."""

    pod: Pod
    node: str


class ResourceQuality(msgspec.Struct, frozen=True, rename="camel"):
    """One resource, in the unit of :mod:`asched.model.requests` (cpu in thousandths)."""

    allocatable: int
    allocated: int
    most: ProvenBound
    """The greatest amount that all pods together could have."""


class Quality(msgspec.Struct, frozen=True, rename="camel"):
    """Placements of a moment, and the bounds on what any scheduler could reach."""

    at: datetime
    nodes: int
    nodes_in_use: int
    """Nodes with a pod."""
    least_nodes: ProvenBound | None
    """The least number of nodes for the pods that are placed; None if the program contradicts the
    placement, as for pods on nodes that changed since."""
    pods: int
    placed: int
    most_pods: ProvenBound
    """The most pods, of placed and pending ones, that could be placed at once."""
    resources: dict[str, ResourceQuality]
    costs: HourlyCosts | None = None
    """None without prices."""
    least_cost: ProvenCost | None = None
    """The least price by the hour of nodes for the pods that are placed. None without prices, and
    as ``least_nodes``."""

    @property
    def excess_cost(self) -> float:
        """By the hour: the price of the nodes in use beyond the bound."""
        if self.costs is None or self.least_cost is None:
            return 0.0
        return self.costs.in_use - self.least_cost.value

    @property
    def excess_nodes(self) -> int:
        """Nodes in use beyond the bound."""
        return 0 if self.least_nodes is None else self.nodes_in_use - self.least_nodes.value

    @property
    def missed_pods(self) -> int:
        """Pods that are pending although the bound permits them."""
        return self.most_pods.value - self.placed


class QualityOverTime(msgspec.Struct, frozen=True, rename="camel"):
    """The quality at several moments of a run."""

    moments: tuple[Quality, ...]

    @property
    def mean_excess_nodes(self) -> float:
        return _mean(moment.excess_nodes for moment in self.moments)

    @property
    def mean_idle_cost(self) -> float | None:
        """By the hour; None without prices."""
        found = [moment.costs.idle for moment in self.moments if moment.costs is not None]
        return _mean(found) if found else None

    @property
    def mean_excess_cost(self) -> float | None:
        """By the hour, the regret in money; None without prices."""
        if not any(moment.costs for moment in self.moments):
            return None
        return _mean(moment.excess_cost for moment in self.moments)

    @property
    def mean_missed_pods(self) -> float:
        return _mean(moment.missed_pods for moment in self.moments)


def _mean(values: Iterable[float]) -> float:
    found = list(values)
    return sum(found) / len(found) if found else 0.0


def quality_of(
    at: datetime,
    nodes: Sequence[Node],
    pods: Sequence[AuditedPod],
    limit_s: float,
    prices: Prices | None = None,
) -> Quality:
    """Compares these placements with the bounds. ``prices`` adds costs.

    Raises as :func:`~asched.planning.bounds.least_nodes`.
    """
    placed = [one for one in pods if one.node]
    wanted = packing_problem(nodes, [one.pod for one in pods])
    running = (
        wanted if len(placed) == len(pods) else packing_problem(nodes, [p.pod for p in placed])
    )
    return Quality(
        at=at,
        nodes=len(nodes),
        nodes_in_use=len({one.node for one in placed}),
        least_nodes=least_nodes(running, limit_s),
        pods=len(pods),
        placed=len(placed),
        most_pods=most_pods(wanted, limit_s),
        resources={
            name: ResourceQuality(
                allocatable=_allocatable(wanted, name),
                allocated=_requested(running, name),
                most=most_of(wanted, name, limit_s),
            )
            for name in wanted.resources
            if name != PODS
        },
        costs=hourly_costs(nodes, placed, prices) if prices else None,
        least_cost=_least_cost(nodes, placed, limit_s, prices) if prices else None,
    )


def _least_cost(
    nodes: Sequence[Node], placed: Sequence[AuditedPod], limit_s: float, prices: Prices
) -> ProvenCost | None:
    return least_cost(packing_problem(nodes, [one.pod for one in placed], prices), limit_s)


def _allocatable(problem: PackingProblem, resource: str) -> int:
    column = problem.resources.index(resource)
    return sum(len(kind.names) * int(kind.allocatable[column]) for kind in problem.nodes)


def _requested(problem: PackingProblem, resource: str) -> int:
    if resource not in problem.resources:
        return 0
    column = problem.resources.index(resource)
    return sum(kind.number * int(kind.requests[column]) for kind in problem.pods)


def quality_over_time(
    run: WorkloadRun, moments: int, limit_s: float, prices: Prices | None = None
) -> QualityOverTime:
    """The quality in the middle of each of ``moments`` equal parts of a run. Raises as
    :func:`quality_of`."""
    span_ns = run.end_ns - run.begin_ns
    times_ns = (run.begin_ns + span_ns * (2 * i + 1) // (2 * moments) for i in range(moments))
    return QualityOverTime(tuple(_at(run, at_ns, limit_s, prices) for at_ns in times_ns))


def _at(run: WorkloadRun, at_ns: int, limit_s: float, prices: Prices | None) -> Quality:
    nodes = [
        span.node
        for span in run.nodes
        if span.from_ns <= at_ns and (span.to_ns is None or at_ns < span.to_ns)
    ]
    names = {node.name for node in nodes}
    pods = []
    for pod in run.pods:
        if pod.created_ns <= at_ns and (pod.ended_ns is None or at_ns < pod.ended_ns):
            node = next((p.node for p in pod.placements if _is_active(p, at_ns)), "")
            pods.append(AuditedPod(pod.pod, node if node in names else ""))
    return quality_of(time_of(at_ns), nodes, pods, limit_s, prices)


def _is_active(placement: PodPlacement, at_ns: int) -> bool:
    ended_ns = placement.ended_ns
    return placement.assigned_ns <= at_ns and (ended_ns is None or at_ns < ended_ns)


async def recorded_quality(
    journal: JournalStore,
    load: PluginLoader,
    at_ns: int | None,
    limit_s: float,
    prices: Prices | None = None,
) -> Quality:
    """The quality at a time of a journal; None for its end.

    Raises AuditError before the first record, JournalError, and as :func:`quality_of`.
    """
    state, _ = await state_at(journal, load, at_ns)
    pods = [AuditedPod(entry.info.pod, entry.node) for entry in state.pods.values()]
    nodes = [*state.objects(Node).values()]
    return quality_of(time_of(state.date_ns), nodes, pods, limit_s, prices)
