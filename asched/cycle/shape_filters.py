"""Shared filter results of one pod shape for all nodes, updated incrementally.

The answers of *node-scope* plugins depend only on the pod's shape and on the node's own row. They
are computed again only for rows that changed: usually the node of the previous placement.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import itemgetter
from typing import Any, cast

import numpy as np

from asched.cycle.nominated_filters import NominatedFilterCache
from asched.cycle.shape_scores import FEW_ROWS, PATCH_SHARE, ShapeScores, UtilizationCache
from asched.framework.cycle_state import CycleState
from asched.framework.interface import FilterAllPlugin, FilterPlugin, PreFilterResult, Scope
from asched.framework.nodes import BoolColumn, FilterResult, Nodes, RowArray
from asched.framework.pod_info import PodInfo
from asched.framework.runtime.diagnosis import PASSES, CountedStatus, FilterDiagnosis
from asched.framework.runtime.plugin_calls import (
    PRE_FILTER,
    PluginFailure,
    check_status,
    checked_call,
    filter_node,
    filter_nodes,
)
from asched.framework.runtime.profile import Profile
from asched.framework.status import Status
from asched.state.node_table import NodeTable

_SPARE_STATUSES = 1024
"""Statuses kept beyond one per row before everything is recomputed, which drops those of the
past."""
_MAX_PRIORITIES = 16

RankedFilter = tuple[int, FilterPlugin | FilterAllPlugin]


class ReadTrackingNodes:
    """Nodes that record whether a plugin read them: if so, its answer is valid only until a row
    changes.

    Not a subclass of :class:`Nodes`: inherited methods would bypass ``__getattr__``.
    """

    def __init__(self, nodes: Nodes) -> None:
        self._nodes = nodes
        self.read = False

    def __getattr__(self, name: str) -> Any:
        self.read = True
        return getattr(self._nodes, name)


class ShapePreFilter:
    """The answers of shared PreFilters for one shape. Raises :class:`PluginFailure`."""

    def __init__(self, profile: Profile, pod: PodInfo, table: NodeTable) -> None:
        self.nodes = ReadTrackingNodes(table)
        """The nodes for shared PreFilters and PreScores."""
        self.state = CycleState()
        """What shared PreFilters and PreScores wrote: the start of every attempt's state."""
        self.results: dict[str, PreFilterResult] = {}
        """By plugin."""
        self.rejected = False
        """A shared PreFilter rejected the shape, or failed: filters do not run."""
        self.failed = False
        """A shared PreFilter returned an error: the answers must not be kept."""
        self.passes = True
        """All shared PreFilters returned Success for all nodes, or Skip."""
        nodes = cast(Nodes, self.nodes)
        for plugin in profile.shared_scope.pre_filter:
            result = checked_call(PRE_FILTER, plugin, plugin.pre_filter, self.state, pod, nodes)
            if type(result.status) is not Status:
                check_status(plugin.name, "PreFilter", result.status)
            self.results[plugin.name] = result
            self.passes &= result.node_names is None
            if result.status.is_skip:
                self.state.skip_filter.add(plugin.name)
            elif not result.status.is_success:
                # It may not have prepared what its filter needs, and no node is feasible anyway.
                self.rejected, self.passes = True, False
                self.failed |= not result.status.is_rejection


class CommonFilter(FilterAllPlugin):
    """The rejections of a cluster-scope plugin for many like pods (:class:`CommonAnswer`)."""

    api_version = 1
    scope = Scope.NODE_OBJECT

    def __init__(self, name: str, rejections: FilterResult) -> None:
        self.name = name  # type: ignore[misc]  # statuses name the plugin that rejects
        self._rejections = rejections

    def filter_all(self, state: CycleState, pod: PodInfo, nodes: Nodes) -> FilterResult:
        return FilterResult(nodes.align(self._rejections.codes), self._rejections.statuses)


class ShapeFilters:
    """The shared filter results and scores of one profile for one shape."""

    def __init__(
        self,
        profile: Profile,
        pod: PodInfo,
        table: NodeTable,
        common: tuple[int, CommonFilter] | None = None,
    ) -> None:
        """``common``: a filter that is not shared, by its rank, with a result that is valid as long
        as this object is in use."""
        self._table = table
        self.pre_filter = ShapePreFilter(profile, pod, table)
        self.feasible_version = 0
        """Differs whenever :attr:`feasible` does."""
        self.findings = self._object_findings = FilterDiagnosis(0)
        """Results of all shared filters."""
        self.feasible: BoolColumn = self.findings.passing
        """Rows of nodes that pass all shared filters."""
        self.count = 0
        """Number of feasible rows."""
        self._layout = self._cursor = self._objects_cursor = -1
        self._utilization = UtilizationCache(table)
        nodes = cast(Nodes, self.pre_filter.nodes)
        self._scores = ShapeScores(profile, self.pre_filter.state, nodes, table, self._utilization)
        self._counted: Sequence[CountedStatus] | None = None
        self._nominated: dict[int, NominatedFilterCache] = {}
        self.reads_only_own_row: bool | None = None
        """:attr:`FilterDryRunner.reads_only_own_row` of pods for which only shared plugins apply;
        None if it is not known yet."""
        filters: list[RankedFilter] = []
        if not self.pre_filter.rejected:
            skipped = self.pre_filter.state.skip_filter
            filters = [f for f in profile.shared_scope.filter if f[1].name not in skipped]
            if common is not None:
                filters = sorted([*filters, common], key=itemgetter(0))
        self._object_filters = [f for f in filters if f[1].scope is Scope.NODE_OBJECT]
        self._row_filters = [f for f in filters if f[1].scope is not Scope.NODE_OBJECT]
        self._filters_by_amounts = all(p.scope is Scope.RESOURCES for _, p in self._row_filters)
        """Whether row filters depend only on amounts of resources."""

    # -- updates ------------------------------------------------------------------------------

    @property
    def outdated(self) -> bool:
        """Whether a new object is needed: rows changed that a shared PreFilter or PreScore has
        read."""
        return self.pre_filter.nodes.read and not self._is_current()

    def _is_current(self) -> bool:
        return self._cursor == self._table.cursor and self._layout == self._table.layout

    @property
    def version(self) -> tuple[int, int]:
        """Differs after a :meth:`refresh` if any row changed."""
        return self._layout, self._cursor

    def refresh(self, pod: PodInfo) -> None:
        """Update the results to the table's last change. Raises :class:`PluginFailure`."""
        table, cursor = self._table, self._table.cursor
        if cursor == self._cursor and self._layout == table.layout:
            return
        rows = table.changed_since(self._cursor) if self._layout == table.layout else None
        # If a plugin fails, the results are incomplete.
        self._layout = -1
        try:
            self._update(pod, rows)
        except PluginFailure:
            self._filter_until_rejected(pod)
        self._layout, self._cursor = table.layout, cursor
        self._objects_cursor = table.objects_cursor

    def _update(self, pod: PodInfo, rows: list[int] | None) -> None:
        """``rows`` changed, and each holds a node, since removing one changes the layout. None for
        all."""
        table = self._table
        outgrown = len(self.findings.statuses) > table.size + _SPARE_STATUSES
        if rows is None or outgrown or len(rows) * PATCH_SHARE > max(table.size, 64):
            self._filter_all(pod)
            return
        objects_too = table.objects_cursor != self._objects_cursor
        self._extend()
        if len(rows) <= FEW_ROWS:
            for row in rows:
                self._patch_row(pod, row, objects_too)
        else:
            self._patch(pod, np.array(rows, np.intp), objects_too)
        self._scores.rows_changed(rows, objects_too)

    def _filter_all(self, pod: PodInfo) -> None:
        found = self._object_findings = FilterDiagnosis(self._table.size)
        for rank, plugin in self._object_filters:
            result = filter_nodes(plugin, self.pre_filter.state, pod, self._table)
            found.add(rank, plugin.name, result)
        self.findings = found.copy(share_statuses=True)
        for rank, plugin in self._row_filters:
            result = filter_nodes(plugin, self.pre_filter.state, pod, self._table)
            self.findings.add(rank, plugin.name, result)
        self._set_all_feasible()

    def _set_all_feasible(self) -> None:
        self.feasible = self.findings.passing & self._table.alive
        self.count = int(np.count_nonzero(self.feasible))
        self.feasible_version += 1
        self._counted = None
        self._scores.all_changed()

    def _filter_until_rejected(self, pod: PodInfo) -> None:
        """Filter all nodes after a filter failed; as in kube-scheduler, a filter does not run for
        nodes that an earlier filter rejected.

        The fast paths run filters for more nodes, in an order that depends on the cache. The effect
        of a failure must not depend on that, or a replay would differ.
        """
        found = self._object_findings = FilterDiagnosis(self._table.size)
        self._filter_remaining(pod, found, self._object_filters)
        self.findings = found.copy(share_statuses=True)
        self._filter_remaining(pod, self.findings, self._row_filters)
        self._set_all_feasible()

    def _filter_remaining(
        self, pod: PodInfo, findings: FilterDiagnosis, filters: Sequence[RankedFilter]
    ) -> None:
        nodes = np.flatnonzero(self._table.alive)
        for rank, plugin in filters:
            left = nodes[findings.rank[nodes] > rank]
            if len(left):
                result = filter_nodes(plugin, self.pre_filter.state, pod, self._table.take(left))
                findings.add(rank, plugin.name, result, left)

    def _patch(self, pod: PodInfo, rows: RowArray, objects_too: bool) -> None:
        self._counted = None
        before = self.feasible[rows]
        if objects_too:
            self._object_findings.clear(rows)
            self._patch_filters(pod, self._object_findings, self._object_filters, rows)
        self.findings.copy_from(self._object_findings, rows)
        self._patch_filters(pod, self.findings, self._row_filters, rows)
        after = self.findings.rank[rows] == PASSES
        if not np.array_equal(after, before):
            self.feasible[rows] = after
            self.feasible_version += 1
            self.count += int(np.count_nonzero(after)) - int(np.count_nonzero(before))
            self._scores.feasible_changed(some_more=bool((after > before).any()))

    def _patch_row(self, pod: PodInfo, row: int, objects_too: bool) -> None:
        """:meth:`_patch` of one row, which runs after each placement."""
        findings, before = self.findings, self.feasible.item(row)
        by_amounts = self._filters_by_amounts
        rejection = self._rejection(pod, row) if by_amounts else None
        if objects_too:
            self._object_findings.clear_row(row)
            self._filter_row(pod, self._object_findings, self._object_filters, row)
        elif before and rejection is None and by_amounts:
            return  # still passes
        code = findings.code.item(row)
        findings.copy_row_from(self._object_findings, row)
        if not by_amounts:
            self._filter_row(pod, findings, self._row_filters, row)
        elif rejection is not None and rejection[0] < findings.rank[row]:
            findings.set(row, *rejection)
        if objects_too or findings.code[row] != code:
            # A new node may get the code that its row had while it was empty, and now it counts.
            self._counted = None
        after = findings.passes(row)
        if after != before:
            self.feasible[row] = after
            self.feasible_version += 1
            self.count += after - before
            self._scores.feasible_changed(some_more=after)

    def _rejection(self, pod: PodInfo, row: int) -> tuple[int, Status] | None:
        """Rank and status of the first row filter that rejects the row; all depend only on
        amounts."""
        entry = self._utilization.of(row)
        if not entry.filtered:
            for rank, plugin in self._row_filters:
                status = filter_node(plugin, self.pre_filter.state, pod, self._table, row)
                if status is not None:
                    entry.rejection = (rank, status.by(plugin.name))
                    break
            entry.filtered = True
        return entry.rejection

    def _extend(self) -> None:
        size = self._table.size
        missing = size - len(self.feasible)
        if missing <= 0:
            return
        self._object_findings.extend(size)
        self.findings.extend(size)
        self.feasible = np.concatenate([self.feasible, np.zeros(missing, np.bool_)])
        self.feasible_version += 1
        self._scores.rows_added()

    def _patch_filters(
        self,
        pod: PodInfo,
        findings: FilterDiagnosis,
        filters: Sequence[RankedFilter],
        rows: RowArray,
    ) -> None:
        nodes = self._table.take(rows)
        for rank, plugin in filters:
            result = filter_nodes(plugin, self.pre_filter.state, pod, nodes)
            findings.add(rank, plugin.name, result, rows)

    def _filter_row(
        self, pod: PodInfo, findings: FilterDiagnosis, filters: Sequence[RankedFilter], row: int
    ) -> None:
        for rank, plugin in filters:
            if rank > findings.rank[row]:
                return
            status = filter_node(plugin, self.pre_filter.state, pod, self._table, row)
            if status is not None:
                findings.set(row, rank, status.by(plugin.name))

    # -- results ------------------------------------------------------------------------------

    @property
    def row_filters(self) -> list[FilterPlugin | FilterAllPlugin]:
        """The filters that read the pods of a node or what they use, without skipped ones."""
        return [plugin for _, plugin in self._row_filters]

    def counted(self) -> Sequence[CountedStatus]:
        """The distinct filter statuses, and how many nodes have each."""
        if self._counted is None:
            self._counted = [*self.findings.counted(self._table.alive)]
        return self._counted

    def nominated(self, priority: int) -> NominatedFilterCache:
        """The results with nominated pods added, for pods of this priority."""
        if priority not in self._nominated:
            if len(self._nominated) == _MAX_PRIORITIES:
                self._nominated.clear()
            self._nominated[priority] = NominatedFilterCache()
        return self._nominated[priority]

    @property
    def was_steady(self) -> bool:
        """The last answer of :meth:`ShapeScores.is_steady`; False before the first."""
        return self._scores.was_steady

    def scores(self, pod: PodInfo) -> ShapeScores:
        """The updated shared scores; valid until the next :meth:`refresh`. Raises
        :class:`PluginFailure`.

        Separate from :meth:`refresh`: a pod with one feasible node is placed without scores, so a
        failing scorer must not fail it.
        """
        self._scores.catch_up(pod, self.feasible, self.count)
        return self._scores
