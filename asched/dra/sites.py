"""Sites, which are the pools that a node sees, and the site of each node.

Nodes that see the same pools share a site. The table is kept up to date as nodes and slices change.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from asched.dra.constraints import AttributeValue, attribute_value
from asched.dra.devices import NodeView, PoolID, Usage, UsedDevice
from asched.dra.inventory import Inventory
from asched.dra.pools import Bits, PoolView
from asched.model.node import Node


def _order(pool: PoolView) -> tuple[bool, PoolID]:
    return pool.order


class SiteUse(NamedTuple):
    """What is in use of the candidates of a site."""

    whole: Bits
    """Those that are allocated as a whole."""
    shares: tuple[tuple[int, int], ...]
    """Positions of those with shares in use, with :meth:`Usage.share_number`."""


class Site:
    """The devices that some nodes see, in the order in which they are tried.

    Devices of incomplete and invalid pools are not among the candidates.
    """

    __slots__ = (
        "_shares",
        "_starts",
        "_usage",
        "_use",
        "_values",
        "_version",
        "_whole",
        "candidates",
        "counting",
        "elsewhere",
        "is_numbered",
        "kind",
        "pools",
    )

    def __init__(self, pools: Sequence[PoolView]) -> None:
        self.pools = tuple(pools)
        self.candidates = [
            candidate for pool in pools if pool.usable for candidate in pool.candidates
        ]
        self.elsewhere: Bits = 0
        """The candidates that are not for these nodes."""
        for offset, pool in self.offsets():
            self.elsewhere |= pool.elsewhere << offset
        self.counting: Bits = sum(
            1 << position
            for position, candidate in enumerate(self.candidates)
            if candidate.device.counters
        )
        """The candidates that consume counters."""
        self.kind: int | None = None
        """Equal for sites that are alike (:mod:`asched.dra.like_sites`)."""
        self.is_numbered = False
        """Whether the kind is known."""
        self._starts = array("I", [0])
        """The position of the first device of each pool."""
        for pool in self.pools:
            self._starts.append(self._starts[-1] + len(pool.candidates))
        self._usage: Usage | None = None
        self._version = 0
        """Of the usage."""
        self._whole: Bits = 0
        self._shares: dict[int, int] = {}
        self._use = SiteUse(0, ())
        self._values: dict[str, dict[AttributeValue, Bits]] = {}

    def offsets(self) -> Iterator[tuple[int, PoolView]]:
        """The usable pools, with the position of their first device."""
        offset = 0
        for pool in self.pools:
            if pool.usable:
                yield offset, pool
                offset += len(pool.devices)

    @property
    def has_invalid_pool(self) -> bool:
        return any(pool.invalid for pool in self.pools)

    def in_use(self, usage: Usage) -> Bits:
        """The candidates that are allocated as a whole."""
        return self.use(usage).whole

    def use(self, usage: Usage) -> SiteUse:
        """What is in use of the candidates."""
        if self._usage is usage and self._version == usage.version:
            return self._use
        changed: Sequence[int] = range(len(self.pools))
        if self._usage is usage:
            pools = list(islice(usage.changed_since(self._version), len(changed)))
            if len(pools) < len(changed):
                indexes = map(self._index_of, pools)
                changed = [index for index in indexes if index is not None]
        self._usage, self._version = usage, usage.version
        for index in changed:
            self._count_use(index, usage)
        if changed:
            self._use = SiteUse(self._whole, tuple(sorted(self._shares.items())))
        return self._use

    def find(self, pool_id: PoolID) -> PoolView | None:
        """The site's view of a pool, if it has one."""
        index = self._index_of(pool_id)
        return None if index is None else self.pools[index]

    def _index_of(self, pool_id: PoolID) -> int | None:
        for has_conditions in (False, True):
            key = (has_conditions, pool_id)
            index = bisect_left(self.pools, key, key=_order)
            if index < len(self.pools) and self.pools[index].pool_id == pool_id:
                return index
        return None

    def _count_use(self, index: int, usage: Usage) -> None:
        start, end = self._starts[index], self._starts[index + 1]
        self._whole &= ~(((1 << end - start) - 1) << start)
        if self._shares:
            for position in range(start, end):
                self._shares.pop(position, None)
        pool = self.pools[index]
        for name, use in usage.devices(pool.pool_id).items():
            position = pool.positions.get(name, -1)
            if position >= 0:
                if use.exclusive:
                    self._whole |= 1 << (start + position)
                if use.shares:
                    self._shares[start + position] = usage.share_number(use)

    def with_value(self, attribute: str, value: AttributeValue) -> Bits:
        """The candidates with this value of an attribute."""
        values = self._values.get(attribute)
        if values is None:
            values = self._values[attribute] = self._values_of(attribute)
        return values.get(value, 0)

    def values(self, attribute: str) -> dict[AttributeValue, Bits]:
        """The candidates by their value of an attribute."""
        self.with_value(attribute, ("", ""))
        return self._values[attribute]

    def _values_of(self, attribute: str) -> dict[AttributeValue, Bits]:
        values: dict[AttributeValue, Bits] = {}
        for position, candidate in enumerate(self.candidates):
            device = candidate.device
            value = attribute_value(device.device, device.driver, attribute)
            if value is not None:
                values[value] = values.get(value, 0) | 1 << position
        return values


Indexes = NDArray[np.int32]


class SiteNodes(Protocol):
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
    """The site of each row. A site keeps its index while nodes see it."""

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
        """Changes when all indexes are assigned again."""
        self.of_row: Indexes = np.zeros(0, np.int32)
        """The index of each row's site."""
        self._order: Indexes | None = None
        """All sites by :meth:`first_name`; None if they changed."""

    def refresh(self, nodes: SiteNodes) -> None:
        """Apply changes of nodes and slices since the last call."""
        dirty: set[int] = set()
        if nodes.version != self._version or len(nodes.names) != len(self._names):
            dirty |= self._read_nodes(nodes)
            self._version = nodes.version
        dirty |= self._rows_of_changed_pools()
        if dirty:
            self._order = None
            self._assign(sorted(dirty))
        if len(self.sites) > 2 * len(self._names) + 64:
            self._start_over()

    def of_rows(self, rows: Indexes | None = None) -> Indexes:
        """The indexes of the sites of these rows, or of all, in order and each once."""
        is_asked = np.zeros(len(self.sites) + 1, np.bool_)
        is_asked[self.of_row if rows is None else self.of_row[rows]] = True
        # The last place is that of empty rows.
        return np.flatnonzero(is_asked[:-1]).astype(np.int32)

    def sites_using(self, used: UsedDevice) -> Iterator[tuple[int, PoolView, int]]:
        """The sites on which the use of a device may matter, with its pool and its position.

        The position is -1 if the device is not for these nodes, but consumes their counters.
        """
        for index in self._of_pool.get(used.pool_id, ()):
            pool = self.sites[index].find(used.pool_id)
            if pool is not None:
                position = pool.positions.get(used.device, -1)
                if position >= 0 or (pool.counters and pool.devices):
                    yield index, pool, position

    def by_first_name(self, indexes: Indexes) -> list[int]:
        """These sites in the order of the first names of their nodes."""
        if self._order is None:
            self._order = np.array(sorted(range(len(self.sites)), key=self._first_name), np.int32)
        wanted = np.zeros(len(self.sites), np.bool_)
        wanted[indexes] = True
        found: list[int] = self._order[wanted[self._order]].tolist()
        return found

    def _first_name(self, index: int) -> str:
        return min((self._names[row] for row in self._members[index]), default="")

    def _read_nodes(self, nodes: SiteNodes) -> set[int]:
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
        self._order = None
        names, labels = self._names, self._labels
        self._clear()
        self._names, self._labels = names, labels
        self._rows = {name: row for row, name in enumerate(names) if name}
        self.of_row = np.full(len(names), -1, np.int32)
        self._assign(self._rows.values())
