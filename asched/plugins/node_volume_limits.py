"""NodeVolumeLimits: a node can have only so many volumes of a CSI driver attached."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar, NamedTuple

import numpy as np

from asched.framework.cluster import Handle
from asched.framework.cycle_state import CycleState
from asched.framework.events import ActionType, ClusterEventWithHint, EventResource, QueueingHint
from asched.framework.interface import (
    EnqueueExtensions,
    FilterAllPlugin,
    PreFilterPlugin,
    PreFilterResult,
)
from asched.framework.nodes import BoolColumn, FilterResult, Int64Column, Nodes
from asched.framework.pod_info import PodInfo
from asched.framework.status import SUCCESS, Status
from asched.framework.volumes import (
    MIGRATED,
    NO_LIMIT,
    CsiNodes,
    InTreePlugin,
    claim_not_found,
    claim_of,
    in_tree_persistent_volume,
    in_tree_volume,
    is_attachable,
    is_owned_by,
    migrated_plugins,
    mounts_claim,
    not_owner,
    volume_limits,
)
from asched.model.meta import Object
from asched.model.pod import Pod
from asched.model.storage import (
    CSINode,
    PersistentVolume,
    PersistentVolumeClaim,
    StorageClass,
    VolumeAttachment,
)

TOO_MANY = Status.unschedulable("node(s) exceed max volume count")

_PROCEED = PreFilterResult(SUCCESS)
_SKIP = PreFilterResult(Status.skip())


class Attachment(NamedTuple):
    """A volume as one attachment to a node: several pods of the node share it."""

    driver: str
    handle: str
    plugin: str = ""
    """An in-tree plugin that must be migrated on the node for this to count; empty for none."""

    @classmethod
    def of(cls, plugin: InTreePlugin, handle: str) -> Attachment | None:
        """Of an in-tree volume, as its CSI driver attaches it; None for one without a name."""
        if not handle:
            return None
        return cls(plugin.driver, handle, plugin.name if plugin.limit_needs_listing else "")


class _NoClaim(Exception):  # noqa: N818  carries a rejection out of a loop
    def __init__(self, status: Status) -> None:
        self.status = status


class NodeVolumeLimits(PreFilterPlugin, FilterAllPlugin, EnqueueExtensions):
    """Rejects nodes where the pod's new volumes would exceed what the node's CSINode allows of a
    driver. Volumes count once a node, whoever mounts them, also while they are merely attached."""

    name: ClassVar[str] = "NodeVolumeLimits"
    api_version: ClassVar[int] = 1
    applies_per_template: ClassVar[bool] = True

    def __init__(self, args: None, handle: Handle) -> None:
        super().__init__(args, handle)
        self._csi_nodes = CsiNodes(handle.cluster)
        self._attached = _AttachedVolumes(handle)

    def applies_to(self, pod: PodInfo) -> bool:
        return any(map(is_attachable, pod.pod.spec.volumes))

    def pre_filter(self, state: CycleState, pod: PodInfo, nodes: Nodes) -> PreFilterResult:
        return _PROCEED if self.applies_to(pod) else _SKIP

    def filter_all(self, state: CycleState, pod: PodInfo, nodes: Nodes) -> FilterResult:
        try:
            wanted = set(self._attachments(pod.pod, is_new=True))
        except _NoClaim as missing:
            return FilterResult.reject(np.ones(nodes.size, np.bool_), missing.status)
        doubtful = self._doubtful(wanted, nodes)
        codes = np.zeros(nodes.size, np.int16)
        if doubtful is not None:
            for row in np.flatnonzero(doubtful & nodes.alive).tolist():
                codes[row] = self._exceeds(wanted, nodes, row)
        return FilterResult(codes, (TOO_MANY,))

    def _doubtful(self, wanted: set[Attachment], nodes: Nodes) -> BoolColumn | None:
        """Where the limit might be exceeded; None for nowhere.

        All that pods mount and all that is attached, whatever the driver and counted as often as it
        is named, is no less than what counts: below the limit even so, a node need not be asked.
        """
        cluster = self.handle.cluster
        found: BoolColumn | None = None
        at_most: Int64Column | None = None
        for driver, number in Counter(attachment.driver for attachment in wanted).items():
            limit = self._csi_nodes.limit(driver, nodes)
            if limit is None:
                continue
            if nodes is not cluster.nodes:
                # Possibly with pods tried on: the counts are not those of the cluster.
                over: BoolColumn = limit < NO_LIMIT
            else:
                if at_most is None:
                    at_most = cluster.volumes.attachable + self._attached.counts()
                over = limit < at_most + number
            found = over if found is None else found | over
        return found

    def _exceeds(self, wanted: set[Attachment], nodes: Nodes, row: int) -> bool:
        """The exact answer for one node."""
        csi_node = self.handle.cluster.objects(CSINode).get(nodes.names[row])
        if csi_node is None:
            return False
        migrated = migrated_plugins(csi_node)
        new = {(a.driver, a.handle) for a in wanted if not a.plugin or a.plugin in migrated}
        held = {
            (a.driver, a.handle)
            for pod in nodes.pods(row)
            for a in self._attachments(pod.pod, is_new=False)
            if not a.plugin or a.plugin in migrated
        }
        held |= self._attached.on(csi_node.name)
        adding = Counter(driver for driver, _ in new - held)
        holding = Counter(driver for driver, _ in held)
        limits = volume_limits(csi_node)
        return any(
            driver in limits and holding[driver] + number > limits[driver]
            for driver, number in adding.items()
        )

    def _attachments(self, pod: Pod, *, is_new: bool) -> Iterator[Attachment]:
        """What a pod has attached. A claim that is missing is an error for the pod that is to be
        placed, and uncounted for one that is on a node."""
        known = self.handle.cluster.objects(PersistentVolumeClaim)
        for volume in pod.spec.volumes:
            mounted = claim_of(pod, volume)
            if mounted is None:
                in_tree = in_tree_volume(volume)
                attachment = None if in_tree is None else Attachment.of(*in_tree)
                if attachment is not None:
                    yield attachment
                continue
            claim = known.get(f"{pod.namespace}/{mounted.name}")
            if claim is None:
                if is_new:
                    where = f"looking up PVC {pod.namespace}/{mounted.name}"
                    reason = f"{where}: {claim_not_found(mounted.name)}"
                    raise _NoClaim(Status.unresolvable(reason))
                continue
            if mounted.ephemeral and not is_owned_by(claim, pod):
                if is_new:
                    raise _NoClaim(Status.error(not_owner(claim, pod)))
                continue
            attachment = self._attachment(claim)
            if attachment is not None:
                yield attachment

    def _attachment(self, claim: PersistentVolumeClaim) -> Attachment | None:
        """By its volume, or, while it has none, by its class's provisioner."""
        volume = self.handle.cluster.objects(PersistentVolume).get(claim.spec.volume_name)
        if volume is None:
            return self._to_come(claim)
        if volume.spec.csi is not None:
            csi = volume.spec.csi
            return Attachment(csi.driver, csi.volume_handle) if csi.volume_handle else None
        in_tree = in_tree_persistent_volume(volume)
        return None if in_tree is None else Attachment.of(*in_tree)

    def _to_come(self, claim: PersistentVolumeClaim) -> Attachment | None:
        """The volume that is yet to be bound: no two claims will have the same."""
        storage_class = self.handle.cluster.objects(StorageClass).get(claim.storage_class)
        if storage_class is None or not storage_class.provisioner:
            return None
        handle = f"to come/{claim.key}"
        plugin = MIGRATED.get(storage_class.provisioner)
        if plugin is not None:
            return Attachment.of(plugin, handle)
        return Attachment(storage_class.provisioner, handle)

    def events_to_register(self) -> Sequence[ClusterEventWithHint]:
        return (
            ClusterEventWithHint.on(EventResource.CSI_NODE, ActionType.ADD),
            ClusterEventWithHint.on(EventResource.CSI_NODE, ActionType.UPDATE, limit_was_raised),
            ClusterEventWithHint.on(
                EventResource.ASSIGNED_POD, ActionType.DELETE, detached_volumes
            ),
            ClusterEventWithHint.on(
                EventResource.PERSISTENT_VOLUME_CLAIM, ActionType.ADD, own_claim_came
            ),
            ClusterEventWithHint.on(
                EventResource.VOLUME_ATTACHMENT, ActionType.DELETE, was_detached
            ),
        )


class _AttachedVolumes:
    """What VolumeAttachments say is attached where."""

    def __init__(self, handle: Handle) -> None:
        self._handle = handle
        self._version = -1
        self._by_node: dict[str, list[VolumeAttachment]] = {}
        self._counted: tuple[int, int, int] | None = None
        self._counts: Int64Column = np.zeros(0, np.int64)

    def on(self, node_name: str) -> set[tuple[str, str]]:
        """Driver and handle of every volume attached to a node."""
        volumes = self._handle.cluster.objects(PersistentVolume)
        found = set()
        for attachment in self._attachments().get(node_name, ()):
            volume = volumes.get(attachment.spec.source.persistent_volume_name)
            if volume is not None and volume.spec.csi is not None and attachment.spec.attacher:
                found.add((attachment.spec.attacher, volume.spec.csi.volume_handle))
        return found

    def counts(self) -> Int64Column:
        """How many VolumeAttachments each row's node has."""
        nodes = self._handle.cluster.nodes
        by_node = self._attachments()
        version = (self._version, nodes.version, nodes.size)
        if version != self._counted:
            self._counted = version
            self._counts = np.zeros(nodes.size, np.int64)
            for name, attachments in by_node.items():
                row = nodes.row_of(name)
                if row is not None:
                    self._counts[row] = len(attachments)
        return self._counts

    def _attachments(self) -> Mapping[str, Sequence[VolumeAttachment]]:
        cluster = self._handle.cluster
        version = cluster.objects_version(VolumeAttachment)
        if version != self._version:
            self._version = version
            self._by_node = {}
            for attachment in cluster.objects(VolumeAttachment).values():
                self._by_node.setdefault(attachment.spec.node_name, []).append(attachment)
        return self._by_node


def limit_was_raised(pod: Pod, old: Object | None, new: Object | None) -> QueueingHint:
    """The node takes more volumes of some driver than before."""
    if not isinstance(old, CSINode) or not isinstance(new, CSINode):
        return QueueingHint.SKIP
    before = volume_limits(old)
    raised = any(limit > before.get(driver, 0) for driver, limit in volume_limits(new).items())
    return QueueingHint.QUEUE if raised else QueueingHint.SKIP


def detached_volumes(pod: Pod, old: Object | None, new: Object | None) -> QueueingHint:
    """The deleted pod was on a node and had something attached there."""
    freed = (
        isinstance(old, Pod)
        and (old.node_name or old.status.nominated_node_name)
        and any(map(is_attachable, old.spec.volumes))
    )
    return QueueingHint.QUEUE if freed else QueueingHint.SKIP


def own_claim_came(pod: Pod, old: Object | None, new: Object | None) -> QueueingHint:
    """The claim that was missing is there."""
    own = isinstance(new, PersistentVolumeClaim) and mounts_claim(pod, new)
    return QueueingHint.QUEUE if own else QueueingHint.SKIP


def was_detached(pod: Pod, old: Object | None, new: Object | None) -> QueueingHint:
    """A volume was detached, which may be of a driver that the waiting pod needs."""
    if not isinstance(old, VolumeAttachment):
        return QueueingHint.SKIP
    for volume in pod.spec.volumes:
        if claim_of(pod, volume) is not None:
            return QueueingHint.QUEUE
        in_tree = in_tree_volume(volume)
        if in_tree is not None and in_tree.plugin.driver == old.spec.attacher:
            return QueueingHint.QUEUE
    return QueueingHint.SKIP
