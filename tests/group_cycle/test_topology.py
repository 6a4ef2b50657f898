"""Topology of whole groups: preferred levels, members that come later, and preemption in one
domain."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asched.framework.interface import Plugin
from asched.framework.placements import GroupInCycle
from asched.framework.pod_groups import rules_of
from asched.model.meta import Annotations, ObjectMeta
from asched.model.node import Node
from asched.model.pod import Pod
from asched.model.selectors import LabelSelector
from asched.model.workloads import (
    PodDisruptionBudget,
    PodDisruptionBudgetSpec,
    PodDisruptionBudgetStatus,
)
from asched.plugins.node_filters import NodeUnschedulable
from asched.plugins.topology_placement import (
    PlacementBestFit,
    TopologyPlacementGenerator,
    TopologyPlacementGeneratorArgs,
)
from asched.state import records as r
from asched.state.group_records import GroupOutcome, PodGroupAttempted
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
from tests.plugins.gangs import (
    a_custom_gang,
    bind,
    check_replay,
    custom_member,
    gang_pods,
    member,
    placed,
    settle,
)
from tests.run_size import examples
from tests.state.objects import a_node, a_pod, bound

BLOCK, LINK = "example.com/block", "example.com/nvlink"
LEVELS = (BLOCK, RACK, LINK)
BEST_FIT: tuple[type[Plugin], ...] = (*PLUGINS, PlacementBestFit)


def at(block: int, rack: int, link: int, number: int, cpu: str = "1") -> Node:
    """A node; racks and NVLink domains are numbered within the level above."""
    labels = {BLOCK: f"b{block}", RACK: f"r{rack}", LINK: f"l{link}"}
    name = f"n{block}{rack}{link}{number}"
    return a_node(name, {"cpu": cpu, "memory": "64Gi", "pods": "110"}, labels=labels)


def two_blocks(s: GroupScheduling) -> None:
    """Two blocks of two racks of two NVLink domains of two nodes with one core."""
    for code in range(16):
        s.see(at(code >> 3, code >> 2 & 1, code >> 1 & 1, code & 1))


def occupied(name: str, node: str, **pod: Any) -> Pod:
    return bound(a_pod(name, {"cpu": "1"}, **pod), node)


def prefixes(s: GroupScheduling, length: int) -> set[str]:
    """Domains in which pods of a group run, by the first digits of their nodes."""
    nodes = [entry.node for entry in s.state.pods.values() if entry.info.name.startswith("a")]
    return {node[1 : 1 + length] for node in nodes if node}


@pytest.fixture
def s() -> GroupScheduling:
    return GroupScheduling(levels=LEVELS)


@pytest.mark.parametrize(
    ("size", "length", "domains"), [(2, 3, 1), (4, 2, 1), (8, 1, 1), (12, 1, 2)]
)
def test_group_runs_in_the_narrowest_level_with_room(
    s: GroupScheduling, size: int, length: int, domains: int
) -> None:
    """Four members do not fit in an NVLink domain, but in a rack; and so on."""
    two_blocks(s)
    s.see(a_group("a", size, prefers=LINK), *gang_pods("a", size))
    decisions = s.next()
    assert outcomes(decisions) == [GroupOutcome.SCHEDULED]
    assert len(prefixes(s, length)) == domains
    bind(s)
    check_replay_with(s)


def check_replay_with(s: GroupScheduling, *plugins: type[Plugin]) -> None:
    check_replay(s, *(plugins or PLUGINS))


def test_annotation_may_list_the_levels() -> None:
    s = GroupScheduling()
    two_blocks(s)
    s.see(a_group("a", 3, prefers=f"{BLOCK}, {LINK}"), *gang_pods("a", 3))
    s.next()
    assert len(prefixes(s, 1)) == 1


def test_equal_labels_in_different_blocks_are_different_domains() -> None:
    """Racks are called r0 and r1 in each block."""
    s = GroupScheduling(levels=LEVELS)
    two_blocks(s)
    s.see(a_group("a", 3, prefers=RACK), *gang_pods("a", 3))
    header = s.next()[0]
    assert isinstance(header, PodGroupAttempted)
    assert len(prefixes(s, 2)) == 1
    assert header.placement in {"b0/r0", "b0/r1", "b1/r0", "b1/r1"}


def test_preferred_domain_leaves_no_member_behind(s: GroupScheduling) -> None:
    """Two of three members would suffice, but all fit in a rack."""
    two_blocks(s)
    s.see(a_group("a", 2, prefers=LINK), *gang_pods("a", 3))
    assert len(nodes_of(s.next())) == 3
    assert len(prefixes(s, 2)) == 1


def test_required_level_bounds_the_preferred_one(s: GroupScheduling) -> None:
    two_blocks(s)
    s.see(*(occupied(f"v{code}", f"n{code >> 1 & 1}{code & 1}00") for code in range(4)))
    s.see(a_group("a", 3, rack=True, prefers=LINK), *gang_pods("a", 3))
    assert outcomes(s.next()) == [GroupOutcome.SCHEDULED]
    assert len(prefixes(s, 2)) == 1


def test_later_member_prefers_the_domain_of_the_group(s: GroupScheduling) -> None:
    two_blocks(s)
    s.see(occupied("v0", "n0101"))
    s.see(a_group("a", 2, prefers=RACK), *gang_pods("a", 2))
    s.next()
    bind(s)
    (rack,) = prefixes(s, 2)
    s.see(member("a", "a2"))
    assert nodes_of(s.next())["default/a2"][1:3] == rack
    bind(s)
    check_replay_with(s)


def test_later_member_runs_elsewhere_if_its_domain_is_full(s: GroupScheduling) -> None:
    two_blocks(s)
    s.see(a_group("a", 2, prefers=LINK), *gang_pods("a", 2))
    s.next()
    bind(s)
    (link,) = prefixes(s, 3)
    s.see(member("a", "a2"))
    node = nodes_of(s.next())["default/a2"]
    assert node[1:3] == link[:2]
    assert node[1:4] != link


def test_event_in_another_domain_requeues_a_member_that_was_left() -> None:
    """It was rejected in the domain of the others, but may run elsewhere."""
    plugins: tuple[type[Plugin], ...] = (NodeUnschedulable, *PLUGINS)
    s = GroupScheduling(plugins=plugins, levels=[RACK])
    offered = {"cpu": "2", "pods": "9"}
    s.see(a_node("n0", offered, labels={RACK: "r0"}))
    s.see(a_node("n1", offered, labels={RACK: "r1"}, unschedulable=True))
    s.see(a_group("a", 2, prefers=RACK), *gang_pods("a", 3))
    assert len(nodes_of(s.next())) == 2
    s.pass_time(60)
    assert not s.decide()
    s.see(a_node("n1", offered, labels={RACK: "r1"}))
    settle(s)
    assert placed(s) == ["a0", "a1", "a2"]
    check_replay_with(s, *plugins)


def test_smallest_domain_that_fits_is_used() -> None:
    s = GroupScheduling(plugins=BEST_FIT, levels=[RACK])
    s.see(*(a_node(f"l{n}", {"cpu": "2", "pods": "9"}, labels={RACK: "large"}) for n in range(8)))
    s.see(*(a_node(f"s{n}", {"cpu": "2", "pods": "9"}, labels={RACK: "small"}) for n in range(4)))
    # The large rack is fuller, relative to its size, and would have more left.
    s.see(*(bound(a_pod(f"v{n}", {"cpu": "1"}), f"l{n}") for n in range(7)))
    s.see(a_group("a", 7, prefers=RACK), *gang_pods("a", 7))
    header = s.next()[0]
    assert isinstance(header, PodGroupAttempted)
    assert header.placement == "small"
    check_replay_with(s, *BEST_FIT)


@pytest.mark.parametrize(
    ("levels", "problem"),
    [("not a label", "'not a label' is not a label key"), (f"{RACK},{RACK}", "twice")],
)
def test_invalid_level_is_one_clear_message(s: GroupScheduling, levels: str, problem: str) -> None:
    two_blocks(s)
    s.see(a_group("a", 1, prefers=levels), member("a", "a0"))
    (message,) = messages(s.next()).values()
    assert message.startswith("topology of the PodGroup: ")
    assert problem in message
    s.see(a_group("a", 1, prefers=RACK))
    settle(s)
    assert placed(s) == ["a0"]


def test_custom_group_requires_a_domain(s: GroupScheduling) -> None:
    """PodGroups of kube-batch and Volcano have no field for it."""
    two_blocks(s)
    group = a_custom_gang("a", 3)
    annotated = msgspec.structs.replace(
        group.metadata, annotations=Annotations(required_topology=BLOCK)
    )
    s.see(msgspec.structs.replace(group, metadata=annotated))
    s.see(*(custom_member("a", f"a{n}") for n in range(3)))
    assert len(nodes_of(s.next())) == 3
    assert len(prefixes(s, 1)) == 1


# -- preemption in one domain ---------------------------------------------------------------------


def racks(count: int, size: int = 2) -> GroupScheduling:
    """Racks of nodes with one core each."""
    s = GroupScheduling(group_preemption=True)
    for number in range(count * size):
        rack = number // size
        s.see(a_node(f"n{number}", {"cpu": "1", "pods": "9"}, labels={RACK: f"r{rack}"}))
    return s


def preemptor(s: GroupScheduling, size: int = 2) -> None:
    s.see(a_group("a", size, rack=True, priority=10), *gang_pods("a", size, priority=10))


def test_group_preempts_where_victims_are_least_important() -> None:
    s = racks(3)
    for node, priority in enumerate((5, 1, 3, 3, 4, 0)):
        s.see(occupied(f"v{node}", f"n{node}", priority=priority))
    preemptor(s)
    decisions = s.next()
    assert outcomes(decisions) == [GroupOutcome.WAITING]
    assert victims(decisions) == ["v2", "v3"]
    s.evict()
    settle(s)
    assert {s.state.pods[f"default/a{n}"].node for n in range(2)} == {"n2", "n3"}
    check_replay_with(s)


def test_fewest_victims_of_equal_priority() -> None:
    s = racks(2)
    s.see(*(occupied(f"v{node}", f"n{node}") for node in (0, 1, 2)))
    preemptor(s)
    assert victims(s.next()) == ["v2"]


def test_budget_counts_before_priorities() -> None:
    s = racks(2)
    for node in range(4):
        labels = {"app": "kept"} if node < 2 else {}
        s.see(occupied(f"v{node}", f"n{node}", priority=node // 2, labels=labels))
    s.see(
        PodDisruptionBudget(
            metadata=ObjectMeta(name="kept", namespace="default", uid="kept"),
            spec=PodDisruptionBudgetSpec(selector=LabelSelector(match_labels={"app": "kept"})),
            status=PodDisruptionBudgetStatus(disruptions_allowed=0),
        )
    )
    preemptor(s)
    assert victims(s.next()) == ["v2", "v3"]


def test_whole_group_is_a_victim_in_all_domains() -> None:
    """Evicting one pod of a group ends all of it, so a rack without such pods is better."""
    s = racks(3)
    s.see(a_group("b", 3, priority=1, mode="All"))
    for node, name in ((0, "b0"), (4, "b1"), (5, "b2")):
        s.see(bound(member("b", name, priority=1), f"n{node}"))
    s.see(*(occupied(f"v{node}", f"n{node}", priority=1) for node in (1, 2, 3)))
    preemptor(s)
    assert victims(s.next()) == ["v2", "v3"]


def test_nothing_is_evicted_if_no_domain_suffices() -> None:
    s = racks(3)
    s.see(*(occupied(f"v{node}", f"n{node}") for node in range(6)))
    preemptor(s, size=3)
    decisions = s.next()
    assert outcomes(decisions) == [GroupOutcome.UNSCHEDULABLE]
    assert not victims(decisions)


def test_running_members_bind_the_victims_to_their_domain() -> None:
    s = racks(2)
    s.see(*(occupied(f"v{node}", f"n{node}", priority=node) for node in (0, 1, 3)))
    first, second = gang_pods("a", 2, priority=10)
    s.see(a_group("a", 2, rack=True, priority=10), bound(first, "n2"), second)
    assert victims(s.next()) == ["v3"]


def test_preferred_level_costs_no_eviction(s: GroupScheduling) -> None:
    """A group that fits in no NVLink domain as it is runs in a rack and evicts nothing."""
    s = GroupScheduling(group_preemption=True, levels=LEVELS)
    two_blocks(s)
    s.see(*(occupied(f"v{code}", f"n{code:03b}0") for code in range(8)))
    s.see(a_group("a", 2, prefers=LINK, priority=10), *gang_pods("a", 2, priority=10))
    decisions = s.next()
    assert outcomes(decisions) == [GroupOutcome.SCHEDULED]
    assert len(prefixes(s, 2)) == 1


def test_preferred_group_preempts_in_the_narrowest_domain_of_equal_cost() -> None:
    s = GroupScheduling(group_preemption=True, levels=[RACK])
    for number in range(4):
        s.see(a_node(f"n{number}", {"cpu": "1", "pods": "9"}, labels={RACK: f"r{number // 2}"}))
        s.see(occupied(f"v{number}", f"n{number}"))
    s.see(a_group("a", 2, prefers=RACK, priority=10), *gang_pods("a", 2, priority=10))
    assert victims(s.next()) in (["v0", "v1"], ["v2", "v3"])


_changes = st.tuples(st.sampled_from(["label", "no labels", "delete"]), st.integers(0, 5))


@settings(max_examples=examples(50))
@given(steps=st.lists(st.tuples(_changes, st.sampled_from(["r0", "r1", "r2", ""])), max_size=12))
def test_kept_placements_are_those_of_the_nodes_now(
    steps: list[tuple[tuple[str, int], str]],
) -> None:
    s = GroupScheduling(levels=LEVELS)
    two_blocks(s)
    kept = s.state.profiles["default-scheduler"].placement.generate
    assert isinstance(kept, TopologyPlacementGenerator)
    groups = [a_group("a", 1, rack=rack, prefers=to) for rack in (False, True) for to in ("", LINK)]
    for (change, number), rack in steps:
        node = at(0, number >> 2, number >> 1 & 1, number & 1)
        if change == "delete":
            s.apply(r.ObjectDeleted("Node", node.name, node.metadata.uid))
        else:
            labels = {**node.labels, RACK: rack} if change == "label" else {}
            s.see(a_node(node.name, {"cpu": "1", "pods": "9"}, labels=labels))
        for group in groups:
            found = []
            fresh = TopologyPlacementGenerator(
                TopologyPlacementGeneratorArgs(levels=LEVELS), kept.handle
            )
            for plugin in (kept, fresh):
                asked = GroupInCycle(rules_of(group), (), ())
                placements = plugin.generate_placements(asked, s.state.nodes).placements
                found.append([(one.name, one.rows.tolist(), one.tier) for one in placements])
            assert found[0] == found[1]
