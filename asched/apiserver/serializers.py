"""Response serializers: whole objects, metadata only, or the tables of ``kubectl get``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from asched.apiserver.errors import Object
from asched.apiserver.listing import ServedListPage
from asched.apiserver.printer_columns import Column, custom_columns
from asched.apiserver.printers import table_columns
from asched.apiserver.resources import ServedResource
from asched.apiserver.storage import ServedWatchEvent, StoredObject, View, encode, watch_line

if TYPE_CHECKING:
    from asched.apiserver.api import ObjectApi


class Serializer(Protocol):
    """Encodes objects, lists and watch events in the representation that a client accepts."""

    def one(self, stored: StoredObject) -> bytes: ...

    def many(self, page: ServedListPage) -> bytes: ...

    def event(self, event: ServedWatchEvent) -> bytes:
        return watch_line(event.type, self.one(event.stored))


def _list_meta(page: ServedListPage) -> Object:
    meta: Object = {"resourceVersion": str(page.rv)}
    if page.continue_token:
        meta["continue"] = page.continue_token
    if page.remaining is not None:
        meta["remainingItemCount"] = page.remaining
    return meta


class ObjectSerializer(Serializer):
    """Whole objects, from the bytes that were encoded at the write."""

    def __init__(self, resource: ServedResource, view: View | None) -> None:
        self._resource = resource
        self._view = view
        # List items of built-in types have no kind and apiVersion; those of custom resources do.
        prefix = encode({"kind": resource.kind, "apiVersion": resource.group_version})
        self._skipped = 0 if resource.custom else len(prefix)

    def one(self, stored: StoredObject) -> bytes:
        return stored.encoded(self._view)

    def many(self, page: ServedListPage) -> bytes:
        head = encode(
            {
                "kind": self._resource.kind_of_list,
                "apiVersion": self._resource.group_version,
                "metadata": _list_meta(page),
            }
        )
        view, skipped = self._view, self._skipped
        if skipped:
            items = b",".join([b"{" + item.encoded(view)[skipped:] for item in page.items])
        else:
            items = b",".join([item.encoded(view) for item in page.items])
        return b'%b,"items":[%b]}\n' % (head[:-1], items)

    def event(self, event: ServedWatchEvent) -> bytes:
        return event.line(self._view)


def _partial_metadata(stored: StoredObject) -> Object:
    return {
        "kind": "PartialObjectMetadata",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": stored.obj["metadata"],
    }


class PartialMetadataSerializer(Serializer):
    """PartialObjectMetadata, as metadata informers request it."""

    def one(self, stored: StoredObject) -> bytes:
        return encode(_partial_metadata(stored))

    def many(self, page: ServedListPage) -> bytes:
        return encode(
            {
                "kind": "PartialObjectMetadataList",
                "apiVersion": "meta.k8s.io/v1",
                "metadata": _list_meta(page),
                "items": [_partial_metadata(stored) for stored in page.items],
            }
        )


class TableSerializer(Serializer):
    """Objects as rows of a meta.k8s.io/v1 Table. ``include_object``: ``None``, ``Metadata`` or
    ``Object``, what each row contains of its object."""

    def __init__(self, resource: ServedResource, api: ObjectApi, include_object: str) -> None:
        self._api = api
        self._include = include_object
        self._columns = table_columns(resource.storage_key) or _custom(api, resource)
        self._definitions_sent = False

    def _row(self, stored: StoredObject) -> Object:
        now_s = self._api.clock()
        row: Object = {"cells": [column.cell(stored.obj, now_s) for column in self._columns]}
        if self._include == "Object":
            row["object"] = stored.obj
        elif self._include != "None":
            row["object"] = _partial_metadata(stored)
        return row

    def _table(self, metadata: Object, items: list[StoredObject]) -> bytes:
        # Only the first event of a watch has the column definitions.
        first, self._definitions_sent = not self._definitions_sent, True
        columns = [column.definition() for column in self._columns] if first else None
        return encode(
            {
                "kind": "Table",
                "apiVersion": "meta.k8s.io/v1",
                "metadata": metadata,
                "columnDefinitions": columns,
                "rows": [self._row(stored) for stored in items],
            }
        )

    def one(self, stored: StoredObject) -> bytes:
        return self._table({"resourceVersion": str(stored.rv)}, [stored])

    def many(self, page: ServedListPage) -> bytes:
        return self._table(_list_meta(page), page.items)


def _custom(api: ObjectApi, resource: ServedResource) -> tuple[Column, ...]:
    definition = api.find("customresourcedefinitions.apiextensions.k8s.io", "", resource.qualified)
    versions = definition.obj["spec"].get("versions") or [] if definition else []
    version: Object = next((v for v in versions if v["name"] == resource.version), {})
    return custom_columns(version.get("additionalPrinterColumns") or [])
