"""Inputs of the core: changes of the cluster, and outcomes of effects."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

import msgspec

from asched.model.resources import AnyObject, WatchedResource
from asched.state import records as r
from asched.state import session_records as sr


class Listed(msgspec.Struct, frozen=True, gc=False):
    """All objects of a resource, or the next part of them. Known objects that are in no part of a
    list were deleted."""

    resource: WatchedResource
    objects: tuple[AnyObject, ...]
    unreadable: frozenset[str] = frozenset()
    """Keys of objects that exist but cannot be decoded. Their last known state is kept."""
    relist_count: int = 0
    """Number of requested relists of the watch when this list was requested."""
    api_version: str = ""
    """``group/version`` of the list, for a resource with several known versions."""
    begins: bool = True
    """Whether it is the first part of a list. A list that did not end is replaced by it."""
    ends: bool = True
    """Whether it is the last part."""
    versions: tuple[int, ...] = ()
    """The version of each object, 0 if unknown; empty if none is known."""
    unchanged: tuple[tuple[str, str], ...] = ()
    """Key and uid of listed objects that the state contains as they are."""


class Upserted(msgspec.Struct, frozen=True, gc=False):
    """An object was created or updated."""

    resource: WatchedResource
    object: AnyObject
    version: int = 0
    """Its ``resourceVersion``; 0 if unknown."""


class Deleted(msgspec.Struct, frozen=True, gc=False):
    """An object was deleted, or no longer matches the selector of the watch."""

    resource: WatchedResource
    object: AnyObject
    """Its last state; only its metadata if that could not be decoded."""


def sync_problem(unsynced: Iterable[WatchedResource]) -> str:
    """Why nothing is decided yet: the resources that are not listed; empty if all are."""
    missing = ", ".join(sorted(resource.label for resource in unsynced))
    return f"not listed yet: {missing}" if missing else ""


Change = Listed | Upserted | Deleted
Batch = tuple[Change, ...]

Outcome = (
    r.Bound
    | r.BindFailed
    | r.EvictionSucceeded
    | r.EvictionFailed
    | r.ClaimReleaseEnded
    | r.ExtenderAnswer
    | sr.PodGroupStatusWritten
    | sr.PodGroupStatusWriteFailed
    | sr.SessionsLoaded
    | r.LeadershipGained
    | r.LeadershipLost
)
"""Result of an effect, or a change of the daemon's own situation; recorded unchanged."""


class ChangeSink(Protocol):
    """Destination of the changes of a watch."""

    def put_changes(self, batch: Batch) -> None:
        """Accept a batch. Batches arrive in order."""

    async def wait_for_capacity(self) -> None:
        """Return when the sink accepts more: the back-pressure for watches."""
