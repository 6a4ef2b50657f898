"""Keeps some cpu of each node free, and prefers nodes with the most free cpu.

Shows both forms of Filter and Score. One form of each is enough: keep the methods for single nodes
for simplicity, or the methods for all nodes for speed in large clusters.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np
from asched.framework import (
    MAX_NODE_SCORE,
    SUCCESS,
    ActionType,
    Arguments,
    ClusterEvent,
    ClusterEventWithHint,
    CycleState,
    EnqueueExtensions,
    EventResource,
    FilterAllPlugin,
    FilterPlugin,
    FilterResult,
    Handle,
    Int64Column,
    NodeInfo,
    Nodes,
    PodInfo,
    Scope,
    ScoreAllPlugin,
    ScorePlugin,
    Status,
)
from asched.model import CPU

# Created once: a filter may return it thousands of times per pod.
NO_HEADROOM = Status.unschedulable("node(s) had too little cpu left over")


class PluginTemplateArgs(Arguments, frozen=True):
    """``args`` in ``pluginConfig``; the field is ``headroomPercent`` there."""

    headroom_percent: int = 10
    """Percentage of each node's cpu that stays free."""

    def __post_init__(self) -> None:
        if not 0 <= self.headroom_percent <= 100:
            raise ValueError(f"headroomPercent is {self.headroom_percent}, expected 0 to 100")


class PluginTemplate(
    FilterPlugin,
    FilterAllPlugin,
    ScorePlugin,
    ScoreAllPlugin,
    EnqueueExtensions,
):
    """Keeps some cpu of each node free, and prefers nodes with the most free cpu."""

    name: ClassVar[str] = "PluginTemplate"
    api_version: ClassVar[int] = 1
    arguments: ClassVar[type[Arguments]] = PluginTemplateArgs
    # Answers depend only on the pod's requests and the node's amounts: equal pods share them.
    # Scope.CLUSTER, the default, is always correct, but evaluates the plugin for each pod.
    scope: ClassVar[Scope] = Scope.RESOURCES

    def __init__(self, args: PluginTemplateArgs, handle: Handle) -> None:
        super().__init__(args, handle)
        self.args = args

    def events_to_register(self) -> Sequence[ClusterEventWithHint]:
        """The events that may make a rejected pod schedulable."""
        node = ActionType.ADD | ActionType.UPDATE_NODE_ALLOCATABLE
        return [
            ClusterEventWithHint(ClusterEvent(EventResource.NODE, node)),
            ClusterEventWithHint(ClusterEvent(EventResource.ASSIGNED_POD, ActionType.DELETE)),
        ]

    # -- single nodes: simple -----------------------------------------------------------------

    def filter(self, state: CycleState, pod: PodInfo, node: NodeInfo) -> Status:
        """Whether the node keeps enough free cpu."""
        left = node.free(CPU) - pod.shape.requests.get(CPU, 0)
        enough = left >= node.allocatable(CPU) * self.args.headroom_percent // 100
        return SUCCESS if enough else NO_HEADROOM

    def score(self, state: CycleState, pod: PodInfo, node: NodeInfo) -> int:
        """The percentage of cpu that would be left over."""
        left = node.free(CPU) - pod.shape.requests.get(CPU, 0)
        return max(0, left * MAX_NODE_SCORE // max(1, node.allocatable(CPU)))

    # -- all nodes in one call: fast ----------------------------------------------------------

    def filter_all(self, state: CycleState, pod: PodInfo, nodes: Nodes) -> FilterResult:
        """As :meth:`filter`, for all nodes."""
        allocatable = nodes.allocatable(CPU)
        left = allocatable - nodes.requested(CPU) - pod.shape.requests.get(CPU, 0)
        return FilterResult.reject(
            left < allocatable * self.args.headroom_percent // 100, NO_HEADROOM
        )

    def score_all(self, state: CycleState, pod: PodInfo, nodes: Nodes) -> Int64Column:
        """As :meth:`score`, for all nodes."""
        left = nodes.allocatable(CPU) - nodes.requested(CPU) - pod.shape.requests.get(CPU, 0)
        share: Int64Column = left * MAX_NODE_SCORE // np.maximum(nodes.allocatable(CPU), 1)
        return share.clip(min=0)
