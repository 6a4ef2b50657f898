"""Creates and deletes pods; all of them fit at any time."""

from __future__ import annotations

from random import Random

import anyio

from asched.apiserver.cluster import EmbeddedCluster
from asched.apiserver.kubelet import simulated_node
from tests.daemon.world import Object

NODES = 10
PODS_PER_NODE = 20
MOST_PODS = 170
"""Of the 200 that fit: a replica with an old view overcommits a node soon."""
_TICK_S = 0.1


class Load:
    """A steady stream of pods."""

    def __init__(self, cluster: EmbeddedCluster, chance: Random, per_tick: int = 1) -> None:
        self._cluster = cluster
        self._chance = chance
        self._per_tick = per_tick
        self.created = 0

    def add_nodes(self) -> None:
        size = {"cpu": str(PODS_PER_NODE), "memory": "16Gi", "pods": "110"}
        for number in range(NODES):
            self._cluster.create("nodes", simulated_node(f"n{number}", capacity=size, labels={}))

    async def run(self) -> None:
        while True:
            self._turn()
            await anyio.sleep(_TICK_S)

    def _turn(self) -> None:
        pods = self._cluster.list("pods")
        bound = [pod for pod in pods if pod["spec"].get("nodeName")]
        if len(pods) >= MOST_PODS and bound:
            for pod in self._chance.sample(bound, min(len(bound), 2 * self._per_tick)):
                self._cluster.delete(
                    "pods", pod["metadata"]["name"], namespace="default", grace_period_s=0
                )
        for _ in range(min(self._per_tick, MOST_PODS - len(pods))):
            self.add(f"load-{self.created}")

    def add(self, name: str) -> None:
        """Create a pod that requests one CPU."""
        self.created += 1
        container = {"name": "c", "image": "app", "resources": {"requests": {"cpu": "1"}}}
        pod: Object = {"metadata": {"name": name}, "spec": {"containers": [container]}}
        self._cluster.create("pods", pod)
