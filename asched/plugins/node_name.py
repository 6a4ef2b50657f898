"""NodeName: filters by ``spec.nodeName``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from asched.framework.cycle_state import CycleState
from asched.framework.events import (
    ActionType,
    ClusterEventWithHint,
    EventResource,
    QueueingHint,
)
from asched.framework.interface import EnqueueExtensions, FilterAllPlugin, Scope
from asched.framework.nodes import FilterResult, Nodes
from asched.framework.pod_info import PodInfo
from asched.framework.status import Status
from asched.model.meta import Object
from asched.model.pod import Pod

OTHER_NODE = Status.unresolvable("node(s) didn't match the requested node name")


class NodeName(FilterAllPlugin, EnqueueExtensions):
    """Rejects every node except the one in ``spec.nodeName``, if that is set."""

    name: ClassVar[str] = "NodeName"
    api_version: ClassVar[int] = 1
    scope: ClassVar[Scope] = Scope.NODE_OBJECT

    def filter_all(self, state: CycleState, pod: PodInfo, nodes: Nodes) -> FilterResult:
        wanted = pod.pod.spec.node_name
        if not wanted:
            return FilterResult.passing(nodes.size)
        codes = np.ones(nodes.size, np.int16)
        row = nodes.row_of(wanted)
        if row is not None:
            codes[row] = 0
        return FilterResult(codes, (OTHER_NODE,))

    def events_to_register(self) -> Sequence[ClusterEventWithHint]:
        return (ClusterEventWithHint.on(EventResource.NODE, ActionType.ADD, named_node_added),)


def named_node_added(pod: Pod, old: Object | None, new: Object | None) -> QueueingHint:
    """Queue if the new node is the one in ``spec.nodeName``."""
    named = new is not None and new.name == pod.spec.node_name
    return QueueingHint.QUEUE if named else QueueingHint.SKIP
