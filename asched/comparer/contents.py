"""Where the contents of two checkpoints differ: part, object and field. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, NamedTuple

import msgspec

from asched.state.checkpoint import CheckpointContent, StateSnapshot
from asched.state.cluster import PodEntry

_ANSWERS: Final = 1
"""Answers of Permit plugins in ``waiting_pods``. They precede the decision that records them."""


class StateDifference(NamedTuple):
    """A part of the state that another state has in another form."""

    part: str
    """A field of :class:`~asched.state.checkpoint.StateSnapshot`."""
    object: str
    """The key of a pod or object; the position in parts of another kind."""
    field: str
    """The first field that differs, if it has a name."""


def content_differences(
    content: Iterable[bytes], other: Iterable[bytes]
) -> tuple[StateDifference, ...]:
    """The first difference of each part. Numbers are compared by value, so 1 equals 1.0.

    Both are results of :func:`asched.state.checkpoint.encode`.
    """
    one, two = _Decoded(content), _Decoded(other)
    found = []
    for part, value in one.parts.items():
        difference = _first(part, value, two.parts[part], one, two)
        if difference is not None:
            found.append(difference)
    return tuple(found)


class _Decoded:
    """A checkpoint's content in plain values."""

    def __init__(self, content: Iterable[bytes]) -> None:
        form = msgspec.msgpack.decode(b"".join(content), type=CheckpointContent)
        values: list[Any] = msgspec.msgpack.decode(form.state)
        self.parts: dict[str, Any] = dict(zip(StateSnapshot.__struct_fields__, values, strict=True))
        del self.parts["waiting_pods"][_ANSWERS]
        self.parts["pod objects"] = [
            *map(msgspec.to_builtins, form.full_pods),
            *map(msgspec.to_builtins, form.copied_pods),
        ]
        self.parts["templates"] = msgspec.to_builtins(form.templates)
        self._keys = [pod.key for pod in form.full_pods]
        self._copied_keys = [record.key for record in form.copied_pods]

    def pod_key(self, number: int) -> str:
        keys = self._copied_keys if number % 2 else self._keys
        return keys[number // 2]

    def name_of(self, part: str, value: Any, position: int) -> str:
        """The name of an element of a part."""
        if part == "pods":
            return self.pod_key(value[0])
        if isinstance(value, dict):
            metadata = value.get("metadata", {})
            name = "/".join(filter(None, (metadata.get("namespace"), metadata.get("name"))))
            return str(value.get("key") or name or position)
        return str(position)


def _first(
    part: str, value: Any, other: Any, of_value: _Decoded, of_other: _Decoded
) -> StateDifference | None:
    if value == other:
        return None
    if not isinstance(value, list) or not isinstance(other, list):
        return StateDifference(part, "", _field_of(value, other))
    for position, (mine, theirs) in enumerate(zip(value, other, strict=False)):
        if mine != theirs:
            name = of_value.name_of(part, mine, position)
            field = _entry_field(mine, theirs) if part == "pods" else _field_of(mine, theirs)
            return StateDifference(part, name, field)
    longer, decoded = (value, of_value) if len(value) > len(other) else (other, of_other)
    position = min(len(value), len(other))
    return StateDifference(part, decoded.name_of(part, longer[position], position), "")


def _entry_field(mine: list[Any], theirs: list[Any]) -> str:
    pairs = zip(PodEntry.__struct_fields__, mine, theirs, strict=True)
    return next((name for name, one, other in pairs if one != other), "")


def _field_of(mine: object, theirs: object) -> str:
    """The path of the first key that differs in two mappings; empty for other values."""
    path: list[str] = []
    while isinstance(mine, dict) and isinstance(theirs, dict):
        names = sorted({*mine, *theirs})
        name = next((name for name in names if mine.get(name) != theirs.get(name)), "")
        path.append(name)
        mine, theirs = mine.get(name), theirs.get(name)
    return ".".join(path)
