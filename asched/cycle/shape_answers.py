"""What the plugins that like pods share say of one shape, for all nodes, kept up to date.

Most pods are copies of one another. What *node-scope* plugins say of a pod depends on its shape and
on each node's own row, so it is computed once for all rows and afterwards only for rows that
changed: usually one, the node of the placement before, and then only by the plugins that look at the
pods of a node.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import cast

import numpy as np

from asched.cycle.crowding import Crowding
from asched.cycle.judgements import Judgement, Judgements, Refusal
from asched.cycle.leaders import Leaders
from asched.cycle.lottery import Best
from asched.cycle.standings import Standings
from asched.cycle.watched_nodes import WatchedNodes
from asched.framework.cycle_state import CycleState
from asched.framework.findings import PASSES, CountedStatus, Findings, StatusNumbers
from asched.framework.interface import (
    FilterAllPlugin,
    FilterPlugin,
    PreFilterResult,
    Scope,
    ScoreAllPlugin,
    ScorePlugin,
)
from asched.framework.nodes import MAX_NODE_SCORE, BoolColumn, Int64Column, Nodes, RowArray
from asched.framework.plugin_calls import (
    answered_error,
    ask,
    check_range,
    check_score,
    check_status,
    filter_node,
    filter_nodes,
    normalized,
    normalizes,
    score_node,
    score_nodes,
    within_range,
)
from asched.framework.pod_info import PodInfo
from asched.framework.profile import Profile, Weighted
from asched.framework.status import Status
from asched.state.node_table import NodeTable

_PATCH_SHARE = 4
"""Patch while less than one row in this many changed; beyond, computing all is cheaper."""
_FEW_ROWS = 4
"""Up to so many rows, going through them one by one costs less than numpy's overhead."""
_SPARE_STATUSES = 1024
"""Statuses kept beyond one a row before all is computed afresh, to forget those of the past."""
_MOST_PRIORITIES = 16
INFEASIBLE = -1

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
        self.raw: dict[str, Int64Column] = {}
        """Raw scores by plugin, for all rows; empty until asked for."""
        self._set_findings(0)
        self._leaders: Leaders | None = None
        """The weighted sums of the shared scores; None where they are to be summed up anew."""
        self._standings = Standings()
        self.steady = False
        """Whether the normalised scores are the same among any of the feasible nodes as among all of
        them: whoever normalises goes by extremes, and all nodes are equal to it."""
        self._normalized_part = np.zeros(0, np.int64)
        self._layout = self._cursor = self._objects_cursor = -1
        self._scores: list[Weighted] = []
        self._row_scores: list[Weighted] = []
        """Those that look at more than the node's object."""
        self._absolute: list[Weighted] = []
        """Those whose scores are not normalised."""
        self._judgements = Judgements(table)
        self._scores_by_fullness = False
        """Whether row scorers look at nothing but amounts."""
        self._row_normalizes = False
        """Whether any row scorer's scores are normalised."""
        self._fixed_part: Int64Column | None = None
        self._scored = False
        self._unscored: set[int] = set()
        """Rows that changed since their scores were last asked for."""
        self._unscored_objects = False
        self.rejected = False
        """A shared PreFilter turned the shape away (or failed): filters are not run."""
        self.failed = False
        """A shared PreFilter answered an error, which it need not do again."""
        self.plain = True
        """All shared PreFilters answered Success for all nodes, or Skip."""
        self._counted: Sequence[CountedStatus] | None = None
        self._crowding: dict[int, Crowding] = {}
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
        outgrown = len(self.findings.statuses) > table.size + _SPARE_STATUSES
        if rows is None or outgrown or len(rows) * _PATCH_SHARE > max(table.size, 64):
            self._filter_all(pod)
            self._scored = False
        else:
            objects_too = table.objects_changed_since(self._objects_cursor)
            if len(rows) <= _FEW_ROWS:
                self._extend()
                for row in rows:
                    self._patch_row(pod, row, objects_too)
            else:
                self._patch(pod, rows, objects_too)
            if self._scored:
                self._unscored.update(rows)
                self._unscored_objects |= objects_too
        self._layout, self._cursor = table.layout, cursor
        self._objects_cursor = table.objects_cursor

    def _filter_all(self, pod: PodInfo) -> None:
        self._set_findings(self._table.size)
        for rank, plugin in self._object_filters:
            verdicts = filter_nodes(plugin, self.state, pod, self._table)
            self._object_findings.add(rank, plugin.name, verdicts)
        self.findings.take_over(self._object_findings, slice(None))
        for rank, plugin in self._row_filters:
            verdicts = filter_nodes(plugin, self.state, pod, self._table)
            self.findings.add(rank, plugin.name, verdicts)
        self.feasible = self.findings.passing & self._table.alive
        self.count = int(np.count_nonzero(self.feasible))
        self._leaders = self._counted = None

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
        after = (self.findings.rank[rows] == PASSES) & self._table.alive[rows]
        if not np.array_equal(after, before):
            self.feasible[rows] = after
            self.count += int(np.count_nonzero(after)) - int(np.count_nonzero(before))
            # Scores are normalised over the feasible nodes, and those are others now.
            if not self.steady or (after > before).any():
                self._leaders = None

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
        if findings.code[row] != said:
            self._counted = None
        after = findings.passes(row) and self._table.alive.item(row)
        if after != before:
            self.feasible[row] = after
            self.count += after - before
            if after or not self.steady:
                self._leaders = None

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
        for name, raw in self.raw.items():
            self.raw[name] = np.concatenate([raw, np.zeros(missing, np.int64)])
        self._leaders = None

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

    def crowding(self, priority: int) -> Crowding:
        """What was found of nodes with nominated pods, for pods of this priority."""
        if priority not in self._crowding:
            if len(self._crowding) == _MOST_PRIORITIES:
                self._crowding.clear()
            self._crowding[priority] = Crowding()
        return self._crowding[priority]

    # -- scores -------------------------------------------------------------------------------

    def ensure_scores(self, pod: PodInfo) -> None:
        """Bring the raw scores of all rows up to date.

        Apart from :meth:`refresh`, since a pod with one feasible node is placed without scores: a
        plugin that fails there must not fail it. Raises :class:`PluginFailure`.
        """
        if self._scored:
            self._catch_up(pod)
            return
        for plugin in self._profile.pre_score:
            if not plugin.scope.shared:
                continue
            status = ask(
                Status, plugin, "PreScore", plugin.pre_score, self.state, pod,
                cast(Nodes, self._watched),
            )  # fmt: skip
            if status.is_skip:
                self.state.skip_score.add(plugin.name)
            elif not status.is_success:
                check_status(plugin.name, "PreScore", status)
                raise answered_error(plugin.name, "PreScore", status.message)
        self._scores = [
            weighted
            for weighted in self._profile.score
            if weighted.plugin.scope.shared and weighted.plugin.name not in self.state.skip_score
        ]
        self._score_all(pod)
        self._row_scores = [w for w in self._scores if w.plugin.scope is not Scope.NODE_OBJECT]
        self._absolute = [w for w in self._scores if not normalizes(w.plugin)]
        self._scores_by_fullness = all(w.plugin.scope is Scope.AMOUNTS for w in self._row_scores)
        self._row_normalizes = any(normalizes(w.plugin) for w in self._row_scores)
        self._judgements.forget()
        self._scored = True
        self._unscored.clear()
        self._unscored_objects = False

    def _catch_up(self, pod: PodInfo) -> None:
        size = self._table.size
        if len(self._unscored) * _PATCH_SHARE > max(size, 64):
            self._score_all(pod)
        elif len(self._unscored) <= _FEW_ROWS:
            for row in self._unscored:
                self._score_row(pod, row, self._unscored_objects)
        else:
            rows = np.array(sorted(self._unscored), np.intp)
            self._patch_scores(pod, rows, self._unscored_objects)
        self._unscored.clear()
        self._unscored_objects = False

    def _score_all(self, pod: PodInfo) -> None:
        for plugin, _ in self._scores:
            scores = score_nodes(plugin, self.state, pod, self._table)
            self._check(plugin, scores, self.feasible)
            # A copy: rows are patched in place, and what a plugin returned may be its own.
            self.raw[plugin.name] = scores.astype(np.int64)
        self._leaders = self._fixed_part = None

    def _patch_scores(self, pod: PodInfo, rows: RowArray, objects_too: bool) -> None:
        nodes = self._table.take(rows)
        for plugin, _ in self._scores if objects_too else self._row_scores:
            scores = score_nodes(plugin, self.state, pod, nodes)
            self._check(plugin, scores, self.feasible[rows])
            raw = self.raw[plugin.name]
            if normalizes(plugin) and not np.array_equal(raw[rows], scores):
                self._leaders = None
            raw[rows] = scores
        if self._leaders is not None:
            if objects_too:
                self._fixed_part = None
            totals = np.where(self.feasible[rows], self._sum(rows), INFEASIBLE)
            self._leaders.set_many(rows, totals)

    def _score_row(self, pod: PodInfo, row: int, objects_too: bool) -> None:
        """As :meth:`_patch_scores`, for one row."""
        if objects_too:
            objects = [w for w in self._scores if w.plugin.scope is Scope.NODE_OBJECT]
            self._enter_scores(row, objects, self._scores_of(pod, row, objects))
            self._fixed_part = None
        judgement = self._judged(pod, row) if self._scores_by_fullness else None
        if judgement is None:
            self._enter_scores(row, self._row_scores, self._scores_of(pod, row, self._row_scores))
        elif judgement.total is None:
            self._enter_scores(row, self._row_scores, judgement.scores)
        else:
            for (plugin, _), score in zip(self._row_scores, judgement.scores, strict=True):
                self.raw[plugin.name][row] = score
        if self._leaders is None:
            return
        if not self.feasible.item(row):
            self._leaders.set(row, INFEASIBLE)
        elif judgement is None or judgement.total is None:
            self._leaders.set(row, self._sum_of(row))
        else:
            self._leaders.set(row, self._fixed().item(row) + judgement.total)

    def _judged(self, pod: PodInfo, row: int) -> Judgement:
        """What row scorers that go by amounts say."""
        judgement = self._judgements.of(row)
        if not judgement.scored:
            judgement.scores = tuple(self._scores_of(pod, row, self._row_scores))
            if not self._row_normalizes and all(0 <= s <= MAX_NODE_SCORE for s in judgement.scores):
                weights = [weight for _, weight in self._row_scores]
                judgement.total = sum(map(operator.mul, judgement.scores, weights))
            judgement.scored = True
        return judgement

    def _fixed(self) -> Int64Column:
        """What totals consist of beside scores of row scorers, none of which is normalised."""
        if self._fixed_part is None:
            part = self._normalized_part.copy()
            for plugin, weight in self._absolute:
                if plugin.scope is Scope.NODE_OBJECT:
                    part += self.raw[plugin.name] * weight
            self._fixed_part = part
        return self._fixed_part

    def _scores_of(self, pod: PodInfo, row: int, scorers: Sequence[Weighted]) -> list[int]:
        return [score_node(plugin, self.state, pod, self._table, row) for plugin, _ in scorers]

    def _enter_scores(self, row: int, scorers: Sequence[Weighted], scores: Sequence[int]) -> None:
        feasible = self.feasible.item(row)
        for (plugin, _), score in zip(scorers, scores, strict=True):
            raw = self.raw[plugin.name]
            if not normalizes(plugin):
                if feasible:
                    check_score(plugin, score)
            elif raw[row] != score:
                self._leaders = None
            raw[row] = score

    def _sum_of(self, row: int) -> int:
        """:meth:`_sum` of one row."""
        total: int = self._normalized_part.item(row)
        for plugin, weight in self._absolute:
            total += self.raw[plugin.name].item(row) * weight
        return total

    def _sum(self, rows: RowArray | slice) -> Int64Column:
        total = self._normalized_part[rows].copy()
        for plugin, weight in self._absolute:
            total += self.raw[plugin.name][rows] * weight
        return total

    def total(self, pod: PodInfo) -> Int64Column:
        """The weighted sum of the shared scores, normalised over :attr:`feasible`;
        :data:`INFEASIBLE` elsewhere. :meth:`ensure_scores` comes first. Raises PluginFailure."""
        return self._summed(pod).totals

    def _summed(self, pod: PodInfo) -> Leaders:
        if self._leaders is None:
            everywhere = self.count == self._table.size
            feasible = slice(None) if everywhere else np.flatnonzero(self.feasible)
            part = np.zeros(self._table.size, np.int64)
            self.steady = True
            for plugin, weight in self._scores:
                if not normalizes(plugin):
                    continue
                # A copy, which the plugin may do with what it likes.
                raw = self.raw[plugin.name][feasible].copy()
                if plugin.by_extremes and len(raw) and bool((raw == raw[:1]).all()):
                    # Lowest and highest are that one score, which says what all become.
                    part += normalized(plugin, self.state, pod, raw[:1]) * weight
                else:
                    self.steady = False
                    part[feasible] += normalized(plugin, self.state, pod, raw) * weight
            self._normalized_part, self._fixed_part = part, None
            total = self._sum(slice(None))
            self._leaders = Leaders(
                total if everywhere else np.where(self.feasible, total, INFEASIBLE)
            )
        return self._leaders

    def best(self, pod: PodInfo) -> Best:
        """The feasible nodes with the highest :meth:`total`. Good until the next refresh. Raises
        PluginFailure."""
        return self._summed(pod).best

    def best_with(self, scorer: Weighted, state: CycleState, pod: PodInfo) -> Best | None:
        """As :meth:`best`, with a plugin's scores added; None where there is no quick way to that."""
        return self._standings.best(self._summed(pod), scorer, state, pod)

    @staticmethod
    def _check(
        plugin: ScorePlugin | ScoreAllPlugin, scores: Int64Column, feasible: BoolColumn
    ) -> None:
        """Scores that nobody normalises must be in range already, where the pod could go."""
        if not normalizes(plugin) and not within_range(scores):
            check_range(plugin, scores[feasible])
