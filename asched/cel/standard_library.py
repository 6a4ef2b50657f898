"""Operators and functions of the language itself."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

from asched.cel.errors import CostLimitError, SubexpressionError, no_overload
from asched.cel.functions import Library
from asched.cel.instants import (
    Duration,
    Timestamp,
    duration,
    timestamp,
)
from asched.cel.regular_expressions import compile_regex
from asched.cel.values import (
    COMPARABLE,
    LIST_TYPES,
    MAX_INT,
    MAX_ITEMS,
    CelMap,
    GrowingList,
    Meter,
    Uint,
    Value,
    bounded_text,
    checked_int,
    checked_uint,
    compare,
    contains,
    is_list,
)

ADDABLE: Final = LIST_TYPES | {int, Uint, float, str, bytes, Timestamp, Duration}
_SUBTRACTABLE: Final = frozenset({int, Uint, float, Timestamp, Duration})
_NUMBERS: Final = frozenset({int, Uint, float})
_NEGATABLE: Final = frozenset({int, float, Duration, bool})
_SIZED: Final = LIST_TYPES | {str, bytes, CelMap}
_ORDERED_TYPES: Final = [
    "bool",
    "int",
    "uint",
    "double",
    "string",
    "bytes",
    "timestamp",
    "duration",
]


def add(_: Meter, left: Value, right: Value) -> Value:
    """The sum or the concatenation."""
    kind, other = type(left), type(right)
    if kind is GrowingList and is_list(right):
        left.extend(right)  # type: ignore[attr-defined]
        if len(left) > MAX_ITEMS:  # type: ignore[arg-type]
            raise CostLimitError
        return left
    if kind in LIST_TYPES and other in LIST_TYPES:
        if len(left) + len(right) > MAX_ITEMS:  # type: ignore[arg-type]
            raise CostLimitError
        return (*left, *right)  # type: ignore[misc]
    if kind is Duration and other is Timestamp:
        left, right, kind, other = right, left, other, kind
    if kind is Timestamp and other is Duration:
        return timestamp(left.ns + right.ns, left.offset_s)  # type: ignore[attr-defined]
    if kind is not other:
        raise no_overload()
    if kind is Duration:
        return duration(left.ns + right.ns)  # type: ignore[attr-defined]
    total = left + right  # type: ignore[operator]
    if kind is int:
        return checked_int(total)
    if kind is Uint:
        return checked_uint(total)
    if kind is str or kind is bytes:
        bounded_text(len(total))
    return total


def _subtract(_: Meter, left: Value, right: Value) -> Value:
    kind, other = type(left), type(right)
    if kind is Timestamp and other is Duration:
        return timestamp(left.ns - right.ns, left.offset_s)  # type: ignore[attr-defined]
    if kind is not other:
        raise no_overload()
    if kind is Timestamp or kind is Duration:
        return duration(left.ns - right.ns)  # type: ignore[attr-defined]
    total = left - right  # type: ignore[operator]
    if kind is int:
        return checked_int(total)
    return checked_uint(total) if kind is Uint else total


def _multiply(_: Meter, left: Value, right: Value) -> Value:
    if type(left) is not type(right):
        raise no_overload()
    total = left * right  # type: ignore[operator]
    if type(left) is int:
        return checked_int(total)
    return checked_uint(total) if type(left) is Uint else total


def _divide(_: Meter, left: Value, right: Value) -> Value:
    if type(left) is not type(right):
        raise no_overload()
    if isinstance(left, float) and isinstance(right, float):
        if right:
            return left / right
        if left == 0 or left != left:
            return math.nan
        return math.copysign(math.inf, left) * math.copysign(1.0, right)
    assert isinstance(left, int)
    assert isinstance(right, int)
    if right == 0:
        raise SubexpressionError("division by zero")
    quotient = abs(left) // abs(right)
    if type(left) is Uint:
        return Uint(quotient)
    return checked_int(-quotient if (left < 0) != (right < 0) else quotient)


def _modulo(_: Meter, left: Value, right: Value) -> Value:
    if type(left) is not type(right):
        raise no_overload()
    assert isinstance(left, int)
    assert isinstance(right, int)
    if right == 0:
        raise SubexpressionError("modulus by zero")
    rest = abs(left) % abs(right)
    if type(left) is Uint:
        return Uint(rest)
    if right == -1 and left == -MAX_INT - 1:
        raise SubexpressionError("integer overflow")
    return -rest if left < 0 else rest


def _negate(_: Meter, value: Value) -> Value:
    if type(value) is int:
        return checked_int(-value)
    if type(value) is float:
        return -value
    if type(value) is Duration:
        return duration(-value.ns)
    raise no_overload()


def _not(_: Meter, value: Value) -> Value:
    if type(value) is not bool:
        raise no_overload()
    return not value


def _comparison(holds: Callable[[int], bool]) -> Callable[[Meter, Value, Value], bool]:
    def evaluate(_: Meter, left: Value, right: Value) -> bool:
        return holds(compare(left, right))

    return evaluate


def _in(meter: Meter, needle: Value, container: Value) -> bool:
    if type(container) is CelMap:
        return container.has(needle)
    if isinstance(container, tuple | GrowingList):
        return contains(meter, container, needle)
    raise no_overload()


def _size(_: Meter, value: Value) -> int:
    return len(value)  # type: ignore[arg-type]


def _matches(_: Meter, text: str, pattern: Value) -> bool:
    if not isinstance(pattern, str):
        raise no_overload()
    return compile_regex(pattern).search(text)


def _contains(_: Meter, text: Value, part: Value) -> bool:
    return str.__contains__(*_two_texts(text, part))


def _starts_with(_: Meter, text: Value, part: Value) -> bool:
    return str.startswith(*_two_texts(text, part))


def _ends_with(_: Meter, text: Value, part: Value) -> bool:
    return str.endswith(*_two_texts(text, part))


def _two_texts(text: Value, part: Value) -> tuple[str, str]:
    if not isinstance(text, str) or not isinstance(part, str):
        raise no_overload()
    return text, part


def _not_strictly_false(_: Meter, value: Value) -> Value:
    return value if type(value) is bool else True


def declare(library: Library) -> None:
    """Add the standard functions."""
    _declare_operators(library)
    _declare_relations(library)
    _declare_texts(library)


def _declare_operators(library: Library) -> None:
    add_to = library.add
    add_to("_?_:_", "conditional", "(bool, A, A) -> A")
    add_to("_&&_", "logical_and", "(bool, bool) -> bool")
    add_to("_||_", "logical_or", "(bool, bool) -> bool")
    add_to("!_", "logical_not", "(bool) -> bool")
    library.share("!_", _not)
    add_to("@not_strictly_false", "not_strictly_false", "(bool) -> bool", _not_strictly_false)
    add_to("_==_", "equals", "(A, A) -> bool")
    add_to("_!=_", "not_equals", "(A, A) -> bool")
    for identifier, signature in (
        ("add_bytes", "(bytes, bytes) -> bytes"),
        ("add_double", "(double, double) -> double"),
        ("add_duration_duration", "(duration, duration) -> duration"),
        ("add_duration_timestamp", "(duration, timestamp) -> timestamp"),
        ("add_timestamp_duration", "(timestamp, duration) -> timestamp"),
        ("add_int64", "(int, int) -> int"),
        ("add_list", "(list(A), list(A)) -> list(A)"),
        ("add_string", "(string, string) -> string"),
        ("add_uint64", "(uint, uint) -> uint"),
    ):
        add_to("_+_", identifier, signature)
    library.share("_+_", add, ADDABLE)
    _declare_arithmetic(library)
    _declare_containers(library)


def _declare_arithmetic(library: Library) -> None:
    add_to = library.add
    for name in ("double", "int", "uint"):
        for operator, word in (("_/_", "divide"), ("_*_", "multiply"), ("_-_", "subtract")):
            add_to(operator, f"{word}_{name}", f"({name}, {name}) -> {name}")
    for name in ("int", "uint"):
        add_to("_%_", f"modulo_{name}", f"({name}, {name}) -> {name}")
    add_to("_-_", "subtract_duration_duration", "(duration, duration) -> duration")
    add_to("_-_", "subtract_timestamp_duration", "(timestamp, duration) -> timestamp")
    add_to("_-_", "subtract_timestamp_timestamp", "(timestamp, timestamp) -> duration")
    library.share("_/_", _divide, _NUMBERS)
    library.share("_*_", _multiply, _NUMBERS)
    library.share("_%_", _modulo, frozenset({int, Uint}))
    library.share("_-_", _subtract, _SUBTRACTABLE)
    add_to("-_", "negate_double", "(double) -> double")
    add_to("-_", "negate_int64", "(int) -> int")
    library.share("-_", _negate, _NEGATABLE)


def _declare_containers(library: Library) -> None:
    add_to = library.add
    add_to("_[_]", "index_list", "(list(A), int) -> A")
    add_to("_[_]", "index_map", "(map(A, B), A) -> B")
    add_to("@in", "in_list", "(A, list(A)) -> bool")
    add_to("@in", "in_map", "(A, map(A, B)) -> bool")
    library.share("@in", _in)
    for name, argument in (
        ("bytes", "bytes"),
        ("list", "list(A)"),
        ("map", "map(A, B)"),
        ("string", "string"),
    ):
        add_to("size", f"size_{name}", f"({argument}) -> int")
        add_to("size", f"{name}_size", f"{argument}.() -> int")
    library.share("size", _size, _SIZED)


def _declare_relations(library: Library) -> None:
    numbers = ("int", "uint", "double")
    pairs = [(name, name) for name in _ORDERED_TYPES]
    pairs += [(one, other) for one in numbers for other in numbers if one != other]
    for operator, word, holds in (
        ("_<_", "less", lambda order: order < 0),
        ("_<=_", "less_equals", lambda order: order <= 0),
        ("_>_", "greater", lambda order: order > 0),
        ("_>=_", "greater_equals", lambda order: order >= 0),
    ):
        for one, other in pairs:
            suffix = one if one == other else f"{one}_{other}"
            library.add(operator, f"{word}_{suffix}", f"({one}, {other}) -> bool")
        library.share(operator, _comparison(holds), COMPARABLE)


def _declare_texts(library: Library) -> None:
    library.add("contains", "contains_string", "string.(string) -> bool", _contains)
    library.add("startsWith", "starts_with_string", "string.(string) -> bool", _starts_with)
    library.add("endsWith", "ends_with_string", "string.(string) -> bool", _ends_with)
    library.unguard("contains", "startsWith", "endsWith")
    library.add("matches", "matches", "(string, string) -> bool")
    library.add("matches", "matches_string", "string.(string) -> bool")
    library.share("matches", _matches, frozenset({str}))
