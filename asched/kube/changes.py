"""What watching the cluster yields."""

from __future__ import annotations

from typing import Protocol

import msgspec

from asched.model.resources import AnyObject, WatchedResource


class Listed(msgspec.Struct, frozen=True, gc=False):
    """Everything that exists of a resource; what the consumer knows beyond it is gone."""

    resource: WatchedResource
    objects: tuple[AnyObject, ...]
    unreadable: frozenset[str] = frozenset()
    """Keys of objects that exist but do not decode. What is known of them is to be kept."""
    generation: int = 0
    """How often its watch had been told to list again, for more than before, when this was asked for."""


class Upserted(msgspec.Struct, frozen=True, gc=False):
    """An object appeared or changed; it is now as given."""

    resource: WatchedResource
    object: AnyObject


class Deleted(msgspec.Struct, frozen=True, gc=False):
    """An object went away, or does not match the watch's selector any more."""

    resource: WatchedResource
    object: AnyObject
    """Its last state; only its metadata where that did not decode."""


Change = Listed | Upserted | Deleted
Batch = tuple[Change, ...]


class ChangeSink(Protocol):
    """Where a watch delivers."""

    def put_changes(self, batch: Batch) -> None:
        """Take a batch; they come in order. It is taken when this returns, so whoever delivers knows
        how far it has got, though it may be cancelled before there is room for more."""

    async def until_room(self) -> None:
        """Wait until more may come: the back-pressure. Watching goes on when it returns."""
