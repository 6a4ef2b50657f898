"""Clusters with volumes, and single plugins on them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

import msgspec

from asched.framework.cycle_state import CycleState
from asched.framework.interface import FilterAllPlugin, Plugin, PreFilterPlugin
from asched.framework.nodes import Nodes
from asched.framework.pod_info import PodInfo
from asched.framework.runtime.profile import parse_arguments
from asched.framework.status import Status
from asched.model.meta import Object
from asched.model.node import Node
from asched.model.pod import Pod
from asched.model.resources import KINDS
from asched.state.cluster import ClusterState, ProfileHandle

P = TypeVar("P", bound=Plugin)


def cluster_of(*objects: Object) -> ClusterState:
    """A cluster with these objects, without unassigned and finished pods."""
    cluster = ClusterState()
    for item in objects:
        if not isinstance(item, Pod):
            put(cluster, item)
    for item in objects:
        if isinstance(item, Pod) and item.node_name and not item.terminal:
            cluster.nodes.add_pod(item.node_name, PodInfo(item))
    return cluster


def put(cluster: ClusterState, item: Object) -> None:
    """Add or update an object."""
    cluster.object_store.put(item)
    if isinstance(item, Node):
        cluster.nodes.set_node(item)


def api(kind: str, name: str, namespace: str = "", **fields: Any) -> Object:
    """An object from API fields; ``labels``, ``annotations`` and
    ``ownerReferences`` belong to the metadata."""
    metadata = {"name": name, "namespace": namespace, "uid": f"{kind}-{name}"}
    for field in ("labels", "annotations", "ownerReferences", "deletionTimestamp", "uid"):
        if field in fields:
            metadata[field] = fields.pop(field)
    return msgspec.convert({"kind": kind, "metadata": metadata, **fields}, KINDS[kind])


def a_node(name: str, labels: Mapping[str, str] | None = None, **status: Any) -> Object:
    return api(
        "Node", name, labels={"kubernetes.io/hostname": name, **(labels or {})}, status=status
    )


def a_pod(name: str, *volumes: Mapping[str, Any], node: str = "", **spec: Any) -> Pod:
    """A pod of namespace ``d`` with these volume sources; a string is a claim name."""
    named = [{"name": f"v{i}", **volume} for i, volume in enumerate(volumes)]
    pod = api("Pod", name, "d", spec={"volumes": named, "nodeName": node, **spec})
    assert isinstance(pod, Pod)
    return pod


def claim_volume(name: str) -> dict[str, Any]:
    return {"persistentVolumeClaim": {"claimName": name}}


def a_claim(name: str, size: str = "1Gi", *, bound_to: str = "", **spec: Any) -> Object:
    annotations = {"pv.kubernetes.io/bind-completed": "yes"} if bound_to else {}
    annotations.update(spec.pop("annotations", {}))
    status = spec.pop("status", {"phase": "Bound" if bound_to else "Pending"})
    return api(
        "PersistentVolumeClaim",
        name,
        "d",
        annotations=annotations,
        spec={
            "accessModes": ["ReadWriteOnce"],
            "volumeName": bound_to,
            "resources": {"requests": {"storage": size}},
            **spec,
        },
        status=status,
    )


def a_volume(
    name: str, size: str = "1Gi", *, on: Iterable[str] = (), labels: Any = None, **spec: Any
) -> Object:
    """An available volume, accessible from the nodes in ``on``."""
    hosts = [*on]
    if hosts:
        term = {
            "matchExpressions": [
                {"key": "kubernetes.io/hostname", "operator": "In", "values": hosts}
            ]
        }
        spec["nodeAffinity"] = {"required": {"nodeSelectorTerms": [term]}}
    return api(
        "PersistentVolume",
        name,
        labels=labels or {},
        spec={"accessModes": ["ReadWriteOnce"], "capacity": {"storage": size}, **spec},
        status={"phase": "Bound" if "claimRef" in spec else "Available"},
    )


def build(plugin: type[P], cluster: ClusterState, **arguments: Any) -> P:
    return plugin(parse_arguments(plugin, arguments), ProfileHandle(cluster, "default-scheduler"))


def rejections(
    plugin: FilterAllPlugin, pod: PodInfo, nodes: Nodes, state: CycleState | None = None
) -> dict[str, Status] | Status:
    """The PreFilter status if it rejects the pod, else the status of each rejected node."""
    state = CycleState() if state is None else state
    if isinstance(plugin, PreFilterPlugin):
        status = plugin.pre_filter(state, pod, nodes).status
        if not status.is_success:
            return status
    result = plugin.filter_all(state, pod, nodes)
    found = {name: result.status(row) for row, name in enumerate(nodes.names) if name}
    return {name: status for name, status in found.items() if status is not None}
