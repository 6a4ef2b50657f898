"""The dry run of preemption: which victims each node needs, cached per node.

Preemptors often come in series of identical pods. The result of a node is computed once for all of
them, and again only after something about the node changed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import cast

import numpy as np

from asched.framework.caching import RowCache
from asched.framework.nodes import BoolColumn, RowArray
from asched.framework.runtime.dry_run import FilterDryRunner, Removal
from asched.framework.runtime.plugin_calls import PluginFailure
from asched.framework.status import Code, Status
from asched.plugins.default_preemption.budgets import Budgets
from asched.plugins.default_preemption.victims import (
    NO_VICTIMS,
    AmountsSelection,
    Candidate,
    NoCandidate,
    PodsByImportance,
    VictimSelection,
    less_important,
)

_FEW = 16
"""Rows that are computed at a time if hardly one more is needed."""
_REJECTED, _VIOLATES_PDB, _NO_VIOLATION = 0, 1, 2
"""Kinds of results: no candidate, a candidate that violates a budget, one that violates none."""


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
        by_importance: PodsByImportance,
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
        self._by_importance = by_importance
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

    def _likely_needed(self) -> int:
        """How many more rows to compute at a time."""
        if not self._dry_runner.reads_only_own_row:
            return 1
        if self._limit is None:
            return len(self._dry_runner.row_stamps)
        return max(_FEW, self._limit - len(self.candidates))

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
        dry_runner = self._dry_runner
        if dry_runner.reads_only_amounts:
            nominated = dry_runner.has_nominated_pods(rows)
            self._select_by_amounts(rows[~nominated])
            rows = rows[nominated]
            if not len(rows):
                return
        for dry_run in dry_runner.dry_runs(rows):
            selection = VictimSelection(dry_run, dry_runner.pod, self._budgets)
            selection.run()
            names = dry_run.nodes.names
            self._store(dry_run.rows, [selection.result(i, names[i]) for i in range(len(names))])

    def _select_by_amounts(self, rows: RowArray) -> None:
        dry_runner, priority = self._dry_runner, self._dry_runner.pod.priority
        nodes, stamps = dry_runner.cluster_nodes, dry_runner.row_stamps[rows].tolist()
        potential = [
            self._by_importance.below(nodes, row, stamp, priority)
            for row, stamp in zip(rows.tolist(), stamps, strict=True)
        ]
        names, with_pods = nodes.names, [each for each in potential if each.pods]
        if len(with_pods) < len(potential):
            empty = [each.row for each in potential if not each.pods]
            self._store(
                np.array(empty, np.intp), [NoCandidate(names[row], NO_VICTIMS) for row in empty]
            )
        if with_pods:
            selection = AmountsSelection(dry_runner, with_pods, self._budgets)
            selection.run()
            self._store(
                np.array([each.row for each in with_pods], np.intp),
                [selection.result(i, names[each.row]) for i, each in enumerate(with_pods)],
            )

    def _store(self, rows: RowArray, results: Sequence[Candidate | NoCandidate]) -> None:
        stamps = self._dry_runner.row_stamps[rows].tolist()
        for row, stamp, result in zip(rows.tolist(), stamps, results, strict=True):
            # No row has a stamp of -1, so the next pod computes the own row again.
            self._cache.store(row, -1 if row == self._own_row else stamp, result)

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
