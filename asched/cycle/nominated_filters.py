"""Shared filter results of one pod shape with nominated pods added to their nodes, updated
incrementally.

Preemptors often come in series of identical pods, and each adds one nomination. While one exists,
every decision compares its nodes with it: only what changed is computed again.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from asched.cycle.node_selection import BestNodes, TopScores
from asched.cycle.shape_scores import INFEASIBLE
from asched.framework.caching import RowCache
from asched.framework.nodes import BoolColumn, Int64Column, RowArray
from asched.framework.runtime.diagnosis import PASSES, FilterDiagnosis, StatusTable
from asched.framework.runtime.dry_run import FilterDryRunner

_MAX_STATUSES = 4096


class NominatedFilterCache:
    """Results for pods of one shape and priority. A cache: clearing it changes no decision."""

    def __init__(self) -> None:
        self._clear()
        self._rejected: RowArray = np.zeros(0, np.intp)
        self.feasible: BoolColumn = np.zeros(0, np.bool_)
        """By row: the result of the latest :meth:`without_rejected`."""
        self.count = 0
        """Number of rows in :attr:`feasible`."""
        self._version: int | None = None
        """Of the feasible rows from which :attr:`feasible` was computed; None if outdated."""
        self._totals: TopScores | None = None
        """Of all feasible nodes, as they were at :attr:`_cursor`."""
        self._cursor = 0
        self._top = TopScores(np.zeros(0, np.int64))
        """The same without rejected nodes; valid if :attr:`_totals` is not None."""

    def _clear(self) -> None:
        self._known: RowCache[None] = RowCache()
        self._rows: RowArray | None = None
        """The nodes with nominated pods for which :attr:`_rejected` is valid; None if outdated."""
        self.found = FilterDiagnosis(0, StatusTable())
        """By row of the cluster's nodes."""

    def rejected(
        self, dry_runner: Callable[[], FilterDryRunner], rows: RowArray, stamps: Int64Column
    ) -> RowArray:
        """Those of ``rows`` that a filter rejects with the pods nominated there; :attr:`found` has
        the reasons. ``dry_runner`` is called only if rows changed. Raises :class:`PluginFailure`.
        """
        if len(self.found.statuses) > _MAX_STATUSES:
            self._clear()
        stale = self._known.stale(rows, stamps)
        if len(stale):
            self._rows = None
            self.found.extend(len(stamps))
            self.found.clear(stale)
            for hosts, result in dry_runner().with_nominated(stale):
                self.found.copy_rows(hosts, result, np.arange(len(hosts)))
            for row in stale.tolist():
                self._known.put(row, int(stamps[row]), None)
        if rows is not self._rows:
            rejected = rows[self.found.rank[rows] != PASSES] if len(rows) else rows
            if not np.array_equal(rejected, self._rejected):
                self._rejected, self._version = rejected, None
            self._rows = rows
        return self._rejected

    def without_rejected(self, feasible: BoolColumn, version: int) -> BoolColumn:
        """``feasible`` without the rows of the latest :meth:`rejected`; the same object if none of
        them is feasible. ``version`` differs whenever ``feasible`` does."""
        if version != self._version:
            self._version, self._totals = version, None
            self.feasible = feasible
            if feasible[self._rejected].any():
                self.feasible = feasible.copy()
                self.feasible[self._rejected] = False
            self.count = int(np.count_nonzero(self.feasible))
        return self.feasible

    def best(self, totals: TopScores) -> BestNodes:
        """The nodes of :attr:`feasible` with the highest of these totals, which are valid for any
        subset of the nodes; there must be one. Valid until the next change."""
        changed = totals.changes.since(self._cursor) if totals is self._totals else None
        if changed is None:
            self._totals = totals
            self._top = TopScores(np.where(self.feasible, totals.totals, INFEASIBLE))
        else:
            for row in changed:
                feasible = self.feasible.item(row)
                self._top.set(row, totals.totals.item(row) if feasible else INFEASIBLE)
        self._cursor = totals.changes.cursor
        return self._top.best
