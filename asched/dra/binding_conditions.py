"""Binding conditions of allocated devices, and where an allocated claim can be used."""

from __future__ import annotations

from datetime import datetime, timedelta
from enum import Enum, auto

from asched.model.resource_claims import (
    AllocatedDeviceStatus,
    AllocationResult,
    DeviceCondition,
    DeviceRequestAllocationResult,
    ResourceClaim,
)

DEFAULT_BINDING_TIMEOUT = timedelta(seconds=600)


class Readiness(Enum):
    """Whether the devices of a claim are ready for binding."""

    READY = auto()
    PENDING = auto()
    FAILED = auto()


def readiness(claim: ResourceClaim) -> Readiness:
    """The state of the first device that is not ready; READY if all are."""
    return _state(claim)[0]


def failed_condition(claim: ResourceClaim) -> DeviceCondition | None:
    """The condition by which the state of a claim is FAILED; None in other states."""
    return _state(claim)[1]


def _state(claim: ResourceClaim) -> tuple[Readiness, DeviceCondition | None]:
    allocation = claim.status.allocation
    if allocation is None:
        return Readiness.PENDING, None
    for result in allocation.devices.results:
        if not result.binding_conditions:
            continue
        status = _status_of(claim, result)
        if status is None:
            return Readiness.PENDING, None
        true = _true_conditions(status)
        for condition in result.binding_failure_conditions:
            if condition in true:
                return Readiness.FAILED, true[condition]
        if any(condition not in true for condition in result.binding_conditions):
            return Readiness.PENDING, None
    return Readiness.READY, None


def _status_of(
    claim: ResourceClaim, result: DeviceRequestAllocationResult
) -> AllocatedDeviceStatus | None:
    for status in claim.status.devices:
        if (status.driver, status.pool, status.device) == (
            result.driver,
            result.pool,
            result.device,
        ):
            return status
    return None


def _true_conditions(status: AllocatedDeviceStatus) -> dict[str, DeviceCondition]:
    """By type, the first conditions that are true."""
    first: dict[str, DeviceCondition] = {}
    for condition in status.conditions:
        first.setdefault(condition.type, condition)
    return {name: condition for name, condition in first.items() if condition.status == "True"}


def has_binding_conditions(allocation: AllocationResult | None) -> bool:
    """Whether binding has to wait for conditions of an allocated device."""
    return allocation is not None and any(
        result.binding_conditions for result in allocation.devices.results
    )


def has_timed_out(
    claim: ResourceClaim, now: datetime, timeout: timedelta = DEFAULT_BINDING_TIMEOUT
) -> bool:
    """Whether the devices of a claim had long enough to become ready."""
    allocation = claim.status.allocation
    return (
        allocation is not None
        and allocation.allocation_timestamp is not None
        and has_binding_conditions(allocation)
        and allocation.allocation_timestamp + timeout < now
    )


def is_usable(
    claim: ResourceClaim, now: datetime, timeout: timedelta = DEFAULT_BINDING_TIMEOUT
) -> bool:
    """Whether binding conditions let a pod use an allocated claim, on whatever node."""
    state = readiness(claim)
    if state is Readiness.PENDING:
        return not has_timed_out(claim, now, timeout)
    return state is Readiness.READY
