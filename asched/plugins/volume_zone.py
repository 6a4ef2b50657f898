"""VolumeZone: filters by the zone and region labels of bound volumes."""

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
from asched.framework.status import Status
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
from asched.plugins.shared import PROCEED, SKIP, added_or_changed, queue_if

WRONG_ZONE = Status.unresolvable("node(s) had no available volume zone")

TOPOLOGY_LABELS = (BETA_ZONE_LABEL, BETA_REGION_LABEL, ZONE_LABEL, REGION_LABEL)
_GENERAL = {BETA_ZONE_LABEL: ZONE_LABEL, BETA_REGION_LABEL: REGION_LABEL}


class VolumeTopology(NamedTuple):
    """A topology requirement of a volume: the node label must have one of the values."""

    label: str
    values: tuple[str, ...]


_TOPOLOGIES: StateKey[tuple[VolumeTopology, ...]] = StateKey("VolumeZone/prefilter")


class _Rejection(Exception):  # noqa: N818  ends PreFilter with a status
    def __init__(self, reason: str) -> None:
        self.status = Status.unresolvable(reason)


class VolumeZone(PreFilterPlugin, FilterAllPlugin, EnqueueExtensions):
    """Rejects nodes outside the zones of the pod's bound volumes.

    A node without any topology label passes, because single-zone clusters have none.
    """

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
        except _Rejection as rejection:
            return PreFilterResult(rejection.status)
        if not topologies:
            return SKIP
        state.write(_TOPOLOGIES, tuple(topologies))
        return PROCEED

    def _topologies(self, namespace: str, name: str) -> Iterator[VolumeTopology]:
        """The topology of the claim's volume; empty if the claim is bound later."""
        cluster = self.handle.cluster
        if not name:
            raise _Rejection("PersistentVolumeClaim had no name")
        claim = cluster.objects(PersistentVolumeClaim).get(f"{namespace}/{name}")
        if claim is None:
            raise _Rejection(claim_not_found(name))
        if claim.spec.volume_name:
            volume = cluster.objects(PersistentVolume).get(claim.spec.volume_name)
            if volume is None:
                raise _Rejection(f'persistentvolume "{claim.spec.volume_name}" not found')
            yield from volume_topologies(volume)
            return
        if not claim.storage_class:
            raise _Rejection("PersistentVolumeClaim had no pv name and storageClass name")
        storage_class = cluster.objects(StorageClass).get(claim.storage_class)
        if storage_class is None:
            raise _Rejection(f'storageclass.storage.k8s.io "{claim.storage_class}" not found')
        if storage_class.volume_binding_mode != WAIT_FOR_FIRST_CONSUMER:
            raise _Rejection("PersistentVolume had no name")

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
        on, topologies = (
            ClusterEventWithHint.on,
            added_or_changed(PersistentVolume, volume_topologies),
        )
        return (
            on(EventResource.STORAGE_CLASS, added, late_binding_class_added),
            on(EventResource.NODE, added | ActionType.UPDATE_NODE_LABEL),
            on(EventResource.PERSISTENT_VOLUME_CLAIM, changed, own_claim_changed),
            on(EventResource.PERSISTENT_VOLUME, changed, topologies),
        )


def volume_topologies(volume: PersistentVolume) -> Sequence[VolumeTopology]:
    """The requirements of a volume's labels. A list with an empty zone is ignored
    (``volumehelpers.LabelZonesToSet``)."""
    found = []
    for label in TOPOLOGY_LABELS:
        text = volume.labels.get(label, "")
        values = tuple(part.strip() for part in text.split(ZONE_DELIMITER))
        if all(values):
            found.append(VolumeTopology(label, values))
    return found


def late_binding_class_added(pod: Pod, old: Object | None, new: Object | None) -> QueueingHint:
    """Queue for a new class with ``WaitForFirstConsumer``: its claims need no volume yet."""
    late = isinstance(new, StorageClass) and new.volume_binding_mode == WAIT_FOR_FIRST_CONSUMER
    return queue_if(late)


def own_claim_changed(pod: Pod, old: Object | None, new: Object | None) -> QueueingHint:
    """Queue if a claim of the pod is added or updated."""
    if not isinstance(new, PersistentVolumeClaim) or new.namespace != pod.namespace:
        return QueueingHint.SKIP
    return queue_if(any(c.name == new.name for c in claims_of(pod) if not c.ephemeral))
