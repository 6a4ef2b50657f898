"""Label and field selectors, compiled to predicates on raw objects."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from asched.apiserver.errors import Object, StatusError, bad_request
from asched.apiserver.resources import ServedResource

Predicate = Callable[[Object], bool]

_SET_TERM = re.compile(r"^(?P<key>[^\s!=]+)\s+(?P<op>in|notin)\s*\((?P<values>[^)]*)\)$")
_EQ_TERM = re.compile(r"^(?P<key>[^\s!=<>]+)\s*(?P<op>==|=|!=)\s*(?P<value>[^\s,()!=]*)$")
_CMP_TERM = re.compile(r"^(?P<key>[^\s!=<>]+)\s*(?P<op>[<>])\s*(?P<value>-?\d+)$")
_KEY_TERM = re.compile(r"^(?P<no>!?)\s*(?P<key>[A-Za-z0-9][-A-Za-z0-9_./]*)$")

_FIELDS = {
    "pods": "spec.nodeName spec.restartPolicy spec.schedulerName spec.serviceAccountName "
    "spec.hostNetwork status.phase status.podIP status.podIPs status.nominatedNodeName",
    "nodes": "spec.unschedulable",
    "namespaces": "status.phase",
    "secrets": "type",
    "replicasets.apps": "status.replicas",
    "replicationcontrollers": "status.replicas",
    "jobs.batch": "status.successful",
    "events": "involvedObject.kind involvedObject.namespace involvedObject.name "
    "involvedObject.uid involvedObject.apiVersion involvedObject.resourceVersion "
    "involvedObject.fieldPath reason reportingComponent source type",
}
_EVENT_ALIASES = {
    "regarding": "involvedObject",
    "reportingController": "reportingComponent",
}


def _split_terms(text: str) -> list[str]:
    """Split at commas outside the parentheses of a set term."""
    terms: list[str] = []
    depth = start = 0
    for index, char in enumerate(text):
        if char == "(":
            depth += 1
        elif char == ")":
            depth -= 1
        elif char == "," and depth == 0:
            terms.append(text[start:index])
            start = index + 1
    terms.append(text[start:])
    return [term.strip() for term in terms]


def _label_term(term: str) -> Predicate:
    if match := _SET_TERM.match(term):
        key, negated = match["key"], match["op"] == "notin"
        values = frozenset(value.strip() for value in match["values"].split(","))
        if negated:
            # An absent key satisfies notin and != (labels.Requirement.Matches).
            return lambda labels: labels.get(key) not in values
        return lambda labels: labels.get(key) in values
    if match := _EQ_TERM.match(term):
        key, value = match["key"], match["value"]
        if match["op"] == "!=":
            return lambda labels: labels.get(key) != value
        return lambda labels: labels.get(key) == value
    if match := _CMP_TERM.match(term):
        return _comparison(match["key"], match["op"], int(match["value"]))
    if match := _KEY_TERM.match(term):
        key = match["key"]
        if match["no"]:
            return lambda labels: key not in labels
        return lambda labels: key in labels
    raise bad_request(f"unable to parse requirement: found '{term}', expected: identifier")


def _comparison(key: str, operator: str, bound: int) -> Predicate:
    def matches(labels: Object) -> bool:
        try:
            value = int(labels[key])
        except (KeyError, ValueError):
            return False
        return value > bound if operator == ">" else value < bound

    return matches


def label_selector(text: str) -> Predicate | None:
    """Compile ``a=b,c in (d,e),!f``; None selects everything. Raises StatusError 400."""
    terms = [_label_term(term) for term in _split_terms(text) if term]
    if not terms:
        return None

    def matches(obj: Object) -> bool:
        labels = obj["metadata"].get("labels") or {}
        return all(term(labels) for term in terms)

    return matches


def _lookup(path: str, default: str = "") -> Callable[[Object], str]:
    parts = path.split(".")

    def get(obj: Object) -> str:
        value: Any = obj
        for part in parts:
            if not isinstance(value, dict):
                return default
            value = value.get(part)
        if value is None:
            return default
        if isinstance(value, bool):
            return "true" if value else "false"
        return str(value)

    return get


def _field_getter(resource: ServedResource, field: str) -> Callable[[Object], str]:
    if field in ("metadata.name", "metadata.namespace"):
        return _lookup(field)
    known = _FIELDS.get(resource.storage_key, "").split()
    name = field
    if resource.storage_key == "events":
        head, dot, tail = field.partition(".")
        name = _EVENT_ALIASES.get(head, head) + dot + tail
    if name not in known:
        raise StatusError(
            400,
            "BadRequest",
            f'Unable to find "{resource.group_version}, Resource={resource.plural}" that match '
            f'label selector "", field selector "{field}": field label not supported: {field}',
        )
    boolean = name in ("spec.unschedulable", "spec.hostNetwork")
    return _lookup(name, "false" if boolean else "")


def field_selector(resource: ServedResource, text: str) -> Predicate | None:
    """Compile for ``resource``; None selects everything. Raises StatusError 400."""
    tests: list[tuple[Callable[[Object], str], bool, str]] = []
    for term in text.split(","):
        if not term:
            continue
        match = re.match(r"^(?P<field>[^!=]+)(?P<op>!=|==|=)(?P<value>.*)$", term)
        if match is None:
            raise bad_request(f"invalid field selector: '{text}'; can't understand '{term}'")
        getter = _field_getter(resource, match["field"].strip())
        tests.append((getter, match["op"] != "!=", match["value"]))
    if not tests:
        return None
    return lambda obj: all((get(obj) == value) is equal for get, equal, value in tests)


def both(first: Predicate | None, second: Predicate | None) -> Predicate | None:
    """The conjunction of two optional predicates."""
    if first is None or second is None:
        return first or second
    return lambda obj: first(obj) and second(obj)
