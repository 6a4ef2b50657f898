"""PodDisruptionBudgets in a search for victims."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import numpy as np

from asched.framework.label_conditions import Integers, LabelConditions
from asched.framework.nodes import BoolColumn, Int64Column, RowArray
from asched.framework.pod_info import PodInfo
from asched.framework.removable_pods import RemovablePods, numbers_of
from asched.model.workloads import PodDisruptionBudget
from asched.plugins.default_preemption.importance import LowerPods

_MAX_LABEL_SETS = 1 << 16
"""Label sets with known budgets: each rollout of a workload adds its own."""
_MAX_MEMBERS: Final = 1 << 20
"""Budgets of all known groups."""


class _OfNamespace:
    """The budgets of one namespace."""

    def __init__(self) -> None:
        self.numbers: list[int] = []
        self._conditions = LabelConditions()

    def add(self, budget: PodDisruptionBudget, number: int) -> None:
        self.numbers.append(number)
        self._conditions.add(budget.spec.selector)

    def protecting(self, pod: PodInfo) -> tuple[int, ...]:
        if not pod.labels:
            return ()
        selecting = self._conditions.fulfilled(pod.labels).nonzero()[0]
        return tuple([self.numbers[number] for number in selecting.tolist()])


class Budgets:
    """The PodDisruptionBudgets, and the pods that they protect."""

    def __init__(self, budgets: Iterable[PodDisruptionBudget]) -> None:
        self._all: list[PodDisruptionBudget] = []
        self._by_namespace: dict[str, _OfNamespace] = {}
        for budget in budgets:
            # As in kube-scheduler, an empty selector protects no pod.
            selector = budget.spec.selector
            if selector and (selector.match_labels or selector.match_expressions):
                of_namespace = self._by_namespace.setdefault(budget.namespace, _OfNamespace())
                of_namespace.add(budget, len(self._all))
                self._all.append(budget)
        self._allowed = np.array([b.status.disruptions_allowed for b in self._all], np.int64)
        self._disrupted = np.array([bool(b.status.disrupted_pods) for b in self._all], np.bool_)
        self._forget()

    def _forget(self) -> None:
        self._groups: dict[int, int] = {}
        """The number of the group of budgets that protects pods with labels of that number."""
        self._group_numbers: dict[tuple[int, ...], int] = {}
        self._tuples: list[tuple[int, ...]] = []
        self._sizes = Integers()
        self._members = Integers()
        """The budgets of all groups, one group after the other."""

    def _limit_memory(self) -> None:
        if len(self._groups) >= _MAX_LABEL_SETS or len(self._members) >= _MAX_MEMBERS:
            self._forget()

    def split(self, pods: Sequence[PodInfo]) -> tuple[list[PodInfo], list[PodInfo]]:
        """(pods that would violate a budget if evicted in this order, the others).
        ``filterPodsWithPDBViolation``: a budget is not charged for a pod that it already counts as
        disrupted."""
        if not self._by_namespace:
            return [], list(pods)
        charges = self.charging()
        violating: list[PodInfo] = []
        others: list[PodInfo] = []
        for pod in pods:
            (violating if charges.violates(pod) else others).append(pod)
        return violating, others

    def violating(self, lower: LowerPods) -> BoolColumn | None:
        """:meth:`split` for the pods of each row on their own: whether each pod would violate a
        budget. None if none would."""
        named = lower.namespace_numbers
        namespaces = [named[name] for name in self._by_namespace if name in named]
        if not namespaces:
            return None
        reached = np.zeros(len(named), np.bool_)
        reached[namespaces] = True
        pods, budgets = self._pairs(lower.removable, reached[lower.namespaces].nonzero()[0])
        allowed, most = self._allowed[budgets], int(lower.removable.lengths.max(initial=0))
        violates = np.zeros(len(lower.priorities), np.bool_)
        violates[pods[allowed <= 0]] = True
        counted = (allowed > 0) & (allowed < most)
        if counted.any():
            rows = np.repeat(np.arange(len(lower.removable)), lower.removable.lengths)
            beyond = _beyond(rows[pods[counted]], budgets[counted], allowed[counted])
            violates[pods[counted][beyond]] = True
        return violates if violates.any() else None

    def counted(self, lower: LowerPods) -> Int64Column:
        """For each row, the number of budgets that its pods are compared with."""
        named, removable = lower.namespace_numbers, lower.removable
        budgets = np.zeros(len(named) + 1, np.int64)
        for name, of_namespace in self._by_namespace.items():
            budgets[named.get(name, -1)] = len(of_namespace.numbers)
        sums = np.concatenate([np.zeros(1, np.int64), np.cumsum(budgets[lower.namespaces])])
        counts: Int64Column = sums[removable.first + removable.lengths] - sums[removable.first]
        return counts

    def _pairs(self, removable: RemovablePods, pods: RowArray) -> tuple[RowArray, RowArray]:
        """Pods, and the budgets that are charged for them."""
        self._limit_memory()
        groups = np.array([self._group(removable.pod(number)) for number in pods.tolist()], np.intp)
        sizes = self._sizes.array
        ends, counts = np.cumsum(sizes), sizes[groups]
        budgets = self._members.array[numbers_of((ends - sizes)[groups], counts)]
        pods = np.repeat(pods, counts)
        if self._disrupted.any():
            for place in self._disrupted[budgets].nonzero()[0].tolist():
                budget = self._all[budgets.item(place)]
                if removable.pod(pods.item(place)).name in budget.status.disrupted_pods:
                    budgets[place] = -1
            charged = budgets >= 0
            pods, budgets = pods[charged], budgets[charged]
        return pods, budgets

    def _group(self, pod: PodInfo) -> int:
        """The number of the group of budgets that protect the pod; its namespace has budgets."""
        labels = pod.label_set
        group = self._groups.get(labels.number)
        if group is None:
            members = self._by_namespace[pod.namespace].protecting(pod)
            group = self._group_numbers.setdefault(members, len(self._group_numbers))
            if group == len(self._tuples):
                self._tuples.append(members)
                self._sizes.append(len(members))
                for member in members:
                    self._members.append(member)
            self._groups[labels.number] = group
        return group

    def charging(self) -> BudgetCharges:
        """Charges the budgets for one pod after the other."""
        return BudgetCharges(self)

    def protecting(self, pod: PodInfo) -> list[PodDisruptionBudget]:
        """The budgets that select the pod."""
        if pod.namespace not in self._by_namespace:
            return []
        self._limit_memory()
        return [self._all[number] for number in self._tuples[self._group(pod)]]


def _beyond(rows: RowArray, budgets: RowArray, allowed: Int64Column) -> BoolColumn:
    """Whether so many pods of the row were charged to the budget before that none is left."""
    keys = budgets * (int(rows.max(initial=0)) + 1) + rows
    order = np.argsort(keys, kind="stable")
    keys = keys[order]
    begins = np.concatenate([[True], keys[1:] != keys[:-1]])
    places = np.arange(len(keys))
    before = places - np.maximum.accumulate(np.where(begins, places, 0))
    found = np.zeros(len(keys), np.bool_)
    found[order] = before >= allowed[order]
    return found


class BudgetCharges:
    """Disruptions charged to budgets in one search for victims."""

    def __init__(self, budgets: Budgets) -> None:
        self._budgets = budgets
        self._left: dict[str, int] = {}

    def violates(self, pod: PodInfo) -> bool:
        """Charge the budgets of a pod. Returns whether one of them is exceeded."""
        violates, left = False, self._left
        for budget in self._budgets.protecting(pod):
            if pod.name in budget.status.disrupted_pods:
                continue
            left.setdefault(budget.key, budget.status.disruptions_allowed)
            left[budget.key] -= 1
            violates = violates or left[budget.key] < 0
        return violates
