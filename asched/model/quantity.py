"""Kubernetes quantities, Go durations, and units of time.

The grammar of quantities is that of ``k8s.io/apimachinery/pkg/api/resource``: a signed decimal
number with a binary suffix (``Ki Mi Gi Ti Pi Ei``), a decimal suffix (``n u m k M G T P E``) or a
decimal exponent (``e3``, ``E-2``). JSON numbers are accepted too.

Quantities are read in thousandths (:func:`milli_value`, for cpu) or in whole units (:func:`value`).
As in Kubernetes, both are exact, rounded away from zero, and limited to signed 64-bit integers.
"""

from __future__ import annotations

import re
from datetime import timedelta
from functools import lru_cache
from typing import Final

QuantityText = str | int | float
"""A quantity in JSON: usually a string, sometimes a number."""

MAX_INT64 = 2**63 - 1
MIN_INT64 = -(2**63)

NS_PER_S: Final = 1_000_000_000
US_PER_S: Final = 1_000_000

MAX_LENGTH = 1024
"""Longer texts are rejected, because arithmetic on them is slow."""

# With a mantissa of MAX_LENGTH digits, a larger exponent does not change the result.
_MAX_EXPONENT = 2 * MAX_LENGTH

_GRAMMAR = re.compile(
    r"(?P<sign>[+-]?)(?P<int>\d*)(?:\.(?P<frac>\d*))?"
    r"(?:(?P<bin>[KMGTPE]i)|(?P<dec>[numkMGTPE])|[eE](?P<exp>[+-]?\d+))?",
    re.ASCII,
)
_BINARY_BITS = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50, "Ei": 60}
_DECIMAL_EXPONENT = {"n": -9, "u": -6, "m": -3, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}


class QuantityError(ValueError):
    """The text is not a quantity of the Kubernetes grammar."""


@lru_cache(maxsize=65536, typed=True)
def _exact(text: str) -> tuple[int, int, int]:
    """``text`` as ``mantissa * 2**bits * 10**exponent``."""
    match = _GRAMMAR.fullmatch(text.strip()) if len(text) <= MAX_LENGTH else None
    if match is None or not (match["int"] or match["frac"]):
        raise QuantityError(
            f"{text[:64]!r} is not a quantity: expected a number with an optional suffix such as"
            " 100m, 1.5, 2Gi, 500M or 1e3"
        )
    fraction = match["frac"] or ""
    mantissa = int((match["int"] or "") + fraction)
    if match["sign"] == "-":
        mantissa = -mantissa
    bits, exponent = 0, -len(fraction)
    if match["bin"]:
        bits = _BINARY_BITS[match["bin"]]
    elif match["dec"]:
        exponent += _DECIMAL_EXPONENT[match["dec"]]
    elif match["exp"]:
        exponent += max(-_MAX_EXPONENT, min(_MAX_EXPONENT, int(match["exp"])))
    return mantissa, bits, exponent


def _text(quantity: QuantityText) -> str:
    if isinstance(quantity, str):
        return quantity
    if isinstance(quantity, bool) or quantity != quantity or quantity in (_INF, -_INF):
        raise QuantityError(f"{quantity!r} is not a quantity: expected a finite number")
    return repr(quantity)


_INF = float("inf")


def _scaled_up(quantity: QuantityText, scale_exponent: int) -> int:
    """``quantity * 10**scale_exponent``, rounded away from zero."""
    mantissa, bits, exponent = _exact(_text(quantity))
    exponent += scale_exponent
    magnitude = abs(mantissa) << bits
    if exponent >= 0:
        magnitude *= int(10**exponent)
    else:
        magnitude = -(-magnitude // int(10**-exponent))
    return -magnitude if mantissa < 0 else magnitude


def saturated(number: int) -> int:
    """The nearest signed 64-bit integer."""
    return max(MIN_INT64, min(MAX_INT64, number))


@lru_cache(maxsize=65536, typed=True)
def thousandths(quantity: QuantityText) -> int:
    """The quantity in thousandths, rounded away from zero, not limited to 64 bits.

    Raises :class:`QuantityError`.
    """
    return _scaled_up(quantity, 3)


@lru_cache(maxsize=65536, typed=True)
def billionths(quantity: QuantityText) -> int:
    """The quantity in billionths, the finest unit of a quantity. It is not limited to 64 bits.

    Raises :class:`QuantityError`.
    """
    return _scaled_up(quantity, 9)


def milli_value(quantity: QuantityText) -> int:
    """The quantity in thousandths, rounded away from zero (``Quantity.MilliValue``).

    >>> milli_value("100m"), milli_value("0.1"), milli_value("1e3"), milli_value("1n")
    (100, 100, 1000000, 1)

    Raises :class:`QuantityError`.
    """
    return saturated(thousandths(quantity))


@lru_cache(maxsize=65536, typed=True)
def value(quantity: QuantityText) -> int:
    """The quantity in whole units, rounded away from zero (``Quantity.Value``).

    >>> value("1Ki"), value("1500M"), value("0.5"), value("100m")
    (1024, 1500000000, 1, 1)

    Raises :class:`QuantityError`.
    """
    return saturated(_scaled_up(quantity, 0))


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
    """A duration in Go's notation, to the microsecond. Raises ValueError for other texts.

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
    """A duration in the notation of :func:`parse_duration`.

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
