"""Builders of nodes and pods for tests."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

import msgspec

from asched.model.meta import ObjectMeta
from asched.model.node import ContainerImage, Node, NodeCondition, NodeSpec, NodeStatus, Taint
from asched.model.pod import (
    Container,
    ContainerPort,
    Pod,
    PodCondition,
    PodSpec,
    PodStatus,
    ResourceRequirements,
    SchedulingGate,
    Toleration,
)


def a_node(
    name: str,
    allocatable: Mapping[str, str] | None = None,
    *,
    labels: Mapping[str, str] | None = None,
    taints: tuple[Taint, ...] = (),
    unschedulable: bool = False,
    images: Mapping[str, int] | None = None,
    conditions: tuple[NodeCondition, ...] = (),
) -> Node:
    """A node; by default with 4 cores, 8 GiB and 110 pods. ``images``: name to bytes."""
    offered = {"cpu": "4", "memory": "8Gi", "pods": "110"} if allocatable is None else allocatable
    return Node(
        metadata=ObjectMeta(name=name, uid=f"node-{name}", labels=dict(labels or {})),
        spec=NodeSpec(taints=taints, unschedulable=unschedulable),
        status=NodeStatus(
            allocatable=dict(offered),
            conditions=conditions,
            images=tuple(
                ContainerImage(names=(image,), size_bytes=size)
                for image, size in (images or {}).items()
            ),
        ),
    )


def a_pod(
    name: str,
    requests: Mapping[str, str] | None = None,
    *,
    uid: str = "",
    on: str = "",
    scheduler: str = "default-scheduler",
    priority: int = 0,
    labels: Mapping[str, str] | None = None,
    ports: tuple[ContainerPort, ...] = (),
    gates: tuple[str, ...] = (),
    tolerations: tuple[Toleration, ...] = (),
    phase: str = "Pending",
    nominated: str = "",
    deleted_at: datetime | None = None,
    conditions: tuple[PodCondition, ...] = (),
) -> Pod:
    """A pod of one container; by default it requests half a core. ``on`` is its node."""
    asked = {"cpu": "500m"} if requests is None else requests
    return Pod(
        metadata=ObjectMeta(
            name=name,
            namespace="default",
            uid=uid or f"pod-{name}",
            labels=dict(labels or {}),
            deletion_timestamp=deleted_at,
        ),
        spec=PodSpec(
            node_name=on,
            scheduler_name=scheduler,
            priority=priority,
            containers=(
                Container(
                    name="main",
                    image="app:v1",
                    resources=ResourceRequirements(requests=dict(asked)),
                    ports=ports,
                ),
            ),
            scheduling_gates=tuple(SchedulingGate(name=gate) for gate in gates),
            tolerations=tolerations,
        ),
        status=PodStatus(phase=phase, nominated_node_name=nominated, conditions=conditions),
    )


def bound(pod: Pod, node_name: str) -> Pod:
    """The pod as the API server shows it on that node."""
    replace = msgspec.structs.replace
    return replace(pod, spec=replace(pod.spec, node_name=node_name))


def in_phase(pod: Pod, phase: str) -> Pod:
    replace = msgspec.structs.replace
    return replace(pod, status=replace(pod.status, phase=phase))


def labelled(pod: Pod, **labels: str) -> Pod:
    replace = msgspec.structs.replace
    return replace(pod, metadata=replace(pod.metadata, labels=labels))


def deleted(pod: Pod, at: datetime) -> Pod:
    """The pod during its graceful termination."""
    replace = msgspec.structs.replace
    return replace(pod, metadata=replace(pod.metadata, deletion_timestamp=at))
