"""The dry run of preemption: which victims each node needs, cached per node.

Preemptors often come in series of identical pods. The result of a node is computed once for all of
them, and again only after something about the node changed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import NamedTuple, cast

import numpy as np

from asched.framework.caching import RowCache
from asched.framework.nodes import BoolColumn, RowArray
from asched.framework.pod_info import PodInfo, start_time
from asched.framework.runtime.dry_run import FilterDryRun, FilterDryRunner, Placed, Removal
from asched.framework.runtime.plugin_calls import PluginFailure
from asched.framework.status import Code, Status
from asched.model.workloads import PodDisruptionBudget

NO_VICTIMS = Status.unresolvable("No preemption victims found for incoming pod")

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_PRIORITY_OFFSET = 1 << 31
"""Added to each priority in a sum, so that fewer pods of a negative priority sum to less."""
_MAX_LABEL_SETS = 1024
"""Label sets with cached budgets: each rollout of a workload adds its own."""
_REJECTED, _VIOLATES_PDB, _NO_VIOLATION = 0, 1, 2
"""Kinds of results: no candidate, a candidate that violates a budget, one that violates none."""


class Candidate(NamedTuple):
    """A node on which the pod would fit without the victims."""

    node: str
    victims: tuple[PodInfo, ...]
    """The most important first. Some may already be terminating."""
    pdb_violations: int
    cost: tuple[int, int, int, int, timedelta]
    """Lowest is best; the criteria of ``pickOneNodeForPreemption`` in their order."""

    @classmethod
    def of(cls, node: str, victims: Sequence[PodInfo], pdb_violations: int) -> Candidate:
        priorities = [victim.priority for victim in victims]
        highest = max(priorities)
        earliest = min(start_time(victim) for victim in victims if victim.priority == highest)
        total = sum(priorities) + _PRIORITY_OFFSET * len(priorities)
        # kube-scheduler uses the first victim's priority, also in the order an extender returns.
        cost = (pdb_violations, priorities[0], total, len(priorities), _EPOCH - earliest)
        return cls(node, tuple(victims), pdb_violations, cost)


class NoCandidate(NamedTuple):
    """A node on which preemption does not help, and why."""

    node: str
    status: Status


Kinds = np.ndarray[tuple[int], np.dtype[np.int8]]


class DryRunCache(RowCache[Candidate | NoCandidate]):
    """Results by row, for pods of one shape and priority."""

    __slots__ = ("_kinds",)

    def __init__(self) -> None:
        super().__init__()
        self._kinds = np.zeros(0, np.int8)

    def store(self, row: int, stamp: int, result: Candidate | NoCandidate) -> None:
        """Store a result for a row that :meth:`RowCache.is_stale` covered before."""
        self.put(row, stamp, result)
        missing = row + 1 - len(self._kinds)
        if missing > 0:
            more = max(missing, len(self._kinds))
            self._kinds = np.concatenate([self._kinds, np.zeros(more, np.int8)])
        kind = _REJECTED
        if isinstance(result, Candidate):
            kind = _VIOLATES_PDB if result.pdb_violations else _NO_VIOLATION
        self._kinds[row] = kind

    def candidates(self, rows: Iterable[int]) -> list[Candidate]:
        """The results of these rows; each must be a candidate."""
        values = self._values
        return cast("list[Candidate]", [values[row] for row in rows])

    def kinds(self, rows: RowArray) -> Kinds:
        """The kind of result of each of these rows; they must not be stale."""
        return self._kinds[rows]


class CandidateSearch:
    """The dry run of one preemptor, which ends once it has enough candidates."""

    def __init__(
        self,
        dry_runner: FilterDryRunner,
        cache: DryRunCache,
        budgets: Budgets,
        *,
        own_row: int | None = None,
        limit: int | None = None,
    ) -> None:
        """``cache`` holds the results of pods of the same shape and priority. ``own_row`` is the
        row to which the pod is nominated: for other pods, the result there would include this pod,
        so it is not shared. ``limit``: how many candidates are enough; None finds all."""
        self.candidates: list[Candidate] = []
        self._dry_runner = dry_runner
        self._cache = cache
        self._budgets = budgets
        self._own_row = own_row
        self._limit = limit
        self._complete = False
        """Whether there are enough candidates, and one of them violates no budget."""
        self._without_violation = 0
        self._examined: list[tuple[RowArray, Kinds]] = []

    def run(self, rows: RowArray) -> None:
        """Examine rows of the cluster's nodes in order. Raises PluginFailure if a filter fails."""
        stale = self._cache.is_stale(rows, self._dry_runner.row_stamps)
        if self._own_row is not None:
            stale |= rows == self._own_row
        if not self._dry_runner.reads_only_own_row:
            stale[self._reject(rows, stale)] = False
        # At most as many at a time as are likely to be needed.
        limit = len(rows) if self._limit is None else self._limit
        size = max(1, limit) if self._dry_runner.reads_only_own_row else 1
        bounds = [0, *stale.nonzero()[0][::size].tolist(), len(rows)]
        for begin, end in pairwise(bounds):
            batch = rows[begin:end]
            if not len(batch):
                continue
            try:
                self._compute(batch[stale[begin:end]])
                self._add(batch)
            except PluginFailure:
                # A batch runs filters for nodes that other filters reject, and for more nodes than
                # needed. The effect of a failure must not depend on the cache.
                self._run_singly(batch, stale[begin:end])
            if self._complete:
                break

    def _reject(self, rows: RowArray, stale: BoolColumn) -> BoolColumn:
        """Store the results of nodes that need no dry run of their own: those without less
        important pods, and those that no preemption helps. Returns which of ``rows`` these are."""
        dry_runner, done = self._dry_runner, np.zeros(len(rows), np.bool_)
        nodes, pod, stamps = dry_runner.cluster_nodes, dry_runner.pod, dry_runner.row_stamps
        removals: list[Removal] = []
        try:
            unavoidable = {*dry_runner.unavoidable_rows(rows[stale]).tolist()}
            for at in stale.nonzero()[0].tolist():
                row: int = rows.item(at)
                if row == self._own_row:
                    continue
                lower = less_important(nodes.pods(row), pod)
                if not lower:
                    self._cache.store(
                        row, int(stamps[row]), NoCandidate(nodes.names[row], NO_VICTIMS)
                    )
                    done[at] = True
                elif row in unavoidable:
                    removals.append(Removal(row, lower))
                    done[at] = True
            diagnosis = dry_runner.diagnose_unavoidable(removals) if removals else None
        except PluginFailure:
            return np.zeros(len(rows), np.bool_)  # found again, on the first node that it affects
        for index, (row, _) in enumerate(removals):
            status = None if diagnosis is None else diagnosis.status(index)
            if status is not None:
                self._cache.store(row, int(stamps[row]), NoCandidate(nodes.names[row], status))
        return done

    def _run_singly(self, rows: RowArray, stale: BoolColumn) -> None:
        for at in range(len(rows)):
            row = rows[at : at + 1]
            if stale[at]:
                self._compute(row)
            self._add(row)
            if self._complete:
                return

    def _compute(self, rows: RowArray) -> None:
        if not len(rows):
            return
        stamps = self._dry_runner.row_stamps
        for dry_run in self._dry_runner.dry_runs(rows):
            selection = _VictimSelection(dry_run, self._dry_runner.pod, self._budgets)
            selection.run()
            for index, row in enumerate(dry_run.rows.tolist()):
                # No row has a stamp of -1, so the next pod computes the own row again.
                stamp = -1 if row == self._own_row else int(stamps[row])
                self._cache.store(row, stamp, selection.result(index, dry_run.nodes.names[index]))

    def _add(self, rows: RowArray) -> None:
        """Add the cached results of rows, until there are enough candidates."""
        kinds = self._cache.kinds(rows)
        places = kinds.nonzero()[0]
        last = self._last_needed(kinds[places])
        if last is not None:
            self._complete = True
            places = places[: last + 1]
            kinds = kinds[: places.item(last) + 1]
        self._without_violation += int(np.count_nonzero(kinds == _NO_VIOLATION))
        self.candidates += self._cache.candidates(rows[places].tolist())
        self._examined.append((rows, kinds))

    def _last_needed(self, kinds: Kinds) -> int | None:
        """The index of the further candidate that completes the search; None if none does."""
        if self._limit is None:
            return None
        last = max(self._limit - len(self.candidates), 1) - 1
        if not self._without_violation:
            found = (kinds == _NO_VIOLATION).nonzero()[0]
            if not len(found):
                return None
            last = max(last, found.item(0))
        return last if last < len(kinds) else None

    @property
    def rejected(self) -> Mapping[str, Status]:
        """By node: why preemption does not help there."""
        rejected = [rows[: len(kinds)][kinds == _REJECTED] for rows, kinds in self._examined]
        results = (self._cache.get(row) for rows in rejected for row in rows.tolist())
        return {each.node: each.status for each in results if isinstance(each, NoCandidate)}

    @property
    def errors(self) -> list[str]:
        return [s.message for s in self.rejected.values() if s.code is Code.ERROR]

    def shortlist(self, limit: int) -> Sequence[Candidate]:
        """At most ``limit`` candidates without a violation, then as many others."""
        if self._without_violation == len(self.candidates) <= limit:
            return self.candidates
        preferred = [c for c in self.candidates if not c.pdb_violations]
        others = [c for c in self.candidates if c.pdb_violations]
        return preferred[:limit] + others[:limit]


def less_important(pods: Iterable[PodInfo], than: PodInfo) -> list[PodInfo]:
    """The pods of a lower priority, in order."""
    priority = than.priority
    return [pod for pod in pods if pod.priority < priority]


class _VictimSelection:
    """``SelectVictimsOnNode`` of kube-scheduler, for all rows of a dry run at once. All potential
    victims are removed. Then, round by round, the next one of each row is added back, and stays if
    the pod still fits."""

    def __init__(self, dry_run: FilterDryRun, pod: PodInfo, budgets: Budgets) -> None:
        self._dry_run = dry_run
        self._budgets = budgets
        self._potential: list[list[PodInfo]] = []
        """The less important pods of each row, the most important of them first."""
        for row in range(dry_run.nodes.size):
            lower = less_important(dry_run.nodes.pods(row), pod)
            if len(lower) > 1:
                lower.sort(key=lambda victim: (-victim.priority, start_time(victim)))
            self._potential.append(lower)
        self._victims: dict[int, list[PodInfo]] = {}
        self._violating: dict[int, set[str]] = {}
        self._rejected: dict[int, Status] = {}

    def run(self) -> None:
        dry_run, potential = self._dry_run, self._potential
        dry_run.remove([(row, pod) for row, pods in enumerate(potential) for pod in pods])
        diagnosis = dry_run.diagnose()
        to_reprieve: dict[int, list[PodInfo]] = {}
        for row, pods in enumerate(potential):
            status = diagnosis.status(row) if pods else NO_VICTIMS
            if status is not None:
                self._rejected[row] = status
                continue
            violating, others = self._budgets.split(pods)
            self._violating[row] = {pod.uid for pod in violating}
            self._victims[row] = []
            to_reprieve[row] = violating + others
        for number in range(max(map(len, to_reprieve.values()), default=0)):
            self._reprieve(
                [(row, pods[number]) for row, pods in to_reprieve.items() if number < len(pods)]
            )

    def _reprieve(self, placed: Sequence[Placed]) -> None:
        """Add one pod back on each of some rows; it is a victim if the preemptor does not fit
        then."""
        self._dry_run.add(placed)
        passing = self._dry_run.diagnose().passing.tolist()
        victims = [(row, pod) for row, pod in placed if not passing[row]]
        if victims:
            self._dry_run.remove(victims)
        for row, pod in victims:
            self._victims[row].append(pod)

    def result(self, row: int, node: str) -> Candidate | NoCandidate:
        status = self._rejected.get(row)
        if status is not None:
            return NoCandidate(node, status)
        victims, violating = self._victims[row], self._violating[row]
        if not victims:
            message = f'expected at least one victim pod on node "{node}"'
            return NoCandidate(node, Status.error(message))
        selected = {pod.uid for pod in victims}
        in_order = [pod for pod in self._potential[row] if pod.uid in selected]
        return Candidate.of(node, in_order, len(violating & selected))


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
