"""Placements by the history of the API server, independent of the daemon's state."""

from __future__ import annotations

from typing import Any

from asched.apiserver.cluster import EmbeddedCluster
from asched.apiserver.storage import DELETED, StoreChange
from asched.model.quantity import milli_value
from tests.fault_simulation.breach import BreachError, BreachReporter

Object = dict[str, Any]


class Placements:
    """Checks every write of a pod."""

    def __init__(self, cluster: EmbeddedCluster, reporter: BreachReporter) -> None:
        self._cluster = cluster
        self._reporter = reporter
        self.bindings: dict[str, list[str]] = {}
        """All nodes that each uid was bound to."""
        self.shared_nodes: set[str] = set()
        """Nodes that other clients use, so that the daemon cannot know their free capacity."""
        self.bound = 0
        self._holding: dict[str, tuple[str, int]] = {}
        self._used_millis: dict[str, int] = {}
        cluster.listen("pods", self._on_pod)

    def _on_pod(self, change: StoreChange) -> None:
        pod = change.new.obj
        uid, node = pod["metadata"]["uid"], pod["spec"].get("nodeName", "")
        if change.type == DELETED or pod["status"].get("phase") in ("Succeeded", "Failed"):
            on, millis = self._holding.pop(uid, ("", 0))
            self._used_millis[on] = self._used_millis.get(on, 0) - millis
            return
        nodes = self.bindings.setdefault(uid, [])
        if not node or (nodes and nodes[-1] == node):
            return
        nodes.append(node)
        self.bound += 1
        if len(nodes) > 1:
            self._reporter.report(
                BreachError(f"pod {pod['metadata']['name']} was bound to {' and '.join(nodes)}")
            )
        self._hold(uid, pod["metadata"]["name"], node, cpu_millis(pod))

    def _hold(self, uid: str, name: str, node: str, millis: int) -> None:
        self._holding[uid] = node, millis
        used = self._used_millis[node] = self._used_millis.get(node, 0) + millis
        known = self._cluster.api.find("nodes", "", node)
        if known is None or node in self.shared_nodes:
            return  # the binding was in flight when the node was removed
        offered = milli_value(known.obj["status"]["allocatable"]["cpu"])
        if used > offered:
            self._reporter.report(
                BreachError(f"node {node} is overcommitted by {name}: {used}m of {offered}m CPU")
            )


def cpu_millis(pod: Object) -> int:
    asked = [c.get("resources", {}).get("requests", {}) for c in pod["spec"]["containers"]]
    return sum(milli_value(requests.get("cpu", "0")) for requests in asked)
