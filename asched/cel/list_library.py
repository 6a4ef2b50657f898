"""Lists: Kubernetes' functions, the lists extension version 3, sets, and optional values."""

from __future__ import annotations

from collections.abc import Callable
from functools import cmp_to_key
from typing import Final, cast

from asched.cel.costs import MAX_ATTRIBUTE_VALUES
from asched.cel.errors import CostLimitError, SubexpressionError, no_overload
from asched.cel.functions import Implementation, Library
from asched.cel.instants import Duration, Timestamp
from asched.cel.standard_library import add
from asched.cel.values import (
    ABSENT,
    COMPARABLE,
    LIST_TYPES,
    MAX_ITEMS,
    CelMap,
    GrowingList,
    Meter,
    Optional,
    Uint,
    Value,
    bounded_list,
    compare,
    contains,
    display,
    equal,
    is_list,
    type_name,
)

COMPARABLE_NAMES: Final = [
    "int",
    "uint",
    "double",
    "bool",
    "duration",
    "timestamp",
    "string",
    "bytes",
]
_RUNTIME_NAMES: Final = {
    "duration": "google.protobuf.Duration",
    "timestamp": "google.protobuf.Timestamp",
}
_ZEROS: Final[dict[str, Value]] = {
    "int": 0,
    "uint": Uint(0),
    "double": 0.0,
    "duration": Duration(0),
}
Items = tuple[Value, ...]


def _is_sorted(_: Meter, items: Items) -> bool:
    for each in items:
        if type(each) not in COMPARABLE:
            raise no_overload()
    return all(_order(items[i], items[i + 1]) <= 0 for i in range(len(items) - 1))


def _order(left: Value, right: Value) -> int:
    """-1, 0 or 1; 0 for values without an order, as in Kubernetes' functions."""
    try:
        return compare(left, right)
    except SubexpressionError:
        return 0


def _sum(zero: Value) -> Implementation:
    def evaluate(meter: Meter, items: Items) -> Value:
        total = zero
        for each in items:
            total = add(meter, total, each)
        return total

    return evaluate


def _extreme(name: str, replaced_by: int) -> Implementation:
    def evaluate(_: Meter, items: Items) -> Value:
        if not items:
            raise SubexpressionError(f"{name} called on empty list")
        found = items[0]
        for each in items:
            if type(each) not in COMPARABLE:
                raise no_overload()
            if _order(found, each) == replaced_by:
                found = each
        return found

    return evaluate


def _equals(meter: Meter, left: Value, right: Value) -> bool:
    meter.count()
    try:
        return equal(meter, left, right)
    except SubexpressionError:
        return False


def _index_of(meter: Meter, items: Items, needle: Value) -> int:
    for index, each in enumerate(items):
        if _equals(meter, each, needle):
            return index
    return -1


def _last_index_of(meter: Meter, items: Items, needle: Value) -> int:
    for index in range(len(items) - 1, -1, -1):
        if _equals(meter, items[index], needle):
            return index
    return -1


def _slice(_: Meter, items: Items, start: int, end: int) -> Items:
    if start < 0 or end < 0:
        problem = "negative indexes not supported"
    elif start > end:
        problem = "start index must be less than or equal to end index"
    elif len(items) < end:
        problem = f"list is length {len(items)}"
    else:
        return tuple(items[start:end])
    raise SubexpressionError(f"cannot slice({start}, {end}), {problem}")


def _flatten(meter: Meter, items: Value, *levels: Value) -> Items:
    depth = levels[0] if levels else 1
    if not isinstance(items, tuple | GrowingList):
        name = "map(dyn, dyn)" if isinstance(items, CelMap) else type_name(items)
        given = ", ".join(map(type_name, levels))
        raise SubexpressionError(f"no such overload: {name}.flatten({given})")
    if type(depth) is not int:
        raise no_overload()
    if depth < 0:
        raise SubexpressionError("level must be non-negative")
    flat: list[Value] = []
    pending = [(iter(items), depth)]
    while pending:
        iterator, level = pending[-1]
        for each in iterator:
            meter.count()
            if level > 0 and isinstance(each, tuple | GrowingList):
                pending.append((iter(each), level - 1))
                break
            flat.append(each)
        else:
            pending.pop()
        if len(flat) > MAX_ITEMS:
            raise CostLimitError
    return tuple(flat)


def _sort(meter: Meter, items: Items) -> Items:
    return _sort_by(meter, items, items)


def _sort_by(_: Meter, items: Items, keys: Items) -> Items:
    if len(items) != len(keys):
        raise SubexpressionError(
            "@sortByAssociatedKeys() expected a list of the same size as the associated keys list,"
            f" but got {len(items)} and {len(keys)} elements respectively"
        )
    if not items:
        return items
    if type(keys[0]) not in COMPARABLE:
        raise SubexpressionError("list elements must be comparable")
    if any(type(key) is not type(keys[0]) for key in keys):
        raise SubexpressionError("list elements must have the same type")

    def order(left: int, right: int) -> int:
        try:
            return compare(keys[left], keys[right])
        except SubexpressionError:
            return 0

    return tuple(items[index] for index in sorted(range(len(items)), key=cmp_to_key(order)))


def _range(_: Meter, count: int) -> Items:
    if count > MAX_ITEMS:
        raise CostLimitError
    return tuple(range(count))


def _reverse(_: Meter, items: Items) -> Items:
    return tuple(reversed(items))


def _distinct(meter: Meter, items: Items) -> Items:
    found: list[Value] = []
    for each in items:
        if not any(_equals(meter, each, other) for other in found):
            found.append(each)
    return tuple(found)


def _includes(meter: Meter, target: Value, wanted: Value) -> bool:
    """Whether a list has the value, or another value equals it."""
    if type(target) not in LIST_TYPES:
        return _equals(meter, target, wanted)
    items = cast(Items, target)
    if any(_equals(meter, each, wanted) for each in items[:MAX_ATTRIBUTE_VALUES]):
        return True
    if len(items) > MAX_ATTRIBUTE_VALUES:
        raise SubexpressionError(
            "'includes' function cannot be applied to lists longer than"
            f" {MAX_ATTRIBUTE_VALUES} values"
        )
    return False


def _contains_all(meter: Meter, items: Items, wanted: Items) -> bool:
    return all(contains(meter, items, each) for each in wanted)


def _equivalent(meter: Meter, left: Items, right: Items) -> bool:
    return _contains_all(meter, left, right) and _contains_all(meter, right, left)


def _intersects(meter: Meter, left: Items, right: Items) -> bool:
    return any(contains(meter, right, each) for each in left)


def _map_insert(meter: Meter, target: CelMap, key: Value, value: Value) -> CelMap:
    if target.has(key):
        raise SubexpressionError(f"insert failed: key {display(key)} already exists")
    if len(target) >= MAX_ITEMS:
        raise CostLimitError
    if not target.growing:
        meter.count(len(target))
        target = CelMap(dict(target.entries))
    target.insert(key, value)
    return target


def _map_merge(meter: Meter, target: CelMap, added: CelMap) -> CelMap:
    for key, value in list(added.items()):
        target = _map_insert(meter, target, key, value)
    return target


def _optional_of(_: Meter, value: Value) -> Optional:
    return Optional(value)


def _is_zero(value: Value) -> bool:
    if value is None or (isinstance(value, Timestamp) and value.ns == -62135596800 * 10**9):
        return True
    if isinstance(value, Duration):
        return value.ns == 0
    if is_list(value) or isinstance(value, CelMap | str | bytes):
        return len(value) == 0  # type: ignore[arg-type]
    return isinstance(value, bool | int | float) and not value


def _optional_of_non_zero(_: Meter, value: Value) -> Optional:
    return ABSENT if _is_zero(value) else Optional(value)


def _optional_none(_: Meter) -> Optional:
    return ABSENT


def _optional_value(_: Meter, value: Optional) -> Value:
    if not value.present:
        raise SubexpressionError("optional.none() dereference")
    return value.value


def _has_value(_: Meter, value: Optional) -> bool:
    return value.present


def _first(_: Meter, items: Items) -> Optional:
    return Optional(items[0]) if items else ABSENT


def _last(_: Meter, items: Items) -> Optional:
    return Optional(items[-1]) if items else ABSENT


def _unwrap(_: Meter, items: Items) -> Items:
    found: list[Value] = []
    for each in items:
        if not isinstance(each, Optional):
            raise SubexpressionError(f"value {display(each)} is not optional")
        if each.present:
            found.append(each.value)
    return bounded_list(found)


def declare(library: Library) -> None:
    """Add the functions."""
    _declare_kubernetes(library)
    _declare_extension(library)
    _declare_optional(library)


def _declare_kubernetes(library: Library) -> None:
    extremes: tuple[tuple[str, Callable[..., Value]], ...] = (
        ("max", _extreme("max", -1)),
        ("min", _extreme("min", 1)),
    )
    for name in COMPARABLE_NAMES:
        library.add(
            "isSorted", f"list_{name}_is_sorted_bool", f"list({name}).() -> bool", _is_sorted
        )
        for function, evaluate in extremes:
            signature = f"list({name}).() -> {name}"
            library.add(function, f"list_{name}_{function}_{name}", signature, evaluate)
    for name, zero in _ZEROS.items():
        library.add("sum", f"list_{name}_sum_{name}", f"list({name}).() -> {name}", _sum(zero))
    library.add("includes", "dra_includes_dyn_dyn", "dyn.(dyn) -> bool", _includes)
    library.add("indexOf", "list_a_index_of_int", "list(A).(A) -> int", _index_of)
    library.add("lastIndexOf", "list_a_last_index_of_int", "list(A).(A) -> int", _last_index_of)


def _declare_extension(library: Library) -> None:
    add_to = library.add
    add_to("slice", "list_slice", "list(T).(int, int) -> list(T)", _slice)
    add_to("flatten", "list_flatten", "list(list(T)).() -> list(T)", _flatten)
    add_to("flatten", "list_flatten_int", "list(dyn).(int) -> list(dyn)", _flatten)
    library.unguard("flatten")
    for name in COMPARABLE_NAMES:
        runtime = _RUNTIME_NAMES.get(name, name)
        add_to("sort", f"list_{runtime}_sort", f"list({name}).() -> list({name})")
        add_to(
            "@sortByAssociatedKeys",
            f"list_{runtime}_sortByAssociatedKeys",
            f"list(T).(list({name})) -> list(T)",
        )
    library.share("sort", _sort, LIST_TYPES)
    library.share("@sortByAssociatedKeys", _sort_by, LIST_TYPES)
    add_to("lists.range", "lists_range", "(int) -> list(int)", _range)
    add_to("reverse", "list_reverse", "list(T).() -> list(T)", _reverse)
    add_to("distinct", "list_distinct", "list(T).() -> list(T)", _distinct)
    pair = "(list(T), list(T)) -> bool"
    add_to("sets.contains", "list_sets_contains_list", pair, _contains_all)
    add_to("sets.equivalent", "list_sets_equivalent_list", pair, _equivalent)
    add_to("sets.intersects", "list_sets_intersects_list", pair, _intersects)
    inserted = "(map(K, V), K, V) -> map(K, V)"
    add_to("cel.@mapInsert", "@mapInsert_map_key_value", inserted, _map_insert)
    merged = "(map(K, V), map(K, V)) -> map(K, V)"
    add_to("cel.@mapInsert", "@mapInsert_map_map", merged, _map_merge)


def _declare_optional(library: Library) -> None:
    add_to = library.add
    add_to("optional.of", "optional_of", "(V) -> optional(V)", _optional_of)
    add_to(
        "optional.ofNonZeroValue",
        "optional_ofNonZeroValue",
        "(V) -> optional(V)",
        _optional_of_non_zero,
    )
    add_to("optional.none", "optional_none", "() -> optional(V)", _optional_none)
    add_to("value", "optional_value", "optional(V).() -> V", _optional_value)
    add_to("hasValue", "optional_hasValue", "optional(V).() -> bool", _has_value)
    either = "optional(V).(optional(V)) -> optional(V)"
    add_to("or", "optional_or_optional", either)
    add_to("orValue", "optional_orValue_value", "optional(V).(V) -> V")
    for prefix, result in (("_[?_]", "optional(V)"), ("_[_]", "optional(V)")):
        word = "optindex_optional" if prefix == "_[?_]" else "index"
        if prefix == "_[?_]":
            add_to(prefix, "list_optindex_optional_int", f"(list(V), int) -> {result}")
            add_to(prefix, "map_optindex_optional_value", f"(map(K, V), K) -> {result}")
        add_to(prefix, f"optional_list_{word}_int", f"(optional(list(V)), int) -> {result}")
        add_to(prefix, f"optional_map_{word}_value", f"(optional(map(K, V)), K) -> {result}")
    add_to("first", "list_first", "list(V).() -> optional(V)", _first)
    add_to("last", "list_last", "list(V).() -> optional(V)", _last)
    add_to("optional.unwrap", "optional_unwrap", "(list(optional(V))) -> list(V)", _unwrap)
    add_to("unwrapOpt", "optional_unwrapOpt", "list(optional(V)).() -> list(V)", _unwrap)
