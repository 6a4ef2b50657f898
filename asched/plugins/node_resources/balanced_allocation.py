"""NodeResourcesBalancedAllocation: prefers nodes with a balanced utilization of resources."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from asched.framework.cluster import Handle
from asched.framework.cycle_state import CycleState, StateKey
from asched.framework.devices import SharedDevices
from asched.framework.interface import Arguments, PreScorePlugin, Scope, ScoreAllPlugin, ScorePlugin
from asched.framework.nodes import MAX_NODE_SCORE, BoolColumn, Int64Column, NodeInfo, Nodes
from asched.framework.pod_info import PodInfo
from asched.framework.scoring import wrapped
from asched.framework.status import SUCCESS, Status
from asched.plugins.node_resources.scoring import (
    ResourceWeight,
    ScoredAmounts,
    ScoredResource,
    scored_resources,
    with_defaults,
)

Fractions = Sequence[NDArray[np.float64]]

_HALF = MAX_NODE_SCORE // 2
_FEW_ROWS = 24
"""Up to this many rows, a Python loop costs less than computing all rows."""


class NodeResourcesBalancedAllocationArgs(Arguments, frozen=True):
    """The resources to balance; by default cpu and memory."""

    resources: tuple[ResourceWeight, ...] = ()
    """The resources to balance, without weights. Empty: cpu and memory."""

    def __post_init__(self) -> None:
        names: set[str] = set()
        for index, resource in enumerate(self.resources):
            if resource.name in names:
                raise ValueError(f"resources[{index}].name: {resource.name} is named twice")
            names.add(resource.name)
            if resource.weight not in (0, 1):
                raise ValueError(f"resources[{index}].weight: must be 1")


_SCORED: StateKey[tuple[ScoredResource, ...]] = StateKey("NodeResourcesBalancedAllocation/score")


class NodeResourcesBalancedAllocation(PreScorePlugin, ScoreAllPlugin, ScorePlugin):
    """Scores how much the pod improves the balance of the node's resources.

    The balance is 100 minus the standard deviation, in percent, of the used fractions. The score is
    50 plus half of (50 plus the improvement). Skipped for pods that request none of the resources.
    """

    name: ClassVar[str] = "NodeResourcesBalancedAllocation"
    api_version: ClassVar[int] = 1
    arguments: ClassVar[type[NodeResourcesBalancedAllocationArgs]] = (
        NodeResourcesBalancedAllocationArgs
    )
    scope: ClassVar[Scope] = Scope.RESOURCES

    def __init__(self, args: NodeResourcesBalancedAllocationArgs, handle: Handle) -> None:
        super().__init__(args, handle)
        self._resources = with_defaults(args.resources)
        scored = self._resources if handle.feature_gates.dra_extended_resource else ()
        self._amounts = ScoredAmounts(handle.shared(SharedDevices), scored)
        self.shared_answers_version = self._amounts.version
        self._without: _BalanceWithoutPod | None = None
        if self._amounts.counts_devices:
            # Equally full nodes may have different devices.
            self.scope = Scope.NODE  # type: ignore[misc]

    def pre_score(self, state: CycleState, pod: PodInfo, nodes: Nodes) -> Status:
        scored = scored_resources(self._resources, pod.shape, assume_defaults=False)
        if not any(resource.asked for resource in scored):
            return Status.skip()
        state.write(_SCORED, scored)
        return SUCCESS

    def score_all(self, state: CycleState, pod: PodInfo, nodes: Nodes) -> Int64Column:
        scored = state.read(_SCORED)
        score = self._balance(scored, nodes)
        score += MAX_NODE_SCORE + _HALF
        score -= self._balance_without(scored, nodes)
        score >>= 1  # a division by 2 that takes a third of the time
        return score

    def _balance(self, scored: Sequence[ScoredResource], nodes: Nodes) -> Int64Column:
        """By row, the balance with these amounts added to what the pods on the node request."""
        offered: list[BoolColumn] = []
        fractions: list[NDArray[np.float64]] = []
        for name, _, asked in scored:
            capacity, used = self._amounts.of_all(name, nodes.requested(name), nodes)
            present = capacity != 0
            everywhere = bool(present.all())
            if not everywhere:
                capacity = np.where(present, capacity, 1)
            # Division by one number is faster than by a column with one entry.
            divisor = float(capacity[0]) if len(capacity) == 1 else capacity
            fraction = (used + asked) / divisor
            np.minimum(fraction, 1.0, out=fraction)
            offered.append(present)
            fractions.append(fraction if everywhere else fraction * present)
        return _balance(fractions, offered)

    def _balance_without(self, scored: Sequence[ScoredResource], nodes: Nodes) -> Int64Column:
        """By row, the balance without the pod. It depends on no pending pod, so it is kept; the
        column must not be changed."""
        unasked = tuple([ScoredResource(name, 1, 0) for name, _, _ in scored])
        cluster = self.handle.cluster
        if nodes is not cluster.nodes or self._amounts.counts_devices:
            return self._balance(unasked, nodes)
        stamps, kept = cluster.row_stamps, self._without
        if kept is None or not kept.update(unasked, nodes, stamps):
            balance = self._balance(unasked, nodes)
            kept = self._without = _BalanceWithoutPod(unasked, nodes, stamps.copy(), balance)
        return kept.balance

    def score(self, state: CycleState, pod: PodInfo, node: NodeInfo) -> int:
        without: list[float] = []
        including: list[float] = []
        for name, _, asked in state.read(_SCORED):
            # Convert before dividing, as the columns do: the result differs beyond 53 bits.
            total = node.allocatable(name)
            used = 0
            if self._amounts.counts_devices and not total:
                row = self.handle.cluster.nodes.row_of(node.name)
                total, used = self._amounts.of_row(name, used, row)
            elif total:
                used = node.requested(name)
            if total:
                capacity = float(total)
                without.append(min(float(used) / capacity, 1.0))
                including.append(min(float(wrapped(used + asked)) / capacity, 1.0))
        return _HALF + (_HALF + _balance_of(including) - _balance_of(without)) // 2


@dataclass(slots=True)
class _BalanceWithoutPod:
    """The balance of all nodes of the cluster, updated for the rows that changed."""

    resources: tuple[ScoredResource, ...]
    nodes: Nodes
    stamps: Int64Column
    """``Cluster.row_stamps`` when the row was computed."""
    balance: Int64Column

    def update(
        self, resources: tuple[ScoredResource, ...], nodes: Nodes, stamps: Int64Column
    ) -> bool:
        """False if everything has to be computed again."""
        if nodes is not self.nodes or resources != self.resources:
            return False
        if len(stamps) != len(self.stamps):
            return False
        rows = (stamps != self.stamps).nonzero()[0].tolist()
        if len(rows) > _FEW_ROWS:
            return False
        for row in rows:
            node = nodes.info(row)
            fractions = [
                min(float(node.requested(name)) / float(capacity), 1.0)
                for name, _, _ in resources
                if (capacity := node.allocatable(name))
            ]
            self.balance[row] = _balance_of(fractions)
            self.stamps[row] = stamps[row]
        return True


def _balance_of(fractions: Sequence[float]) -> int:
    """:func:`_balance` of one node, from the fractions of the resources that it has."""
    count = len(fractions)
    if count < 2:
        deviation = 0.0
    elif count == 2:
        deviation = abs(fractions[0] - fractions[1]) / 2
    else:
        # sum() of floats rounds differently in different Python versions.
        total = squares = 0.0
        for fraction in fractions:
            total += fraction
        mean = total / count
        for fraction in fractions:
            squares += (fraction - mean) * (fraction - mean)
        deviation = math.sqrt(squares / count)
    return int((1 - deviation) * MAX_NODE_SCORE)


def _balance(fractions: Fractions, offered: Sequence[BoolColumn]) -> Int64Column:
    """By row, 0 to 100, over the resources that the node has; fractions of others must be 0."""
    if len(fractions) == 2:
        deviation = fractions[0] - fractions[1]
        np.abs(deviation, out=deviation)
        deviation *= 0.5
        both = offered[0] & offered[1]
        if not both.all():
            deviation *= both  # a single resource is balanced
    elif len(fractions) < 2:
        deviation = np.zeros(len(fractions[0]))
    else:
        deviation = _deviation(fractions, offered)
    np.subtract(1, deviation, out=deviation)
    deviation *= MAX_NODE_SCORE
    return deviation.astype(np.int64)


def _deviation(fractions: Fractions, offered: Sequence[BoolColumn]) -> NDArray[np.float64]:
    """The standard deviation, summed in the order of the resources as in kube-scheduler."""
    size = len(fractions[0])
    count = np.zeros(size, np.int64)
    total = np.zeros(size)
    difference = np.zeros(size)
    for fraction, present in zip(fractions, offered, strict=True):
        # For two resources, the exact difference of the fractions.
        difference += np.where(count == 0, fraction, -fraction)
        total += fraction
        count += present
    mean = total / np.maximum(count, 1)
    squares = np.zeros(size)
    for fraction, present in zip(fractions, offered, strict=True):
        squares += (fraction - mean) * (fraction - mean) * present
    spread = np.sqrt(squares / np.maximum(count, 1))
    return np.where(count > 2, spread, np.where(count == 2, np.abs(difference) / 2, 0.0))
