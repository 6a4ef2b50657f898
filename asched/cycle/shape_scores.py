"""Shared scores of one pod shape for all nodes, and their weighted sums.

They are updated only when they are requested, and only the part that changed since.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from asched.cycle.node_selection import BestNodes, ScoreGroupCache, TopScores
from asched.framework.cycle_state import CycleState
from asched.framework.interface import NormalizeScore, Scope, ScoreAllPlugin, ScorePlugin
from asched.framework.nodes import MAX_NODE_SCORE, BoolColumn, Int64Column, Nodes, RowArray
from asched.framework.pod_info import PodInfo
from asched.framework.runtime.plugin_calls import (
    PRE_SCORE,
    PluginFailure,
    check_range,
    check_score,
    check_status,
    checked_call,
    derives,
    error_answer,
    normalized,
    score_node,
    score_nodes,
    within_range,
)
from asched.framework.runtime.profile import Profile, WeightedScorer
from asched.framework.scoring import CommonAnswer
from asched.framework.status import Status
from asched.state.node_table import NodeTable

PATCH_SHARE = 4
"""Patch if less than one row in this many changed; otherwise recomputing all is cheaper."""
FEW_ROWS = 24
"""Up to this many rows, a Python loop costs less than numpy's overhead."""
INFEASIBLE = -1

_MAX_UTILIZATIONS = 4096


@dataclass(slots=True)
class UtilizationEntry:
    """Answers of plugins that depend only on amounts, for equally utilized nodes. Filled in
    lazily."""

    filtered: bool = False
    """Whether the row filters ran; only then :attr:`rejection` is valid."""
    rejection: tuple[int, Status] | None = None
    """Rank and status of the first row filter that rejects."""
    scored: bool = False
    """Whether the row scorers ran."""
    scores: tuple[int, ...] = ()
    total: int | None = None
    """Weighted sum of :attr:`scores`, if none is normalized and all are in range."""


class UtilizationCache:
    """Entries by the table's number for a node's utilization. Clearing it changes no decision."""

    def __init__(self, table: NodeTable) -> None:
        self._table = table
        self._known: dict[int, UtilizationEntry] = {}

    def of(self, row: int) -> UtilizationEntry:
        """The entry of nodes utilized like the row is now."""
        number = self._table.utilization_id(row)
        known = self._known.get(number)
        if known is None:
            if len(self._known) == _MAX_UTILIZATIONS:
                self._known.clear()
            known = self._known[number] = UtilizationEntry()
        return known

    def clear(self) -> None:
        """Drop the entries, because the set of scorers changed."""
        self._known.clear()


class _Scorers(NamedTuple):
    """The shared scorers of the profile, without those that PreScore skips."""

    all: tuple[WeightedScorer, ...] = ()
    objects: tuple[WeightedScorer, ...] = ()
    """Those that depend only on the node's object."""
    rows: tuple[WeightedScorer, ...] = ()
    """The others."""
    absolute: tuple[WeightedScorer, ...] = ()
    """Those without NormalizeScore."""
    by_amounts: bool = True
    """Whether :attr:`rows` depend only on amounts of resources."""
    rows_normalize: bool = False
    """Whether any of :attr:`rows` has NormalizeScore."""


@lru_cache(maxsize=64)
def _scorers_of(scorers: tuple[WeightedScorer, ...]) -> _Scorers:
    rows = tuple(w for w in scorers if w.plugin.scope is not Scope.NODE_OBJECT)
    return _Scorers(
        all=scorers,
        objects=tuple(w for w in scorers if w.plugin.scope is Scope.NODE_OBJECT),
        rows=rows,
        absolute=tuple(w for w in scorers if not derives(w.plugin, NormalizeScore)),
        by_amounts=all(w.plugin.scope is Scope.RESOURCES for w in rows),
        rows_normalize=any(derives(w.plugin, NormalizeScore) for w in rows),
    )


class ShapeScores:
    """The shared scores of one profile for one shape; valid from :meth:`catch_up` to the next
    change."""

    def __init__(
        self,
        profile: Profile,
        state: CycleState,
        nodes: Nodes,
        table: NodeTable,
        utilization: UtilizationCache,
    ) -> None:
        """``state`` holds what shared PreFilters wrote; shared PreScores add to it and get
        ``nodes``."""
        self._profile = profile
        self._state = state
        self._nodes = nodes
        self._table = table
        self._utilization = utilization
        self._scorers = _Scorers()
        self.raw: dict[str, Int64Column] = {}
        """Raw scores of all rows by plugin; empty until requested."""
        self._feasible: BoolColumn = np.zeros(0, np.bool_)
        self._count = 0
        self._totals: TopScores | None = None
        """Weighted sums of the scores; None if they have to be recomputed."""
        self._groups = ScoreGroupCache()
        self.was_steady = False
        """The last answer of :meth:`is_steady`."""
        self._normalized_part = np.zeros(0, np.int64)
        self._fixed_part: Int64Column | None = None
        self._scored = False
        """Whether :attr:`raw` is valid except for :attr:`_changed`."""
        self._changed: set[int] = set()
        """Rows that changed since the last :meth:`catch_up`."""
        self._objects_changed = False

    # -- changes ------------------------------------------------------------------------------

    def all_changed(self) -> None:
        """Any row may hold another node, and other rows may be feasible."""
        self._scored, self._totals = False, None

    def rows_changed(self, rows: Iterable[int], objects_too: bool) -> None:
        """The nodes in these rows changed, and none was removed. ``objects_too``: not only their
        pods."""
        if self._scored:
            self._changed.update(rows)
            self._objects_changed |= objects_too

    def rows_added(self) -> None:
        """The table has more rows than before; :meth:`rows_changed` reports them, too."""
        if not self._scored:
            return
        for name, raw in self.raw.items():
            missing = self._table.size - len(raw)
            self.raw[name] = np.concatenate([raw, np.zeros(missing, np.int64)])
        self._totals = None

    def feasible_changed(self, *, some_more: bool) -> None:
        """The set of feasible rows, over which scores are normalized, changed.

        ``some_more``: rows became feasible. :meth:`rows_changed` reports all of them, too.
        """
        if some_more or not self.was_steady:
            self._totals = None

    # -- updates ------------------------------------------------------------------------------

    def catch_up(self, pod: PodInfo, feasible: BoolColumn, count: int) -> None:
        """Update the raw scores of all rows, ``count`` of them feasible. Raises
        :class:`PluginFailure`."""
        self._feasible, self._count = feasible, count
        incremental = self._scored
        try:
            self._update(pod)
        except PluginFailure:
            # Scores are incomplete. Which failure is reported must not depend on the cache, or a
            # replay would differ.
            self.all_changed()
            if not incremental:
                raise
            self._update(pod)

    def _update(self, pod: PodInfo) -> None:
        changed = self._changed
        if not self._scored:
            self.raw.clear()
            self._pre_score(pod)
            self._score_all(pod)
            self._utilization.clear()
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
        state = self._state
        for plugin in self._profile.shared_scope.pre_score:
            status = checked_call(PRE_SCORE, plugin, plugin.pre_score, state, pod, self._nodes)
            if status.is_skip:
                state.skip_score.add(plugin.name)
            elif not status.is_success:
                check_status(plugin.name, "PreScore", status)
                raise error_answer(plugin.name, "PreScore", status.message)
        shared, skipped = self._profile.shared_scope.score, state.skip_score
        self._scorers = _scorers_of(tuple([w for w in shared if w.plugin.name not in skipped]))

    def _score_all(self, pod: PodInfo) -> None:
        for plugin, _ in self._scorers.all:
            scores = score_nodes(plugin, self._state, pod, self._table)
            _check_scores(plugin, scores, self._feasible)
            # A copy: rows are patched in place, and the plugin may keep the array it returned.
            self.raw[plugin.name] = scores.astype(np.int64)
        self._totals = self._fixed_part = None

    def _patch(self, pod: PodInfo, rows: RowArray, objects_too: bool) -> None:
        nodes = self._table.take(rows)
        for plugin, _ in self._scorers.all if objects_too else self._scorers.rows:
            scores = score_nodes(plugin, self._state, pod, nodes)
            _check_scores(plugin, scores, self._feasible[rows])
            raw = self.raw[plugin.name]
            if derives(plugin, NormalizeScore) and not np.array_equal(raw[rows], scores):
                self._totals = None
            raw[rows] = scores
        if self._totals is not None:
            if objects_too:
                self._fixed_part = None
            totals = np.where(self._feasible[rows], self._sum(rows), INFEASIBLE)
            self._totals.set_many(rows, totals)

    def _score_row(self, pod: PodInfo, row: int, objects_too: bool) -> None:
        """:meth:`_patch` of one row."""
        scorers = self._scorers
        if objects_too:
            self._set_scores(row, scorers.objects, self._scores_of(pod, row, scorers.objects))
            self._fixed_part = None
        entry = self._utilization_of(pod, row) if scorers.by_amounts else None
        if entry is None:
            self._set_scores(row, scorers.rows, self._scores_of(pod, row, scorers.rows))
        elif entry.total is None:
            self._set_scores(row, scorers.rows, entry.scores)
        else:
            for (plugin, _), score in zip(scorers.rows, entry.scores, strict=True):
                self.raw[plugin.name][row] = score
        if self._totals is None:
            return
        if not self._feasible.item(row):
            self._totals.set(row, INFEASIBLE)
        elif entry is None or entry.total is None:
            self._totals.set(row, self._sum_of(row))
        else:
            self._totals.set(row, self._fixed().item(row) + entry.total)

    def _utilization_of(self, pod: PodInfo, row: int) -> UtilizationEntry:
        """The row scorers' answers; all depend only on amounts."""
        entry = self._utilization.of(row)
        if not entry.scored:
            scorers = self._scorers
            entry.scores = tuple(self._scores_of(pod, row, scorers.rows))
            if not scorers.rows_normalize and all(0 <= s <= MAX_NODE_SCORE for s in entry.scores):
                weights = [weight for _, weight in scorers.rows]
                entry.total = sum(map(operator.mul, entry.scores, weights))
            entry.scored = True
        return entry

    def _fixed(self) -> Int64Column:
        """The totals without the row scorers. Only valid if no row scorer is normalized."""
        if self._fixed_part is None:
            part = self._normalized_part.copy()
            for plugin, weight in self._scorers.absolute:
                if plugin.scope is Scope.NODE_OBJECT:
                    part += self.raw[plugin.name] * weight
            self._fixed_part = part
        return self._fixed_part

    def _scores_of(self, pod: PodInfo, row: int, scorers: Sequence[WeightedScorer]) -> list[int]:
        return [score_node(plugin, self._state, pod, self._table, row) for plugin, _ in scorers]

    def _set_scores(
        self, row: int, scorers: Sequence[WeightedScorer], scores: Sequence[int]
    ) -> None:
        feasible = self._feasible.item(row)
        for (plugin, _), score in zip(scorers, scores, strict=True):
            raw = self.raw[plugin.name]
            if not derives(plugin, NormalizeScore):
                if feasible:
                    check_score(plugin, score)
            elif raw[row] != score:
                self._totals = None
            raw[row] = score

    def _sum_of(self, row: int) -> int:
        """:meth:`_sum` of one row."""
        total: int = self._normalized_part.item(row)
        for plugin, weight in self._scorers.absolute:
            total += self.raw[plugin.name].item(row) * weight
        return total

    def _sum(self, rows: RowArray | slice) -> Int64Column:
        total = self._normalized_part[rows].copy()
        for plugin, weight in self._scorers.absolute:
            raw = self.raw[plugin.name][rows]
            total += raw if weight == 1 else raw * weight
        return total

    # -- sums ---------------------------------------------------------------------------------

    def total(self, pod: PodInfo) -> Int64Column:
        """Weighted sum of the scores, normalized over the feasible rows; :data:`INFEASIBLE`
        elsewhere.

        Raises :class:`PluginFailure`.
        """
        return self.top(pod).totals

    def is_steady(self, pod: PodInfo) -> bool:
        """Whether the normalized scores are the same for every subset of the feasible nodes.

        True if each normalizing plugin uses only the extremes, and all raw scores are equal. Raises
        :class:`PluginFailure`.
        """
        self.top(pod)
        return self.was_steady

    def top(self, pod: PodInfo) -> TopScores:
        """:meth:`total` and its best rows. Raises :class:`PluginFailure`."""
        if self._totals is None:
            everywhere = self._count == self._table.size
            feasible = slice(None) if everywhere else np.flatnonzero(self._feasible)
            part = np.zeros(self._table.size, np.int64)
            self.was_steady = True
            for plugin, weight in self._scorers.all:
                if not derives(plugin, NormalizeScore):
                    continue
                raw = self.raw[plugin.name][feasible]
                # Copies, which the plugin may change.
                if plugin.by_extremes and len(raw) and _all_equal(raw):
                    part += normalized(plugin, self._state, pod, raw[:1].copy()) * weight
                else:
                    self.was_steady = False
                    part[feasible] += normalized(plugin, self._state, pod, raw.copy()) * weight
            self._normalized_part, self._fixed_part = part, None
            total = self._sum(slice(None))
            self._totals = TopScores(
                total if everywhere else np.where(self._feasible, total, INFEASIBLE)
            )
        return self._totals

    def best(self, pod: PodInfo) -> BestNodes:
        """The feasible nodes with the highest :meth:`total`; valid until the next change. Raises
        :class:`PluginFailure`."""
        return self.top(pod).best

    def kept_best(self, pod: PodInfo, scores: CommonAnswer) -> BestNodes | None:
        """:meth:`best` with the scores of a plugin; None if they have to be computed."""
        if scores.classes is None:
            return self.best(pod)
        return self._groups.kept_best(self.top(pod), scores.classes)

    def best_with(
        self, scorer: WeightedScorer, state: CycleState, pod: PodInfo
    ) -> BestNodes | None:
        """:meth:`best` with one more plugin's scores added; None if there is no fast path."""
        return self._groups.best(self.top(pod), scorer, state, pod)


def _all_equal(scores: Int64Column) -> bool:
    return bool(np.count_nonzero(scores == scores[0]) == len(scores))


def _check_scores(
    plugin: ScorePlugin | ScoreAllPlugin, scores: Int64Column, feasible: BoolColumn
) -> None:
    """Raise :class:`PluginFailure` for an out-of-range score of a feasible node without
    NormalizeScore."""
    if not derives(plugin, NormalizeScore) and not within_range(scores):
        check_range(plugin, scores[feasible])
