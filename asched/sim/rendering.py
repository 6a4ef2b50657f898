"""How objects are written into answers: whole, as metadata only, or as tables."""

from __future__ import annotations

from typing import Any, Protocol

from asched.sim.listing import Page
from asched.sim.resources import ResourceType
from asched.sim.store import Stored, View, encode, watch_line
from asched.sim.watch import WatchEvent

Object = dict[str, Any]


class Rendering(Protocol):
    """Writes objects, lists and watch events in the form a client asked for."""

    def one(self, stored: Stored) -> bytes: ...

    def many(self, page: Page) -> bytes: ...

    def event(self, event: WatchEvent) -> bytes: ...


def list_meta(page: Page) -> Object:
    meta: Object = {"resourceVersion": str(page.rv)}
    if page.continue_token:
        meta["continue"] = page.continue_token
    if page.remaining is not None:
        meta["remainingItemCount"] = page.remaining
    return meta


class WholeObjects:
    """Objects as they are: bytes that were encoded when they were written."""

    def __init__(self, resource: ResourceType, view: View | None) -> None:
        self._resource = resource
        self._view = view
        # Items of a built-in type's list bear no kind and apiVersion; custom resources' do.
        prefix = encode({"kind": resource.kind, "apiVersion": resource.group_version})
        self._skipped = 0 if resource.custom else len(prefix)

    def one(self, stored: Stored) -> bytes:
        return stored.encoded_as(self._view)

    def many(self, page: Page) -> bytes:
        head = encode(
            {
                "kind": self._resource.kind_of_list,
                "apiVersion": self._resource.group_version,
                "metadata": list_meta(page),
            }
        )
        view, skipped = self._view, self._skipped
        if skipped:
            items = b",".join([b"{" + item.encoded_as(view)[skipped:] for item in page.items])
        else:
            items = b",".join([item.encoded_as(view) for item in page.items])
        return b'%b,"items":[%b]}\n' % (head[:-1], items)

    def event(self, event: WatchEvent) -> bytes:
        return event.line(self._view)


def partial_metadata(stored: Stored) -> Object:
    return {
        "kind": "PartialObjectMetadata",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": stored.obj["metadata"],
    }


class MetadataOnly:
    """PartialObjectMetadata: what garbage collectors and metadata informers ask for."""

    def one(self, stored: Stored) -> bytes:
        return encode(partial_metadata(stored))

    def many(self, page: Page) -> bytes:
        return encode(
            {
                "kind": "PartialObjectMetadataList",
                "apiVersion": "meta.k8s.io/v1",
                "metadata": list_meta(page),
                "items": [partial_metadata(stored) for stored in page.items],
            }
        )

    def event(self, event: WatchEvent) -> bytes:
        return watch_line(event.type, encode(partial_metadata(event.stored)))
