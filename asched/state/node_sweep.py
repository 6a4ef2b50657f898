"""The nodes of the table one by one, for plugins that are written for one node and asked about all.

Such a plugin is called thousands of times for a pod, so what it asks of a node must cost no more than
looking something up in a list. Lists are made of columns when first asked for, and hold until the
table changes: what one plugin asked for, the next one finds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from asched.framework.nodes import NodeInfo
from asched.model.node import Node, Taint

if TYPE_CHECKING:
    from asched.state.node_table import NodeTable


class _Lists(dict[str, list[int]]):
    """Amounts of a resource by row, for each resource that was asked for."""

    def __init__(self, made: Callable[[str], list[int]]) -> None:
        super().__init__()
        self._made = made

    def __missing__(self, resource: str) -> list[int]:
        found = self[resource] = self._made(resource)
        return found


class NodeSweep:
    """Every row of a table as a :class:`NodeInfo`."""

    def __init__(self, table: NodeTable, objects: Sequence[Node | None]) -> None:
        """``objects`` are the nodes by row, as the table keeps them up to date."""
        self.table = table
        self.objects = objects
        self.allocatable = _Lists(lambda resource: table.allocatable(resource).tolist())
        self.requested = _Lists(lambda resource: table.requested(resource).tolist())
        self._nodes: list[NodeInfo] = []
        self._cursor = -1

    def nodes(self) -> Sequence[NodeInfo]:
        """One for each row, good until the table changes."""
        if self._cursor != self.table.cursor:
            self.allocatable.clear()
            self.requested.clear()
            self._cursor = self.table.cursor
        known, size = self._nodes, self.table.size
        if len(known) < size:
            known += [_SweptNode(self, row) for row in range(len(known), size)]
        return known


class _SweptNode(NodeInfo):
    """One node of a sweep."""

    __slots__ = ("_allocatable", "_objects", "_requested")

    def __init__(self, sweep: NodeSweep, row: int) -> None:
        super().__init__(sweep.table, row)
        self._objects = sweep.objects
        self._allocatable = sweep.allocatable
        self._requested = sweep.requested

    @property
    def node(self) -> Node:
        node = self._objects[self._row]
        return self._nodes.node(self._row) if node is None else node

    @property
    def labels(self) -> Mapping[str, str]:
        return self.node.metadata.labels

    @property
    def taints(self) -> tuple[Taint, ...]:
        return self.node.spec.taints

    @property
    def unschedulable(self) -> bool:
        return self.node.spec.unschedulable

    def allocatable(self, resource: str) -> int:
        return self._allocatable[resource][self._row]

    def requested(self, resource: str) -> int:
        return self._requested[resource][self._row]

    def free(self, resource: str) -> int:
        row = self._row
        return self._allocatable[resource][row] - self._requested[resource][row]
