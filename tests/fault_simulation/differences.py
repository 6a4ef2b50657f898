"""Whether two states are the same, and in what they differ."""

from __future__ import annotations

import zlib
from operator import itemgetter
from typing import Any

import msgspec

from asched.state.checkpoint import checkpoint_of
from asched.state.checkpoint_form import StateForm
from asched.state.cluster import ClusterState
from tests.state.description import describe

_AROUND = 80


def plain(state: ClusterState) -> dict[str, Any]:
    """A state as a checkpoint would have it, as plain values to be compared. In a journal 1 and 1.0 are
    the same number, so they are here.

    The order of objects counts within a kind only: a kind of which there was none for a while may come
    later than it would have, and nobody goes through all kinds. What a checkpoint should have, but lacks,
    is told by a description that knows nothing of checkpoints.
    """
    _, _, packed = checkpoint_of(state).partition(b"\n")
    found = msgspec.msgpack.decode(zlib.decompress(packed))
    if not isinstance(found, dict):
        found = dict(zip(StateForm.__struct_fields__, found, strict=False))
    found["objects"] = sorted(found["objects"], key=itemgetter("kind"))
    return found | {f"described {part}": value for part, value in describe(state).items()}


def differences(mine: ClusterState, theirs: ClusterState) -> str:
    """Which parts are not alike, and what is there where each begins to differ."""
    ours, others = plain(mine), plain(theirs)
    found = []
    for part in ours.keys() | others.keys():
        if ours.get(part) != others.get(part):
            one, other = repr(ours.get(part)), repr(others.get(part))
            at = next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), 0)
            cut = slice(max(0, at - _AROUND), at + _AROUND)
            found.append(f"{part}: {one[cut]} against {other[cut]}")
    return "; ".join(sorted(found))
