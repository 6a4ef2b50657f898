"""Conversions between types, and parts of timestamps and durations."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from datetime import datetime
from typing import Final

from asched.cel.errors import SubexpressionError
from asched.cel.functions import Library, type_value
from asched.cel.instants import (
    SECOND_NS,
    Duration,
    Timestamp,
    parse_duration,
    parse_timestamp,
    time_zone,
    timestamp,
)
from asched.cel.values import (
    MAX_INT,
    Meter,
    TypeName,
    Uint,
    Value,
    checked_int,
    checked_uint,
    double_text,
    type_name,
)

_TRUE: Final = frozenset({"1", "t", "T", "true", "TRUE", "True"})
_FALSE: Final = frozenset({"0", "f", "F", "false", "FALSE", "False"})
_INTEGER = re.compile(r"[+-]?[0-9]+", re.ASCII)
_FLOAT = re.compile(
    r"[+-]?(?:(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?|inf(?:inity)?|nan)",
    re.ASCII | re.IGNORECASE,
)


def _conversion_error(value: Value, name: str) -> SubexpressionError:
    return SubexpressionError(f"type conversion error from '{type_name(value)}' to '{name}'")


def _identity(_: Meter, value: Value) -> Value:
    return value


def _to_bool(_: Meter, text: str) -> bool:
    if text in _TRUE or text in _FALSE:
        return text in _TRUE
    raise _conversion_error(text, "bool")


def _to_double(_: Meter, value: int | str) -> float:
    if isinstance(value, str):
        if _FLOAT.fullmatch(value) is None:
            raise _conversion_error(value, "double")
        number = float(value)
        if math.isinf(number) and "inf" not in value.lower():
            raise _conversion_error(value, "double")
        return number
    return float(value)


def _to_int(_: Meter, value: Value) -> int:
    if isinstance(value, str):
        if _INTEGER.fullmatch(value) and len(value) < 100:
            number = int(value)
            if -MAX_INT - 1 <= number <= MAX_INT:
                return number
        raise _conversion_error(value, "int")
    if isinstance(value, float):
        if not -9223372036854775808.0 < value < 9223372036854775808.0:
            raise SubexpressionError("integer overflow")
        return int(value)
    if isinstance(value, Duration):
        return value.ns
    if isinstance(value, Timestamp):
        return value.ns // SECOND_NS
    assert isinstance(value, int)
    return checked_int(int(value))


def _to_uint(_: Meter, value: Value) -> Uint:
    if isinstance(value, str):
        if value.isascii() and value.isdigit() and len(value) < 100 and int(value) < 2**64:
            return Uint(int(value))
        raise _conversion_error(value, "uint")
    if isinstance(value, float):
        if not 0.0 <= value < 18446744073709551616.0:
            raise SubexpressionError("unsigned integer overflow")
        return Uint(int(value))
    assert isinstance(value, int)
    return checked_uint(int(value))


def text_of(value: Value) -> str:
    """The text of a value. Raises SubexpressionError if it has none."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return double_text(value)
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            raise SubexpressionError("invalid UTF-8 in bytes, cannot convert to string") from None
    if value is None:
        return "null"
    return value.name if isinstance(value, TypeName) else str(value)


def _to_string(_: Meter, value: Value) -> str:
    return text_of(value)


def _to_bytes(_: Meter, value: str) -> bytes:
    return value.encode("utf-8", "surrogatepass")


def _to_duration(_: Meter, value: Value) -> Duration:
    if isinstance(value, str):
        parsed = parse_duration(value)
        if parsed is not None:
            return parsed
    raise _conversion_error(value, "google.protobuf.Duration")


def _to_timestamp(_: Meter, value: Value) -> Timestamp:
    if isinstance(value, str):
        parsed = parse_timestamp(value)
        if parsed is not None:
            return parsed
        raise _conversion_error(value, "google.protobuf.Timestamp")
    assert isinstance(value, int)
    return timestamp(value * SECOND_NS)


_DATE_PARTS: Final[dict[str, tuple[str, Callable[[datetime], int]]]] = {
    "getFullYear": ("year", lambda at: at.year),
    "getMonth": ("month", lambda at: at.month - 1),
    "getDayOfYear": ("day_of_year", lambda at: at.timetuple().tm_yday - 1),
    "getDayOfMonth": ("day_of_month", lambda at: at.day - 1),
    "getDate": ("day_of_month_1_based", lambda at: at.day),
    "getDayOfWeek": ("day_of_week", lambda at: at.isoweekday() % 7),
    "getHours": ("hours", lambda at: at.hour),
    "getMinutes": ("minutes", lambda at: at.minute),
    "getSeconds": ("seconds", lambda at: at.second),
}
_SPANS_NS: Final = {"getHours": 3600, "getMinutes": 60, "getSeconds": 1}


def _date_part(part: Callable[[datetime], int]) -> Callable[..., int]:
    def evaluate(_: Meter, at: Timestamp, zone: str = "UTC") -> int:
        try:
            return part(at.at(time_zone(zone)))
        except OverflowError:
            raise SubexpressionError("timestamp overflow") from None

    return evaluate


def _milliseconds(_: Meter, at: Timestamp, zone: str = "UTC") -> int:
    time_zone(zone)
    return at.ns % SECOND_NS // 1_000_000


def _span(unit_ns: int) -> Callable[[Meter, Duration], int]:
    def evaluate(_: Meter, span: Duration) -> int:
        whole = abs(span.ns) // unit_ns
        return -whole if span.ns < 0 else whole

    return evaluate


def declare(library: Library) -> None:
    """Add the functions."""
    _declare_conversions(library)
    _declare_times(library)


def _declare_conversions(library: Library) -> None:
    library.add("type", "type", "(A) -> type(A)")
    library.share("type", type_value)
    library.add("dyn", "to_dyn", "(A) -> dyn")
    library.share("dyn", _identity)
    conversions: dict[str, tuple[Callable[..., Value], str]] = {
        "bool": (_to_bool, "string"),
        "bytes": (_to_bytes, "string"),
        "double": (_to_double, "int string uint"),
        "duration": (_to_duration, "int string"),
        "int": (_to_int, "double duration string timestamp uint"),
        "string": (_to_string, "bool bytes double duration int timestamp uint"),
        "timestamp": (_to_timestamp, "int string"),
        "uint": (_to_uint, "double int string"),
    }
    for name, (convert, sources) in conversions.items():
        library.add(name, f"{name}_to_{name}", f"({name}) -> {name}", _identity)
        for source in sources.split():
            library.add(name, f"{source}_to_{name}", f"({source}) -> {name}", convert)


def _declare_times(library: Library) -> None:
    for name, (identifier, part) in _DATE_PARTS.items():
        evaluate = _date_part(part)
        library.add(name, f"timestamp_to_{identifier}", "timestamp.() -> int", evaluate)
        library.add(
            name, f"timestamp_to_{identifier}_with_tz", "timestamp.(string) -> int", evaluate
        )
        if name in _SPANS_NS:
            library.add(
                name,
                f"duration_to_{identifier}",
                "duration.() -> int",
                _span(_SPANS_NS[name] * SECOND_NS),
            )
    name, evaluate = "getMilliseconds", _milliseconds
    library.add(name, "timestamp_to_milliseconds", "timestamp.() -> int", evaluate)
    library.add(name, "timestamp_to_milliseconds_with_tz", "timestamp.(string) -> int", evaluate)
    library.add(name, "duration_to_milliseconds", "duration.() -> int", _span(1_000_000))
