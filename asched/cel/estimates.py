"""Worst-case cost of expressions, which the API server limits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from asched.cel import types as t
from asched.cel.call_estimates import Argument, extension_estimate, standard_estimate
from asched.cel.costs import (
    LIST_BASE,
    MAP_BASE,
    NOTHING,
    ONE,
    UNKNOWN,
    ZERO,
    CallEstimate,
    Range,
    fixed,
)
from asched.cel.environment import max_size
from asched.cel.syntax import (
    ACCUMULATOR,
    Call,
    Comprehension,
    Identifier,
    ListLiteral,
    Literal,
    MapLiteral,
    Select,
    SyntaxNode,
)
from asched.cel.types import CelType, Kind

Path = tuple[str, ...]
_SCALARS: Final = frozenset(
    {Kind.BOOL, Kind.DOUBLE, Kind.DURATION, Kind.INT, Kind.TIMESTAMP, Kind.UINT}
)


@dataclass(frozen=True, slots=True)
class EntrySizes:
    """Sizes of the entries of a list or map."""

    kind: Kind
    key: Range
    value: Range

    def union(self, other: EntrySizes | None) -> EntrySizes | None:
        """Sizes that cover both."""
        if other is None:
            return None
        return EntrySizes(self.kind, self.key.union(other.key), self.value.union(other.value))


def _go_slice_has_room(length: int) -> bool:
    """Whether Go appends to a slice that grew one by one without copying it: its capacity doubles,
    so it is full when the length is a power of two."""
    return length.bit_count() > 1


@dataclass(frozen=True, slots=True)
class _Local:
    path: Path
    size: Range | None
    entries: EntrySizes | None = None


def estimate_cost(root: SyntaxNode) -> int:
    """The cost in the worst case, up to 2**64 - 1."""
    return _Estimator().cost(root).high


class _Estimator:
    def __init__(self) -> None:
        self._paths: dict[int, Path] = {}
        self._sizes: dict[int, Range] = {}
        self._entries: dict[int, EntrySizes] = {}
        self._locals: list[tuple[str, _Local]] = []

    def cost(self, node: SyntaxNode) -> Range:
        if isinstance(node, Literal):
            return ZERO
        if isinstance(node, Identifier):
            local = self._local(node.name)
            self._paths[id(node)] = (node.name,) if local is None else local.path
            return ONE
        if isinstance(node, Select):
            return self._select(node)
        if isinstance(node, Call):
            return self._call(node)
        if isinstance(node, ListLiteral):
            return self._list(node)
        if isinstance(node, MapLiteral):
            return self._map(node)
        assert isinstance(node, Comprehension)
        return self._bind(node) if _is_bind(node) else self._comprehension(node)

    def _local(self, name: str) -> _Local | None:
        for declared, local in reversed(self._locals):
            if declared == name:
                return local
        return None

    def _path(self, node: SyntaxNode) -> Path:
        if isinstance(node, Identifier):
            local = self._local(node.name)
            if local is not None:
                return local.path
        return self._paths.get(id(node), ())

    def _select(self, node: Select) -> Range:
        if node.type_name:
            return ONE
        total = self.cost(node.operand)
        if node.test_only:
            return total
        if node.operand.checked_type.kind in (Kind.MAP, Kind.STRUCT, Kind.PARAMETER):
            total = total.plus(ONE)
        self._paths[id(node)] = (*self._path(node.operand), node.name)
        return total

    def _list(self, node: ListLiteral) -> Range:
        total, sizes = fixed(LIST_BASE), NOTHING if node.elements else ZERO
        for element in node.elements:
            total = total.plus(self.cost(element))
            sizes = sizes.union(self._size_or_unknown(element))
        self._entries[id(node)] = EntrySizes(Kind.LIST, ONE, sizes)
        return total

    def _map(self, node: MapLiteral) -> Range:
        total = fixed(MAP_BASE)
        keys = values = NOTHING if node.entries else ZERO
        for entry in node.entries:
            total = total.plus(self.cost(entry.key)).plus(self.cost(entry.value))
            keys = keys.union(self._size_or_unknown(entry.key))
            values = values.union(self._size_or_unknown(entry.value))
        self._entries[id(node)] = EntrySizes(Kind.MAP, keys, values)
        return total

    def _call(self, node: Call) -> Range:
        if node.function == "dyn":
            argument = node.arguments[0]
            total = self.cost(argument).plus(ONE)
            self._copy_sizes(node, argument)
            return total
        costs = [self.cost(argument) for argument in node.arguments]
        arguments = [self._argument(argument) for argument in node.arguments]
        total, target = ZERO, None
        if node.target is not None:
            total = self.cost(node.target)
            target = self._argument(node.target)
        estimates = NOTHING
        size: Range | None = None
        for identifier in node.overloads:
            estimate = self._overload(node, identifier, (target, arguments), costs)
            estimates = estimates.union(estimate.cost)
            if estimate.size is not None:
                size = estimate.size if size is None else size.union(estimate.size)
            if identifier in ("index_list", "index_map"):
                entries = self._entry_sizes(node.arguments[0])
                size = None if entries is None else entries.value
                part = "@items" if identifier == "index_list" else "@values"
                self._paths[id(node)] = (*self._path(node.arguments[0]), part)
            if size is None:
                size = self._size(node)
        if size is not None:
            self._sizes[id(node)] = size
        return total.plus(estimates)

    def _argument(self, node: SyntaxNode) -> Argument:
        path = self._path(node)
        if path and path[0] == ACCUMULATOR:
            path = ()
        value = node.value if isinstance(node, Literal) else None
        is_literal = isinstance(node, Literal)
        return Argument(path, node.checked_type, self._size(node), is_literal, value)

    def _overload(
        self,
        node: Call,
        identifier: str,
        values: tuple[Argument | None, list[Argument]],
        costs: Sequence[Range],
    ) -> CallEstimate:
        target, arguments = values
        total = ZERO
        for cost in costs:
            total = total.plus(cost)
        found = extension_estimate(node.function, identifier, target, arguments)
        if found is None:
            if identifier in ("logical_and", "logical_or"):
                return CallEstimate(Range(costs[0].low, total.high))
            if identifier == "conditional":
                return self._conditional(node, costs)
            if identifier in ("add_string", "add_bytes", "add_list"):
                self._join_entries(node, node.arguments[0], node.arguments[1])
            found = standard_estimate(identifier, target, arguments)
        return CallEstimate(found.cost.plus(total), found.size)

    def _conditional(self, node: Call, costs: Sequence[Range]) -> CallEstimate:
        _, truthy, falsy = node.arguments
        self._join_entries(node, truthy, falsy)
        size = self._size_or_unknown(truthy).union(self._size_or_unknown(falsy))
        return CallEstimate(costs[0].plus(costs[1].union(costs[2])), size)

    def _join_entries(self, node: SyntaxNode, left: SyntaxNode, right: SyntaxNode) -> None:
        entries = self._entry_sizes(left)
        joined = None if entries is None else entries.union(self._entry_sizes(right))
        if joined is not None:
            self._entries[id(node)] = joined

    def _bind(self, node: Comprehension) -> Range:
        total = self.cost(node.range).plus(self.cost(node.initial))
        self._push(node.loop.accumulator, node.initial)
        total = total.plus(self.cost(node.result))
        self._locals.pop()
        self._copy_sizes(node, node.result)
        return total

    def _push(self, name: str, value: SyntaxNode) -> None:
        local = _Local(self._path(value), self._size(value), self._entry_sizes(value))
        self._locals.append((name, local))

    def _comprehension(self, node: Comprehension) -> Range:
        loop = node.loop
        total = self.cost(node.range).plus(self.cost(node.initial))
        self._push(loop.accumulator, node.initial)
        depth = len(self._locals)
        self._push_variables(node)
        iteration = self.cost(loop.condition)
        iteration = self.cost(loop.step).plus(iteration)
        del self._locals[depth:]
        total = total.plus(self.cost(node.result))
        self._locals.pop()
        count = self._size_or_unknown(node.range)
        total = total.plus(count.times(iteration))
        if isinstance(node.initial, Literal):
            size = self._size(node.initial)
            if size is not None:
                self._sizes[id(node)] = size
        elif isinstance(node.initial, ListLiteral | MapLiteral):
            self._sizes[id(node)] = count
            entries = self._entry_sizes(loop.step)
            if entries is not None:
                self._entries[id(node)] = entries
        return total

    def _push_variables(self, node: Comprehension) -> None:
        loop = node.loop
        entries, path = self._entry_sizes(node.range), self._path(node.range)
        kind = node.range.checked_type.kind if entries is None else entries.kind
        key = None if entries is None else entries.key
        value = None if entries is None else entries.value
        is_list = kind is Kind.LIST
        item = _Local((*path, "@items" if is_list else "@values"), value)
        if loop.second_variable:
            index_path = (*path, "@indices" if is_list else "@keys")
            if _go_slice_has_room(len(path)):
                # cel-go builds both paths in the same array: the item's path stays.
                index_path = item.path
            index = _Local(index_path, key)
            self._locals.append((loop.variable, index))
            self._locals.append((loop.second_variable, item))
        elif is_list:
            self._locals.append((loop.variable, item))
        else:
            self._locals.append((loop.variable, _Local((*path, "@keys"), key)))

    def _copy_sizes(self, target: SyntaxNode, source: SyntaxNode) -> None:
        size, entries = self._size(source), self._entry_sizes(source)
        if size is not None:
            self._sizes[id(target)] = size
        if entries is not None:
            self._entries[id(target)] = entries

    def _entry_sizes(self, node: SyntaxNode) -> EntrySizes | None:
        found = self._entries.get(id(node))
        if found is None and isinstance(node, Identifier):
            local = self._local(node.name)
            return None if local is None else local.entries
        return found

    def _size_or_unknown(self, node: SyntaxNode) -> Range:
        return self._size(node) or UNKNOWN

    def _size(self, node: SyntaxNode) -> Range | None:
        found = self._sizes.get(id(node)) or _literal_size(node)
        if found is not None:
            return found
        largest = max_size(self._path(node))
        if largest is not None:
            self._sizes[id(node)] = Range(0, largest)
            return self._sizes[id(node)]
        if _is_scalar(node.checked_type):
            return ONE
        if isinstance(node, Identifier):
            local = self._local(node.name)
            return None if local is None else local.size
        return None


def _is_bind(node: Comprehension) -> bool:
    condition = node.loop.condition
    return (
        isinstance(node.range, ListLiteral)
        and not node.range.elements
        and isinstance(condition, Literal)
        and condition.value is False
        and node.loop.accumulator != ACCUMULATOR
    )


def _literal_size(node: SyntaxNode) -> Range | None:
    if isinstance(node, Literal):
        return fixed(len(node.value) if isinstance(node.value, str | bytes) else 1)
    if isinstance(node, ListLiteral):
        return fixed(len(node.elements))
    return fixed(len(node.entries)) if isinstance(node, MapLiteral) else None


def _is_scalar(checked: CelType) -> bool:
    if t.is_optional(checked):
        return _is_scalar(checked.parameters[0])
    return checked.kind in _SCALARS
