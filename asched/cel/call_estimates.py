"""Worst-case cost of calls: Kubernetes' estimates, those of extensions, the standard ones."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from asched.cel import types as t
from asched.cel.costs import (
    LIST_BASE,
    MAX_ATTRIBUTE_VALUES,
    MAXIMUM,
    ONE,
    REGEX_FACTOR,
    TEXT_FACTOR,
    UNKNOWN,
    CallEstimate,
    Range,
    fixed,
)
from asched.cel.environment import max_size
from asched.cel.types import CelType, Kind
from asched.cel.values import Value

_MAX_FORMAT_SIZE: Final = 64
_MAX_NAME_REGEX_SIZE: Final = 128
_BYTES_OF_ADDRESS: Final = Range(4, 16)


@dataclass(frozen=True, slots=True)
class Argument:
    """What is known of an argument: path from a variable, type, size, and literal value."""

    path: tuple[str, ...]
    checked_type: CelType
    size: Range | None
    is_literal: bool = False
    value: Value = None

    @property
    def bounds(self) -> Range:
        """The size, or any."""
        return self.size or UNKNOWN

    def number(self, default: int) -> int:
        """The value of an integer literal."""
        if self.is_literal and type(self.value) is int:
            return max(self.value, 0)
        return default


Arguments = list[Argument]
Estimate = Callable[[str, Argument | None, Arguments], CallEstimate | None]


def _text(size: Range) -> Range:
    return size.scaled(TEXT_FACTOR)


def _element_bounds(items: Argument) -> Range:
    path = (*items.path, "@items") if items.path else ()
    largest = max_size(path)
    return UNKNOWN if largest is None else Range(0, largest)


def _element_type(items: Argument) -> CelType | None:
    parameters = items.checked_type.parameters
    return parameters[0] if parameters else None


def _traversal(_: str, target: Argument | None, __: Arguments) -> CallEstimate | None:
    if target is None:
        return None
    element = _element_type(target)
    if element is None:
        return CallEstimate(_text(target.bounds))
    cost = ONE
    if element.kind in (Kind.STRING, Kind.BYTES):
        cost = cost.plus(_text(_element_bounds(target)))
    return CallEstimate(target.bounds.times(cost))


def _url(_: str, __: Argument | None, arguments: Arguments) -> CallEstimate | None:
    if len(arguments) != 1:
        return None
    return CallEstimate(_text(arguments[0].bounds), arguments[0].bounds)


def _of_target(_: str, target: Argument | None, __: Arguments) -> CallEstimate | None:
    return None if target is None else CallEstimate(_text(target.bounds), target.bounds)


def _replace(_: str, target: Argument | None, arguments: Arguments) -> CallEstimate | None:
    if target is None or len(arguments) < 2:
        return None
    size, old, new = target.bounds, arguments[0].bounds, arguments[1].bounds
    count_high, kept_high = 0, 0
    if old.low == 0:
        count_high, kept_high = min(size.high + 1, MAXIMUM), size.high
    elif new.high <= old.low:
        kept_high = size.high
    else:
        count_high = min(math.ceil(float(size.high) / float(old.low)), MAXIMUM)
    count_low, kept_low = 0, 0
    if old.high == 0:
        count_low, kept_low = min(size.low + 1, MAXIMUM), size.low
    elif old.high <= new.low:
        kept_low = size.low
    else:
        count_low = math.ceil(float(size.low) / float(old.high))
    result = Range(count_low, count_high).times(new).plus(Range(kept_low, kept_high))
    return CallEstimate(size.scaled(2 * TEXT_FACTOR), result)


def _split(_: str, target: Argument | None, arguments: Arguments) -> CallEstimate | None:
    if target is None:
        return None
    most = target.bounds.high
    if len(arguments) > 1 and arguments[1].is_literal and type(arguments[1].value) is int:
        most = arguments[1].value % (MAXIMUM + 1)
    return CallEstimate(target.bounds.scaled(2 * TEXT_FACTOR), Range(0, most))


def _join(_: str, target: Argument | None, arguments: Arguments) -> CallEstimate | None:
    if target is None:
        return None
    count, size = target.bounds, Range(0, 0)
    if _element_type(target) is not None:
        size = count.times(_element_bounds(target))
    if arguments:
        separators = Range(max(count.low - 1, 0), max(count.high - 1, 0))
        size = size.plus(arguments[0].bounds.times(separators))
    return CallEstimate(_text(size), size)


def _find(_: str, target: Argument | None, arguments: Arguments) -> CallEstimate | None:
    if target is None or not arguments:
        return None
    return CallEstimate(_regex_cost(target, arguments[0]), Range(0, target.bounds.high))


def _regex_cost(text: Argument, pattern: Argument) -> Range:
    return _text(text.bounds.plus(ONE)).times(pattern.bounds.scaled(REGEX_FACTOR))


def _of_first(identifier: str, __: Argument | None, arguments: Arguments) -> CallEstimate | None:
    if identifier == "cidr_ip":
        return CallEstimate(ONE)
    return CallEstimate(_text(arguments[0].bounds)) if arguments else None


def _first_twice(_: str, __: Argument | None, arguments: Arguments) -> CallEstimate | None:
    return CallEstimate(arguments[0].bounds.scaled(2 * TEXT_FACTOR)) if arguments else None


def _contains_ip(identifier: str, _: Argument | None, arguments: Arguments) -> CallEstimate | None:
    if not arguments:
        return None
    cost = _text(_BYTES_OF_ADDRESS.plus(_BYTES_OF_ADDRESS))
    if identifier == "cidr_contains_ip_string":
        cost = cost.plus(_text(arguments[0].bounds))
    return CallEstimate(cost)


def _contains_cidr(
    identifier: str, _: Argument | None, arguments: Arguments
) -> CallEstimate | None:
    if not arguments:
        return None
    cost = _text(_BYTES_OF_ADDRESS.plus(_BYTES_OF_ADDRESS))
    cost = cost.plus(_text(_BYTES_OF_ADDRESS)).plus(ONE)
    if identifier == "cidr_contains_cidr_string":
        cost = cost.plus(_text(arguments[0].bounds))
    return CallEstimate(cost)


def _validate(_: str, __: Argument | None, arguments: Arguments) -> CallEstimate | None:
    if not arguments:
        return None
    cost = _text(arguments[0].bounds)
    return CallEstimate(cost.scaled(_MAX_NAME_REGEX_SIZE * REGEX_FACTOR))


def _unit(_: str, __: Argument | None, ___: Arguments) -> CallEstimate | None:
    return CallEstimate(ONE)


def _authorization(_: str, __: Argument | None, ___: Arguments) -> CallEstimate | None:
    return CallEstimate(fixed(350_000))


def _includes(_: str, __: Argument | None, ___: Arguments) -> CallEstimate | None:
    return CallEstimate(Range(0, MAX_ATTRIBUTE_VALUES))


def _equals(_: str, __: Argument | None, arguments: Arguments) -> CallEstimate | None:
    left, right = arguments
    if left.checked_type != right.checked_type:
        return None
    if left.checked_type in (t.IP, t.CIDR, t.QUANTITY, t.SEMVER):
        return CallEstimate(ONE)
    if left.checked_type == t.NAMED_FORMAT:
        return CallEstimate(_text(Range(1, _MAX_FORMAT_SIZE)))
    if left.checked_type == t.URL:
        size = ONE if right.size is None else right.size
        return CallEstimate(_text(Range(1, size.high)))
    return None


_UNIT_FUNCTIONS: Final = (
    *("masked", "prefixLength", "family", "format.named"),
    *("isUnspecified", "isLoopback", "isLinkLocalMulticast", "isLinkLocalUnicast"),
    *("isGlobalUnicast", "sign", "asInteger", "isInteger", "asApproximateFloat"),
    *("isGreaterThan", "isLessThan", "compareTo", "add", "sub", "major", "minor", "patch"),
    *("getScheme", "getHostname", "getHost", "getPort", "getEscapedPath", "getQuery"),
    *("serviceAccount", "path", "group", "resource", "subresource", "namespace", "name"),
    *("allowed", "reason", "error", "errored"),
)
_BY_FUNCTION: Final[dict[str, Estimate]] = {
    "check": _authorization,
    "includes": _includes,
    **dict.fromkeys(("isSorted", "sum", "max", "min", "indexOf", "lastIndexOf"), _traversal),
    "url": _url,
    **dict.fromkeys(("lowerAscii", "upperAscii", "substring", "trim"), _of_target),
    "replace": _replace,
    "split": _split,
    "join": _join,
    "find": _find,
    "findAll": _find,
    **dict.fromkeys(("cidr", "isIP", "isCIDR", "ip"), _of_first),
    **dict.fromkeys(("quantity", "isQuantity", "semver", "isSemver"), _of_first),
    "ip.isCanonical": _first_twice,
    "containsIP": _contains_ip,
    "containsCIDR": _contains_cidr,
    "validate": _validate,
    "_==_": _equals,
    **dict.fromkeys(_UNIT_FUNCTIONS, _unit),
}


def extension_estimate(
    function: str, identifier: str, target: Argument | None, arguments: Arguments
) -> CallEstimate | None:
    """The estimate of an extension or of Kubernetes, if there is one."""
    found = _list_estimate(identifier, target, arguments)
    if found is None and function in _BY_FUNCTION:
        found = _BY_FUNCTION[function](identifier, target, arguments)
    return found


def _allocating(factor: float, size: Range) -> CallEstimate:
    return CallEstimate(size.scaled(factor).plus(fixed(1 + LIST_BASE)), size)


def _list_estimate(
    identifier: str, target: Argument | None, arguments: Arguments
) -> CallEstimate | None:
    if identifier in _SETS:
        size = arguments[0].bounds.times(arguments[1].bounds)
        return CallEstimate(size.scaled(_SETS[identifier]).plus(ONE))
    if identifier == "lists_range":
        return _allocating(1, fixed(arguments[0].number(MAXIMUM)))
    if target is None:
        return None
    bounds = target.bounds
    if identifier == "list_slice":
        start, end = arguments[0].number(0), arguments[1].number(bounds.high)
        return _allocating(1, fixed((end - start) % (MAXIMUM + 1)))
    if identifier == "list_reverse":
        return _allocating(1, bounds)
    if identifier in ("list_flatten", "list_flatten_int"):
        depth = arguments[0].number(MAXIMUM) if arguments else 1
        return _allocating(float(depth), bounds)
    if identifier == "list_distinct":
        return _allocating(2, bounds.times(bounds))
    for suffix, keys in (("_sort", target), ("_sortByAssociatedKeys", (arguments or [target])[0])):
        if identifier.endswith(suffix):
            is_text = identifier.split("_")[1] in ("string", "bytes")
            size = keys.bounds.times(keys.bounds)
            return _allocating(2.0 + TEXT_FACTOR if is_text else 2.0, size)
    return None


_SETS: Final = {
    "list_sets_contains_list": 1,
    "list_sets_intersects_list": 1,
    "list_sets_equivalent_list": 2,
}
_COMPARISONS: Final = frozenset(
    {"equals", "not_equals"}
    | {
        f"{relation}_{name}"
        for relation in ("less", "less_equals", "greater", "greater_equals")
        for name in ("string", "bytes")
    }
)


def standard_estimate(
    identifier: str, target: Argument | None, arguments: Arguments
) -> CallEstimate:
    """The estimate for a standard function; one unit for those of constant time."""
    if identifier in ("starts_with_string", "ends_with_string"):
        return CallEstimate(_text(arguments[0].bounds))
    if identifier == "string_format" and target is not None:
        return CallEstimate(_text(target.bounds))
    if identifier == "in_list":
        return CallEstimate(arguments[1].bounds.scaled(1))
    if identifier == "matches_string" and target is not None:
        return CallEstimate(_regex_cost(target, arguments[0]))
    if identifier == "contains_string" and target is not None:
        return CallEstimate(_text(target.bounds).times(_text(arguments[0].bounds)))
    if identifier == "add_list":
        return CallEstimate(ONE, arguments[0].bounds.plus(arguments[1].bounds))
    if identifier in ("add_string", "add_bytes"):
        size = arguments[0].bounds.plus(arguments[1].bounds)
        return CallEstimate(_text(size), size)
    if identifier in _COMPARISONS:
        smallest = min(arguments[0].bounds.high, arguments[1].bounds.high)
        return CallEstimate(_text(Range(1 if smallest else 0, smallest)))
    return _conversion_estimate(identifier, arguments) or CallEstimate(ONE)


def _conversion_estimate(identifier: str, arguments: Arguments) -> CallEstimate | None:
    if identifier not in ("string_to_bytes", "bytes_to_string", "strings_quote"):
        return None
    size = arguments[0].bounds
    if identifier == "string_to_bytes":
        result = Range(size.low, size.high * 4 % (MAXIMUM + 1))
    elif identifier == "bytes_to_string":
        result = Range(size.low // 4, size.high)
    else:
        result = Range((size.low + 2) % (MAXIMUM + 1), (size.high * 2 + 2) % (MAXIMUM + 1))
    return CallEstimate(_text(size), result)
