"""What the API server makes of a pod that it binds, so that its echo takes but a few bytes.

The watch shows each pod that we bound once more, whole. It now names its node, it is not reported
unschedulable any more, and (admission plugin PodTopologyLabels of Kubernetes 1.33 and later) it may
have been given the node's topology labels. A pod that differs in nothing else is recorded as bound and
no more; :func:`picture` is how the fold draws it.
"""

from __future__ import annotations

import msgspec

from asched.model.node import Node
from asched.model.pod import POD_SCHEDULED, Pod
from asched.state.cluster import ClusterState, PodEntry
from asched.state.records import Bound

_COPIED_LABELS = ("topology.kubernetes.io/zone", "topology.kubernetes.io/region")


def observe_echo(state: ClusterState, entry: PodEntry, pod: Pod) -> Bound | None:
    """The record for a pod that the watch shows on the node that we placed it on; None where there is
    more to tell of it."""
    node_name, old = entry.node, entry.info.pod
    if not node_name or pod.spec.node_name != node_name or old.spec.node_name:
        return None
    labelled = pod.metadata.labels != old.metadata.labels
    if pod != picture(state, old, node_name, labelled=labelled):
        return None
    return Bound(entry.info.key, entry.info.uid, node_name, shown=True, labelled=labelled)


def picture(state: ClusterState, pod: Pod, node_name: str, *, labelled: bool) -> Pod:
    """The pod as the API server shows it once it is bound; ``labelled`` with the node's topology
    labels."""
    replace = msgspec.structs.replace
    metadata, status = pod.metadata, pod.status
    if labelled:
        node = state.objects(Node).get(node_name)
        of_node = node.labels if node is not None else {}
        copied = {name: of_node[name] for name in _COPIED_LABELS if name in of_node}
        metadata = replace(metadata, labels={**metadata.labels, **copied})
    if status.conditions:
        conditions = tuple(c for c in status.conditions if c.type != POD_SCHEDULED)
        status = replace(status, conditions=conditions)
    return replace(
        pod, metadata=metadata, spec=replace(pod.spec, node_name=node_name), status=status
    )
