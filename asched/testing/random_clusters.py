"""Small clusters of all sorts, for finding out whether a plugin keeps the contract."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from random import Random
from typing import Final, NamedTuple

import msgspec

from asched.model.node import Node
from asched.model.pod import Pod
from asched.model.requests import PODS, amounts, pod_requests
from asched.testing.builders import node, pod

_ZONES: Final = ("a", "b", "c")
_DISKS: Final = ("ssd", "hdd")
_TEAMS: Final = ("red", "blue", "")
_GPU: Final = "example.com/gpu"


class RandomCluster(NamedTuple):
    """A cluster, and pods that are to be placed in it."""

    nodes: tuple[Node, ...]
    placed: tuple[Pod, ...]
    pending: tuple[Pod, ...]

    @property
    def objects(self) -> tuple[Node | Pod, ...]:
        """All but the pending pods."""
        return (*self.nodes, *self.placed)

    @property
    def everything(self) -> tuple[Node | Pod, ...]:
        return (*self.objects, *self.pending)


def random_cluster(
    seed: int, *, nodes: int = 12, placed: int = 20, pending: int = 12
) -> RandomCluster:
    """The cluster of a seed: the same in each run."""
    random = Random(seed)
    made = tuple(_node(random, f"node-{number}") for number in range(nodes))
    return RandomCluster(
        made,
        tuple(_placed(random, made, placed)),
        tuple(_pod(random, f"pending-{n}") for n in range(pending)),
    )


def _placed(random: Random, nodes: Sequence[Node], count: int) -> Iterator[Pod]:
    """Pods on nodes that have room for them."""
    free = {each.name: Counter(amounts(each.status.allocatable)) for each in nodes}
    for number in range(count):
        guest = _pod(random, f"placed-{number}")
        asked = Counter({**pod_requests(guest), PODS: 1})
        host = random.choice(nodes).name
        if asked <= free[host]:
            free[host] -= asked
            spec = msgspec.structs.replace(guest.spec, node_name=host)
            yield msgspec.structs.replace(guest, spec=spec)


def _node(random: Random, name: str) -> Node:
    labels = {"disk": random.choice(_DISKS)} if random.random() < 0.7 else {}
    return node(
        name,
        cpu=random.choice((1, 4, 8, 64)),
        memory=f"{random.choice((1, 8, 256))}Gi",
        max_pods=random.choice((1, 5, 110)),
        allocatable={_GPU: random.choice((1, 8))} if random.random() < 0.4 else {},
        labels=labels,
        zone=random.choice((*_ZONES, "")),
        taints=["dedicated=red:NoSchedule"] if random.random() < 0.2 else [],
        unschedulable=random.random() < 0.1,
    )


def _pod(random: Random, name: str) -> Pod:
    team = random.choice(_TEAMS)
    return pod(
        name,
        namespace=random.choice(("default", "shop")),
        cpu=random.choice((None, "100m", "500m", 2)),
        memory=random.choice((None, "64Mi", "2Gi")),
        requests={_GPU: 1} if random.random() < 0.2 else {},
        labels={"team": team} if team else {},
        priority=random.choice((0, 0, 0, 10)),
        node_selector={"disk": random.choice(_DISKS)} if random.random() < 0.2 else None,
        tolerations=["dedicated=red:NoSchedule"] if random.random() < 0.3 else [],
        host_ports=[8080] if random.random() < 0.1 else [],
    )
