"""``string.format``: clauses as of version 2 of the strings extension, locale en_US."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from asched.cel.conversion_library import text_of
from asched.cel.errors import SubexpressionError
from asched.cel.values import (
    CelMap,
    Meter,
    Uint,
    Value,
    bounded_text,
    is_list,
    type_name,
)

DEFAULT_PRECISION: Final = 6
MAX_PRECISION: Final = 1000
_CLAUSE = re.compile(r"(?:\.([0-9]*))?(.)", re.DOTALL)
_SPECIAL: Final = frozenset({"NaN", "Infinity", "-Infinity"})
_SUPERSCRIPT: Final = str.maketrans("0123456789-", "⁰¹²³⁴⁵⁶⁷⁸⁹⁻")
_TEXTS: Final = frozenset(
    {
        "int",
        "uint",
        "double",
        "bool",
        "string",
        "google.protobuf.Timestamp",
        "bytes",
        "google.protobuf.Duration",
        "type",
        "null_type",
    }
)
# Names of types that each clause takes, and the error for others.
CLAUSES: Final[dict[str, tuple[frozenset[str], str]]] = {
    "s": (
        _TEXTS | {"list", "map"},
        (
            "string clause can only be used on strings, bools, bytes, ints, doubles, maps, lists,"
            " types, durations, and timestamps"
        ),
    ),
    "d": (frozenset({"int", "uint"}), "decimal clause can only be used on integers"),
    "f": (frozenset({"double", "string"}), "fixed-point clause can only be used on doubles"),
    "e": (frozenset({"double", "string"}), "scientific clause can only be used on doubles"),
    "b": (
        frozenset({"int", "uint", "bool"}),
        "only integers and bools can be formatted as binary",
    ),
    "x": (
        frozenset({"int", "uint", "string", "bytes"}),
        "only integers, byte buffers, and strings can be formatted as hex",
    ),
    "o": (frozenset({"int", "uint"}), "octal clause can only be used on integers"),
}


@dataclass(frozen=True, slots=True)
class Clause:
    """One clause of a format, or literal text if the letter is empty."""

    letter: str
    precision: int = DEFAULT_PRECISION
    text: str = ""


def clauses(text: str) -> Iterator[Clause]:
    """The parts of a format. Raises ValueError for one that cannot be read."""
    position = 0
    while position < len(text):
        percent = text.find("%", position)
        if percent < 0:
            yield Clause("", text=text[position:])
            return
        if percent > position:
            yield Clause("", text=text[position:percent])
        if text.startswith("%%", percent):
            yield Clause("", text="%")
            position = percent + 2
            continue
        found = _CLAUSE.match(text, percent + 1)
        if found is None:
            raise ValueError("unexpected end of string")
        yield Clause(found[2], _precision(found[1]))
        if found[2].lower() not in CLAUSES or (found[2].isupper() and found[2] != "X"):
            raise ValueError(
                f'could not parse formatting clause: unrecognized formatting clause "{found[2]}"'
            )
        position = found.end()


def _precision(text: str | None) -> int:
    if text is None:
        return DEFAULT_PRECISION
    if not text:
        raise ValueError(
            "could not parse formatting clause: error while parsing precision: error while"
            ' converting precision to integer: strconv.Atoi: parsing "": invalid syntax'
        )
    if len(text) > 4 or int(text) > MAX_PRECISION:
        raise ValueError(f"could not parse formatting clause: precision above {MAX_PRECISION}")
    return int(text)


def format_text(meter: Meter, text: str, arguments: tuple[Value, ...]) -> str:
    """The text with its clauses replaced. Raises SubexpressionError."""
    pieces: list[str] = []
    used = 0
    try:
        for clause in clauses(text):
            if not clause.letter:
                pieces.append(clause.text)
                continue
            if used >= len(arguments):
                raise ValueError(f"index {used} out of range")
            pieces.append(_formatted(meter, clause, arguments[used]))
            used += 1
    except ValueError as error:
        raise SubexpressionError(str(error)) from None
    bounded_text(sum(map(len, pieces)))
    return "".join(pieces)


def _formatted(meter: Meter, clause: Clause, value: Value) -> str:
    accepted, message = CLAUSES[clause.letter.lower()]
    name = type_name(value)
    is_special = name != "string" or value in _SPECIAL or clause.letter not in "fe"
    if name not in accepted or not is_special:
        raise ValueError(f"error during formatting: {message}, was given {name}")
    return _FORMATTERS[clause.letter.lower()](meter, clause, value)


def _string(meter: Meter, _: Clause, value: Value) -> str:
    return _nested(meter, value) if is_list(value) or isinstance(value, CelMap) else text_of(value)


def _decimal(_: Meter, __: Clause, value: Value) -> str:
    return str(value)


def _number(value: Value) -> float:
    return float(value) if isinstance(value, str | float) else math.nan


def _not_finite(number: float) -> str:
    if math.isnan(number):
        return "NaN"
    return "∞" if number > 0 else "-∞"


def _fixed(_: Meter, clause: Clause, value: Value) -> str:
    number = _number(value)
    return f"{number:,.{clause.precision}f}" if math.isfinite(number) else _not_finite(number)


def _scientific(_: Meter, clause: Clause, value: Value) -> str:
    number = _number(value)
    if not math.isfinite(number):
        return _not_finite(number)
    mantissa, _sep, exponent = f"{number:.{clause.precision}e}".partition("e")
    digits = exponent.removeprefix("+").translate(_SUPERSCRIPT)
    return f"{mantissa}\u202f×\u202f10{digits}"


def _binary(_: Meter, __: Clause, value: Value) -> str:
    return f"{value:b}" if isinstance(value, int) else ""


def _octal(_: Meter, __: Clause, value: Value) -> str:
    return f"{value:o}" if isinstance(value, int) else ""


def _hexadecimal(_: Meter, clause: Clause, value: Value) -> str:
    if isinstance(value, str):
        value = value.encode("utf-8", "surrogatepass")
    text = value.hex() if isinstance(value, bytes) else f"{value:x}"
    return text.upper() if clause.letter == "X" else text


def _nested(meter: Meter, value: Value) -> str:
    meter.count()
    if isinstance(value, CelMap):
        entries: list[tuple[str, str]] = []
        for key, item in value.items():
            if isinstance(key, float):
                raise ValueError(
                    "error during formatting: no formatting function for map key of type double"
                )
            entries.append((_quoted(meter, key), _quoted(meter, item)))
        return "{" + ", ".join(f"{key}:{item}" for key, item in sorted(entries)) + "}"
    assert isinstance(value, tuple | list)
    return "[" + ", ".join([_quoted(meter, item) for item in value]) + "]"


def _quoted(meter: Meter, value: Value) -> str:
    meter.count()
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, bytes):
        return f'b"{value.decode("utf-8", "replace")}"'
    if isinstance(value, float):
        return f"{value:.6f}" if math.isfinite(value) else f'"{text_of(value)}"'
    if is_list(value) or isinstance(value, CelMap):
        return _nested(meter, value)
    name = type_name(value)
    if name in ("google.protobuf.Timestamp", "google.protobuf.Duration"):
        return f'{name.rpartition(".")[2].lower()}("{value}")'
    if isinstance(value, int | Uint) or name in _TEXTS:
        return text_of(value)
    raise ValueError(f"error during formatting: no formatting function for {name}")


_FORMATTERS: Final[dict[str, Callable[[Meter, Clause, Value], str]]] = {
    "s": _string,
    "d": _decimal,
    "f": _fixed,
    "e": _scientific,
    "b": _binary,
    "x": _hexadecimal,
    "o": _octal,
}
