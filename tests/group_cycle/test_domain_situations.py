"""Several groups and several levels of domains: where the members of each group run.

Nodes have labels for a block and a rack. The last digit of a node's name is its number.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import msgspec
import pytest

from asched.framework.interface import Plugin
from asched.model.groups import (
    CompositePodGroup,
    PodGroup,
    SchedulingConstraints,
    TopologyConstraint,
)
from asched.model.meta import Annotations
from asched.model.node import NO_SCHEDULE, Node, Taint
from asched.model.pod import Affinity, Pod, PodAffinity, PodAffinityTerm
from asched.model.resources import AnyObject
from asched.model.selectors import LabelSelector
from asched.plugins.topology_placement import PlacementBestFit
from asched.state import records as r
from tests.group_cycle.groups import RACK, GroupScheduling, a_group
from tests.group_cycle.test_composite import child, composite
from tests.group_cycle.test_situations import FILTERS
from tests.plugins.gangs import check_replay, gang_pods, member, settle
from tests.state.objects import a_node, a_pod, bound

BLOCK, HOST = "example.com/block", "kubernetes.io/hostname"
PLUGINS: tuple[type[Plugin], ...] = (*FILTERS, PlacementBestFit)
NOT_READY = Taint(key="node.kubernetes.io/not-ready", effect=NO_SCHEDULE)
_replace = msgspec.structs.replace


def node(name: str, cpu: int = 1, **rest: object) -> Node:
    """A node; ``b0-r1-n2`` is in rack r1 of block b0. Racks of two blocks may have one name."""
    labels = {HOST: name, "disk": "ssd"}
    for part in name.split("-"):
        labels |= {"b": {BLOCK: part}, "r": {RACK: part}}.get(part[0], {})
    offered = {"cpu": str(cpu), "memory": str(rest.pop("memory", "64Gi")), "pods": "9"}
    offered |= {"pods": str(rest.pop("pods", "9"))}
    return a_node(name, offered, labels=labels, **rest)  # type: ignore[arg-type]


def used(on: str, cpu: int = 1) -> Pod:
    """A pod of no group on a node."""
    return bound(a_pod(f"used-{on}", {"cpu": str(cpu)}), on)


def grid(*shape: int, cpu: int = 1) -> tuple[Node, ...]:
    """Blocks, racks for each block, and nodes for each rack, all names distinct."""
    blocks, racks, size = shape
    return tuple(
        node(f"b{b}-r{b * racks + k}-n{n}", cpu)
        for b in range(blocks)
        for k in range(racks)
        for n in range(size)
    )


def requiring(name: str, label: str, minimum: int) -> PodGroup:
    constraints = SchedulingConstraints(topology=(TopologyConstraint(key=label),))
    made = a_group(name, minimum)
    return _replace(made, spec=_replace(made.spec, scheduling_constraints=constraints))


def preferring(tree: CompositePodGroup, levels: str) -> CompositePodGroup:
    annotations = Annotations(preferred_topology=levels)
    return _replace(tree, metadata=_replace(tree.metadata, annotations=annotations))


def without_requests(name: str, count: int) -> tuple[Pod, ...]:
    return tuple(
        _replace(pod, spec=_replace(pod.spec, containers=a_pod("x", {}).spec.containers))
        for pod in gang_pods(name, count)
    )


def next_to(name: str, count: int, other: str) -> tuple[Pod, ...]:
    """Pods that must not share a rack with pods of the label ``app: other``."""
    selector = LabelSelector(match_labels={"app": other})
    term = PodAffinityTerm(label_selector=selector, topology_key=RACK)
    affinity = Affinity(pod_anti_affinity=PodAffinity(required=(term,)))
    return tuple(
        _replace(pod, spec=_replace(pod.spec, affinity=affinity)) for pod in gang_pods(name, count)
    )


def labelled(on: str, app: str) -> Pod:
    made = used(on)
    return _replace(made, metadata=_replace(made.metadata, labels={"app": app}))


class Case(NamedTuple):
    """What is seen in steps, and then where the pods of each group are."""

    nodes: tuple[Node, ...]
    steps: tuple[tuple[AnyObject, ...], ...]
    """After each step the groups are tried. Pods of a group are named after it."""
    domains: Mapping[str, tuple[str, ...]]
    """By group: prefixes of the nodes that its pods use, all in one domain; an empty prefix for
    several domains. Empty if none has a node."""
    counts: Mapping[str, int] = {}
    """Pods with a node by group; by default all of them, or none."""


def gang(name: str, count: int, minimum: int = -1, cpu: str = "1") -> tuple[AnyObject, ...]:
    """A group in one rack."""
    minimum = count if minimum < 0 else minimum
    return (a_group(name, minimum, rack=True), *gang_pods(name, count, cpu))


def in_block(name: str, count: int, minimum: int = -1) -> tuple[AnyObject, ...]:
    minimum = count if minimum < 0 else minimum
    return (requiring(name, BLOCK, minimum), *gang_pods(name, count))


def prefers(name: str, count: int, levels: str, minimum: int = -1) -> tuple[AnyObject, ...]:
    minimum = count if minimum < 0 else minimum
    return (a_group(name, minimum, prefers=levels), *gang_pods(name, count))


TWO_RACKS = grid(1, 2, 2)
ALL_LEVELS = f"{BLOCK},{RACK},{HOST}"
CASES: Mapping[str, Case] = {
    # Groups one after the other.
    "each gang in a rack of its own": Case(
        grid(1, 2, 2), (gang("x", 2), gang("y", 2)), {"x": ("b0-r0",), "y": ("b0-r1",)}
    ),
    "both gangs in one rack": Case(
        grid(1, 1, 4), (gang("x", 2), gang("y", 2)), {"x": ("b0-r0",), "y": ("b0-r0",)}
    ),
    "the second gang fits in no rack": Case(
        grid(1, 1, 3), (gang("x", 2), gang("y", 2)), {"x": ("b0-r0",), "y": ()}
    ),
    "one gang in a rack, one in a block": Case(
        (*grid(1, 2, 2), node("b1-r2-n0")),
        (gang("x", 1), in_block("y", 4)),
        {"x": ("b1-r2",), "y": ("b0",)},
    ),
    "a gang with surplus pods takes the rack for most of them": Case(
        (*grid(1, 1, 2), node("b0-r1-n0"), node("b0-r1-n1"), node("b0-r1-n2")),
        (gang("x", 3, 2),),
        {"x": ("b0-r1",)},
    ),
    "a gang with surplus pods leaves those behind": Case(
        grid(1, 1, 2), (gang("x", 4, 2),), {"x": ("b0-r0",)}, {"x": 2}
    ),
    "surplus pods do not run in another rack": Case(
        grid(1, 2, 2), (gang("x", 3, 2),), {"x": ("b0-r",)}, {"x": 2}
    ),
    "a surplus pod follows when its rack has room": Case(
        (*grid(1, 1, 2), node("b0-r1-n0")),
        (gang("x", 3, 2), (node("b0-r0-n9"),)),
        {"x": ("b0-r0",)},
    ),
    "a group without minimum in one rack": Case(
        (*grid(1, 1, 3), node("b0-r1-n0")), (gang("x", 3, 0),), {"x": ("b0-r0",)}
    ),
    "a group without minimum leaves pods behind": Case(
        (*grid(1, 1, 2), node("b0-r1-n0")), (gang("x", 3, 0),), {"x": ("b0-r0",)}, {"x": 2}
    ),
    "a group without minimum, and no pod fits": Case(
        grid(1, 2, 2), (gang("x", 2, 0, "3"),), {"x": ()}
    ),
    "a group without minimum goes on when a pod ends": Case(
        (*grid(1, 1, 2), node("b0-r1-n0")),
        (
            (used("b0-r1-n0"), *gang("x", 1, 0)),
            (member("x", "x-later"), member("x", "x-last")),
            (node("b0-r0-n5"),),
        ),
        {"x": ("b0-r0",)},
    ),
    "room that others use up is not counted": Case(
        TWO_RACKS, ((used("b0-r0-n0"), used("b0-r1-n1"), *gang("x", 2)),), {"x": ()}
    ),
    # What makes nodes of a domain unusable.
    "memory": Case(
        (node("b0-r0-n0", 4, memory="1Ki"), node("b0-r1-n0", 2)),
        ((a_group("x", 2, rack=True), *gang_pods("x", 2)),),
        {"x": ("b0-r",)},
    ),
    "nodes that are not ready": Case(
        (node("b0-r0-n0", 2, taints=(NOT_READY,)), node("b0-r1-n0", 2)),
        (gang("x", 2),),
        {"x": ("b0-r1",)},
    ),
    "pods without requests use up the number of pods": Case(
        (node("b0-r0-n0", 4, pods="2"), node("b0-r1-n0", 4, pods="3")),
        ((a_group("x", 3, rack=True), *without_requests("x", 3)),),
        {"x": ("b0-r1",)},
    ),
    "anti-affinity excludes the first rack": Case(
        grid(1, 2, 3),
        ((labelled("b0-r0-n0", "y"), a_group("x", 2, rack=True), *next_to("x", 2, "y")),),
        {"x": ("b0-r1",)},
    ),
    "a leader that fits nowhere": Case(
        grid(1, 2, 3),
        ((a_group("x", 3, rack=True), member("x", "x-leader", "2"), *gang_pods("x", 2)),),
        {"x": ()},
    ),
    "a leader that fits in the smaller rack only": Case(
        (*grid(1, 1, 4), node("b0-r1-n0", 2), node("b0-r1-n1", 2)),
        ((a_group("x", 3, rack=True), member("x", "x-leader", "2"), *gang_pods("x", 2)),),
        {"x": ("b0-r1",)},
    ),
    "a rack with a name that begins like another one": Case(
        (node("b0-r1-n0"), node("b0-r10-n0", 2), node("b0-r10-n1", 2)),
        (gang("x", 4),),
        {"x": ("b0-r10",)},
    ),
    # Preferred levels.
    "one node has room for all": Case(
        (*grid(1, 2, 2), node("b0-r1-n5", 3)), (prefers("x", 3, ALL_LEVELS),), {"x": ("b0-r1-n5",)}
    ),
    "racks of two blocks are needed": Case(
        grid(3, 2, 2), (prefers("x", 6, ALL_LEVELS),), {"x": ("",)}
    ),
    "more than the whole cluster": Case(grid(2, 2, 1), (prefers("x", 5, ALL_LEVELS),), {"x": ()}),
    "a block for what fits in no rack": Case(
        (*grid(2, 2, 2), node("b0-r9-n0")),
        ((used("b1-r2-n0"), *prefers("x", 5, ALL_LEVELS)),),
        {"x": ("b0",)},
    ),
    "the fullest rack with room": Case(
        grid(2, 2, 3),
        ((used("b1-r3-n0"), *prefers("x", 2, ALL_LEVELS)),),
        {"x": ("b1-r3",)},
    ),
    "the fullest block with room": Case(
        grid(2, 2, 3),
        ((used("b1-r3-n0"), *prefers("x", 4, ALL_LEVELS)),),
        {"x": ("b1",)},
    ),
    "a preferred rack within a required block": Case(
        (*grid(2, 2, 2), node("b1-r3-n7")),
        (
            (
                _replace(
                    requiring("x", BLOCK, 3),
                    metadata=a_group("x", 3, prefers=RACK).metadata,
                ),
                *gang_pods("x", 3),
            ),
        ),
        {"x": ("b1-r3",)},
    ),
    "a required block although the preferred rack is too small": Case(
        grid(2, 2, 2),
        (
            (
                used("b0-r0-n0"),
                _replace(
                    requiring("x", BLOCK, 4),
                    metadata=a_group("x", 4, prefers=RACK).metadata,
                ),
                *gang_pods("x", 4),
            ),
        ),
        {"x": ("b1",)},
    ),
    # Trees.
    "three levels: a rack for each group, a block for both, both blocks for all": Case(
        grid(2, 2, 2),
        (
            (
                composite("root", 2),
                composite("left", 2, "root", BLOCK),
                composite("right", 2, "root", BLOCK),
                *(child(name, 2, "left", RACK) for name in "xy"),
                *(child(name, 2, "right", RACK) for name in "vw"),
                *(pod for name in "vwxy" for pod in gang_pods(name, 2)),
            ),
        ),
        {"x": ("b",), "y": ("b",), "v": ("b",), "w": ("b",)},
    ),
    "groups in racks, one does not fit": Case(
        grid(1, 2, 2),
        (
            (
                composite("root", 3, topology=BLOCK),
                *(child(name, 2, topology=RACK) for name in "xyz"),
                *(pod for name in "xyz" for pod in gang_pods(name, 2)),
            ),
        ),
        {"x": (), "y": (), "z": ()},
    ),
    "both blocks have room, but the racks of one only": Case(
        (
            *(node(f"b0-r{n}-n0") for n in range(4)),
            *(node(f"b1-r{n // 2 + 5}-n{n}") for n in range(4)),
        ),
        (
            (
                composite("root", 2, topology=BLOCK),
                *(child(name, 2, topology=RACK) for name in "xy"),
                *(pod for name in "xy" for pod in gang_pods(name, 2)),
            ),
        ),
        {"x": ("b1",), "y": ("b1",)},
    ),
    "surplus pods of groups in racks": Case(
        grid(1, 2, 3),
        (
            (
                composite("root", 2, topology=BLOCK),
                *(child(name, 2, topology=RACK) for name in "xy"),
                *(pod for name in "xy" for pod in gang_pods(name, 3)),
            ),
        ),
        {"x": ("b0-r",), "y": ("b0-r",)},
    ),
    "a tree prefers a rack": Case(
        (*grid(2, 2, 2), node("b1-r2-n7"), node("b1-r2-n8")),
        (
            (
                preferring(composite("root", 2), f"{BLOCK},{RACK}"),
                child("x", 2),
                child("y", 2),
                *gang_pods("x", 2),
                *gang_pods("y", 2),
            ),
        ),
        {"x": ("b1-r2",), "y": ("b1-r2",)},
    ),
    "a tree prefers a block, and its groups racks": Case(
        (*grid(2, 2, 2), node("b1-r2-n7")),
        (
            (
                preferring(composite("root", 2), BLOCK),
                child("x", 3, topology=RACK),
                child("y", 2, topology=RACK),
                *gang_pods("x", 3),
                *gang_pods("y", 2),
            ),
        ),
        {"x": ("b1-r2",), "y": ("b1-r3",)},
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_groups_run_in_their_domains(name: str) -> None:
    check_domains(CASES[name])


def check_domains(case: Case) -> None:
    """Try the groups, and check where their pods are."""
    s = GroupScheduling(plugins=PLUGINS, levels=[BLOCK, RACK])
    s.see(*case.nodes)
    for step in case.steps:
        s.see(*step)
        settle(s, 3)
    for group, expected in case.domains.items():
        pods = [e for e in s.state.pods.values() if e.info.name.startswith(group)]
        nodes = [entry.node for entry in pods if entry.node]
        assert len(nodes) == case.counts.get(group, len(pods) if expected else 0)
        assert all(any(node.startswith(prefix) for prefix in expected) for node in nodes)
        # A prefix that ends within a name means one of several domains.
        depth = max((len(prefix.split("-")) for prefix in expected), default=1)
        assert expected == ("",) or len({tuple(node.split("-")[:depth]) for node in nodes}) <= 1
    check_replay(s, *PLUGINS)


REPLACED = {
    "in another rack if the preferred one is full": (
        prefers("x", 2, f"{BLOCK},{RACK}"),
        "b0-r1",
        False,
    ),
    "in the required rack": (gang("x", 2), "b0-r0", True),
    "in the preferred rack": (prefers("x", 2, f"{BLOCK},{RACK}"), "b0-r0", True),
    "not in another rack": (gang("x", 2), "b0-r0", False),
}


@pytest.mark.parametrize("name", REPLACED)
def test_pod_that_replaces_another_one(name: str) -> None:
    """The node of one member fails. Its replacement runs next to the other members, if there is
    room."""
    group, rack, room = REPLACED[name]
    s = GroupScheduling(plugins=PLUGINS, levels=[BLOCK, RACK])
    s.see(node("b0-r0-n0"), node("b0-r0-n1"))
    s.see(*group)
    settle(s, 1)
    s.see(*grid(1, 2, 2)[2:], *((node("b0-r0-n2"),) if room else ()))
    s.apply(r.ObjectDeleted("Pod", "default/x0", "pod-x0"))
    s.see(node("b0-r0-n0", taints=(NOT_READY,)), node("b0-r0-n1", taints=(NOT_READY,)))
    s.see(member("x", "x-new"))
    settle(s, 3)
    found = s.state.pods["default/x-new"].node
    assert found.startswith(rack) if room or rack == "b0-r1" else not found
