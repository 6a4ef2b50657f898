"""Comparison of two cluster states."""

from __future__ import annotations

import zlib
from typing import Any

import msgspec

from asched.state.checkpoint import CheckpointContent, StateSnapshot, checkpoint_of
from asched.state.cluster import ClusterState
from tests.state.description import describe

_AROUND = 80


def plain(state: ClusterState) -> dict[str, Any]:
    """The contents of a state's checkpoint as plain values; 1 and 1.0 are equal.

    A separate description covers parts that a checkpoint should contain but lacks.
    """
    _, _, packed = checkpoint_of(state).partition(b"\n")
    form = msgspec.msgpack.decode(zlib.decompress(packed), type=CheckpointContent)
    values = msgspec.msgpack.decode(form.state)
    found = dict(zip(StateSnapshot.__struct_fields__, values, strict=True))
    found |= {
        "templates": form.templates,
        "full pods": form.full_pods,
        "copied pods": form.copied_pods,
    }
    return found | {f"described {part}": value for part, value in describe(state).items()}


def differences(mine: ClusterState, theirs: ClusterState) -> str:
    """The parts that differ, with an excerpt at the first difference of each."""
    ours, others = plain(mine), plain(theirs)
    found = []
    for part in ours.keys() | others.keys():
        if ours.get(part) != others.get(part):
            one, other = repr(ours.get(part)), repr(others.get(part))
            at = next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), 0)
            cut = slice(max(0, at - _AROUND), at + _AROUND)
            found.append(f"{part}: {one[cut]} against {other[cut]}")
    return "; ".join(sorted(found))
