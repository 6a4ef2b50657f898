"""Placements: the sets of nodes on which a whole pod group is tried, and what came of it.

Plugins of the extension points PlacementGenerate and PlacementScore use these types.
"""

from __future__ import annotations

from typing import NamedTuple

from asched.framework.cycle_state import StateKey
from asched.framework.nodes import RowArray
from asched.framework.pod_groups import GroupRules
from asched.framework.pod_info import PodInfo
from asched.framework.status import SUCCESS, Status

NO_PREEMPTION: StateKey[str] = StateKey("PodGroup/noPreemption")
"""Why PostFilter plugins must not preempt for the pod: its group is scheduled as a whole. Absent if
they may."""


class PlacedMember(NamedTuple):
    """A member of a group on a node."""

    pod: PodInfo
    node: str


class GroupInCycle(NamedTuple):
    """The group that a group cycle schedules."""

    rules: GroupRules
    pending: tuple[PodInfo, ...]
    """The members to schedule, in order."""
    running: tuple[PlacedMember, ...]
    """The members that are bound or assumed, and not being deleted."""


class GroupPlacement(NamedTuple):
    """Nodes on which the group is tried."""

    name: str
    """The topology domain, or empty for all nodes."""
    rows: RowArray
    """Ascending rows of the cluster's nodes."""
    tier: int = 0
    """Placements of a lower tier come first and are tried before those of the next one. A later
    tier is used only if more members fit there."""


class GeneratedPlacements(NamedTuple):
    """The outcome of a PlacementGenerate plugin."""

    status: Status = SUCCESS
    placements: tuple[GroupPlacement, ...] = ()


class GroupAssignments(NamedTuple):
    """The members that fit in a placement."""

    placement: GroupPlacement
    members: tuple[PlacedMember, ...]
