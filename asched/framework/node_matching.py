"""Node selectors evaluated on columns: which of all the nodes match, in one go.

The rules are those of :mod:`asched.model.selectors`; this is their columnar form.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache

import numpy as np

from asched.framework.nodes import BoolColumn, LabelColumn, Nodes
from asched.model.selectors import (
    NODE_NAME_FIELD,
    NodeSelector,
    NodeSelectorRequirement,
    NodeSelectorTerm,
    parse_int64,
)

_parse_int64 = lru_cache(maxsize=4096)(parse_int64)


def labels_match(wanted: Mapping[str, str], nodes: Nodes) -> BoolColumn:
    """Where every one of the labels has the wanted value: a pod's ``spec.nodeSelector``."""
    return _all_of((nodes.label(key).is_in((text,)) for key, text in wanted.items()), nodes.size)


def selector_matches(selector: NodeSelector, nodes: Nodes) -> BoolColumn:
    """Where any term of the selector matches."""
    terms = selector.node_selector_terms
    if not terms:
        return np.zeros(nodes.size, np.bool_)
    matched = term_matches(terms[0], nodes)
    for term in terms[1:]:
        matched = matched | term_matches(term, nodes)
    return matched


def term_matches(term: NodeSelectorTerm, nodes: Nodes) -> BoolColumn:
    """Where all requirements of the term hold. An empty term matches no node."""
    if term.is_empty:
        return np.zeros(nodes.size, np.bool_)
    return _all_of(
        (
            *(_label_requirement(requirement, nodes) for requirement in term.match_expressions),
            *(_field_requirement(requirement, nodes) for requirement in term.match_fields),
        ),
        nodes.size,
    )


def _all_of(columns: Iterable[BoolColumn], size: int) -> BoolColumn:
    every: BoolColumn | None = None
    for column in columns:
        every = column if every is None else every & column
    return np.ones(size, np.bool_) if every is None else every


def _label_requirement(requirement: NodeSelectorRequirement, nodes: Nodes) -> BoolColumn:
    values = requirement.values
    match requirement.operator:
        case "In" if values:
            return nodes.label(requirement.key).is_in(values)
        case "NotIn" if values:
            return ~nodes.label(requirement.key).is_in(values)
        case "Exists" if not values:
            return nodes.label(requirement.key).present
        case "DoesNotExist" if not values:
            return ~nodes.label(requirement.key).present
        case "Gt" | "Lt" if len(values) == 1:
            bound = _parse_int64(values[0])
            if bound is not None:
                column = nodes.label(requirement.key)
                return _compare(column, bound, greater=requirement.operator == "Gt")
    return np.zeros(nodes.size, np.bool_)


def _compare(column: LabelColumn, bound: int, *, greater: bool) -> BoolColumn:
    """Where the label reads as an integer beyond ``bound``; each distinct text is read once."""
    ids = column.ids
    distinct = np.unique(ids)
    # One entry more than there are numbers, so that -1 (absent) finds a False at the end.
    verdicts = np.zeros(int(distinct[-1]) + 2 if len(distinct) else 1, np.bool_)
    for number in distinct.tolist():
        if number >= 0:
            actual = _parse_int64(column.word(number))
            verdicts[number] = actual is not None and (
                actual > bound if greater else actual < bound
            )
    matched: BoolColumn = verdicts[ids]
    return matched


def _field_requirement(requirement: NodeSelectorRequirement, nodes: Nodes) -> BoolColumn:
    """As :func:`asched.model.selectors.field_matches`."""
    operator = requirement.operator
    known = requirement.key == NODE_NAME_FIELD and len(requirement.values) == 1
    if not known or operator not in ("In", "NotIn"):
        return np.zeros(nodes.size, np.bool_)
    matched = np.full(nodes.size, operator == "NotIn", np.bool_)
    row = nodes.row_of(requirement.values[0])
    if row is not None:
        matched[row] = operator == "In"
    return matched


# -- what a selector in a configuration may say -------------------------------------------------

_LABEL_VALUE = re.compile(r"(?:[A-Za-z0-9](?:[-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?", re.ASCII)
_DNS_SUBDOMAIN = re.compile(
    r"[a-z0-9](?:[-a-z0-9]*[a-z0-9])?(?:\.[a-z0-9](?:[-a-z0-9]*[a-z0-9])?)*", re.ASCII
)
_MAX_SUBDOMAIN_LENGTH = 253


def is_qualified_name(text: str) -> bool:
    """A label key or resource name: ``[prefix/]name`` (``validation.IsQualifiedName``)."""
    prefix, slash, name = text.rpartition("/")
    if slash and (len(prefix) > _MAX_SUBDOMAIN_LENGTH or _DNS_SUBDOMAIN.fullmatch(prefix) is None):
        return False
    return bool(name) and _LABEL_VALUE.fullmatch(name) is not None


def check_term(term: NodeSelectorTerm) -> None:
    """Raise ValueError, saying where, for a term that no API server would accept."""
    for index, requirement in enumerate(term.match_expressions):
        problem = _label_problem(requirement)
        if problem:
            raise ValueError(f"matchExpressions[{index}].{problem}")
    for index, requirement in enumerate(term.match_fields):
        problem = _field_problem(requirement)
        if problem:
            raise ValueError(f"matchFields[{index}].{problem}")


def matchable(selector: NodeSelector) -> NodeSelector:
    """The selector without the terms that do not parse, which match no node.

    Objects stored by old API servers may hold such terms. ``nodeaffinity.LazyErrorNodeSelector``
    passes over them likewise.
    """
    return NodeSelector(
        node_selector_terms=tuple(t for t in selector.node_selector_terms if _parses(t))
    )


def _parses(term: NodeSelectorTerm) -> bool:
    try:
        check_term(term)
    except ValueError:
        return False
    return True


def _label_problem(requirement: NodeSelectorRequirement) -> str:
    operator, values = requirement.operator, requirement.values
    if not is_qualified_name(requirement.key):
        return f"key: {requirement.key!r} is not a label key"
    match operator:
        case "In" | "NotIn":
            if not values:
                return f"values: operator {operator} needs at least one"
        case "Exists" | "DoesNotExist":
            if values:
                return f"values: operator {operator} takes none"
        case "Gt" | "Lt":
            if len(values) != 1 or parse_int64(values[0]) is None:
                return f"values: operator {operator} needs exactly one integer"
        case _:
            return (
                f"operator: {operator!r} is not one of In, NotIn, Exists, DoesNotExist, Gt and Lt"
            )
    wrong = next((text for text in values if _LABEL_VALUE.fullmatch(text) is None), None)
    return "" if wrong is None else f"values: {wrong!r} is not a label value"


def _field_problem(requirement: NodeSelectorRequirement) -> str:
    if requirement.key != NODE_NAME_FIELD:
        return f"key: {requirement.key!r} is not {NODE_NAME_FIELD}"
    if requirement.operator not in ("In", "NotIn"):
        return f"operator: {requirement.operator!r} is not one of In and NotIn"
    return "" if len(requirement.values) == 1 else "values: exactly one is needed"
