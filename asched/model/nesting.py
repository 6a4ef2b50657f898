"""Decodes JSON of any depth, by removing what is nested too deeply; limits values of any form.

The decoder recurses and ends with RecursionError at a depth that the interpreter's stack
determines. The API server accepts objects that are nested deeper, in fields that scheduling does
not read: ``metadata.managedFields``, arguments of custom resources.
"""

from __future__ import annotations

import re
import sys
from typing import Any, Final, TypeVar

import msgspec

MAX_DEPTH: Final = 100
"""Deepest nesting that is kept. The schemas of the built-in resources need less than 20."""

# A string, or one bracket. Possessive: a match of a long string keeps no positions to return to.
_TOKEN: Final = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"|[\[\]{}]', re.DOTALL)
_OPENING: Final = frozenset((b"[", b"{"))
_CLOSING: Final = frozenset((b"]", b"}"))


T = TypeVar("T")


def decode_any_depth(decoder: msgspec.json.Decoder[T], raw: bytes | msgspec.Raw) -> T:
    """Decode JSON; containers that are nested too deeply are decoded as null.

    Raises msgspec.DecodeError for everything that is invalid.
    """
    try:
        return decoder.decode(raw)
    except RecursionError:
        pass
    except UnicodeDecodeError as error:
        raise _not_utf8(error) from None
    try:
        return decoder.decode(prune_nesting(bytes(raw)))
    except RecursionError:
        raise msgspec.DecodeError("nested too deeply") from None
    except UnicodeDecodeError as error:
        raise _not_utf8(error) from None


_INTEGERS: Final = range(-(2**63), 2**64)
"""What checkpoints can hold."""


def limited_json(value: Any, depth: int = MAX_DEPTH) -> Any:
    """A decoded value that can be encoded everywhere: without containers below ``depth`` of them,
    and with floats in place of larger integers, as Go reads them."""
    if isinstance(value, dict | list) and not depth:
        return None
    if isinstance(value, dict):
        return {name: limited_json(each, depth - 1) for name, each in value.items()}
    if isinstance(value, list):
        return [limited_json(each, depth - 1) for each in value]
    if type(value) is int and value not in _INTEGERS:
        largest = sys.float_info.max
        return float(max(-int(largest), min(value, int(largest))))
    return value


def _not_utf8(error: UnicodeDecodeError) -> msgspec.DecodeError:
    return msgspec.DecodeError(f"not UTF-8: {error.reason}")


def prune_nesting(raw: bytes, max_depth: int = MAX_DEPTH) -> bytes:
    """``raw`` with ``null`` in place of each container below ``max_depth`` containers.

    Valid JSON stays valid. The depth of ``raw`` is not limited.
    """
    kept: list[bytes] = []
    depth = copied_to = 0
    for token in _TOKEN.finditer(raw):
        text = token[0]
        if text in _OPENING:
            depth += 1
            if depth == max_depth + 1:
                kept += (raw[copied_to : token.start()], b"null")
        elif text in _CLOSING:
            if depth == max_depth + 1:
                copied_to = token.end()
            depth -= 1
    if depth > max_depth:  # truncated: the rest is within a container that was removed
        return b"".join(kept)
    return b"".join((*kept, raw[copied_to:]))
