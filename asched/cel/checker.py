"""Type checker, with the rules of cel-go as Kubernetes configures it, and checks of literals."""

from __future__ import annotations

from typing import Final

from asched.cel import types as t
from asched.cel.environment import DEVICE_FIELDS, DEVICE_VARIABLE, FUNCTIONS, TYPE_NAMES
from asched.cel.errors import CompileError, SubexpressionError, located_error
from asched.cel.functions import Function, Overload
from asched.cel.instants import parse_duration, parse_timestamp
from asched.cel.regular_expressions import compile_regex
from asched.cel.string_format import CLAUSES, clauses
from asched.cel.syntax import (
    Call,
    Comprehension,
    Identifier,
    ListLiteral,
    Literal,
    MapLiteral,
    Select,
    SyntaxNode,
    qualified_name,
    walk,
)
from asched.cel.types import CelType, Kind, Unifier, most_general
from asched.cel.values import Uint

_LITERALS: Final[dict[type, CelType]] = {
    bool: t.BOOL,
    int: t.INT,
    Uint: t.UINT,
    float: t.DOUBLE,
    str: t.STRING,
    bytes: t.BYTES,
    type(None): t.NULL,
}
_LOGICAL: Final = frozenset({"_&&_", "_||_"})


def check(root: SyntaxNode, expression: str) -> CelType:
    """Annotate the tree with types and overloads; the type of the result. Raises CompileError."""
    checker = _Checker(expression)
    checker.check(root)
    for node, _ in walk(root):
        node.checked_type = checker.unifier.substitute(node.checked_type, open_to_dyn=True)
    return root.checked_type


class _Checker:
    def __init__(self, expression: str) -> None:
        self._expression = expression
        self.unifier = Unifier()
        self._scopes: list[tuple[str, CelType]] = []

    def check(self, node: SyntaxNode) -> CelType:
        node.checked_type = checked = self._type(node)
        return checked

    def _type(self, node: SyntaxNode) -> CelType:
        if isinstance(node, Literal):
            return _LITERALS[type(node.value)]
        if isinstance(node, Identifier):
            return self._identifier(node)
        if isinstance(node, Select):
            return self._select(node)
        if isinstance(node, Call):
            return self._call(node)
        if isinstance(node, ListLiteral):
            return self._list(node)
        if isinstance(node, MapLiteral):
            return self._map(node)
        assert isinstance(node, Comprehension)
        return self._comprehension(node)

    def _error(self, node: SyntaxNode, message: str) -> CompileError:
        return located_error(self._expression, node.offset, message)

    def _undeclared(self, node: SyntaxNode, name: str) -> CompileError:
        return self._error(node, f"undeclared reference to '{name}' (in container '')")

    def _mismatch(self, node: SyntaxNode, expected: CelType, found: CelType) -> CompileError:
        expected = self.unifier.substitute(expected, open_to_dyn=True)
        found = self.unifier.substitute(found, open_to_dyn=True)
        return self._error(node, f"expected type '{expected}' but found '{found}'")

    def _lookup(self, name: str) -> CelType | None:
        name = name.removeprefix(".")
        for declared, checked in reversed(self._scopes):
            if declared == name:
                return checked
        return t.DEVICE if name == DEVICE_VARIABLE else None

    def _identifier(self, node: Identifier) -> CelType:
        checked = self._lookup(node.name)
        if checked is not None:
            return checked
        name = node.name.removeprefix(".")
        named = TYPE_NAMES.get(name)
        if named is None:
            raise self._undeclared(node, node.name)
        node.type_name = name
        return t.type_of(named)

    def _select(self, node: Select) -> CelType:
        name = "" if node.test_only else qualified_name(node).removeprefix(".")
        if name in TYPE_NAMES and self._lookup(name.partition(".")[0]) is None:
            node.type_name = name
            return t.type_of(TYPE_NAMES[name])
        selected = self._field(node, node.operand, node.name, optional=False)
        return t.BOOL if node.test_only else self.unifier.substitute(selected)

    def _field(
        self, node: SyntaxNode, operand: SyntaxNode, name: str, *, optional: bool
    ) -> CelType:
        operand_type = self.unifier.substitute(self.check(operand))
        target, was_optional = t.unwrap_optional(operand_type)
        if target.kind is Kind.MAP:
            selected = target.parameters[1]
        elif target.kind is Kind.STRUCT:
            if target != t.DEVICE or name not in DEVICE_FIELDS:
                raise self._error(node, f"undefined field '{name}'")
            selected = DEVICE_FIELDS[name]
        elif target.kind is Kind.PARAMETER:
            self.unifier.unify(t.DYN, target)
            selected = t.DYN
        elif t.is_dynamic_or_error(target):
            selected = t.DYN
        else:
            raise self._error(node, f"type '{target}' does not support field selection")
        return t.optional_of(selected) if was_optional or optional else selected

    def _call(self, node: Call) -> CelType:
        if node.function == "_?._":
            field = node.arguments[1]
            assert isinstance(field, Literal)
            field.checked_type = t.STRING
            node.overloads = ("select_optional_field",)
            selected = self._field(node, node.arguments[0], str(field.value), optional=True)
            return self.unifier.substitute(selected)
        for argument in node.arguments:
            self.check(argument)
        name = node.function.removeprefix(".")
        if node.target is not None:
            prefix = qualified_name(node.target).removeprefix(".")
            qualified = f"{prefix}.{name}".removeprefix(".")
            if prefix and qualified in FUNCTIONS:
                node.target, node.function = None, qualified
                return self._resolve(node, FUNCTIONS[qualified])
            self.check(node.target)
        function = FUNCTIONS.get(name)
        if function is None:
            raise self._undeclared(node, node.function)
        node.function = name
        return self._resolve(node, function)

    def _resolve(self, node: Call, function: Function) -> CelType:
        if node.function in _LOGICAL:
            return self._logical(node)
        found = [each.checked_type for each in node.children()]
        identifiers: list[str] = []
        result: CelType | None = None
        for overload in function.overloads:
            if overload.is_member is (node.target is None):
                continue
            arguments, overload_result = self._instantiate(overload)
            if not self.unifier.unify_all(found, arguments):
                continue
            identifiers.append(overload.identifier)
            resolved = self.unifier.substitute(overload_result)
            if result is None:
                result = resolved
            elif not t.is_dynamic(result) and resolved != result:
                result = t.DYN
        if result is None:
            raise self._error(node, self._no_overload(node, found))
        node.overloads = tuple(identifiers)
        return result

    def _no_overload(self, node: Call, found: list[CelType]) -> str:
        texts = [str(self.unifier.substitute(each, open_to_dyn=True)) for each in found]
        if node.target is None:
            signature = f"({', '.join(texts)})"
        else:
            signature = f"{texts[0]}.({', '.join(texts[1:])})"
        return f"found no matching overload for '{node.function}' applied to '{signature}'"

    def _logical(self, node: Call) -> CelType:
        for argument in node.arguments:
            if not self.unifier.unify(argument.checked_type, t.BOOL):
                raise self._mismatch(argument, t.BOOL, argument.checked_type)
        node.overloads = (FUNCTIONS[node.function].overloads[0].identifier,)
        return t.BOOL

    def _instantiate(self, overload: Overload) -> tuple[list[CelType], CelType]:
        if not overload.parameters:
            return list(overload.arguments), overload.result
        fresh = Unifier()
        for name in overload.parameters:
            fresh.unify(self.unifier.new_variable(), t.parameter(name))
        return [fresh.substitute(each) for each in overload.arguments], fresh.substitute(
            overload.result
        )

    def _join(self, previous: CelType | None, current: CelType) -> CelType:
        if previous is None:
            return current
        if not self.unifier.unify(previous, current):
            # A literal of several types; only arguments of format may be one.
            return t.DYN
        return most_general(previous, current)

    def _unwrapped(self, node: SyntaxNode, checked: CelType) -> CelType:
        """The type of an optional element or entry."""
        unwrapped, is_optional = t.unwrap_optional(checked)
        if not is_optional and not t.is_dynamic(unwrapped):
            raise self._mismatch(node, t.optional_of(unwrapped), unwrapped)
        return unwrapped

    def _list(self, node: ListLiteral) -> CelType:
        joined: CelType | None = None
        for index, element in enumerate(node.elements):
            checked = self.check(element)
            if index in node.optional:
                checked = self._unwrapped(element, checked)
            joined = self._join(joined, checked)
        return t.list_of(self.unifier.new_variable() if joined is None else joined)

    def _map(self, node: MapLiteral) -> CelType:
        keys: CelType | None = None
        values: CelType | None = None
        for entry in node.entries:
            keys = self._join(keys, self.check(entry.key))
            checked = self.check(entry.value)
            if entry.optional:
                checked = self._unwrapped(entry.value, checked)
            values = self._join(values, checked)
        if keys is None or values is None:
            return t.map_of(self.unifier.new_variable(), self.unifier.new_variable())
        return t.map_of(keys, values)

    def _comprehension(self, node: Comprehension) -> CelType:
        loop = node.loop
        self.check(node.range)
        accumulator = self.check(node.initial)
        variables = self._element_types(node, self.unifier.substitute(node.range.checked_type))
        mark = len(self._scopes)
        self._scopes.append((loop.accumulator, accumulator))
        names = [loop.variable]
        if loop.second_variable:
            names.append(loop.second_variable)
        self._scopes += zip(names, variables, strict=True)
        self.check(loop.condition)
        self._assert_type(loop.condition, t.BOOL)
        self.check(loop.step)
        self._assert_type(loop.step, accumulator)
        del self._scopes[mark + 1 :]
        result = self.check(node.result)
        del self._scopes[mark:]
        return self.unifier.substitute(result)

    def _element_types(self, node: Comprehension, checked: CelType) -> list[CelType]:
        if checked.kind is Kind.LIST:
            element = checked.parameters[0]
            types = [t.INT, element] if node.loop.second_variable else [element]
        elif checked.kind is Kind.MAP:
            types = list(checked.parameters)
        elif checked.kind in (Kind.DYN, Kind.ERROR, Kind.PARAMETER):
            self.unifier.unify(t.DYN, checked)
            types = [t.DYN, t.DYN]
        else:
            raise self._error(
                node.range,
                f"expression of type '{checked}' cannot be range of a comprehension (must be list,"
                " map, or dynamic)",
            )
        return types if node.loop.second_variable else types[:1]

    def _assert_type(self, node: SyntaxNode, expected: CelType) -> None:
        if not self.unifier.unify(expected, node.checked_type):
            raise self._mismatch(node, expected, node.checked_type)


def validate(root: SyntaxNode, expression: str) -> None:
    """Check the literals of a typed tree. Raises CompileError for one that is never valid."""
    pending: list[tuple[SyntaxNode, bool]] = [(root, False)]
    while pending:
        node, in_format = pending.pop()
        if isinstance(node, Call):
            _validate_call(node, expression)
            in_format = in_format or node.function == "format"
        elif not in_format and isinstance(node, ListLiteral):
            _validate_list(node, expression)
        elif not in_format and isinstance(node, MapLiteral):
            _validate_map(node, expression)
        pending.extend((child, in_format) for child in node.children())


def _validate_call(node: Call, expression: str) -> None:
    if node.function == "format":
        _validate_format(node, expression)
    first = node.arguments[0] if node.arguments else None
    if not isinstance(first, Literal) or not isinstance(first.value, str):
        return
    try:
        is_valid = _is_valid(node.function, first.value)
    except SubexpressionError:
        is_valid = False
    if not is_valid:
        raise _error(first, expression, f"invalid {node.function} argument")


def _is_valid(function: str, value: str) -> bool:
    if function in ("matches", "find", "findAll"):
        compile_regex(value)
    if function == "duration":
        return parse_duration(value) is not None
    return function != "timestamp" or parse_timestamp(value) is not None


def _error(node: SyntaxNode, expression: str, message: str) -> CompileError:
    return located_error(expression, node.offset, message)


def _check_same(node: SyntaxNode, expected: CelType, found: CelType, expression: str) -> None:
    if not t.is_equivalent(expected, found):
        raise _error(node, expression, f"expected type '{expected}' but found '{found}'")


def _element_type(node: SyntaxNode, *, optional: bool) -> CelType:
    checked = node.checked_type
    return t.unwrap_optional(checked)[0] if optional else checked


def _validate_list(node: ListLiteral, expression: str) -> None:
    if not node.elements:
        return
    expected = _element_type(node.elements[0], optional=0 in node.optional)
    for index, element in enumerate(node.elements):
        found = _element_type(element, optional=index in node.optional)
        _check_same(element, expected, found, expression)


def _validate_map(node: MapLiteral, expression: str) -> None:
    if not node.entries:
        return
    first = node.entries[0]
    key, value = first.key.checked_type, _element_type(first.value, optional=first.optional)
    for entry in node.entries:
        _check_same(entry.key, key, entry.key.checked_type, expression)
        found = _element_type(entry.value, optional=entry.optional)
        _check_same(entry.value, value, found, expression)


def _validate_format(node: Call, expression: str) -> None:
    target = node.target
    arguments = node.arguments[0] if len(node.arguments) == 1 else None
    if not isinstance(target, Literal) or not isinstance(arguments, ListLiteral):
        return
    used = 0
    try:
        for clause in clauses(str(target.value)):
            if not clause.letter:
                continue
            if used >= len(arguments.elements):
                raise ValueError(f"index {used} out of range")
            _check_clause(clause.letter.lower(), arguments.elements[used])
            used += 1
    except ValueError as error:
        raise _error(node, expression, str(error)) from None
    if len(arguments.elements) > used:
        raise _error(
            node,
            expression,
            f"too many arguments supplied to string.format (expected {used}, got"
            f" {len(arguments.elements)})",
        )


def _check_clause(letter: str, argument: SyntaxNode) -> None:
    accepted, message = CLAUSES.get(letter, (frozenset(), ""))
    pending = [argument]
    while message and pending:
        node = pending.pop()
        checked = node.checked_type
        if checked.kind is not Kind.DYN and checked.name not in accepted:
            raise ValueError(f"error during formatting: {message}, was given {checked.name}")
        if letter == "s" and isinstance(node, ListLiteral | MapLiteral):
            pending.extend(node.children())
