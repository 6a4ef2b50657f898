"""The site of each node, kept up to date as nodes and slices change."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from asched.dra.devices import NodeView, PoolID
from asched.dra.inventory import Inventory
from asched.dra.pools import PoolView
from asched.dra.sites import Site
from asched.dra.usage import UsedDevice
from asched.model.node import Node

Indexes = NDArray[np.int32]


class NodeRows(Protocol):
    """The nodes of the cluster by row. A row without a name is empty."""

    @property
    def names(self) -> Sequence[str]: ...

    @property
    def version(self) -> int:
        """Changes if a node is added or removed, or its labels change."""
        ...

    def node(self, row: int) -> Node: ...


_NO_LABELS: Mapping[str, str] = {}


class SiteTable:
    """Rows and their sites. Every site has an index, which stays while the site exists."""

    def __init__(self, inventory: Inventory) -> None:
        self._inventory = inventory
        self._names: list[str] = []
        self._labels: list[Mapping[str, str]] = []
        self._rows: dict[str, int] = {}
        self._version: int | None = None
        self._position = 0
        self._by_pools: dict[tuple[int, ...], int] = {}
        self._of_pool: dict[PoolID, set[int]] = {}
        self._members: list[dict[int, None]] = []
        """The rows of each site."""
        self.sites: list[Site] = []
        """By index. A site without rows is never searched."""
        self.epoch = 0
        """Changes when indexes are assigned anew."""
        self.of_row: Indexes = np.zeros(0, np.int32)
        """The index of each row's site."""

    def refresh(self, nodes: NodeRows) -> None:
        """Take over what changed in nodes and slices."""
        dirty: set[int] = set()
        if nodes.version != self._version or len(nodes.names) != len(self._names):
            dirty |= self._read_nodes(nodes)
            self._version = nodes.version
        dirty |= self._rows_of_changed_pools()
        if dirty:
            self._assign(sorted(dirty))
        if len(self.sites) > 2 * len(self._names) + 64:
            self._start_over()

    def sites_using(self, used: UsedDevice) -> Iterator[tuple[int, PoolView, int]]:
        """The sites on which the use of a device may matter, with its pool and its position.

        The position is -1 if the device is not for these nodes, but consumes their counters.
        """
        for index in self._of_pool.get(used.pool_id, ()):
            for pool in self.sites[index].pools:
                if pool.pool_id == used.pool_id:
                    position = pool.positions.get(used.device, -1)
                    if position >= 0 or pool.counters:
                        yield index, pool, position

    def first_name(self, index: int) -> str:
        """The first of the names of a site's nodes."""
        return min((self._names[row] for row in self._members[index]), default="")

    def _read_nodes(self, nodes: NodeRows) -> set[int]:
        names = nodes.names
        missing = len(names) - len(self._names)
        if missing < 0:
            self._clear()
            missing = len(names)
        self._names += [""] * missing
        self._labels += [_NO_LABELS] * missing
        self.of_row = np.concatenate((self.of_row, np.full(missing, -1, np.int32)))
        dirty: set[int] = set()
        for row, name in enumerate(names):
            labels = nodes.node(row).labels if name else _NO_LABELS
            if name == self._names[row] and (
                labels is self._labels[row] or labels == self._labels[row]
            ):
                continue
            dirty.add(row)
            if self._rows.get(self._names[row]) == row:
                del self._rows[self._names[row]]
            self._names[row], self._labels[row] = name, labels
            if name:
                self._rows[name] = row
        return dirty

    def _rows_of_changed_pools(self) -> set[int]:
        log = self._inventory.slice_changes
        if log.position == self._position:
            return set()
        changes = log.since(self._position)
        self._position = log.position
        every = {row for row, name in enumerate(self._names) if name}
        if changes is None:
            return every
        dirty: set[int] = set()
        for change in changes:
            names = self._inventory.nodes_of(change.pool_id)
            if not change.node_name or names is None:
                return every
            dirty.update(
                row
                for name in (*names, change.node_name)
                if (row := self._rows.get(name)) is not None
            )
        return dirty

    def _assign(self, rows: Iterable[int]) -> None:
        for row in rows:
            before = int(self.of_row[row])
            after = self._site(row) if self._names[row] else -1
            if before == after:
                continue
            if before >= 0:
                self._members[before].pop(row, None)
                if not self._members[before]:
                    self._drop(before)
            if after >= 0:
                self._members[after][row] = None
            self.of_row[row] = after

    def _site(self, row: int) -> int:
        node = NodeView(self._names[row], self._labels[row])
        pools = self._inventory.pools_of(node)
        key = tuple(pool.serial for pool in pools)
        index = self._by_pools.get(key)
        if index is None:
            index = self._by_pools[key] = len(self.sites)
            self.sites.append(Site(pools))
            self._members.append({})
            for pool in pools:
                self._of_pool.setdefault(pool.pool_id, set()).add(index)
        return index

    def _drop(self, index: int) -> None:
        pools = self.sites[index].pools
        self._by_pools.pop(tuple(pool.serial for pool in pools), None)
        for pool in pools:
            of_pool = self._of_pool[pool.pool_id]
            of_pool.discard(index)
            if not of_pool:
                del self._of_pool[pool.pool_id]
        self.sites[index] = Site(())

    def _clear(self) -> None:
        self._names, self._labels, self._rows = [], [], {}
        self._by_pools, self._of_pool, self._members, self.sites = {}, {}, [], []
        self.of_row = np.zeros(0, np.int32)
        self.epoch += 1

    def _start_over(self) -> None:
        names, labels = self._names, self._labels
        self._clear()
        self._names, self._labels = names, labels
        self._rows = {name: row for row, name in enumerate(names) if name}
        self.of_row = np.full(len(names), -1, np.int32)
        self._assign(self._rows.values())
