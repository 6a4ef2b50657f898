"""Which pods of a node have to be evicted for a preemptor (``SelectVictimsOnNode`` of
kube-scheduler), for many nodes at once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Final, NamedTuple

import numpy as np

from asched.framework.nodes import BoolColumn, Int64Column, RowArray
from asched.framework.pod_info import PodInfo
from asched.framework.runtime.dry_run import FilterDryRun, FilterDryRunner, Placed
from asched.framework.status import Status
from asched.plugins.default_preemption.budgets import Budgets
from asched.plugins.default_preemption.importance import LowerPods, importance, started_us

NO_VICTIMS = Status.unresolvable("No preemption victims found for incoming pod")

VIOLATIONS, HIGHEST_PRIORITY, PRIORITIES, VICTIMS, START = range(5)
"""The parts of the cost of a candidate: the criteria of ``pickOneNodeForPreemption`` in their
order. Lowest is best."""
CRITERIA: Final = 5

_PRIORITY_OFFSET = 1 << 31
"""Added to each priority in a sum, so that fewer pods of a negative priority sum to less."""
_FEW, _MORE = 16, 4
"""Rows with up to so many pods are put back together; the next ones have up to so many times more.
"""


class Candidate(NamedTuple):
    """A node on which the pod would fit without the victims."""

    node: str
    victims: tuple[PodInfo, ...]
    """The most important first. Some may already be terminating."""
    pdb_violations: int
    cost: tuple[int, ...]
    """Lowest is best; by :data:`VIOLATIONS` and the following."""

    @classmethod
    def of(cls, node: str, victims: Sequence[PodInfo], pdb_violations: int) -> Candidate:
        priorities = [victim.priority for victim in victims]
        highest = max(priorities)
        earliest_us = min(started_us(victim) for victim in victims if victim.priority == highest)
        total = sum(priorities) + _PRIORITY_OFFSET * len(priorities)
        # kube-scheduler uses the first victim's priority, also in the order an extender returns.
        cost = (pdb_violations, priorities[0], total, len(priorities), -earliest_us)
        return cls(node, tuple(victims), pdb_violations, cost)


class NoCandidate(NamedTuple):
    """A node on which preemption does not help, and why."""

    node: str
    status: Status


def less_important(pods: Iterable[PodInfo], than: PodInfo) -> list[PodInfo]:
    """The pods of a lower priority, in order."""
    priority = than.priority
    return [pod for pod in pods if pod.priority < priority]


class VictimSelection:
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
                lower.sort(key=importance)
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

    def potential(self, row: int) -> int:
        """How many pods of the row are less important."""
        return len(self._potential[row])

    def result(self, row: int, node: str) -> Candidate | NoCandidate:
        status = self._rejected.get(row)
        if status is not None:
            return NoCandidate(node, status)
        victims, violating = self._victims[row], self._violating[row]
        if not victims:
            return NoCandidate(node, without_victims(node))
        selected = {pod.uid for pod in victims}
        in_order = [pod for pod in self._potential[row] if pod.uid in selected]
        return Candidate.of(node, in_order, len(violating & selected))


class AmountsSelection:
    """Like :class:`VictimSelection`, if pods on nodes matter by their amounts only: sums are
    changed instead of nodes with pods. The results are columns."""

    def __init__(
        self, dry_runner: FilterDryRunner, rows: RowArray, lower: LowerPods, budgets: Budgets
    ) -> None:
        """``rows``: of the cluster's nodes, to which no pods are nominated, with at least one pod
        each in ``lower``."""
        self._dry_runner = dry_runner
        self._rows = rows
        self._lower = lower
        self._budgets = budgets
        self.rejected: RowArray = np.zeros(0, np.intp)
        """The indexes of the rows on which the pod does not fit without these pods."""
        self.statuses: list[Status] = []
        """Why, for each of these."""
        self.found: RowArray = np.zeros(0, np.intp)
        """The indexes of the other rows."""
        self._evicted: BoolColumn = np.zeros(0, np.bool_)
        self._violating: BoolColumn | None = None

    def run(self) -> None:
        """Raises PluginFailure."""
        run = self._dry_runner.reduced(self._rows, self._lower.removable)
        diagnosis = run.diagnose()
        fits = diagnosis.passing
        self.rejected, self.found = (~fits).nonzero()[0], fits.nonzero()[0]
        statuses, codes = diagnosis.statuses, diagnosis.code[self.rejected]
        self.statuses = [statuses[code] for code in codes.tolist()]
        if len(self.rejected):
            self._lower = self._lower.take(self.found)
        if not len(self.found):
            return
        self._violating = self._budgets.violating(self._lower)
        removable = self._lower.removable
        rows, lengths = self._rows[self.found], removable.lengths
        self._evicted = np.ones(len(removable.entries), np.bool_)
        # Each round takes as long as there are rows in it.
        few = _FEW
        left = np.arange(len(rows))
        while len(left):
            part = left[lengths[left] <= few]
            if len(part):
                self._reprieve(rows[part], part)
            left, few = left[lengths[left] > few], few * _MORE

    def _reprieve(self, rows: RowArray, part: RowArray) -> None:
        """Put the pods of these rows back, round by round."""
        removable, numbers = self._lower.removable.take(part)
        if self._violating is not None:
            of_row = np.repeat(np.arange(len(part)), removable.lengths)
            order = np.lexsort((~self._violating[numbers], of_row))
            removable, numbers = removable.reordered(order), numbers[order]
        run = self._dry_runner.reduced(rows, removable)
        nodes, first, lengths = run.nodes, removable.first, removable.lengths
        for number in range(int(lengths.max())):
            pods = first[lengths > number] + number
            nodes.put_back(pods)
            victims = pods[~run.diagnose().passing[lengths > number]]
            if len(victims):
                nodes.remove(victims)
        self._evicted[numbers] = nodes.removed

    def costs(self) -> Int64Column:
        """By criterion, the cost of each row of :attr:`found`; all zero without victims."""
        lower, evicted = self._lower, self._evicted
        first, rows = lower.removable.first, len(self.found)
        costs = np.zeros((CRITERIA, rows), np.int64)
        if not rows:
            return costs
        victims = np.add.reduceat(evicted.astype(np.int64), first)
        if self._violating is not None:
            violating = (self._violating & evicted).astype(np.int64)
            costs[VIOLATIONS] = np.add.reduceat(violating, first)
        sums = np.add.reduceat(np.where(evicted, lower.priorities, 0), first)
        evicted_pods, some = evicted.nonzero()[0], victims > 0
        firsts = evicted_pods[(np.cumsum(victims) - victims)[some]]
        costs[HIGHEST_PRIORITY, some] = lower.priorities[firsts]
        costs[PRIORITIES] = sums + _PRIORITY_OFFSET * victims
        costs[VICTIMS] = victims
        costs[START, some] = -lower.starts_us[firsts]
        return costs

    def masks(self) -> list[bytes]:
        """For each row of :attr:`found`, which of its less important pods are victims."""
        first, raw = self._lower.removable.first.tolist(), self._evicted.tobytes()
        return [raw[begin:end] for begin, end in pairwise([*first, len(raw)])]


def without_victims(node: str) -> Status:
    return Status.error(f'expected at least one victim pod on node "{node}"')
