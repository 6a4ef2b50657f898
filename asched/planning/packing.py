"""The packing problem of a moment: which pods could be on which nodes at all.

It is a relaxation of scheduling. Requests, node selectors, required node affinity and taints count;
pod affinity, topology spread, ports, volumes, devices and priorities do not. Every placement that a
scheduler can make is a solution, so no scheduler is better than the best solution.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from asched.framework.pod_info import shape_of
from asched.model.node import Node
from asched.model.pod import Pod
from asched.model.requests import PODS, Amounts, amounts
from asched.plugins.shared import repels, required_nodes
from asched.pricing.prices import Prices

Int64s = NDArray[np.int64]


class NodeKind(NamedTuple):
    """Nodes with equal amounts and prices that admit the same pods."""

    names: tuple[str, ...]
    allocatable: Int64s
    """By resource."""
    per_hour: float = 0.0
    """The price of each node; 0 if the problem has no prices."""


class PodKind(NamedTuple):
    """Pods with equal requests that may run on the same nodes."""

    number: int
    requests: Int64s
    """By resource."""
    node_kinds: tuple[int, ...]
    """Indexes of the kinds of nodes that it may run on."""


class PackingProblem(NamedTuple):
    """The pods and nodes of a moment, by kind."""

    resources: tuple[str, ...]
    nodes: tuple[NodeKind, ...]
    pods: tuple[PodKind, ...]

    @property
    def pod_count(self) -> int:
        return sum(kind.number for kind in self.pods)

    def most_on_one(self, pod: PodKind, node: NodeKind) -> int:
        """How many of these pods fit on one empty node."""
        asked = pod.requests > 0
        return int((node.allocatable[asked] // pod.requests[asked]).min())


def packing_problem(
    nodes: Sequence[Node], pods: Iterable[Pod], prices: Prices | None = None
) -> PackingProblem:
    """The problem of these pods on these nodes, as if no pod had a node."""
    kinds = Counter(map(shape_of, pods))
    requested = {name for shape in kinds for name, amount in shape.requests.items() if amount}
    resources = (*sorted(requested - {PODS}), PODS)
    rules = [(required_nodes(shape), shape.tolerations) for shape in kinds]
    groups: dict[tuple[bytes, tuple[bool, ...], float], list[str]] = {}
    for node in nodes:
        taints = node.spec.taints
        admitted_by = tuple(
            rule.matches(node) and not repels(taints, tolerations) for rule, tolerations in rules
        )
        allocatable = _vector(amounts(node.status.allocatable), resources).tobytes()
        price = 0.0 if prices is None else prices.node_per_hour(node)
        groups.setdefault((allocatable, admitted_by, price), []).append(node.name)
    found: Counter[tuple[bytes, tuple[int, ...]]] = Counter()
    for place, (shape, count) in enumerate(kinds.items()):
        requests = _vector({**shape.requests, PODS: 1}, resources)
        admitted = tuple(i for i, (_, admitted_by, _) in enumerate(groups) if admitted_by[place])
        found[requests.tobytes(), admitted] += count
    return PackingProblem(
        resources,
        tuple(
            NodeKind(tuple(names), np.frombuffer(allocatable, np.int64), price)
            for (allocatable, _, price), names in groups.items()
        ),
        tuple(
            PodKind(count, np.frombuffer(requests, np.int64), admitted_by)
            for (requests, admitted_by), count in found.items()
        ),
    )


def _vector(found: Amounts, resources: Sequence[str]) -> Int64s:
    return np.array([found.get(name, 0) for name in resources], np.int64)
