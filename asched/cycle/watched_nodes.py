"""The nodes as plugins of a shared scope see them where only the pod's shape is to be looked at."""

from __future__ import annotations

from typing import Any

from asched.framework.nodes import Nodes


class WatchedNodes:
    """Stands for the nodes in PreFilter and PreScore of plugins whose answers like pods share, and
    notes whether any of them looked: what it said is then good only while no row changes.

    No subclass of :class:`Nodes`, whose methods would be found before ``__getattr__``.
    """

    __slots__ = ("_nodes", "looked_at")

    def __init__(self, nodes: Nodes) -> None:
        self._nodes = nodes
        self.looked_at = False

    def __getattr__(self, name: str) -> Any:
        self.looked_at = True
        return getattr(self._nodes, name)
