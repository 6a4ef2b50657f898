"""The dry run of preemption: which victims each node needs, cached per node.

Preemptors often come in series of identical pods. The result of a node is computed once for all of
them, and again only after something about the node changed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import compress
from typing import Final

import numpy as np

from asched.framework.caching import RowCache
from asched.framework.nodes import BoolColumn, Int64Column, RowArray
from asched.framework.runtime.dry_run import FilterDryRunner, Removal
from asched.framework.runtime.plugin_calls import PluginFailure
from asched.framework.status import Code, Status
from asched.plugins.default_preemption.budgets import Budgets
from asched.plugins.default_preemption.importance import PodsByImportance
from asched.plugins.default_preemption.victims import (
    CRITERIA,
    NO_VICTIMS,
    VICTIMS,
    VIOLATIONS,
    AmountsSelection,
    Candidate,
    NoCandidate,
    VictimSelection,
    less_important,
    without_victims,
)

_FEW = 16
"""Rows that are computed at a time if hardly one more is needed."""
_MOST_COPIED = 64
"""Rows that are computed at a time if nodes are copied with their pods."""
MAX_STEPS: Final = 12_500_000
"""A search ends after the row with which it exceeds this number."""
_STEPS_PER_NODE, _STEPS_PER_POD, _STEPS_PER_BUDGET = 20, 40, 4
"""To select victims by amounts: for each node, for each of its less important pods, and for each
budget of the pod's namespace."""
_STEPS_OF_COPY, _STEPS_OF_FILTERS = 250, 2_500
"""To run the filters once for a node with copies of pods: those that read the node only, or all.
They run for each less important pod, if the preemptor fits without all of them."""
_STEPS_OF_REMOVAL = 25
"""To find out that preemption does not help, for each pod."""
_REMOVALS_PER_FILTER = 10
"""Pods that are removed in the time of one run of the filters."""
TOO_LONG = Status.unschedulable("search for victims stopped: too many pods")
_REJECTED, _VIOLATES_PDB, _NO_VIOLATION = 0, 1, 2
"""Kinds of results: no candidate, a candidate that violates a budget, one that violates none."""

Kinds = np.ndarray[tuple[int], np.dtype[np.int8]]


class DryRunCache(RowCache[Candidate | bytes]):
    """Results by row, for pods of one shape and priority. The value of a candidate is a
    :class:`Candidate`, or which of the less important pods on the row are victims."""

    __slots__ = ("_costs", "_kinds", "_numbers", "_status_of", "_statuses", "_steps")

    def __init__(self) -> None:
        super().__init__()
        self._kinds = np.zeros(0, np.int8)
        self._steps: Int64Column = np.zeros(0, np.int64)
        self._costs: Int64Column = np.zeros((CRITERIA, 0), np.int64)
        self._status_of: Int64Column = np.zeros(0, np.int64)
        """Of rejected rows: the number of the status."""
        self._statuses: list[Status] = []
        self._numbers: dict[Status, int] = {}

    def is_stale(self, rows: RowArray, stamps: Int64Column) -> BoolColumn:
        missing = len(stamps) - len(self._kinds)
        if missing > 0:
            zeros = np.zeros(missing, np.int64)
            self._kinds = np.concatenate([self._kinds, zeros.astype(np.int8)])
            self._steps = np.concatenate([self._steps, zeros])
            self._status_of = np.concatenate([self._status_of, zeros])
            self._costs = np.concatenate([self._costs, np.zeros((CRITERIA, missing), np.int64)], 1)
        return super().is_stale(rows, stamps)

    def store_candidates(
        self,
        rows: RowArray,
        stamps: Int64Column,
        values: Iterable[Candidate | bytes],
        costs: Int64Column,
    ) -> None:
        """Store results of rows that :meth:`is_stale` covered before. ``stamps`` are theirs."""
        self._values.update(zip(rows.tolist(), values, strict=True))
        self._stamps[rows] = stamps
        self._costs[:, rows] = costs
        self._kinds[rows] = np.where(costs[VIOLATIONS] > 0, _VIOLATES_PDB, _NO_VIOLATION)

    def store_rejected(
        self, rows: RowArray, stamps: Int64Column, statuses: Iterable[Status]
    ) -> None:
        """The same for rows on which preemption does not help."""
        numbers = self._numbers
        self._status_of[rows] = [numbers.setdefault(s, len(numbers)) for s in statuses]
        self._statuses += [*numbers][len(self._statuses) :]
        self._stamps[rows] = stamps
        self._kinds[rows] = _REJECTED

    def store_steps(self, rows: RowArray, steps: Int64Column) -> None:
        """The counted steps of the dry run of each row."""
        self._steps[rows] = steps

    def steps(self, rows: RowArray) -> Int64Column:
        """The counted steps of each of these rows; they must not be stale."""
        return self._steps[rows]

    def costs(self, rows: RowArray) -> Int64Column:
        """By criterion, the cost of each of these rows; each must be a candidate."""
        return self._costs[:, rows]

    def violations(self, row: int) -> int:
        """The budgets that the victims of a candidate violate."""
        return self._costs.item(VIOLATIONS, row)

    def statuses(self, rows: RowArray) -> list[Status]:
        """The status of each of these rows; each must be rejected."""
        statuses = self._statuses
        return [statuses[number] for number in self._status_of[rows].tolist()]

    def counted(self, rows: RowArray) -> dict[Status, int]:
        """The statuses of these rows, each with the number of rows, in the order of the rows."""
        numbers, first, counts = np.unique(
            self._status_of[rows], return_index=True, return_counts=True
        )
        order = np.argsort(first)
        found = zip(numbers[order].tolist(), counts[order].tolist(), strict=True)
        return {self._statuses[number]: count for number, count in found}

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
        by_importance: PodsByImportance,
        *,
        own_row: int | None = None,
        limit: int | None = None,
    ) -> None:
        """``cache`` holds the results of pods of the same shape and priority. ``own_row`` is the
        row to which the pod is nominated: for other pods, the result there would include this pod,
        so it is not shared. ``limit``: how many candidates are enough; None finds all."""
        self._dry_runner = dry_runner
        self._cache = cache
        self._budgets = budgets
        self._by_importance = by_importance
        self._own_row = own_row
        self._limit = limit
        self._batch = _FEW
        self._complete = False
        """Whether there are enough candidates, and one of them violates no budget, or the search
        took too long."""
        self._without_violation = 0
        self.steps = 0
        """Counted as if no result were known."""
        self._rows: list[RowArray] = []
        """The examined rows."""
        self._candidates: list[RowArray] = []
        """The candidates among them."""
        self.found = 0
        """The number of candidates."""
        self.stopped = 0
        """How many rows were not examined because the search took too many steps."""

    def run(self, rows: RowArray) -> None:
        """Examine rows of the cluster's nodes in order. Raises PluginFailure if a filter fails."""
        stale = self._cache.is_stale(rows, self._dry_runner.row_stamps)
        if self._own_row is not None:
            stale |= rows == self._own_row
        if not self._dry_runner.reads_only_own_row:
            stale[self._reject(rows, stale)] = False
        to_compute, begin = stale.nonzero()[0], 0
        while begin < len(rows):
            # At most as many at a time as are likely to be needed.
            further = to_compute[self._likely_needed() :]
            end = int(further[0]) if len(further) else len(rows)
            to_compute = further
            batch = rows[begin:end]
            try:
                self._compute(batch[stale[begin:end]])
                self._add(batch)
            except PluginFailure:
                # A batch runs filters for nodes that other filters reject, and for more nodes than
                # needed. The effect of a failure must not depend on the cache.
                self._run_singly(batch, stale[begin:end])
            if self._complete:
                break
            begin = end
        if self.steps > MAX_STEPS:
            self.stopped = len(rows) - sum(map(len, self._rows))

    def _likely_needed(self) -> int:
        """How many more rows to compute at a time: the number grows while they do not suffice."""
        if not self._dry_runner.reads_only_own_row:
            return 1
        most = len(self._dry_runner.row_stamps)
        if not self._dry_runner.reads_only_amounts:
            most = _MOST_COPIED
        elif self._limit is None:
            return most
        batch, self._batch = self._batch, 2 * self._batch
        needed = 0 if self._limit is None else self._limit - self.found
        return min(max(batch, needed), most)

    def _reject(self, rows: RowArray, stale: BoolColumn) -> BoolColumn:
        """Store the results of nodes that need no dry run of their own: those without less
        important pods, and those that no preemption helps. Returns which of ``rows`` these are."""
        dry_runner, done = self._dry_runner, np.zeros(len(rows), np.bool_)
        nodes, pod = dry_runner.cluster_nodes, dry_runner.pod
        removals: list[Removal] = []
        unhelpful: list[int] = []
        try:
            unavoidable = {*dry_runner.unavoidable_rows(rows[stale]).tolist()}
            for at in stale.nonzero()[0].tolist():
                row: int = rows.item(at)
                if row == self._own_row:
                    continue
                lower = less_important(nodes.pods(row), pod)
                if not lower:
                    unhelpful.append(row)
                    done[at] = True
                elif row in unavoidable:
                    removals.append(Removal(row, lower))
                    done[at] = True
            diagnosis = dry_runner.diagnose_unavoidable(removals) if removals else None
        except PluginFailure:
            return np.zeros(len(rows), np.bool_)  # found again, on the first node that it affects
        self._store_rejected(np.array(unhelpful, np.intp), [NO_VICTIMS] * len(unhelpful))
        if diagnosis is not None:
            statuses, where = diagnosis.statuses, np.array([row for row, _ in removals], np.intp)
            self._store_rejected(where, [statuses[code] for code in diagnosis.code.tolist()])
            pods = np.array([len(pods) for _, pods in removals], np.int64)
            self._cache.store_steps(where, _STEPS_OF_REMOVAL * (_STEPS_PER_NODE + pods))
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
        dry_runner = self._dry_runner
        if dry_runner.reads_only_amounts:
            nominated = dry_runner.has_nominated_pods(rows)
            self._select_by_amounts(rows[~nominated])
            rows = rows[nominated]
            if not len(rows):
                return
        per_filter = _STEPS_OF_COPY if dry_runner.reads_only_own_row else _STEPS_OF_FILTERS
        for dry_run in dry_runner.dry_runs(rows):
            selection = VictimSelection(dry_run, dry_runner.pod, self._budgets)
            selection.run()
            steps = []
            for index, name in enumerate(dry_run.nodes.names):
                row, result = dry_run.rows[index : index + 1], selection.result(index, name)
                pods = selection.potential(index)
                if isinstance(result, NoCandidate):
                    steps.append(per_filter + per_filter * pods // _REMOVALS_PER_FILTER)
                    self._store_rejected(row, [result.status])
                else:
                    steps.append(per_filter * (1 + pods))
                    costs = np.array(result.cost, np.int64).reshape(CRITERIA, 1)
                    self._cache.store_candidates(row, self._stamps(row), [result], costs)
            self._cache.store_steps(dry_run.rows, np.array(steps, np.int64))

    def _select_by_amounts(self, rows: RowArray) -> None:
        if not len(rows):
            return
        dry_runner = self._dry_runner
        nodes, stamps = dry_runner.cluster_nodes, dry_runner.row_stamps
        lower = self._by_importance.below(nodes, rows, stamps, dry_runner.pod.priority)
        lengths = lower.removable.lengths
        steps = _STEPS_PER_NODE + _STEPS_PER_POD * lengths
        steps += _STEPS_PER_BUDGET * self._budgets.counted(lower)
        self._cache.store_steps(rows, steps)
        examined = np.cumsum(steps) - steps <= MAX_STEPS - self.steps
        if not examined.all():
            lower, rows = lower.take(examined.nonzero()[0]), rows[examined]
            lengths = lower.removable.lengths
        if not lengths.all():
            empty = rows[lengths == 0]
            self._store_rejected(empty, [NO_VICTIMS] * len(empty))
            lower, rows = lower.take(lengths.nonzero()[0]), rows[lengths > 0]
            if not len(rows):
                return
        selection = AmountsSelection(dry_runner, rows, lower, self._budgets)
        selection.run()
        self._store_rejected(rows[selection.rejected], selection.statuses)
        rows, costs = rows[selection.found], selection.costs()
        self._cache.store_candidates(rows, self._stamps(rows), selection.masks(), costs)
        empty = rows[costs[VICTIMS] == 0]
        if len(empty):
            self._store_rejected(empty, [without_victims(nodes.names[r]) for r in empty.tolist()])

    def _store_rejected(self, rows: RowArray, statuses: Sequence[Status]) -> None:
        if len(rows):
            self._cache.store_rejected(rows, self._stamps(rows), statuses)

    def _stamps(self, rows: RowArray) -> Int64Column:
        # No row has a stamp of -1, so the next pod computes the own row again.
        stamps = self._dry_runner.row_stamps[rows]
        return stamps if self._own_row is None else np.where(rows == self._own_row, -1, stamps)

    def _add(self, rows: RowArray) -> None:
        """Add the cached results of rows, until there are enough candidates."""
        steps = np.cumsum(self._cache.steps(rows)) + self.steps
        beyond = int(np.searchsorted(steps, MAX_STEPS, side="right"))
        if beyond < len(rows):
            self._complete = True
            rows = rows[: beyond + 1]
        kinds = self._cache.kinds(rows)
        places = kinds.nonzero()[0]
        last = self._last_needed(kinds[places])
        if last is not None:
            self._complete = True
            places = places[: last + 1]
            rows = rows[: places.item(last) + 1]
        if len(rows):
            self.steps = steps.item(len(rows) - 1)
        self._rows.append(rows)
        if len(places):
            self._candidates.append(rows[places])
            self._without_violation += int(np.count_nonzero(kinds[places] == _NO_VIOLATION))
            self.found += len(places)

    def _last_needed(self, kinds: Kinds) -> int | None:
        """The index of the further candidate that completes the search; None if none does."""
        if self._limit is None:
            return None
        last = max(self._limit - self.found, 1) - 1
        if not self._without_violation:
            found = (kinds == _NO_VIOLATION).nonzero()[0]
            if not len(found):
                return None
            last = max(last, found.item(0))
        return last if last < len(kinds) else None

    @property
    def candidates(self) -> Sequence[Candidate]:
        """All candidates in the order in which they were found."""
        return self._made(self._candidate_rows())

    def _candidate_rows(self) -> RowArray:
        return np.concatenate([np.zeros(0, np.intp), *self._candidates])

    def _rejected_rows(self) -> RowArray:
        rows: RowArray = np.concatenate([np.zeros(0, np.intp), *self._rows])
        rejected: RowArray = rows[self._cache.kinds(rows) == _REJECTED]
        return rejected

    @property
    def rejected(self) -> Mapping[str, Status]:
        """By node: why preemption does not help there."""
        rows, names = self._rejected_rows(), self._dry_runner.cluster_nodes.names
        statuses = self._cache.statuses(rows)
        return {names[row]: status for row, status in zip(rows.tolist(), statuses, strict=True)}

    def counted(self) -> dict[Status, int]:
        """Why preemption does not help, each reason with the number of nodes."""
        found = self._cache.counted(self._rejected_rows())
        if self.stopped:
            found[TOO_LONG] = self.stopped
        return found

    @property
    def errors(self) -> list[str]:
        if all(status.code is not Code.ERROR for status in self.counted()):
            return []
        return [s.message for s in self.rejected.values() if s.code is Code.ERROR]

    def _shortlist(self, limit: int) -> RowArray:
        """At most ``limit`` candidates without a violation, then as many others."""
        rows = self._candidate_rows()
        if self._without_violation == len(rows) <= limit:
            return rows
        violates = self._cache.kinds(rows) == _VIOLATES_PDB
        return np.concatenate([rows[~violates][:limit], rows[violates][:limit]])

    def shortlist(self, limit: int) -> Sequence[Candidate]:
        """At most ``limit`` candidates without a violation, then as many others."""
        return self._made(self._shortlist(limit))

    def best(self, limit: int) -> Candidate:
        """The first candidate of :meth:`shortlist` with the lowest cost."""
        rows = self._shortlist(limit)
        costs = self._cache.costs(rows)
        # Usually one candidate is the best by all criteria.
        lowest = (costs == costs.min(axis=1, keepdims=True)).all(axis=0).nonzero()[0]
        if not len(lowest):
            lowest = np.arange(len(rows))
            for of_criterion in costs:
                left = of_criterion[lowest]
                lowest = lowest[left == left.min()]
        return self._made(rows[lowest[:1]])[0]

    def _made(self, rows: RowArray) -> list[Candidate]:
        dry_runner, cache = self._dry_runner, self._cache
        nodes, stamps = dry_runner.cluster_nodes, dry_runner.row_stamps
        made = []
        for row in rows.tolist():
            value = cache.get(row)
            if isinstance(value, bytes):
                lower = self._by_importance.below_on(nodes, row, stamps, dry_runner.pod.priority)
                violations = cache.violations(row)
                value = Candidate.of(nodes.names[row], [*compress(lower, value)], violations)
            made.append(value)
        return made
