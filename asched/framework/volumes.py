"""The volumes of pods, and who has which: what the volume plugins share.

A pod reaches a PersistentVolume through a claim: named in the pod, or, for a generic ephemeral
volume, made for that pod alone and named after pod and volume.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple, Protocol

from asched.framework.csi_migration import is_migratable
from asched.framework.nodes import Int64Column
from asched.framework.pod_info import PodInfo
from asched.model.pod import Pod, Volume
from asched.model.storage import PersistentVolumeClaim

STORAGE = "storage"
"""The resource that a claim requests and a volume has a capacity of."""

WAIT_FOR_FIRST_CONSUMER = "WaitForFirstConsumer"


class PodClaim(NamedTuple):
    """A claim that a pod mounts."""

    name: str
    ephemeral: bool
    """A generic ephemeral volume's: the pod must own it."""


def claim_of(pod: Pod, volume: Volume) -> PodClaim | None:
    """The claim behind one of the pod's volumes, None for a volume without one."""
    if volume.persistent_volume_claim is not None:
        return PodClaim(volume.persistent_volume_claim.claim_name, False)
    if volume.ephemeral is not None:
        return PodClaim(f"{pod.name}-{volume.name}", True)
    return None


def claims_of(pod: Pod) -> Iterator[PodClaim]:
    """The claims a pod mounts, in the order of its volumes, possibly one of them twice."""
    for volume in pod.spec.volumes:
        claim = claim_of(pod, volume)
        if claim is not None:
            yield claim


def mounts_claims(pod: Pod) -> bool:
    """Whether the pod mounts any claim, ephemeral ones included."""
    return any(
        volume.persistent_volume_claim is not None or volume.ephemeral is not None
        for volume in pod.spec.volumes
    )


def mounts_claim(pod: Pod, claim: PersistentVolumeClaim) -> bool:
    """Whether the pod mounts this very claim."""
    return pod.namespace == claim.namespace and any(
        mounted.name == claim.name for mounted in claims_of(pod)
    )


def is_owned_by(claim: PersistentVolumeClaim, pod: Pod) -> bool:
    """Whether the claim was made for the pod (``ephemeral.VolumeIsForPod``)."""
    owner = claim.metadata.controller
    return claim.namespace == pod.namespace and owner is not None and owner.uid == pod.uid


def not_owner(claim: PersistentVolumeClaim, pod: Pod) -> str:
    """The words for an ephemeral volume whose claim is somebody else's."""
    return (
        f"PVC {claim.namespace}/{claim.name} was not created for pod {pod.namespace}/{pod.name}"
        " (pod is not owner)"
    )


def claim_not_found(name: str) -> str:
    return f'persistentvolumeclaim "{name}" not found'


def is_attachable(volume: Volume) -> bool:
    """Whether attaching the volume may count against a node's limit."""
    return (
        volume.persistent_volume_claim is not None
        or volume.ephemeral is not None
        or is_migratable(volume)
    )


def is_disk(volume: Volume) -> bool:
    """Whether the pod names a disk itself that pods on one node may not share at will."""
    return (
        volume.gce_persistent_disk is not None
        or volume.aws_elastic_block_store is not None
        or volume.iscsi is not None
        or volume.rbd is not None
    )


class MountedVolumes(Protocol):
    """What the pods on nodes mount, by row of :attr:`asched.framework.cluster.Cluster.nodes`."""

    def pods_with_claim(self, key: str) -> int:
        """How many pods on nodes name the claim ``namespace/name``."""

    def pods_with_disks(self) -> Mapping[int, Mapping[str, PodInfo]]:
        """The pods, by row and uid, that name a disk themselves (:func:`is_disk`)."""

    @property
    def attachable(self) -> Int64Column:
        """How many volumes that may count against a limit (:func:`is_attachable`) the pods of each
        row have; one that several pods share counts for each. Read-only."""
