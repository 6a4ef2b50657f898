"""What selectors of devices may use: functions, names of types, and fields of a device."""

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
