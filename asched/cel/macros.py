"""Macros: calls that the parser replaces by other expressions."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from typing import Final

from asched.cel.syntax import (
    ACCUMULATOR,
    UNUSED,
    Call,
    Comprehension,
    Identifier,
    ListLiteral,
    Literal,
    Loop,
    MapLiteral,
    Select,
    SyntaxNode,
    copy_tree,
    walk,
)

Macro = Callable[[Call], SyntaxNode | None]
_OVERWRITES: Final = "iteration variable overwrites accumulator variable"
MAX_COPIED_NODES: Final = 20_000
_SORT_INPUT: Final = "@__sortBy_input__"


class MacroError(Exception):
    """A macro has arguments that it does not take."""

    def __init__(self, node: SyntaxNode, message: str) -> None:
        super().__init__(message)
        self.offset = node.offset
        self.message = message


def expand(call: Call) -> SyntaxNode:
    """The expression that replaces the call; the call itself if it is no macro.

    Raises MacroError.
    """
    macro = _MACROS.get((call.function, len(call.arguments), call.target is not None))
    if macro is None:
        return call
    expanded = macro(call)
    return call if expanded is None else expanded


def _accumulator() -> SyntaxNode:
    return Identifier(ACCUMULATOR)


def _call(function: str, *arguments: SyntaxNode) -> SyntaxNode:
    return Call(function, None, list(arguments))


def _variable(node: SyntaxNode, message: str) -> str:
    if not isinstance(node, Identifier):
        raise MacroError(node, message)
    if node.name in (ACCUMULATOR, "__result__"):
        raise MacroError(node, _OVERWRITES)
    return node.name


def _variables(call: Call, *, two: bool, message: str) -> tuple[str, str]:
    first = _variable(call.arguments[0], message)
    if not two:
        return first, ""
    second = _variable(call.arguments[1], message)
    if first == second:
        raise MacroError(call.arguments[1], f"duplicate variable name: {first}")
    return first, second


def _target(call: Call) -> SyntaxNode:
    assert call.target is not None
    return call.target


def _has(call: Call) -> SyntaxNode:
    selected = call.arguments[0]
    if not isinstance(selected, Select) or selected.test_only:
        raise MacroError(selected, "invalid argument to has() macro")
    return Select(selected.operand, selected.name, test_only=True)


def _quantifier(
    two: bool, make: Callable[[SyntaxNode], tuple[Literal, SyntaxNode, SyntaxNode, SyntaxNode]]
) -> Macro:
    def expand_quantifier(call: Call) -> SyntaxNode:
        names = _variables(call, two=two, message="argument must be a simple name")
        initial, condition, step, result = make(call.arguments[-1])
        loop = Loop(names[0], ACCUMULATOR, condition, step, names[1])
        return Comprehension(_target(call), initial, loop, result)

    return expand_quantifier


def _all(predicate: SyntaxNode) -> tuple[Literal, SyntaxNode, SyntaxNode, SyntaxNode]:
    condition = _call("@not_strictly_false", _accumulator())
    step = _call("_&&_", _accumulator(), predicate)
    return Literal(True), condition, step, _accumulator()


def _exists(predicate: SyntaxNode) -> tuple[Literal, SyntaxNode, SyntaxNode, SyntaxNode]:
    condition = _call("@not_strictly_false", _call("!_", _accumulator()))
    step = _call("_||_", _accumulator(), predicate)
    return Literal(False), condition, step, _accumulator()


def _exists_one(predicate: SyntaxNode) -> tuple[Literal, SyntaxNode, SyntaxNode, SyntaxNode]:
    incremented = _call("_+_", _accumulator(), Literal(1))
    step = _call("_?_:_", predicate, incremented, _accumulator())
    return Literal(0), Literal(True), step, _call("_==_", _accumulator(), Literal(1))


def _build(
    call: Call,
    names: tuple[str, str],
    step: SyntaxNode,
    filtered: SyntaxNode | None,
    initial: SyntaxNode,
) -> SyntaxNode:
    if filtered is not None:
        step = _call("_?_:_", filtered, step, _accumulator())
    loop = Loop(names[0], ACCUMULATOR, Literal(True), step, names[1])
    return Comprehension(_target(call), initial, loop, _accumulator())


def _map(call: Call) -> SyntaxNode:
    names = _variables(call, two=False, message="argument is not an identifier")
    filtered = call.arguments[1] if len(call.arguments) == 3 else None
    step = _call("_+_", _accumulator(), ListLiteral([call.arguments[-1]]))
    return _build(call, names, step, filtered, ListLiteral([]))


def _filter(call: Call) -> SyntaxNode:
    names = _variables(call, two=False, message="argument is not an identifier")
    step = _call("_+_", _accumulator(), ListLiteral([call.arguments[0]]))
    return _build(call, names, step, call.arguments[1], ListLiteral([]))


def _transform(call: Call, step: SyntaxNode, initial: SyntaxNode) -> SyntaxNode:
    names = _variables(call, two=True, message="argument must be a simple name")
    filtered = call.arguments[2] if len(call.arguments) == 4 else None
    return _build(call, names, step, filtered, initial)


def _transform_list(call: Call) -> SyntaxNode:
    step = _call("_+_", _accumulator(), ListLiteral([call.arguments[-1]]))
    return _transform(call, step, ListLiteral([]))


def _transform_map(call: Call) -> SyntaxNode:
    key = _variable(call.arguments[0], "argument must be a simple name")
    step = _call("cel.@mapInsert", _accumulator(), Identifier(key), call.arguments[-1])
    return _transform(call, step, MapLiteral([]))


def _transform_map_entry(call: Call) -> SyntaxNode:
    step = _call("cel.@mapInsert", _accumulator(), call.arguments[-1])
    return _transform(call, step, MapLiteral([]))


def _bind_to(name: str, value: SyntaxNode, result: SyntaxNode) -> SyntaxNode:
    loop = Loop(UNUSED, name, Literal(False), Identifier(name))
    return Comprehension(ListLiteral([]), value, loop, result)


def _bind(call: Call) -> SyntaxNode | None:
    target = call.target
    if not isinstance(target, Identifier) or target.name != "cel":
        return None
    name = call.arguments[0]
    if not isinstance(name, Identifier):
        raise MacroError(name, "cel.bind() variable names must be simple identifiers")
    return _bind_to(name.name, call.arguments[1], call.arguments[2])


def _optional_map(*, flat: bool) -> Macro:
    function = "optFlatMap" if flat else "optMap"

    def expand_map(call: Call) -> SyntaxNode:
        name = call.arguments[0]
        if not isinstance(name, Identifier):
            raise MacroError(name, f"{function}() variable name must be a simple identifier")
        target = _target(call)
        if sum(1 for _ in islice(walk(target), MAX_COPIED_NODES)) == MAX_COPIED_NODES:
            raise MacroError(target, f"{function}() is applied to an expression that is too large")
        value = Call("value", copy_tree(target), [])
        mapped = _bind_to(name.name, value, call.arguments[1])
        present = mapped if flat else _call("optional.of", mapped)
        return _call("_?_:_", Call("hasValue", target, []), present, _call("optional.none"))

    return expand_map


def _sort_by(call: Call) -> SyntaxNode:
    target = _target(call)
    if not isinstance(target, ListLiteral | Select | Identifier | Comprehension | Call):
        raise MacroError(
            target,
            "sortBy can only be applied to a list, identifier, comprehension, call or select"
            " expression",
        )
    keys = _map(Call("map", Identifier(_SORT_INPUT), call.arguments))
    ordered = Call("@sortByAssociatedKeys", Identifier(_SORT_INPUT), [keys])
    return _bind_to(_SORT_INPUT, target, ordered)


_MACROS: Final[dict[tuple[str, int, bool], Macro]] = {
    ("has", 1, False): _has,
    ("all", 2, True): _quantifier(False, _all),
    ("exists", 2, True): _quantifier(False, _exists),
    ("exists_one", 2, True): _quantifier(False, _exists_one),
    ("existsOne", 2, True): _quantifier(False, _exists_one),
    ("map", 2, True): _map,
    ("map", 3, True): _map,
    ("filter", 2, True): _filter,
    ("all", 3, True): _quantifier(True, _all),
    ("exists", 3, True): _quantifier(True, _exists),
    ("exists_one", 3, True): _quantifier(True, _exists_one),
    ("existsOne", 3, True): _quantifier(True, _exists_one),
    ("transformList", 3, True): _transform_list,
    ("transformList", 4, True): _transform_list,
    ("transformMap", 3, True): _transform_map,
    ("transformMap", 4, True): _transform_map,
    ("transformMapEntry", 3, True): _transform_map_entry,
    ("transformMapEntry", 4, True): _transform_map_entry,
    ("bind", 3, True): _bind,
    ("optMap", 2, True): _optional_map(flat=False),
    ("optFlatMap", 2, True): _optional_map(flat=True),
    ("sortBy", 2, True): _sort_by,
}
