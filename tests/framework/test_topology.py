"""Incrementally updated domain counts equal new counts."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from asched.framework.caching import ChangeLog, RowCounts
from asched.framework.nodes import LabelColumn, Vocabulary
from asched.framework.topology import DomainCounts, Domains

ROWS = 60


def label_column(values: list[str | None]) -> LabelColumn:
    vocabulary = Vocabulary()
    vocabulary.intern("a word of another label")
    ids = [-1 if value is None else vocabulary.intern(value) for value in values]
    return LabelColumn(np.array(ids, np.int32), vocabulary)


def plain_sums(values: list[str | None], counted: list[bool], column: list[int]) -> list[int]:
    """The sum of each row's domain; 0 without a domain."""
    return [
        sum(
            number
            for other, counts, number in zip(values, counted, column, strict=True)
            if counts and other == value
        )
        if value is not None
        else 0
        for value in values
    ]


many = st.lists(st.sampled_from((None, "", *(f"h{i}" for i in range(25)))), min_size=ROWS)
few = st.lists(st.sampled_from((None, "x", "y")), min_size=ROWS)


@given(data=st.data(), values=(many | few).map(lambda drawn: drawn[:ROWS]))
def test_updated_counts_equal_new_counts(data: st.DataObject, values: list[str | None]) -> None:
    counted = data.draw(st.lists(st.booleans(), min_size=ROWS, max_size=ROWS))
    label = label_column(values)
    domains = Domains(label, np.array(counted))
    alive = {v for v, c in zip(values, counted, strict=True) if c and v is not None}
    assert domains.live == len(alive)
    assert domains.number == len(set(values) - {None})
    by_row = RowCounts(np.zeros(ROWS, np.int64))
    counts = DomainCounts(domains, by_row)
    seen, match_version, has_match = (
        counts.changes.cursor,
        counts.match_version,
        counts.has_match.copy(),
    )
    for _ in range(3):
        changes = data.draw(
            st.dictionaries(st.integers(0, ROWS - 1), st.integers(-3, 5), max_size=40)
        )
        before = counts.by_row.copy()
        for row, difference in changes.items():
            by_row.move(row, difference)
        counts.follow(domains, by_row)
        expected = plain_sums(values, counted, by_row.column.tolist())
        assert counts.by_row.tolist() == expected
        assert counts.has_match.tolist() == [number > 0 for number in expected]
        if counts.match_version == match_version:
            assert counts.has_match.tolist() == has_match.tolist()
        found = counts.changes.since(seen)
        if found is not None:
            changed = np.flatnonzero(counts.by_row != before).tolist()
            assert {*changed} <= {row for rows in found for row in rows.tolist()}
        seen, match_version, has_match = (
            counts.changes.cursor,
            counts.match_version,
            counts.has_match.copy(),
        )
        by_value = {v: e for v, e in zip(values, expected, strict=True) if v is not None}
        assert counts.total == sum(by_value.values())
        live = [by_value[value] for value in alive]
        assert sorted(counts.sums[: domains.live].tolist()) == sorted(live)


def test_absent_label_counts_as_empty_value() -> None:
    domains = Domains(label_column(["x", None, "", "x"]), absent_is_empty=True)
    assert domains.of_row[1] == domains.of_row[2] != domains.of_row[0]
    assert domains.number == 2
    unseen = Domains(label_column(["x", None, None]), absent_is_empty=True)
    assert unseen.of_row[1] == unseen.of_row[2] != unseen.of_row[0]
    assert unseen.number == 2


def test_domains_are_empty_without_the_label() -> None:
    domains = Domains(label_column([None, None]))
    counts = DomainCounts(domains, RowCounts(np.array([3, 4])))
    assert (domains.number, counts.total, counts.by_row.tolist()) == (0, 0, [0, 0])


def test_new_domains_reset_the_sums() -> None:
    by_row = RowCounts(np.array([1, 2, 3]))
    counts = DomainCounts(Domains(label_column(["a", "a", "b"])), by_row)
    assert counts.by_row.tolist() == [3, 3, 3]
    counts.follow(Domains(label_column(["a", "b", "b"])), by_row)
    assert counts.by_row.tolist() == [1, 5, 5]


def test_new_counts_reset_the_sums() -> None:
    domains = Domains(label_column(["a", "a", "b"]))
    counts = DomainCounts(domains, RowCounts(np.array([1, 2, 3])))
    counts.follow(domains, RowCounts(np.array([0, 0, 3])))
    assert counts.by_row.tolist() == [0, 0, 3]


@given(moves=st.lists(st.integers(0, 9), max_size=900), looks=st.sets(st.integers(0, 899)))
def test_change_log_reader_misses_no_change(moves: list[int], looks: set[int]) -> None:
    recent: ChangeLog[int] = ChangeLog()
    cursor, missed = recent.cursor, list[int]()
    for number, move in enumerate(moves):
        recent.append(move)
        missed.append(move)
        if number in looks:
            found = recent.since(cursor)
            assert found == missed if found is not None else len(missed) > 100
            cursor, missed = recent.cursor, []
    recent.forget()
    assert recent.since(cursor) is None
