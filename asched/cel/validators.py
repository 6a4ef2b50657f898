"""Checks of literals after the types are known."""

from __future__ import annotations

from asched.cel import types as t
from asched.cel.errors import CompileError, SubexpressionError
from asched.cel.instants import parse_duration, parse_timestamp
from asched.cel.lexer import located_error
from asched.cel.regular_expressions import compile_regex
from asched.cel.string_format import CLAUSES, clauses
from asched.cel.syntax import Call, ListLiteral, Literal, MapLiteral, SyntaxNode
from asched.cel.types import CelType, Kind


def validate(root: SyntaxNode, expression: str) -> None:
    """Raises CompileError for literals that are never valid."""
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
