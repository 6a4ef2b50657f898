"""Parser of the Common Expression Language."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from asched.cel.errors import CompileError, located_error, syntax_error
from asched.cel.macros import MacroError, expand
from asched.cel.syntax import (
    Call,
    Identifier,
    ListLiteral,
    Literal,
    MapEntry,
    MapLiteral,
    Select,
    SyntaxNode,
    Token,
    qualified_name,
    tokenize,
    unquote,
)
from asched.cel.values import MAX_INT, MAX_UINT, MIN_INT, Uint

MAX_EXPRESSION_BYTES: Final = 10 * 1024
MAX_NESTING: Final = 250
_RELATIONS: Final = {
    "<": "_<_",
    "<=": "_<=_",
    ">": "_>_",
    ">=": "_>=_",
    "==": "_==_",
    "!=": "_!=_",
    "in": "@in",
}
_SUMS: Final = {"+": "_+_", "-": "_-_"}
_PRODUCTS: Final = {"*": "_*_", "/": "_/_", "%": "_%_"}
_RESERVED: Final = frozenset(
    (
        *("as", "break", "const", "continue", "else", "false", "for", "function", "if"),
        *("import", "in", "let", "loop", "package", "namespace", "null", "return", "true"),
        *("var", "void", "while"),
    )
)


def parse(expression: str) -> SyntaxNode:
    """The syntax tree with macros expanded. Raises CompileError."""
    try:
        size = len(expression.encode())
    except UnicodeEncodeError:
        raise CompileError("compilation failed: expression is not valid Unicode") from None
    if size > MAX_EXPRESSION_BYTES:
        raise CompileError(
            f"compilation failed: expression has {size} bytes, the limit is {MAX_EXPRESSION_BYTES}"
        )
    return _Parser(expression).parse()


class _Parser:
    def __init__(self, expression: str) -> None:
        self._expression = expression
        self._tokens = tokenize(expression)
        self._position = 0
        self._nesting = 0
        self._members = 0
        self._products = 0
        self._relations = 0

    def parse(self) -> SyntaxNode:
        node = self._expr()
        self._expect("end")
        return node

    @property
    def _next(self) -> Token:
        return self._tokens[self._position]

    def _take(self) -> Token:
        token = self._tokens[self._position]
        self._position += 1
        return token

    def _accept(self, kind: str) -> bool:
        if self._next.kind != kind:
            return False
        self._position += 1
        return True

    def _expect(self, kind: str) -> Token:
        token = self._next
        if token.kind != kind:
            raise self._unexpected(f"mismatched input '{token.text}' expecting '{kind}'")
        return self._take()

    def _unexpected(self, message: str) -> CompileError:
        return syntax_error(self._expression, self._next.offset, message)

    def _fail(self, offset: int, message: str) -> CompileError:
        return located_error(self._expression, offset, message)

    def _check_depth(self, depth: int) -> None:
        if depth > MAX_NESTING:
            raise CompileError(
                f"compilation failed: expression recursion limit exceeded: {MAX_NESTING}"
            )

    def _nested(self, node: SyntaxNode, offset: int, *children: SyntaxNode) -> SyntaxNode:
        """Record place and nesting of a node that counts for the limit."""
        node.offset = offset
        node.height = 1 + max((child.height for child in children), default=0)
        self._check_depth(node.height)
        return node

    def _flat(self, node: SyntaxNode, offset: int, *children: SyntaxNode) -> SyntaxNode:
        node.offset = offset
        node.height = max((child.height for child in children), default=0)
        return node

    def _expr(self) -> SyntaxNode:
        self._nesting += 1
        self._check_depth(self._nesting)
        node = self._logical_or()
        if self._next.kind == "?":
            offset = self._take().offset
            truthy = self._logical_or()
            self._expect(":")
            falsy = self._expr()
            parts = [node, truthy, falsy]
            node = self._nested(Call("_?_:_", None, parts), offset, *parts)
        self._nesting -= 1
        return node

    def _logical_or(self) -> SyntaxNode:
        terms, offset = [self._logical_and()], self._next.offset
        while self._accept("||"):
            terms.append(self._logical_and())
        if len(terms) == 1:
            return terms[0]
        return self._flat(Call("_||_", None, terms), offset, *terms)

    def _logical_and(self) -> SyntaxNode:
        terms, offset = [self._relation()], self._next.offset
        while self._accept("&&"):
            terms.append(self._relation())
        if len(terms) == 1:
            return terms[0]
        return self._flat(Call("_&&_", None, terms), offset, *terms)

    def _relation(self) -> SyntaxNode:
        before = self._relations
        self._relations += 1
        node = self._sum()
        while (function := _RELATIONS.get(self._next.kind)) is not None:
            self._relations += 1
            self._check_depth(self._relations)
            offset = self._take().offset
            right = self._sum()
            node = self._nested(Call(function, None, [node, right]), offset, node, right)
        self._relations = before
        return node

    def _sum(self) -> SyntaxNode:
        before = self._products
        self._products += 1
        node = self._product()
        while (function := _SUMS.get(self._next.kind)) is not None:
            node = self._binary(function, node, self._product)
        self._products = before
        return node

    def _product(self) -> SyntaxNode:
        node = self._unary()
        while (function := _PRODUCTS.get(self._next.kind)) is not None:
            node = self._binary(function, node, self._unary)
        return node

    def _binary(
        self, function: str, left: SyntaxNode, operand: Callable[[], SyntaxNode]
    ) -> SyntaxNode:
        self._products += 1
        self._check_depth(self._products)
        offset = self._take().offset
        right = operand()
        return self._nested(Call(function, None, [left, right]), offset, left, right)

    def _unary(self) -> SyntaxNode:
        token = self._next
        if token.kind not in ("!", "-") or self._is_signed_number():
            return self._member()
        count = 0
        while self._accept(token.kind):
            count += 1
        operand = self._member()
        if count % 2 == 0:
            return operand
        function = "!_" if token.kind == "!" else "-_"
        return self._flat(Call(function, None, [operand]), token.offset, operand)

    def _is_signed_number(self) -> bool:
        return (
            self._next.kind == "-"
            and self._position + 1 < len(self._tokens)
            and self._tokens[self._position + 1].kind in ("int", "float")
        )

    def _member(self) -> SyntaxNode:
        before = self._members
        self._members += 1
        node = self._primary()
        while True:
            if self._next.kind == ".":
                node = self._dot(node)
            elif self._next.kind == "[":
                node = self._index(node)
            elif self._next.kind == "{" and qualified_name(node):
                raise self._fail(
                    self._next.offset,
                    f"undeclared reference to '{qualified_name(node)}' (in container '')",
                )
            else:
                self._members = before
                return node
            self._members += 1
            self._check_depth(self._members)

    def _dot(self, operand: SyntaxNode) -> SyntaxNode:
        dot = self._take()
        if self._accept("?"):
            field = self._expect("name")
            arguments = [operand, self._flat(Literal(field.text), field.offset)]
            return self._nested(Call("_?._", None, arguments), dot.offset, operand)
        name = self._expect("name")
        if self._next.kind != "(":
            return self._nested(Select(operand, name.text), dot.offset, operand)
        offset = self._take().offset
        arguments = self._arguments()
        return self._call(Call(name.text, operand, arguments), offset)

    def _index(self, operand: SyntaxNode) -> SyntaxNode:
        offset = self._take().offset
        function = "_[?_]" if self._accept("?") else "_[_]"
        index = self._expr()
        self._expect("]")
        return self._nested(Call(function, None, [operand, index]), offset, operand, index)

    def _call(self, call: Call, offset: int) -> SyntaxNode:
        children = list(call.children())
        if call.target is None:
            self._flat(call, offset, *children)
        else:
            self._nested(call, offset, *children)
        try:
            node = expand(call)
        except MacroError as error:
            raise self._fail(error.offset, error.message) from None
        node.height, node.offset = call.height, offset
        return node

    def _arguments(self) -> list[SyntaxNode]:
        arguments: list[SyntaxNode] = []
        if self._accept(")"):
            return arguments
        arguments.append(self._expr())
        while self._accept(","):
            arguments.append(self._expr())
        self._expect(")")
        return arguments

    def _primary(self) -> SyntaxNode:
        token = self._take()
        if token.kind == "(":
            node = self._expr()
            self._expect(")")
            return node
        if token.kind == "[":
            return self._list(token)
        if token.kind == "{":
            return self._map(token)
        if token.kind == ".":
            name = self._expect("name")
            return self._name(Token("name", "." + name.text, token.offset))
        if token.kind == "name":
            return self._name(token)
        if token.kind == "-":
            number = self._take()
            return self._number(Token(number.kind, "-" + number.text, token.offset))
        return self._number(token)

    def _name(self, token: Token) -> SyntaxNode:
        if token.text.removeprefix(".") in _RESERVED:
            raise self._fail(token.offset, f"reserved identifier: {token.text}")
        if self._next.kind != "(":
            return self._flat(Identifier(token.text), token.offset)
        offset = self._take().offset
        return self._call(Call(token.text, None, self._arguments()), offset)

    def _list(self, token: Token) -> SyntaxNode:
        elements: list[SyntaxNode] = []
        optional: set[int] = set()
        while self._next.kind != "]":
            if self._next.kind == "," and not elements:
                self._take()
                break
            if self._accept("?"):
                optional.add(len(elements))
            elements.append(self._expr())
            if not self._accept(","):
                break
        self._expect("]")
        return self._flat(ListLiteral(elements, frozenset(optional)), token.offset, *elements)

    def _map(self, token: Token) -> SyntaxNode:
        entries: list[MapEntry] = []
        while self._next.kind != "}":
            if self._next.kind == "," and not entries:
                self._take()
                break
            optional = self._accept("?")
            key = self._expr()
            self._expect(":")
            entries.append(MapEntry(key, self._expr(), optional))
            if not self._accept(","):
                break
        self._expect("}")
        node = MapLiteral(entries)
        return self._flat(node, token.offset, *node.children())

    def _number(self, token: Token) -> SyntaxNode:
        text, kind = token.text, token.kind
        base = 16 if "0x" in text[:3] else 10
        if kind in ("true", "false"):
            return self._flat(Literal(kind == "true"), token.offset)
        if kind == "null":
            return self._flat(Literal(None), token.offset)
        if kind == "int":
            number = int(text, base)
            if MIN_INT <= number <= MAX_INT:
                return self._flat(Literal(number), token.offset)
            raise self._fail(token.offset, "invalid int literal")
        if kind == "uint":
            number = int(text[:-1], base)
            if number <= MAX_UINT:
                return self._flat(Literal(Uint(number)), token.offset)
            raise self._fail(token.offset, "invalid uint literal")
        if kind == "float":
            value = float(text)
            if abs(value) != float("inf"):
                return self._flat(Literal(value), token.offset)
            raise self._fail(token.offset, "invalid double literal")
        return self._text(token)

    def _text(self, token: Token) -> SyntaxNode:
        if token.kind not in ("string", "bytes"):
            self._position -= 1
            raise self._unexpected(f"mismatched input '{token.text}'")
        try:
            if token.kind == "bytes":
                content = unquote(token.text[1:], as_bytes=True).encode("latin-1")
                return self._flat(Literal(content), token.offset)
            return self._flat(Literal(unquote(token.text, as_bytes=False)), token.offset)
        except ValueError as error:
            raise self._fail(token.offset, str(error)) from None
