"""Whether two states are the same, and in what they differ."""

from __future__ import annotations

import zlib
from typing import Any

import msgspec

from asched.state.checkpoint import checkpoint_of, image_of_state
from asched.state.cluster import ClusterState


def plain(state: ClusterState) -> Any:
    """A state as a checkpoint would have it, as plain values to be compared. In a journal 1 and 1.0 are
    the same number, so they are here."""
    _, _, packed = checkpoint_of(state).partition(b"\n")
    return msgspec.msgpack.decode(zlib.decompress(packed))


def differences(mine: ClusterState, theirs: ClusterState) -> str:
    """The parts of their images that are not alike, and the first few words of each."""
    ours, others = image_of_state(mine), image_of_state(theirs)
    found = []
    for field in ours._fields:
        one, other = repr(getattr(ours, field)), repr(getattr(others, field))
        if one != other:
            at = next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), 0)
            start = max(0, at - 60)
            found.append(f"{field}: {one[start : at + 80]!r} against {other[start : at + 80]!r}")
    return "; ".join(found)
