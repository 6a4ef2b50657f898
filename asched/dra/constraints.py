"""Constraints over the devices of a claim, with the bookkeeping of kube-scheduler 1.36.

The devices that a search adds and removes change a constraint's state. For ``distinctAttribute``
that state holds one value per request, so after several devices of a request, or after a removal,
it knows less than the devices that are allocated.
"""

from __future__ import annotations

from asched.model.resource_claims import Device, DeviceAttribute, DeviceConstraint

AttributeValue = tuple[str, int | bool | str]
"""A type and a value of that type."""


def attribute_value(device: Device, driver: str, name: str) -> AttributeValue | None:
    """The value of a fully qualified attribute of a device, None if the device lacks it."""
    attribute = device.attributes.get(name)
    if attribute is None:
        domain, slash, identifier = name.partition("/")
        if slash and domain == driver:
            attribute = device.attributes.get(identifier)
    return None if attribute is None else _typed_value(attribute)


def _typed_value(attribute: DeviceAttribute) -> AttributeValue | None:
    if attribute.string is not None:
        return ("string", attribute.string)
    if attribute.integer is not None:
        return ("int", attribute.integer)
    if attribute.boolean is not None:
        return ("bool", attribute.boolean)
    if attribute.version is not None:
        return ("version", attribute.version)
    return ("unknown", "")


class _RequestScope:
    """The requests that a constraint applies to."""

    def __init__(self, requests: tuple[str, ...], attribute: str) -> None:
        self._requests = frozenset(requests)
        self._attribute = attribute

    @property
    def attribute(self) -> str:
        return self._attribute

    def applies_to(self, request: str, alternative: str) -> bool:
        return (
            not self._requests
            or request in self._requests
            or (bool(alternative) and f"{request}/{alternative}" in self._requests)
        )


class MatchAttribute(_RequestScope):
    """All devices have the same value."""

    def __init__(self, requests: tuple[str, ...], attribute: str) -> None:
        super().__init__(requests, attribute)
        self._value: AttributeValue | None = None
        self._devices = 0

    @property
    def common_value(self) -> AttributeValue | None:
        """The value of all devices; None if there are none yet."""
        return self._value if self._devices > 0 else None

    def add(self, request: str, alternative: str, value: AttributeValue | None) -> bool:
        if not self.applies_to(request, alternative):
            return True
        if value is None:
            return False
        if self._devices == 0:
            self._value = value
        elif value[0] == "unknown" or value != self._value:
            return False
        self._devices += 1
        return True

    def remove(self, request: str, alternative: str) -> None:
        if self.applies_to(request, alternative):
            self._devices -= 1


class DistinctAttribute(_RequestScope):
    """The latest devices of the requests have different values."""

    def __init__(self, requests: tuple[str, ...], attribute: str) -> None:
        super().__init__(requests, attribute)
        self._values: dict[str, AttributeValue] = {}
        self._devices = 0

    def add(self, request: str, alternative: str, value: AttributeValue | None) -> bool:
        if not self.applies_to(request, alternative):
            return True
        if value is None:
            return False
        if self._devices > 0 and not self._is_new(value):
            return False
        self._values[request] = value
        self._devices += 1
        return True

    def _is_new(self, value: AttributeValue) -> bool:
        # Values of a type that is not supported equal all others, as in kube-scheduler.
        if value[0] == "unknown":
            return not self._values
        return value not in self._values.values()

    def remove(self, request: str, alternative: str) -> None:
        if self.applies_to(request, alternative):
            self._values.pop(request, None)
            self._devices -= 1


def constraint_state(constraint: DeviceConstraint) -> MatchAttribute | DistinctAttribute | None:
    """The state of a constraint before a search; None if the kind of constraint is unknown."""
    if constraint.match_attribute is not None:
        return MatchAttribute(constraint.requests, constraint.match_attribute)
    if constraint.distinct_attribute is not None:
        return DistinctAttribute(constraint.requests, constraint.distinct_attribute)
    return None
