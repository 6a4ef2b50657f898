"""VolumeBinding: binds or provisions the volumes of a pod's claims on the selected node.

Filter finds the possible volumes on every node. Reserve selects those of the selected node, and
:mod:`asched.plugins.volume_binding.assumed` keeps other pods from using them. PreBind updates the
API server and waits for the volume controller and the provisioners.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, ClassVar, NamedTuple

import numpy as np

from asched.framework.binding import BindingClient, ClaimRef, Permission, Unavailable
from asched.framework.cluster import Handle
from asched.framework.cycle_state import CycleState, StateKey
from asched.framework.events import ActionType, ClusterEventWithHint, EventResource, QueueingHint
from asched.framework.interface import (
    Arguments,
    EnqueueExtensions,
    FilterAllPlugin,
    PreBindPlugin,
    PreFilterPlugin,
    PreFilterResult,
    PreScorePlugin,
    ReservePlugin,
    ReserveResult,
    ScoreAllPlugin,
)
from asched.framework.nodes import FilterResult, Int64Column, Nodes
from asched.framework.pod_info import PodInfo
from asched.framework.status import SUCCESS, Status
from asched.framework.volumes import (
    WAIT_FOR_FIRST_CONSUMER,
    CsiNodes,
    PodClaim,
    claim_not_found,
    claims_of,
    is_owned_by,
    mounts_claims,
    not_owner,
    own_claim_changed,
)
from asched.model.limits import label_values, too_expensive
from asched.model.meta import Object
from asched.model.pod import Pod
from asched.model.storage import (
    CSIDriver,
    CSINode,
    CSIStorageCapacity,
    PersistentVolume,
    PersistentVolumeClaim,
    StorageClass,
)
from asched.plugins.shared import PROCEED, SKIP, added_or_changed, queue_if
from asched.plugins.volume_binding.assumed import AssumedVolumes, VolumeChoice
from asched.plugins.volume_binding.matching import (
    NO_MATCH,
    NO_SPACE,
    NO_VOLUME,
    NODE_CONFLICT,
    PodVolumes,
    VolumeFinder,
    labels_allow,
    volume_limit,
)
from asched.plugins.volume_binding.pool import VolumePool

_REASONS = {
    NODE_CONFLICT: "node(s) didn't match PersistentVolume's node affinity",
    NO_MATCH: "node(s) didn't find available persistent volumes to bind",
    NO_SPACE: "node(s) did not have enough free storage",
    NO_VOLUME: "node(s) unavailable due to one or more pvc(s) bound to non-existent pv(s)",
}
_STATUSES = tuple(
    Status.unresolvable(*(reason for bit, reason in _REASONS.items() if conflicts & bit))
    for conflicts in range(1, 2 * NO_VOLUME)
)
"""Index: the sum of the conflicts, minus 1."""

UNBOUND_IMMEDIATE = PreFilterResult(
    Status.unresolvable("pod has unbound immediate PersistentVolumeClaims")
)
DEFAULT_BIND_TIMEOUT_S = 600
MAX_MATCHED_CLAIMS = 64
"""Each claim of a pod needs another volume, so the time is cubic."""
MAX_VOLUME_TESTS = 2_000_000
"""Requirements and values of the selectors of claims, times volumes."""


class VolumeShapePoint(Arguments, frozen=True):
    utilization: int
    score: int


class VolumeBindingArgs(Arguments, frozen=True):
    """How long PreBind waits. ``shape`` requires StorageCapacityScoring, which is off in 1.36 and
    not implemented."""

    bind_timeout_seconds: int | None = None
    """How long PreBind waits for volumes to be bound. Default: 600."""
    shape: tuple[VolumeShapePoint, ...] | None = None
    """Not supported: it needs the gate StorageCapacityScoring."""

    def __post_init__(self) -> None:
        if self.bind_timeout_seconds is not None and self.bind_timeout_seconds < 0:
            raise ValueError(
                f"bindTimeoutSeconds: {self.bind_timeout_seconds} is negative;"
                " expected a number of seconds, 0 or more"
            )
        if self.shape is not None:
            raise ValueError("shape: not allowed while the feature StorageCapacityScoring is off")


class PodClaims(NamedTuple):
    """The claims of a pod for Filter."""

    bound: Sequence[PersistentVolumeClaim]
    unbound: Sequence[PersistentVolumeClaim]
    """Claims with ``WaitForFirstConsumer``."""


_CLAIMS: StateKey[PodClaims] = StateKey("VolumeBinding/prefilter")


class VolumeBinding(
    PreFilterPlugin,
    FilterAllPlugin,
    PreScorePlugin,
    ScoreAllPlugin,
    ReservePlugin,
    PreBindPlugin,
    EnqueueExtensions,
):
    """Filters by the volumes that the pod's claims have or can get, and binds or provisions
    them."""

    name: ClassVar[str] = "VolumeBinding"
    api_version: ClassVar[int] = 1
    arguments: ClassVar[type[VolumeBindingArgs]] = VolumeBindingArgs
    needs: ClassVar[frozenset[Permission]] = frozenset(
        {
            Permission.CLAIM_VOLUME,
            Permission.SELECT_NODE,
            Permission.READ_VOLUME,
            Permission.READ_CLAIM,
        }
    )
    applies_per_template: ClassVar[bool] = True
    only_own_reservations: ClassVar[bool] = True

    def __init__(self, args: VolumeBindingArgs, handle: Handle) -> None:
        super().__init__(args, handle)
        timeout_s = args.bind_timeout_seconds
        self._timeout_s = float(DEFAULT_BIND_TIMEOUT_S if timeout_s is None else timeout_s)
        self._assumed = AssumedVolumes()
        self._pool = VolumePool(handle.cluster, self._assumed)
        self._csi_nodes = CsiNodes(handle.cluster)

    def applies_to(self, pod: PodInfo) -> bool:
        return mounts_claims(pod.pod)

    def pre_filter(self, state: CycleState, pod: PodInfo, nodes: Nodes) -> PreFilterResult:
        mounted = dict.fromkeys(claims_of(pod.pod))
        if not mounted:
            return SKIP
        claims: list[PersistentVolumeClaim] = []
        for reference in mounted:
            claim = self._claims.get(f"{pod.namespace}/{reference.name}")
            problem = _problem(pod.pod, reference, claim)
            if problem:
                return PreFilterResult(Status.unresolvable(problem))
            if claim is not None:
                claims.append(claim)
        unbound = [claim for claim in claims if not claim.fully_bound]
        if not all(map(self._waits_for_consumer, unbound)):
            return UNBOUND_IMMEDIATE
        excess = self._excess(unbound)
        if excess:
            return PreFilterResult(Status.unresolvable(too_expensive(excess)))
        state.write(_CLAIMS, PodClaims([c for c in claims if c.fully_bound], unbound))
        return PROCEED

    def _excess(self, unbound: Sequence[PersistentVolumeClaim]) -> str:
        """By how much it is too expensive to choose existing volumes for the claims; empty if it is
        not."""
        tests, matched = 0, 0
        for claim in unbound:
            free = self._pool.free(claim.storage_class)
            if free is not None:
                matched += 1
                tests += label_values(claim.spec.selector) * len(free.volumes)
        if matched > MAX_MATCHED_CLAIMS:
            return f"{matched} claims for existing volumes, at most {MAX_MATCHED_CLAIMS}"
        if tests > MAX_VOLUME_TESTS:
            return (
                f"{tests:,} tests of volumes with selectors of claims, at most {MAX_VOLUME_TESTS:,}"
            )
        return ""

    @property
    def _claims(self) -> Mapping[str, PersistentVolumeClaim]:
        return self.handle.cluster.objects(PersistentVolumeClaim)

    def _waits_for_consumer(self, claim: PersistentVolumeClaim) -> bool:
        """Whether the claim is bound only when a pod uses it."""
        storage_class = self.handle.cluster.objects(StorageClass).get(claim.storage_class)
        return (
            storage_class is not None
            and storage_class.volume_binding_mode == WAIT_FOR_FIRST_CONSUMER
            and not claim.spec.volume_name
        )

    def filter_all(self, state: CycleState, pod: PodInfo, nodes: Nodes) -> FilterResult:
        conflicts = self._find(state.read(_CLAIMS), nodes).conflicts
        return FilterResult(conflicts.astype(np.int16), _STATUSES)

    def _find(self, claims: PodClaims, nodes: Nodes) -> PodVolumes:
        cluster = self.handle.cluster
        finder = VolumeFinder(cluster, self._assumed, self._pool, self._csi_nodes, nodes)
        return finder.find(claims.bound, claims.unbound)

    # -- score: always skipped, because StorageCapacityScoring is off -------------------------

    def pre_score(self, state: CycleState, pod: PodInfo, nodes: Nodes) -> Status:
        return Status.skip()

    def score_all(self, state: CycleState, pod: PodInfo, nodes: Nodes) -> Int64Column:
        return np.zeros(nodes.size, np.int64)

    def reserve(self, state: CycleState, pod: PodInfo, node_name: str) -> ReserveResult:
        claims = state.get(_CLAIMS)
        if claims is None or not claims.unbound:
            return ReserveResult()
        nodes = self.handle.cluster.nodes
        row = nodes.row_of(node_name)
        if row is None:
            return ReserveResult(Status.error(f'node "{node_name}" not found'))
        found = self._find(claims, nodes.take(np.array([row], np.intp)))
        return ReserveResult(reservation=found.choice(0).reservation())

    def on_reserved(self, pod: PodInfo, node_name: str, reservation: dict[str, Any] | None) -> None:
        if reservation is not None:
            self._assumed.add(pod.uid, node_name, VolumeChoice.from_reservation(reservation))

    def unreserve(self, pod: PodInfo, node_name: str, reservation: dict[str, Any] | None) -> None:
        self._assumed.remove(pod.uid)

    def on_bound(self, pod: PodInfo, node_name: str, reservation: dict[str, Any] | None) -> None:
        # The claims and volumes in the informer cache include it now.
        self._assumed.remove(pod.uid)

    @property
    def time_limit_s(self) -> float:
        return self._timeout_s + super().time_limit_s

    def pre_bind_pre_flight(self, pod: PodInfo, node_name: str) -> bool:
        return self._assumed.choice(pod.uid) is not None

    async def pre_bind(self, client: BindingClient, pod: PodInfo, node_name: str) -> Status:
        choice = self._assumed.choice(pod.uid)
        if choice is None:
            return SUCCESS
        for binding in choice.bindings:
            status = await client.claim_volume(binding.volume, binding.claim)
            if not status.is_success:
                return status
        for claim in choice.provisions:
            status = await client.select_node(claim, node_name)
            if not status.is_success:
                return status
        progress = partial(self._progress, client, pod, choice, node_name)
        ended = await client.wait_until(progress, self._timeout_s)
        return ended or Status.error("binding volumes: timed out waiting for the condition")

    async def _progress(
        self, client: BindingClient, pod: PodInfo, choice: VolumeChoice, node_name: str
    ) -> Status | None:
        """Success once all claims are bound, an error if they cannot be, else None
        (``checkBindings``)."""
        if self._assumed.choice(pod.uid) is None:
            return _failed("pod no longer exists")
        nodes = self.handle.cluster.nodes
        row = nodes.row_of(node_name)
        if row is None:
            return _failed(f'failed to get node "{node_name}"')
        labels = nodes.node(row).labels
        try:
            for claim, volume in choice.bindings:
                status = await self._volume_progress(client, volume, claim, labels)
                if not status or not status.is_success:
                    return status
            for claim in choice.provisions:
                status = await self._provision_progress(client, claim, node_name, labels)
                if not status or not status.is_success:
                    return status
        except Unavailable:
            return None
        return SUCCESS

    async def _volume_progress(
        self, client: BindingClient, name: str, claim: ClaimRef, labels: dict[str, str]
    ) -> Status | None:
        # The informer cache may be older than the write: read from the API server then.
        volume = self.handle.cluster.objects(PersistentVolume).get(name)
        if volume is None or not _has_claim_uid(volume):
            volume = await client.read_volume(name)
        if volume is None:
            return _failed(f'failed to check binding: persistentvolume "{name}" not found')
        if not labels_allow(volume, labels):
            return _failed(f'pv "{name}" node affinity doesn\'t match the node')
        if not _has_claim_uid(volume):
            return _failed(f'ClaimRef got reset for pv "{name}"')
        bound = self._claims.get(claim.key)
        if bound is None:
            return _failed(f"failed to check binding: {claim_not_found(claim.name)}")
        return SUCCESS if bound.fully_bound else None

    async def _provision_progress(
        self, client: BindingClient, ref: ClaimRef, node_name: str, labels: dict[str, str]
    ) -> Status | None:
        claim = self._claims.get(ref.key)
        if claim is None or claim.metadata.annotations.selected_node != node_name:
            claim = await client.read_claim(ref)
        if claim is None:
            return _failed(f"failed to check provisioning pvc: {claim_not_found(ref.name)}")
        if claim.metadata.annotations.selected_node != node_name:
            # A provisioner that fails removes the annotation, to request another node.
            return _failed(f'provisioning failed for PVC "{ref.name}"')
        if claim.spec.volume_name:
            volume = self.handle.cluster.objects(PersistentVolume).get(claim.spec.volume_name)
            if volume is None:
                return None
            if not labels_allow(volume, labels):
                return _failed(f'pv "{volume.name}" node affinity doesn\'t match the node')
        return SUCCESS if claim.fully_bound else None

    def events_to_register(self) -> Sequence[ClusterEventWithHint]:
        kinds, added, changed = EventResource, ActionType.ADD, ActionType.ADD | ActionType.UPDATE
        topologies = added_or_changed(StorageClass, lambda each: each.allowed_topologies)
        migrated = added_or_changed(
            CSINode, lambda node: node.metadata.annotations.migrated_plugins
        )
        on = ClusterEventWithHint.on
        return (
            on(kinds.STORAGE_CLASS, changed, topologies),
            on(kinds.PERSISTENT_VOLUME_CLAIM, changed, own_claim_changed),
            on(kinds.PERSISTENT_VOLUME, changed),
            on(kinds.NODE, added | ActionType.UPDATE_NODE_LABEL),
            on(kinds.CSI_NODE, changed, migrated),
            on(kinds.CSI_DRIVER, ActionType.UPDATE, capacity_reporting_stopped),
            on(kinds.CSI_STORAGE_CAPACITY, changed, capacity_grew),
        )


def _problem(pod: Pod, reference: PodClaim, claim: PersistentVolumeClaim | None) -> str:
    """Why the pod cannot use the claim, as kube-scheduler reports it; empty if it can."""
    name = reference.name
    if claim is None:
        if reference.ephemeral:
            waiting = "waiting for ephemeral volume controller to create the"
            return f'{waiting} persistentvolumeclaim "{name}"'
        return claim_not_found(name)
    if claim.status.phase == "Lost":
        volume = claim.spec.volume_name
        lost = f'bound to non-existent persistentvolume "{volume}"'
        return f'persistentvolumeclaim "{name}" {lost}'
    if claim.metadata.deletion_timestamp is not None:
        return f'persistentvolumeclaim "{name}" is being deleted'
    if reference.ephemeral and not is_owned_by(claim, pod):
        return not_owner(claim, pod)
    return ""


def _has_claim_uid(volume: PersistentVolume) -> bool:
    reference = volume.spec.claim_ref
    return reference is not None and bool(reference.uid)


def _failed(reason: str) -> Status:
    return Status.error(f"binding volumes: {reason}")


def capacity_reporting_stopped(pod: Pod, old: Object | None, new: Object | None) -> QueueingHint:
    """Queue if the driver of an inline CSI volume of the pod stops reporting capacity."""
    if not isinstance(old, CSIDriver) or not isinstance(new, CSIDriver):
        return QueueingHint.SKIP
    stopped = old.spec.storage_capacity and not new.spec.storage_capacity
    drivers = {volume.csi.driver for volume in pod.spec.volumes if volume.csi is not None}
    return queue_if(stopped and new.name in drivers)


def capacity_grew(pod: Pod, old: Object | None, new: Object | None) -> QueueingHint:
    """Queue if a storage pool is added, or its maximum volume size grows."""
    if not isinstance(new, CSIStorageCapacity):
        return QueueingHint.SKIP
    if not isinstance(old, CSIStorageCapacity):
        return QueueingHint.QUEUE
    before, after = volume_limit(old), volume_limit(new)
    return queue_if(after is not None and (before is None or after > before))
