"""VolumeRestrictions: disk conflicts on a node, and ReadWriteOncePod claims."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import ClassVar

import msgspec
import numpy as np

from asched.framework.cycle_state import CycleState, StateKey
from asched.framework.events import ActionType, ClusterEventWithHint, EventResource, QueueingHint
from asched.framework.interface import (
    EnqueueExtensions,
    FilterAllPlugin,
    PreFilterExtensions,
    PreFilterPlugin,
    PreFilterResult,
)
from asched.framework.nodes import BoolColumn, FilterResult, NodeInfo, Nodes
from asched.framework.pod_info import PodInfo
from asched.framework.status import SUCCESS, Status
from asched.framework.volumes import claim_not_found, claims_of, is_disk, own_claim_changed
from asched.model.meta import Object
from asched.model.pod import Pod, Volume
from asched.model.storage import PersistentVolumeClaim
from asched.plugins.shared import PROCEED, SKIP, queue_if

DISK_TAKEN = Status.unschedulable("node(s) had no available disk")
CLAIM_IN_USE = Status.unschedulable(
    "node(s) unavailable due to PersistentVolumeClaim with ReadWriteOncePod access mode already"
    " in-use by another pod"
)
READ_WRITE_ONCE_POD = "ReadWriteOncePod"


class SinglePodClaims(msgspec.Struct):
    """The pod's ReadWriteOncePod claims, and how many uses of them other assigned pods have."""

    namespace: str
    names: frozenset[str]
    users: int

    def update(self, pod: PodInfo, sign: int) -> None:
        """Add a pod (1) or remove it (-1)."""
        if pod.namespace != self.namespace:
            return
        for claim in claims_of(pod.pod):
            if not claim.ephemeral and claim.name in self.names:
                self.users += sign


_CLAIMS: StateKey[SinglePodClaims] = StateKey("VolumeRestrictions/prefilter")


class VolumeRestrictions(PreFilterPlugin, PreFilterExtensions, FilterAllPlugin, EnqueueExtensions):
    """Rejects nodes on which another pod uses the same inline disk, and all nodes while another pod
    uses a ReadWriteOncePod claim of the pod.

    Disks are GCE PDs, EBS volumes, iSCSI targets and RBD images. All except EBS volumes can be
    shared read-only.
    """

    name: ClassVar[str] = "VolumeRestrictions"
    api_version: ClassVar[int] = 1
    applies_per_template: ClassVar[bool] = True

    def applies_to(self, pod: PodInfo) -> bool:
        return any(
            volume.persistent_volume_claim is not None or is_disk(volume)
            for volume in pod.pod.spec.volumes
        )

    def pre_filter(self, state: CycleState, pod: PodInfo, nodes: Nodes) -> PreFilterResult:
        names: set[str] = set()
        has_disk = False
        for volume in pod.pod.spec.volumes:
            if volume.persistent_volume_claim is not None:
                names.add(volume.persistent_volume_claim.claim_name)
            else:
                has_disk = has_disk or is_disk(volume)
        if not names and not has_disk:
            return SKIP
        known = self.handle.cluster.objects(PersistentVolumeClaim)
        single = set()
        for name in sorted(names):
            claim = known.get(f"{pod.namespace}/{name}")
            if claim is None:
                return PreFilterResult(Status.unresolvable(claim_not_found(name)))
            if READ_WRITE_ONCE_POD in claim.spec.access_modes:
                single.add(name)
        mounted = self.handle.cluster.volumes
        # As in kube-scheduler: claims in use here, but uses in AddPod and RemovePod.
        users = sum(mounted.pods_with_claim(f"{pod.namespace}/{name}") > 0 for name in single)
        if not has_disk and not users:
            return SKIP
        state.write(_CLAIMS, SinglePodClaims(pod.namespace, frozenset(single), users))
        return PROCEED

    def add_pod(self, state: CycleState, pod: PodInfo, added: PodInfo, node: NodeInfo) -> Status:
        state.read(_CLAIMS).update(added, 1)
        return SUCCESS

    def remove_pod(
        self, state: CycleState, pod: PodInfo, removed: PodInfo, node: NodeInfo
    ) -> Status:
        state.read(_CLAIMS).update(removed, -1)
        return SUCCESS

    def filter_all(self, state: CycleState, pod: PodInfo, nodes: Nodes) -> FilterResult:
        in_use = state.read(_CLAIMS).users > 0
        codes = np.full(nodes.size, 2 if in_use else 0, np.int16)
        disks = [volume for volume in pod.pod.spec.volumes if is_disk(volume)]
        if disks:
            codes[self._conflicts(disks, nodes)] = 1
        return FilterResult(codes, (DISK_TAKEN, CLAIM_IN_USE))

    def _conflicts(self, disks: Sequence[Volume], nodes: Nodes) -> BoolColumn:
        conflict = np.zeros(nodes.size, np.bool_)
        cluster = self.handle.cluster
        if nodes is cluster.nodes:
            for row, pods in cluster.volumes.pods_with_disks().items():
                conflict[row] = _any_conflict(disks, pods.values())
        else:  # some rows, possibly with hypothetical pods
            for row in range(nodes.size):
                conflict[row] = _any_conflict(disks, nodes.pods(row))
        return conflict

    def events_to_register(self) -> Sequence[ClusterEventWithHint]:
        on = ClusterEventWithHint.on
        return (
            on(EventResource.ASSIGNED_POD, ActionType.DELETE, pod_freed_volume),
            on(EventResource.NODE, ActionType.ADD),
            on(EventResource.PERSISTENT_VOLUME_CLAIM, ActionType.ADD, own_claim_changed),
        )


def pod_freed_volume(pod: Pod, old: Object | None, new: Object | None) -> QueueingHint:
    """Queue if the deleted pod used a disk or a claim of the pod."""
    if not isinstance(old, Pod):
        return QueueingHint.SKIP
    if any(_conflict(one, other) for one in pod.spec.volumes for other in old.spec.volumes):
        return QueueingHint.QUEUE
    if old.namespace != pod.namespace:
        return QueueingHint.SKIP
    freed = {claim.name for claim in claims_of(old) if not claim.ephemeral}
    return queue_if(any(claim.name in freed for claim in claims_of(pod) if not claim.ephemeral))


def _any_conflict(disks: Sequence[Volume], pods: Iterable[PodInfo]) -> bool:
    return any(
        _conflict(wanted, held)
        for other in pods
        for held in other.pod.spec.volumes
        for wanted in disks
    )


def _conflict(wanted: Volume, held: Volume) -> bool:
    """Whether two pods on the same node cannot use these volumes (``isVolumeConflict``)."""
    disk, other = wanted.gce_persistent_disk, held.gce_persistent_disk
    if disk is not None and other is not None:
        return disk.pd_name == other.pd_name and not (disk.read_only and other.read_only)
    ebs, other_ebs = wanted.aws_elastic_block_store, held.aws_elastic_block_store
    if ebs is not None and other_ebs is not None:
        return ebs.volume_id == other_ebs.volume_id
    target, other_target = wanted.iscsi, held.iscsi
    if target is not None and other_target is not None:
        shared = target.read_only and other_target.read_only
        return target.iqn == other_target.iqn and not shared
    image, other_image = wanted.rbd, held.rbd
    if image is not None and other_image is not None:
        same = (image.pool, image.image) == (other_image.pool, other_image.image)
        shared = not set(image.monitors).isdisjoint(other_image.monitors)
        return same and shared and not (image.read_only and other_image.read_only)
    return False
