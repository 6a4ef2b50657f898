"""Nodes."""

from __future__ import annotations

from asched.model.meta import ApiStruct, Int64, Object
from asched.model.quantity import QuantityText

NO_SCHEDULE = "NoSchedule"
"""Taint effect: rejects new pods that do not tolerate it."""
PREFER_NO_SCHEDULE = "PreferNoSchedule"
"""Taint effect: avoids pods that do not tolerate it."""
NO_EXECUTE = "NoExecute"
"""Taint effect: also evicts running pods that do not tolerate it."""

UNSCHEDULABLE_TAINT = "node.kubernetes.io/unschedulable"
"""The taint of a cordoned node."""
HOSTNAME_LABEL = "kubernetes.io/hostname"
"""The label with the host name."""
ZONE_LABEL = "topology.kubernetes.io/zone"
"""The label with the zone."""
REGION_LABEL = "topology.kubernetes.io/region"
"""The label with the region."""


class Taint(ApiStruct):
    """A taint."""

    key: str = ""
    value: str = ""
    effect: str = ""

    def __str__(self) -> str:
        return f"{{{self.key}: {self.value}}}"


class NodeSpec(ApiStruct):
    """``spec`` of a node."""

    unschedulable: bool = False
    taints: tuple[Taint, ...] = ()


class ContainerImage(ApiStruct):
    """An image on a node."""

    names: tuple[str, ...] = ()
    size_bytes: Int64 = 0


class NodeCondition(ApiStruct):
    """A node condition."""

    type: str = ""
    status: str = ""


class NodeStatus(ApiStruct):
    """``status`` of a node."""

    capacity: dict[str, QuantityText] = {}
    allocatable: dict[str, QuantityText] = {}
    conditions: tuple[NodeCondition, ...] = ()
    images: tuple[ContainerImage, ...] = ()
    declared_features: tuple[str, ...] = ()


class Node(Object, tag_field="kind", tag="Node"):
    """A node."""

    spec: NodeSpec = NodeSpec()
    status: NodeStatus = NodeStatus()

    @property
    def ready(self) -> bool:
        return any(c.type == "Ready" and c.status == "True" for c in self.status.conditions)
