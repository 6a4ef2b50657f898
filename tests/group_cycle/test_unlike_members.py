"""Groups of unlike members, several groups of a tree, and failed nodes: which domain is used.

Nodes are named after their block and rack, as in ``test_domain_situations``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import msgspec
import pytest

from asched.model.groups import CompositePodGroup, PodGroup
from asched.model.node import Node
from asched.model.pod import Pod, Toleration
from asched.model.resources import AnyObject
from asched.state import records as r
from tests.group_cycle.groups import RACK, GroupScheduling, a_group, victims
from tests.group_cycle.test_composite import child, composite, important
from tests.group_cycle.test_domain_situations import (
    BLOCK,
    HOST,
    NOT_READY,
    PLUGINS,
    Case,
    check_domains,
    gang,
    grid,
    node,
    preferring,
    prefers,
    requiring,
    used,
)
from tests.group_cycle.test_fewest_domains import also_prefers
from tests.plugins.gangs import check_replay, gang_pods, member, settle
from tests.state.objects import a_pod, bound

GPU = "example.com/gpu"
_replace = msgspec.structs.replace


def gpu_node(name: str, cpu: int, gpus: int) -> Node:
    made = node(name, cpu)
    return _replace(
        made,
        status=_replace(made.status, allocatable={**made.status.allocatable, GPU: str(gpus)}),
    )


def asking(group: str, name: str, requests: Mapping[str, str], **pod: object) -> Pod:
    """A member with these requests."""
    made = member(group, name)
    containers = a_pod("x", requests).spec.containers
    return _replace(made, spec=_replace(made.spec, containers=containers, **pod))


def gpu_workers(group: str, count: int) -> tuple[Pod, ...]:
    return tuple(asking(group, f"{group}{n}", {"cpu": "1", GPU: "1"}) for n in range(count))


def leader(group: str, cpu: str = "1", **pod: object) -> Pod:
    return asking(group, f"{group}-leader", {"cpu": cpu}, **pod)


def with_leader(workers: int, cpu: str = "1", **pod: object) -> tuple[AnyObject, ...]:
    """A gang in one rack: workers with a GPU each, and a leader without one."""
    return (
        a_group("x", workers + 1, rack=True),
        leader("x", cpu, **pod),
        *gpu_workers("x", workers),
    )


def leader_and_workers(topology: str, workers: int, cpu: str = "1") -> tuple[AnyObject, ...]:
    """The same as two groups: all in one domain."""
    return (
        composite("root", 2, topology=topology),
        child("y", 1),
        child("x", workers),
        asking("y", "y-leader", {"cpu": cpu}),
        *gpu_workers("x", workers),
    )


def spread(tree: CompositePodGroup, *groups: PodGroup, size: int) -> tuple[AnyObject, ...]:
    pods = (pod for group in groups for pod in gang_pods(group.metadata.name, size))
    return (tree, *groups, *pods)


CASES: Mapping[str, Case] = {
    # Unlike members.
    "the selector of one member decides": Case(
        (
            *(
                _replace(n, metadata=_replace(n.metadata, labels={RACK: "r0"}))
                for n in grid(1, 1, 3)
            ),
            *grid(1, 2, 2)[2:],
        ),
        (
            (
                a_group("x", 2, rack=True),
                leader("x", node_selector={"disk": "ssd"}),
                *gang_pods("x", 1),
            ),
        ),
        {"x": ("b0-r1",)},
    ),
    "the toleration of one member does not help the others": Case(
        (
            node("b0-r0-n0", taints=(NOT_READY,)),
            node("b0-r0-n1", taints=(NOT_READY,)),
            node("b0-r1-n0", taints=(NOT_READY,)),
            node("b0-r1-n1", 2),
        ),
        (
            (
                a_group("x", 2, rack=True),
                leader("x", tolerations=(Toleration(key=NOT_READY.key, operator="Exists"),)),
                *gang_pods("x", 1),
            ),
        ),
        {"x": ("b0-r1",)},
    ),
    "a leader next to nodes with devices": Case(
        (
            gpu_node("b0-r0-n0", 2, 2),
            gpu_node("b0-r1-n0", 2, 2),
            gpu_node("b0-r1-n1", 4, 0),
        ),
        (with_leader(2),),
        {"x": ("b0-r1",)},
    ),
    "cores for the leader of workers with devices": Case(
        (gpu_node("b0-r0-n0", 4, 4), gpu_node("b0-r1-n0", 9, 6)),
        (with_leader(4),),
        {"x": ("b0-r1",)},
    ),
    "the small rack if the leader fits too": Case(
        (gpu_node("b0-r0-n0", 5, 4), gpu_node("b0-r1-n0", 9, 8)),
        (with_leader(4),),
        {"x": ("b0-r0",)},
    ),
    "a leader in another rack is not enough": Case(
        (gpu_node("b0-r0-n0", 4, 4), gpu_node("b0-r1-n0", 9, 0)), (with_leader(4),), {"x": ()}
    ),
    "a shortage of one resource of two": Case(
        (gpu_node("b0-r0-n0", 8, 1), gpu_node("b0-r1-n0", 1, 8)),
        ((a_group("x", 2, rack=True), *gpu_workers("x", 2)),),
        {"x": ()},
    ),
    # One node as the domain.
    "one node is required": Case(
        (*grid(1, 2, 2, cpu=2), node("b0-r9-n9", 3)),
        ((requiring("x", HOST, 3), *gang_pods("x", 3)),),
        {"x": ("b0-r9-n9",)},
    ),
    "one node is required, and none is large enough": Case(
        grid(1, 2, 2, cpu=2), ((requiring("x", HOST, 3), *gang_pods("x", 3)),), {"x": ()}
    ),
    "the number of pods of one node": Case(
        (node("b0-r0-n0", 4, pods="2"), node("b0-r0-n1", 4, pods="3")),
        ((requiring("x", HOST, 3), *gang_pods("x", 3)),),
        {"x": ("b0-r0-n1",)},
    ),
    "a level that no node has": Case(
        grid(1, 2, 2), ((requiring("x", "example.com/row", 2), *gang_pods("x", 2)),), {"x": ()}
    ),
    # Trees.
    "leader and workers as groups, in the block with room for both": Case(
        (gpu_node("b0-r0-n0", 4, 4), gpu_node("b1-r1-n0", 9, 6)),
        (leader_and_workers(BLOCK, 4),),
        {"x": ("b1",), "y": ("b1",)},
    ),
    "leader and workers as groups, in the tighter block": Case(
        (gpu_node("b0-r0-n0", 5, 4), gpu_node("b1-r1-n0", 9, 8)),
        (leader_and_workers(BLOCK, 4),),
        {"x": ("b0",), "y": ("b0",)},
    ),
    "a leader that fits in no block keeps the workers waiting": Case(
        (gpu_node("b0-r0-n0", 4, 4), gpu_node("b1-r1-n0", 4, 4)),
        (leader_and_workers(BLOCK, 4, "10"),),
        {"x": (), "y": ()},
    ),
    "one group in a rack, the other anywhere": Case(
        (*grid(1, 1, 2), node("b1-r1-n0"), node("b2-r2-n0")),
        (spread(composite("root", 2), child("x", 2, topology=RACK), child("y", 2), size=2),),
        {"x": ("b0-r0",), "y": ("",)},
    ),
    "groups of one tree share a rack": Case(
        (*grid(1, 1, 4), node("b0-r1-n0")),
        (
            spread(
                composite("root", 2),
                child("x", 2, topology=RACK),
                child("y", 2, topology=RACK),
                size=2,
            ),
        ),
        {"x": ("b0-r0",), "y": ("b0-r0",)},
    ),
    "groups prefer racks within a preferred block": Case(
        (*grid(1, 2, 2), *(node(f"b1-r{k + 7}-n{n}") for k in range(2) for n in range(2))),
        (
            (used("b0-r0-n0"),),
            spread(
                preferring(composite("root", 2), BLOCK),
                also_prefers(child("x", 2), RACK),
                also_prefers(child("y", 2), RACK),
                size=2,
            ),
        ),
        {"x": ("b1-r7", "b1-r8"), "y": ("b1-r7", "b1-r8")},
    ),
    "surplus pods follow the preferred racks of their groups": Case(
        grid(1, 2, 3),
        (
            spread(
                composite("root", 2),
                also_prefers(child("x", 1), RACK),
                also_prefers(child("y", 1), RACK),
                size=3,
            ),
        ),
        {"x": ("b0-r0", "b0-r1"), "y": ("b0-r0", "b0-r1")},
    ),
    # Later members.
    "more members in the preferred rack": Case(
        grid(1, 2, 4),
        (prefers("x", 2, RACK), (member("x", "x-a"), member("x", "x-b"))),
        {"x": ("b0-r0", "b0-r1")},
    ),
    "more members of a required rack wait for room": Case(
        grid(1, 2, 2),
        (gang("x", 2), (member("x", "x-later"), node("b0-r2-n0", 9))),
        {"x": ("b0-r",)},
        {"x": 2},
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_unlike_members_run_in_their_domains(name: str) -> None:
    check_domains(CASES[name])


class Failing(NamedTuple):
    """A node of a running group fails; where its replacement runs."""

    group: tuple[AnyObject, ...]
    nodes: tuple[Node, ...]
    """Further nodes that are free then."""
    expected: str
    """The beginning of the name of the node; empty if it waits."""
    cpu: str = "1"


REPLACEMENTS = {
    "a rack with a name that begins alike": Failing(
        gang("x", 2), (node("b0-r10-n0"), node("b0-r1-n7")), "b0-r1-"
    ),
    "only a rack with a name that begins alike": Failing(gang("x", 2), (node("b0-r10-n0"),), ""),
    "another rack of the block": Failing(
        prefers("x", 2, f"{BLOCK},{RACK}"), (node("b0-r2-n0"), node("b1-r5-n0")), "b0-r2"
    ),
    "another block": Failing(prefers("x", 2, f"{BLOCK},{RACK}"), (node("b1-r5-n0"),), "b1-r5"),
    "the next block, as its requests are larger": Failing(
        prefers("x", 2, f"{BLOCK},{RACK}"), (node("b0-r1-n7"), node("b1-r5-n0", 4)), "b1-r5", "3"
    ),
    "nowhere, as its requests are larger": Failing(
        prefers("x", 2, f"{BLOCK},{RACK}"), (node("b0-r1-n7"), node("b1-r5-n0")), "", "3"
    ),
}


@pytest.mark.parametrize("deleted", [False, True], ids=["not ready", "deleted"])
@pytest.mark.parametrize("name", REPLACEMENTS)
def test_replacement_of_a_pod_whose_node_failed(name: str, deleted: bool) -> None:
    case = REPLACEMENTS[name]
    s = GroupScheduling(plugins=PLUGINS, levels=[BLOCK, RACK])
    failed = node("b0-r1-n0")
    s.see(failed, node("b0-r1-n1"), *case.group)
    settle(s, 1)
    lost = next(e.info for e in s.state.pods.values() if e.node == failed.name)
    if deleted:
        s.apply(r.ObjectDeleted("Node", failed.name, failed.metadata.uid))
    else:
        s.see(_replace(failed, spec=_replace(failed.spec, taints=(NOT_READY,))))
    s.see(*case.nodes, member("x", "x-new", case.cpu))
    settle(s, 1)
    s.apply(r.ObjectDeleted("Pod", lost.key, lost.uid))
    settle(s, 3)
    found = s.state.pods["default/x-new"].node
    assert found.startswith(case.expected) if case.expected else not found
    check_replay(s, *PLUGINS)


class Evicting(NamedTuple):
    """A group or a tree of priority 10 that needs victims, and those of its first attempt."""

    nodes: tuple[Node, ...]
    running: tuple[Pod, ...]
    group: tuple[AnyObject, ...]
    victims: tuple[str, ...]


def low(on: str, cpu: str = "1", priority: int = 0) -> Pod:
    return bound(a_pod(f"low-{on}", {"cpu": cpu}, priority=priority), on)


def high(*sizes: str, topology: str) -> tuple[AnyObject, ...]:
    """A gang with a member of each size."""
    group = requiring("x", topology, len(sizes))
    pods = (member("x", f"x{n}", cpu, priority=10) for n, cpu in enumerate(sizes))
    return (_replace(group, spec=_replace(group.spec, priority=10)), *pods)


def in_racks(*sizes: str) -> tuple[AnyObject, ...]:
    """A tree of groups of one member each, each in a rack."""
    children = (child(f"x{n}", 1, topology=RACK) for n in range(len(sizes)))
    pods = (member(f"x{n}", f"x{n}-pod", cpu, priority=10) for n, cpu in enumerate(sizes))
    return (important("root", len(sizes)), *children, *pods)


EVICTIONS = {
    "free cores on two nodes do not make one node": Evicting(
        (node("b0-r0-n0", 5), node("b0-r1-n0", 5)),
        (low("b0-r0-n0", "4", 2), low("b0-r1-n0", "4", 1)),
        high("1", "1", topology=HOST),
        ("low-b0-r1-n0",),
    ),
    "free cores in two racks do not make one rack": Evicting(
        grid(1, 2, 3),
        (*(low(f"b0-r0-n{n}", priority=5) for n in (0, 1)), low("b0-r1-n0", priority=1)),
        high("1", "1", "1", topology=RACK),
        ("low-b0-r1-n0",),
    ),
    "the number of pods of a node": Evicting(
        (node("b0-r0-n0", 9, pods="1"),),
        (low("b0-r0-n0"),),
        high("2", topology=RACK),
        ("low-b0-r0-n0",),
    ),
    "enough with the victims of both racks only": Evicting(
        (node("b0-r0-n0", 4), node("b0-r1-n0", 4)),
        (low("b0-r0-n0", "2"), low("b0-r1-n0", "2")),
        high("2", "2", "2", topology=RACK),
        (),
    ),
    "a rack that is largest once its pods are gone": Evicting(
        (node("b0-r0-n0", 5), node("b0-r1-n0", 4), node("b0-r2-n0", 6)),
        (low("b0-r2-n0", "3"),),
        high("6", topology=RACK),
        ("low-b0-r2-n0",),
    ),
    "groups that fit in a rack each, but not together": Evicting(
        (node("b0-r0-n0", 7), node("b0-r1-n0", 6)),
        (low("b0-r0-n0"), low("b0-r1-n0")),
        in_racks("5", "5", "3"),
        (),
    ),
    "groups in two racks, with victims in one": Evicting(
        (node("b0-r0-n0", 5), node("b0-r1-n0", 5)),
        (low("b0-r0-n0", "1"),),
        in_racks("5", "5"),
        ("low-b0-r0-n0",),
    ),
    "no victims of equal priority": Evicting(
        grid(1, 2, 2),
        tuple(low(f"b0-r{k}-n0", priority=10) for k in range(2)),
        high("1", "1", topology=RACK),
        (),
    ),
}


@pytest.mark.parametrize("name", EVICTIONS)
def test_victims_for_a_domain(name: str) -> None:
    case = EVICTIONS[name]
    s = GroupScheduling(plugins=PLUGINS, levels=[BLOCK, RACK], group_preemption=True)
    s.see(*case.nodes, *case.running, *case.group)
    assert victims(s.next()) == [*case.victims]
    s.evict()
    settle(s, 3)
    own = [entry for entry in s.state.pods.values() if entry.info.name.startswith("x")]
    assert all(bool(entry.node) == bool(case.victims) for entry in own)
    check_replay(s, *PLUGINS)


def test_less_important_group_leaves_the_rack_of_a_preemptor() -> None:
    """Room for it appears while an important group waits for its victims in the only rack."""
    s = GroupScheduling(plugins=PLUGINS, levels=[BLOCK, RACK], group_preemption=True)
    s.see(*grid(1, 1, 2), low("b0-r0-n0"), low("b0-r0-n1"), *high("1", "1", topology=RACK))
    assert victims(s.next()) == ["low-b0-r0-n0", "low-b0-r0-n1"]
    s.see(*gang("y", 1))
    first, _ = s.state.evictions.values()
    s.apply(r.EvictionSucceeded(first.victim.key, first.victim.uid))
    s.apply(r.ObjectDeleted("Pod", first.victim.key, first.victim.uid))
    settle(s, 2)
    assert not s.state.pods["default/y0"].node
    s.evict()
    settle(s, 3)
    assert all(s.state.pods[f"default/x{n}"].node for n in range(2))
    assert not s.state.pods["default/y0"].node
    check_replay(s, *PLUGINS)
