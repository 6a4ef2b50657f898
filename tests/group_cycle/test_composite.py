"""CompositePodGroups in the cycle of whole groups: a tree of groups is tried as one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, NamedTuple

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asched.audit.replay import ReplayVerifier
from asched.framework.cycle_state import CycleState
from asched.framework.interface import FilterPlugin, PlacementGeneratePlugin, Plugin
from asched.framework.nodes import NodeInfo, Nodes
from asched.framework.placements import GeneratedPlacements, GroupInCycle
from asched.framework.pod_info import PodInfo
from asched.framework.status import SUCCESS, Status
from asched.group_cycle.composite import NEEDS_GROUP_PREEMPTION
from asched.model.groups import (
    CompositeGangPolicy,
    CompositePodGroup,
    CompositePodGroupSpec,
    CompositeSchedulingPolicy,
    PodGroup,
    SchedulingConstraints,
    TopologyConstraint,
)
from asched.model.meta import ObjectMeta
from asched.model.pod import Pod
from asched.model.resources import AnyObject
from asched.plugins.topology_placement import TopologyPlacementGenerator
from asched.state import records as r
from asched.state.cluster import ClusterState
from asched.state.fold import Fold
from asched.state.group_records import GroupOutcome, PodGroupAttempted
from asched.state.session_records import PodGroupStatusDecided
from tests.docs.shown_messages import is_shown
from tests.group_cycle.groups import (
    PLUGINS,
    RACK,
    GroupScheduling,
    a_group,
    messages,
    victims,
)
from tests.plugins.gangs import bind, check_replay, gang_pods, member, placed, settle
from tests.run_size import examples
from tests.state.objects import a_node, a_pod, bound
from tests.state.profiles import loader

BLOCK = "example.com/block"
ROOM = {"memory": "64Gi", "pods": "110"}
_replace = msgspec.structs.replace


def constraint(label: str) -> SchedulingConstraints | None:
    return SchedulingConstraints(topology=(TopologyConstraint(key=label),)) if label else None


def composite(
    name: str, min_groups: int = 0, parent: str = "", topology: str = ""
) -> CompositePodGroup:
    """A CompositePodGroup; ``basic`` if ``min_groups`` is 0."""
    gang = CompositeGangPolicy(min_group_count=min_groups) if min_groups else None
    return CompositePodGroup(
        metadata=ObjectMeta(name=name, namespace="default", uid=f"composite-{name}"),
        spec=CompositePodGroupSpec(
            scheduling_policy=CompositeSchedulingPolicy(gang=gang),
            scheduling_constraints=constraint(topology),
            parent_composite_pod_group_name=parent,
        ),
    )


def child(name: str, min_count: int, parent: str = "root", topology: str = "") -> PodGroup:
    made = a_group(name, min_count)
    return _replace(
        made,
        spec=_replace(
            made.spec,
            parent_composite_pod_group_name=parent,
            scheduling_constraints=constraint(topology),
        ),
    )


def cores(s: GroupScheduling, *counts: int, racks: int = 1, blocks: int = 4) -> None:
    """Nodes with so many cores; ``racks`` nodes for each rack, ``blocks`` for each block."""
    for number, count in enumerate(counts):
        labels = {RACK: f"r{number // racks}", BLOCK: f"b{number // blocks}"}
        s.see(a_node(f"n{number}", {"cpu": str(count), **ROOM}, labels=labels))


def conditions(decisions: Sequence[r.Decision]) -> dict[str, str]:
    """The status of PodGroupScheduled by name of the group."""
    return {
        d.group.partition("/")[2]: d.conditions[-1].status
        for d in decisions
        if isinstance(d, PodGroupStatusDecided)
    }


def headers(decisions: Sequence[r.Decision]) -> list[tuple[str, GroupOutcome]]:
    return [
        (d.group.partition("/")[2], d.outcome)
        for d in decisions
        if isinstance(d, PodGroupAttempted)
    ]


def at(s: GroupScheduling) -> dict[str, str]:
    return {entry.info.name: entry.node for entry in s.state.pods.values() if entry.node}


@pytest.fixture
def s() -> GroupScheduling:
    return GroupScheduling()


class Case(NamedTuple):
    """Groups ``a``, ``b`` ... of pods with one core each, and what one cycle makes of them."""

    composites: tuple[CompositePodGroup, ...]
    children: tuple[PodGroup, ...]
    nodes: tuple[int, ...]
    placed: tuple[str, ...]
    """The groups with all members assigned."""
    true: tuple[str, ...] = ()
    """The groups with the condition True; all others have False."""
    racks: int = 1


CASES = {
    "all children fit": Case(
        (composite("root", 2),),
        (child("a", 2), child("b", 2)),
        (4,),
        ("a", "b"),
        ("root", "a", "b"),
    ),
    "all or nothing": Case((composite("root", 2),), (child("a", 2), child("b", 2)), (3,), ()),
    "one of two is enough": Case(
        (composite("root", 1),), (child("a", 2), child("b", 2)), (3,), ("a",), ("root", "a")
    ),
    "basic with a constraint": Case(
        (composite("root", topology=RACK),),
        (child("a", 2), child("b", 2)),
        (1, 3),
        ("a",),
        ("root", "a"),
    ),
    "a later child fits in what an earlier one left": Case(
        (composite("root", 2),),
        (child("a", 4), child("b", 2), child("c", 1)),
        (3,),
        ("b", "c"),
        ("root", "b", "c"),
    ),
    "nested composites": Case(
        (composite("root", 2), composite("left", 2, "root"), composite("right", 1, "root")),
        (child("a", 1, "left"), child("b", 1, "left"), child("c", 1, "right")),
        (3,),
        ("a", "b", "c"),
        ("root", "left", "right", "a", "b", "c"),
    ),
    "an infeasible composite leaves its room to the next": Case(
        (composite("root", 1), composite("left", 2, "root"), composite("right", 1, "root")),
        (child("a", 2, "left"), child("b", 2, "left"), child("c", 3, "right")),
        (3,),
        ("c",),
        ("root", "right", "c"),
    ),
    "nested composites, one too large": Case(
        (composite("root", 2), composite("left", 2, "root"), composite("right", 1, "root")),
        (child("a", 1, "left"), child("b", 1, "left"), child("c", 2, "right")),
        (3,),
        (),
    ),
    "all children in one domain": Case(
        (composite("root", 2, topology=BLOCK),),
        (child("a", 2), child("b", 2)),
        (1, 1, 1, 0, 1, 1, 1, 1),
        ("a", "b"),
        ("root", "a", "b"),
    ),
    "no domain has room for both": Case(
        (composite("root", 2, topology=BLOCK),),
        (child("a", 2), child("b", 2)),
        (1, 1, 1, 0, 1, 1, 1, 0),
        (),
    ),
    "a rack for each child, one block for both": Case(
        (composite("root", 2, topology=BLOCK),),
        (child("a", 2, topology=RACK), child("b", 2, topology=RACK)),
        (2, 0, 0, 1, 1, 1, 1, 1),
        ("a", "b"),
        ("root", "a", "b"),
        racks=2,
    ),
    "a basic parent without constraint binds nothing together": Case(
        (composite("root"),), (child("a", 2),), (2,), ("a",), ("a",)
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_tree_is_tried_as_one(s: GroupScheduling, name: str) -> None:
    case = CASES[name]
    cores(s, *case.nodes, racks=case.racks)
    s.see(*case.composites, *case.children)
    for group in case.children:
        s.see(*gang_pods(group.metadata.name, group.min_count))
    decisions = s.next()
    expected = {f"{g.metadata.name}0" for g in case.children if g.metadata.name in case.placed}
    assert {pod for pod in at(s) if pod.endswith("0")} == expected
    assert len(at(s)) == sum(g.min_count for g in case.children if g.metadata.name in case.placed)
    found = conditions(decisions)
    assert {group for group, status in found.items() if status == "True"} == {*case.true}
    if case.composites[0].spec.scheduling_policy.gang:
        assert len(found) == len(case.composites) + len(case.children)
        assert headers(decisions)[0][0] == "root"
    assert not s.next()
    if BLOCK in {c.key for g in case.composites for c in topology_of(g)}:
        assert len({f"b{int(node[1:]) // 4}" for node in at(s).values()}) <= 1
    bind(s)
    check_replay(s, *PLUGINS)


def topology_of(group: CompositePodGroup) -> Sequence[TopologyConstraint]:
    found = group.spec.scheduling_constraints
    return found.topology if found is not None else ()


def test_members_that_fit_name_the_shortage(s: GroupScheduling) -> None:
    cores(s, 3)
    s.see(composite("root", 2), child("a", 2), child("b", 2))
    s.see(*gang_pods("a", 2), *gang_pods("b", 2))
    found = messages(s.next())
    why = "CompositePodGroup default/root is unschedulable: 1 of its 2 required child groups fit"
    assert found["a0"] == found["a1"] == why
    assert is_shown("how-to/gang.md", why.replace("default/root", "default/inference"))
    assert found["b1"].startswith("0/1 nodes are available: 1 Insufficient cpu")
    assert not at(s)
    cores(s, 3, 1)
    settle(s)
    assert placed(s) == ["a0", "a1", "b0", "b1"]
    check_replay(s, *PLUGINS)


@pytest.mark.parametrize("room", [3, 4, 5])
def test_surplus_does_not_take_the_room_of_a_sibling(s: GroupScheduling, room: int) -> None:
    """Two groups of three pods need two each. With room for four, the tree is admitted with these,
    and the others are tried in the next cycle."""
    cores(s, room)
    s.see(composite("root", 2), child("a", 2), child("b", 2))
    s.see(*gang_pods("a", 3), *gang_pods("b", 3))
    decisions = s.next()
    expected = {3: [], 4: ["a0", "a1", "b0", "b1"], 5: ["a0", "a1", "a2", "b0", "b1"]}
    assert placed(s) == expected[room]
    if room == 4:
        assert headers(decisions)[0] == ("root", GroupOutcome.SCHEDULED)
        assert {*messages(s.next())} == {"a2", "b2"}
    assert not s.next()
    bind(s)
    check_replay(s, *PLUGINS)


def test_tree_waits_for_a_child_without_pods(s: GroupScheduling) -> None:
    cores(s, 4)
    s.see(composite("root", 2), child("a", 2), child("b", 2), *gang_pods("a", 2))
    settle(s, 2)
    assert not placed(s)
    s.see(*gang_pods("b", 2))
    settle(s, 1)
    assert placed(s) == ["a0", "a1", "b0", "b1"]
    check_replay(s, *PLUGINS)


@pytest.mark.parametrize(
    ("composites", "problem", "repair"),
    [
        (
            [composite("root", 1, "other"), composite("other", 1, "root")],
            (
                "CompositePodGroups are parents of each other:"
                " default/root -> default/other -> default/root"
            ),
            composite("other", 1),
        ),
        (
            [],
            "PodGroup default/a: its parent CompositePodGroup default/root not found",
            composite("root", 1),
        ),
        (
            [composite("root", 1, "top")],
            "CompositePodGroup default/root: its parent CompositePodGroup default/top not found",
            composite("top", 1),
        ),
        (
            [
                composite("root", 1, "c1"),
                *(composite(f"c{n}", 1, f"c{n + 1}") for n in range(1, 4)),
                composite("c4", 1),
            ],
            "more than 4 CompositePodGroups are above PodGroup default/a",
            composite("c3", 1),
        ),
    ],
    ids=["cycle", "missing parent", "missing grandparent", "too deep"],
)
def test_incomplete_tree_is_one_clear_line(
    s: GroupScheduling,
    composites: Sequence[CompositePodGroup],
    problem: str,
    repair: CompositePodGroup,
) -> None:
    cores(s, 4)
    s.see(*composites, child("a", 2), *gang_pods("a", 2))
    decisions = s.next()
    assert messages(decisions) == {"a0": problem, "a1": problem}
    assert conditions(decisions) == {"a": "False"}
    assert not s.next()
    s.see(repair)
    settle(s, 2)
    assert placed(s) == ["a0", "a1"]
    check_replay(s, *PLUGINS)


def test_deleted_member_makes_its_child_infeasible(s: GroupScheduling) -> None:
    cores(s, 2)
    s.see(composite("root", 2), child("a", 2), child("b", 1))
    s.see(*gang_pods("a", 2), *gang_pods("b", 1))
    s.next()
    assert not at(s)
    s.apply(r.ObjectDeleted("Pod", "default/a1", s.state.pods["default/a1"].info.uid))
    cores(s, 4)
    settle(s, 2)
    assert not placed(s)
    s.see(member("a", "a2"))
    settle(s, 2)
    assert placed(s) == ["a0", "a2", "b0"]
    check_replay(s, *PLUGINS)


def test_running_child_counts_and_fixes_the_domain(s: GroupScheduling) -> None:
    cores(s, 1, 1, 1, 1, racks=2)
    s.see(composite("root", 2, topology=RACK), child("a", 1), child("b", 1))
    s.see(bound(member("a", "a0"), "n2"), member("b", "b0"))
    decisions = s.next()
    assert at(s)["b0"] == "n3"
    assert conditions(decisions) == {"root": "True", "b": "True"}
    check_replay(s, *PLUGINS)


def important(
    name: str, min_groups: int, priority: int = 10, topology: str = ""
) -> CompositePodGroup:
    made = composite(name, min_groups, topology=topology)
    return _replace(made, spec=_replace(made.spec, priority=priority))


def test_nothing_is_evicted_for_a_tree_without_group_preemption(s: GroupScheduling) -> None:
    cores(s, 2)
    s.see(bound(a_pod("low", {"cpu": "2"}), "n0"))
    s.see(important("root", 1), child("a", 2), *gang_pods("a", 2, priority=10))
    decisions = s.next()
    assert not victims(decisions)
    (condition,) = [
        d.conditions[0]
        for d in decisions
        if isinstance(d, PodGroupStatusDecided) and d.group == "default/root"
    ]
    assert condition.message.endswith(NEEDS_GROUP_PREEMPTION)


def low(name: str, node: str, priority: int = 0) -> Pod:
    return bound(a_pod(name, {"cpu": "1"}, priority=priority), node)


class Preempting(NamedTuple):
    """A tree ``root`` with priority 10, and the victims of its only attempt."""

    root: CompositePodGroup
    children: tuple[PodGroup, ...]
    nodes: tuple[int, ...]
    running: tuple[Pod, ...]
    victims: tuple[str, ...]
    placed: int = 0
    """Members with a node once the victims are gone."""
    pending: tuple[Pod, ...] = (*gang_pods("a", 2), *gang_pods("b", 2))


PREEMPTIONS = {
    "as few as the tree needs": Preempting(
        important("root", 2),
        (child("a", 2), child("b", 2)),
        (2, 3),
        (low("v0", "n0"), low("v1", "n0", 5), low("v2", "n1", 1)),
        ("v0", "v2"),
        4,
    ),
    "not for more children than the minimum": Preempting(
        important("root", 1),
        (child("a", 2), child("b", 2)),
        (1, 2),
        (low("v0", "n0"), low("v1", "n1"), low("v2", "n1", 10)),
        ("v0", "v1"),
        2,
    ),
    "nothing if the tree would not fit": Preempting(
        important("root", 2),
        (child("a", 2), child("b", 2)),
        (3,),
        (low("v0", "n0"),),
        (),
    ),
    "nothing of equal priority": Preempting(
        important("root", 2), (child("a", 2), child("b", 2)), (4,), (low("v0", "n0", 10),), ()
    ),
    "no pod of the tree": Preempting(
        important("root", 2),
        (child("a", 2), child("b", 2), child("c", 1)),
        (3,),
        (bound(member("c", "c0"), "n0"), low("v0", "n0", 5)),
        ("v0",),
        2,
        (*gang_pods("a", 2),),
    ),
    "in the rack of the least important victims": Preempting(
        important("root", 2, topology=RACK),
        (child("a", 2), child("b", 2)),
        (4, 4),
        (low("v0", "n0", 5), low("v1", "n1", 1)),
        ("v1",),
        4,
    ),
    "not if a child never preempts": Preempting(
        important("root", 2),
        (
            child("a", 2),
            _replace(child("b", 2), spec=_replace(child("b", 2).spec, preemption_policy="Never")),
        ),
        (4,),
        (low("v0", "n0"),),
        (),
    ),
}


@pytest.mark.parametrize("name", PREEMPTIONS)
def test_tree_preempts_as_one(name: str) -> None:
    case = PREEMPTIONS[name]
    s = GroupScheduling(group_preemption=True)
    cores(s, *case.nodes)
    s.see(case.root, *case.children, *case.running, *case.pending)
    own = {pod.metadata.name for pod in case.pending}
    decisions = s.next()
    assert victims(decisions) == [*case.victims]
    assert not own & at(s).keys()
    assert not s.decide(), "the tree waits for its victims"
    s.evict()
    settle(s)
    assert len(own & at(s).keys()) == case.placed
    assert not s.state.nominator.by_node
    check_replay(s, *PLUGINS)


@pytest.mark.parametrize("size", [(2, 2), (3, 0)], ids=["child", "member"])
def test_surplus_preempts_after_the_tree(size: tuple[int, int]) -> None:
    """In a cycle of its own: it neither delays the tree nor waits for an event."""
    s = GroupScheduling(group_preemption=True)
    cores(s, 3, 1)
    s.see(low("v0", "n0"), low("v1", "n1"))
    s.see(important("root", 1), child("a", 2), child("b", 2))
    s.see(*gang_pods("a", size[0]), *gang_pods("b", size[1]))
    assert not victims(s.next())
    assert {"a0", "a1"} <= at(s).keys()
    bind(s)
    s.pass_time(2)
    assert victims(s.next()) == (["v0", "v1"] if size[1] else ["v1"])
    s.evict()
    settle(s)
    assert len(at(s)) == 4


def test_lower_minimum_requeues_the_tree(s: GroupScheduling) -> None:
    cores(s, 3)
    s.see(composite("root", 2), child("a", 2), child("b", 2))
    s.see(*gang_pods("a", 2), *gang_pods("b", 2))
    s.next()
    s.see(composite("root", 1))
    settle(s, 2)
    assert placed(s) == ["a0", "a1"]


SIBLING_EVENTS = {
    "smaller minCount": lambda s: s.see(child("b", 1)),
    "bound by another client": lambda s: s.see(bound(member("b", "b1"), "n0")),
    "another group that runs": lambda s: s.see(child("c", 1)),
}


@pytest.mark.parametrize("event", SIBLING_EVENTS)
def test_sibling_that_counts_requeues_the_tree(s: GroupScheduling, event: str) -> None:
    """At once: the unschedulable pods are flushed only after five minutes."""
    cores(s, 5)
    s.see(composite("root", 2), child("a", 2), child("b", 2))
    s.see(bound(member("b", "b0"), "n0"), bound(member("c", "c0"), "n0"), *gang_pods("a", 2))
    s.next()
    assert not {"a0", "a1"} & at(s).keys()
    SIBLING_EVENTS[event](s)
    settle(s, 2)
    assert {"a0", "a1"} <= at(s).keys()
    check_replay(s, *PLUGINS)


def test_sibling_below_its_minimum_requeues_nothing(s: GroupScheduling) -> None:
    cores(s, 4)
    s.see(composite("root", 2), child("a", 2), child("b", 4))
    s.see(bound(member("b", "b0"), "n0"), *gang_pods("a", 2))
    s.next()
    s.see(child("b", 3), bound(member("b", "b1"), "n0"))
    s.pass_time(11)
    assert not s.next()


DOMAIN_EVENTS: dict[str, tuple[str, str, AnyObject]] = {
    "node in a domain of the parent": (
        "zone",
        "",
        a_node("z", {"cpu": "4", **ROOM}, labels={"zone": "z"}),
    ),
    "node in a domain within that of the parent": (
        BLOCK,
        "zone",
        a_node("z", {"cpu": "4", **ROOM}, labels={BLOCK: "b0", "zone": "z"}),
    ),
    "other topology of the parent": ("zone", "", composite("root", 1, topology=BLOCK)),
}


@pytest.mark.parametrize("name", DOMAIN_EVENTS)
def test_domain_that_appears_requeues_the_tree(s: GroupScheduling, name: str) -> None:
    above, below, event = DOMAIN_EVENTS[name]
    cores(s, 4)
    s.see(composite("root", 1, topology=above), child("a", 2, topology=below), *gang_pods("a", 2))
    s.decide()
    assert {entry.rejection for entry in s.state.pods.values()} == {"no feasible placements found"}
    s.see(event)
    settle(s, 1)
    assert placed(s) == ["a0", "a1"]
    check_replay(s, *PLUGINS)


@pytest.mark.parametrize(("above", "below"), [(RACK, ""), ("", RACK), (BLOCK, RACK)])
def test_node_that_enters_a_domain_requeues_the_tree(
    s: GroupScheduling, above: str, below: str
) -> None:
    cores(s, 1, 1, blocks=1)
    s.see(composite("root", 1, topology=above), child("a", 2, topology=below), *gang_pods("a", 2))
    s.decide()
    s.pass_time(60)
    assert not s.decide()
    labels = {RACK: "r0", BLOCK: "b0"}
    s.see(a_node("n1", {"cpu": "1", **ROOM}, labels=labels))
    settle(s, 1)
    assert placed(s) == ["a0", "a1"]
    check_replay(s, *PLUGINS)


def test_more_important_child_is_tried_first(s: GroupScheduling) -> None:
    cores(s, 2)
    s.see(composite("root", 1), child("a", 2), child("b", 2))
    s.see(*gang_pods("a", 2), *gang_pods("b", 2, priority=1))
    s.next()
    assert sorted(at(s)) == ["b0", "b1"]


class FailsForB(FilterPlugin):
    """Fails for pods of the group ``b``."""

    name: ClassVar[str] = "FailsForB"
    api_version: ClassVar[int] = 1

    def filter(self, state: CycleState, pod: PodInfo, node: NodeInfo) -> Status:
        if pod.name.startswith("b"):
            raise RuntimeError("no idea")
        return SUCCESS


class FailsForTrees(PlacementGeneratePlugin):
    name: ClassVar[str] = "FailsForTrees"
    api_version: ClassVar[int] = 1

    def generate_placements(self, group: GroupInCycle, nodes: Nodes) -> GeneratedPlacements:
        raise RuntimeError("no idea")


@pytest.mark.parametrize("plugin", [FailsForB, FailsForTrees])
def test_failure_in_one_child_fails_the_tree(plugin: type[Plugin]) -> None:
    kept = [one for one in PLUGINS if one is not TopologyPlacementGenerator]
    s = GroupScheduling(plugins=[*kept, plugin])
    cores(s, 4)
    s.see(composite("root", 1), child("a", 2), child("b", 2))
    s.see(*gang_pods("a", 2), *gang_pods("b", 2))
    decisions = s.next()
    assert {outcome for _, outcome in headers(decisions)} == {GroupOutcome.ERROR}
    failed = [d for d in decisions if isinstance(d, r.AttemptFailed)]
    assert len(failed) == 4
    assert [d.plugin for d in failed].count(plugin.name) == 1, "it counts once"
    assert {*conditions(decisions).values()} == {"False"}
    check_replay(s, *kept, plugin)


def test_replay_starts_within_the_batch_of_a_tree(s: GroupScheduling) -> None:
    cores(s, 4)
    s.see(composite("root", 2), child("a", 2), child("b", 2))
    s.see(*gang_pods("a", 2), *gang_pods("b", 2))
    decisions = s.next()
    s.see(a_pod("later", {"cpu": "0"}))
    s.next()
    begin = len(s.records) - 2 - len(decisions)
    for skipped in range(1, len(decisions)):
        fold = Fold(ClusterState(), loader(*PLUGINS))
        for record in s.records[: begin + skipped]:
            fold.apply(record)
        verifier = ReplayVerifier(fold, complete=False)
        for number, record in enumerate(s.records[begin + skipped :]):
            assert verifier.verify(number, record) is None


def test_update_of_another_tree_requeues_nothing(s: GroupScheduling) -> None:
    cores(s, 1)
    s.see(composite("root", 1), composite("other", 1), child("a", 2), *gang_pods("a", 2))
    s.next()
    s.see(composite("other", 2))
    s.pass_time(11)
    assert not s.next()


# -- random trees ---------------------------------------------------------------------------------


class Child(NamedTuple):
    size: int
    min_count: int
    parent: int
    """Number of its CompositePodGroup; 0 is the root."""
    rack: bool


@st.composite
def children(draw: st.DrawFn) -> list[Child]:
    found = []
    for _ in range(draw(st.integers(1, 5))):
        size = draw(st.integers(1, 3))
        minimum = draw(st.integers(1, size))
        found.append(Child(size, minimum, draw(st.integers(0, 2)), draw(st.booleans())))
    return found


@settings(max_examples=examples(40))
@given(
    children(),
    st.lists(st.integers(0, 3), min_size=1, max_size=8),
    st.tuples(st.integers(1, 3), st.integers(0, 2), st.integers(0, 2)),
    st.tuples(st.sampled_from(["", BLOCK]), st.sampled_from(["", RACK]), st.just("")),
    st.integers(0, 20),
)
def test_no_tree_is_started_below_its_minimum_or_outside_its_domain(
    plans: list[Child],
    rooms: list[int],
    minimums: tuple[int, int, int],
    labels: tuple[str, str, str],
    checkpoint_at: int,
) -> None:
    s = GroupScheduling()
    cores(s, *rooms, racks=2)
    names = ("root", "c1", "c2")
    for number, name in enumerate(names):
        s.see(composite(name, minimums[number], "root" if number else "", labels[number]))
    for number, plan in enumerate(plans):
        topology = RACK if plan.rack else ""
        s.see(child(f"g{number}", plan.min_count, names[plan.parent], topology))
        s.see(*pods_of(number, plan))
    settle(s, 2)
    rooms_left = [*rooms]
    nodes = {number: nodes_of_child(s, number) for number in range(len(plans))}
    for used in nodes.values():
        for node in used:
            rooms_left[node] -= 1
    assert min(rooms_left) >= 0
    for number, plan in enumerate(plans):
        assert not nodes[number] or len(nodes[number]) >= plan.min_count
        if plan.rack:
            assert len({node // 2 for node in nodes[number]}) <= 1
    below = [[number for number, plan in enumerate(plans) if plan.parent == at] for at in range(3)]
    started = [sum(bool(nodes[number]) for number in below[at]) for at in range(3)]
    for at_number in (1, 2):
        assert not started[at_number] or started[at_number] >= minimums[at_number]
    started[0] += bool(started[1]) + bool(started[2])
    assert not started[0] or started[0] >= minimums[0]
    used_by = [{node for number in below[at] for node in nodes[number]} for at in range(3)]
    if labels[0]:
        assert len({node // 4 for used in used_by for node in used}) <= 1
    if labels[1]:
        assert len({node // 2 for node in used_by[1]}) <= 1
    check_replay(s, *PLUGINS, checkpoint_at=checkpoint_at)


def pods_of(number: int, plan: Child) -> list[Pod]:
    return [member(f"g{number}", f"g{number}-{at}") for at in range(plan.size)]


def nodes_of_child(s: GroupScheduling, number: int) -> list[int]:
    return [int(node[1:]) for name, node in at(s).items() if name.startswith(f"g{number}-")]
