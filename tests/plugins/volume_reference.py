"""Simple implementations of the volume plugins for one node, on the API objects."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from asched.model.node import Node
from asched.model.pod import Pod, Volume
from asched.model.quantity import thousandths, value
from asched.model.storage import (
    CSIDriver,
    CSINode,
    CSIStorageCapacity,
    PersistentVolume,
    PersistentVolumeClaim,
    StorageClass,
    VolumeAttachment,
)

NODE_CONFLICT = "node(s) didn't match PersistentVolume's node affinity"
NO_MATCH = "node(s) didn't find available persistent volumes to bind"
NO_SPACE = "node(s) did not have enough free storage"
NO_VOLUME = "node(s) unavailable due to one or more pvc(s) bound to non-existent pv(s)"
ZONES = (
    ("failure-domain.beta.kubernetes.io/zone", "topology.kubernetes.io/zone"),
    ("failure-domain.beta.kubernetes.io/region", "topology.kubernetes.io/region"),
    ("topology.kubernetes.io/zone", "topology.kubernetes.io/zone"),
    ("topology.kubernetes.io/region", "topology.kubernetes.io/region"),
)


class Storage(NamedTuple):
    """The storage objects of a cluster, by key."""

    volumes: dict[str, PersistentVolume]
    claims: dict[str, PersistentVolumeClaim]
    classes: dict[str, StorageClass]
    csi_nodes: dict[str, CSINode]
    drivers: dict[str, CSIDriver]
    capacities: list[CSIStorageCapacity]
    attachments: list[VolumeAttachment]

    def claims_of(self, pod: Pod) -> list[PersistentVolumeClaim]:
        """Existing claims in order, without duplicates."""
        named = dict.fromkeys(
            f"{pod.namespace}/{v.persistent_volume_claim.claim_name}"
            for v in pod.spec.volumes
            if v.persistent_volume_claim is not None
        )
        return [self.claims[key] for key in named if key in self.claims]


def reachable(volume: PersistentVolume, node: Node) -> bool:
    affinity = volume.spec.node_affinity
    if affinity is None or affinity.required is None:
        return True
    return affinity.required.matches(node.labels, "")


def size(quantities: dict[str, str | int | float]) -> int:
    return thousandths(quantities.get("storage", 0))


def volume_binding(
    storage: Storage, pod: Pod, node: Node
) -> tuple[list[str], dict[str, str], set[str]]:
    """(reasons of a rejection, volume by claim to bind, claims to provision)."""
    reasons = []
    claims = storage.claims_of(pod)
    for claim in claims:
        if not claim.fully_bound:
            continue
        volume = storage.volumes.get(claim.spec.volume_name)
        if volume is None:
            reasons.append(NO_VOLUME)
            break
        if not reachable(volume, node):
            reasons.append(NODE_CONFLICT)
            break
    unbound = [claim for claim in claims if not claim.fully_bound]
    selected = {c.key: c.metadata.annotations.selected_node for c in unbound}
    if any(chosen not in (None, node.name) for chosen in selected.values()):
        return in_order([*reasons, NO_MATCH]), {}, set()
    bindings: dict[str, str] = {}
    to_make = [claim for claim in unbound if selected[claim.key]]
    rest = [claim for claim in unbound if not selected[claim.key]]
    for claim in sorted(rest, key=lambda c: (size(c.spec.resources.requests), c.name)):
        found = matching(storage, claim, node, set(bindings.values()))
        if found is None:
            to_make.append(claim)
        else:
            bindings[claim.key] = found.name
    for claim in to_make:
        problem = provisioning_problem(storage, claim, node)
        if problem:
            reasons.append(problem)
            break
    return in_order(reasons), bindings, {claim.key for claim in to_make}


def in_order(reasons: list[str]) -> list[str]:
    """Reasons in kube-scheduler's order."""
    return sorted(reasons, key=[NODE_CONFLICT, NO_MATCH, NO_SPACE, NO_VOLUME].index)


def matching(
    storage: Storage, claim: PersistentVolumeClaim, node: Node, taken: set[str]
) -> PersistentVolume | None:
    best: PersistentVolume | None = None
    for volume in sorted(storage.volumes.values(), key=lambda v: v.name):
        reference = volume.spec.claim_ref
        mine = (
            reference is not None
            and f"{reference.namespace}/{reference.name}" == claim.key
            and reference.uid in ("", claim.uid)
        )
        if volume.name in taken or (reference is not None and not mine):
            continue
        if volume.storage_class != claim.storage_class:
            continue
        if size(volume.spec.capacity) < size(claim.spec.resources.requests):
            continue
        classes = (each.spec.volume_attributes_class_name or "" for each in (volume, claim))
        if volume.spec.volume_mode != claim.spec.volume_mode or len({*classes}) > 1:
            continue
        if volume.metadata.deletion_timestamp is not None:
            continue
        if mine:
            return volume if reachable(volume, node) else None
        selector = claim.spec.selector
        if (
            volume.status.phase == "Available"
            and (selector is None or selector.matches(volume.labels))
            and reachable(volume, node)
            and all(mode in volume.spec.access_modes for mode in claim.spec.access_modes)
            and (best is None or size(volume.spec.capacity) < size(best.spec.capacity))
        ):
            best = volume
    return best


def provisioning_problem(storage: Storage, claim: PersistentVolumeClaim, node: Node) -> str:
    made_by = storage.classes[claim.storage_class]
    if made_by.provisioner in ("", "kubernetes.io/no-provisioner"):
        return NO_MATCH
    terms = made_by.allowed_topologies
    if terms and not any(
        term.match_label_expressions
        and all(node.labels.get(e.key) in e.values for e in term.match_label_expressions)
        for term in terms
    ):
        return NO_MATCH
    driver = storage.drivers.get(made_by.provisioner)
    asked = claim.spec.resources.requests.get("storage")
    if asked is None or driver is None or not driver.spec.storage_capacity:
        return ""
    for pool in storage.capacities:
        limit = pool.maximum_volume_size if pool.maximum_volume_size is not None else pool.capacity
        if (
            pool.storage_class_name == made_by.name
            and pool.node_topology is not None
            and pool.node_topology.matches(node.labels)
            and limit is not None
            and value(limit) >= value(asked)
        ):
            return ""
    return NO_SPACE


def in_zone(storage: Storage, pod: Pod, node: Node) -> bool:
    if not any(label in node.labels for label, _ in ZONES):
        return True
    for claim in storage.claims_of(pod):
        volume = storage.volumes.get(claim.spec.volume_name)
        if volume is None:
            continue
        for label, general in ZONES:
            zones = [zone.strip() for zone in volume.labels.get(label, "").split("__")]
            if all(zones) and node.labels.get(label, node.labels.get(general)) not in zones:
                return False
    return True


def shares_disk(wanted: Volume, held: Volume) -> bool:
    one, other = wanted.gce_persistent_disk, held.gce_persistent_disk
    if one and other and one.pd_name == other.pd_name:
        return not (one.read_only and other.read_only)
    ebs, other_ebs = wanted.aws_elastic_block_store, held.aws_elastic_block_store
    if ebs and other_ebs:
        return ebs.volume_id == other_ebs.volume_id
    rbd, other_rbd = wanted.rbd, held.rbd
    if rbd and other_rbd and (rbd.image, rbd.pool) == (other_rbd.image, other_rbd.pool):
        overlap = set(rbd.monitors) & set(other_rbd.monitors)
        return bool(overlap) and not (rbd.read_only and other_rbd.read_only)
    return False


def disk_conflict(pod: Pod, here: Iterable[Pod]) -> bool:
    return any(
        shares_disk(wanted, held)
        for other in here
        for held in other.spec.volumes
        for wanted in pod.spec.volumes
    )


def too_many_volumes(storage: Storage, pod: Pod, node: Node, here: Sequence[Pod]) -> bool:
    csi_node = storage.csi_nodes.get(node.name)
    if csi_node is None:
        return False
    held = {handle for other in here for handle in handles(storage, other)}
    for attachment in storage.attachments:
        volume = storage.volumes.get(attachment.spec.source.persistent_volume_name)
        if attachment.spec.node_name == node.name and volume is not None and volume.spec.csi:
            held.add((attachment.spec.attacher, volume.spec.csi.volume_handle))
    new = handles(storage, pod) - held
    for driver in csi_node.spec.drivers:
        adding = sum(name == driver.name for name, _ in new)
        holding = sum(name == driver.name for name, _ in held)
        limit = driver.allocatable.count if driver.allocatable is not None else None
        if adding and limit is not None and adding + holding > limit:
            return True
    return False


def handles(storage: Storage, pod: Pod) -> set[tuple[str, str]]:
    found = set()
    for claim in storage.claims_of(pod):
        volume = storage.volumes.get(claim.spec.volume_name)
        made_by = storage.classes.get(claim.storage_class)
        if volume is not None:
            if volume.spec.csi is not None:
                found.add((volume.spec.csi.driver, volume.spec.csi.volume_handle))
        elif made_by is not None:
            found.add((made_by.provisioner, f"unbound {claim.key}"))
    for inline in pod.spec.volumes:
        if inline.aws_elastic_block_store is not None:
            found.add(("ebs.csi.aws.com", inline.aws_elastic_block_store.volume_id))
        if inline.gce_persistent_disk is not None:
            disk = inline.gce_persistent_disk.pd_name
            handle = f"projects/UNSPECIFIED/zones/UNSPECIFIED/disks/{disk}"
            found.add(("pd.csi.storage.gke.io", handle))
    return found
