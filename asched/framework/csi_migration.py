"""In-tree volume plugins that CSI drivers took over (CSI migration).

Kubernetes still accepts the old volume sources; a node whose CSINode lists a plugin as migrated
attaches them through the plugin's CSI driver, under that driver's names. Source:
``k8s.io/csi-translation-lib`` of 1.36.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from asched.model.node import REGION_LABEL, ZONE_LABEL
from asched.model.pod import Volume
from asched.model.selectors import NodeSelector, NodeSelectorRequirement, NodeSelectorTerm
from asched.model.storage import CSINode, PersistentVolume, VolumeNodeAffinity

BETA_ZONE_LABEL = "failure-domain.beta.kubernetes.io/zone"
BETA_REGION_LABEL = "failure-domain.beta.kubernetes.io/region"
ZONE_DELIMITER = "__"
"""Between the zones of a volume that is in several."""


class InTreePlugin(NamedTuple):
    """An in-tree plugin and the CSI driver in its place."""

    name: str
    driver: str
    topology_key: str
    """The node label by which the driver tells zones apart; empty where it has none."""
    limit_needs_listing: bool = False
    """Its volumes count against the driver's limit only on nodes that list it as migrated; those of
    the plugins migrated for good count on every node."""


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
"""The plugins whose migration the scheduler heeds, by name (and so by provisioner)."""


class InTreeVolume(NamedTuple):
    """An in-tree volume as the CSI driver would know it."""

    plugin: InTreePlugin
    handle: str


def is_migratable(volume: Volume) -> bool:
    """Whether the pod names an in-tree volume of a kind that some CSI driver took over."""
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
    """The in-tree volume that a pod names itself, if its migration matters."""
    if volume.gce_persistent_disk is not None:
        return InTreeVolume(GCE_PD, _gce_handle("UNSPECIFIED", volume.gce_persistent_disk.pd_name))
    if volume.aws_elastic_block_store is not None:
        return InTreeVolume(AWS_EBS, _ebs_handle(volume.aws_elastic_block_store.volume_id))
    if volume.azure_disk is not None:
        return InTreeVolume(AZURE_DISK, volume.azure_disk.data_disk_uri)
    if volume.cinder is not None:
        return InTreeVolume(CINDER, volume.cinder.volume_id)
    if volume.portworx_volume is not None:
        return InTreeVolume(PORTWORX, volume.portworx_volume.volume_id)
    return None


def in_tree_persistent_volume(volume: PersistentVolume) -> InTreeVolume | None:
    """The in-tree volume of a PersistentVolume, if it is one whose migration matters."""
    spec = volume.spec
    if spec.gce_persistent_disk is not None:
        zones = _zones_of_labels(volume)
        zone = zones[0] if len(zones) == 1 else "UNSPECIFIED"
        return InTreeVolume(GCE_PD, _gce_handle(zone, spec.gce_persistent_disk.pd_name))
    if spec.aws_elastic_block_store is not None:
        return InTreeVolume(AWS_EBS, _ebs_handle(spec.aws_elastic_block_store.volume_id))
    if spec.azure_disk is not None:
        return InTreeVolume(AZURE_DISK, spec.azure_disk.data_disk_uri)
    if spec.cinder is not None:
        return InTreeVolume(CINDER, spec.cinder.volume_id)
    if spec.portworx_volume is not None:
        return InTreeVolume(PORTWORX, spec.portworx_volume.volume_id)
    return None


def _gce_handle(zone: str, disk: str) -> str:
    return f"projects/UNSPECIFIED/zones/{zone}/disks/{disk}"


def _ebs_handle(volume_id: str) -> str:
    """``aws://zone/vol-1`` and ``vol-1`` are the same volume."""
    return volume_id.rsplit("/", 1)[-1] if volume_id.startswith("aws://") else volume_id


def migrated_plugins(node: CSINode) -> frozenset[str]:
    """The plugins that the node has migrated, by name."""
    listed = node.metadata.annotations.migrated_plugins
    return frozenset(listed.split(",")) if listed else frozenset()


# -- topology -----------------------------------------------------------------------------------


def translated(volume: PersistentVolume, plugin: InTreePlugin) -> PersistentVolume:
    """The volume as the CSI driver sees it: its zone under the driver's own label.

    Where the node affinity names no zone, that of the volume's labels is added to it.
    """
    if not plugin.topology_key:
        return volume
    zone_label = _zone_label(volume)
    affinity = volume.spec.node_affinity
    selector = affinity.required if affinity is not None else None
    if selector is not None and _names(selector, zone_label):
        selector = _relabelled(selector, zone_label, plugin.topology_key)
    else:
        zones = _zones_of_labels(volume)
        if not zones:
            return volume
        selector = _narrowed(selector, plugin.topology_key, zones)
    replace = msgspec.structs.replace
    return replace(
        volume, spec=replace(volume.spec, node_affinity=VolumeNodeAffinity(required=selector))
    )


def _zone_label(volume: PersistentVolume) -> str:
    """The zone label in use: the general one unless only the beta one occurs (``getTopologyLabel``)."""
    affinity = volume.spec.node_affinity
    selector = affinity.required if affinity is not None else None
    for general in (ZONE_LABEL, REGION_LABEL):
        if general in volume.labels or (selector is not None and _names(selector, general)):
            return ZONE_LABEL
    for beta in (BETA_ZONE_LABEL, BETA_REGION_LABEL):
        if beta in volume.labels or (selector is not None and _names(selector, beta)):
            return BETA_ZONE_LABEL
    return ZONE_LABEL


def _zones_of_labels(volume: PersistentVolume) -> tuple[str, ...]:
    text = volume.labels.get(_zone_label(volume), "")
    return tuple(text.split(ZONE_DELIMITER)) if text else ()


def _names(selector: NodeSelector, key: str) -> bool:
    return any(
        requirement.key == key and requirement.values
        for term in selector.node_selector_terms
        for requirement in term.match_expressions
    )


def _relabelled(selector: NodeSelector, old: str, new: str) -> NodeSelector:
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


def _narrowed(selector: NodeSelector | None, key: str, zones: tuple[str, ...]) -> NodeSelector:
    """Every term with the zones required as well."""
    added = NodeSelectorRequirement(key=key, operator="In", values=zones)
    if selector is None or not selector.node_selector_terms:
        return NodeSelector(node_selector_terms=(NodeSelectorTerm(match_expressions=(added,)),))
    return NodeSelector(
        node_selector_terms=tuple(
            msgspec.structs.replace(term, match_expressions=(*term.match_expressions, added))
            for term in selector.node_selector_terms
        )
    )
