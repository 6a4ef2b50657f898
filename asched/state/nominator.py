"""Pods for which room is being made, and where."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from asched.framework.pod_info import PodInfo


class Nominator:
    """Nominated pods by node. A nominated pod counts on its node for pods of no higher priority."""

    __slots__ = ("_by_node", "_changed", "_node_of")

    def __init__(self, changed: Callable[[str], None]) -> None:
        """``changed`` is told the name of each node whose nominations change."""
        self._changed = changed
        self._by_node: dict[str, dict[str, PodInfo]] = {}
        self._node_of: dict[str, str] = {}

    def __bool__(self) -> bool:
        return bool(self._by_node)

    @property
    def by_node(self) -> Mapping[str, Mapping[str, PodInfo]]:
        """Node name to the pods nominated there, by key."""
        return self._by_node

    def node_of(self, key: str) -> str:
        """The node a pod is nominated to, or empty."""
        return self._node_of.get(key, "")

    def pods_on(self, node_name: str) -> Iterable[PodInfo]:
        return self._by_node.get(node_name, {}).values()

    def nominate(self, pod: PodInfo, node_name: str) -> None:
        """Nominate a pod to a node, or to none where the name is empty."""
        self.withdraw(pod.key)
        if node_name:
            self._node_of[pod.key] = node_name
            self._by_node.setdefault(node_name, {})[pod.key] = pod
            self._changed(node_name)

    def refresh(self, pod: PodInfo) -> None:
        """The pod changed; its nomination stays."""
        node_name = self._node_of.get(pod.key)
        if node_name:
            self._by_node[node_name][pod.key] = pod
            self._changed(node_name)

    def withdraw(self, key: str) -> None:
        node_name = self._node_of.pop(key, "")
        if node_name:
            pods = self._by_node[node_name]
            del pods[key]
            if not pods:
                del self._by_node[node_name]
            self._changed(node_name)
