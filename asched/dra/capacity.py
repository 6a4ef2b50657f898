"""Capacity of devices: exact quantities, and what a request consumes under the device's policies.

Amounts are integers in billionths, the finest unit of a quantity.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from asched.model.quantity import MAX_INT64, QuantityText, billionths
from asched.model.resource_claims import (
    CapacityRequestPolicy,
    CapacityRequestPolicyRange,
    CapacityRequirements,
    DeviceCapacity,
)

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


Amounts = Mapping[str, int]
"""Capacity or counter amounts in billionths, by name."""


@dataclass(frozen=True, slots=True)
class Consumption:
    """What one request consumes of one device."""

    amounts: dict[str, int]
    notation: dict[str, str]
    """The same, as written with the allocation."""


def consumption(
    requested: CapacityRequirements | None, capacity: Mapping[str, DeviceCapacity]
) -> Consumption | None:
    """What a request consumes of a device with this capacity. None if a policy rules it out, or if
    the device lacks a capacity that is requested."""
    requests = requested.requests if requested is not None else {}
    if any(name not in capacity for name in requests):
        return None
    amounts: dict[str, int] = {}
    notation: dict[str, str] = {}
    for name, provided in capacity.items():
        text = _consumed(requests.get(name), provided)
        if _violates(text, provided.request_policy):
            return None
        amounts[name] = amount(text)
        notation[name] = text
    return Consumption(amounts, notation)


def fits(consumed: Amounts, capacity: Mapping[str, DeviceCapacity], *in_use: Amounts) -> bool:
    """Whether a device has enough capacity left."""
    return all(
        new + sum(used.get(name, 0) for used in in_use) <= amount(capacity[name].value)
        for name, new in consumed.items()
    )


def _consumed(requested: QuantityText | None, provided: DeviceCapacity) -> str:
    policy = provided.request_policy
    if requested is None:
        default = policy.default if policy is not None else None
        return stored_notation(provided.value if default is None else default)
    if policy is not None:
        if policy.valid_range is not None and policy.valid_range.min is not None:
            return _rounded_into_range(requested, policy.valid_range, policy.valid_range.min)
        for valid in policy.valid_values:
            if amount(requested) <= amount(valid):
                return stored_notation(valid)
    return stored_notation(requested)


def _rounded_into_range(
    requested: QuantityText, valid: CapacityRequestPolicyRange, minimum: QuantityText
) -> str:
    if amount(requested) < amount(minimum):
        return stored_notation(minimum)
    if valid.step is None:
        return stored_notation(requested)
    start, step = whole_units(amount(minimum)), whole_units(amount(valid.step))
    steps = -(-(whole_units(amount(requested)) - start) // step) if step else 0
    return binary_notation(start + steps * step)


def _violates(text: str, policy: CapacityRequestPolicy | None) -> bool:
    if policy is None or (policy.default is not None and stored_notation(policy.default) == text):
        return False
    consumed, valid = amount(text), policy.valid_range
    if valid is None:
        return bool(policy.valid_values) and all(
            consumed != amount(value) for value in policy.valid_values
        )
    if valid.max is not None and consumed > amount(valid.max):
        return True
    if valid.step is None:
        return False
    start = whole_units(amount(valid.min)) if valid.min is not None else 0
    step = whole_units(amount(valid.step))
    return step != 0 and (whole_units(consumed) - start) % step != 0
