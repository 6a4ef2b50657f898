"""The best nodes, where shared totals and one plugin's scores by class are to be added up.

Nodes of the same class and the same total are one group. There are few groups, whatever the number of
nodes, and a placement moves one node from one to another: so sums are worked out by group, and nobody goes
through the nodes but to tell which of them are in the best one, a byte each.

The nodes with the highest total, kept while totals change one by one.

With each placement one node's total changes, and mostly it was one of the best and is no more: then
there is one best node less, and nobody need look at all of them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from asched.cycle.tie_breaker import BestNodes
from asched.framework.change_log import ChangeLog
from asched.framework.cycle_state import CycleState
from asched.framework.memo import Memo
from asched.framework.node_classes import NodeClasses
from asched.framework.nodes import BoolColumn, Int64Column, RowArray
from asched.framework.pod_info import PodInfo
from asched.framework.runtime.plugin_calls import call, normalized, scores_by_class
from asched.framework.runtime.profile import Weighted


def highest(totals: Int64Column) -> BestNodes:
    """The rows with the highest of these totals. There must be one."""
    # Half the time that max() takes.
    score = totals.item(totals.argmax())
    mask = totals == score
    return BestNodes(score, mask, int(np.count_nonzero(mask)))


class TopScores:
    """A column of totals and the best of its rows."""

    __slots__ = ("_best", "moved", "totals")

    def __init__(self, totals: Int64Column) -> None:
        self.totals = totals
        """By row. To be changed by :meth:`set` and :meth:`set_many` alone."""
        self.moved: ChangeLog[int] = ChangeLog()
        """Rows whose total became another one."""
        self._best: BestNodes | None = None

    def set(self, row: int, total: int) -> None:
        """The row's total is another one now."""
        totals, best = self.totals, self._best
        before = totals.item(row)
        if total == before:
            return
        totals[row] = total
        self.moved.append(row)
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
        """These rows have other totals now, so many that it is not worth telling which."""
        self.totals[rows] = totals
        self._best = None
        self.moved.forget()

    @property
    def best(self) -> BestNodes:
        """Good until the next change. There must be a row with a total."""
        if self._best is None:
            self._best = highest(self.totals)
        return self._best


_MOST_CLASSES = 8
_OUT = 255
"""The group of rows that are not feasible; those of others have lower numbers."""
_MOST_MOVES = 64
"""Beyond, grouping anew is cheaper."""

ScoresOf = Callable[[Int64Column], Int64Column]
"""What a plugin adds to the totals of nodes of these classes, which are those of all feasible nodes."""


class _Present(NamedTuple):
    """The groups that any nodes are in."""

    groups: RowArray
    classes: Int64Column
    """To be read only: the same object as long as the groups are the same."""
    totals: Int64Column


class Groups:
    """Feasible nodes by their class and their total."""

    __slots__ = (
        "_class_of",
        "_classes",
        "_count_of",
        "_cursors",
        "_group_of",
        "_leaders",
        "_number",
        "_present",
        "_too_many",
        "_total_of",
    )

    def __init__(self, classes: NodeClasses) -> None:
        self._classes = classes
        self._leaders: TopScores | None = None
        self._cursors = (0, 0)
        self._number: dict[tuple[int, int], int] = {}
        """Groups by class and total; empty where nothing is grouped."""
        self._too_many = False
        self._present: _Present | None = None
        self._group_of: NDArray[np.uint8] = np.zeros(0, np.uint8)
        self._class_of: Int64Column = np.zeros(_OUT, np.int64)
        self._total_of: Int64Column = np.zeros(_OUT, np.int64)
        self._count_of: Int64Column = np.zeros(_OUT, np.int64)

    def best(self, leaders: TopScores, scores_of: ScoresOf) -> BestNodes | None:
        """The feasible nodes with the highest sum; there must be one. None where nodes are not grouped:
        too many differ, or these totals are asked about for the first time, and maybe the last."""
        if not self._follow(leaders):
            return None
        present = self._present
        if present is None:
            groups = self._count_of.nonzero()[0]
            present = _Present(groups, self._class_of[groups], self._total_of[groups])
            self._present = present
        groups = present.groups
        sums = present.totals + scores_of(present.classes)
        score: int = sums.item(sums.argmax())
        leading: list[int] = groups[sums == score].tolist()
        mask: BoolColumn = self._group_of == leading[0]
        for group in leading[1:]:
            mask |= self._group_of == group
        return BestNodes(score, mask, sum([self._count_of.item(group) for group in leading]))

    def _follow(self, leaders: TopScores) -> bool:
        """Bring every row into its group, if that can be done."""
        moved = self._moved(leaders)
        self._leaders, cursors = leaders, self._cursors
        self._cursors = (leaders.moved.cursor, self._classes.moved.cursor)
        if moved is None:
            self._number.clear()
            self._too_many = False
            return False
        if not self._number:
            return self._group()
        if self._cursors != cursors:
            for row in moved:
                self._move(row)
        return bool(self._number)

    def _moved(self, leaders: TopScores) -> list[int] | None:
        """The rows that may belong elsewhere by now; None where nobody can tell."""
        if leaders is not self._leaders:
            return None
        by_total = leaders.moved.since(self._cursors[0])
        by_class = self._classes.moved.since(self._cursors[1])
        if by_total is None or by_class is None or len(by_total) + len(by_class) > _MOST_MOVES:
            return None
        return by_total + by_class

    def _group(self) -> bool:
        if self._leaders is None or self._too_many:
            return False
        totals, classes = self._leaders.totals, self._classes.of_row
        rows = (totals >= 0).nonzero()[0]
        lowest, span = classes.min(), totals.max() + 1
        pairs, group_of, count_of = np.unique(
            (classes[rows] - lowest) * span + totals[rows],
            return_inverse=True,
            return_counts=True,
        )
        number = len(pairs)
        # Half of the numbers are left for what is to come.
        self._too_many = number > _OUT // 2
        if self._too_many:
            return False
        self._class_of[:number], self._total_of[:number] = pairs // span + lowest, pairs % span
        self._count_of[:number], self._count_of[number:] = count_of, 0
        groups = zip(self._class_of.tolist(), self._total_of.tolist(), range(number), strict=False)
        self._number = {(of_class, total): group for of_class, total, group in groups}
        self._group_of = np.full(len(totals), _OUT, np.uint8)
        self._group_of[rows] = group_of
        self._present = None
        return True

    def _move(self, row: int) -> None:
        """Where no number is left for a new group, nothing is grouped any more."""
        if self._leaders is None or not self._number:
            return
        before, group = self._group_of.item(row), _OUT
        total: int = self._leaders.totals.item(row)
        if total >= 0:
            of_class: int = self._classes.of_row.item(row)
            group = self._number.setdefault((of_class, total), len(self._number))
            if group == _OUT:
                self._number.clear()
                return
            self._class_of[group], self._total_of[group] = of_class, total
            self._enter(group, 1)
        if before != _OUT:
            self._enter(before, -1)
        self._group_of[row] = group

    def _enter(self, group: int, difference: int) -> None:
        number: int = self._count_of.item(group)
        self._count_of[group] = number + difference
        if not number or not number + difference:
            self._present = None


class ScoreTable:
    """The groups for the classes asked about lately. Memory, not state."""

    __slots__ = ("_known",)

    def __init__(self) -> None:
        self._known: Memo[NodeClasses, Groups] = Memo(_MOST_CLASSES)

    def best(
        self, leaders: TopScores, scorer: Weighted, state: CycleState, pod: PodInfo
    ) -> BestNodes | None:
        """The feasible nodes with the highest total, the plugin's scores added; there must be one. None
        where it does not tell nodes by classes, or grouping them does not pay. Raises PluginFailure."""
        plugin, weight = scorer
        if not scores_by_class(plugin):
            return None
        classes = call(plugin, "Score", plugin.node_classes, state)
        if classes is None:
            return None

        def scores_of(present: Int64Column) -> Int64Column:
            return normalized(plugin, state, pod, classes.raw_of(present)) * weight

        groups = self._known.get(classes, lambda: Groups(classes))
        return groups.best(leaders, scores_of)
