"""Keeps some cpu of each node free, and prefers nodes that have the most left over.

It shows both forms that a Filter and a Score can have. One of each is enough: keep the form for one
node while thousands of nodes are not your concern, and the one for all nodes where they are.
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
    Handle,
    Int64Column,
    NodeInfo,
    Nodes,
    PodInfo,
    Scope,
    ScoreAllPlugin,
    ScorePlugin,
    Status,
    Verdicts,
)
from asched.model import CPU

# Made once: a filter answers thousands of times for a pod.
NO_HEADROOM = Status.unschedulable("node(s) had too little cpu left over")


class PluginTemplateArgs(Arguments, frozen=True):
    """What ``pluginConfig`` may say. The field is ``headroomPercent`` there."""

    headroom_percent: int = 10
    """How much of each node's cpu is to stay free."""

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
    """Keeps some cpu of each node free, and prefers nodes that have the most left over."""

    name: ClassVar[str] = "PluginTemplate"
    api_version: ClassVar[int] = 1
    arguments: ClassVar[type[Arguments]] = PluginTemplateArgs
    # It looks at the pod's requests and the node's amounts alone, so like pods share its answers.
    # Scope.CLUSTER, the default, is always right, and has it asked anew for each pod.
    scope: ClassVar[Scope] = Scope.AMOUNTS

    def __init__(self, args: PluginTemplateArgs, handle: Handle) -> None:
        super().__init__(args, handle)
        self.args = args

    def events_to_register(self) -> Sequence[ClusterEventWithHint]:
        """What may make room for a pod that was refused: then it is tried again."""
        node = ActionType.ADD | ActionType.UPDATE_NODE_ALLOCATABLE
        return [
            ClusterEventWithHint(ClusterEvent(EventResource.NODE, node)),
            ClusterEventWithHint(ClusterEvent(EventResource.ASSIGNED_POD, ActionType.DELETE)),
        ]

    # -- one node at a time: simple -----------------------------------------------------------

    def filter(self, state: CycleState, pod: PodInfo, node: NodeInfo) -> Status:
        """May the pod go to this node?"""
        left = node.free(CPU) - pod.shape.requests.get(CPU, 0)
        enough = left >= node.allocatable(CPU) * self.args.headroom_percent // 100
        return SUCCESS if enough else NO_HEADROOM

    def score(self, state: CycleState, pod: PodInfo, node: NodeInfo) -> int:
        """How good is this node? 0 to 100: how much of it would be left over."""
        left = node.free(CPU) - pod.shape.requests.get(CPU, 0)
        return max(0, left * MAX_NODE_SCORE // max(1, node.allocatable(CPU)))

    # -- the same for all nodes at once: fast -------------------------------------------------

    def filter_all(self, state: CycleState, pod: PodInfo, nodes: Nodes) -> Verdicts:
        """On which nodes may the pod go?"""
        allocatable = nodes.allocatable(CPU)
        left = allocatable - nodes.requested(CPU) - pod.shape.requests.get(CPU, 0)
        return Verdicts.reject(left < allocatable * self.args.headroom_percent // 100, NO_HEADROOM)

    def score_all(self, state: CycleState, pod: PodInfo, nodes: Nodes) -> Int64Column:
        """How good is each node?"""
        left = nodes.allocatable(CPU) - nodes.requested(CPU) - pod.shape.requests.get(CPU, 0)
        share: Int64Column = left * MAX_NODE_SCORE // np.maximum(nodes.allocatable(CPU), 1)
        return share.clip(min=0)
