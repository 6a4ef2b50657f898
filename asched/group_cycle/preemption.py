"""Workload-aware preemption: a group evicts as one, and victims may be whole groups.

Source: ``podgrouppreemption.go`` of kube-scheduler 1.36. It puts victims back one at a time and
tries the group each time. Here several are put back at a time, and halves of them if the group does
not fit then. The victims are the same where a group that fits also fits with fewer other pods.

A search is limited in tried members. A larger one first puts back all pods on nodes that no member
uses, then the most important pod of each other node, then the next one of each. What is not put
back within the limit is evicted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from datetime import UTC, datetime, timedelta
from itertools import zip_longest
from typing import NamedTuple

from asched.framework.pod_groups import DisruptionMode, PodGroupKey, find_group, group_of, rules_of
from asched.framework.pod_info import PodInfo, start_time
from asched.group_cycle.member_pass import PassResult
from asched.group_cycle.members import CycleMembers
from asched.group_cycle.trial import RemovedVictims, Trial
from asched.model.groups import PodGroup
from asched.model.workloads import PodDisruptionBudget
from asched.plugins.default_preemption.budgets import Budgets
from asched.state.cluster import ClusterState

NEVER = "not eligible due to preemptionPolicy=Never."
CONSTRAINED = (
    "workload aware preemption is not supported for pod groups with scheduling constraints"
)
NO_VICTIMS = "No preemption victims found for incoming preemptor"

MIN_PASSES = 4
"""How often even a very large group is tried."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_PRIORITY_OFFSET = 1 << 31


class VictimUnit(NamedTuple):
    """Pods that are evicted together."""

    pods: tuple[PodInfo, ...]
    priority: int
    in_group: bool
    """Its pods belong to a PodGroup, whether or not all of it is evicted together."""

    @property
    def earliest_start(self) -> datetime:
        return min(start_time(pod) for pod in self.pods)

    @property
    def importance(self) -> tuple[int, bool, int, datetime, str]:
        """Sort key; the most important unit first (``moreImportantVictim``)."""
        size = len(self.pods) if self.in_group else 0
        first = min(pod.key for pod in self.pods)
        return -self.priority, not self.in_group, -size, self.earliest_start, first


class GroupVictims(NamedTuple):
    """The victims of a group, and where its members fit without them."""

    units: tuple[VictimUnit, ...]
    """The most important first."""
    result: PassResult

    @property
    def pods(self) -> tuple[PodInfo, ...]:
        return tuple(_pods(self.units))


class EvictionCost(NamedTuple):
    """The cost of victims, by the criteria of ``pickOneNodeForPreemption``; the lowest is best."""

    violations: int
    """Units that violate a PodDisruptionBudget."""
    highest_priority: int
    priorities: int
    """Their sum, each counted from the lowest possible one."""
    pods: int
    newest: timedelta
    """Negative age of the oldest of the most important units."""


TryGroup = Callable[[], PassResult]
"""Tries the group on the state as it is, without PostFilter."""


def eviction_cost(cluster: ClusterState, units: Sequence[VictimUnit]) -> EvictionCost:
    """The cost of evicting these units, the most important first."""
    highest = units[0].priority
    sizes = sum(len(unit.pods) for unit in units)
    return EvictionCost(
        len(split_by_budgets(cluster, units)[0]),
        highest,
        sum((unit.priority + _PRIORITY_OFFSET) * len(unit.pods) for unit in units),
        sizes,
        _EPOCH - min(unit.earliest_start for unit in units if unit.priority == highest),
    )


def ineligible(cluster: ClusterState, members: CycleMembers, *, keeps_constraints: bool) -> str:
    """Why the group must not preempt; empty if it may. ``keeps_constraints``: a group with
    scheduling constraints must not."""
    rules = members.rules
    if keeps_constraints and rules.topology_key:
        return CONSTRAINED
    declared = cluster.objects(PodGroup).get(rules.group.key)
    if declared is not None and declared.uid == rules.uid and declared.spec.preemption_policy:
        # As in kube-scheduler 1.37 that of the group counts, not those of its pods.
        return "" if rules.preempts else NEVER
    policies = (pod.pod.spec.preemption_policy for pod in members.group.pending)
    return NEVER if not rules.preempts or "Never" in policies else ""


def possible_victims(cluster: ClusterState, members: CycleMembers) -> list[VictimUnit]:
    """What the group may evict, the most important first."""
    if not any_less_important(cluster, members.rules.priority):
        return []
    units = [u for u in victim_units(cluster) if u.priority < members.rules.priority]
    return sorted(units, key=lambda unit: unit.importance)


def any_less_important(cluster: ClusterState, priority: int) -> bool:
    """Whether some pod, or some group that is evicted as a whole, may have a lower priority."""
    lowest = cluster.lowest_priority
    if lowest is None or lowest < priority:
        return lowest is not None
    return any(
        group.spec.disruption_mode == DisruptionMode.ALL.value
        and (group.spec.priority or 0) < priority
        for group in cluster.objects(PodGroup).values()
    )


def find_victims(
    cluster: ClusterState,
    trial: Trial,
    members: CycleMembers,
    units: Sequence[VictimUnit],
    try_group: TryGroup,
    max_tries: int,
) -> GroupVictims | PassResult:
    """The victims among ``units``, the most important first; the failed pass if not even the
    absence of all of them helps. ``max_tries``: how many members may be tried, in
    :data:`MIN_PASSES` passes at least."""
    with trial.without([*_pods(units)]) as removed:
        first = try_group()
        if not first.feasible:
            return first
        passes = max(MIN_PASSES, max_tries // len(members.pending))
        search = _Reprieve(removed, try_group, passes)
        exact = 2 * len(units) <= passes
        used = {member.node for member in first.members if member.fits}
        for part in split_by_budgets(cluster, units):
            for step in [part] if exact else _steps(cluster, part, used):
                search.run(step)
        chosen = {unit.pods[0].uid for unit in search.victims}
        victims = tuple(unit for unit in units if unit.pods[0].uid in chosen)
        result = try_group()
    if not result.feasible:
        return result  # a plugin has answers that depend on more than the state
    return GroupVictims(victims, result)


def victim_units(cluster: ClusterState) -> list[VictimUnit]:
    """All pods on nodes, by what is evicted together."""
    units: list[VictimUnit] = []
    whole: dict[PodGroupKey, list[PodInfo]] = {}
    priorities: dict[PodGroupKey, int] = {}
    for entry in cluster.pods.values():
        if cluster.nodes.row_of(entry.node) is None:
            continue  # on no node, or on one that is gone
        info = entry.info
        key = group_of(info.pod)
        if key is not None and key not in priorities:
            declared = find_group(cluster, key)
            rules = None if declared is None else rules_of(declared)
            if rules is not None and rules.disruption_mode is DisruptionMode.ALL:
                priorities[key] = rules.priority
        if key is not None and key in priorities:
            whole.setdefault(key, []).append(info)
        else:
            units.append(VictimUnit((info,), info.priority, key is not None))
    units += [VictimUnit(tuple(pods), priorities[key], True) for key, pods in whole.items()]
    return units


def split_by_budgets(
    cluster: ClusterState, units: Sequence[VictimUnit]
) -> tuple[list[VictimUnit], list[VictimUnit]]:
    """(units that would violate a budget if evicted in this order, the others)."""
    budgets = cluster.objects(PodDisruptionBudget)
    if not budgets:
        return [], [*units]
    charges = Budgets(budgets.values()).charging()
    violating: list[VictimUnit] = []
    others: list[VictimUnit] = []
    for unit in units:
        # Once a pod violates a budget, the others of the unit are not counted.
        violates = any(charges.violates(pod) for pod in unit.pods)
        (violating if violates else others).append(unit)
    return violating, others


def _steps(
    cluster: ClusterState, units: Sequence[VictimUnit], used: Set[str]
) -> Iterator[list[VictimUnit]]:
    """Units to put back together: those on nodes that no member uses, then one of each node."""
    by_node: dict[str, list[VictimUnit]] = {}
    unused: list[VictimUnit] = []
    for unit in units:
        nodes = [cluster.pods[pod.key].node for pod in unit.pods]
        if used.isdisjoint(nodes):
            unused.append(unit)
        else:
            by_node.setdefault(nodes[0], []).append(unit)
    yield unused
    for step in zip_longest(*by_node.values()):
        yield [unit for unit in step if unit is not None]


class _Reprieve:
    """Puts back the units without which the group need not do."""

    def __init__(self, removed: RemovedVictims, try_group: TryGroup, passes: int) -> None:
        """``passes``: how often the group may be tried."""
        self._removed = removed
        self._try_group = try_group
        self._passes = passes
        self.victims: list[VictimUnit] = []

    def run(self, units: Sequence[VictimUnit]) -> None:
        """Put back as many of these as possible, the most important first."""
        if not units:
            return
        if self._passes <= 0:
            self.victims += units
            return
        self._passes -= 1
        pods = [*_pods(units)]
        self._removed.restore(pods)
        if self._try_group().feasible:
            return
        self._removed.remove(pods)
        if len(units) == 1:
            self.victims += units
            return
        half = len(units) // 2
        self.run(units[:half])
        self.run(units[half:])


def _pods(units: Iterable[VictimUnit]) -> Iterable[PodInfo]:
    return (pod for unit in units for pod in unit.pods)
