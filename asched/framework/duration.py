"""Durations in Go's notation, as Kubernetes configuration has them."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Final

_DURATION: Final = re.compile(r"([0-9]+(?:\.[0-9]*)?|\.[0-9]+)(ns|us|µs|μs|ms|s|m|h)")
_UNIT_US: Final = {
    "ns": 1e-3,
    "us": 1.0,
    "µs": 1.0,
    "μs": 1.0,
    "ms": 1e3,
    "s": 1e6,
    "m": 60e6,
    "h": 3600e6,
}


def parse_duration(text: str) -> timedelta:
    """Go's notation of a duration, to the microsecond. Raises ValueError for anything else.

    >>> parse_duration("1m30s")
    datetime.timedelta(seconds=90)
    """
    body = text[1:] if text.startswith(("-", "+")) else text
    if body == "0":
        return timedelta()
    parts = _DURATION.findall(body)
    if not parts or "".join(number + unit for number, unit in parts) != body:
        raise ValueError(f'"{text}" is not a duration; write one like "15s", "1m30s", "100ms"')
    try:
        total = timedelta(microseconds=sum(float(n) * _UNIT_US[unit] for n, unit in parts))
    except OverflowError:
        raise ValueError(f'"{text}" is too long a duration') from None
    return -total if text.startswith("-") else total


def format_duration(duration: timedelta) -> str:
    """The notation that :func:`parse_duration` reads: hours, minutes, and seconds or less.

    >>> format_duration(timedelta(seconds=90)), format_duration(timedelta(milliseconds=1500))
    ('1m30s', '1.5s')
    """
    total_us = abs(duration) // timedelta(microseconds=1)
    sign = "-" if duration < timedelta() else ""
    minutes, rest_us = divmod(total_us, 60_000_000)
    hours, minutes = divmod(minutes, 60)
    text = (f"{hours}h" if hours else "") + (f"{minutes}m" if minutes else "")
    if 0 < rest_us < 1_000_000 and not text:
        return f"{sign}{_decimal(rest_us, 1000)}ms"
    if rest_us or not text:
        text += f"{_decimal(rest_us, 1_000_000)}s"
    return sign + text


def _decimal(value: int, scale: int) -> str:
    whole, fraction = divmod(value, scale)
    digits = str(fraction).rjust(len(str(scale)) - 1, "0").rstrip("0")
    return f"{whole}.{digits}" if digits else str(whole)
