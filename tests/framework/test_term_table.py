"""The table of affinity terms against a search of each term."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asched.framework.pod_info import LabelSet
from asched.framework.pod_queries import AffinityTerm, Selector, WeightedTerm
from asched.framework.term_table import TermTable
from asched.model.selectors import LabelSelector, LabelSelectorRequirement
from tests.framework.selector_strategies import LABELS, SELECTORS

_ROWS = 4

_terms = st.builds(
    WeightedTerm,
    st.builds(
        AffinityTerm,
        SELECTORS.map(Selector),
        st.frozensets(st.sampled_from(["x", "y"])),
        SELECTORS.map(Selector),
        st.sampled_from(["zone", "host"]),
    ),
    st.integers(1, 100),
)
_moves = st.lists(st.tuples(_terms, st.integers(0, _ROWS - 1), st.sampled_from([1, 1, 2])))


def _label_set(namespace: str, labels: dict[str, str]) -> LabelSet:
    return LabelSet(namespace, labels, 1)


@given(_moves, st.sampled_from(["x", "y", "z"]), LABELS, LABELS, st.data())
def test_table_finds_what_a_search_finds(
    moves: list[tuple[WeightedTerm, int, int]],
    namespace: str,
    labels: dict[str, str],
    namespace_labels: dict[str, str],
    data: st.DataObject,
) -> None:
    table, pods = TermTable(), Counter[tuple[WeightedTerm, int]]()
    for term, row, number in moves:
        table.move(term, row, number)
        pods[term, row] += number
    for term, row in data.draw(
        st.lists(st.sampled_from(sorted(pods, key=repr))) if pods else st.just([])
    ):
        if pods[term, row]:
            table.move(term, row, -1)
            pods[term, row] -= 1
    wanted = _label_set(namespace, labels)
    expected = {key: np.zeros(_ROWS, np.int64) for key in ("zone", "host")}
    for (term, row), number in pods.items():
        if term.term.matches(wanted, namespace_labels):
            expected[term.term.topology_key][row] += number * term.weight
    found = table.sums(table.selecting(wanted, namespace_labels), _ROWS)
    for key, column in expected.items():
        assert found.get(key, np.zeros(_ROWS, np.int64)).tolist() == column.tolist()
    assert len(table) == len({term for (term, _), number in pods.items() if number})


@given(st.lists(_terms, max_size=12), st.lists(LABELS, min_size=2, max_size=6), LABELS, st.data())
def test_equally_distinguished_pods_are_selected_by_the_same_terms(
    terms: list[WeightedTerm],
    label_sets: list[dict[str, str]],
    namespace_labels: dict[str, str],
    data: st.DataObject,
) -> None:
    table, pods = TermTable(), [_label_set("x", labels) for labels in label_sets]
    known: dict[int, tuple[tuple[str, str], ...]] = {}
    selected = [np.zeros(0, np.bool_) for _ in pods]
    distinctions: object = None
    for term in terms:
        table.move(term, 0, 1)
        if table.distinctions != distinctions:
            distinctions = table.distinctions
            known.clear()
        # Those of the other pods are looked up later.
        for index in data.draw(st.sets(st.integers(0, len(pods) - 1))):
            known.setdefault(index, table.distinguished(pods[index]))
            more = table.selecting(pods[index], namespace_labels, len(selected[index]))
            selected[index] = np.concatenate([selected[index], more])
        for index, distinguished in known.items():
            assert distinguished == table.distinguished(pods[index])
    by_labels: dict[object, list[bool]] = {}
    for pod, found in zip(pods, selected, strict=True):
        whole = table.selecting(pod, namespace_labels).tolist()
        assert whole[: len(found)] == found.tolist()
        assert by_labels.setdefault(table.distinguished(pod), whole) == whole


@pytest.mark.parametrize(
    ("operator", "values"),
    [
        ("In", ("a1",)),
        ("NotIn", ("a1", "a2")),
        ("Exists", ()),
        ("DoesNotExist", ()),
        ("Gt", ("1",)),
        ("Lt", ("1",)),
    ],
)
@pytest.mark.parametrize("key", ["app", "tier", "other"])
def test_new_condition_changes_what_is_distinguished(
    operator: str, values: tuple[str, ...], key: str
) -> None:
    table, pod = TermTable(), _label_set("x", {"app": "a1", "tier": "a1"})
    table.move(_term(0), 0, 1)
    before, distinctions = table.distinguished(pod), table.distinctions
    requirement = LabelSelectorRequirement(key=key, operator=operator, values=values)
    selector = Selector(LabelSelector(match_expressions=(requirement,)))
    table.move(
        WeightedTerm(AffinityTerm(selector, frozenset("x"), Selector(None), "zone"), 1), 0, 1
    )
    assert (table.distinguished(pod) == before) or table.distinctions != distinctions
    assert (table.distinguished(pod) != before) == (key == "tier" or bool(key == "app" and values))


def _term(number: int) -> WeightedTerm:
    apart = LabelSelectorRequirement(key="app", operator="NotIn", values=(f"a{number}",))
    selector = Selector(LabelSelector(match_expressions=(apart,)))
    return WeightedTerm(
        AffinityTerm(selector, frozenset({"x"}), Selector(None), "zone"), number % 100 + 1
    )


def test_unused_terms_are_dropped() -> None:
    table = TermTable()
    for number in range(10_000):
        table.move(_term(number), 1, 1)
        if number >= 10:
            table.move(_term(number - 10), 1, -1)
    assert len(table) == 10
    selected = table.selecting(_label_set("x", {"app": "other"}), {})
    assert len(selected) < 5_000
    weights = sum(number % 100 + 1 for number in range(9_990, 10_000))
    assert table.keys(selected) == ["zone"]
    assert table.sums(selected, _ROWS)["zone"].tolist() == [0, weights, 0, 0]


def test_labels_of_a_namespace_may_change() -> None:
    everything = Selector(LabelSelector(match_labels={"team": "red"}))
    table = TermTable()
    table.move(
        WeightedTerm(AffinityTerm(Selector(LabelSelector()), frozenset(), everything, "zone"), 1),
        0,
        1,
    )
    pod = _label_set("x", {})
    assert not table.selecting(pod, {}).any()
    assert table.selecting(pod, {"team": "red"}).all()
    assert not table.selecting(pod, {"team": "blue"}).any()
