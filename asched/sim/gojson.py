"""What Go's encoding/json says of text that is not JSON: the API server quotes it to clients."""

from __future__ import annotations

import json

_BODY_SHOWN = 30


def json_error(raw: bytes) -> str:
    """The message of Go's scanner at the first byte that cannot be.

    Positions come from Python's parser; the wording for the commonest contexts is Go's.
    """
    text = raw.decode("latin-1")
    try:
        json.loads(text)
    except json.JSONDecodeError as error:
        if error.pos >= len(text.rstrip()):
            return "unexpected end of JSON input"
        return f"invalid character {_quoted(text[error.pos])} {_context(error)}"
    return "invalid character in string literal"


def _context(error: json.JSONDecodeError) -> str:
    if "property name" in error.msg:
        return "looking for beginning of object key string"
    if "':' delimiter" in error.msg:
        return "after object key"
    if "',' delimiter" in error.msg:
        before = error.doc[: error.pos]
        inside_object = before.rfind("{") > before.rfind("[")
        return "after object key:value pair" if inside_object else "after array element"
    if "Extra data" in error.msg:
        return "after top-level value"
    if "control character" in error.msg:
        return "in string literal"
    return "looking for beginning of value"


def _quoted(char: str) -> str:
    if char == "'":
        return r"'\''"
    if char.isprintable() and char.isascii():
        return f"'{char}'"
    return f"'\\u{ord(char):04x}'"


def summarized(raw: bytes) -> str:
    """The start of a request body as the server shows it in a message (``summarizeData``)."""
    if not raw:
        return "<empty>"
    if raw[:1] != b"{":
        shown = raw[:_BODY_SHOWN].hex()
    else:
        shown = raw[:_BODY_SHOWN].decode("utf-8", "replace")
    return f"{shown} ..." if len(raw) > _BODY_SHOWN else shown
