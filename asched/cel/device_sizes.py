"""Greatest sizes of what is reachable from the variable ``device``, by path."""

from __future__ import annotations

from asched.cel.environment import (
    DEVICE_VARIABLE,
    MAX_ATTRIBUTE_SIZE,
    MAX_DOMAIN_SIZE,
    MAX_DRIVER_SIZE,
    MAX_ENTRIES,
    MAX_ID_SIZE,
)

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
