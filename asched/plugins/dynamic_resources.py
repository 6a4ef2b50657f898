"""DynamicResources: rejects pods with ResourceClaims, because allocating them is not implemented.
For other pods it behaves as in kube-scheduler: it scores 0, and adds a reason in PostFilter."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from asched.framework.cycle_state import CycleState, StateKey
from asched.framework.events import ActionType, ClusterEventWithHint, EventResource
from asched.framework.interface import (
    EnqueueExtensions,
    FilterAllPlugin,
    NodeToStatus,
    PostFilterPlugin,
    PostFilterResult,
    PreFilterPlugin,
    PreFilterResult,
    ScoreAllPlugin,
)
from asched.framework.nodes import FilterResult, Int64Column, Nodes
from asched.framework.pod_info import PodInfo
from asched.framework.status import Status
from asched.plugins.shared import SKIP

NOTHING_TO_DEALLOCATE = PostFilterResult(Status.unschedulable("no new claims to deallocate"))
NO_STATE = PostFilterResult(Status.error("not found"))
"""The answer of kube-scheduler's plugin if its PreFilter did not run."""

_PRE_FILTER_RAN: StateKey[bool] = StateKey("DynamicResources/prefilter")


class DynamicResources(
    PreFilterPlugin, FilterAllPlugin, PostFilterPlugin, ScoreAllPlugin, EnqueueExtensions
):
    """Rejects pods with ResourceClaims, which are not supported."""

    name: ClassVar[str] = "DynamicResources"
    api_version: ClassVar[int] = 1
    applies_per_template: ClassVar[bool] = True

    def applies_to(self, pod: PodInfo) -> bool:
        return bool(pod.pod.spec.resource_claims)

    def pre_filter(self, state: CycleState, pod: PodInfo, nodes: Nodes) -> PreFilterResult:
        state.write(_PRE_FILTER_RAN, True)
        claims = pod.pod.spec.resource_claims
        if not claims:
            return SKIP
        names = ", ".join(claim.name for claim in claims)
        return PreFilterResult(
            Status.unresolvable(f"ResourceClaims are not supported yet: the pod asks for {names}")
        )

    def filter_all(self, state: CycleState, pod: PodInfo, nodes: Nodes) -> FilterResult:
        return FilterResult.passing(nodes.size)

    def post_filter(
        self, state: CycleState, pod: PodInfo, statuses: NodeToStatus
    ) -> PostFilterResult:
        pre_filter_ran = state.get(_PRE_FILTER_RAN) or self.name in state.inapplicable
        return NOTHING_TO_DEALLOCATE if pre_filter_ran else NO_STATE

    def score_all(self, state: CycleState, pod: PodInfo, nodes: Nodes) -> Int64Column:
        return np.zeros(nodes.size, np.int64)

    def events_to_register(self) -> Sequence[ClusterEventWithHint]:
        # A pod lists only the claims that were generated from its templates.
        generated = ActionType.UPDATE_POD_GENERATED_RESOURCE_CLAIM
        return (ClusterEventWithHint.on(EventResource.TARGET_POD, generated),)
