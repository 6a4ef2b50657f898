"""Label and node selectors compared with reference implementations."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asched.model.selectors import (
    LabelSelector,
    LabelSelectorRequirement,
    NodeSelector,
    NodeSelectorRequirement,
    NodeSelectorTerm,
    operator_matches,
    parse_int64,
)

KEYS = ("a", "b")
VALUES = ("x", "y", "1", "2", "")

labels = st.dictionaries(st.sampled_from(KEYS), st.sampled_from(VALUES))
requirements = st.builds(
    LabelSelectorRequirement,
    key=st.sampled_from(KEYS),
    operator=st.sampled_from(("In", "NotIn", "Exists", "DoesNotExist")),
    values=st.lists(st.sampled_from(VALUES), max_size=2).map(tuple),
)


def plainly(requirement: LabelSelectorRequirement, of: dict[str, str]) -> bool:
    key, values = requirement.key, requirement.values
    match requirement.operator:
        case "In":
            return bool(values) and key in of and of[key] in values
        case "NotIn":
            return bool(values) and not (key in of and of[key] in values)
        case "Exists":
            return not values and key in of
        case _:
            return not values and key not in of


@given(wanted=labels, expressions=st.lists(requirements, max_size=3), of=labels)
def test_label_selector(
    wanted: dict[str, str], expressions: list[LabelSelectorRequirement], of: dict[str, str]
) -> None:
    selector = LabelSelector(match_labels=wanted, match_expressions=tuple(expressions))
    expected = wanted.items() <= of.items() and all(plainly(e, of) for e in expressions)
    assert selector.matches(of) is expected


def test_empty_label_selector_matches_everything() -> None:
    assert LabelSelector().matches({})
    assert LabelSelector().matches({"a": "x"})


@pytest.mark.parametrize(
    ("operator", "actual", "values", "expected"),
    [
        ("Gt", "5", ("4",), True),
        ("Gt", "4", ("4",), False),
        ("Lt", "-5", ("4",), True),
        ("Gt", "05", ("4",), True),
        ("Gt", None, ("4",), False),
        ("Gt", "five", ("4",), False),
        ("Gt", "5", ("four",), False),
        ("Gt", "5", ("4", "3"), False),
        ("Gt", "9223372036854775808", ("4",), False),
        ("Gt", "5.0", ("4",), False),
        ("Matches", "5", ("5",), False),
    ],
)
def test_operators(
    operator: str, actual: str | None, values: tuple[str, ...], expected: bool
) -> None:
    assert operator_matches(operator, actual, values) is expected


@pytest.mark.parametrize(
    ("text", "number"),
    [("7", 7), ("+7", 7), ("-7", -7), ("007", 7), ("", None), ("+", None), ("1_0", None),
     (" 7", None), ("٧", None), (str(2**63 - 1), 2**63 - 1), (str(2**63), None)],
)  # fmt: skip
def test_parse_int64(text: str, number: int | None) -> None:
    assert parse_int64(text) == number


def _field(operator: str, *values: str, key: str = "metadata.name") -> NodeSelectorTerm:
    requirement = NodeSelectorRequirement(key=key, operator=operator, values=values)
    return NodeSelectorTerm(match_fields=(requirement,))


@pytest.mark.parametrize(
    ("term", "expected"),
    [
        (NodeSelectorTerm(), False),
        (_field("In", "n1"), True),
        (_field("In", "n2"), False),
        (_field("NotIn", "n2"), True),
        (_field("NotIn", "n1"), False),
        (_field("In", "n1", "n2"), False),
        (_field("Exists"), False),
        (_field("In", "n1", key="metadata.uid"), False),
    ],
)
def test_node_fields(term: NodeSelectorTerm, expected: bool) -> None:
    assert term.matches({}, "n1") is expected


def test_terms_are_ored_and_requirements_anded() -> None:
    has_a = NodeSelectorRequirement(key="a", operator="Exists")
    has_b = NodeSelectorRequirement(key="b", operator="Exists")
    both = NodeSelector(node_selector_terms=(NodeSelectorTerm(match_expressions=(has_a, has_b)),))
    either = NodeSelector(
        node_selector_terms=(
            NodeSelectorTerm(match_expressions=(has_a,)),
            NodeSelectorTerm(match_expressions=(has_b,)),
        )
    )
    assert not both.matches({"a": "x"}, "n")
    assert both.matches({"a": "x", "b": "x"}, "n")
    assert either.matches({"b": "x"}, "n")
    assert not either.matches({}, "n")
    assert not NodeSelector().matches({"a": "x"}, "n")
