"""PodGroupPodsCount: prefers placements in which more members of the group run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from asched.framework.interface import PlacementScorePlugin
from asched.framework.nodes import MAX_NODE_SCORE
from asched.framework.placements import GroupAssignments, GroupInCycle


class PodGroupPodsCount(PlacementScorePlugin):
    """Scores a placement by the members that run or fit, relative to the best placement."""

    name: ClassVar[str] = "PodGroupPodsCount"
    api_version: ClassVar[int] = 1
    reads_member_nodes: ClassVar[bool] = False

    def score_placement(self, group: GroupInCycle, assignments: GroupAssignments) -> int:
        return len(group.running) + len(assignments.members)

    def normalize_placements(self, scores: Sequence[int]) -> Sequence[int]:
        highest = max(scores, default=0)
        return [MAX_NODE_SCORE * score // highest if highest else 0 for score in scores]
