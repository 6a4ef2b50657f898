"""Selection of a node with the highest total score, and the reproducible tie-break.

A placement changes the total of one node, usually one of the best. Two structures avoid a scan of
all nodes:

- :class:`TopScores`: a column of totals with the mask and the number of its best rows.
- :class:`ScoreGroups`: for one plugin that scores classes of nodes (such as topology domains) on
  top of the shared totals. Nodes of the same class and total form one group. There are few groups,
  so sums are computed per group, and a placement moves one node to another group.

kube-scheduler breaks ties at random. Here the result is a function of the seed, the pod, the
attempt and the names of the nodes, so a replay selects the same node, whatever rows they occupy.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from asched.framework.caching import ChangeLog, LruCache
from asched.framework.cycle_state import CycleState
from asched.framework.nodes import BoolColumn, Int64Column, RowArray, TieBreakColumn
from asched.framework.pod_info import PodInfo
from asched.framework.runtime.plugin_calls import call, derives, normalized
from asched.framework.runtime.profile import WeightedScorer
from asched.framework.scoring import NodeClasses, ScoresByClass, stable_random
from asched.state.node_table_view import NodeTableView


@dataclass(slots=True)
class BestNodes:
    """The nodes with the highest score."""

    score: int
    mask: BoolColumn
    """By row: whether the node is one of them."""
    count: int

    @property
    def rows(self) -> RowArray:
        """Ascending."""
        return np.flatnonzero(self.mask)


_MAX_NODES_PER_BEST = 16
"""Rejection sampling is used only if at least one node in 16 is among the best."""
_MAX_SAMPLES = 64


def select_node(best: BestNodes, nodes: NodeTableView, seed: int, uid: str, attempt: int) -> int:
    """The row of one of the best nodes, each with the same probability."""
    if best.count == 1:
        return int(best.mask.argmax())
    number = stable_random(seed, f"{uid}/{attempt}", 2**64)
    row = _sample(best, nodes.by_tie_break_key, number)
    return _lowest_key(best.rows, nodes.tie_break_keys, number) if row is None else row


def _sample(best: BestNodes, order: RowArray, number: int) -> int | None:
    """Draw from all nodes until one of the best comes up; None if they are too few for that."""
    nodes, is_best = len(order), best.mask.item
    if best.count * _MAX_NODES_PER_BEST < nodes:
        return None
    for _ in range(_MAX_SAMPLES):
        row: int = order.item(number * nodes >> 64)
        if is_best(row):
            return row
        number = _mix(number + _GOLDEN)
    return None


# SplitMix64 (Steele, Lea, Flood 2014): each output bit depends on every input bit.
_GOLDEN = 0x9E3779B97F4A7C15
_FIRST, _SECOND = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
_BITS = 2**64 - 1


def _mix(number: int) -> int:
    number &= _BITS
    number = (number ^ (number >> 30)) * _FIRST & _BITS
    number = (number ^ (number >> 27)) * _SECOND & _BITS
    return number ^ (number >> 31)


def _lowest_key(rows: RowArray, keys: TieBreakColumn, number: int) -> int:
    """The row with the lowest key after mixing ``number`` into each."""
    mixed = keys[rows] ^ np.uint64(number)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(_FIRST)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(_SECOND)
    return int(rows[np.argmin(mixed ^ (mixed >> np.uint64(31)))])


def highest(totals: Int64Column) -> BestNodes:
    """The rows with the highest of these totals. ``totals`` must not be empty."""
    # item(argmax()) takes half the time of max().
    score = totals.item(totals.argmax())
    mask = totals == score
    return BestNodes(score, mask, int(np.count_nonzero(mask)))


class TopScores:
    """A column of totals and its best rows."""

    __slots__ = ("_best", "changes", "totals")

    def __init__(self, totals: Int64Column) -> None:
        self.totals = totals
        """By row. Change it only with :meth:`set` and :meth:`set_many`."""
        self.changes: ChangeLog[int] = ChangeLog()
        """Rows with a changed total."""
        self._best: BestNodes | None = None

    def set(self, row: int, total: int) -> None:
        """Change the total of one row."""
        totals, best = self.totals, self._best
        before = totals.item(row)
        if total == before:
            return
        totals[row] = total
        self.changes.append(row)
        if best is None:
            return
        if total > best.score or (before == best.score and best.count == 1):
            self._best = None
        elif total == best.score:
            best.mask[row] = True
            best.count += 1
        elif before == best.score:
            best.mask[row] = False
            best.count -= 1

    def set_many(self, rows: RowArray, totals: Int64Column) -> None:
        """Change the totals of many rows, and reset the change log."""
        self.totals[rows] = totals
        self._best = None
        self.changes.forget()

    @property
    def best(self) -> BestNodes:
        """Valid until the next change. The column must not be empty."""
        if self._best is None:
            self._best = highest(self.totals)
        return self._best


_MAX_CLASSIFICATIONS = 8
_NO_GROUP = 4095
"""The group number of infeasible rows; other groups have lower numbers."""
_FEW_GROUPS = 255
_MAX_CHANGES = 64
"""With more changes, regrouping all nodes is cheaper."""

ScoresOf = Callable[[Int64Column], Int64Column]
"""From the classes of all feasible nodes to the plugin's weighted scores."""


class _BestGroups(NamedTuple):
    score: int
    groups: list[int]


class ScoreGroups:
    """Feasible nodes grouped by class and total."""

    def __init__(self, classes: NodeClasses) -> None:
        self._classes = classes
        self._best: _BestGroups | None = None
        """The groups with the highest sum of total and score; None if unknown."""
        self._best_nodes: BestNodes | None = None
        """Their nodes; None if unknown."""
        self._score_of: dict[int, int] = {}
        """The plugin's scores by class; empty if unknown."""
        self._groups_of: Counter[int] = Counter()
        """The number of groups with nodes, by class."""
        self._scores: TopScores | None = None
        self._cursors = (0, 0)
        self._number: dict[tuple[int, int], int] = {}
        """Group numbers by class and total; empty while nothing is grouped."""
        self._too_many = False
        self._group_of: NDArray[np.uint16] = np.zeros(0, np.uint16)
        self._class_of: Int64Column = np.zeros(_NO_GROUP, np.int64)
        self._total_of: Int64Column = np.zeros(_NO_GROUP, np.int64)
        self._count_of: Int64Column = np.zeros(_NO_GROUP, np.int64)

    def best(self, scores: TopScores, scores_of: ScoresOf) -> BestNodes | None:
        """The feasible nodes with the highest sum; there must be one.

        None if nodes are not grouped: there are too many groups, or ``scores`` is new and may not
        be used again.
        """
        if not self._update(scores):
            return None
        if not self._classes.steady:
            self._forget_scores()
        if not self._score_of:
            groups = self._count_of.nonzero()[0]
            classes = self._class_of[groups]
            pairs = zip(classes.tolist(), scores_of(classes).tolist(), strict=True)
            self._score_of = dict(pairs)
        return self._nodes()

    def kept_best(self, scores: TopScores) -> BestNodes | None:
        """:meth:`best` if the scores of all classes are known; None if they have to be computed."""
        if scores is not self._scores or not self._classes.steady:
            return None
        if self._cursors != (scores.changes.cursor, self._classes.moved.cursor):
            self._update(scores)
        return self._nodes() if self._score_of and self._number else None

    def _nodes(self) -> BestNodes:
        """The nodes of the best groups; valid until the next change."""
        if self._best is None:
            self._best, self._best_nodes = self._best_groups(), None
        if self._best_nodes is None:
            score, groups = self._best
            mask: BoolColumn = self._group_of == groups[0]
            for group in groups[1:]:
                mask |= self._group_of == group
            count = sum([self._count_of.item(group) for group in groups])
            self._best_nodes = BestNodes(score, mask, count)
        return self._best_nodes

    def _forget_scores(self) -> None:
        """Other classes are present, over which scores are normalized."""
        self._score_of, self._best, self._best_nodes = {}, None, None

    def _best_groups(self) -> _BestGroups:
        found = self._count_of.nonzero()[0]
        score_of = self._score_of
        scores = [score_of[of_class] for of_class in self._class_of[found].tolist()]
        sums = self._total_of[found] + np.array(scores, np.int64)
        highest: int = sums.item(sums.argmax())
        return _BestGroups(highest, found[sums == highest].tolist())

    def _update(self, scores: TopScores) -> bool:
        """Assign every row to its group. Returns False if nodes are not grouped."""
        changed = self._changed(scores)
        self._scores, cursors = scores, self._cursors
        self._cursors = (scores.changes.cursor, self._classes.moved.cursor)
        if changed is None:
            self._number.clear()
            self._too_many = False
            return False
        if not self._number:
            return self._group_all()
        if self._cursors != cursors:
            for row in changed:
                self._regroup(row)
        return bool(self._number)

    def _changed(self, scores: TopScores) -> list[int] | None:
        """The rows with another total or class; None if unknown."""
        if scores is not self._scores:
            return None
        by_total = scores.changes.since(self._cursors[0])
        by_class = self._classes.moved.since(self._cursors[1])
        if by_total is None or by_class is None or len(by_total) + len(by_class) > _MAX_CHANGES:
            return None
        return by_total + by_class

    def _group_all(self) -> bool:
        if self._scores is None or self._too_many:
            return False
        totals, classes = self._scores.totals, self._classes.of_row
        rows = (totals >= 0).nonzero()[0]
        lowest, span = classes.min(), totals.max() + 1
        pairs, group_of, count_of = np.unique(
            (classes[rows] - lowest) * span + totals[rows],
            return_inverse=True,
            return_counts=True,
        )
        number = len(pairs)
        # Half of the numbers are reserved for new groups. More groups than half of the rows do not
        # pay.
        self._too_many = number > min(_NO_GROUP, max(_FEW_GROUPS, len(rows))) // 2
        if self._too_many:
            return False
        self._class_of[:number], self._total_of[:number] = pairs // span + lowest, pairs % span
        self._count_of[:number], self._count_of[number:] = count_of, 0
        groups = zip(self._class_of.tolist(), self._total_of.tolist(), range(number), strict=False)
        self._number = {(of_class, total): group for of_class, total, group in groups}
        self._group_of = np.full(len(totals), _NO_GROUP, np.uint16)
        self._group_of[rows] = group_of
        self._groups_of = Counter(self._class_of[:number].tolist())
        self._forget_scores()
        return True

    def _regroup(self, row: int) -> None:
        """Move a row to its new group; drop all groups if no number is left for a new one."""
        if self._scores is None or not self._number:
            return
        before, group = self._group_of.item(row), _NO_GROUP
        total: int = self._scores.totals.item(row)
        if total >= 0:
            of_class: int = self._classes.of_row.item(row)
            group = self._number.setdefault((of_class, total), len(self._number))
            if group == _NO_GROUP:
                self._number.clear()
                return
            self._class_of[group], self._total_of[group] = of_class, total
            self._add_to_count(group, 1)
        if before != _NO_GROUP:
            self._add_to_count(before, -1)
        self._group_of[row] = group
        if self._best_nodes is not None and self._best is not None:
            mask, groups = self._best_nodes.mask, self._best.groups
            self._best_nodes.count += (group in groups) - mask.item(row)
            mask[row] = group in groups

    def _add_to_count(self, group: int, difference: int) -> None:
        number: int = self._count_of.item(group)
        self._count_of[group] = number + difference
        if not number:
            self._begin_group(group)
        elif not number + difference:
            self._end_group(group)

    def _begin_group(self, group: int) -> None:
        """A group without nodes gets one."""
        of_class: int = self._class_of.item(group)
        self._groups_of[of_class] += 1
        if self._groups_of[of_class] == 1:
            self._forget_scores()
        elif self._best is not None and self._score_of:
            total: int = self._total_of.item(group)
            score = total + self._score_of[of_class]
            if score > self._best.score:
                self._best, self._best_nodes = _BestGroups(score, [group]), None
            elif score == self._best.score:
                self._best.groups.append(group)

    def _end_group(self, group: int) -> None:
        """A group has no nodes any longer."""
        of_class: int = self._class_of.item(group)
        self._groups_of[of_class] -= 1
        if not self._groups_of[of_class]:
            self._forget_scores()
        elif self._best is not None and group in self._best.groups:
            self._best.groups.remove(group)
            if not self._best.groups:
                self._best = self._best_nodes = None


class ScoreGroupCache:
    """Groups by the classification that a plugin returned. Clearing it changes no decision."""

    def __init__(self) -> None:
        self._known: LruCache[NodeClasses, ScoreGroups] = LruCache(_MAX_CLASSIFICATIONS)

    def kept_best(self, scores: TopScores, classes: NodeClasses) -> BestNodes | None:
        """:meth:`best`, if nothing has to be computed for it."""
        return self._known.get(classes, lambda: ScoreGroups(classes)).kept_best(scores)

    def best(
        self, scores: TopScores, scorer: WeightedScorer, state: CycleState, pod: PodInfo
    ) -> BestNodes | None:
        """The feasible nodes with the highest total including the plugin's scores; there must be
        one.

        None if the plugin does not score by class, or grouping does not pay. Raises PluginFailure.
        """
        plugin, weight = scorer
        if not derives(plugin, ScoresByClass):
            return None
        classes = call(plugin, "Score", plugin.node_classes, state)
        if classes is None:
            return None

        def scores_of(present: Int64Column) -> Int64Column:
            return normalized(plugin, state, pod, classes.raw_of(present)) * weight

        groups = self._known.get(classes, lambda: ScoreGroups(classes))
        return groups.best(scores, scores_of)
