"""VolumeZone: a bound volume's zone and region labels must match the node's."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import ClassVar, NamedTuple

import numpy as np

from asched.framework.cycle_state import CycleState, StateKey
from asched.framework.events import ActionType, ClusterEventWithHint, EventResource, QueueingHint
from asched.framework.interface import (
    EnqueueExtensions,
    FilterAllPlugin,
    PreFilterPlugin,
    PreFilterResult,
)
from asched.framework.nodes import FilterResult, Nodes
from asched.framework.pod_info import PodInfo
from asched.framework.status import SUCCESS, Status
from asched.framework.volumes import (
    BETA_REGION_LABEL,
    BETA_ZONE_LABEL,
    WAIT_FOR_FIRST_CONSUMER,
    ZONE_DELIMITER,
    claim_not_found,
    claims_of,
    mounts_claims,
)
from asched.model.meta import Object
from asched.model.node import REGION_LABEL, ZONE_LABEL
from asched.model.pod import Pod
from asched.model.storage import PersistentVolume, PersistentVolumeClaim, StorageClass

WRONG_ZONE = Status.unresolvable("node(s) had no available volume zone")

TOPOLOGY_LABELS = (BETA_ZONE_LABEL, BETA_REGION_LABEL, ZONE_LABEL, REGION_LABEL)
_GENERAL = {BETA_ZONE_LABEL: ZONE_LABEL, BETA_REGION_LABEL: REGION_LABEL}

_SKIP = PreFilterResult(Status.skip())
_PROCEED = PreFilterResult(SUCCESS)


class VolumeTopology(NamedTuple):
    """Where a volume is: the node's label must have one of the values."""

    label: str
    values: tuple[str, ...]


_TOPOLOGIES: StateKey[tuple[VolumeTopology, ...]] = StateKey("VolumeZone/prefilter")


class _Refused(Exception):  # noqa: N818  carries a rejection out of a loop
    def __init__(self, reason: str) -> None:
        self.status = Status.unresolvable(reason)


class VolumeZone(PreFilterPlugin, FilterAllPlugin, EnqueueExtensions):
    """Rejects nodes outside the zones of the pod's bound volumes. A node without any topology label
    passes: clusters of one zone have none."""

    name: ClassVar[str] = "VolumeZone"
    api_version: ClassVar[int] = 1
    applies_per_template: ClassVar[bool] = True

    def applies_to(self, pod: PodInfo) -> bool:
        return mounts_claims(pod.pod)

    def pre_filter(self, state: CycleState, pod: PodInfo, nodes: Nodes) -> PreFilterResult:
        topologies: list[VolumeTopology] = []
        try:
            for claim in claims_of(pod.pod):
                if not claim.ephemeral:
                    topologies.extend(self._topologies(pod.namespace, claim.name))
        except _Refused as refused:
            return PreFilterResult(refused.status)
        if not topologies:
            return _SKIP
        state.write(_TOPOLOGIES, tuple(topologies))
        return _PROCEED

    def _topologies(self, namespace: str, name: str) -> Iterator[VolumeTopology]:
        """Where the claim's volume is; nothing for one that is yet to be bound."""
        cluster = self.handle.cluster
        if not name:
            raise _Refused("PersistentVolumeClaim had no name")
        claim = cluster.objects(PersistentVolumeClaim).get(f"{namespace}/{name}")
        if claim is None:
            raise _Refused(claim_not_found(name))
        if claim.spec.volume_name:
            volume = cluster.objects(PersistentVolume).get(claim.spec.volume_name)
            if volume is None:
                raise _Refused(f'persistentvolume "{claim.spec.volume_name}" not found')
            yield from volume_topologies(volume)
            return
        if not claim.storage_class:
            raise _Refused("PersistentVolumeClaim had no pv name and storageClass name")
        storage_class = cluster.objects(StorageClass).get(claim.storage_class)
        if storage_class is None:
            raise _Refused(f'storageclass.storage.k8s.io "{claim.storage_class}" not found')
        if storage_class.volume_binding_mode != WAIT_FOR_FIRST_CONSUMER:
            raise _Refused("PersistentVolume had no name")

    def filter_all(self, state: CycleState, pod: PodInfo, nodes: Nodes) -> FilterResult:
        wrong = np.zeros(nodes.size, np.bool_)
        for topology in state.read(_TOPOLOGIES):
            column = nodes.label(topology.label)
            matched = column.is_in(topology.values)
            if topology.label in _GENERAL:
                general = nodes.label(_GENERAL[topology.label]).is_in(topology.values)
                matched = np.where(column.present, matched, general)
            wrong |= ~matched
        labelled = np.zeros(nodes.size, np.bool_)
        for key in TOPOLOGY_LABELS:
            labelled |= nodes.label(key).present
        return FilterResult.reject(wrong & labelled, WRONG_ZONE)

    def events_to_register(self) -> Sequence[ClusterEventWithHint]:
        added, changed = ActionType.ADD, ActionType.ADD | ActionType.UPDATE
        return (
            ClusterEventWithHint.on(EventResource.STORAGE_CLASS, added, delaying_class_came),
            ClusterEventWithHint.on(EventResource.NODE, added | ActionType.UPDATE_NODE_LABEL),
            ClusterEventWithHint.on(
                EventResource.PERSISTENT_VOLUME_CLAIM, changed, own_claim_changed
            ),
            ClusterEventWithHint.on(EventResource.PERSISTENT_VOLUME, changed, volume_moved),
        )


def volume_topologies(volume: PersistentVolume) -> Iterator[VolumeTopology]:
    """What a volume's labels demand. A list of zones with an empty one in it is passed over
    (``volumehelpers.LabelZonesToSet``)."""
    for label in TOPOLOGY_LABELS:
        text = volume.labels.get(label)
        if text is None:
            continue
        values = tuple(part.strip() for part in text.split(ZONE_DELIMITER))
        if all(values):
            yield VolumeTopology(label, values)


def delaying_class_came(pod: Pod, old: Object | None, new: Object | None) -> QueueingHint:
    """A new class whose volumes are bound late: claims of it need no volume yet."""
    delays = isinstance(new, StorageClass) and new.volume_binding_mode == WAIT_FOR_FIRST_CONSUMER
    return QueueingHint.QUEUE if delays else QueueingHint.SKIP


def own_claim_changed(pod: Pod, old: Object | None, new: Object | None) -> QueueingHint:
    """A claim that the pod names came or changed."""
    own = (
        isinstance(new, PersistentVolumeClaim)
        and new.namespace == pod.namespace
        and any(claim.name == new.name for claim in claims_of(pod) if not claim.ephemeral)
    )
    return QueueingHint.QUEUE if own else QueueingHint.SKIP


def volume_moved(pod: Pod, old: Object | None, new: Object | None) -> QueueingHint:
    """A volume came, or its topology labels changed."""
    if not isinstance(new, PersistentVolume):
        return QueueingHint.SKIP
    if isinstance(old, PersistentVolume) and [*volume_topologies(old)] == [*volume_topologies(new)]:
        return QueueingHint.SKIP
    return QueueingHint.QUEUE
