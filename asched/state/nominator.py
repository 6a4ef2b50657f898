"""Nominated pods: pods for which victims are evicted, and on which nodes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol

import numpy as np

from asched.framework.nodes import RowArray
from asched.framework.pod_info import PodInfo
from asched.state.stored_form import StoredForm


class NominatedSnapshot(StoredForm):
    node: str
    pods: tuple[PodInfo, ...]


class NodeRowIndex(Protocol):
    """The part of the node table that the nominator uses."""

    @property
    def size(self) -> int: ...

    @property
    def version(self) -> int:
        """Changes whenever a node is added or deleted."""

    def row_of(self, name: str) -> int | None: ...

    def touch(self, name: str) -> None:
        """Called for a node whenever its nominations change."""


class Nominator:
    """Nominated pods by node. A nominated pod counts on its node for pods of no higher priority."""

    __slots__ = ("_by_node", "_mask", "_mask_version", "_node_of", "_nodes")

    def __init__(self, nodes: NodeRowIndex) -> None:
        self._nodes = nodes
        self._by_node: dict[str, dict[str, PodInfo]] = {}
        self._node_of: dict[str, str] = {}
        self._mask = np.zeros(0, np.bool_)
        """By row, whether any pod is nominated there; valid for :attr:`_mask_version`."""
        self._mask_version = -1

    def __bool__(self) -> bool:
        return bool(self._by_node)

    @property
    def by_node(self) -> Mapping[str, Mapping[str, PodInfo]]:
        """Node name to the pods nominated there, by key."""
        return self._by_node

    def rows(self) -> RowArray:
        """The rows of nodes with nominations, ascending."""
        if self._mask_version != self._nodes.version:
            self._mask_version = self._nodes.version
            self._mask = np.zeros(self._nodes.size, np.bool_)
            for name in self._by_node:
                self._mark(name)
        return self._mask.nonzero()[0]

    def _mark(self, name: str) -> None:
        row = self._nodes.row_of(name)
        if row is not None:
            self._mask[row] = name in self._by_node

    def _changed(self, name: str) -> None:
        self._nodes.touch(name)
        if self._mask_version == self._nodes.version:
            self._mark(name)

    def node_of(self, key: str) -> str:
        """The node a pod is nominated to, or empty."""
        return self._node_of.get(key, "")

    def pods_on(self, node_name: str) -> Iterable[PodInfo]:
        return self._by_node.get(node_name, {}).values()

    def nominate(self, pod: PodInfo, node_name: str) -> str:
        """Nominate a pod to a node, or to none if the name is empty. Returns the other node that it
        was nominated to before, or empty."""
        before = self.withdraw(pod.key)
        if node_name:
            self._node_of[pod.key] = node_name
            self._by_node.setdefault(node_name, {})[pod.key] = pod
            self._changed(node_name)
        return before if before != node_name else ""

    def refresh(self, pod: PodInfo) -> None:
        """The pod changed; its nomination stays."""
        node_name = self._node_of.get(pod.key)
        if node_name:
            self._by_node[node_name][pod.key] = pod
            self._changed(node_name)

    def withdraw(self, key: str) -> str:
        """Clear the pod's nomination. Returns the node that it was nominated to, or empty."""
        node_name = self._node_of.pop(key, "")
        if node_name:
            pods = self._by_node[node_name]
            del pods[key]
            if not pods:
                del self._by_node[node_name]
            self._changed(node_name)
        return node_name

    def snapshot(self) -> tuple[NominatedSnapshot, ...]:
        return tuple(
            NominatedSnapshot(node, tuple(pods.values())) for node, pods in self._by_node.items()
        )

    def restore(self, snapshots: Iterable[NominatedSnapshot]) -> None:
        for snapshot in snapshots:
            for pod in snapshot.pods:
                self.nominate(pod, snapshot.node)
