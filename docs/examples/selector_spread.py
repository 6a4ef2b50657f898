"""SelectorSpread: spreads pods of one service or controller over nodes and zones.

The former priority ``SelectorSpreadPriority`` of kube-scheduler as a Score plugin. Its map function
is ``score_all``, its reduce function is ``normalize``. PodTopologySpread does the same and more;
this is an example of how to port a priority.
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from asched.framework import (
    MAX_NODE_SCORE,
    SUCCESS,
    CycleState,
    Handle,
    Int64Column,
    Nodes,
    NormalizeScore,
    PodInfo,
    PodQuery,
    PreScorePlugin,
    ScoreAllPlugin,
    StateKey,
    Status,
    WorkloadSelectors,
)
from asched.model import ZONE_LABEL

ZONE_SHARE = 2 / 3
"""The zone's share of the score; the rest is the node's."""

_QUERY: StateKey[PodQuery] = StateKey("SelectorSpread/query")
_ZONES: StateKey[list[str | None]] = StateKey("SelectorSpread/zones")


class SelectorSpread(PreScorePlugin, ScoreAllPlugin, NormalizeScore):
    name: ClassVar[str] = "SelectorSpread"
    api_version: ClassVar[int] = 1

    def __init__(self, args: Any, handle: Handle) -> None:
        super().__init__(args, handle)
        self._selectors = WorkloadSelectors(handle.cluster)

    def pre_score(self, state: CycleState, pod: PodInfo, nodes: Nodes) -> Status:
        """The metadata of former priorities."""
        selectors = self._selectors.of(pod.label_set, pod.pod.metadata.controller)
        if not selectors or pod.pod.spec.topology_spread_constraints:
            return Status.skip()
        namespaces = frozenset({pod.namespace})
        state.write(_QUERY, PodQuery(selectors, namespaces, count_terminating=False))
        # Zones of the feasible nodes, in the order of the scores in normalize().
        state.write(_ZONES, nodes.label(ZONE_LABEL).values())
        return SUCCESS

    def score_all(self, state: CycleState, pod: PodInfo, nodes: Nodes) -> Int64Column:
        """Map: the number of matching pods on each node."""
        return nodes.align(self.handle.cluster.count_pods(state.read(_QUERY)))

    def normalize(self, state: CycleState, pod: PodInfo, scores: Int64Column) -> Int64Column:
        """Reduce: fewer matching pods on the node and in its zone are better."""
        score = _fewer_is_better(scores)
        zones = state.read(_ZONES)
        names = sorted({zone for zone in zones if zone is not None})
        if names:
            number_of = {zone: number for number, zone in enumerate(names)}
            numbers = np.array([number_of.get(zone or "", -1) for zone in zones], np.intp)
            zoned = numbers >= 0
            in_zone = np.bincount(numbers[zoned], scores[zoned], len(names))
            of_zone = _fewer_is_better(in_zone)[numbers[zoned]]
            score[zoned] = score[zoned] * (1 - ZONE_SHARE) + of_zone * ZONE_SHARE
        return score.astype(np.int64)


def _fewer_is_better(counts: NDArray[Any]) -> NDArray[np.float64]:
    """0 for the highest count, the maximum for a count of 0."""
    highest = counts.max(initial=0)
    if not highest:
        return np.full(len(counts), float(MAX_NODE_SCORE))
    score: NDArray[np.float64] = MAX_NODE_SCORE * (highest - counts) / highest
    return score
