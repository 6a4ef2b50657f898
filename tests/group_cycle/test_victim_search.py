"""The search for the victims of a group that preempts as one, exact and limited."""

from __future__ import annotations

import pytest

from asched.cycle.shape_cache import ShapeCache
from asched.group_cycle.member_pass import MemberPass, PassMode, Preemption
from asched.group_cycle.members import collect_members
from asched.group_cycle.preemption import GroupVictims, find_victims, possible_victims
from asched.state.checkpoint import checkpoint_of
from tests.group_cycle.groups import GroupScheduling, a_group
from tests.plugins.gangs import gang_pods
from tests.state.objects import a_node, a_pod, bound

NODES, ON_EACH, MEMBERS = 12, 5, 6


@pytest.fixture
def s() -> GroupScheduling:
    """Nodes with five pods of one core each. A member of the group needs two cores."""
    s = GroupScheduling(group_preemption=True)
    for n in range(NODES):
        s.see(a_node(f"n{n}", {"cpu": str(ON_EACH), "memory": "64Gi", "pods": "110"}))
        for rank in range(ON_EACH):
            pod = a_pod(f"v{n}-{rank}", {"cpu": "1"}, priority=rank)
            s.see(bound(pod, f"n{n}"))
    s.see(a_group("a", MEMBERS, priority=10), *gang_pods("a", MEMBERS, cpu="2", priority=10))
    return s


def search(s: GroupScheduling, max_tries: int) -> GroupVictims:
    head = s.state.queue.head()
    assert head is not None
    profile = s.state.profiles["default-scheduler"].without(frozenset({"GangScheduling"}))
    members = collect_members(s.state, profile, head)
    assert members is not None
    passes = MemberPass(s.state, profile, ShapeCache(s.state.nodes))
    before = checkpoint_of(s.state)
    found = find_victims(
        s.state,
        passes.trial,
        members,
        possible_victims(s.state, members),
        lambda: passes.run(members, PassMode(Preemption.NONE)),
        max_tries,
    )
    assert checkpoint_of(s.state) == before
    assert isinstance(found, GroupVictims)
    assert found.result.feasible
    return found


def test_exact_search_evicts_the_least_important_pods(s: GroupScheduling) -> None:
    victims = search(s, max_tries=10**6).pods
    assert sorted(pod.priority for pod in victims) == [0] * MEMBERS + [1] * MEMBERS


def test_limited_search_evicts_no_pod_on_unused_nodes(s: GroupScheduling) -> None:
    found = search(s, max_tries=20 * MEMBERS)
    used = {member.node for member in found.result.members}
    assert {s.state.pods[pod.key].node for pod in found.pods} <= used
    assert len(found.pods) <= 2 * MEMBERS


def test_very_short_search_leaves_unused_nodes_alone(s: GroupScheduling) -> None:
    found = search(s, max_tries=0)
    used = {member.node for member in found.result.members}
    assert {s.state.pods[pod.key].node for pod in found.pods} <= used
