"""Syntax trees of expressions, after macros are expanded."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from asched.cel.types import DYN, CelType
from asched.cel.values import Value

ACCUMULATOR = "@result"
UNUSED = "#unused"


@dataclass(slots=True, eq=False)
class SyntaxNode:
    """A subexpression. ``height`` counts nesting as the parser's limit does."""

    height: int = field(default=0, init=False, repr=False)
    offset: int = field(default=0, init=False, repr=False)
    checked_type: CelType = field(default=DYN, init=False, repr=False)

    def children(self) -> Iterator[SyntaxNode]:
        """The direct subexpressions in order of evaluation."""
        return iter(())


@dataclass(slots=True, eq=False)
class Literal(SyntaxNode):
    """A constant."""

    value: Value


@dataclass(slots=True, eq=False)
class Identifier(SyntaxNode):
    """A variable or the name of a type."""

    name: str
    type_name: str = field(default="", init=False)


@dataclass(slots=True, eq=False)
class Select(SyntaxNode):
    """A field; ``test_only`` asks whether it is there."""

    operand: SyntaxNode
    name: str
    test_only: bool = False
    type_name: str = field(default="", init=False)

    def children(self) -> Iterator[SyntaxNode]:
        yield self.operand


@dataclass(slots=True, eq=False)
class Call(SyntaxNode):
    """A function or operator; a member function has a target."""

    function: str
    target: SyntaxNode | None
    arguments: list[SyntaxNode]
    overloads: tuple[str, ...] = field(default=(), init=False)

    def children(self) -> Iterator[SyntaxNode]:
        if self.target is not None:
            yield self.target
        yield from self.arguments


@dataclass(slots=True, eq=False)
class ListLiteral(SyntaxNode):
    """A list; elements with an index in ``optional`` are left out if absent."""

    elements: list[SyntaxNode]
    optional: frozenset[int] = frozenset()

    def children(self) -> Iterator[SyntaxNode]:
        return iter(self.elements)


@dataclass(slots=True, eq=False)
class MapEntry:
    """One entry of a map literal."""

    key: SyntaxNode
    value: SyntaxNode
    optional: bool = False


@dataclass(slots=True, eq=False)
class MapLiteral(SyntaxNode):
    """A map."""

    entries: list[MapEntry]

    def children(self) -> Iterator[SyntaxNode]:
        for entry in self.entries:
            yield entry.key
            yield entry.value


@dataclass(slots=True, eq=False)
class Loop:
    """Names and parts of a comprehension that are evaluated for each element."""

    variable: str
    accumulator: str
    condition: SyntaxNode
    step: SyntaxNode
    second_variable: str = ""


@dataclass(slots=True, eq=False)
class Comprehension(SyntaxNode):
    """A fold over a list or map; an empty range only binds the accumulator."""

    range: SyntaxNode
    initial: SyntaxNode
    loop: Loop
    result: SyntaxNode

    def children(self) -> Iterator[SyntaxNode]:
        yield self.range
        yield self.initial
        yield self.loop.condition
        yield self.loop.step
        yield self.result


def walk(root: SyntaxNode) -> Iterator[tuple[SyntaxNode, int]]:
    """Every subexpression with its depth, without recursion."""
    pending = [(root, 1)]
    while pending:
        node, depth = pending.pop()
        yield node, depth
        pending.extend((child, depth + 1) for child in node.children())


def copy_tree(node: SyntaxNode) -> SyntaxNode:
    """A copy that shares no node."""
    if isinstance(node, Literal):
        copied: SyntaxNode = Literal(node.value)
    elif isinstance(node, Identifier):
        copied = Identifier(node.name)
    elif isinstance(node, Select):
        copied = Select(copy_tree(node.operand), node.name, node.test_only)
    elif isinstance(node, Call):
        target = None if node.target is None else copy_tree(node.target)
        copied = Call(node.function, target, [copy_tree(each) for each in node.arguments])
    elif isinstance(node, ListLiteral):
        copied = ListLiteral([copy_tree(each) for each in node.elements], node.optional)
    elif isinstance(node, MapLiteral):
        copied = MapLiteral(
            [MapEntry(copy_tree(e.key), copy_tree(e.value), e.optional) for e in node.entries]
        )
    else:
        copied = _copy_comprehension(node)
    copied.height, copied.offset = node.height, node.offset
    return copied


def _copy_comprehension(node: SyntaxNode) -> Comprehension:
    assert isinstance(node, Comprehension)
    loop = node.loop
    return Comprehension(
        copy_tree(node.range),
        copy_tree(node.initial),
        Loop(
            loop.variable,
            loop.accumulator,
            copy_tree(loop.condition),
            copy_tree(loop.step),
            loop.second_variable,
        ),
        copy_tree(node.result),
    )
