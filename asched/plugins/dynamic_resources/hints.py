"""Queueing hints: which changes may let a pod with ResourceClaims be scheduled."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from asched.framework.cluster import Cluster
from asched.framework.events import ActionType, ClusterEventWithHint, EventResource, QueueingHint
from asched.model.meta import Object
from asched.model.pod import Pod
from asched.model.resource_claims import ResourceClaim
from asched.plugins.dynamic_resources.pod_claims import UnusableClaimError, user_claims
from asched.plugins.shared import queue_if


class ClaimHints:
    """The events of DynamicResources."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def events(self) -> Sequence[ClusterEventWithHint]:
        kinds, changed = EventResource, ActionType.ADD | ActionType.UPDATE
        nodes = ActionType.ADD | ActionType.UPDATE_NODE_LABEL | ActionType.UPDATE_NODE_ALLOCATABLE
        generated = ActionType.UPDATE_POD_GENERATED_RESOURCE_CLAIM
        on = ClusterEventWithHint.on
        return (
            on(kinds.NODE, nodes),
            on(kinds.RESOURCE_CLAIM, changed, self.claim_changed),
            on(kinds.TARGET_POD, generated, self.claims_generated),
            on(kinds.DEVICE_CLASS, changed),
            on(kinds.RESOURCE_SLICE, changed),
        )

    @property
    def _claims(self) -> Mapping[str, ResourceClaim]:
        return self._cluster.objects(ResourceClaim)

    def claim_changed(self, pod: Pod, old: Object | None, new: Object | None) -> QueueingHint:
        """Queue if devices became free, or if a claim of the pod is new or has another status."""
        if not isinstance(new, ResourceClaim):
            return QueueingHint.QUEUE
        try:
            own = any(claim.uid == new.uid for claim in user_claims(pod, self._claims))
        except UnusableClaimError:
            return QueueingHint.SKIP
        before = old.status if isinstance(old, ResourceClaim) else None
        if before is not None and before.allocation is not None and new.status.allocation is None:
            return QueueingHint.QUEUE
        return queue_if(own and before != new.status)

    def claims_generated(self, pod: Pod, old: Object | None, new: Object | None) -> QueueingHint:
        """Queue if the pod itself was updated and now has all its claims."""
        if not isinstance(new, Pod) or new.uid != pod.uid:
            return QueueingHint.SKIP
        try:
            user_claims(new, self._claims)
        except UnusableClaimError:
            return QueueingHint.SKIP
        return QueueingHint.QUEUE
