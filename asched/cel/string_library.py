"""The strings extension, version 2, and Kubernetes' functions for regular expressions."""

from __future__ import annotations

from typing import Final

from asched.cel.errors import SubexpressionError
from asched.cel.functions import Library
from asched.cel.kubernetes_scalars import ESCAPES
from asched.cel.regular_expressions import Pattern, compile_regex
from asched.cel.string_format import format_text
from asched.cel.values import MAX_ITEMS, Meter, Value, bounded_text, display

# What Go's unicode.IsSpace accepts; str.strip also removes U+001C to U+001F.
_SPACES: Final = (
    "\t\n\v\f\r \x85\xa0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009"
    "\u200a\u2028\u2029\u202f\u205f\u3000"
)
_QUOTED: Final = str.maketrans(ESCAPES)
_LOWER: Final = {code: code + 32 for code in range(ord("A"), ord("Z") + 1)}
_UPPER: Final = {code: code - 32 for code in range(ord("a"), ord("z") + 1)}


def _out_of_range(index: int) -> SubexpressionError:
    return SubexpressionError(f"index out of range: {index}")


def _char_at(_: Meter, text: str, index: int) -> str:
    if not 0 <= index <= len(text):
        raise _out_of_range(index)
    return text[index : index + 1]


def _index_of(_: Meter, text: str, part: str, offset: int = 0) -> int:
    if not part:
        return offset
    if offset < 0:
        raise _out_of_range(offset)
    return text.find(part, offset)


def _last_index_of(_: Meter, text: str, part: str) -> int:
    return text.rfind(part)


def _last_index_before(_: Meter, text: str, part: str, offset: int) -> int:
    if not part:
        return offset
    if offset < 0:
        raise _out_of_range(offset)
    if offset >= len(text):
        return -1
    return text.rfind(part, 0, offset + len(part))


def _lower(_: Meter, text: str) -> str:
    return text.translate(_LOWER)


def _upper(_: Meter, text: str) -> str:
    return text.translate(_UPPER)


def _replace(_: Meter, text: str, old: str, new: str, count: int = -1) -> str:
    found = len(text) + 1 if not old else text.count(old)
    times = found if count < 0 else min(found, count)
    bounded_text(len(text) + times * max(len(new) - len(old), 0))
    return text.replace(old, new, times)


def _split(_: Meter, text: str, separator: str, count: int = -1) -> tuple[Value, ...]:
    if count == 0:
        return ()
    if not separator:
        pieces = list(text)
        if 0 < count < len(pieces):
            pieces[count - 1 :] = ["".join(pieces[count - 1 :])]
    else:
        pieces = text.split(separator, -1 if count < 0 else count - 1)
    return tuple(pieces)


def _substring(_: Meter, text: str, start: int) -> str:
    if not 0 <= start <= len(text):
        raise _out_of_range(start)
    return text[start:]


def _substring_range(_: Meter, text: str, start: int, end: int) -> str:
    if start > end:
        raise SubexpressionError(f"invalid substring range. start: {start}, end: {end}")
    for index in (start, end):
        if not 0 <= index <= len(text):
            raise _out_of_range(index)
    return text[start:end]


def _trim(_: Meter, text: str) -> str:
    return text.strip(_SPACES)


def _quote(_: Meter, text: str) -> str:
    return f'"{text.translate(_QUOTED)}"'


def _join(_: Meter, items: tuple[Value, ...], separator: str = "") -> str:
    texts: list[str] = []
    for item in items:
        if not isinstance(item, str):
            raise SubexpressionError(f"join: invalid input: {display(item)}")
        texts.append(item)
    bounded_text(sum(map(len, texts)) + len(separator) * max(len(texts) - 1, 0))
    return separator.join(texts)


def _find(_: Meter, text: str, pattern: str) -> str:
    for found in _compiled(pattern).find_all(text):
        return found
    return ""


def _find_all(_: Meter, text: str, pattern: str, count: int = -1) -> tuple[Value, ...]:
    found: list[Value] = []
    if count == 0:
        return ()
    for each in _compiled(pattern).find_all(text):
        found.append(each)
        if len(found) == count or len(found) == MAX_ITEMS:
            break
    return tuple(found)


def _compiled(pattern: str) -> Pattern:
    try:
        return compile_regex(pattern)
    except SubexpressionError as failure:
        raise SubexpressionError(f"Illegal regex: {failure.message}") from None


def declare(library: Library) -> None:
    """Add the functions."""
    add = library.add
    add("charAt", "string_char_at_int", "string.(int) -> string", _char_at)
    add("indexOf", "string_index_of_string", "string.(string) -> int", _index_of)
    add("indexOf", "string_index_of_string_int", "string.(string, int) -> int", _index_of)
    add("lastIndexOf", "string_last_index_of_string", "string.(string) -> int", _last_index_of)
    add(
        "lastIndexOf",
        "string_last_index_of_string_int",
        "string.(string, int) -> int",
        _last_index_before,
    )
    add("lowerAscii", "string_lower_ascii", "string.() -> string", _lower)
    replaced = "string.(string, string) -> string"
    add("replace", "string_replace_string_string", replaced, _replace)
    replaced = "string.(string, string, int) -> string"
    add("replace", "string_replace_string_string_int", replaced, _replace)
    add("split", "string_split_string", "string.(string) -> list(string)", _split)
    add("split", "string_split_string_int", "string.(string, int) -> list(string)", _split)
    add("substring", "string_substring_int", "string.(int) -> string", _substring)
    add("substring", "string_substring_int_int", "string.(int, int) -> string", _substring_range)
    add("trim", "string_trim", "string.() -> string", _trim)
    add("upperAscii", "string_upper_ascii", "string.() -> string", _upper)
    add("format", "string_format", "string.(list(dyn)) -> string", format_text)
    add("strings.quote", "strings_quote", "(string) -> string", _quote)
    add("join", "list_join", "list(string).() -> string", _join)
    add("join", "list_join_string", "list(string).(string) -> string", _join)
    add("find", "string_find_string", "string.(string) -> string", _find)
    add("findAll", "string_find_all_string", "string.(string) -> list(string)", _find_all)
    add("findAll", "string_find_all_string_int", "string.(string, int) -> list(string)", _find_all)
