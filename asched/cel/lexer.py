"""Tokens of expressions."""

from __future__ import annotations

import re
from dataclasses import dataclass

from asched.cel.errors import CompileError

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


def syntax_error(expression: str, offset: int, message: str) -> CompileError:
    """The error for a place in the expression."""
    return located_error(expression, offset, f"Syntax error: {message}")


def located_error(expression: str, offset: int, message: str) -> CompileError:
    """The error for a place in the expression."""
    before = expression[:offset]
    line = before.count("\n") + 1
    column = offset - (before.rfind("\n") + 1) + 1
    return CompileError(f"compilation failed: ERROR: <input>:{line}:{column}: {message}")


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
