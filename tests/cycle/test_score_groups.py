"""Groups find the same best nodes as sums of columns."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asched.cycle import node_selection
from asched.cycle.node_selection import ScoreGroups, TopScores, highest
from asched.framework.caching import ChangeLog
from asched.framework.nodes import Int64Column

ROWS = 12
totals = st.integers(-1, 3)
classes = st.integers(-2, 2)


class Named:
    """Classes with their number as the score."""

    def __init__(self, of_row: list[int], *, steady: bool = False) -> None:
        self.steady = steady
        self.of_row: Int64Column = np.array(of_row, np.int64)
        self.moved: ChangeLog[int] = ChangeLog()

    def raw_of(self, classes: Int64Column) -> Int64Column:
        return classes

    def move(self, row: int, to: int) -> None:
        self.of_row[row] = to
        self.moved.append(row)


def doubled(present: Int64Column) -> Int64Column:
    return present * 2


def over_present(present: Int64Column) -> Int64Column:
    """Depends on the classes that are present, as a normalized score does."""
    scaled: Int64Column = (present - present.min()) * 2
    return scaled


def check_kept(scores: TopScores, named: Named, groups: ScoreGroups) -> bool:
    """Returns whether the scores were known."""
    kept = groups.kept_best(scores)
    best = kept or groups.best(scores, over_present)
    if best is None:
        return False
    feasible = scores.totals >= 0
    sums = scores.totals + (named.of_row - named.of_row[feasible].min()) * 2
    expected = highest(np.where(feasible, sums, -100))
    assert (best.score, best.count) == (expected.score, expected.count)
    assert best.rows.tolist() == expected.rows.tolist()
    return kept is not None


def check(scores: TopScores, named: Named, groups: ScoreGroups) -> bool:
    """Returns whether the nodes were grouped."""
    best = groups.best(scores, doubled)
    if best is None:
        return False
    feasible = scores.totals >= 0
    expected = highest(np.where(feasible, scores.totals + named.of_row * 2, -100))
    assert (best.score, best.count) == (expected.score, expected.count)
    assert best.rows.tolist() == expected.rows.tolist()
    return True


@given(
    first=st.lists(st.tuples(totals, classes), min_size=ROWS, max_size=ROWS),
    changes=st.lists(st.tuples(st.integers(1, ROWS - 1), totals, classes, st.booleans())),
    steady=st.booleans(),
)
def test_groups_follow_changes(
    first: list[tuple[int, int]], changes: list[tuple[int, int, int, bool]], steady: bool
) -> None:
    scores = TopScores(np.array([5, *(total for total, _ in first[1:])], np.int64))
    named = Named([of_class for _, of_class in first], steady=steady)
    groups = ScoreGroups(named)
    assert not check(scores, named, groups)  # it would not pay yet
    assert check(scores, named, groups)
    for row, total, of_class, asked in changes:
        scores.set(row, total)
        named.move(row, of_class)
        if asked:
            check(scores, named, groups)


@given(
    first=st.lists(st.tuples(totals, classes), min_size=ROWS, max_size=ROWS),
    changes=st.lists(st.tuples(st.integers(1, ROWS - 1), totals, classes, st.booleans())),
)
def test_kept_scores_follow_changes(
    first: list[tuple[int, int]], changes: list[tuple[int, int, int, bool]]
) -> None:
    scores = TopScores(np.array([5, *(total for total, _ in first[1:])], np.int64))
    named = Named([of_class for _, of_class in first], steady=True)
    groups = ScoreGroups(named)
    assert [check_kept(scores, named, groups) for _ in range(3)] == [False, False, True]
    for row, total, of_class, asked in changes:
        scores.set(row, total)
        named.move(row, of_class)
        if asked:
            check_kept(scores, named, groups)


def test_new_totals_are_grouped_on_second_use() -> None:
    named = Named([0, 1, 2])
    groups = ScoreGroups(named)
    for column in ([1, 2, 3], [3, 2, 1]):
        scores = TopScores(np.array(column, np.int64))
        assert not check(scores, named, groups)
        assert check(scores, named, groups)


def test_many_changes_regroup_all() -> None:
    scores, named = TopScores(np.array([1, 2, 3], np.int64)), Named([0, 1, 2])
    groups = ScoreGroups(named)
    assert [check(scores, named, groups) for _ in range(2)] == [False, True]
    scores.set_many(np.arange(3), np.full(3, 7, np.int64))
    assert [check(scores, named, groups) for _ in range(2)] == [False, True]


def test_too_many_groups_disable_grouping() -> None:
    scores, named = TopScores(np.arange(1000)), Named([0] * 1000)
    groups = ScoreGroups(named)
    assert not any(check(scores, named, groups) for _ in range(3))


def test_groups_are_dropped_when_numbers_run_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_selection, "_NO_GROUP", 255)
    scores, named = TopScores(np.zeros(300, np.int64)), Named([0] * 300)
    groups, grouped = ScoreGroups(named), 0
    for row in range(300):
        named.move(row, row)
        grouped += check(scores, named, groups)
    # The first use never groups, and after the last number there are too many groups.
    assert 200 < grouped < 300
