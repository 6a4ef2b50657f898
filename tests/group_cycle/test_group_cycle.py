"""Whole groups in one cycle: all members or none, in one domain, and again when it may fit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
import pytest

from asched.framework.interface import PlacementGeneratePlugin, PlacementScorePlugin, Plugin
from asched.framework.nodes import Nodes
from asched.framework.placements import (
    GeneratedPlacements,
    GroupAssignments,
    GroupInCycle,
    GroupPlacement,
)
from asched.framework.pod_groups import GANG_SCHEDULING
from asched.group_cycle.cycle import AWAITS_VICTIMS, NO_PLACEMENTS
from asched.model.node import Node
from asched.model.pod import Pod
from asched.plugins.gang_scheduling import INCOMPLETE
from asched.plugins.pod_group_pods_count import PodGroupPodsCount
from asched.plugins.topology_placement import TopologyPlacementGenerator
from asched.state import records as r
from asched.state.group_records import GroupOutcome, PodGroupAttempted
from asched.state.session_records import PodGroupStatusDecided
from tests.cycle.scheduling import nodes_of
from tests.group_cycle.groups import (
    PLUGINS,
    RACK,
    GroupScheduling,
    a_group,
    messages,
    outcomes,
    victims,
)
from tests.plugins.gangs import bind, check_replay, gang_pods, member, nodes, placed, settle
from tests.state.objects import a_node, a_pod, bound

ROOM = {"memory": "64Gi", "pods": "110"}


def in_rack(name: str, rack: str, cpu: str = "1") -> Node:
    return a_node(name, {"cpu": cpu, **ROOM}, labels={RACK: rack})


@pytest.fixture
def s() -> GroupScheduling:
    return GroupScheduling()


def test_group_that_fits_is_assigned_in_one_batch(s: GroupScheduling) -> None:
    nodes(s, 3)
    s.see(a_group("a", 3), *gang_pods("a", 3))
    decisions = s.next()
    header, *members, status = decisions
    assert isinstance(header, PodGroupAttempted)
    assert (header.outcome, header.members, header.placed) == (GroupOutcome.SCHEDULED, 3, 3)
    assert all(isinstance(d, r.Assigned) and d.grouped and not d.permit_waits for d in members)
    assert isinstance(status, PodGroupStatusDecided)
    assert [c.status for c in status.conditions] == ["True"]
    assert not s.next()
    bind(s)
    assert placed(s) == ["a0", "a1", "a2"]
    check_replay(s, *PLUGINS)


def test_group_that_does_not_fit_holds_nothing(s: GroupScheduling) -> None:
    nodes(s, 2)
    s.see(a_group("a", 3), *gang_pods("a", 3))
    decisions = s.next()
    assert outcomes(decisions) == [GroupOutcome.UNSCHEDULABLE]
    assert sorted(messages(decisions).values())[1:] == [INCOMPLETE, INCOMPLETE]
    assert not any(entry.node for entry in s.state.pods.values())
    assert not s.decide()
    check_replay(s, *PLUGINS)


def test_added_node_requeues_the_group(s: GroupScheduling) -> None:
    nodes(s, 2)
    s.see(a_group("a", 3), *gang_pods("a", 3))
    s.decide()
    nodes(s, 1, first=2)
    settle(s)
    assert placed(s) == ["a0", "a1", "a2"]
    assert not s.state.queue.replay_mismatches
    check_replay(s, *PLUGINS)


def test_members_beyond_the_minimum_are_left_behind(s: GroupScheduling) -> None:
    nodes(s, 2)
    s.see(a_group("a", 2), *gang_pods("a", 3))
    decisions = s.next()
    assert outcomes(decisions) == [GroupOutcome.SCHEDULED]
    assert len(nodes_of(decisions)) == 2
    nodes(s, 1, first=2)
    settle(s)
    assert len(placed(s)) == 3
    check_replay(s, *PLUGINS)


def test_member_that_is_missing_gates_the_group(s: GroupScheduling) -> None:
    nodes(s, 3)
    s.see(a_group("a", 3), *gang_pods("a", 2))
    assert not s.decide()
    assert {*s.state.queue.gated} == {"default/a0", "default/a1"}
    s.see(gang_pods("a", 3)[2])
    assert outcomes(s.decide()) == [GroupOutcome.SCHEDULED]


def test_group_is_placed_in_one_rack(s: GroupScheduling) -> None:
    s.see(*(in_rack(f"n{n}", f"r{n % 3}") for n in range(8)))
    s.see(a_group("a", 3, rack=True), *gang_pods("a", 3))
    decisions = s.next()
    header = decisions[0]
    assert isinstance(header, PodGroupAttempted)
    assert header.placements == 3
    assert {
        s.state.nodes.node(s.state.nodes.row_of(n) or 0).labels[RACK]
        for n in nodes_of(decisions).values()
    } == {header.placement}
    check_replay(s, *PLUGINS)


def test_rack_with_most_members_wins(s: GroupScheduling) -> None:
    """Members that fit count first, then the utilization of the rack."""
    s.see(*(in_rack(f"s{n}", "small") for n in range(2)))
    s.see(*(in_rack(f"l{n}", "large") for n in range(4)))
    s.see(a_group("a", 2, rack=True), *gang_pods("a", 3))
    decisions = s.next()
    assert {*nodes_of(decisions).values()} < {"l0", "l1", "l2", "l3"}
    assert len(nodes_of(decisions)) == 3


def test_fuller_rack_wins_if_equally_many_members_fit(s: GroupScheduling) -> None:
    s.see(*(in_rack(f"e{n}", "empty", "4") for n in range(2)))
    s.see(*(in_rack(f"f{n}", "full", "4") for n in range(2)))
    s.see(low("v0", "f0"), low("v1", "f1"))
    s.see(a_group("a", 2, rack=True), *gang_pods("a", 2))
    assert {*nodes_of(s.next()).values()} <= {"f0", "f1"}


def test_later_member_stays_in_the_rack_of_the_group(s: GroupScheduling) -> None:
    s.see(*(in_rack(f"n{n}", f"r{n % 2}") for n in range(4)))
    s.see(a_group("a", 2, rack=True), *gang_pods("a", 2))
    decisions = s.next()
    bind(s)
    s.see(gang_pods("a", 3)[2])
    later = s.next()
    assert outcomes(later) == [GroupOutcome.UNSCHEDULABLE]
    assert messages(later)["a2"].startswith("0/2 nodes are available: 2 Insufficient cpu.")
    assert len(nodes_of(decisions)) == 2


def test_group_without_domains_waits_for_a_label(s: GroupScheduling) -> None:
    nodes(s, 2)
    s.see(a_group("a", 2, rack=True), *gang_pods("a", 2))
    decisions = s.next()
    assert {*messages(decisions).values()} == {NO_PLACEMENTS}
    assert not s.decide()
    s.see(in_rack("n0", "r"), in_rack("n1", "r"))
    settle(s)
    assert placed(s) == ["a0", "a1"]
    check_replay(s, *PLUGINS)


def test_node_that_enters_a_rack_requeues_the_group(s: GroupScheduling) -> None:
    """The filters that rejected members wait for no label."""
    s.see(in_rack("n0", "r0"), in_rack("n1", "r1"), a_group("a", 2, rack=True), *gang_pods("a", 2))
    assert outcomes(s.next()) == [GroupOutcome.UNSCHEDULABLE]
    s.pass_time(60)
    assert not s.decide()
    s.see(in_rack("n1", "r0"))
    settle(s)
    assert placed(s) == ["a0", "a1"]
    check_replay(s, *PLUGINS)


def test_members_in_two_domains_are_an_error(s: GroupScheduling) -> None:
    s.see(in_rack("n0", "r0"), in_rack("n1", "r1"))
    first, second, third = gang_pods("a", 3, cpu="100m")
    s.see(a_group("a", 1, rack=True), bound(first, "n0"), bound(second, "n1"), third)
    decisions = s.next()
    assert outcomes(decisions) == [GroupOutcome.ERROR]
    assert "more than 1 domain found for pod group: r0, r1" in messages(decisions)["a2"]


def test_member_on_a_node_that_is_gone_is_an_error(s: GroupScheduling) -> None:
    """With the words of kube-scheduler."""
    s.see(in_rack("n0", "r0"), a_group("a", 1, rack=True))
    s.see(bound(member("a", "a0"), "gone"), member("a", "a1"))
    decisions = s.next()
    assert outcomes(decisions) == [GroupOutcome.ERROR]
    assert messages(decisions)["a1"] == (
        "cannot determine domain for already scheduled pods: getting node for pod default/a0:"
        ' nodeinfo not found for node name "gone"'
    )


@pytest.mark.parametrize("free", [(2, 0), (2, 1)])
def test_smaller_minimum_requeues_a_group_with_a_topology(
    s: GroupScheduling, free: tuple[int, int]
) -> None:
    """Also if each member was rejected in some rack, or no rack was tried for lack of room."""
    for number, cores in enumerate(free):
        s.see(a_node(f"n{number}", {"cpu": str(cores), **ROOM}, labels={RACK: f"r{number}"}))
    s.see(a_group("a", 3, rack=True), *gang_pods("a", 3))
    s.next()
    assert not placed(s)
    s.see(a_group("a", 2, rack=True))
    settle(s, 2)
    assert placed(s) == ["a0", "a1"]


def test_dropped_topology_requeues_a_later_member(s: GroupScheduling) -> None:
    s.see(in_rack("n0", "r0"), in_rack("n1", "r1"))
    first, second = gang_pods("a", 2)
    s.see(a_group("a", 1, rack=True), bound(first, "n0"), second)
    s.next()
    assert placed(s) == ["a0"]
    s.see(a_group("a", 1))
    settle(s, 2)
    assert placed(s) == ["a0", "a1"]


# -- preemption -----------------------------------------------------------------------------------


def low(name: str, node: str, **pod: Any) -> Pod:
    return bound(a_pod(name, {"cpu": "1"}, **pod), node)


def test_members_evict_only_if_the_group_then_fits(s: GroupScheduling) -> None:
    nodes(s, 2)
    s.see(low("v0", "n0"), low("v1", "n1"))
    s.see(a_group("a", 3), *gang_pods("a", 3, priority=10))
    decisions = s.next()
    assert outcomes(decisions) == [GroupOutcome.UNSCHEDULABLE]
    assert not victims(decisions)
    nodes(s, 1, first=2)
    s.pass_time(11)
    later = s.decide()
    assert outcomes(later)[0] is GroupOutcome.WAITING
    assert victims(later) == ["v0", "v1"]
    s.evict()
    settle(s)
    assert len(placed(s)) == 3
    check_replay(s, *PLUGINS)


def test_surplus_member_does_not_delay_a_complete_group(s: GroupScheduling) -> None:
    nodes(s, 2)
    s.see(low("v0", "n0"))
    s.see(a_group("a", 1), *gang_pods("a", 2, priority=10))
    decisions = s.next()
    assert outcomes(decisions) == [GroupOutcome.SCHEDULED]
    assert not victims(decisions)
    bind(s)
    s.pass_time(11)
    assert victims(s.decide()) == ["v0"]  # it preempts once the group is scheduled
    s.evict()
    settle(s)
    assert placed(s) == ["a0", "a1"]
    check_replay(s, *PLUGINS)


def test_members_do_not_schedule_while_victims_of_another_run(s: GroupScheduling) -> None:
    nodes(s, 2)
    s.see(low("v0", "n0"))
    s.see(a_group("a", 2), *gang_pods("a", 2, priority=10))
    decisions = s.next()
    assert outcomes(decisions) == [GroupOutcome.WAITING]
    assert AWAITS_VICTIMS in messages(decisions).values()
    s.see(a_node("n9", {"cpu": "100m", **ROOM}))
    s.pass_time(11)
    assert not outcomes(s.decide())
    s.evict()
    settle(s)
    assert placed(s) == ["a0", "a1"]
    check_replay(s, *PLUGINS)


def test_group_goes_on_when_its_preemptor_is_deleted(s: GroupScheduling) -> None:
    nodes(s, 2)
    s.see(low("v0", "n0"))
    s.see(a_group("a", 2), *gang_pods("a", 3, priority=10))
    decisions = s.next()
    preemptor = next(d for d in decisions if isinstance(d, r.Rejected) and d.victims)
    s.apply(r.ObjectDeleted("Pod", preemptor.key, preemptor.uid))
    s.evict()
    settle(s)
    assert len(placed(s)) == 2


def test_group_preempts_as_one() -> None:
    s = GroupScheduling(group_preemption=True)
    nodes(s, 3)
    s.see(low("v0", "n0", priority=5), low("v1", "n1", priority=1), low("v2", "n2", priority=3))
    s.see(a_group("a", 2, priority=10), *gang_pods("a", 2, priority=10))
    decisions = s.next()
    assert outcomes(decisions) == [GroupOutcome.WAITING]
    assert victims(decisions) == ["v1", "v2"]
    s.evict()
    settle(s)
    assert placed(s) == ["a0", "a1", "v0"]
    check_replay(s, *PLUGINS)


def test_whole_group_is_one_victim() -> None:
    s = GroupScheduling(group_preemption=True)
    nodes(s, 3)
    s.see(a_group("b", 2, priority=1, mode="All"))
    s.see(*(bound(pod, f"n{n}") for n, pod in enumerate(gang_pods("b", 2))))
    s.see(low("v2", "n2", priority=2))
    s.see(a_group("a", 1, priority=10), member("a", "a0", priority=10))
    decisions = s.next()
    # Only the group is less important than v2, and it is evicted as a whole.
    assert victims(decisions) == ["b0", "b1"]


def test_group_does_not_preempt_groups_of_equal_priority() -> None:
    s = GroupScheduling(group_preemption=True)
    nodes(s, 1)
    s.see(low("v0", "n0", priority=10))
    s.see(a_group("a", 1, priority=10), member("a", "a0", priority=1000))
    decisions = s.next()
    assert outcomes(decisions) == [GroupOutcome.UNSCHEDULABLE]
    header = decisions[0]
    assert isinstance(header, PodGroupAttempted)
    assert header.message.endswith("No preemption victims found for incoming preemptor")


def test_member_alone_is_recorded_with_its_gang(s: GroupScheduling) -> None:
    """A member is retried with its siblings if a plugin rejected them."""
    nodes(s, 1)
    s.see(a_group("a", 2), *gang_pods("a", 2))
    decisions = s.next()
    by_plugin = {d.unschedulable_plugins for d in decisions if isinstance(d, r.Rejected)}
    assert (GANG_SCHEDULING,) in by_plugin


# -- plugins that fail ----------------------------------------------------------------------------


class BadRows(PlacementGeneratePlugin):
    """Names rows that do not exist."""

    name: ClassVar[str] = "BadRows"
    api_version: ClassVar[int] = 1

    def generate_placements(self, group: GroupInCycle, nodes: Nodes) -> GeneratedPlacements:
        return GeneratedPlacements(placements=(GroupPlacement("far", np.array([999])),))


class Raises(PlacementGeneratePlugin):
    name: ClassVar[str] = "Raises"
    api_version: ClassVar[int] = 1

    def generate_placements(self, group: GroupInCycle, nodes: Nodes) -> GeneratedPlacements:
        raise RuntimeError("no idea")


class BadScores(PlacementScorePlugin):
    name: ClassVar[str] = "BadScores"
    api_version: ClassVar[int] = 1

    def score_placement(self, group: GroupInCycle, assignments: GroupAssignments) -> int:
        return 1

    def normalize_placements(self, scores: Sequence[int]) -> Sequence[int]:
        return scores[1:]


@pytest.mark.parametrize(
    ("plugin", "message"),
    [
        (BadRows, "plugin BadRows at PlacementGenerate: its answer cannot be used: IndexError"),
        (Raises, "plugin Raises at PlacementGenerate: RuntimeError: no idea"),
        (BadScores, "plugin BadScores at NormalizePlacementScore: not one integer for each"),
    ],
)
def test_failing_plugin_fails_the_group(plugin: type[Plugin], message: str) -> None:
    replaced = TopologyPlacementGenerator if plugin is not BadScores else PodGroupPodsCount
    s = GroupScheduling(plugins=[plugin if p is replaced else p for p in PLUGINS])
    s.see(*(in_rack(f"n{n}", f"r{n % 2}") for n in range(4)))
    s.see(a_group("a", 2, rack=True), *gang_pods("a", 2))
    decisions = s.next()
    assert outcomes(decisions) == [GroupOutcome.ERROR]
    failed = [d for d in decisions if isinstance(d, r.AttemptFailed)]
    assert all(d.message.startswith(message) for d in failed)
    assert [d.plugin for d in failed] == [plugin.name, ""]


def test_own_members_that_are_victims_do_not_count() -> None:
    """Evicting a running member of the group makes room for one member, and takes one away."""
    s = GroupScheduling(group_preemption=True)
    nodes(s, 1)
    first, second = gang_pods("a", 2)
    s.see(a_group("a", 2, priority=10), bound(first, "n0"), second)
    decisions = s.next()
    assert outcomes(decisions) == [GroupOutcome.UNSCHEDULABLE]
    assert not victims(decisions)
