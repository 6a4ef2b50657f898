"""Comparisons of label columns with integers, against the rules for one label."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asched.framework.nodes import LabelColumn, Vocabulary
from asched.model.selectors import operator_matches, parse_int64

WORDS = st.sampled_from(["1", "2", "-7", "9223372036854775807", "9223372036854775808", "x", ""])


@given(st.lists(st.none() | WORDS, max_size=8), st.sampled_from(["0", "1", "-7", "2"]))
def test_comparison_follows_the_rules_for_one_label(values: list[str | None], bound: str) -> None:
    vocabulary = Vocabulary()
    ids = [-1 if value is None else vocabulary.intern(value) for value in values]
    column = LabelColumn(np.array(ids, np.int32), vocabulary)
    for operator in ("Gt", "Lt"):
        expected = [operator_matches(operator, value, (bound,)) for value in values]
        found = column.compares(int(bound), greater=operator == "Gt")
        assert found.tolist() == expected
    vocabulary.intern("17")
    assert column.compares(0, greater=True).tolist() == [
        operator_matches("Gt", value, ("0",)) for value in values
    ]


def test_each_word_is_parsed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    vocabulary = Vocabulary()
    ids = [vocabulary.intern(f"n{number}") for number in range(100)]
    column = LabelColumn(np.array(ids, np.int32), vocabulary)
    calls = 0

    def counted(text: str) -> int | None:
        nonlocal calls
        calls += 1
        return parse_int64(text)

    monkeypatch.setattr("asched.framework.nodes.parse_int64", counted)
    for bound in range(50):
        column.compares(bound, greater=True)
    assert calls == 100
