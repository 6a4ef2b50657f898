"""The part of the possible victims that a search considers in a large cluster.

To leave each pod of a large cluster out of the state and put it back takes seconds. A search first
considers the nodes on which evictions cost least.
"""

from __future__ import annotations

from collections.abc import Sequence

from asched.framework.nodes import BoolColumn
from asched.group_cycle.preemption import VictimUnit, split_by_budgets
from asched.state.cluster import ClusterState

NodeCost = tuple[int, int, int, int]
"""(units that violate a PodDisruptionBudget, highest priority, sum of priorities, pods)."""


def on_cheapest_nodes(
    cluster: ClusterState, units: Sequence[VictimUnit], usable: BoolColumn, most_pods: int
) -> Sequence[VictimUnit]:
    """The units on the usable nodes with the least costly evictions, about ``most_pods`` pods, in
    the same order. All units if they have at most that many pods.

    ``units``: the most important first. ``usable``: by row, whether a member may run there.
    """
    if sum(len(unit.pods) for unit in units) <= most_pods:
        return units
    violating = {id(unit) for unit in split_by_budgets(cluster, units)[0]}
    on_row: dict[int, dict[int, None]] = {}
    for position, unit in enumerate(units):
        for pod in unit.pods:
            row = cluster.nodes.row_of(cluster.pods[pod.key].node)
            if row is not None and usable[row]:
                on_row.setdefault(row, {})[position] = None

    def cost(row: int) -> NodeCost:
        there = [units[position] for position in on_row[row]]
        return (
            sum(id(unit) in violating for unit in there),
            there[0].priority,
            sum(unit.priority * len(unit.pods) for unit in there),
            sum(len(unit.pods) for unit in there),
        )

    chosen: set[int] = set()
    pods = 0
    for row in sorted(on_row, key=lambda row: (cost(row), row)):
        added = on_row[row].keys() - chosen
        pods += sum(len(units[position].pods) for position in added)
        chosen |= added
        if pods >= most_pods:
            break
    return [units[position] for position in sorted(chosen)]
