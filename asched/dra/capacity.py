"""What a request consumes of the capacity of a device, and the policies that round and limit it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from asched.dra.quantities import amount, binary_notation, stored_notation, whole_units
from asched.model.quantity import QuantityText
from asched.model.resource_claims import (
    CapacityRequestPolicy,
    CapacityRequestPolicyRange,
    CapacityRequirements,
    DeviceCapacity,
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
    """What a request consumes of a device with this capacity. None if a policy rules it out."""
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
