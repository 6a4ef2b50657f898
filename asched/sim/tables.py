"""Server-side tables: the columns that ``kubectl get`` shows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from asched.sim.cells import Column, row_cells
from asched.sim.columns import columns_for, custom_columns
from asched.sim.listing import Page
from asched.sim.rendering import list_meta, partial_metadata
from asched.sim.resources import ResourceType
from asched.sim.store import Stored, encode, watch_line
from asched.sim.watch import WatchEvent

if TYPE_CHECKING:
    from asched.sim.api import ObjectApi

Object = dict[str, Any]


class TableRendering:
    """Writes objects as rows of a meta.k8s.io/v1 Table.

    :param include_object: ``None``, ``Metadata`` or ``Object``: what each row carries along.
    """

    def __init__(self, resource: ResourceType, api: ObjectApi, include_object: str) -> None:
        self._api = api
        self._include = include_object
        self._columns: tuple[Column, ...] = columns_for(resource.storage_key) or _custom(
            api, resource
        )
        self._definitions_sent = False

    def _row(self, stored: Stored) -> Object:
        row: Object = {"cells": row_cells(self._columns, stored.obj, self._api.clock())}
        if self._include == "Object":
            row["object"] = stored.obj
        elif self._include != "None":
            row["object"] = partial_metadata(stored)
        return row

    def _table(self, metadata: Object, items: list[Stored], *, definitions: bool) -> bytes:
        columns = [column.definition() for column in self._columns] if definitions else None
        return encode(
            {
                "kind": "Table",
                "apiVersion": "meta.k8s.io/v1",
                "metadata": metadata,
                "columnDefinitions": columns,
                "rows": [self._row(stored) for stored in items],
            }
        )

    def one(self, stored: Stored) -> bytes:
        metadata = {"resourceVersion": str(stored.rv)}
        return self._table(metadata, [stored], definitions=True)

    def many(self, page: Page) -> bytes:
        return self._table(list_meta(page), page.items, definitions=True)

    def event(self, event: WatchEvent) -> bytes:
        # Only the first event of a watch carries the column definitions.
        first, self._definitions_sent = not self._definitions_sent, True
        metadata = {"resourceVersion": str(event.stored.rv)}
        table = self._table(metadata, [event.stored], definitions=first)
        return watch_line(event.type, table)


def _custom(api: ObjectApi, resource: ResourceType) -> tuple[Column, ...]:
    if not resource.custom:
        return custom_columns([])
    definition = api.find("customresourcedefinitions.apiextensions.k8s.io", "", resource.qualified)
    versions = definition.obj["spec"].get("versions") or [] if definition else []
    for version in versions:
        if version["name"] == resource.version:
            return custom_columns(version.get("additionalPrinterColumns") or [])
    return custom_columns([])
