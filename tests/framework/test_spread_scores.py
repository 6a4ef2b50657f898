"""Spread scores by node class equal scores by row."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from asched.framework.caching import RowCounts
from asched.framework.pod_queries import PodQuery, Selector
from asched.framework.topology import Domains
from asched.model.node import HOSTNAME_LABEL, ZONE_LABEL
from asched.model.selectors import LabelSelector
from asched.plugins.pod_topology_spread.constraints import Constraint, ConstraintCounts
from asched.plugins.pod_topology_spread.scores import SpreadClasses, score_of
from tests.framework.test_topology import label_column

ROWS = 30
LABELS: dict[str, list[str | None]] = {
    HOSTNAME_LABEL: [f"h{row}" for row in range(ROWS)],
    ZONE_LABEL: [f"z{row % 3}" for row in range(ROWS)],
    "rack": [f"r{row // 8}" for row in range(ROWS)],
}
QUERY = PodQuery((Selector(LabelSelector(match_labels={"app": "a"})),), None)


def spread_by(key: str, counts: RowCounts) -> ConstraintCounts:
    spread = ConstraintCounts(Constraint(key, 3, 1, True, False, QUERY))
    spread.missing = None
    spread.domains = Domains(label_column(LABELS[key]))
    spread.by_row = counts
    return spread


@given(
    keys=st.lists(st.sampled_from(sorted(LABELS)), min_size=1, max_size=3, unique=True),
    turns=st.lists(st.lists(st.tuples(st.integers(0, ROWS - 1), st.integers(1, 3)))),
)
def test_class_scores_equal_row_scores(keys: list[str], turns: list[list[tuple[int, int]]]) -> None:
    counts = RowCounts(np.zeros(ROWS, np.int64))
    spreads = [spread_by(key, counts) for key in keys]
    assert SpreadClasses.are_few(spreads)
    classes = SpreadClasses(spreads)
    classes.sizes = range(1, len(keys) + 1)
    for moved in turns:
        for row, difference in moved:
            counts.move(row, difference)
        assert classes.update()
        expected = np.zeros(ROWS)
        for spread, size in zip(spreads, classes.sizes, strict=True):
            held = spread.by_row.column if spread.is_hostname else spread.by_domain.by_row
            expected += score_of(spread, held, size)
        assert classes.raw_of(classes.of_row.copy()).tolist() == np.rint(expected).tolist()


def test_scores_are_recomputed_after_reset() -> None:
    counts = RowCounts(np.zeros(ROWS, np.int64))
    classes = SpreadClasses([spread_by(HOSTNAME_LABEL, counts)])
    counts.begin(ROWS)
    assert not classes.update()


def test_many_domains_disable_classes() -> None:
    counts = RowCounts(np.zeros(ROWS, np.int64))
    spread = spread_by("rack", counts)
    spread.domains = Domains(label_column([f"r{row}" for row in range(100)]))
    assert not SpreadClasses.are_few([spread])


def test_nodes_without_the_label_score_zero() -> None:
    spread = spread_by(ZONE_LABEL, RowCounts(np.zeros(ROWS, np.int64)))
    spread.missing = np.arange(ROWS) == 1
    assert not SpreadClasses.are_few([spread])
