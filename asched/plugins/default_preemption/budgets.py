"""PodDisruptionBudgets in a search for victims."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from asched.framework.pod_info import PodInfo
from asched.model.workloads import PodDisruptionBudget

_MAX_LABEL_SETS = 1024
"""Label sets with cached budgets: each rollout of a workload adds its own."""


class Budgets:
    """The PodDisruptionBudgets, and the pods that they protect."""

    def __init__(self, budgets: Iterable[PodDisruptionBudget]) -> None:
        self._by_namespace: dict[str, list[PodDisruptionBudget]] = {}
        for budget in budgets:
            # As in kube-scheduler, an empty selector protects no pod.
            selector = budget.spec.selector
            if selector and (selector.match_labels or selector.match_expressions):
                self._by_namespace.setdefault(budget.namespace, []).append(budget)
        self._by_labels: dict[int, list[PodDisruptionBudget]] = {}

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

    def charging(self) -> BudgetCharges:
        """Charges the budgets for one pod after the other."""
        return BudgetCharges(self)

    def protecting(self, pod: PodInfo) -> list[PodDisruptionBudget]:
        labels = pod.label_set
        known = self._by_labels.get(labels.number)
        if known is None:
            if len(self._by_labels) >= _MAX_LABEL_SETS:
                self._by_labels.clear()
            known = self._by_labels[labels.number] = [
                budget
                for budget in self._by_namespace.get(pod.namespace, ())
                if pod.labels and budget.spec.selector and budget.spec.selector.matches(pod.labels)
            ]
        return known


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
