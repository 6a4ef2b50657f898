"""Groups for tests of the group cycle: a profile, PodGroups, and checks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from asched.cycle.shape_cache import ShapeCache
from asched.framework.interface import Plugin
from asched.group_cycle.cycle import GroupCycle
from asched.group_cycle.members import collect_members
from asched.group_cycle.screening import RoomCache
from asched.model.groups import PodGroup, SchedulingConstraints, TopologyConstraint
from asched.model.meta import Annotations
from asched.plugins.default_preemption.plugin import DefaultPreemption
from asched.plugins.gang_scheduling import GangScheduling
from asched.plugins.inter_pod_affinity import InterPodAffinity
from asched.plugins.node_resources.fit import NodeResourcesFit
from asched.plugins.pod_group_pods_count import PodGroupPodsCount
from asched.plugins.queue_and_bind import SchedulingGates
from asched.plugins.topology_placement import TopologyPlacementGenerator
from asched.state import records as r
from asched.state.checkpoint import checkpoint_of
from asched.state.group_records import GroupOutcome, PodGroupAttempted
from tests.cycle.scheduling import Scheduling
from tests.plugins.gangs import a_gang
from tests.state.profiles import profile_of

PLUGINS: tuple[type[Plugin], ...] = (
    SchedulingGates,
    NodeResourcesFit,
    InterPodAffinity,
    GangScheduling,
    DefaultPreemption,
    TopologyPlacementGenerator,
    PodGroupPodsCount,
)
RACK = "topology.kubernetes.io/rack"

_replace = msgspec.structs.replace


class GroupScheduling(Scheduling):
    """A state with a profile that schedules whole groups. A cycle must leave it as it was."""

    def __init__(
        self,
        *,
        group_preemption: bool = False,
        plugins: Sequence[type[Plugin]] = PLUGINS,
        levels: Sequence[str] = (),
        weights: Mapping[str, int] | None = None,
    ) -> None:
        args: dict[str, Any] = {"groupCycle": True, "groupPreemption": group_preemption}
        arguments = {
            GangScheduling.name: args,
            TopologyPlacementGenerator.name: {"levels": [*levels]},
        }
        profile = profile_of(*plugins, arguments=arguments, weights=weights)
        super().__init__(*plugins, profiles=[profile])
        # Kept from cycle to cycle, so that an answer that is too old is found.
        self._kept = ShapeCache(self.state.nodes), RoomCache()

    def next(self) -> tuple[r.Decision, ...]:
        before = checkpoint_of(self.state)
        self._check_screening()
        decisions = self.decider.next()
        assert checkpoint_of(self.state) == before
        for decision in decisions:
            self.apply(decision)
        return decisions

    def _check_screening(self) -> None:
        """Placements that are not tried for lack of room must not change the outcome."""
        head = self.state.queue.head()
        profile = self.state.profiles["default-scheduler"]
        members = head and collect_members(self.state, profile, head)
        if not members:
            return
        answers = self.state.waiting_pods.answers
        cache, rooms = self._kept
        screened = GroupCycle(self.state, profile, cache, rooms=rooms).run(members)
        exhaustive = GroupCycle(self.state, profile, ShapeCache(self.state.nodes)).run(members)
        self.state.waiting_pods.reset_answers(answers)
        assert screened.outcome is exhaustive.outcome
        assert screened.victims == exhaustive.victims
        if screened.outcome is GroupOutcome.SCHEDULED:
            assert screened.placement == exhaustive.placement
            found = [[m.node for m in result.members] for result in (screened, exhaustive)]
            assert found[0] == found[1]

    def evict(self) -> None:
        """Victims are gone, except those that a PodGroup's pods still need."""
        for eviction in [*self.state.evictions.values()]:
            victim = eviction.victim
            self.apply(r.EvictionSucceeded(victim.key, victim.uid))
            self.apply(r.ObjectDeleted("Pod", victim.key, victim.uid))


def a_group(
    name: str,
    min_count: int,
    rack: bool = False,
    priority: int = 0,
    mode: str = "",
    prefers: str | None = None,
) -> PodGroup:
    """A PodGroup. ``rack``: all members in one rack; ``mode``: its ``disruptionMode``;
    ``prefers``: its preferred topology levels."""
    made = a_gang(name, min_count)
    made = _replace(
        made,
        metadata=_replace(made.metadata, annotations=Annotations(preferred_topology=prefers)),
    )
    constraints = SchedulingConstraints(topology=(TopologyConstraint(key=RACK),)) if rack else None
    return _replace(
        made,
        spec=_replace(
            made.spec,
            scheduling_constraints=constraints,
            priority=priority,
            disruption_mode=mode,
        ),
    )


def outcomes(decisions: Sequence[r.Decision]) -> list[GroupOutcome]:
    return [d.outcome for d in decisions if isinstance(d, PodGroupAttempted)]


def victims(decisions: Sequence[r.Decision]) -> list[str]:
    """Names of the pods that are evicted, sorted."""
    return sorted(
        victim.key.partition("/")[2]
        for decision in decisions
        if isinstance(decision, r.Rejected)
        for victim in decision.victims
    )


def messages(decisions: Sequence[r.Decision]) -> dict[str, str]:
    """By name of the pod."""
    return {
        d.key.partition("/")[2]: d.message
        for d in decisions
        if isinstance(d, r.Rejected | r.AttemptFailed)
    }
