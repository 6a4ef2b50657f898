"""Costs of calls at run time, in the units of cel-go and Kubernetes; ranges of costs."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeAlias

from asched.cel.addresses import CIDRValue, IPValue, URLValue
from asched.cel.errors import InternalError
from asched.cel.kubernetes_scalars import Quantity, Version
from asched.cel.named_formats import NamedFormat
from asched.cel.values import CelMap, Meter, Value, go_type_name, is_list, size_of

MAXIMUM: Final = 2**64 - 1


@dataclass(frozen=True, slots=True)
class Range:
    """The least and the greatest value."""

    low: int
    high: int

    def plus(self, other: Range) -> Range:
        """The sum."""
        return Range(min(self.low + other.low, MAXIMUM), min(self.high + other.high, MAXIMUM))

    def times(self, other: Range) -> Range:
        """The product."""
        return Range(min(self.low * other.low, MAXIMUM), min(self.high * other.high, MAXIMUM))

    def scaled(self, factor: float) -> Range:
        """The product with a factor, rounded up."""
        return Range(_scaled(self.low, factor), _scaled(self.high, factor))

    def union(self, other: Range) -> Range:
        """The range that covers both."""
        return Range(min(self.low, other.low), max(self.high, other.high))

    def __bool__(self) -> bool:
        return True


@dataclass(frozen=True, slots=True)
class CallEstimate:
    """The cost of a call without its arguments, and the size of its result if known."""

    cost: Range
    size: Range | None = None


def fixed(value: int) -> Range:
    """The range of one value."""
    return Range(value, value)


def _scaled(value: int, factor: float) -> int:
    if value > 0 and factor > 0 and float(value) > MAXIMUM / factor:
        return MAXIMUM
    return min(math.ceil(float(value) * factor), MAXIMUM)


ZERO: Final = fixed(0)
ONE: Final = fixed(1)
UNKNOWN: Final = Range(0, MAXIMUM)
NOTHING: Final = Range(MAXIMUM, 0)


LIST_BASE: Final = 10
MAX_ATTRIBUTE_VALUES: Final = 48
"""``includes`` looks at this many items of a list at most."""
MAP_BASE: Final = 30
TEXT_FACTOR: Final = 0.1
REGEX_FACTOR: Final = 0.25

Arguments: TypeAlias = tuple[Value, ...]
CallCost: TypeAlias = Callable[[Meter, Arguments, Value], int]


class FailedArgument:
    """An argument or result that is an error."""


FAILED: Final = FailedArgument()
_UNIT_TYPES: Final = frozenset({Quantity, Version, IPValue, CIDRValue, URLValue, NamedFormat})
# Functions with a cost that depends on the result.
COST_OF_RESULT: Final = frozenset({"join", "slice", "reverse", "lists.range"})


def traverse_text(size: int) -> int:
    """The cost to read a text once."""
    return math.ceil(size * TEXT_FACTOR)


def _first(_: Meter, arguments: Arguments, __: Value) -> int:
    return traverse_text(size_of(arguments[0]))


def _first_twice(_: Meter, arguments: Arguments, __: Value) -> int:
    return math.ceil(size_of(arguments[0]) * 2 * TEXT_FACTOR)


def _result_twice(_: Meter, __: Arguments, result: Value) -> int:
    return math.ceil(size_of(result) * 2 * TEXT_FACTOR)


def _elements(meter: Meter, arguments: Arguments, _: Value) -> int:
    return _traversal(meter, arguments[0])


def _traversal(meter: Meter, value: Value) -> int:
    meter.count()
    if isinstance(value, str):
        return int(len(value.encode("utf-8", "surrogatepass")) * TEXT_FACTOR)
    if isinstance(value, bytes):
        return int(len(value) * TEXT_FACTOR)
    if isinstance(value, CelMap):
        return sum(_traversal(meter, k) + _traversal(meter, v) for k, v in value.items())
    if is_list(value):
        return sum(_traversal(meter, each) for each in value)  # type: ignore[attr-defined, misc]
    return 1


def _regex(_: Meter, arguments: Arguments, __: Value) -> int:
    text = math.ceil((1.0 + size_of(arguments[0])) * TEXT_FACTOR)
    return text * math.ceil(size_of(arguments[1]) * REGEX_FACTOR)


def _validate(_: Meter, arguments: Arguments, __: Value) -> int:
    named = arguments[0]
    if not isinstance(named, NamedFormat):
        return 1
    text = math.ceil((1.0 + size_of(arguments[1])) * TEXT_FACTOR)
    return text * math.ceil(named.regex_size * REGEX_FACTOR)


def _substring(_: Meter, arguments: Arguments, __: Value) -> int:
    return traverse_text(size_of(arguments[0])) * traverse_text(size_of(arguments[1]))


def _contains_ip(_: Meter, arguments: Arguments, __: Value) -> int:
    return traverse_text(2 * size_of(arguments[0]))


def _contains_ip_text(meter: Meter, arguments: Arguments, result: Value) -> int:
    return _contains_ip(meter, arguments, result) + traverse_text(size_of(arguments[1]))


def _contains_cidr(_: Meter, arguments: Arguments, __: Value) -> int:
    size = size_of(arguments[0])
    return traverse_text(2 * size) + traverse_text(size) + 1


def _contains_cidr_text(meter: Meter, arguments: Arguments, result: Value) -> int:
    return _contains_cidr(meter, arguments, result) + traverse_text(size_of(arguments[1]))


def equality(_: Meter, arguments: Arguments, __: Value) -> int:
    """The cost of ``==``."""
    if type(arguments[0]) in _UNIT_TYPES:
        return 1
    return smaller(_, arguments, __)


def smaller(_: Meter, arguments: Arguments, __: Value) -> int:
    """The cost to compare two values up to the end of the shorter one."""
    return traverse_text(min(size_of(arguments[0]), size_of(arguments[1])))


def _both(_: Meter, arguments: Arguments, __: Value) -> int:
    return traverse_text(size_of(arguments[0]) + size_of(arguments[1]))


def _in_list(_: Meter, arguments: Arguments, __: Value) -> int:
    return size_of(arguments[1])


def _sets(factor: int) -> CallCost:
    def cost(_: Meter, arguments: Arguments, __: Value) -> int:
        return 1 + size_of(arguments[0]) * size_of(arguments[1]) * factor

    return cost


def _result_list(_: Meter, __: Arguments, result: Value) -> int:
    return size_of(result) + 1 + LIST_BASE


def _flatten(_: Meter, arguments: Arguments, __: Value) -> int:
    depth = arguments[1] if len(arguments) == 2 else 1
    if depth is FAILED:
        raise _not_convertible("ref.Val is *types.Err, not types.Int")
    if type(depth) is not int:
        raise _not_convertible(f"ref.Val is {go_type_name(depth)}, not types.Int")
    levels = depth if isinstance(depth, int) else 1
    return max(size_of(arguments[0]) * levels, 0) + 1 + LIST_BASE


def _not_convertible(reason: str) -> InternalError:
    return InternalError(f"internal error: interface conversion: {reason}")


def _self_compare(index: int) -> CallCost:
    def cost(_: Meter, arguments: Arguments, __: Value) -> int:
        items = arguments[index]
        if items is FAILED:
            raise _not_convertible("*types.Err is not traits.Lister: missing method Add")
        if not is_list(items):
            name = go_type_name(items)
            raise _not_convertible(f"{name} is not traits.Lister: missing method Contains")
        size = size_of(items)
        is_text = size > 0 and isinstance(items[0], str | bytes)  # type: ignore[index]
        return int(size * size * (2.0 + TEXT_FACTOR if is_text else 2.0)) + 1 + LIST_BASE

    return cost


def _authorization(_: Meter, __: Arguments, ___: Value) -> int:
    return 350_000


_BY_OVERLOAD: Final[dict[str, CallCost]] = {
    "list_slice": _result_list,
    "list_flatten": _flatten,
    "list_flatten_int": _flatten,
    "lists_range": _result_list,
    "list_reverse": _result_list,
    "list_distinct": _self_compare(0),
    "list_sets_contains_list": _sets(1),
    "list_sets_intersects_list": _sets(1),
    "list_sets_equivalent_list": _sets(2),
}
_BY_FUNCTION: Final[dict[str, CallCost]] = {
    "check": _authorization,
    **dict.fromkeys(("isSorted", "sum", "max", "min", "indexOf", "lastIndexOf"), _elements),
    **dict.fromkeys(
        ("url", "lowerAscii", "upperAscii", "substring", "trim", "cidr", "isIP", "isCIDR"), _first
    ),
    **dict.fromkeys(("quantity", "isQuantity", "semver", "isSemver"), _first),
    **dict.fromkeys(("replace", "split", "ip.isCanonical"), _first_twice),
    "join": _result_twice,
    "find": _regex,
    "findAll": _regex,
    "validate": _validate,
}
_STANDARD: Final[dict[str, CallCost]] = {
    "starts_with_string": _first,
    "ends_with_string": _first,
    "string_to_bytes": _first,
    "bytes_to_string": _first,
    "strings_quote": _first,
    "string_format": _first,
    "in_list": _in_list,
    "add_string": _both,
    "add_bytes": _both,
    "matches_string": _regex,
    "contains_string": _substring,
    "equals": equality,
    "not_equals": smaller,
    **{
        f"{relation}_{name}": smaller
        for relation in ("less", "less_equals", "greater", "greater_equals")
        for name in ("string", "bytes")
    },
}


def call_cost(function: str, identifier: str) -> CallCost | None:
    """The cost of a call; None for one unit. The overload is empty if only values decide it."""
    if identifier in _BY_OVERLOAD:
        return _BY_OVERLOAD[identifier]
    if identifier.endswith("_sort"):
        return _self_compare(0)
    if identifier.endswith("_sortByAssociatedKeys"):
        return _self_compare(1)
    if function == "ip":
        return None if identifier == "cidr_ip" else _first
    if function == "containsIP":
        return _contains_ip_text if identifier == "cidr_contains_ip_string" else _contains_ip
    if function == "containsCIDR":
        is_text = identifier == "cidr_contains_cidr_string"
        return _contains_cidr_text if is_text else _contains_cidr
    return _BY_FUNCTION.get(function) or _STANDARD.get(identifier)
