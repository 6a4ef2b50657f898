"""What selectors may use: functions, names of types, and fields of a device with their sizes."""

from __future__ import annotations

from typing import Final

from asched.cel import (
    conversion_library,
    kubernetes_library,
    list_library,
    standard_library,
    string_library,
)
from asched.cel import types as t
from asched.cel.functions import Function, Library
from asched.cel.types import CelType

DEVICE_VARIABLE: Final = "device"
MAX_DOMAIN_SIZE: Final = 63
MAX_ID_SIZE: Final = 32
MAX_DRIVER_SIZE: Final = 63
MAX_ATTRIBUTE_SIZE: Final = 64
MAX_ENTRIES: Final = 32

_ATTRIBUTES: Final = t.map_of(t.STRING, t.map_of(t.STRING, t.ANY))
_CAPACITY: Final = t.map_of(t.STRING, t.map_of(t.STRING, t.QUANTITY))
DEVICE_FIELDS: Final[dict[str, CelType]] = {
    "driver": t.STRING,
    "allowMultipleAllocations": t.BOOL,
    "attributes": _ATTRIBUTES,
    "capacity": _CAPACITY,
}
TYPE_NAMES: Final[dict[str, CelType]] = {
    each.name: each
    for each in (
        t.BOOL,
        t.BYTES,
        t.DOUBLE,
        t.DURATION,
        t.INT,
        t.NULL,
        t.STRING,
        t.TIMESTAMP,
        t.UINT,
        t.IP,
        t.CIDR,
        t.TYPE,
        t.list_of(t.DYN),
        t.map_of(t.DYN, t.DYN),
        t.optional_of(t.DYN),
    )
}


def _functions() -> dict[str, Function]:
    library = Library()
    standard_library.declare(library)
    conversion_library.declare(library)
    string_library.declare(library)
    list_library.declare(library)
    kubernetes_library.declare(library)
    return library.functions


FUNCTIONS: Final = _functions()


_FIELDS = {"driver": MAX_DRIVER_SIZE, "allowMultipleAllocations": 1}
_VALUES = {"attributes": MAX_ATTRIBUTE_SIZE, "capacity": 0}


def max_size(path: tuple[str, ...]) -> int | None:
    """The greatest size, or None if the API does not limit it."""
    if not path or path[0] != DEVICE_VARIABLE:
        return None
    if len(path) == 1:
        return 0
    if path[1] in _FIELDS:
        return _FIELDS[path[1]] if len(path) == 2 else None
    if path[1] not in _VALUES:
        return None
    return _size_in_maps(path[2:], _VALUES[path[1]], is_any=path[1] == "attributes")


def _size_in_maps(path: tuple[str, ...], value_size: int, *, is_any: bool) -> int | None:
    if not path:
        return MAX_ENTRIES
    if path[0] == "@keys":
        return MAX_DOMAIN_SIZE if len(path) == 1 else None
    if path[0] not in ("@values", "@items"):
        return None
    if len(path) == 1:
        return MAX_ENTRIES
    if path[1] == "@keys":
        return MAX_ID_SIZE if len(path) == 2 else None
    is_value = path[1] in ("@values", "@items")
    # A capacity that is selected by name has no known size.
    if len(path) > 2 or not (is_value or is_any):
        return None
    return value_size
