"""PostFilter: release what keeps a pod from being scheduled."""

from __future__ import annotations

import numpy as np

from asched.framework.binding import ClaimRef
from asched.framework.cluster import Handle
from asched.framework.interface import NodeToStatus, PostFilterResult, ReleasedClaim
from asched.framework.nodes import Nodes
from asched.framework.status import Code, Status
from asched.model.resource_claims import ResourceClaim
from asched.plugins.dynamic_resources.node_filter import NOT_AVAILABLE, NodeFilter, PodDevices

DEALLOCATED = Status.unschedulable("deallocation of ResourceClaim completed")
DELETED = Status.unschedulable("deletion of ResourceClaim completed")
STILL_NOT_SCHEDULABLE = PostFilterResult(Status.unschedulable("still not schedulable"))


class PostFilterDecision:
    """Which claim of an unschedulable pod is deallocated or deleted."""

    def __init__(
        self, handle: Handle, data: PodDevices, node_filter: NodeFilter, statuses: NodeToStatus
    ) -> None:
        self._handle = handle
        self._data = data
        self._filter = node_filter
        self._statuses = statuses

    def result(self, nodes: Nodes) -> PostFilterResult:
        candidates = self.candidates(nodes)
        if candidates:
            uid, now_ns = self._data.pod.uid, self._handle.cluster.now_ns
            number = self._handle.stable_random(f"deallocate/{uid}/{now_ns}", len(candidates))
            return _releasing(DEALLOCATED, candidates[number], delete=False)
        left_over = self._data.left_over
        if left_over is not None:
            return _releasing(DELETED, left_over, delete=True)
        return STILL_NOT_SCHEDULABLE

    def candidates(self, nodes: Nodes) -> list[ResourceClaim]:
        """The claims that were not available on a node and that no other pod has reserved, without
        repetition."""
        pod_uid = self._data.pod.uid
        found: dict[str, ResourceClaim] = {}
        for claim in self._data.claims:
            others = [c for c in claim.status.reserved_for if c.uid != pod_uid]
            many = len(claim.status.reserved_for) > 1
            if others or many or claim.key in found:
                continue
            if self._was_unavailable(claim, nodes):
                found[claim.key] = claim
        return [*found.values()]

    def _was_unavailable(self, claim: ResourceClaim, nodes: Nodes) -> bool:
        """Whether Filter rejected a node because of the claim. Earlier filters come first."""
        available = self._filter.available(claim, nodes)
        if available is None:
            return False
        rejected = np.zeros(nodes.size, np.bool_)
        rejected[self._statuses.rows(Code.UNSCHEDULABLE_AND_UNRESOLVABLE)] = True
        expected = NOT_AVAILABLE.by("DynamicResources")
        for row in np.flatnonzero(rejected & ~available).tolist():
            if self._statuses.status(nodes.names[row]) == expected:
                return True
        return False


def _releasing(status: Status, claim: ResourceClaim, *, delete: bool) -> PostFilterResult:
    return PostFilterResult(status, released_claim=ReleasedClaim(ClaimRef.of(claim), delete))
