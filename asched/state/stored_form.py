"""Base classes of everything that is stored, and the encoding of large snapshots in small steps.

Each store of the state has a ``snapshot()``: a :class:`StoredForm` of its contents at that moment,
or the steps that create it. It shares only immutable values with the store. An encoding thread
would block the event loop for as long as it holds the interpreter lock, so the caller runs the
encoding on the loop, one step at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from functools import partial
from typing import Any, TypeVar, dataclass_transform

import msgspec

from asched.model.pod import Pod
from asched.state.captures import Capture

_T = TypeVar("_T")

Steps = Generator[None, None, _T]
"""Yields after each step; its return value is the result."""

STEP = 100
"""Items that are encoded in one step: some microseconds each."""

Encode = Callable[[object], bytes]
"""To MessagePack."""

PodNumber = Callable[[Pod], int]
"""The number that a pod has in a checkpoint."""


@dataclass_transform(frozen_default=True, field_specifiers=(msgspec.field,))
class Record(msgspec.Struct, frozen=True, omit_defaults=True, gc=False, tag=True):
    """Base of all records; the tag ``type`` is the class name."""


class PodRecord(Record):
    """Base of the records about one pod."""

    key: str
    uid: str


@dataclass_transform(frozen_default=True)
class StoredForm(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """Base of all parts of a checkpoint. Fields are stored by position: any change needs a new
    :data:`asched.state.checkpoint.FORMAT`."""


def run(steps: Steps[_T]) -> _T:
    """Run all steps and return their result."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: _T = end.value
            return result


def encode_in_steps(snapshot: StoredForm, encode: Encode) -> Steps[list[bytes]]:
    """The same MessagePack bytes as ``encode(snapshot)``, in parts. A field for a tuple may be a
    list or a :class:`Capture`."""
    parts = [_array_header(len(snapshot.__struct_fields__))]
    for name in snapshot.__struct_fields__:
        field = getattr(snapshot, name)
        if isinstance(field, StoredForm):
            parts += yield from encode_in_steps(field, encode)
        elif isinstance(field, tuple | list | Capture):
            parts.append(_array_header(len(field)))
            part = field.part if isinstance(field, Capture) else partial(_slice, field)
            for begin in range(0, len(field), STEP):
                chunk = part(begin, begin + STEP)
                parts.append(encode(chunk)[len(_array_header(len(chunk))) :])
                yield
        else:
            parts.append(encode(field))
    return parts


def _slice(items: Sequence[Any], begin: int, end: int) -> Sequence[Any]:
    return items[begin:end]


def _array_header(length: int) -> bytes:
    """The MessagePack header of an array of that length."""
    if length < 16:
        return bytes((0x90 | length,))
    if length < 1 << 16:
        return b"\xdc" + length.to_bytes(2, "big")
    return b"\xdd" + length.to_bytes(4, "big")
