"""Parts of the validation that claims, slices and classes share.

Rules and messages: pkg/apis/resource/validation of Kubernetes 1.36. Paths are those of the fields.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any, Final

from asched.apiserver.errors import (
    Cause,
    Object,
    duplicate,
    forbidden_value,
    invalid_value,
    not_supported,
    required,
    too_long,
    too_many,
)
from asched.apiserver.names import (
    C_IDENTIFIER,
    C_IDENTIFIER_RULE,
    driver_name_causes,
    label_key_causes,
    label_value_causes,
    subdomain_causes,
)
from asched.cel import CompileError, compile_selector

MAX_SELECTORS: Final = 32
MAX_CONFIGS: Final = 32
MAX_PARAMETER_BYTES: Final = 10 * 1024
MAX_EXPRESSION_BYTES: Final = 10 * 1024
MAX_EXPRESSION_COST: Final = 1_000_000
_MAX_IDENTIFIER = 32
_MAX_POOL_NAME = 253
_MAX_CONDITIONS = 4
_EFFECTS = ("NoExecute", "NoSchedule", "None")

ItemCheck = Callable[[str, Any], list[Cause]]
"""Checks an item at a path."""


def list_causes(
    path: str, items: Sequence[Any] | None, most: int | None, check: ItemCheck
) -> list[Cause]:
    """A list with too many items is not looked into."""
    items = items or ()
    if most is not None and len(items) > most:
        return [too_many(path, len(items), most)]
    return [cause for i, item in enumerate(items) for cause in check(f"{path}[{i}]", item)]


def set_causes(
    path: str,
    items: Sequence[Any] | None,
    most: int | None,
    check: ItemCheck,
    key_of: Callable[[Any], Hashable] = lambda item: item,
) -> list[Cause]:
    """A list without two items of the same key."""
    causes = list_causes(path, items, most, check)
    if most is not None and len(items or ()) > most:
        return causes
    seen: set[Hashable] = set()
    for index, item in enumerate(items or ()):
        key = key_of(item)
        if key in seen:
            causes.append(duplicate(f"{path}[{index}]", key))
        seen.add(key)
    return causes


def name_of(item: Object) -> str:
    return item.get("name") or ""


def pool_name_causes(path: str, name: str) -> list[Cause]:
    if not name:
        return [required(path)]
    causes = [too_long(path, _MAX_POOL_NAME)] if len(name) > _MAX_POOL_NAME else []
    return causes + [cause for part in name.split("/") for cause in subdomain_causes(path, part)]


def identifier_causes(path: str, name: str) -> list[Cause]:
    causes = [too_long(path, _MAX_IDENTIFIER)] if len(name) > _MAX_IDENTIFIER else []
    if not C_IDENTIFIER.fullmatch(name):
        causes.append(invalid_value(path, name, C_IDENTIFIER_RULE))
    return causes


def qualified_name_causes(path: str, name: str) -> list[Cause]:
    """The name of an attribute or capacity, with or without a domain."""
    domain, slash, identifier = name.partition("/")
    if not slash:
        return identifier_causes(path, name)
    causes = (
        driver_name_causes(path, domain)
        if domain
        else [invalid_value(path, "", "the domain must not be empty")]
    )
    if not identifier:
        return [*causes, invalid_value(path, "", "the name must not be empty")]
    return causes + identifier_causes(path, identifier)


def fully_qualified_name_causes(path: str, name: str) -> list[Cause]:
    causes = qualified_name_causes(path, name)
    if "/" not in name:
        rule = "a fully qualified name must be a domain and a name separated by a slash"
        causes.append(invalid_value(path, name, rule))
    return causes


def selector_causes(path: str, selector: Object) -> list[Cause]:
    cel = selector.get("cel")
    if cel is None:
        return [required(f"{path}.cel")]
    where, expression = f"{path}.cel.expression", cel.get("expression") or ""
    if len(expression.encode()) > MAX_EXPRESSION_BYTES:
        return [too_long(where, MAX_EXPRESSION_BYTES)]
    return expression_causes(where, expression)


def expression_causes(path: str, expression: str) -> list[Cause]:
    """An expression that does not compile, or costs too much."""
    try:
        selector = compile_selector(expression)
    except CompileError as error:
        return [invalid_value(path, expression, str(error))]
    if selector.estimated_cost > MAX_EXPRESSION_COST:
        return [forbidden_value(path, "too complex, exceeds cost limit")]
    return []


def configuration_causes(path: str, config: Object) -> list[Cause]:
    opaque = config.get("opaque")
    if opaque is None:
        return [required(f"{path}.opaque")]
    causes = driver_name_causes(f"{path}.opaque.driver", opaque.get("driver") or "")
    parameters = opaque.get("parameters")
    return causes + raw_object_causes(f"{path}.opaque.parameters", parameters, MAX_PARAMETER_BYTES)


def raw_object_causes(path: str, raw: Any, most_bytes: int) -> list[Cause]:
    """A JSON object that the API server does not interpret."""
    if raw is None:
        return [required(path)]
    if len(json.dumps(raw, separators=(",", ":")).encode()) > most_bytes:
        return [too_long(path, most_bytes)]
    if not isinstance(raw, dict):
        return [invalid_value(path, "<value omitted>", "must be a valid JSON object")]
    return []


def toleration_causes(path: str, toleration: Object) -> list[Cause]:
    causes: list[Cause] = []
    key, value = toleration.get("key") or "", toleration.get("value") or ""
    if key:
        causes += label_key_causes(f"{path}.key", key)
    operator = toleration.get("operator") or ""
    if operator == "Exists":
        if value:
            rule = "must be empty for operator `Exists`"
            causes.append(invalid_value(f"{path}.value", value, rule))
    elif operator == "Equal":
        causes += label_value_causes(f"{path}.value", value)
    elif not operator:
        causes.append(required(f"{path}.operator"))
    else:
        causes.append(not_supported(f"{path}.operator", operator, ("Equal", "Exists")))
    effect = toleration.get("effect") or ""
    if effect and effect not in _EFFECTS:
        causes.append(not_supported(f"{path}.effect", effect, _EFFECTS))
    return causes


def taint_causes(path: str, taint: Object) -> list[Cause]:
    causes = label_key_causes(f"{path}.key", taint.get("key") or "")
    if taint.get("value"):
        causes += label_value_causes(f"{path}.value", taint["value"])
    effect = taint.get("effect") or ""
    if not effect:
        causes.append(required(f"{path}.effect"))
    elif effect not in _EFFECTS:
        causes.append(not_supported(f"{path}.effect", effect, _EFFECTS))
    return causes


def binding_condition_causes(path: str, holder: Object) -> list[Cause]:
    """``bindingConditions`` and ``bindingFailureConditions`` of a device or a result."""
    conditions = holder.get("bindingConditions") or []
    failures = holder.get("bindingFailureConditions") or []
    at, failures_at = f"{path}.bindingConditions", f"{path}.bindingFailureConditions"
    causes = list_causes(at, conditions, _MAX_CONDITIONS, label_key_causes)
    causes += list_causes(failures_at, failures, _MAX_CONDITIONS, label_key_causes)
    causes += _repeated(at, conditions) + _repeated(failures_at, failures)
    for index, condition in enumerate(failures):
        if condition in conditions:
            rule = "bindingFailureConditions must not overlap with bindingConditions"
            causes.append(invalid_value(f"{failures_at}[{index}]", condition, rule))
    if failures and not conditions:
        rule = "bindingConditions are required to use bindingFailureConditions"
        causes.append(invalid_value(at, "null", rule))
    if conditions and not failures:
        rule = "bindingFailureConditions are required to use bindingConditions"
        causes.append(invalid_value(failures_at, "null", rule))
    return causes


def _repeated(path: str, names: Iterable[str]) -> list[Cause]:
    seen: set[str] = set()
    causes = []
    for index, name in enumerate(names):
        if name in seen:
            causes.append(duplicate(f"{path}[{index}]", name))
        seen.add(name)
    return causes


def node_selector_causes(path: str, selector: Object) -> list[Cause]:
    terms = selector.get("nodeSelectorTerms") or []
    if not terms:
        rule = "must have at least one node selector term"
        return [required(f"{path}.nodeSelectorTerms", rule)]
    causes: list[Cause] = []
    for index, term in enumerate(terms):
        at = f"{path}.nodeSelectorTerms[{index}]"
        for field in ("matchExpressions", "matchFields"):
            causes += list_causes(f"{at}.{field}", term.get(field), None, _requirement_causes)
    return causes


_VALUED = ("In", "NotIn", "Gt", "Lt")


def _requirement_causes(path: str, requirement: Object) -> list[Cause]:
    operator, values = requirement.get("operator") or "", requirement.get("values") or []
    if operator in ("In", "NotIn") and not values:
        rule = "must be specified when `operator` is 'In' or 'NotIn'"
        return [required(f"{path}.values", rule)]
    if operator in ("Exists", "DoesNotExist") and values:
        rule = "Forbidden: may not be specified when `operator` is 'Exists' or 'DoesNotExist'"
        return [Cause("FieldValueForbidden", rule, f"{path}.values")]
    if operator not in (*_VALUED, "Exists", "DoesNotExist"):
        detail = "not a valid selector operator"
        return [invalid_value(f"{path}.operator", operator, detail)]
    return []
