"""What the plugins that like pods share say of one shape, for all nodes, kept up to date.

Most pods are copies of one another. What *node-scope* plugins say of a pod depends on its shape and
on each node's own row, so it is computed once for all rows and afterwards only for rows that
changed: usually one, the node of the placement before, and then only by the plugins that look at the
pods of a node.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import numpy as np

from asched.cycle.row_caches import NominatedFilterCache, Refusal, UtilizationCache, WatchedNodes
from asched.cycle.shape_scores import FEW_ROWS, PATCH_SHARE, ShapeScores
from asched.framework.cycle_state import CycleState
from asched.framework.interface import (
    FilterAllPlugin,
    FilterPlugin,
    PreFilterResult,
    Scope,
)
from asched.framework.nodes import BoolColumn, Nodes, RowArray
from asched.framework.pod_info import PodInfo
from asched.framework.runtime.findings import PASSES, CountedStatus, Findings, StatusNumbers
from asched.framework.runtime.plugin_calls import (
    PluginFailure,
    ask,
    check_status,
    filter_node,
    filter_nodes,
)
from asched.framework.runtime.profile import Profile
from asched.framework.status import Status
from asched.state.node_table import NodeTable

_SPARE_STATUSES = 1024
"""Statuses kept beyond one a row before all is computed afresh, to forget those of the past."""
_MOST_PRIORITIES = 16

RankedFilter = tuple[int, FilterPlugin | FilterAllPlugin]


class ShapeAnswers:
    """The shared answers of one profile about one shape."""

    def __init__(self, profile: Profile, pod: PodInfo, table: NodeTable) -> None:
        self._profile = profile
        self._table = table
        self._watched = WatchedNodes(table)
        self.state = CycleState()
        """What shared PreFilters and PreScores wrote; the start of every attempt's state."""
        self.pre_filter: dict[str, PreFilterResult] = {}
        self._set_findings(0)
        self._layout = self._cursor = self._objects_cursor = -1
        self._judgements = UtilizationCache(table)
        self._scores = ShapeScores(profile, self.state, table, self._watched, self._judgements)
        self.rejected = False
        """A shared PreFilter turned the shape away (or failed): filters are not run."""
        self.failed = False
        """A shared PreFilter answered an error, which it need not do again."""
        self.plain = True
        """All shared PreFilters answered Success for all nodes, or Skip."""
        self._counted: Sequence[CountedStatus] | None = None
        self._crowding: dict[int, NominatedFilterCache] = {}
        self._run_pre_filters(pod)

    def _set_findings(self, size: int) -> None:
        numbers = StatusNumbers()
        self._object_findings = Findings(size, numbers)
        self.findings = Findings(size, numbers)
        """What all shared filters say."""
        self.feasible: BoolColumn = np.zeros(size, np.bool_)
        """Rows of nodes that all shared filters pass."""
        self.count = 0
        """How many those are."""

    def _run_pre_filters(self, pod: PodInfo) -> None:
        for plugin in self._profile.pre_filter:
            if not plugin.scope.shared:
                continue
            result = ask(
                PreFilterResult, plugin, "PreFilter", plugin.pre_filter, self.state, pod,
                cast(Nodes, self._watched),
            )  # fmt: skip
            if type(result.status) is not Status:
                check_status(plugin.name, "PreFilter", result.status)
            self.pre_filter[plugin.name] = result
            self.plain &= result.node_names is None
            if result.status.is_skip:
                self.state.skip_filter.add(plugin.name)
            elif not result.status.is_success:
                # It may not have prepared what its filter needs, and no node will do anyway.
                self.rejected, self.plain = True, False
                self.failed |= not result.status.is_rejection
        filters = [
            (rank, plugin)
            for rank, plugin in enumerate(self._profile.filter)
            if plugin.scope.shared and plugin.name not in self.state.skip_filter
        ]
        if self.rejected:
            filters = []
        self._object_filters = [f for f in filters if f[1].scope is Scope.NODE_OBJECT]
        self._row_filters = [f for f in filters if f[1].scope is not Scope.NODE_OBJECT]
        self._filters_by_fullness = all(
            plugin.scope is Scope.AMOUNTS for _, plugin in self._row_filters
        )
        """Whether row filters look at nothing but amounts."""

    # -- keeping up ---------------------------------------------------------------------------

    @property
    def looks_at_nodes(self) -> bool:
        """Whether a shared PreFilter or PreScore looked at nodes, and not at the shape alone."""
        return self._watched.looked_at

    @property
    def outdated(self) -> bool:
        """Whether all has to be asked anew: rows changed, and renewing those is not enough."""
        return self._watched.looked_at and not self._is_current()

    def _is_current(self) -> bool:
        return self._cursor == self._table.cursor and self._layout == self._table.layout

    def refresh(self, pod: PodInfo) -> None:
        """Bring the answers up to the table's last change. Raises :class:`PluginFailure`."""
        table, cursor = self._table, self._table.cursor
        if cursor == self._cursor and self._layout == table.layout:
            return
        rows = table.changed_since(self._cursor) if self._layout == table.layout else None
        # Whatever is entered from here on is incomplete where a plugin fails.
        self._layout = -1
        try:
            self._renew(pod, rows)
        except PluginFailure:
            self._filter_until_refused(pod)
        self._layout, self._cursor = table.layout, cursor
        self._objects_cursor = table.objects_cursor

    def _renew(self, pod: PodInfo, rows: list[int] | None) -> None:
        """``rows`` changed, and each holds a node: one that goes changes the layout. None for all."""
        table = self._table
        outgrown = len(self.findings.statuses) > table.size + _SPARE_STATUSES
        if rows is None or outgrown or len(rows) * PATCH_SHARE > max(table.size, 64):
            self._filter_all(pod)
            return
        objects_too = table.objects_changed_since(self._objects_cursor)
        if len(rows) <= FEW_ROWS:
            self._extend()
            for row in rows:
                self._patch_row(pod, row, objects_too)
        else:
            self._patch(pod, rows, objects_too)
        self._scores.rows_changed(rows, objects_too)

    def _filter_all(self, pod: PodInfo) -> None:
        self._set_findings(self._table.size)
        for rank, plugin in self._object_filters:
            verdicts = filter_nodes(plugin, self.state, pod, self._table)
            self._object_findings.add(rank, plugin.name, verdicts)
        self.findings.take_over(self._object_findings, slice(None))
        for rank, plugin in self._row_filters:
            verdicts = filter_nodes(plugin, self.state, pod, self._table)
            self.findings.add(rank, plugin.name, verdicts)
        self._know_feasible()

    def _know_feasible(self) -> None:
        self.feasible = self.findings.passing & self._table.alive
        self.count = int(np.count_nonzero(self.feasible))
        self._counted = None
        self._scores.all_changed()

    def _filter_until_refused(self, pod: PodInfo) -> None:
        """As :meth:`_filter_all`, where a filter failed: none is asked about nodes that another refused
        before it, as in kube-scheduler.

        The quick ways ask more, and each other nodes first. What comes of a failure must depend
        neither on that nor on what is remembered, or a replay would differ.
        """
        self._set_findings(self._table.size)
        self._ask_of_the_rest(pod, self._object_findings, self._object_filters)
        self.findings.take_over(self._object_findings, slice(None))
        self._ask_of_the_rest(pod, self.findings, self._row_filters)
        self._know_feasible()

    def _ask_of_the_rest(
        self, pod: PodInfo, findings: Findings, filters: Sequence[RankedFilter]
    ) -> None:
        nodes = np.flatnonzero(self._table.alive)
        for rank, plugin in filters:
            left = nodes[findings.rank[nodes] > rank]
            if len(left):
                verdicts = filter_nodes(plugin, self.state, pod, self._table.take(left))
                findings.add(rank, plugin.name, verdicts, left)

    def _patch(self, pod: PodInfo, changed: list[int], objects_too: bool) -> None:
        rows = np.array(changed, np.intp)
        self._extend()
        self._counted = None
        before = self.feasible[rows]
        if objects_too:
            self._object_findings.clear(rows)
            self._patch_filters(pod, self._object_findings, self._object_filters, rows)
        self.findings.take_over(self._object_findings, rows)
        self._patch_filters(pod, self.findings, self._row_filters, rows)
        after = self.findings.rank[rows] == PASSES
        if not np.array_equal(after, before):
            self.feasible[rows] = after
            self.count += int(np.count_nonzero(after)) - int(np.count_nonzero(before))
            self._scores.feasible_changed(some_more=bool((after > before).any()))

    def _patch_row(self, pod: PodInfo, row: int, objects_too: bool) -> None:
        """As :meth:`_patch`, for one row, as it changes with each placement."""
        findings, before = self.findings, self.feasible.item(row)
        refusal = self._refusal(pod, row) if self._filters_by_fullness else None
        if objects_too:
            self._object_findings.pass_row(row)
            self._filter_row(pod, self._object_findings, self._object_filters, row)
        elif before and refusal is None and self._filters_by_fullness:
            return  # it passes as before
        said = findings.code.item(row)
        findings.take_over_row(self._object_findings, row)
        if not self._filters_by_fullness:
            self._filter_row(pod, findings, self._row_filters, row)
        elif refusal is not None and refusal[0] < findings.rank[row]:
            findings.set(row, *refusal)
        if objects_too or findings.code[row] != said:
            # A new node may be told what was said of the empty row that it took, and counts now.
            self._counted = None
        self._set_feasible(row, findings.passes(row))

    def _set_feasible(self, row: int, after: bool) -> None:
        before = self.feasible.item(row)
        if after != before:
            self.feasible[row] = after
            self.count += after - before
            self._scores.feasible_changed(some_more=after)

    def _refusal(self, pod: PodInfo, row: int) -> Refusal | None:
        """What row filters that go by amounts say."""
        judgement = self._judgements.of(row)
        if not judgement.filtered:
            for rank, plugin in self._row_filters:
                status = filter_node(plugin, self.state, pod, self._table, row)
                if status is not None:
                    judgement.refusal = (rank, status.by(plugin.name))
                    break
            judgement.filtered = True
        return judgement.refusal

    def _extend(self) -> None:
        size = self._table.size
        missing = size - len(self.feasible)
        if missing <= 0:
            return
        self._object_findings.extend(size)
        self.findings.extend(size)
        self.feasible = np.concatenate([self.feasible, np.zeros(missing, np.bool_)])
        self._scores.rows_added()

    def _patch_filters(
        self, pod: PodInfo, findings: Findings, filters: Sequence[RankedFilter], rows: RowArray
    ) -> None:
        nodes = self._table.take(rows)
        for rank, plugin in filters:
            verdicts = filter_nodes(plugin, self.state, pod, nodes)
            findings.add(rank, plugin.name, verdicts, rows)

    def _filter_row(
        self, pod: PodInfo, findings: Findings, filters: Sequence[RankedFilter], row: int
    ) -> None:
        for rank, plugin in filters:
            if rank > findings.rank[row]:
                return
            status = filter_node(plugin, self.state, pod, self._table, row)
            if status is not None:
                findings.set(row, rank, status.by(plugin.name))

    def counted(self) -> Sequence[CountedStatus]:
        """What refuses nodes, and how many."""
        if self._counted is None:
            self._counted = [*self.findings.counted(self._table.alive)]
        return self._counted

    def crowding(self, priority: int) -> NominatedFilterCache:
        """What was found of nodes with nominated pods, for pods of this priority."""
        if priority not in self._crowding:
            if len(self._crowding) == _MOST_PRIORITIES:
                self._crowding.clear()
            self._crowding[priority] = NominatedFilterCache()
        return self._crowding[priority]

    def scores(self, pod: PodInfo) -> ShapeScores:
        """The shared scores, brought up to date; good until the next :meth:`refresh`.

        Apart from that, since a pod with one feasible node is placed without scores: a plugin that
        fails there must not fail it. Raises :class:`PluginFailure`.
        """
        self._scores.catch_up(pod, self.feasible, self.count)
        return self._scores
