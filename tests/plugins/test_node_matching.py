"""Selectors match the same nodes with columns as one by one."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from asched.framework.node_matching import labels_match, selector_matches, term_matches
from asched.model.meta import ObjectMeta
from asched.model.node import Node
from asched.model.selectors import NodeSelector, NodeSelectorRequirement, NodeSelectorTerm
from tests.plugins.clusters import KEYS, NODE_NAMES, labels, selectors, terms
from tests.plugins.single_plugin import rows_of, table_of

NUMBERS = ("3", "4", "-7", "+3", "x", "", "9223372036854775807", "9223372036854775808")

clusters = st.lists(labels, min_size=1, max_size=len(NODE_NAMES)).map(
    lambda found: [
        Node(metadata=ObjectMeta(name=name, labels=of_node))
        for name, of_node in zip(NODE_NAMES, found, strict=False)
    ]
)


@given(nodes=clusters, term=terms, selector=selectors, wanted=labels, data=st.data())
def test_columns_match_like_single_nodes(
    nodes: list[Node],
    term: NodeSelectorTerm,
    selector: NodeSelector,
    wanted: dict[str, str],
    data: st.DataObject,
) -> None:
    table = table_of(nodes)
    chosen = data.draw(st.lists(st.sampled_from(nodes), unique_by=lambda n: n.name))
    for asked, rows in ((nodes, table), (chosen, rows_of(table, [n.name for n in chosen]))):
        by_term = [term.matches(n.labels, n.name) for n in asked]
        assert term_matches(term, rows).tolist() == by_term
        by_selector = [selector.matches(n.labels, n.name) for n in asked]
        assert selector_matches(selector, rows).tolist() == by_selector
        by_label = [all(n.labels.get(k) == v for k, v in wanted.items()) for n in asked]
        assert labels_match(wanted, rows).tolist() == by_label


@given(
    values=st.lists(st.none() | st.sampled_from(NUMBERS), min_size=1, max_size=6),
    bound=st.sampled_from(NUMBERS),
    operator=st.sampled_from(("Gt", "Lt")),
)
def test_numeric_comparison(values: list[str | None], bound: str, operator: str) -> None:
    requirement = NodeSelectorRequirement(key=KEYS[0], operator=operator, values=(bound,))
    term = NodeSelectorTerm(match_expressions=(requirement,))
    nodes = [
        Node(metadata=ObjectMeta(name=name, labels={} if text is None else {KEYS[0]: text}))
        for name, text in zip(NODE_NAMES, values, strict=False)
    ]
    matched = term_matches(term, table_of(nodes)).tolist()
    assert matched == [_compares(operator, n.labels.get(KEYS[0]), bound) for n in nodes]


def _compares(operator: str, actual: str | None, bound: str) -> bool:
    known = {"3": 3, "4": 4, "-7": -7, "+3": 3, "9223372036854775807": 2**63 - 1}
    left, right = known.get(actual or ""), known.get(bound)
    if left is None or right is None:
        return False
    return left > right if operator == "Gt" else left < right
