"""What a worker has to be told of the cluster's nodes, so that it knows them as they now are."""

from __future__ import annotations

from collections.abc import Iterator

from asched.daemon.outside import messages as m
from asched.framework.pod_info import PodInfo
from asched.model.node import Node
from asched.state.node_table import NodeTable


class _Told:
    """What a worker was told of one row."""

    __slots__ = ("node", "pods")

    def __init__(self, node: Node) -> None:
        self.node = node
        self.pods: dict[str, PodInfo] = {}


class Mirroring:
    """Follows the node table for one worker. It looks only at rows that changed since it last did."""

    def __init__(self, table: NodeTable) -> None:
        self._table = table
        self._told: dict[int, _Told] = {}
        self._cursor: int | None = None

    def news(self) -> Iterator[m.ToWorker]:
        """What changed since this was last gone through to its end. The table may change meanwhile:
        go through it again until there is none."""
        table, cursor = self._table, self._cursor
        changed = None if cursor is None else table.changed_since(cursor)
        self._cursor = table.cursor
        for row in range(table.size) if changed is None else changed:
            yield from self._of_row(row)

    @property
    def behind(self) -> bool:
        """Whether the table has changed since :meth:`news` was begun."""
        return self._cursor != self._table.cursor

    def _of_row(self, row: int) -> Iterator[m.ToWorker]:
        table, told = self._table, self._told.get(row)
        if not table.alive[row]:
            if told is not None:
                del self._told[row]
                yield m.NodeWent(row)
            return
        node = table.node(row)
        if told is None or told.node.name != node.name:
            told = self._told[row] = _Told(node)
            yield m.NodeIs(row, node)
        elif told.node is not node:
            told.node = node
            yield m.NodeIs(row, node)
        here = {pod.uid: pod for pod in table.pods(row)}
        for uid in told.pods.keys() - here.keys():
            del told.pods[uid]
            yield m.PodWent(row, uid)
        for uid, pod in here.items():
            if told.pods.get(uid) is not pod:
                told.pods[uid] = pod
                yield m.PodCame(row, pod.pod)
