"""Nodes, as far as scheduling reads them."""

from __future__ import annotations

from asched.model.meta import ApiStruct, Object
from asched.model.quantity import QuantityText

NO_SCHEDULE = "NoSchedule"
PREFER_NO_SCHEDULE = "PreferNoSchedule"
NO_EXECUTE = "NoExecute"

UNSCHEDULABLE_TAINT = "node.kubernetes.io/unschedulable"
HOSTNAME_LABEL = "kubernetes.io/hostname"
ZONE_LABEL = "topology.kubernetes.io/zone"
REGION_LABEL = "topology.kubernetes.io/region"


class Taint(ApiStruct):
    """Keeps pods away that do not tolerate it."""

    key: str = ""
    value: str = ""
    effect: str = ""

    def __str__(self) -> str:
        return f"{{{self.key}: {self.value}}}"


class NodeSpec(ApiStruct):
    """What of a node's ``spec`` scheduling reads."""

    unschedulable: bool = False
    taints: tuple[Taint, ...] = ()


class ContainerImage(ApiStruct):
    """An image that a node holds."""

    names: tuple[str, ...] = ()
    size_bytes: int = 0


class NodeCondition(ApiStruct):
    """One entry of ``status.conditions``."""

    type: str = ""
    status: str = ""


class NodeStatus(ApiStruct):
    """What of a node's ``status`` scheduling reads."""

    capacity: dict[str, QuantityText] = {}
    allocatable: dict[str, QuantityText] = {}
    conditions: tuple[NodeCondition, ...] = ()
    images: tuple[ContainerImage, ...] = ()
    declared_features: tuple[str, ...] = ()


class Node(Object, tag_field="kind", tag="Node"):
    """A node: what it is, and what it offers."""

    spec: NodeSpec = NodeSpec()
    status: NodeStatus = NodeStatus()

    @property
    def ready(self) -> bool:
        return any(c.type == "Ready" and c.status == "True" for c in self.status.conditions)
