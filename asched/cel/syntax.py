"""Tokens, and syntax trees of expressions after macros are expanded."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from asched.cel.errors import syntax_error
from asched.cel.types import DYN, CelType
from asched.cel.values import Value

_ESCAPE = (
    r"\\(?:[abfnrtv\"'\\?`]|[0-3][0-7][0-7]|[xX][0-9a-fA-F]{2}"
    r"|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8})"
)
_STRING = "|".join(
    (
        r'[rR]"""(?s:.)*?"""',
        r"[rR]'''(?s:.)*?'''",
        rf'"""(?:{_ESCAPE}|[^\\])*?"""',
        rf"'''(?:{_ESCAPE}|[^\\])*?'''",
        r'[rR]"[^"\n\r]*"',
        r"[rR]'[^'\n\r]*'",
        rf'"(?:{_ESCAPE}|[^\\"\n\r])*"',
        rf"'(?:{_ESCAPE}|[^\\'\n\r])*'",
    )
)
_TOKEN = re.compile(
    rf"""
      (?P<space>[\t \r\n\f]+|//[^\n]*)
    | (?P<bytes>[bB](?:{_STRING}))
    | (?P<string>{_STRING})
    | (?P<float>[0-9]+\.[0-9]+(?:[eE][+-]?[0-9]+)?|[0-9]+[eE][+-]?[0-9]+
        |\.[0-9]+(?:[eE][+-]?[0-9]+)?)
    | (?P<uint>(?:0x[0-9a-fA-F]+|[0-9]+)[uU])
    | (?P<int>0x[0-9a-fA-F]+|[0-9]+)
    | (?P<name>[A-Za-z_][A-Za-z0-9_]*)
    | (?P<sign>==|!=|<=|>=|&&|\|\||[<>\[\]{{}}().,\-!?:+*/%])
    """,
    re.VERBOSE,
)
_SIMPLE_ESCAPES = {
    "a": "\a",
    "b": "\b",
    "f": "\f",
    "n": "\n",
    "r": "\r",
    "t": "\t",
    "v": "\v",
    "\\": "\\",
    "'": "'",
    '"': '"',
    "`": "`",
    "?": "?",
}
_ESCAPES = re.compile(_ESCAPE)
KEYWORDS = frozenset({"in", "true", "false", "null"})


@dataclass(frozen=True, slots=True)
class Token:
    """A token: its kind (for signs and keywords their text), text and place."""

    kind: str
    text: str
    offset: int


def tokenize(expression: str) -> list[Token]:
    """Tokens of the expression, the last of kind ``end``. Raises CompileError."""
    tokens: list[Token] = []
    position = 0
    while position < len(expression):
        found = _TOKEN.match(expression, position)
        if found is None:
            raise syntax_error(
                expression, position, f"token recognition error at: {expression[position]!r}"
            )
        kind, text = found.lastgroup or "", found.group()
        if kind == "sign" or (kind == "name" and text in KEYWORDS):
            kind = text
        if kind != "space":
            tokens.append(Token(kind, text, position))
        position = found.end()
    tokens.append(Token("end", "<EOF>", position))
    return tokens


def unquote(text: str, *, as_bytes: bool) -> str:
    """The content of a string token. Bytes are returned as characters up to 255.

    Raises ValueError for an escape that is not allowed here.
    """
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    raw = text[0] in "rR"
    if raw:
        text = text[1:]
    width = 3 if len(text) >= 6 and text[:3] in ('"""', "'''") else 1
    content = text[width:-width]
    if as_bytes:
        content = content.encode("utf-8", "surrogatepass").decode("latin-1")
    if raw or "\\" not in content:
        return content
    return _ESCAPES.sub(lambda found: _unescape(found.group()[1:], as_bytes), content)


def _unescape(escape: str, as_bytes: bool) -> str:
    first = escape[0]
    if first in "xXuU" or first.isdigit():
        if as_bytes and first in "uU":
            raise ValueError("unable to unescape string")
        code = int(escape, 8) if first.isdigit() else int(escape[1:], 16)
        if code > 0x10FFFF or 0xD800 <= code <= 0xDFFF:
            raise ValueError("invalid unicode code point")
        return chr(code)
    return _SIMPLE_ESCAPES[first]


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


def qualified_name(node: SyntaxNode) -> str:
    """The dotted name of an identifier with selected fields; empty for other expressions."""
    parts: list[str] = []
    while isinstance(node, Select) and not node.test_only:
        parts.append(node.name)
        node = node.operand
    if not isinstance(node, Identifier):
        return ""
    parts.append(node.name)
    return ".".join(reversed(parts))


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
