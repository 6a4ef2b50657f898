"""Nodes, as far as scheduling reads them."""

from __future__ import annotations

from asched.model.meta import ApiStruct, Object
from asched.model.quantity import QuantityText

NO_SCHEDULE = "NoSchedule"
"""A taint's effect: no new pods that do not tolerate it."""
PREFER_NO_SCHEDULE = "PreferNoSchedule"
"""A taint's effect: rather no pods that do not tolerate it."""
NO_EXECUTE = "NoExecute"
"""A taint's effect: no such pods at all, not even those that run."""

UNSCHEDULABLE_TAINT = "node.kubernetes.io/unschedulable"
"""What a cordoned node is tainted with."""
HOSTNAME_LABEL = "kubernetes.io/hostname"
"""The label that tells nodes apart."""
ZONE_LABEL = "topology.kubernetes.io/zone"
"""The label that names a node's zone."""
REGION_LABEL = "topology.kubernetes.io/region"
"""The label that names a node's region."""


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
