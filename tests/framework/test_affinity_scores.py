"""Incrementally updated affinity scores equal new scores."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from asched.framework.caching import RowCounts
from asched.framework.nodes import Int64Column
from asched.framework.topology import DomainCounts, Domains
from asched.plugins.inter_pod_affinity.preferred import PreferredAffinityScores, TermWeight
from tests.framework.test_topology import label_column

ROWS = 64
DOMAINS = {
    "host": Domains(label_column([f"h{row}" for row in range(ROWS)])),
    "rack": Domains(label_column([f"r{row // 8}" for row in range(ROWS)])),
    "zone": Domains(label_column([f"z{row % 3}" if row % 7 else None for row in range(ROWS)])),
    "even": Domains(label_column([f"z{row % 2}" for row in range(ROWS)])),
}

sources = st.lists(
    st.tuples(st.sampled_from(sorted(DOMAINS)), st.sampled_from((-3, -1, 1, 2))),
    min_size=1,
    max_size=3,
)
moves = st.lists(st.tuples(st.integers(0, 2), st.integers(0, ROWS - 1), st.integers(-1, 3)))


def scale(scores: Int64Column, lowest: int, span: int) -> Int64Column:
    return (100 * ((scores - lowest) / span)).astype(np.int64)


def reference(kinds: list[tuple[str, int]], counted: list[RowCounts]) -> Int64Column:
    total = np.zeros(ROWS, np.int64)
    for (key, weight), counts in zip(kinds, counted, strict=True):
        total += DomainCounts(DOMAINS[key], counts).by_row * weight
    return total


@given(kinds=sources, turns=st.lists(st.tuples(moves, st.booleans()), max_size=6))
def test_updated_scores_equal_new_scores(
    kinds: list[tuple[str, int]], turns: list[tuple[list[tuple[int, int, int]], bool]]
) -> None:
    counted = [RowCounts(np.zeros(ROWS, np.int64)) for _ in kinds]
    weights = [
        TermWeight(DomainCounts(DOMAINS[key], counts), weight)
        for (key, weight), counts in zip(kinds, counted, strict=True)
    ]
    scores = PreferredAffinityScores(weights)
    for moved, is_scaled in turns:
        for number, row, difference in moved:
            counted[number % len(kinds)].move(row, difference)
        for (key, _), (counts, _), source in zip(kinds, weights, counted, strict=True):
            counts.follow(DOMAINS[key], source)
        raw = reference(kinds, counted)
        scores.refresh()
        assert scores.raw_of(scores.of_row).tolist() == raw.tolist()
        assert scores.raw.tolist() == raw.tolist()
        if not is_scaled:
            continue  # what changed until the next time has to be remembered
        scaled = scores.scaled(scale)
        lowest, span = int(raw.min()), int(raw.max() - raw.min())
        if not span:
            assert scaled is None
        else:
            assert scaled is not None
            assert scaled.tolist() == scale(raw, lowest, span).tolist()


def test_scores_are_zero_without_counts() -> None:
    counts = RowCounts(np.zeros(ROWS, np.int64))
    scores = PreferredAffinityScores([TermWeight(DomainCounts(DOMAINS["zone"], counts), 5)])
    assert not scores.total
    counts.move(1, 1)
    scores = PreferredAffinityScores([TermWeight(DomainCounts(DOMAINS["zone"], counts), 5)])
    assert scores.total
