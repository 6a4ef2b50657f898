"""Devices of the tests."""

from __future__ import annotations

from asched.cel import DeviceView, Version, compile_selector

GPU = DeviceView(
    driver="gpu.example.com",
    attributes={
        "model": "a100",
        "index": 3,
        "ecc": True,
        "driverVersion": Version.parse("2.1.0"),
        "other.example.com/name": "Foo",
    },
    capacity={"memory": "40Gi", "cores": "108", "share": "1500m"},
    allow_multiple_allocations=False,
)


def matches(expression: str, device: DeviceView = GPU) -> bool:
    """Whether the expression selects the device."""
    return compile_selector(expression).matches(device)
