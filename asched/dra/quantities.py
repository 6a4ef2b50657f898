"""Exact arithmetic on quantities, and the notation in which Kubernetes writes them.

Amounts are integers in billionths, the finest unit of a quantity.
"""

from __future__ import annotations

import re
from typing import Final

from asched.model.quantity import MAX_INT64, QuantityText, billionths

NANO: Final = 1_000_000_000

_DECIMAL_DIGITS: Final = 18
_BINARY_DIGITS: Final = 14
_NUMBER: Final = re.compile(
    r"[+-]?0*(?P<whole>\d*)(?:\.(?P<fraction>\d*))?"
    r"(?:(?P<binary>[KMGTPE]i)|(?P<decimal>[numkMGTPE])|[eE](?P<exponent>[+-]?\d+))?",
    re.ASCII,
)
_BINARY_SUFFIXES: Final = ("", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei")
_DECIMAL_SUFFIXES: Final = ("n", "u", "m", "", "k", "M", "G", "T", "P", "E")


def amount(quantity: QuantityText) -> int:
    """The quantity in billionths. Raises QuantityError."""
    return billionths(quantity)


def whole_units(amount_nano: int) -> int:
    """The amount in whole units, rounded away from zero (``Quantity.Value``)."""
    magnitude = -(-abs(amount_nano) // NANO)
    return -magnitude if amount_nano < 0 else magnitude


def binary_notation(units: int) -> str:
    """Whole units in canonical notation with a binary suffix.

    >>> binary_notation(3 * 2**30), binary_notation(1000), binary_notation(1536 * 2**20)
    ('3Gi', '1k', '1536Mi')
    """
    if -1024 < units < 1024:
        return decimal_notation(units * NANO)
    power = 0
    while units % 1024 == 0 and power < len(_BINARY_SUFFIXES) - 1:
        units //= 1024
        power += 1
    return f"{units}{_BINARY_SUFFIXES[power]}"


def decimal_notation(amount_nano: int) -> str:
    """An amount in canonical notation with a decimal suffix.

    >>> decimal_notation(1_500 * NANO), decimal_notation(NANO // 2), decimal_notation(2000 * NANO)
    ('1500', '500m', '2k')
    """
    number, power = _in_thousands(amount_nano)
    # As in Kubernetes, there is no suffix for even larger units.
    suffix = _DECIMAL_SUFFIXES[power] if power < len(_DECIMAL_SUFFIXES) else ""
    return f"{number}{suffix}" if number else "0"


def exponent_notation(amount_nano: int) -> str:
    """An amount in canonical notation with a decimal exponent.

    >>> exponent_notation(10 * NANO), exponent_notation(NANO // 10), exponent_notation(2000 * NANO)
    ('10', '100e-3', '2e3')
    """
    number, power = _in_thousands(amount_nano)
    exponent = 3 * power - 9
    return f"{number}e{exponent}" if number and exponent else str(number)


def _in_thousands(amount_nano: int) -> tuple[int, int]:
    """The amount as a number and the power of a thousand billionths that it counts."""
    power = 0
    while amount_nano and amount_nano % 1000 == 0:
        amount_nano //= 1000
        power += 1
    return amount_nano, power


def stored_notation(quantity: QuantityText) -> str:
    """How Kubernetes writes a quantity that it has read.

    A text that looks canonical is kept; any other one is replaced by the canonical notation in the
    same kind of suffix.

    >>> [stored_notation(text) for text in ("3Gi", "1024Mi", "1.5Gi", "0.5", "1000m", "1e1")]
    ['3Gi', '1Gi', '1536Mi', '500m', '1', '10']
    """
    text = quantity.strip() if isinstance(quantity, str) else repr(quantity)
    number = _NUMBER.fullmatch(text)
    if number is None or _is_kept(number):
        return text
    total = amount(text)
    if number["binary"]:
        total = min(total, MAX_INT64 * NANO)
        return decimal_notation(total) if total % NANO else binary_notation(total // NANO)
    return exponent_notation(total) if number["exponent"] else decimal_notation(total)


def _is_kept(number: re.Match[str]) -> bool:
    """Whether Kubernetes keeps the text, because it looks canonical and its value is small."""
    whole, fraction = number["whole"] or "0", number["fraction"] or ""
    if number["binary"]:
        bits = _BINARY_SUFFIXES.index(number["binary"]) * 10
        fits = not fraction and len(whole) + bits * 3 // 10 <= _BINARY_DIGITS
        return fits and int(whole) % 8 != 0
    digits = whole + fraction
    if number["decimal"]:
        exponent = 3 * _DECIMAL_SUFFIXES.index(number["decimal"]) - 9
    else:
        exponent = int(number["exponent"] or 0)
    exponent -= len(fraction)
    return (
        len(digits) <= _DECIMAL_DIGITS
        and exponent >= -9
        and exponent % 3 == 0
        and not digits.endswith("000")
        and digits[0] != "0"
    )
