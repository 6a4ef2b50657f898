"""Declarations of functions: signatures for the checker, implementations for the run time."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from asched.cel import types as t
from asched.cel.types import CelType
from asched.cel.values import CelMap, Meter, TypeName, Value, is_list, type_name, types_named

Implementation: TypeAlias = Callable[..., Value]

_NAMES: Final = {
    "bool": t.BOOL,
    "int": t.INT,
    "uint": t.UINT,
    "double": t.DOUBLE,
    "string": t.STRING,
    "bytes": t.BYTES,
    "timestamp": t.TIMESTAMP,
    "duration": t.DURATION,
    "dyn": t.DYN,
    "quantity": t.QUANTITY,
    "semver": t.SEMVER,
    "url": t.URL,
    "format": t.NAMED_FORMAT,
    "ip": t.IP,
    "cidr": t.CIDR,
}
_CONTAINERS: Final = frozenset({t.Kind.LIST, t.Kind.MAP, t.Kind.PARAMETER})
_PIECE = re.compile(r"\s*([A-Za-z.]+|[(),])")


@dataclass(frozen=True, slots=True)
class Overload:
    """One signature of a function, with its implementation unless the function has one."""

    identifier: str
    is_member: bool
    arguments: tuple[CelType, ...]
    result: CelType
    implementation: Implementation | None = None
    parameters: tuple[str, ...] = field(default=())

    def accepts(self, values: tuple[Value, ...]) -> bool:
        """Whether values may be passed at run time, where only outer types are known."""
        return len(values) == len(self.arguments) and all(map(_is_instance, self.arguments, values))

    def python_types(self) -> list[frozenset[type]] | None:
        """The classes of values of each argument; None if more than that is checked."""
        kinds = {each.kind for each in self.arguments}
        if kinds & _CONTAINERS or any(map(t.is_dynamic, self.arguments)):
            return None
        return [types_named(each.name) for each in self.arguments]


@dataclass(slots=True)
class Function:
    """A function with its overloads.

    ``common`` implements all of them, for first arguments of the types in ``operands``.
    """

    name: str
    overloads: list[Overload]
    common: Implementation | None = None
    operands: frozenset[type] | None = None
    is_guarded: bool = True

    @property
    def dispatches(self) -> bool:
        """Whether the overload is chosen at run time if the checker cannot."""
        return self.common is None and len(self.overloads) > 1


def overload(identifier: str, signature: str, implementation: Implementation | None) -> Overload:
    """An overload from a signature such as ``list(T).slice(int, int) -> list(T)``.

    ``string.(int) -> bool`` is a member function with one argument.
    """
    left, result = signature.split(" -> ")
    target, dot, rest = left.partition(".(")
    arguments = _types(rest[:-1] if dot else left[1:-1])
    if dot:
        arguments = _types(target) + arguments
    types = (*arguments, *_types(result))
    names = dict.fromkeys(name for each in types for name in _parameters(each))
    return Overload(identifier, bool(dot), types[:-1], types[-1], implementation, tuple(names))


def _types(text: str) -> tuple[CelType, ...]:
    pieces = _PIECE.findall(text)
    found: list[CelType] = []
    while pieces:
        if pieces[0] == ",":
            del pieces[0]
        found.append(_type(pieces))
    return tuple(found)


def _type(pieces: list[str]) -> CelType:
    name = pieces.pop(0)
    if not pieces or pieces[0] != "(":
        if name in _NAMES:
            return _NAMES[name]
        return t.parameter(name) if len(name) == 1 else CelType(t.Kind.OPAQUE, name)
    inner: list[CelType] = []
    while pieces.pop(0) != ")":
        inner.append(_type(pieces))
    if name == "list":
        return t.list_of(inner[0])
    if name == "map":
        return t.map_of(inner[0], inner[1])
    return t.optional_of(inner[0]) if name == "optional" else t.type_of(inner[0])


def _parameters(checked: CelType) -> Iterable[str]:
    if checked.kind is t.Kind.PARAMETER:
        yield checked.name
    for each in checked.parameters:
        yield from _parameters(each)


def _is_instance(checked: CelType, value: Value) -> bool:
    kind = checked.kind
    if kind is t.Kind.PARAMETER or t.is_dynamic(checked):
        return True
    if checked.name != type_name(value):
        return False
    if kind is t.Kind.LIST and is_list(value):
        return not value or _is_instance(checked.parameters[0], value[0])  # type: ignore[index]
    if kind is t.Kind.MAP and isinstance(value, CelMap):
        for entry in value.items():
            return all(map(_is_instance, checked.parameters, entry))
    return True


class Library:
    """Functions by name; several libraries add overloads to one function."""

    def __init__(self) -> None:
        self.functions: dict[str, Function] = {}

    def add(
        self,
        name: str,
        identifier: str,
        signature: str,
        implementation: Implementation | None = None,
    ) -> None:
        """Declare one overload."""
        declared = overload(identifier, signature, implementation)
        function = self.functions.get(name)
        if function is None:
            self.functions[name] = Function(name, [declared])
        else:
            function.overloads.append(declared)

    def share(
        self, name: str, common: Implementation, operands: frozenset[type] | None = None
    ) -> None:
        """Implement all overloads of a function by one function."""
        function = self.functions[name]
        function.common, function.operands = common, operands

    def unguard(self, *names: str) -> None:
        """Pass values of any type to the implementations of a function."""
        for name in names:
            self.functions[name].is_guarded = False


def type_value(_: Meter, value: Value) -> TypeName:
    """The type of a value as a value."""
    return TypeName(type_name(value))
