"""The changes that the API server makes to a pod when it binds it.

The watch shows each pod that we bound again in full. It has its node, no longer has the condition that
it is unschedulable, and may have the node's topology labels (admission plugin PodTopologyLabels,
Kubernetes 1.33 and later). A pod without other changes is recorded as bound, which takes a few bytes;
the fold applies the changes with :func:`bound_pod`.
"""

from __future__ import annotations

import msgspec

from asched.model.node import Node
from asched.model.pod import POD_SCHEDULED, Pod
from asched.state.cluster import ClusterState, PodEntry
from asched.state.records import Bound

_COPIED_LABELS = ("topology.kubernetes.io/zone", "topology.kubernetes.io/region")


def observe_binding(state: ClusterState, entry: PodEntry, pod: Pod) -> Bound | None:
    """The record of a pod that the watch shows on its assigned node; None if it has other changes."""
    node_name, old = entry.node, entry.info.pod
    if not node_name or pod.spec.node_name != node_name or old.spec.node_name:
        return None
    topology_labels = pod.metadata.labels != old.metadata.labels
    if pod != bound_pod(state, old, node_name, topology_labels=topology_labels):
        return None
    return Bound(
        entry.info.key,
        entry.info.uid,
        node_name,
        observed=True,
        topology_labels=topology_labels,
    )


def bound_pod(state: ClusterState, pod: Pod, node_name: str, *, topology_labels: bool) -> Pod:
    """The pod as the API server shows it once it is bound."""
    replace = msgspec.structs.replace
    metadata, status = pod.metadata, pod.status
    if topology_labels:
        node = state.objects(Node).get(node_name)
        node_labels = node.labels if node is not None else {}
        copied = {name: node_labels[name] for name in _COPIED_LABELS if name in node_labels}
        metadata = replace(metadata, labels={**metadata.labels, **copied})
    if status.conditions:
        conditions = tuple(c for c in status.conditions if c.type != POD_SCHEDULED)
        status = replace(status, conditions=conditions)
    return replace(
        pod, metadata=metadata, spec=replace(pod.spec, node_name=node_name), status=status
    )
