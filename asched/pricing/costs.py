"""What a run costs: nodes, the part of them that no pod requested, and waiting."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Final

import msgspec

from asched.framework.pod_info import shape_of
from asched.model.node import Node
from asched.model.pod import Pod
from asched.model.quantity import NS_PER_S
from asched.pricing.prices import Prices
from asched.simulator.trace import NodeSpan, PodRun, WorkloadRun

_NS_PER_HOUR: Final = 3600 * NS_PER_S


class RunCosts(msgspec.Struct, frozen=True, rename="camel"):
    """The costs of a run, in the currency of the prices."""

    nodes: float
    """All nodes, for the time that they existed."""
    idle: float
    """The part of ``nodes`` that no pod requested."""
    waits: float
    """The time that pods spent without a node."""
    currency: str = ""

    @property
    def total(self) -> float:
        return self.nodes + self.waits


class HourlyCosts(msgspec.Struct, frozen=True, rename="camel"):
    """What the nodes of a moment cost by the hour."""

    nodes: float
    in_use: float
    """The nodes with a pod."""
    idle: float
    """The part of ``nodes`` that no pod requests."""
    currency: str = ""


def hourly_costs(
    nodes: Iterable[Node], placed: Iterable[tuple[Pod, str]], prices: Prices
) -> HourlyCosts:
    """The costs of these nodes; ``placed``: pods with the names of their nodes."""
    known = {node.name: node for node in nodes}
    per_hour = {name: prices.node_per_hour(node) for name, node in known.items()}
    running = [(pod, name) for pod, name in placed if name in known]
    requested = sum(
        prices.requests_per_hour(shape_of(pod).requests, known[name]) for pod, name in running
    )
    cost = sum(per_hour.values())
    return HourlyCosts(
        nodes=cost,
        in_use=sum(per_hour[name] for name in {name for _, name in running}),
        idle=max(0.0, cost - requested),
        currency=prices.currency,
    )


def costs_of(run: WorkloadRun, waits: Iterable[tuple[PodRun, int]], prices: Prices) -> RunCosts:
    """The costs of a run. ``waits``: pods with their time without a node, in nanoseconds."""
    spans: defaultdict[str, list[NodeSpan]] = defaultdict(list)
    for span in run.nodes:
        spans[span.node.name].append(span)
    nodes = sum(
        prices.node_per_hour(span.node) * _hours(run, span.from_ns, span.to_ns)
        for span in run.nodes
    )
    requested = sum(_requested(run, pod, spans, prices) for pod in run.pods)
    return RunCosts(
        nodes=nodes,
        idle=max(0.0, nodes - requested),
        waits=sum(
            prices.wait_per_hour(pod.pod) * waited_ns / _NS_PER_HOUR for pod, waited_ns in waits
        ),
        currency=prices.currency,
    )


def _requested(
    run: WorkloadRun, pod: PodRun, spans: dict[str, list[NodeSpan]], prices: Prices
) -> float:
    requests = shape_of(pod.pod).requests
    total = 0.0
    for placement in pod.placements:
        ended_ns = run.end_ns if placement.ended_ns is None else placement.ended_ns
        for span in spans.get(placement.node, ()):
            from_ns = max(placement.assigned_ns, span.from_ns)
            to_ns = ended_ns if span.to_ns is None else min(ended_ns, span.to_ns)
            hours = _hours(run, from_ns, to_ns)
            if hours:
                total += prices.requests_per_hour(requests, span.node) * hours
    return total


def _hours(run: WorkloadRun, from_ns: int, to_ns: int | None) -> float:
    """The part of the run between two times; None is its end."""
    end_ns = run.end_ns if to_ns is None else min(to_ns, run.end_ns)
    return max(0, end_ns - max(from_ns, run.begin_ns)) / _NS_PER_HOUR
