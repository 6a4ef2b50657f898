"""Checks and limits of ResourceClaims, ResourceSlices and DeviceClasses after decoding.

A claim above its limit is kept as a stub: its devices are in use, whatever else it contains. See
:mod:`asched.model.limits` for other objects.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

import msgspec

from asched.model.limits import KIB, MAX_CLUSTER_BYTES, stub_annotations
from asched.model.meta import Object, ObjectMeta
from asched.model.quantity import QuantityError, QuantityText, milli_value
from asched.model.resource_claims import (
    AllocatedDeviceStatus,
    AllocationResult,
    CapacityRequirements,
    Counter,
    CounterSet,
    Device,
    DeviceAllocationResult,
    DeviceClaim,
    DeviceCounterConsumption,
    DeviceRequest,
    ExactDeviceRequest,
    ResourceClaim,
    ResourceClaimSpec,
    ResourceClaimStatus,
    ResourceSlice,
)

MAX_CLAIM_BYTES: Final = 64 * KIB
"""Kept form of a claim: the JSON of the fields that are read."""
MAX_DEVICES: Final = 1024
"""Devices of a ResourceSlice; Kubernetes 1.36 allows 128."""

_Quantity = tuple[str, QuantityText]
"""Where a quantity is, and its text."""

_encode = msgspec.json.Encoder().encode
_replace = msgspec.structs.replace


def excess_of_slice(item: ResourceSlice) -> str:
    """By how much a slice exceeds its limit; empty if it does not. Its size is limited as that of
    all objects without a namespace."""
    count = len(item.spec.devices)
    return f"{count:,} devices, at most {MAX_DEVICES:,}" if count > MAX_DEVICES else ""


def limited_claim(claim: ResourceClaim, raw_bytes: int) -> ResourceClaim:
    """The claim without the configuration of its allocation, which only drivers read; above its
    limit, its stub. ``raw_bytes``: size of the JSON that it was decoded from."""
    allocation = claim.status.allocation
    if allocation is not None and allocation.devices.config:
        devices = DeviceAllocationResult(results=allocation.devices.results)
        status = _replace(claim.status, allocation=_replace(allocation, devices=devices))
        claim = _replace(claim, status=status)
    if raw_bytes <= MAX_CLAIM_BYTES:
        return claim
    size_bytes = len(_encode(claim))
    return claim if size_bytes <= MAX_CLAIM_BYTES else _stub_of(claim, size_bytes)


def _stub_of(claim: ResourceClaim, size_bytes: int) -> ResourceClaim:
    """The claim with its devices and reservations, and with a request that no class satisfies.

    The name of the request is the reason, so that the rejection of a pod with the claim contains
    it: ``request TOO LARGE: 80 KiB, at most 64 KiB: device class  does not exist``.
    """
    meta = claim.metadata
    controller = meta.controller
    most = MAX_CLAIM_BYTES // KIB
    reason = f"TOO LARGE: {-(-size_bytes // KIB):,} KiB, at most {most:,} KiB"
    request = DeviceRequest(name=reason, exactly=ExactDeviceRequest(count=1))
    return ResourceClaim(
        metadata=ObjectMeta(
            name=meta.name,
            namespace=meta.namespace,
            uid=meta.uid,
            creation_timestamp=meta.creation_timestamp,
            deletion_timestamp=meta.deletion_timestamp,
            owner_references=() if controller is None else (controller,),
            annotations=stub_annotations(meta.annotations),
        ),
        spec=ResourceClaimSpec(devices=DeviceClaim(requests=(request,))),
        status=_stub_status(claim.status),
    )


def _stub_status(status: ResourceClaimStatus) -> ResourceClaimStatus:
    allocation: AllocationResult | None = status.allocation
    if allocation is not None:
        results = tuple(_replace(each, tolerations=()) for each in allocation.devices.results)
        allocation = _replace(allocation, devices=DeviceAllocationResult(results=results))
    return ResourceClaimStatus(
        allocation=allocation,
        reserved_for=status.reserved_for,
        devices=used_device_statuses(status),
    )


def used_device_statuses(status: ResourceClaimStatus) -> tuple[AllocatedDeviceStatus, ...]:
    """``status.devices`` with the conditions that a binding waits for, and without the devices that
    report none of them."""
    allocation = status.allocation
    used: set[str] = set()
    for result in () if allocation is None else allocation.devices.results:
        used.update(result.binding_conditions, result.binding_failure_conditions)
    reduced = (
        _replace(each, conditions=tuple([c for c in each.conditions if c.type in used]))
        for each in status.devices
    )
    return tuple([each for each in reduced if each.conditions])


def excess_of_stub(claim: ResourceClaim, raw_bytes: int) -> str:
    """By how much even a stub exceeds the limit of all objects; empty if it does not."""
    if raw_bytes <= MAX_CLUSTER_BYTES:
        return ""
    size_bytes = len(_encode(claim))
    if size_bytes <= MAX_CLUSTER_BYTES:
        return ""
    most = MAX_CLUSTER_BYTES // KIB
    return f"{-(-size_bytes // KIB):,} KiB of allocated devices, at most {most:,} KiB"


# -- quantities -----------------------------------------------------------------------------------


def invalid_quantity(item: Object) -> str:
    """Where a claim or slice has its first invalid quantity, and what is wrong; empty if all are
    valid."""
    quantities: Iterator[_Quantity] = iter(())
    if isinstance(item, ResourceClaim):
        quantities = _of_claim(item)
    elif isinstance(item, ResourceSlice) and not _is_plainly_valid(item):
        quantities = _of_slice(item)
    for where, quantity in quantities:
        try:
            milli_value(quantity)
        except QuantityError as error:
            return f"{where}: {error}"
    return ""


def _is_plainly_valid(item: ResourceSlice) -> bool:
    """Whether all quantities are valid. False if in doubt: devices of a slice mostly have the same
    few quantities, which are checked once here."""
    texts: set[QuantityText] = set()
    counters: list[CounterSet | DeviceCounterConsumption] = [*item.spec.shared_counters]
    for device in item.spec.devices:
        for capacity in device.capacity.values():
            if capacity.request_policy is not None:
                return False
            texts.add(capacity.value)
        counters += device.consumes_counters
    for each in counters:
        texts.update([counter.value for counter in each.counters.values()])
    try:
        for text in texts:
            milli_value(text)
    except QuantityError:
        return False
    return True


def _of_claim(claim: ResourceClaim) -> Iterator[_Quantity]:
    for index, request in enumerate(claim.spec.devices.requests):
        where = f"spec.devices.requests[{index}]"
        if request.exactly is not None:
            yield from _of_capacity(f"{where}.exactly", request.exactly.capacity)
        for number, sub_request in enumerate(request.first_available):
            yield from _of_capacity(f"{where}.firstAvailable[{number}]", sub_request.capacity)
    allocation = claim.status.allocation
    for index, result in enumerate(() if allocation is None else allocation.devices.results):
        where = f"status.allocation.devices.results[{index}].consumedCapacity"
        for name, quantity in result.consumed_capacity.items():
            yield f"{where}.{name}", quantity


def _of_capacity(where: str, capacity: CapacityRequirements | None) -> Iterator[_Quantity]:
    for name, quantity in () if capacity is None else capacity.requests.items():
        yield f"{where}.capacity.requests.{name}", quantity


def _of_slice(item: ResourceSlice) -> Iterator[_Quantity]:
    for index, device in enumerate(item.spec.devices):
        yield from _of_device(f"spec.devices[{index}]", device)
    for index, counters in enumerate(item.spec.shared_counters):
        yield from _of_counters(f"spec.sharedCounters[{index}]", counters.counters)


def _of_device(where: str, device: Device) -> Iterator[_Quantity]:
    for name, capacity in device.capacity.items():
        yield f"{where}.capacity.{name}.value", capacity.value
        policy = capacity.request_policy
        if policy is None:
            continue
        at = f"{where}.capacity.{name}.requestPolicy"
        given = {"default": policy.default}
        if policy.valid_range is not None:
            limits = policy.valid_range
            given |= {"min": limits.min, "max": limits.max, "step": limits.step}
        for field, quantity in given.items():
            if quantity is not None:
                yield f"{at}.{field}", quantity
        for number, quantity in enumerate(policy.valid_values):
            yield f"{at}.validValues[{number}]", quantity
    for number, consumption in enumerate(device.consumes_counters):
        yield from _of_counters(f"{where}.consumesCounters[{number}]", consumption.counters)


def _of_counters(where: str, counters: Mapping[str, Counter]) -> Iterator[_Quantity]:
    for name, counter in counters.items():
        yield f"{where}.counters.{name}.value", counter.value
