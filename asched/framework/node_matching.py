"""Node selectors evaluated on columns, with the rules of :mod:`asched.model.selectors`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from asched.framework.nodes import BoolColumn, Nodes
from asched.model.selectors import (
    NODE_NAME_FIELD,
    NodeSelector,
    NodeSelectorRequirement,
    NodeSelectorTerm,
    parse_int64,
)


def labels_match(wanted: Mapping[str, str], nodes: Nodes) -> BoolColumn:
    """Where all labels have the wanted value (``spec.nodeSelector`` of a pod)."""
    return _all_of((nodes.label(key).is_in((text,)) for key, text in wanted.items()), nodes.size)


def selector_matches(selector: NodeSelector, nodes: Nodes) -> BoolColumn:
    terms = selector.node_selector_terms
    if not terms:
        return np.zeros(nodes.size, np.bool_)
    matched = term_matches(terms[0], nodes)
    for term in terms[1:]:
        matched = matched | term_matches(term, nodes)
    return matched


def term_matches(term: NodeSelectorTerm, nodes: Nodes) -> BoolColumn:
    """Where all requirements of the term match. An empty term matches no node."""
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
            bound = parse_int64(values[0])
            if bound is not None:
                greater = requirement.operator == "Gt"
                return nodes.label(requirement.key).compares(bound, greater=greater)
    return np.zeros(nodes.size, np.bool_)


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
