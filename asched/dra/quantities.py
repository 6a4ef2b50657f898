"""Exact arithmetic on quantities, and the notation in which Kubernetes writes them.

Amounts are integers in billionths, the finest unit of a quantity.
"""

from __future__ import annotations

import re
from typing import Final

from asched.model.quantity import QuantityText, billionths

NANO: Final = 1_000_000_000

_VERBATIM_DIGITS: Final = 18
_BINARY: Final = re.compile(r"[+-]?(\d*)(\.\d*)?([KMGTPE])i", re.ASCII)
_DECIMAL: Final = re.compile(r"[+-]?(\d*)\.?(\d*)(?:[numkMGTPE]|[eE][+-]?\d+)?", re.ASCII)
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
    if amount_nano == 0:
        return "0"
    power = 0
    while amount_nano % 1000 == 0 and power < len(_DECIMAL_SUFFIXES) - 1:
        amount_nano //= 1000
        power += 1
    return f"{amount_nano}{_DECIMAL_SUFFIXES[power]}"


def stored_notation(quantity: QuantityText) -> str:
    """How Kubernetes writes a quantity that it has read.

    A quantity that fits a scaled 64-bit integer keeps its text. A fraction with a binary suffix,
    for example, becomes canonical.

    >>> stored_notation("1024Mi"), stored_notation("1.5Gi"), stored_notation("0.5")
    ('1024Mi', '1536Mi', '0.5')
    """
    text = quantity.strip() if isinstance(quantity, str) else repr(quantity)
    binary = _BINARY.fullmatch(text)
    if binary is None:
        decimal = _DECIMAL.fullmatch(text)
        if decimal is None or len(decimal[1]) + len(decimal[2]) <= _VERBATIM_DIGITS:
            return text
        return decimal_notation(amount(text))
    bits = (_BINARY_SUFFIXES.index(f"{binary[3]}i")) * 10
    if not binary[2] and 15 - len(binary[1]) - bits * 3 // 10 - 1 >= 0:
        return text
    total = amount(text)
    return decimal_notation(total) if total % NANO else binary_notation(total // NANO)
