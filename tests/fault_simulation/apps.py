"""The apps of a simulated cluster and their pods."""

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
"""Scheduler name of batch sessions."""
GROUPS = "podgroups.scheduling.k8s.io"
ZONE = "topology.kubernetes.io/zone"
_HOST = "kubernetes.io/hostname"


class Naming(Enum):
    """The name of a replacement pod."""

    FRESH = "fresh"
    """A new name, as in a ReplicaSet."""
    SAME = "same"
    """The name of its predecessor, as in a StatefulSet."""


class App:
    """A number of identical pods."""

    def __init__(self, name: str, naming: Naming, replicas: int, spec: Object, gang: int) -> None:
        self.name = name
        self.naming = naming
        self.replicas = replicas
        self.spec = spec
        self.gang = gang
        """Minimum members of the gang; 0 for no gang."""
        self.topology: dict[str, str] = {}
        """Annotations of its PodGroup."""
        self.parent = ""
        """The CompositePodGroup of its PodGroup."""
        self._made = 0

    @property
    def in_sessions(self) -> bool:
        return bool(self.spec.get("schedulerName") == SESSIONS)

    def next_name(self, taken: set[str]) -> str | None:
        """The name of the next pod; None until a name is free."""
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
        """The PodGroup of a gang."""
        spec: Object = {"schedulingPolicy": {"gang": {"minCount": self.gang}}}
        if self.parent:
            spec["parentCompositePodGroupName"] = self.parent
            spec["workloadRef"] = {"workloadName": "simulated", "templateName": self.name}
        return {"metadata": {"name": self.name, "annotations": self.topology}, "spec": spec}

    def draw_topology(self, chance: Random) -> None:
        """Another topology for the group."""
        level = chance.choice(("required", "preferred", ""))
        self.topology = {f"asched.dev/{level}-topology": ZONE} if level else {}


def drawn_app(name: str, chance: Random, load: Workload) -> App:
    """An app drawn by the weights of the workload."""
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
    elif chance.random() < load.constrained and "schedulerName" not in spec:
        _add_constraint(spec, name, container, chance)
    return App(name, naming, replicas, spec, gang)


def _add_constraint(spec: Object, app: str, container: Object, chance: Random) -> None:
    """Add a random scheduling constraint."""
    like = {"matchLabels": {"app": app}}
    match chance.randrange(6):
        case 0:
            spec["nodeSelector"] = {ZONE: chance.choice(ZONES)}
        case 1:
            term = {"labelSelector": like, "topologyKey": _HOST}
            spec["affinity"] = {
                "podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}
            }
        case 2:
            spec["topologySpreadConstraints"] = [
                {
                    "maxSkew": 1,
                    "topologyKey": chance.choice((ZONE, _HOST)),
                    "whenUnsatisfiable": "DoNotSchedule",
                    "labelSelector": like,
                }
            ]
        case 3:
            container["ports"] = [{"containerPort": 80, "hostPort": 8080}]
        case 4:
            term = {"labelSelector": like, "topologyKey": ZONE}
            spec["affinity"] = {
                "podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}
            }
        case 5:
            spec["tolerations"] = [{"operator": "Exists"}]
