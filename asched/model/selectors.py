"""Label selectors and node selectors, with the matching rules of ``k8s.io/apimachinery/labels``."""

from __future__ import annotations

import re
from collections.abc import Mapping

from asched.model.meta import ApiStruct


class LabelSelectorRequirement(ApiStruct):
    """One condition on an object's labels."""

    key: str = ""
    operator: str = ""
    values: tuple[str, ...] = ()

    def matches(self, labels: Mapping[str, str]) -> bool:
        return operator_matches(self.operator, labels.get(self.key), self.values)


class LabelSelector(ApiStruct):
    """``matchLabels`` and ``matchExpressions``, all of which must hold. Empty matches everything.

    A *missing* selector (``None`` where the API has an optional one) matches nothing; that
    distinction is the caller's, as it is in Kubernetes.
    """

    match_labels: dict[str, str] = {}
    match_expressions: tuple[LabelSelectorRequirement, ...] = ()

    def matches(self, labels: Mapping[str, str]) -> bool:
        for key, wanted in self.match_labels.items():
            if labels.get(key) != wanted:
                return False
        return all(requirement.matches(labels) for requirement in self.match_expressions)


class NodeSelectorRequirement(ApiStruct):
    """One condition on a node's labels or fields."""

    key: str = ""
    operator: str = ""
    values: tuple[str, ...] = ()

    def matches(self, labels: Mapping[str, str]) -> bool:
        return operator_matches(self.operator, labels.get(self.key), self.values)


class NodeSelectorTerm(ApiStruct):
    """All requirements must hold; a term with neither labels nor fields matches no node."""

    match_expressions: tuple[NodeSelectorRequirement, ...] = ()
    match_fields: tuple[NodeSelectorRequirement, ...] = ()

    @property
    def is_empty(self) -> bool:
        return not self.match_expressions and not self.match_fields

    def matches(self, labels: Mapping[str, str], node_name: str) -> bool:
        return (
            not self.is_empty
            and all(r.matches(labels) for r in self.match_expressions)
            and all(field_matches(r, node_name) for r in self.match_fields)
        )


class NodeSelector(ApiStruct):
    """Any one of the terms must match."""

    node_selector_terms: tuple[NodeSelectorTerm, ...] = ()

    def matches(self, labels: Mapping[str, str], node_name: str) -> bool:
        return any(term.matches(labels, node_name) for term in self.node_selector_terms)


class PreferredSchedulingTerm(ApiStruct):
    """Nodes that are preferred, and how much that counts."""

    weight: int = 0
    preference: NodeSelectorTerm = NodeSelectorTerm()


NODE_NAME_FIELD = "metadata.name"


def field_matches(requirement: NodeSelectorRequirement, node_name: str) -> bool:
    """Whether a node of that name satisfies one of ``matchFields``.

    As in ``nodeaffinity.NewNodeSelector`` the one field is the node's name, and ``In`` and
    ``NotIn`` take exactly one value; anything else matches nothing.
    """
    if requirement.key != NODE_NAME_FIELD or len(requirement.values) != 1:
        return False
    if requirement.operator == "In":
        return node_name == requirement.values[0]
    return requirement.operator == "NotIn" and node_name != requirement.values[0]


# ParseInt of Go: an optional sign and decimal digits, within 64 bits.
_INTEGER = re.compile(r"[+-]?[0-9]+", re.ASCII)


def parse_int64(text: str) -> int | None:
    """``strconv.ParseInt(text, 10, 64)``: the number, or None where Go reports an error."""
    if _INTEGER.fullmatch(text) is None:
        return None
    number = int(text)
    return number if -(2**63) <= number < 2**63 else None


def operator_matches(operator: str, actual: str | None, values: tuple[str, ...]) -> bool:
    """Whether a label's value satisfies one requirement.

    ``actual`` is None where the label is absent: ``NotIn`` and ``DoesNotExist`` then hold, as in
    ``labels.Requirement.Matches``. ``Gt`` and ``Lt`` compare 64-bit integers and fail for anything
    else. An unknown operator, or one with the wrong number of values, matches nothing.
    """
    match operator:
        case "In":
            return actual is not None and actual in values
        case "NotIn":
            return bool(values) and (actual is None or actual not in values)
        case "Exists":
            return not values and actual is not None
        case "DoesNotExist":
            return not values and actual is None
        case "Gt" | "Lt":
            if actual is None or len(values) != 1:
                return False
            left, right = parse_int64(actual), parse_int64(values[0])
            if left is None or right is None:
                return False
            return left > right if operator == "Gt" else left < right
        case _:
            return False
