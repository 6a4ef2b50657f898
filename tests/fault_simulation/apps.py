"""What runs in a simulated cluster: apps that want so many pods, and the pods they want."""

from __future__ import annotations

from enum import Enum
from random import Random
from typing import Any

from tests.fault_simulation.mixes import Workload

Object = dict[str, Any]

URGENT = "urgent"
"""The priority class of apps that preempt others."""
ZONES = ("zone-a", "zone-b")
SESSIONS = "kube-batch"
"""The scheduler name that batch sessions serve."""
GROUPS = "podgroups.scheduling.k8s.io"
_ZONE = "topology.kubernetes.io/zone"
_HOST = "kubernetes.io/hostname"


class Naming(Enum):
    """What a pod that takes the place of another is called."""

    FRESH = "fresh"
    """Anew, as a ReplicaSet does."""
    SAME = "same"
    """Just as the one before, as a StatefulSet does."""


class App:
    """So many like pods are wanted."""

    def __init__(self, name: str, naming: Naming, replicas: int, spec: Object, gang: int) -> None:
        self.name = name
        self.naming = naming
        self.replicas = replicas
        self.spec = spec
        self.gang = gang
        """How many run together or not at all; 0 for no gang."""
        self._made = 0

    @property
    def by_sessions(self) -> bool:
        return bool(self.spec.get("schedulerName") == SESSIONS)

    def next_name(self, taken: set[str]) -> str | None:
        """What the next pod is called; None where it has to wait until a name is free."""
        if self.naming is Naming.SAME:
            names = (f"{self.name}-{ordinal}" for ordinal in range(self.replicas))
            return next((name for name in names if name not in taken), None)
        self._made += 1
        return f"{self.name}-r{self._made}"

    def pod(self, name: str, *, gated: bool, shaky: bool) -> Object:
        labels = {"app": self.name}
        if shaky:
            labels["shaky"] = "yes"
        spec = dict(self.spec)
        if gated:
            spec["schedulingGates"] = [{"name": "wait"}]
        return {"metadata": {"name": name, "labels": labels}, "spec": spec}

    def group(self) -> Object:
        """Its PodGroup, where it is a gang."""
        policy = {"gang": {"minCount": self.gang}}
        return {"metadata": {"name": self.name}, "spec": {"schedulingPolicy": policy}}


def drawn_app(name: str, chance: Random, load: Workload) -> App:
    """An app as the workload has them."""
    cpu = chance.choice((100, 500, 1000, 1500, 2000))
    requests = {"cpu": f"{cpu}m", "memory": f"{chance.choice((64, 256, 1024))}Mi"}
    container: Object = {"name": "c", "image": "app", "resources": {"requests": requests}}
    spec: Object = {
        "containers": [container],
        "terminationGracePeriodSeconds": chance.choice((0, 5)),
    }
    replicas, gang = chance.randint(1, 6), 0
    naming = chance.choice((Naming.FRESH, Naming.SAME))
    if chance.random() < load.sessions:
        spec["schedulerName"] = SESSIONS
    if chance.random() < load.urgent:
        spec["priorityClassName"] = URGENT
    if chance.random() < load.gangs:
        gang = chance.randint(2, 4)
        replicas = max(replicas, gang)
        spec["schedulingGroup"] = {"podGroupName": name}
    elif chance.random() < load.exacting and "schedulerName" not in spec:
        _demand_something(spec, name, container, chance)
    return App(name, naming, replicas, spec, gang)


def _demand_something(spec: Object, app: str, container: Object, chance: Random) -> None:
    """More than room."""
    like = {"matchLabels": {"app": app}}
    match chance.randrange(6):
        case 0:
            spec["nodeSelector"] = {_ZONE: chance.choice(ZONES)}
        case 1:
            term = {"labelSelector": like, "topologyKey": _HOST}
            spec["affinity"] = {
                "podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}
            }
        case 2:
            spec["topologySpreadConstraints"] = [
                {
                    "maxSkew": 1,
                    "topologyKey": chance.choice((_ZONE, _HOST)),
                    "whenUnsatisfiable": "DoNotSchedule",
                    "labelSelector": like,
                }
            ]
        case 3:
            container["ports"] = [{"containerPort": 80, "hostPort": 8080}]
        case 4:
            term = {"labelSelector": like, "topologyKey": _ZONE}
            spec["affinity"] = {
                "podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}
            }
        case 5:
            spec["tolerations"] = [{"operator": "Exists"}]
