"""What the scorers that like pods share say of one shape, for all nodes, and the sums of that.

Scores are brought up to date when they are asked for, and only then; :class:`ShapeScores` hears of what
changed meanwhile, and decides by itself what of it has to be worked out again.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from typing import cast

import numpy as np

from asched.cycle.tie_breaker import BestNodes
from asched.cycle.row_caches import UtilizationCache, UtilizationEntry, WatchedNodes
from asched.cycle.top_scores import ScoreTable, TopScores
from asched.framework.cycle_state import CycleState
from asched.framework.interface import Scope, ScoreAllPlugin, ScorePlugin
from asched.framework.nodes import MAX_NODE_SCORE, BoolColumn, Int64Column, Nodes, RowArray
from asched.framework.pod_info import PodInfo
from asched.framework.runtime.plugin_calls import (
    PluginFailure,
    answered_error,
    ask,
    check_range,
    check_score,
    check_status,
    normalized,
    normalizes,
    score_node,
    score_nodes,
    within_range,
)
from asched.framework.runtime.profile import Profile, Weighted
from asched.framework.status import Status
from asched.state.node_table import NodeTable

PATCH_SHARE = 4
"""Patch while less than one row in this many changed; beyond, computing all is cheaper."""
FEW_ROWS = 24
"""Up to so many rows, going through them one by one costs less than numpy's overhead."""
INFEASIBLE = -1


class ShapeScores:
    """The shared scores of one profile about one shape. Good after :meth:`catch_up`, until the next
    change."""

    def __init__(
        self,
        profile: Profile,
        state: CycleState,
        table: NodeTable,
        watched: WatchedNodes,
        judgements: UtilizationCache,
    ) -> None:
        """``state`` is what shared PreFilters wrote and shared PreScores will add to; they are shown
        ``watched`` for the nodes."""
        self._profile = profile
        self._state = state
        self._table = table
        self._watched = watched
        self._judgements = judgements
        self.raw: dict[str, Int64Column] = {}
        """Raw scores by plugin, for all rows; empty until asked for."""
        self._feasible: BoolColumn = np.zeros(0, np.bool_)
        self._count = 0
        self._leaders: TopScores | None = None
        """The weighted sums of the scores; None where they are to be summed up anew."""
        self._standings = ScoreTable()
        self._steady = False
        self._normalized_part = np.zeros(0, np.int64)
        self._fixed_part: Int64Column | None = None
        self._scores: list[Weighted] = []
        self._row_scores: list[Weighted] = []
        """Those that look at more than the node's object."""
        self._absolute: list[Weighted] = []
        """Those whose scores are not normalised."""
        self._scores_by_fullness = False
        """Whether row scorers look at nothing but amounts."""
        self._row_normalizes = False
        """Whether any row scorer's scores are normalised."""
        self._scored = False
        """Whether :attr:`raw` is right but for the rows that changed since."""
        self._changed: set[int] = set()
        """Rows that changed since their scores were last asked for."""
        self._objects_changed = False

    # -- what happened ------------------------------------------------------------------------

    def all_changed(self) -> None:
        """Any row may hold another node, and other rows may be feasible."""
        self._scored, self._leaders = False, None

    def rows_changed(self, rows: Iterable[int], objects_too: bool) -> None:
        """The nodes in these rows changed, and none went; ``objects_too``: the objects of some of them
        as well, not only the pods on them."""
        if self._scored:
            self._changed.update(rows)
            self._objects_changed |= objects_too

    def rows_added(self) -> None:
        """The table has more rows than before; :meth:`rows_changed` tells of those, too."""
        if not self._scored:
            return
        for name, raw in self.raw.items():
            missing = self._table.size - len(raw)
            self.raw[name] = np.concatenate([raw, np.zeros(missing, np.int64)])
        self._leaders = None

    def feasible_changed(self, *, some_more: bool) -> None:
        """Some rows are feasible no more or, with ``some_more``, became feasible; they are among those
        that :meth:`rows_changed` tells of. Scores are normalised over the feasible nodes, and those
        are others now."""
        if some_more or not self._steady:
            self._leaders = None

    # -- keeping up ---------------------------------------------------------------------------

    def catch_up(self, pod: PodInfo, feasible: BoolColumn, count: int) -> None:
        """Bring the raw scores of all rows up to date, of which ``count`` are feasible. Raises
        :class:`PluginFailure`."""
        self._feasible, self._count = feasible, count
        remembered = self._scored
        try:
            self._renew(pod)
        except PluginFailure:
            # What was entered is incomplete; and which failure is told must not depend on what is
            # remembered, or a replay would differ.
            self.all_changed()
            if not remembered:
                raise
            self._renew(pod)

    def _renew(self, pod: PodInfo) -> None:
        changed = self._changed
        if not self._scored:
            self.raw.clear()
            self._pre_score(pod)
            self._score_all(pod)
            self._sort_scorers()
            self._scored = True
        elif len(changed) * PATCH_SHARE > max(self._table.size, 64):
            self._score_all(pod)
        elif len(changed) <= FEW_ROWS:
            for row in changed:
                self._score_row(pod, row, self._objects_changed)
        else:
            self._patch(pod, np.array(sorted(changed), np.intp), self._objects_changed)
        changed.clear()
        self._objects_changed = False

    def _pre_score(self, pod: PodInfo) -> None:
        for plugin in self._profile.pre_score:
            if not plugin.scope.shared:
                continue
            status = ask(
                Status, plugin, "PreScore", plugin.pre_score, self._state, pod,
                cast(Nodes, self._watched),
            )  # fmt: skip
            if status.is_skip:
                self._state.skip_score.add(plugin.name)
            elif not status.is_success:
                check_status(plugin.name, "PreScore", status)
                raise answered_error(plugin.name, "PreScore", status.message)
        self._scores = [
            weighted
            for weighted in self._profile.score
            if weighted.plugin.scope.shared and weighted.plugin.name not in self._state.skip_score
        ]

    def _sort_scorers(self) -> None:
        self._row_scores = [w for w in self._scores if w.plugin.scope is not Scope.NODE_OBJECT]
        self._absolute = [w for w in self._scores if not normalizes(w.plugin)]
        self._scores_by_fullness = all(w.plugin.scope is Scope.AMOUNTS for w in self._row_scores)
        self._row_normalizes = any(normalizes(w.plugin) for w in self._row_scores)
        self._judgements.forget()

    def _score_all(self, pod: PodInfo) -> None:
        for plugin, _ in self._scores:
            scores = score_nodes(plugin, self._state, pod, self._table)
            self._check(plugin, scores, self._feasible)
            # A copy: rows are patched in place, and what a plugin returned may be its own.
            self.raw[plugin.name] = scores.astype(np.int64)
        self._leaders = self._fixed_part = None

    def _patch(self, pod: PodInfo, rows: RowArray, objects_too: bool) -> None:
        nodes = self._table.take(rows)
        for plugin, _ in self._scores if objects_too else self._row_scores:
            scores = score_nodes(plugin, self._state, pod, nodes)
            self._check(plugin, scores, self._feasible[rows])
            raw = self.raw[plugin.name]
            if normalizes(plugin) and not np.array_equal(raw[rows], scores):
                self._leaders = None
            raw[rows] = scores
        if self._leaders is not None:
            if objects_too:
                self._fixed_part = None
            totals = np.where(self._feasible[rows], self._sum(rows), INFEASIBLE)
            self._leaders.set_many(rows, totals)

    def _score_row(self, pod: PodInfo, row: int, objects_too: bool) -> None:
        """As :meth:`_patch`, for one row."""
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
        if not self._feasible.item(row):
            self._leaders.set(row, INFEASIBLE)
        elif judgement is None or judgement.total is None:
            self._leaders.set(row, self._sum_of(row))
        else:
            self._leaders.set(row, self._fixed().item(row) + judgement.total)

    def _judged(self, pod: PodInfo, row: int) -> UtilizationEntry:
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
        return [score_node(plugin, self._state, pod, self._table, row) for plugin, _ in scorers]

    def _enter_scores(self, row: int, scorers: Sequence[Weighted], scores: Sequence[int]) -> None:
        feasible = self._feasible.item(row)
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

    # -- sums ---------------------------------------------------------------------------------

    def total(self, pod: PodInfo) -> Int64Column:
        """The weighted sum of the scores, normalised over the feasible rows; :data:`INFEASIBLE`
        elsewhere. Raises :class:`PluginFailure`."""
        return self._summed(pod).totals

    def is_steady(self, pod: PodInfo) -> bool:
        """Whether the normalised scores are the same among any of the feasible nodes as among all of
        them: whoever normalises goes by extremes, and all nodes are equal to it. Raises
        :class:`PluginFailure`."""
        self._summed(pod)
        return self._steady

    def _summed(self, pod: PodInfo) -> TopScores:
        if self._leaders is None:
            everywhere = self._count == self._table.size
            feasible = slice(None) if everywhere else np.flatnonzero(self._feasible)
            part = np.zeros(self._table.size, np.int64)
            self._steady = True
            for plugin, weight in self._scores:
                if not normalizes(plugin):
                    continue
                # A copy, which the plugin may do with what it likes.
                raw = self.raw[plugin.name][feasible].copy()
                if plugin.by_extremes and len(raw) and bool((raw == raw[:1]).all()):
                    # Lowest and highest are that one score, which says what all become.
                    part += normalized(plugin, self._state, pod, raw[:1]) * weight
                else:
                    self._steady = False
                    part[feasible] += normalized(plugin, self._state, pod, raw) * weight
            self._normalized_part, self._fixed_part = part, None
            total = self._sum(slice(None))
            self._leaders = TopScores(
                total if everywhere else np.where(self._feasible, total, INFEASIBLE)
            )
        return self._leaders

    def best(self, pod: PodInfo) -> BestNodes:
        """The feasible nodes with the highest :meth:`total`. Good until the next change. Raises
        :class:`PluginFailure`."""
        return self._summed(pod).best

    def best_with(self, scorer: Weighted, state: CycleState, pod: PodInfo) -> BestNodes | None:
        """As :meth:`best`, with a plugin's scores added; None where there is no quick way to that."""
        return self._standings.best(self._summed(pod), scorer, state, pod)

    @staticmethod
    def _check(
        plugin: ScorePlugin | ScoreAllPlugin, scores: Int64Column, feasible: BoolColumn
    ) -> None:
        """Scores that nobody normalises must be in range already, where the pod could go."""
        if not normalizes(plugin) and not within_range(scores):
            check_range(plugin, scores[feasible])
