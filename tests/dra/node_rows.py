"""Nodes by row."""

from __future__ import annotations

from collections.abc import Iterable

from asched.dra import NodeView
from asched.model.meta import ObjectMeta
from asched.model.node import Node


class Rows:
    """Nodes that tests add, change and remove."""

    def __init__(self, nodes: Iterable[NodeView] = ()) -> None:
        self.names: list[str] = []
        self.version = 0
        self._nodes: list[Node] = []
        for node in nodes:
            self.put(node)

    def node(self, row: int) -> Node:
        return self._nodes[row]

    def put(self, view: NodeView) -> None:
        """Add or replace a node; an empty row is used first."""
        node = Node(metadata=ObjectMeta(name=view.name, labels=dict(view.labels)))
        self.version += 1
        for row, name in enumerate(self.names):
            if name == view.name:
                self._nodes[row] = node
                return
        if "" in self.names:
            row = self.names.index("")
            self.names[row], self._nodes[row] = view.name, node
            return
        self.names.append(view.name)
        self._nodes.append(node)

    def remove(self, name: str) -> None:
        """Leave an empty row."""
        if name in self.names:
            row = self.names.index(name)
            self.names[row], self._nodes[row] = "", Node()
            self.version += 1

    def views(self) -> list[tuple[int, NodeView]]:
        return [
            (row, NodeView(name, self._nodes[row].labels))
            for row, name in enumerate(self.names)
            if name
        ]
