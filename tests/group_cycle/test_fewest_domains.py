"""A group that fits in no narrow domain runs in as few of them as possible.

Nodes are named after their block and rack, as in ``test_domain_situations``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asched.model.groups import PodGroup
from asched.model.node import Node
from asched.model.resources import AnyObject
from tests.group_cycle.groups import RACK, GroupScheduling, a_group
from tests.group_cycle.test_composite import child, composite
from tests.group_cycle.test_domain_situations import (
    BLOCK,
    HOST,
    PLUGINS,
    gang,
    grid,
    labelled,
    next_to,
    node,
    preferring,
    prefers,
    requiring,
    used,
)
from tests.plugins.gangs import check_replay, gang_pods, member, settle

LEVELS = [BLOCK, RACK]
_replace = msgspec.structs.replace


class Case(NamedTuple):
    """Groups, and the domains that the pods of each use."""

    nodes: tuple[Node, ...]
    steps: tuple[tuple[AnyObject, ...], ...]
    """After each step the groups are tried."""
    domains: Mapping[str, frozenset[str]]
    """By group: blocks, racks or nodes, by the beginning of the names of nodes."""


def on(*domains: str) -> frozenset[str]:
    return frozenset(domains)


def rack(name: str, *cores: int) -> tuple[Node, ...]:
    """The nodes of a rack, with so many cores each."""
    return tuple(node(f"{name}-n{number}", cpu) for number, cpu in enumerate(cores))


def tree(*children: AnyObject, prefers: str) -> tuple[AnyObject, ...]:
    return (preferring(composite("root", 2), prefers), *children)


def also_prefers(group: PodGroup, levels: str) -> PodGroup:
    metadata = a_group(group.metadata.name, 1, prefers=levels).metadata
    return _replace(group, metadata=metadata)


def leader_and_workers(name: str, leader: str, workers: int) -> tuple[AnyObject, ...]:
    pods = (member(name, f"{name}-leader", leader), *gang_pods(name, workers))
    return (a_group(name, workers + 1, prefers=RACK), *pods)


CASES: Mapping[str, Case] = {
    "two of four racks": Case(grid(1, 4, 2), (prefers("x", 4, RACK),), {"x": on("b0-r0", "b0-r1")}),
    "one large rack and the smallest one for the rest": Case(
        (
            *rack("b0-r0", 1, 1, 1),
            *rack("b0-r1", 1),
            *rack("b0-r2", 1, 1, 1, 1, 1),
            *rack("b0-r3", 1, 1),
        ),
        (prefers("x", 6, RACK),),
        {"x": on("b0-r1", "b0-r2")},
    ),
    "few racks rather than few nodes": Case(
        (*rack("b0-r0", 3), *rack("b0-r1", 3), *rack("b0-r2", 1, 1, 1, 1, 1), *rack("b0-r3", 1)),
        (prefers("x", 6, RACK),),
        {"x": on("b0-r2", "b0-r3")},
    ),
    "few blocks, and few racks in them": Case(
        (*grid(2, 2, 2), *rack("b2-r4", 1, 1), *rack("b2-r5", 1)),
        (prefers("x", 6, RACK),),
        {"x": on("b0-r0", "b0-r1", "b2-r4")},
    ),
    "a rack of another block is no substitute for a block": Case(
        (*rack("b0-r0", 1, 1, 1), *rack("b1-r1", 1, 1, 1), *rack("b0-r2", 1, 1)),
        (prefers("x", 5, RACK),),
        {"x": on("b0-r0", "b0-r2")},
    ),
    "blocks of one rack": Case(
        (*rack("b0-r0", 1, 1), *rack("b1-r1", 1, 1), *rack("b2-r2", 1, 1, 1)),
        (prefers("x", 5, RACK),),
        {"x": on("b0-r0", "b2-r2")},
    ),
    "one node and a second one": Case(
        tuple(node(f"b0-r0-n{number}", 2) for number in range(6)),
        (prefers("x", 4, HOST),),
        {"x": on("b0-r0-n0", "b0-r0-n1")},
    ),
    "levels of its own": Case(
        (*rack("b0-r0", 2, 2), *rack("b0-r1", 2, 2), *rack("b0-r2", 2, 2)),
        (prefers("x", 6, f"{RACK},{HOST}"),),
        {"x": on("b0-r0-n0", "b0-r0-n1", "b0-r1-n0")},
    ),
    "within a required block": Case(
        (*grid(1, 1, 2), *(n for k in (1, 2, 3) for n in rack(f"b1-r{k}", 1, 1))),
        (
            (
                also_prefers(requiring("x", BLOCK, 4), RACK),
                *gang_pods("x", 4),
            ),
        ),
        {"x": on("b1-r1", "b1-r2")},
    ),
    "nodes without labels only if they are needed": Case(
        (node("plain-0", 2), node("plain-1", 2), *grid(1, 2, 1)),
        (prefers("x", 2, RACK),),
        {"x": on("b0-r0", "b0-r1")},
    ),
    "nodes without labels are used": Case(
        (node("plain-0", 2), *grid(1, 2, 1)),
        (prefers("x", 4, RACK),),
        {"x": on("plain-0", "b0-r0", "b0-r1")},
    ),
    "usage counts": Case(
        grid(1, 3, 3),
        (tuple(used(f"b0-r0-n{n}") for n in (0, 1)), prefers("x", 4, RACK)),
        {"x": on("b0-r0", "b0-r1")},
    ),
    "two groups share a rack instead of four": Case(
        grid(1, 6, 2),
        (prefers("x", 3, RACK), prefers("y", 3, RACK)),
        {"x": on("b0-r0", "b0-r1"), "y": on("b0-r1", "b0-r2")},
    ),
    "a later group finds a whole rack": Case(
        grid(1, 3, 2),
        (prefers("x", 3, RACK), gang("y", 2)),
        {"x": on("b0-r0", "b0-r1"), "y": on("b0-r2")},
    ),
    "later members in the racks of the running ones": Case(
        grid(1, 4, 3),
        (
            prefers("x", 6, RACK),
            (
                *(node(f"b0-r{k}-n9") for k in (0, 1)),
                *(member("x", f"x-later{k}") for k in (0, 1)),
            ),
        ),
        {"x": on("b0-r0", "b0-r1")},
    ),
    "members of two sizes need one more rack": Case(
        (*rack("b0-r0", 2, 1, 1), *rack("b0-r1", 2, 1), *(rack("b0-r2", 1, 1))),
        (leader_and_workers("x", "2", 4),),
        {"x": on("b0-r0", "b0-r1")},
    ),
    "anti-affinity leaves out a rack": Case(
        grid(1, 4, 2),
        (
            (labelled("b0-r0-n0", "y"),),
            (a_group("x", 4, prefers=RACK), *next_to("x", 4, "y")),
        ),
        {"x": on("b0-r1", "b0-r2")},
    ),
    "a tree in few racks": Case(
        grid(1, 5, 2),
        (tree(child("x", 3), child("y", 1), *gang_pods("x", 3), *gang_pods("y", 1), prefers=RACK),),
        {"xy": on("b0-r0", "b0-r1")},
    ),
    "groups of a tree in few racks each": Case(
        grid(2, 2, 2),
        (
            (
                composite("root", 2, topology=BLOCK),
                *(also_prefers(child(name, 2), RACK) for name in "xy"),
                *gang_pods("x", 2),
                *gang_pods("y", 2),
            ),
        ),
        {"x": on("b0-r0"), "y": on("b0-r1")},
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_group_uses_few_domains(name: str) -> None:
    case = CASES[name]
    s = GroupScheduling(plugins=PLUGINS, levels=LEVELS)
    s.see(*case.nodes)
    for step in case.steps:
        s.see(*step)
        settle(s, 3)
    found = {}
    for names, expected in case.domains.items():
        pods = [e for e in s.state.pods.values() if e.info.name.startswith(tuple(names))]
        assert all(entry.node for entry in pods)
        parts = max(len(domain.split("-")) for domain in expected)
        found[names] = {"-".join(e.node.split("-")[:parts]) for e in pods}
    assert found == {names: set(expected) for names, expected in case.domains.items()}
    check_replay(s, *PLUGINS)


@given(
    sizes=st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=3), min_size=1, max_size=6),
    share=st.floats(0.1, 1),
)
def test_no_smaller_number_of_racks_has_room(sizes: list[list[int]], share: float) -> None:
    """For like members the number of racks is the least possible, and no member is left behind."""
    room = sorted((sum(cores) for cores in sizes), reverse=True)
    count = max(1, int(sum(room) * share))
    s = GroupScheduling(plugins=PLUGINS, levels=[RACK])
    for number, cores in enumerate(sizes):
        s.see(*rack(f"b0-r{number}", *cores))
    s.see(*prefers("x", count, RACK))
    s.next()
    nodes = [entry.node for entry in s.state.pods.values() if entry.node]
    if count > sum(room):
        assert not nodes
        return
    least = next(n for n in range(1, len(room) + 1) if sum(room[:n]) >= count)
    assert len(nodes) == count
    assert len({name.rpartition("-")[0] for name in nodes}) == least
    check_replay(s, *PLUGINS)


def test_running_members_and_victims_decide_before_few_domains() -> None:
    """A group that waits for its victims gets their nodes, although fewer racks have room now."""
    s = GroupScheduling(plugins=PLUGINS, levels=[RACK], group_preemption=True)
    s.see(*rack("b0-r0", 1), *rack("b0-r1", 1), *rack("b0-r2", 1))
    s.see(*(used(f"b0-r{number}-n0") for number in range(3)))
    s.see(a_group("x", 3, prefers=RACK, priority=10), *gang_pods("x", 3, priority=10))
    s.next()
    s.see(*rack("b0-r3", 1, 1))
    s.evict()
    settle(s, 3)
    nodes = {entry.node for entry in s.state.pods.values() if entry.node}
    assert nodes == {"b0-r0-n0", "b0-r1-n0", "b0-r2-n0"}
    check_replay(s, *PLUGINS)
