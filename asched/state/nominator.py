"""Nominated pods: pods for which victims are evicted, and on which nodes."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from asched.framework.nodes import RowArray
from asched.framework.pod_info import PodInfo
from asched.state.node_table_view import NodeTableView
from asched.state.stored_form import StoredForm


class NominatedSnapshot(StoredForm):
    node: str
    pods: tuple[PodInfo, ...]


class Nominator:
    """Nominated pods by node. A nominated pod counts on its node for pods of no higher priority."""

    def __init__(self, nodes: NodeTableView) -> None:
        self._nodes = nodes
        self.by_node: dict[str, dict[str, PodInfo]] = {}
        """Node name to the pods nominated there, by key."""
        self._node_of: dict[str, str] = {}
        self._mask = np.zeros(0, np.bool_)
        """By row, whether any pod is nominated there; valid for :attr:`_mask_version`."""
        self._mask_version = -1

    def __bool__(self) -> bool:
        return bool(self.by_node)

    def rows(self) -> RowArray:
        """The rows of nodes with nominations, ascending."""
        if self._mask_version != self._nodes.version:
            self._mask_version = self._nodes.version
            self._mask = np.zeros(self._nodes.size, np.bool_)
            for name in self.by_node:
                self._mark(name)
        return self._mask.nonzero()[0]

    def _mark(self, name: str) -> None:
        row = self._nodes.row_of(name)
        if row is not None:
            self._mask[row] = name in self.by_node

    def _changed(self, name: str) -> None:
        self._nodes.touch(name)
        if self._mask_version == self._nodes.version:
            self._mark(name)

    def node_of(self, key: str) -> str:
        """The node a pod is nominated to, or empty."""
        return self._node_of.get(key, "")

    def nominate(self, pod: PodInfo, node_name: str) -> str:
        """Nominate a pod to a node, or to none if the name is empty. Returns the other node that it
        was nominated to before, or empty."""
        before = self.withdraw(pod.key)
        if node_name:
            self._node_of[pod.key] = node_name
            self.by_node.setdefault(node_name, {})[pod.key] = pod
            self._changed(node_name)
        return before if before != node_name else ""

    def refresh(self, pod: PodInfo) -> None:
        """The pod changed; its nomination stays."""
        node_name = self._node_of.get(pod.key)
        if node_name:
            self.by_node[node_name][pod.key] = pod
            self._changed(node_name)

    def withdraw(self, key: str) -> str:
        """Clear the pod's nomination. Returns the node that it was nominated to, or empty."""
        node_name = self._node_of.pop(key, "")
        if node_name:
            pods = self.by_node[node_name]
            del pods[key]
            if not pods:
                del self.by_node[node_name]
            self._changed(node_name)
        return node_name

    def snapshot(self) -> tuple[NominatedSnapshot, ...]:
        return tuple(
            NominatedSnapshot(node, tuple(pods.values())) for node, pods in self.by_node.items()
        )

    def restore(self, snapshots: Iterable[NominatedSnapshot]) -> None:
        for snapshot in snapshots:
            for pod in snapshot.pods:
                self.nominate(pod, snapshot.node)
