"""Which pods of a node have to be evicted for a preemptor (``SelectVictimsOnNode`` of
kube-scheduler), for many nodes at once."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from itertools import chain, compress
from operator import neg
from typing import NamedTuple

import numpy as np

from asched.framework.nodes import Nodes
from asched.framework.pod_info import PodInfo, start_time
from asched.framework.runtime.dry_run import FilterDryRun, FilterDryRunner, Placed
from asched.framework.status import Status
from asched.plugins.default_preemption.budgets import Budgets

NO_VICTIMS = Status.unresolvable("No preemption victims found for incoming pod")

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_PRIORITY_OFFSET = 1 << 31
"""Added to each priority in a sum, so that fewer pods of a negative priority sum to less."""


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

    @classmethod
    def of_sorted(
        cls, node: str, victims: Sequence[PodInfo], pdb_violations: int, priorities: int
    ) -> Candidate:
        """The same for victims sorted by importance, if the sum of their priorities is known."""
        first, number = victims[0], len(victims)
        total = priorities + _PRIORITY_OFFSET * number
        cost = (pdb_violations, first.priority, total, number, _EPOCH - start_time(first))
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
                lower.sort(key=_importance)
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
            return _without_victims(node)
        selected = {pod.uid for pod in victims}
        in_order = [pod for pod in self._potential[row] if pod.uid in selected]
        return Candidate.of(node, in_order, len(violating & selected))


class LessImportant(NamedTuple):
    """The pods of a node that a preemptor may evict, the most important first."""

    row: int
    pods: Sequence[PodInfo]
    priorities: Sequence[int]


class PodsByImportance:
    """The pods of each node, the most important first. A cache for preemptors of all shapes."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[int, list[PodInfo], list[int]]] = {}

    def below(self, nodes: Nodes, row: int, stamp: int, priority: int) -> LessImportant:
        """The pods of a row of ``nodes`` with a lower priority. ``stamp`` is the row's
        (``Cluster.row_stamps``)."""
        known = self._known.get(row)
        if known is None or known[0] != stamp:
            pods = sorted(nodes.pods(row), key=_importance)
            known = self._known[row] = (stamp, pods, [pod.priority for pod in pods])
        _, pods, priorities = known
        if not pods or priorities[0] < priority:
            return LessImportant(row, pods, priorities)
        first = bisect_right(priorities, -priority, key=neg)
        return LessImportant(row, pods[first:], priorities[first:])


class AmountsSelection:
    """Like :class:`VictimSelection`, if pods on nodes matter by their amounts only: sums are
    changed instead of nodes with pods."""

    def __init__(
        self, dry_runner: FilterDryRunner, potential: Sequence[LessImportant], budgets: Budgets
    ) -> None:
        """``potential``: for rows of the cluster's nodes to which no pods are nominated, at least
        one pod each."""
        self._potential = potential
        split = [budgets.split(row.pods) for row in potential]
        self._violating = [len(violating) for violating, _ in split]
        """How many of :attr:`_in_order` would violate a budget."""
        self._in_order = [violating + others for violating, others in split]
        """The pods of each row in the order in which they are put back."""
        rows = np.array([row.row for row in potential], np.intp)
        self._run = dry_runner.reduced(rows, self._in_order)
        self._first: list[int] = self._run.nodes.first.tolist()
        self._rejected: dict[int, Status] = {}
        self._removed: list[bool] = []
        self._sums: list[int] = []
        """By row: the sum of the priorities of its victims."""

    def run(self) -> None:
        """Raises PluginFailure."""
        nodes, run = self._run.nodes, self._run
        diagnosis = run.diagnose()
        fits = diagnosis.passing
        for row in (~fits).nonzero()[0].tolist():
            status = diagnosis.status(row)
            if status is not None:
                self._rejected[row] = status
        lengths = np.array([len(pods) for pods in self._in_order], np.intp)
        lengths[~fits] = 0
        for number in range(int(lengths.max())):
            rows = (lengths > number).nonzero()[0]
            pods = nodes.first[rows] + number
            nodes.put_back(pods)
            victims = pods[~run.diagnose().passing[rows]]
            if len(victims):
                nodes.remove(victims)
        self._removed = nodes.removed.tolist()
        priorities = np.array([*chain.from_iterable(self._priorities())], np.int64)
        self._sums = np.add.reduceat(np.where(nodes.removed, priorities, 0), nodes.first).tolist()

    def _priorities(self) -> Iterator[Iterable[int]]:
        """By row, in the order of :attr:`_in_order`."""
        for row, violating, in_order in zip(
            self._potential, self._violating, self._in_order, strict=True
        ):
            yield [pod.priority for pod in in_order] if violating else row.priorities

    def result(self, index: int, node: str) -> Candidate | NoCandidate:
        """The result of the row of this index; ``node`` is its name."""
        status = self._rejected.get(index)
        if status is not None:
            return NoCandidate(node, status)
        first, in_order = self._first[index], self._in_order[index]
        victims = [*compress(in_order, self._removed[first : first + len(in_order)])]
        violations = sum(self._removed[first : first + self._violating[index]])
        if violations:
            selected = {pod.uid for pod in victims}
            victims = [pod for pod in self._potential[index].pods if pod.uid in selected]
        if not victims:
            return _without_victims(node)
        return Candidate.of_sorted(node, victims, violations, self._sums[index])


def _without_victims(node: str) -> NoCandidate:
    return NoCandidate(node, Status.error(f'expected at least one victim pod on node "{node}"'))


def _importance(pod: PodInfo) -> tuple[int, datetime]:
    """Sorts the most important pod first (``MoreImportantPod``)."""
    return -pod.priority, start_time(pod)
