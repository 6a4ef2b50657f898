"""Requests of claims in one form, and the errors that end an allocation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from asched.model.resource_claims import (
    CapacityRequirements,
    DeviceClass,
    DeviceRequest,
    DeviceSelector,
    DeviceSubRequest,
    DeviceToleration,
    ExactDeviceRequest,
    ResourceClaimSpec,
)

MAX_DEVICES_PER_CLAIM: Final = 32
"""What the API server accepts in an allocation."""


class ClaimError(Exception):
    """An error that ends the attempt. Its text names the claim if ``claim`` is its index."""

    def __init__(self, text: str, claim: int | None = None, action: str = "") -> None:
        """``action``: what failed, in the words of kube-scheduler."""
        super().__init__(text)
        self.text = text
        self.claim = claim
        self.action = action

    def describe(self, claim_keys: tuple[str, ...]) -> str:
        """The text for claims with these keys."""
        if self.claim is None:
            return self.text
        key = claim_keys[self.claim]
        if self.action:
            return f"{self.action} for claim {key.rpartition('/')[2]}{self.text}"
        return f"claim {key}{self.text}"


@dataclass(frozen=True, slots=True, eq=False)
class RequestedDevices:
    """One request, or one alternative of a request."""

    claim: int
    request: int
    alternative: int
    name: str
    """The name of the request."""
    alternative_name: str
    """The name of the alternative, empty for a request without alternatives."""
    device_class: DeviceClass
    selectors: tuple[DeviceSelector, ...]
    mode: str
    count: int
    admin_access: bool
    tolerations: tuple[DeviceToleration, ...]
    capacity: CapacityRequirements | None

    @property
    def own_name(self) -> str:
        """How errors name the request."""
        return self.alternative_name or self.name

    @property
    def reference(self) -> str:
        """How results name the request."""
        return f"{self.name}/{self.alternative_name}" if self.alternative_name else self.name


def requested_devices(
    spec: ResourceClaimSpec, claim: int, index: int, classes: dict[str, DeviceClass]
) -> tuple[RequestedDevices, ...]:
    """The alternatives of a request in their order. Raises ClaimError."""
    request = spec.devices.requests[index]
    if not request.first_available:
        exactly = request.exactly or ExactDeviceRequest()
        return (_one(request, "", exactly, (claim, index, 0), classes),)
    return tuple(
        _one(request, alternative.name, alternative, (claim, index, position), classes)
        for position, alternative in enumerate(request.first_available)
    )


def _one(
    request: DeviceRequest,
    alternative_name: str,
    wanted: ExactDeviceRequest | DeviceSubRequest,
    position: tuple[int, int, int],
    classes: dict[str, DeviceClass],
) -> RequestedDevices:
    claim, index, alternative = position
    own_name = alternative_name or request.name
    for number, selector in enumerate(wanted.selectors):
        if selector.cel is None:
            raise ClaimError(
                f", request {own_name}, selector #{number}: CEL expression empty"
                " (unsupported selector type?)",
                claim,
            )
    name = wanted.device_class_name
    if not name:
        raise ClaimError(
            f", request {own_name}: missing device class name (unsupported request type?)", claim
        )
    device_class = classes.get(name)
    if device_class is None:
        raise ClaimError(
            f", request {own_name}: could not retrieve device class {name}:"
            f' deviceclass.resource.k8s.io "{name}" not found',
            claim,
        )
    return RequestedDevices(
        claim=claim,
        request=index,
        alternative=alternative,
        name=request.name,
        alternative_name=alternative_name,
        device_class=device_class,
        selectors=wanted.selectors,
        mode=wanted.allocation_mode,
        count=wanted.count,
        admin_access=isinstance(wanted, ExactDeviceRequest) and wanted.admin_access,
        tolerations=wanted.tolerations,
        capacity=wanted.capacity,
    )
