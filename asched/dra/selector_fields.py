"""Which attributes and capacities an expression reads, so that devices can share its answers.

Most selectors name what they read, as in ``device.attributes["gpu.example.com"].model``. Devices
that differ elsewhere, for example in a serial number, then have the same answer.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from asched.model.resource_claims import Device

MAX_FIELDS: Final = 16
"""Looking up more fields of a device takes longer than its own evaluation."""
_DEVICE: Final = re.compile(r"\bdevice\b")
_FIELD: Final = re.compile(
    r"""\bdevice\s*\.\s*(?:
        (?P<plain>driver|allowMultipleAllocations)\b(?!\s*[.\[(])
        |(?P<map>attributes|capacity)\s*
        \[\s*(?:"(?P<domain>[^"\\]*)"|'(?P<domain2>[^'\\]*)'|device\s*\.\s*driver)\s*\]\s*
        \.\s*(?P<id>[A-Za-z_][A-Za-z0-9_]*)\b(?!\s*\()
    )""",
    re.VERBOSE,
)


class _Field(NamedTuple):
    domain: str | None
    """None for the domain of the driver."""
    identifier: str

    def names(self, driver: str) -> tuple[str, ...]:
        """The names under which a device may have the field."""
        domain = driver if self.domain is None else self.domain
        full = f"{domain}/{self.identifier}"
        return (full, self.identifier) if domain == driver else (full,)


class SelectorFields(NamedTuple):
    """The attributes and capacities that an expression reads."""

    attributes: tuple[_Field, ...]
    capacity: tuple[_Field, ...]

    def project(self, driver: str, device: Device) -> Device:
        """The device with nothing but what the expression reads."""
        return Device(
            attributes={
                name: device.attributes[name]
                for field in self.attributes
                for name in field.names(driver)
                if name in device.attributes
            },
            capacity={
                name: device.capacity[name]
                for field in self.capacity
                for name in field.names(driver)
                if name in device.capacity
            },
            allow_multiple_allocations=device.allow_multiple_allocations,
        )


def selector_fields(expression: str) -> SelectorFields | None:
    """What an expression reads; None unless every use of ``device`` names one of a few fields."""
    read: dict[str, dict[_Field, None]] = {"attributes": {}, "capacity": {}}
    covered = 0
    for match in _FIELD.finditer(expression):
        covered += len(_DEVICE.findall(match[0]))
        if match["map"]:
            domain = match["domain"] if match["domain"] is not None else match["domain2"]
            read[match["map"]][_Field(domain, match["id"])] = None
    if covered != len(_DEVICE.findall(expression)):
        return None
    if len(read["attributes"]) + len(read["capacity"]) > MAX_FIELDS:
        return None
    return SelectorFields(tuple(read["attributes"]), tuple(read["capacity"]))
