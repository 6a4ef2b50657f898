"""Values at run time.

Booleans, integers, doubles, strings, bytes and null are Python's. Lists are tuples.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from typing import Final, TypeAlias

from asched.cel.errors import CostLimitError, SubexpressionError, no_overload
from asched.cel.instants import Duration, Timestamp
from asched.cel.kubernetes_scalars import Quantity, Version

Value: TypeAlias = object

COST_LIMIT: Final = 1_000_000
MAX_STEPS: Final = 2_000_000
MAX_ITEMS: Final = 1_000_000
MAX_CHARACTERS: Final = 10 * COST_LIMIT
MAX_INT: Final = 2**63 - 1
MIN_INT: Final = -(2**63)
MAX_UINT: Final = 2**64 - 1


class Uint(int):
    """An unsigned integer."""

    __slots__ = ()


@dataclass(slots=True)
class Meter:
    """What an evaluation has spent: cost in upstream's units, and steps that cost nothing."""

    cost: int = 0
    steps: int = 0

    def count(self, steps: int = 1) -> None:
        """Count work that has no cost. Raises CostLimitError."""
        self.steps += steps
        if self.steps > MAX_STEPS or self.cost > COST_LIMIT:
            raise CostLimitError

    def spend(self, cost: int) -> None:
        """Raises CostLimitError above the limit."""
        self.cost += cost
        if self.cost > COST_LIMIT:
            raise CostLimitError


@dataclass(frozen=True, slots=True)
class TypeName:
    """A type as a value."""

    name: str


@dataclass(frozen=True, slots=True)
class Optional:
    """A value that may be absent."""

    value: Value = None
    present: bool = True


ABSENT: Final = Optional(present=False)


class GrowingList(list[Value]):
    """The accumulator of a comprehension that builds a list."""

    __slots__ = ()


Key: TypeAlias = str | int | float | tuple[bool]


class CelMap:
    """A map; numbers that are equal are one key whatever their type."""

    __slots__ = ("default", "entries", "growing")

    def __init__(
        self, entries: dict[Key, tuple[Value, Value]] | None = None, default: Value = None
    ) -> None:
        self.entries = {} if entries is None else entries
        self.default = default
        self.growing = False

    def find(self, key: Value) -> tuple[Value, Value] | None:
        """The entry of the key, or the default of a map that has one."""
        found = self.entries.get(_key(key)) if type(key) in _KEY_TYPES else None
        if found is None and self.default is not None:
            return key, self.default
        return found

    def has(self, key: Value) -> bool:
        """Whether there is an entry; a default does not count."""
        return type(key) in _KEY_TYPES and _key(key) in self.entries

    def insert(self, key: Value, value: Value) -> None:
        """Add or replace an entry. Raises SubexpressionError for a key of another type."""
        if type(key) not in _KEY_TYPES:
            raise SubexpressionError(f"unsupported key type: {type_name(key)}")
        self.entries[_key(key)] = (key, value)

    def items(self) -> Iterator[tuple[Value, Value]]:
        """Keys and values."""
        return iter(self.entries.values())

    def __len__(self) -> int:
        return len(self.entries)


_KEY_TYPES: Final = frozenset({bool, int, Uint, float, str})


def _key(key: Value) -> Key:
    if type(key) is str:
        return key
    if type(key) is bool:
        return (key,)
    assert isinstance(key, int | float)
    return key


_NAMES: Final[dict[type, str]] = {
    bool: "bool",
    int: "int",
    Uint: "uint",
    float: "double",
    str: "string",
    bytes: "bytes",
    type(None): "null_type",
    tuple: "list",
    GrowingList: "list",
    CelMap: "map",
    Optional: "optional_type",
    TypeName: "type",
    Timestamp: "google.protobuf.Timestamp",
    Duration: "google.protobuf.Duration",
    Quantity: "kubernetes.Quantity",
    Version: "kubernetes.Semver",
}
LIST_TYPES: Final = frozenset({tuple, GrowingList})
NUMBER_TYPES: Final = frozenset({int, Uint, float})
_STRICT_TYPES: Final[set[type]] = {Quantity, Version}


def register_type(python_type: type, name: str) -> None:
    """Make a class of an extension library known. Such values equal only their own kind."""
    _NAMES[python_type] = name
    _STRICT_TYPES.add(python_type)


def type_name(value: Value) -> str:
    """The name of the type of a value."""
    return _NAMES[type(value)]


def types_named(name: str) -> frozenset[type]:
    """The classes of the values of a type."""
    return frozenset(each for each, known in _NAMES.items() if known == name)


def is_list(value: Value) -> bool:
    """Whether the value is a list."""
    return type(value) in LIST_TYPES


def double_text(value: float) -> str:
    """The shortest text of a double; as Go's %g, with an exponent above 10**6 or below 10**-4."""
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    number = Decimal(repr(value)).normalize()
    exponent = number.adjusted()
    if value == 0:
        return "-0" if math.copysign(1.0, value) < 0 else "0"
    if -4 <= exponent < 6:
        return f"{number:f}"
    return f"{number.scaleb(-exponent):f}e{exponent:+03d}"


def display(value: Value) -> str:
    """The text of a value in errors."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return double_text(value) if isinstance(value, float) else str(value)


_GO_NAMES: Final = {
    "bool": "types.Bool",
    "int": "types.Int",
    "uint": "types.Uint",
    "double": "types.Double",
    "string": "types.String",
    "bytes": "types.Bytes",
    "null_type": "types.Null",
    "optional_type": "*types.Optional",
    "type": "*types.Type",
    "google.protobuf.Timestamp": "types.Timestamp",
    "google.protobuf.Duration": "types.Duration",
}


def go_type_name(value: Value) -> str:
    """The name of the type that some errors of cel-go contain."""
    name = type_name(value)
    return _GO_NAMES.get(name) or f"cel.{name.rpartition('.')[2]}"


def size_of(value: Value) -> int:
    """The size that costs are computed from; 1 for values without a size."""
    kind = type(value)
    if kind is str or kind is bytes or kind is tuple or kind is CelMap or kind is GrowingList:
        return len(value)  # type: ignore[arg-type]
    if kind is Optional and value.present:  # type: ignore[attr-defined]
        return size_of(value.value)  # type: ignore[attr-defined]
    size = getattr(value, "byte_size", None)
    return size if isinstance(size, int) else 1


def equal(meter: Meter, left: Value, right: Value) -> bool:
    """Whether two values are equal.

    Raises SubexpressionError if the left value can only be compared with its own kind.
    """
    kind = type(left)
    if left is None or right is None:
        return left is right
    if kind is str:
        return left == right
    if kind in NUMBER_TYPES:
        return type(right) in NUMBER_TYPES and left == right
    if kind in _STRICT_TYPES:
        if type(right) is not kind or (type(right) is Quantity and right.is_computed):
            raise no_overload()
        return left == right
    if kind in LIST_TYPES or kind is CelMap or kind is Optional:
        return _containers_equal(meter, left, right)
    return kind is type(right) and left == right


def _containers_equal(meter: Meter, left: Value, right: Value) -> bool:
    meter.count()
    if isinstance(left, tuple | GrowingList):
        if not isinstance(right, tuple | GrowingList) or len(left) != len(right):
            return False
        for ours, theirs in zip(left, right, strict=True):
            if is_unequal(meter, ours, theirs):
                return False
        return True
    if isinstance(left, CelMap):
        if not isinstance(right, CelMap) or len(left) != len(right):
            return False
        for key, value in left.items():
            found = right.find(key)
            if found is None or is_unequal(meter, value, found[1]):
                return False
        return True
    assert isinstance(left, Optional)
    if not isinstance(right, Optional) or left.present != right.present:
        return False
    return not left.present or equal(meter, left.value, right.value)


def is_unequal(meter: Meter, left: Value, right: Value) -> bool:
    """Whether elements of containers differ; elements that cannot be compared do not."""
    meter.count()
    try:
        return not equal(meter, left, right)
    except SubexpressionError:
        return False


def contains(meter: Meter, items: tuple[Value, ...] | list[Value], needle: Value) -> bool:
    """Whether an element equals the needle; elements that cannot be compared do not."""
    for item in items:
        meter.count()
        try:
            if equal(meter, needle, item):
                return True
        except SubexpressionError:
            continue
    return False


def compare(left: Value, right: Value) -> int:
    """-1, 0 or 1. Raises SubexpressionError for values without an order."""
    kind, other = type(left), type(right)
    if kind in NUMBER_TYPES and other in NUMBER_TYPES:
        if left != left or right != right:
            raise SubexpressionError("NaN values cannot be ordered")
    elif kind is not other or kind not in _ORDERED:
        raise no_overload()
    return (left > right) - (left < right)  # type: ignore[operator, no-any-return]


_ORDERED: Final = frozenset({bool, str, bytes, Timestamp, Duration})
COMPARABLE: Final = _ORDERED | NUMBER_TYPES


def checked_int(value: int) -> int:
    """Raises SubexpressionError for an integer that does not fit."""
    if not MIN_INT <= value <= MAX_INT:
        raise SubexpressionError("integer overflow")
    return value


def checked_uint(value: int) -> Uint:
    """Raises SubexpressionError for an unsigned integer that does not fit."""
    if not 0 <= value <= MAX_UINT:
        raise SubexpressionError("unsigned integer overflow")
    return Uint(value)


def bounded_list(items: list[Value]) -> tuple[Value, ...]:
    """Raises CostLimitError for a list that is too long to be used."""
    if len(items) > MAX_ITEMS:
        raise CostLimitError
    return tuple(items)


def bounded_text(length: int) -> None:
    """Raises CostLimitError for a text that is too long to be used."""
    if length > MAX_CHARACTERS:
        raise CostLimitError
