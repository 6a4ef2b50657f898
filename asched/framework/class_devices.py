"""How many devices of a class each node has, and how many are in use, for scores.

As in kube-scheduler 1.36, devices of all slices count, whatever the state of their pool. A node has
none if a selector of the class has an error for one of its devices.

Not part of the public API.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from asched.dra.devices import NodeView, PooledDevice, PoolID
from asched.dra.inventory import Inventory
from asched.framework.nodes import Int64Column, Nodes
from asched.model.resource_claims import DeviceClass


class ClassDevices(NamedTuple):
    """Numbers of devices by row of the cluster's nodes."""

    total: Int64Column
    used: Int64Column


class ClassDeviceCounts:
    """The devices of one class. A change of their use costs as much as the nodes that see them."""

    def __init__(self, inventory: Inventory, class_name: str) -> None:
        self._inventory = inventory
        self._class_name = class_name
        self._version: tuple[int, ...] = ()
        self._position = 0
        self._found = ClassDevices(np.zeros(0, np.int64), np.zeros(0, np.int64))

    def count(self, nodes: Nodes, published: int) -> ClassDevices:
        """The numbers now. ``published`` changes with slices and classes."""
        version = (nodes.version, nodes.size, published)
        log = self._inventory.usage_changes
        if version == self._version and log.position == self._position:
            return self._found
        changed = log.since(self._position)
        self._position = log.position
        rows: Iterable[int] | None = None
        if version == self._version and changed is not None:
            rows = self._rows_of({used.pool_id for used in changed}, nodes)
        if rows is None:
            self._version = version
            total, used = np.zeros(nodes.size, np.int64), np.zeros(nodes.size, np.int64)
            rows = np.flatnonzero(nodes.alive).tolist()
        else:
            total, used = self._found.total.copy(), self._found.used.copy()
        self._found = ClassDevices(total, used)
        device_class = self._inventory.classes.get(self._class_name)
        for row in rows if device_class is not None else ():
            total[row], used[row] = self._count_row(device_class, nodes, row)
        return self._found

    def _rows_of(self, pools: Iterable[PoolID], nodes: Nodes) -> set[int] | None:
        """The rows that see one of the pools; None for all rows."""
        rows: set[int] = set()
        for pool in pools:
            names = self._inventory.nodes_of(pool)
            if names is None:
                return None
            rows.update(row for name in names if (row := nodes.row_of(name)) is not None)
        return rows

    def _count_row(
        self, device_class: DeviceClass | None, nodes: Nodes, row: int
    ) -> tuple[int, int]:
        view = NodeView(nodes.names[row], nodes.node(row).labels)
        total = used = 0
        for device in self._inventory.devices_for(view):
            is_of = self._is_of(device_class, device)
            if is_of is None:
                return 0, 0
            if is_of:
                total += 1
                used += not self._inventory.usage.of(device.pool_id, device.name).is_empty
        return total, used

    def _is_of(self, device_class: DeviceClass | None, device: PooledDevice) -> bool | None:
        """Whether the class selects the device; None if a selector has an error."""
        for each in device_class.spec.selectors if device_class is not None else ():
            if each.cel is not None:
                answer = self._inventory.selectors.answer(each.cel.expression, device)
                if answer.error or not answer.match:
                    return None if answer.error else False
        return device_class is not None
