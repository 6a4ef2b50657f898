"""Tries a pod group on a private state, as its profile would, and changes nothing for good.

Pod by pod, members are placed one after the other as well, so one trial serves both ways.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from asched.audit.hypotheticals import ChangeableState
from asched.framework.interface import GroupCycleSettings
from asched.framework.placements import GroupPlacement
from asched.framework.pod_groups import GANG_SCHEDULING, PodGroupKey
from asched.framework.pod_info import PodShape, QueuedPod
from asched.framework.runtime.plugin_calls import PluginFailure, gate_status
from asched.framework.runtime.profile import Profile
from asched.framework.status import Code
from asched.group_cycle.cycle import GroupCycle, GroupResult
from asched.group_cycle.member_pass import MemberPass, PassMode, PassResult, Preemption
from asched.group_cycle.members import CycleMembers, collect_members
from asched.group_cycle.placement_choice import (
    TriedPlacement,
    generate_placements,
    rows_within,
)
from asched.model.requests import CPU, MEMORY
from asched.plugins.node_resources.fit import NodeResourcesFit
from asched.state.cluster import ClusterState, PlacementState, PodEntry

MAX_TRIED: Final = 60_000
"""Members that the search for changes may try: a few seconds."""
_COMPLETE: Final = 4
"""A complete cycle costs as much as so many passes."""


@dataclass(slots=True)
class MemberCounts:
    """The pods of a group by what may become of them."""

    entries: list[PodEntry] = field(default_factory=list)
    with_node: int = 0
    terminating: int = 0
    ready: list[PodEntry] = field(default_factory=list)
    """Pending, and PreEnqueue lets them pass."""
    gated: dict[str, list[PodEntry]] = field(default_factory=dict)
    """By the plugin that holds them back."""
    gate_messages: dict[str, str] = field(default_factory=dict)
    """What such a plugin answers for the first of them."""
    foreign: dict[str, list[PodEntry]] = field(default_factory=dict)
    """By the scheduler name that no profile has."""

    @property
    def pending(self) -> int:
        return len(self.ready) + sum(map(len, self.gated.values()))


def count_members(state: ClusterState, group: PodGroupKey) -> MemberCounts:
    """The group's pods that have not finished."""
    found = MemberCounts()
    for key in sorted(state.groups.members(group).statuses):
        entry = state.pods[key]
        found.entries.append(entry)
        info = entry.info
        profile = state.profiles.get(info.pod.spec.scheduler_name)
        if entry.placement_state is not PlacementState.PENDING:
            found.with_node += 1
        elif info.pod.terminating:
            found.terminating += 1
        elif profile is None:
            found.foreign.setdefault(info.pod.spec.scheduler_name, []).append(entry)
        else:
            held = next(filter(None, (gate_status(p, info) for p in profile.pre_enqueue)), None)
            if held is None:
                found.ready.append(entry)
            else:
                found.gated.setdefault(held.plugin, []).append(entry)
                found.gate_messages.setdefault(held.plugin, held.message)
    return found


@dataclass(slots=True)
class TriedGroup:
    """What a pass over the members found in each placement."""

    members: CycleMembers
    tried: list[TriedPlacement] = field(default_factory=list)
    problem: str = ""
    """Why there is no placement, or why a pass failed."""
    plugin: str = ""
    failed: bool = False
    """``problem`` is an error."""

    @property
    def feasible(self) -> list[TriedPlacement]:
        return [one for one in self.tried if one.result.feasible]


class GroupTrial:
    """Tries one group, on the state as it is or with changes."""

    def __init__(self, changeable: ChangeableState, group: PodGroupKey, most: int) -> None:
        """``most``: how many members may be tried for changes."""
        self.changeable = changeable
        self.group = group
        self.left = most
        self.limited = False
        """A change was not tried because too many members had been."""

    @property
    def state(self) -> ClusterState:
        return self.changeable.state

    def members(self) -> CycleMembers | None:
        """The members that would be tried; None if none is pending and ready."""
        state = self.state
        for entry in count_members(state, self.group).ready:
            head = state.queue.find_queued(entry.info.key)
            if head is None:
                continue  # an extender is asked about it
            profile = state.profiles[entry.info.pod.spec.scheduler_name]
            found = collect_members(state, profile, head)
            if found is None or profile.group_cycle is not None:
                return found
            # Pod by pod, placements are not considered.
            return found.under(found.rules._replace(constrained=False, topology_key=""))
        return None

    def profile(self, members: CycleMembers) -> Profile:
        """The profile of the members, without plugins that do not run in a pass."""
        state = self.state
        profile = state.profiles[members.pending[0].info.pod.spec.scheduler_name]
        skipped = state.guards.circuits.in_force(profile).skipped
        return profile.without(skipped | {GANG_SCHEDULING})

    def passes(self, members: CycleMembers) -> MemberPass:
        return MemberPass(self.state, self.profile(members), self.changeable.cache)

    def attempt(self, members: CycleMembers, only: str | None = None) -> TriedGroup:
        """One pass in each placement, or in the placement named ``only``, without preemption."""
        found = TriedGroup(members)
        try:
            generated = generate_placements(self.state, self.profile(members), members.group)
        except PluginFailure as failure:
            found.problem, found.plugin, found.failed = str(failure), failure.plugin, True
            return found
        if not generated.status.is_success:
            found.problem = generated.status.message
            found.failed = generated.status.code is Code.ERROR
        passes = self.passes(members)
        last_tier = max((placement.tier for placement in generated.placements), default=0)
        for placement in generated.placements:
            # A group that fits in no domain that it prefers is tried elsewhere.
            if placement.tier < last_tier or (only is not None and placement.name != only):
                continue
            within = rows_within(self.state, placement)
            bounded = self._bounded(members, placement)
            result = passes.run(bounded, PassMode(Preemption.NONE, within=within))
            self.left -= len(result.members)
            found.tried.append(TriedPlacement(placement, result))
            if result.error is not None:
                found.problem, found.plugin = result.error.message, result.error.plugin
                found.failed = True
                break
        return found

    def _bounded(self, members: CycleMembers, placement: GroupPlacement) -> CycleMembers:
        """The members without most of those for which the placement has no cpu, memory or number of
        pods left: one of each shape remains."""
        if NodeResourcesFit.name not in self.profile(members).plugins:
            return members
        room: dict[int, int] = {}
        kept: list[QueuedPod] = []
        for queued in members.pending:
            shape = queued.info.shape
            left = room.get(id(shape))
            if left is None:
                left = _room(self.state, placement, shape) + 1
            room[id(shape)] = left - 1
            if left > 0:
                kept.append(queued)
        return members.only(kept)

    def admits(self, only: str | None = None) -> bool:
        """Whether the group would be scheduled in a placement now. False beyond the limit."""
        if not self.may_try():
            return False
        members = self.members()
        if members is None or members.mixed:
            return False
        return bool(self.attempt(members, only).feasible)

    def whole(self, members: CycleMembers) -> GroupResult:
        """A complete cycle with preemption."""
        profile = self.state.profiles[members.pending[0].info.pod.spec.scheduler_name]
        return GroupCycle(self.state, profile, self.changeable.cache).run(members)

    def preempts(self) -> GroupResult | None:
        """A complete cycle; None beyond the limit."""
        members = self.members() if self.may_try() else None
        if members is None or members.mixed:
            return None
        self.left -= _COMPLETE * len(members.pending)
        return self.whole(members)

    def may_preempt(self, members: CycleMembers) -> bool:
        """Whether a cycle of the group may evict pods."""
        profile = self.profile(members)
        settings = profile.group_cycle or GroupCycleSettings()
        placed = members.rules.constrained and profile.placement.generate is not None
        in_domain = settings.group_preemption and settings.topology_preemption
        return bool(profile.post_filter) and (in_domain or not placed)

    def may_try(self) -> bool:
        """Whether the limit allows another try."""
        self.limited |= self.left <= 0
        return self.left > 0


def _room(state: ClusterState, placement: GroupPlacement, shape: PodShape) -> int:
    """How many pods of a shape fit on the nodes of a placement at most."""
    table, rows = state.nodes, placement.rows
    room = table.allowed_pods[rows] - table.pod_count[rows]
    for resource in (CPU, MEMORY):
        each = shape.requests.get(resource, 0)
        if each:
            free = table.allocatable(resource)[rows] - table.requested(resource)[rows]
            room = np.minimum(room, free // each)
    return int(np.maximum(room, 0).sum())


def placed_in(result: PassResult) -> Iterable[str]:
    """The nodes of the members that fit."""
    return (member.node for member in result.members if member.fits)
