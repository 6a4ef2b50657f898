"""SelectorSpread: pods of one service or controller apart, over nodes and over zones.

The priority ``SelectorSpreadPriority`` of kube-scheduler as one Score plugin. The map (how many
fellows does a node have?) is ``score_all``, the reduce (what is that worth among these nodes?) is
``normalize``. PodTopologySpread does the same and more; this shows the form.
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from asched.framework.cycle_state import CycleState, StateKey
from asched.framework.interface import Handle, NormalizeScore, PreScorePlugin, ScoreAllPlugin
from asched.framework.nodes import MAX_NODE_SCORE, Int64Column, Nodes
from asched.framework.pod_info import PodInfo
from asched.framework.pod_queries import PodQuery
from asched.framework.status import SUCCESS, Status
from asched.framework.workload_selectors import WorkloadSelectors
from asched.model.node import ZONE_LABEL

ZONE_SHARE = 2 / 3
"""How much of the score the zone has; the rest is the node's own."""

_FELLOWS: StateKey[PodQuery] = StateKey("SelectorSpread/fellows")
_ZONES: StateKey[list[str | None]] = StateKey("SelectorSpread/zones")


class SelectorSpread(PreScorePlugin, ScoreAllPlugin, NormalizeScore):
    name: ClassVar[str] = "SelectorSpread"
    api_version: ClassVar[int] = 1

    def __init__(self, args: Any, handle: Handle) -> None:
        super().__init__(args, handle)
        self._selectors = WorkloadSelectors(handle.cluster)

    def pre_score(self, state: CycleState, pod: PodInfo, nodes: Nodes) -> Status:
        """What old priorities called metadata: once for the pod, before the map."""
        selectors = self._selectors.of(pod.label_set, pod.pod.metadata.controller)
        if not selectors or pod.pod.spec.topology_spread_constraints:
            return Status.skip()
        namespaces = frozenset({pod.namespace})
        state.write(_FELLOWS, PodQuery(selectors, namespaces, count_terminating=False))
        # The feasible nodes, in the order in which the reduce will see their scores.
        state.write(_ZONES, nodes.label(ZONE_LABEL).values())
        return SUCCESS

    def score_all(self, state: CycleState, pod: PodInfo, nodes: Nodes) -> Int64Column:
        """The map, for all nodes at once: how many fellows each has."""
        return nodes.align(self.handle.cluster.count_pods(state.read(_FELLOWS)))

    def normalize(self, state: CycleState, pod: PodInfo, scores: Int64Column) -> Int64Column:
        """The reduce: the fewer fellows on the node and in its zone, the better."""
        worth = _fewer_is_better(scores)
        zones = state.read(_ZONES)
        names = sorted({zone for zone in zones if zone is not None})
        if names:
            number_of = {zone: number for number, zone in enumerate(names)}
            numbers = np.array([number_of.get(zone or "", -1) for zone in zones], np.intp)
            zoned = numbers >= 0
            in_zone = np.bincount(numbers[zoned], scores[zoned], len(names))
            of_zone = _fewer_is_better(in_zone)[numbers[zoned]]
            worth[zoned] = worth[zoned] * (1 - ZONE_SHARE) + of_zone * ZONE_SHARE
        return worth.astype(np.int64)


def _fewer_is_better(counts: NDArray[Any]) -> NDArray[np.float64]:
    """The highest count is worth 0, none at all is worth the most."""
    highest = counts.max(initial=0)
    if not highest:
        return np.full(len(counts), float(MAX_NODE_SCORE))
    worth: NDArray[np.float64] = MAX_NODE_SCORE * (highest - counts) / highest
    return worth
