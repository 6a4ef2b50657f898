"""NodeVolumeLimits: filters by the maximum number of attached volumes per CSI driver."""

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
from asched.framework.status import Status
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
    not_owner,
    own_claim_changed,
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
from asched.plugins.shared import PROCEED, SKIP, queue_if

TOO_MANY = Status.unschedulable("node(s) exceed max volume count")


class Attachment(NamedTuple):
    """A volume attached to a node; pods on the node share it."""

    driver: str
    handle: str
    plugin: str = ""
    """If not empty, it counts only if the node has migrated this in-tree plugin."""

    @classmethod
    def of(cls, plugin: InTreePlugin, handle: str) -> Attachment | None:
        """The attachment of an in-tree volume by its CSI driver; None without a handle."""
        if not handle:
            return None
        return cls(plugin.driver, handle, plugin.name if plugin.limit_needs_listing else "")


class _MissingClaim(Exception):  # noqa: N818  ends Filter with a status
    def __init__(self, status: Status) -> None:
        self.status = status


class NodeVolumeLimits(PreFilterPlugin, FilterAllPlugin, EnqueueExtensions):
    """Rejects nodes on which the pod's volumes would exceed a limit of the CSINode.

    A volume counts once per node, whether pods mount it or it is only attached.
    """

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
        return PROCEED if self.applies_to(pod) else SKIP

    def filter_all(self, state: CycleState, pod: PodInfo, nodes: Nodes) -> FilterResult:
        try:
            new = set(self._attachments(pod.pod, is_new=True))
        except _MissingClaim as missing:
            return FilterResult.reject(np.ones(nodes.size, np.bool_), missing.status)
        candidates = self._may_exceed(new, nodes)
        codes = np.zeros(nodes.size, np.int16)
        if candidates is not None:
            for row in np.flatnonzero(candidates & nodes.alive).tolist():
                codes[row] = self._exceeds(new, nodes, row)
        return FilterResult(codes, (TOO_MANY,))

    def _may_exceed(self, new: set[Attachment], nodes: Nodes) -> BoolColumn | None:
        """Rows on which a limit may be exceeded; None for none. Compares the limit with an upper
        bound: mounted plus attached volumes, for any driver and including duplicates."""
        cluster = self.handle.cluster
        found: BoolColumn | None = None
        upper_bound: Int64Column | None = None
        for driver, number in Counter(attachment.driver for attachment in new).items():
            limit = self._csi_nodes.limit(driver, nodes)
            if limit is None:
                continue
            if nodes is not cluster.nodes:
                # With hypothetical pods the counts of the cluster do not apply.
                over: BoolColumn = limit < NO_LIMIT
            else:
                if upper_bound is None:
                    upper_bound = cluster.volumes.attachable + self._attached.counts()
                over = limit < upper_bound + number
            found = over if found is None else found | over
        return found

    def _exceeds(self, requested: set[Attachment], nodes: Nodes, row: int) -> bool:
        """The exact result for one node."""
        csi_node = self.handle.cluster.objects(CSINode).get(nodes.names[row])
        if csi_node is None:
            return False
        migrated = migrated_plugins(csi_node)
        new = {(a.driver, a.handle) for a in requested if not a.plugin or a.plugin in migrated}
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
        """The volumes of a pod. A missing claim rejects the incoming pod, and is ignored for
        others."""
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
                    raise _MissingClaim(Status.unresolvable(reason))
                continue
            if mounted.ephemeral and not is_owned_by(claim, pod):
                if is_new:
                    raise _MissingClaim(Status.error(not_owner(claim, pod)))
                continue
            attachment = self._attachment(claim)
            if attachment is not None:
                yield attachment

    def _attachment(self, claim: PersistentVolumeClaim) -> Attachment | None:
        """By its volume or, if it has none yet, by its class's provisioner."""
        volume = self.handle.cluster.objects(PersistentVolume).get(claim.spec.volume_name)
        if volume is None:
            return self._unbound(claim)
        if volume.spec.csi is not None:
            csi = volume.spec.csi
            return Attachment(csi.driver, csi.volume_handle) if csi.volume_handle else None
        in_tree = in_tree_persistent_volume(volume)
        return None if in_tree is None else Attachment.of(*in_tree)

    def _unbound(self, claim: PersistentVolumeClaim) -> Attachment | None:
        """The future volume of a claim; distinct for each claim."""
        storage_class = self.handle.cluster.objects(StorageClass).get(claim.storage_class)
        if storage_class is None or not storage_class.provisioner:
            return None
        handle = f"unbound/{claim.key}"
        plugin = MIGRATED.get(storage_class.provisioner)
        if plugin is not None:
            return Attachment.of(plugin, handle)
        return Attachment(storage_class.provisioner, handle)

    def events_to_register(self) -> Sequence[ClusterEventWithHint]:
        on = ClusterEventWithHint.on
        return (
            on(EventResource.CSI_NODE, ActionType.ADD),
            on(EventResource.CSI_NODE, ActionType.UPDATE, limit_raised),
            on(EventResource.ASSIGNED_POD, ActionType.DELETE, pod_freed_attachments),
            on(EventResource.PERSISTENT_VOLUME_CLAIM, ActionType.ADD, own_claim_changed),
            on(EventResource.VOLUME_ATTACHMENT, ActionType.DELETE, volume_detached),
        )


class _AttachedVolumes:
    """Attached volumes by node, from VolumeAttachments."""

    def __init__(self, handle: Handle) -> None:
        self._handle = handle
        self._version = -1
        self._by_node: dict[str, list[VolumeAttachment]] = {}
        self._counted: tuple[int, int, int] | None = None
        self._counts: Int64Column = np.zeros(0, np.int64)

    def on(self, node_name: str) -> set[tuple[str, str]]:
        """(driver, handle) of the volumes attached to a node."""
        volumes = self._handle.cluster.objects(PersistentVolume)
        found = set()
        for attachment in self._attachments().get(node_name, ()):
            volume = volumes.get(attachment.spec.source.persistent_volume_name)
            if volume is not None and volume.spec.csi is not None and attachment.spec.attacher:
                found.add((attachment.spec.attacher, volume.spec.csi.volume_handle))
        return found

    def counts(self) -> Int64Column:
        """Number of VolumeAttachments by row."""
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


def limit_raised(pod: Pod, old: Object | None, new: Object | None) -> QueueingHint:
    if not isinstance(old, CSINode) or not isinstance(new, CSINode):
        return QueueingHint.SKIP
    before, after = volume_limits(old), volume_limits(new)
    return queue_if(any(limit > before.get(driver, 0) for driver, limit in after.items()))


def pod_freed_attachments(pod: Pod, old: Object | None, new: Object | None) -> QueueingHint:
    """Queue if the deleted pod was assigned and had attachable volumes."""
    if not isinstance(old, Pod) or not (old.node_name or old.status.nominated_node_name):
        return QueueingHint.SKIP
    return queue_if(any(map(is_attachable, old.spec.volumes)))


def volume_detached(pod: Pod, old: Object | None, new: Object | None) -> QueueingHint:
    """Queue if the detached volume may be of a driver that the pod uses."""
    if not isinstance(old, VolumeAttachment):
        return QueueingHint.SKIP
    for volume in pod.spec.volumes:
        if claim_of(pod, volume) is not None:
            return QueueingHint.QUEUE
        in_tree = in_tree_volume(volume)
        if in_tree is not None and in_tree.plugin.driver == old.spec.attacher:
            return QueueingHint.QUEUE
    return QueueingHint.SKIP
