"""What decisions record about devices, as text."""

from __future__ import annotations

from collections.abc import Iterator

from asched.model.resource_claims import AllocationResult
from asched.plugins.dynamic_resources import DynamicResources
from asched.plugins.dynamic_resources.reservation import DeviceReservation
from asched.state.records import Assigned, Rejected

SPECIAL_CLAIM = "(extended resources)"
"""Stands for the name of a special claim, which is not known when it is decided."""


def allocated_devices(record: Assigned) -> tuple[str, ...]:
    """The devices that the pod got: ``claim/request: driver/pool/device``."""
    for reservation in record.reservations:
        if reservation.plugin == DynamicResources.name:
            return tuple(_devices(DeviceReservation.from_record(reservation.value)))
    return ()


def _devices(reservation: DeviceReservation) -> Iterator[str]:
    for claim in reservation.claims:
        yield from _of_claim(claim.name, claim.allocation)
    special = reservation.special
    if special is not None:
        yield from _of_claim(special.name or SPECIAL_CLAIM, special.allocation)


def _of_claim(name: str, allocation: AllocationResult | None) -> Iterator[str]:
    if allocation is not None:
        for result in allocation.devices.results:
            device = f"{result.driver}/{result.pool}/{result.device}"
            yield f"{name}/{result.request}: {device}"


def released_claim(record: Rejected) -> str:
    """The key of the claim that is released for the pod; empty for none."""
    released = record.released_claim
    return "" if released is None else released.claim.key
