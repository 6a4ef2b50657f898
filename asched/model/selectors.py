"""Label selectors and node selectors, with the matching rules of ``k8s.io/apimachinery/labels``."""

from __future__ import annotations

import re
from collections.abc import Mapping

from asched.model.meta import ApiStruct, Int32


class LabelSelectorRequirement(ApiStruct):
    """One condition on an object's labels."""

    key: str = ""
    operator: str = ""
    values: tuple[str, ...] = ()

    def matches(self, labels: Mapping[str, str]) -> bool:
        return operator_matches(self.operator, labels.get(self.key), self.values)


class LabelSelector(ApiStruct):
    """``matchLabels`` and ``matchExpressions`` together. An empty selector matches everything.

    A missing optional selector (None) matches nothing; callers handle that case.
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
    """All requirements must match; an empty term matches no node."""

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
    """At least one term must match."""

    node_selector_terms: tuple[NodeSelectorTerm, ...] = ()

    def matches(self, labels: Mapping[str, str], node_name: str) -> bool:
        return any(term.matches(labels, node_name) for term in self.node_selector_terms)


class PreferredSchedulingTerm(ApiStruct):
    """Preferred nodes, with a weight."""

    weight: Int32 = 0
    preference: NodeSelectorTerm = NodeSelectorTerm()


NODE_NAME_FIELD = "metadata.name"


def field_matches(requirement: NodeSelectorRequirement, node_name: str) -> bool:
    """Whether a node of that name satisfies a requirement of ``matchFields``.

    The only field is ``metadata.name``, and ``In`` and ``NotIn`` take exactly one value. Anything
    else matches nothing (``nodeaffinity.NewNodeSelector``).
    """
    if requirement.key != NODE_NAME_FIELD or len(requirement.values) != 1:
        return False
    if requirement.operator == "In":
        return node_name == requirement.values[0]
    return requirement.operator == "NotIn" and node_name != requirement.values[0]


_INTEGER = re.compile(r"[+-]?[0-9]+", re.ASCII)


def parse_int64(text: str) -> int | None:
    """``strconv.ParseInt(text, 10, 64)`` of Go; None if it reports an error."""
    if _INTEGER.fullmatch(text) is None:
        return None
    number = int(text)
    return number if -(2**63) <= number < 2**63 else None


def operator_matches(operator: str, actual: str | None, values: tuple[str, ...]) -> bool:
    """Whether a label's value satisfies a requirement (``labels.Requirement.Matches``).

    ``actual`` is None if the label is absent, which satisfies ``NotIn`` and ``DoesNotExist``.
    ``Gt`` and ``Lt`` compare 64-bit integers. An unknown operator, or one with the wrong number of
    values, matches nothing.
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


# -- validation -----------------------------------------------------------------------------------

_LABEL_VALUE = re.compile(r"(?:[A-Za-z0-9](?:[-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?", re.ASCII)
_DNS_SUBDOMAIN = re.compile(
    r"[a-z0-9](?:[-a-z0-9]*[a-z0-9])?(?:\.[a-z0-9](?:[-a-z0-9]*[a-z0-9])?)*", re.ASCII
)
_MAX_SUBDOMAIN_LENGTH = 253


def is_qualified_name(text: str) -> bool:
    """Whether ``text`` is a label key or resource name (``validation.IsQualifiedName``)."""
    prefix, slash, name = text.rpartition("/")
    if slash and (len(prefix) > _MAX_SUBDOMAIN_LENGTH or _DNS_SUBDOMAIN.fullmatch(prefix) is None):
        return False
    return bool(name) and _LABEL_VALUE.fullmatch(name) is not None


def check_term(term: NodeSelectorTerm) -> None:
    """Raise ValueError, with the field, for a term that the API server rejects."""
    for index, requirement in enumerate(term.match_expressions):
        problem = _label_problem(requirement)
        if problem:
            raise ValueError(f"matchExpressions[{index}].{problem}")
    for index, requirement in enumerate(term.match_fields):
        problem = _field_problem(requirement)
        if problem:
            raise ValueError(f"matchFields[{index}].{problem}")


def matchable(selector: NodeSelector) -> NodeSelector:
    """The selector without its invalid terms, which match no node.

    Objects stored by old API servers may have such terms (``nodeaffinity.LazyErrorNodeSelector``).
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
