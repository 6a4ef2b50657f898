"""Volumes of pods, CSI migration of in-tree volumes, and CSINodes in columns.

A pod uses a PersistentVolume through a claim. The claim is named in the pod or, for a generic
ephemeral volume, named after the pod and the volume.

Kubernetes still accepts volumes of in-tree plugins. If the CSINode of a node lists the plugin as
migrated, the CSI driver attaches its volumes there, under the driver's names. Source of these
rules: ``k8s.io/csi-translation-lib`` of 1.36.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import msgspec
import numpy as np

from asched.framework.cluster import Cluster
from asched.framework.events import QueueingHint
from asched.framework.nodes import BoolColumn, Int64Column, Nodes
from asched.model.meta import Object
from asched.model.node import REGION_LABEL, ZONE_LABEL
from asched.model.pod import Pod, Volume
from asched.model.quantity import MAX_INT64
from asched.model.selectors import NodeSelector, NodeSelectorRequirement, NodeSelectorTerm
from asched.model.storage import (
    CSINode,
    PersistentVolume,
    PersistentVolumeClaim,
    PersistentVolumeSpec,
    VolumeNodeAffinity,
)

STORAGE = "storage"
"""The resource name of a claim's request and a volume's capacity."""

WAIT_FOR_FIRST_CONSUMER = "WaitForFirstConsumer"


class PodClaim(NamedTuple):
    """A claim that a pod uses."""

    name: str
    ephemeral: bool
    """It belongs to a generic ephemeral volume: the pod must own it."""


def claim_of(pod: Pod, volume: Volume) -> PodClaim | None:
    if volume.persistent_volume_claim is not None:
        return PodClaim(volume.persistent_volume_claim.claim_name, False)
    if volume.ephemeral is not None:
        return PodClaim(f"{pod.name}-{volume.name}", True)
    return None


def claims_of(pod: Pod) -> Iterator[PodClaim]:
    """The claims of the pod's volumes, in order. A claim may occur twice."""
    for volume in pod.spec.volumes:
        claim = claim_of(pod, volume)
        if claim is not None:
            yield claim


def mounts_claims(pod: Pod) -> bool:
    """Whether the pod uses any claim, including those of generic ephemeral volumes."""
    return any(claim_of(pod, volume) is not None for volume in pod.spec.volumes)


def mounts_claim(pod: Pod, claim: PersistentVolumeClaim) -> bool:
    return pod.namespace == claim.namespace and any(
        mounted.name == claim.name for mounted in claims_of(pod)
    )


def own_claim_changed(pod: Pod, old: Object | None, new: Object | None) -> QueueingHint:
    """Queueing hint: queue if a claim that the pod uses is added or updated."""
    own = isinstance(new, PersistentVolumeClaim) and mounts_claim(pod, new)
    return QueueingHint.QUEUE if own else QueueingHint.SKIP


def is_owned_by(claim: PersistentVolumeClaim, pod: Pod) -> bool:
    """Whether the claim was created for the pod (``ephemeral.VolumeIsForPod``)."""
    owner = claim.metadata.controller
    return claim.namespace == pod.namespace and owner is not None and owner.uid == pod.uid


def not_owner(claim: PersistentVolumeClaim, pod: Pod) -> str:
    """The message for an ephemeral volume if the pod does not own its claim."""
    return (
        f"PVC {claim.namespace}/{claim.name} was not created for pod {pod.namespace}/{pod.name}"
        " (pod is not owner)"
    )


def claim_not_found(name: str) -> str:
    return f'persistentvolumeclaim "{name}" not found'


def is_attachable(volume: Volume) -> bool:
    """Whether the volume may count against an attach limit of a node."""
    return (
        volume.persistent_volume_claim is not None
        or volume.ephemeral is not None
        or is_migratable(volume)
    )


def is_disk(volume: Volume) -> bool:
    """Whether the volume is an inline disk that pods on one node cannot freely share."""
    return (
        volume.gce_persistent_disk is not None
        or volume.aws_elastic_block_store is not None
        or volume.iscsi is not None
        or volume.rbd is not None
    )


# -- CSI migration --------------------------------------------------------------------------------

BETA_ZONE_LABEL = "failure-domain.beta.kubernetes.io/zone"
BETA_REGION_LABEL = "failure-domain.beta.kubernetes.io/region"
ZONE_DELIMITER = "__"
"""Separates the zones of a volume in several zones."""


class InTreePlugin(NamedTuple):
    """An in-tree plugin and the CSI driver that replaces it."""

    name: str
    driver: str
    topology_key: str
    """The driver's node label for zones; empty if it has none."""
    limit_needs_listing: bool = False
    """Whether its volumes count against the driver's limit only on nodes that list the plugin as
    migrated. Volumes of the other plugins count on every node."""


GCE_PD = InTreePlugin("kubernetes.io/gce-pd", "pd.csi.storage.gke.io", "topology.gke.io/zone")
AWS_EBS = InTreePlugin("kubernetes.io/aws-ebs", "ebs.csi.aws.com", "topology.ebs.csi.aws.com/zone")
AZURE_DISK = InTreePlugin(
    "kubernetes.io/azure-disk", "disk.csi.azure.com", "topology.disk.csi.azure.com/zone"
)
CINDER = InTreePlugin(
    "kubernetes.io/cinder", "cinder.csi.openstack.org", "topology.cinder.csi.openstack.org/zone"
)
PORTWORX = InTreePlugin(
    "kubernetes.io/portworx-volume", "pxd.portworx.com", "", limit_needs_listing=True
)

MIGRATED: Mapping[str, InTreePlugin] = {
    plugin.name: plugin for plugin in (GCE_PD, AWS_EBS, AZURE_DISK, CINDER, PORTWORX)
}
"""The migrated plugins that matter to scheduling, by name, which is also the provisioner."""


class InTreeVolume(NamedTuple):
    """An in-tree volume with its handle in the CSI driver."""

    plugin: InTreePlugin
    handle: str


def is_migratable(volume: Volume) -> bool:
    """Whether the inline volume belongs to an in-tree plugin that a CSI driver replaces."""
    return (
        volume.gce_persistent_disk is not None
        or volume.aws_elastic_block_store is not None
        or volume.azure_disk is not None
        or volume.cinder is not None
        or volume.portworx_volume is not None
        or volume.azure_file is not None
        or volume.vsphere_volume is not None
    )


def in_tree_volume(volume: Volume) -> InTreeVolume | None:
    """The inline volume of a pod, if the scheduler handles its migration."""
    return _in_tree(volume, "UNSPECIFIED")


def in_tree_persistent_volume(volume: PersistentVolume) -> InTreeVolume | None:
    """The in-tree volume of a PersistentVolume, if the scheduler handles its migration."""
    gce_zone = "UNSPECIFIED"
    if volume.spec.gce_persistent_disk is not None:
        zones = _zones_of_labels(volume)
        gce_zone = zones[0] if len(zones) == 1 else gce_zone
    return _in_tree(volume.spec, gce_zone)


def _in_tree(source: Volume | PersistentVolumeSpec, gce_zone: str) -> InTreeVolume | None:
    if source.gce_persistent_disk is not None:
        disk = source.gce_persistent_disk.pd_name
        handle = f"projects/UNSPECIFIED/zones/{gce_zone}/disks/{disk}"
        return InTreeVolume(GCE_PD, handle)
    if source.aws_elastic_block_store is not None:
        # ``aws://zone/vol-1`` and ``vol-1`` are the same volume.
        volume_id = source.aws_elastic_block_store.volume_id
        handle = volume_id.rsplit("/", 1)[-1] if volume_id.startswith("aws://") else volume_id
        return InTreeVolume(AWS_EBS, handle)
    if source.azure_disk is not None:
        return InTreeVolume(AZURE_DISK, source.azure_disk.data_disk_uri)
    if source.cinder is not None:
        return InTreeVolume(CINDER, source.cinder.volume_id)
    if source.portworx_volume is not None:
        return InTreeVolume(PORTWORX, source.portworx_volume.volume_id)
    return None


def migrated_plugins(node: CSINode) -> frozenset[str]:
    """The names of the in-tree plugins that the node lists as migrated."""
    listed = node.metadata.annotations.migrated_plugins
    return frozenset(listed.split(",")) if listed else frozenset()


def translated(volume: PersistentVolume, plugin: InTreePlugin) -> PersistentVolume:
    """The volume with its zone under the driver's own label.

    If the node affinity has no zone, the zone of the volume's labels is added.
    """
    if not plugin.topology_key:
        return volume
    zone_label = _zone_label(volume)
    affinity = volume.spec.node_affinity
    selector = affinity.required if affinity is not None else None
    if selector is not None and _uses_key(selector, zone_label):
        selector = _with_key_renamed(selector, zone_label, plugin.topology_key)
    else:
        zones = _zones_of_labels(volume)
        if not zones:
            return volume
        selector = _with_zones(selector, plugin.topology_key, zones)
    replace = msgspec.structs.replace
    return replace(
        volume, spec=replace(volume.spec, node_affinity=VolumeNodeAffinity(required=selector))
    )


def _zone_label(volume: PersistentVolume) -> str:
    """The zone label of the volume: the GA label unless only beta ones occur
    (``getTopologyLabel``)."""
    affinity = volume.spec.node_affinity
    selector = affinity.required if affinity is not None else None

    def occurs(label: str) -> bool:
        return label in volume.labels or (selector is not None and _uses_key(selector, label))

    if occurs(ZONE_LABEL) or occurs(REGION_LABEL):
        return ZONE_LABEL
    beta = occurs(BETA_ZONE_LABEL) or occurs(BETA_REGION_LABEL)
    return BETA_ZONE_LABEL if beta else ZONE_LABEL


def _zones_of_labels(volume: PersistentVolume) -> tuple[str, ...]:
    text = volume.labels.get(_zone_label(volume), "")
    return tuple(text.split(ZONE_DELIMITER)) if text else ()


def _uses_key(selector: NodeSelector, key: str) -> bool:
    return any(
        requirement.key == key and requirement.values
        for term in selector.node_selector_terms
        for requirement in term.match_expressions
    )


def _with_key_renamed(selector: NodeSelector, old: str, new: str) -> NodeSelector:
    replace = msgspec.structs.replace
    return NodeSelector(
        node_selector_terms=tuple(
            replace(
                term,
                match_expressions=tuple(
                    replace(requirement, key=new) if requirement.key == old else requirement
                    for requirement in term.match_expressions
                ),
            )
            for term in selector.node_selector_terms
        )
    )


def _with_zones(selector: NodeSelector | None, key: str, zones: tuple[str, ...]) -> NodeSelector:
    """Every term with the zones as an additional requirement."""
    added = NodeSelectorRequirement(key=key, operator="In", values=zones)
    if selector is None or not selector.node_selector_terms:
        return NodeSelector(node_selector_terms=(NodeSelectorTerm(match_expressions=(added,)),))
    return NodeSelector(
        node_selector_terms=tuple(
            msgspec.structs.replace(term, match_expressions=(*term.match_expressions, added))
            for term in selector.node_selector_terms
        )
    )


NO_LIMIT = MAX_INT64


def volume_limits(node: CSINode) -> dict[str, int]:
    """Attach limits by driver, for drivers that report one."""
    return {
        driver.name: driver.allocatable.count
        for driver in node.spec.drivers
        if driver.allocatable is not None and driver.allocatable.count is not None
    }


class CsiNodes:
    """Attach limits and migrated plugins by row, cached until a CSINode or the nodes change."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._version: tuple[int, int, int] | None = None
        self._limits: dict[str, Int64Column] = {}
        self._migrated: dict[str, BoolColumn] = {}

    def limit(self, driver: str, nodes: Nodes) -> Int64Column | None:
        """The attach limit of each node, :data:`NO_LIMIT` if it reports none; None if no node
        reports one."""
        self._refresh()
        column = self._limits.get(driver)
        return None if column is None else nodes.align(column)

    def migrated(self, plugin: str, nodes: Nodes) -> BoolColumn:
        """On which nodes the CSI driver attaches the in-tree plugin's volumes."""
        self._refresh()
        column = self._migrated.get(plugin)
        return np.zeros(nodes.size, np.bool_) if column is None else nodes.align(column)

    def _refresh(self) -> None:
        nodes = self._cluster.nodes
        version = (self._cluster.objects_version(CSINode), nodes.version, nodes.size)
        if version == self._version:
            return
        self._version = version
        self._limits.clear()
        self._migrated.clear()
        for csi_node in self._cluster.objects(CSINode).values():
            row = nodes.row_of(csi_node.name)
            if row is None:
                continue
            for driver, limit in volume_limits(csi_node).items():
                column = self._limits.get(driver)
                if column is None:
                    column = self._limits[driver] = np.full(nodes.size, NO_LIMIT, np.int64)
                column[row] = limit
            for plugin in migrated_plugins(csi_node):
                if plugin not in self._migrated:
                    self._migrated[plugin] = np.zeros(nodes.size, np.bool_)
                self._migrated[plugin][row] = True
