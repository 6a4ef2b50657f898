"""A required level is nested in the levels above it, and narrower levels are used sparingly."""

from __future__ import annotations

import msgspec
import pytest

from asched.model.groups import PodGroup, SchedulingConstraints, TopologyConstraint
from asched.model.node import Node
from asched.state.group_records import GroupOutcome, PodGroupAttempted
from tests.cycle.scheduling import nodes_of
from tests.group_cycle.groups import PLUGINS, RACK, GroupScheduling, a_group, outcomes
from tests.plugins.gangs import bind, check_replay, gang_pods, member
from tests.state.objects import a_node

BLOCK = "example.com/block"
LEVELS = (BLOCK, RACK)


def at(block: int, rack: int, number: int, **labels: str) -> Node:
    """A node with one core; racks are numbered within their block."""
    offered = {"cpu": "1", "memory": "64Gi", "pods": "110"}
    named = {BLOCK: f"b{block}", RACK: f"r{rack}", **labels}
    return a_node(f"n{block}{rack}{number}", offered, labels=named)


def two_blocks(s: GroupScheduling) -> None:
    """Two blocks of two racks of four nodes."""
    s.see(*(at(code >> 3, code >> 2 & 1, code & 3) for code in range(16)))


def requiring(name: str, minimum: int, label: str) -> PodGroup:
    made = a_group(name, minimum)
    constraints = SchedulingConstraints(topology=(TopologyConstraint(key=label),))
    return msgspec.structs.replace(
        made, spec=msgspec.structs.replace(made.spec, scheduling_constraints=constraints)
    )


def racks(s: GroupScheduling) -> set[str]:
    """The blocks and racks in which members run."""
    members = [entry for entry in s.state.pods.values() if entry.info.name.startswith("a")]
    return {entry.node[1:3] for entry in members if entry.node}


@pytest.fixture
def s() -> GroupScheduling:
    made = GroupScheduling(levels=LEVELS)
    two_blocks(made)
    return made


def test_racks_of_one_name_in_two_blocks_are_two_domains(s: GroupScheduling) -> None:
    s.see(a_group("a", 5, rack=True), *gang_pods("a", 5))
    assert outcomes(s.next()) == [GroupOutcome.UNSCHEDULABLE]
    s.see(a_group("a", 4, rack=True))
    s.pass_time(20)
    header = s.next()[0]
    assert isinstance(header, PodGroupAttempted)
    (used,) = racks(s)
    assert header.placement == f"b{used[0]}/r{used[1]}"
    check_replay(s, *PLUGINS)


def test_without_levels_a_label_is_compared_alone() -> None:
    """As in kube-scheduler."""
    s = GroupScheduling()
    two_blocks(s)
    s.see(a_group("a", 8, rack=True), *gang_pods("a", 8))
    assert outcomes(s.next()) == [GroupOutcome.SCHEDULED]


def test_levels_of_the_group_nest_its_required_label() -> None:
    s = GroupScheduling()
    two_blocks(s)
    s.see(a_group("a", 5, rack=True, prefers=f"{BLOCK},{RACK}"), *gang_pods("a", 5))
    assert outcomes(s.next()) == [GroupOutcome.UNSCHEDULABLE]


def test_running_members_bind_later_ones_to_their_rack_and_block(s: GroupScheduling) -> None:
    s.see(a_group("a", 4, rack=True), *gang_pods("a", 4))
    s.next()
    bind(s)
    s.see(member("a", "a4"))
    assert outcomes(s.next()) == [GroupOutcome.UNSCHEDULABLE]
    assert len(racks(s)) == 1


def test_node_that_enters_the_block_requeues_the_group() -> None:
    """It enters a rack of the block with it."""
    s = GroupScheduling(levels=LEVELS)
    s.see(at(0, 0, 0), at(1, 0, 0), a_group("a", 2, rack=True), *gang_pods("a", 2))
    assert outcomes(s.next()) == [GroupOutcome.UNSCHEDULABLE]
    s.pass_time(60)
    assert not s.next()
    s.see(at(1, 0, 0, **{BLOCK: "b0"}))
    assert outcomes(s.next()) == [GroupOutcome.SCHEDULED]


@pytest.mark.parametrize(("size", "used"), [(3, 1), (4, 1), (6, 2), (8, 2)])
def test_required_block_without_preference_uses_few_racks(
    s: GroupScheduling, size: int, used: int
) -> None:
    """Members would otherwise be spread over the block."""
    s.see(requiring("a", size, BLOCK), *gang_pods("a", size))
    assert len(nodes_of(s.next())) == size
    assert len({rack[0] for rack in racks(s)}) == 1
    assert len(racks(s)) == used
