"""Members of a gang evict nobody where the gang would be incomplete all the same."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec
import pytest

from asched.cycle.gang_room import IN_VAIN
from asched.framework.interface import Plugin
from asched.model.pod import Affinity, Pod, PodAffinity, PodAffinityTerm, TopologySpreadConstraint
from asched.model.selectors import LabelSelector
from asched.plugins.default_preemption import DefaultPreemption
from asched.plugins.gang_scheduling import GangScheduling
from asched.plugins.inter_pod_affinity import InterPodAffinity
from asched.plugins.node_unschedulable import NodeUnschedulable
from asched.plugins.pod_topology_spread import PodTopologySpread
from asched.plugins.volume_restrictions import VolumeRestrictions
from asched.state import records as r
from asched.state.rules import LATEST_RULES, Rules
from tests.cycle.scheduling import Scheduling
from tests.plugins.gangs import GANGS, a_gang, check_replay, gang_pods, member, placed, settle
from tests.state.objects import a_node, a_pod

HOSTNAME = "kubernetes.io/hostname"
PLUGINS: tuple[type[Plugin], ...] = (
    *GANGS[:3],
    NodeUnschedulable,
    VolumeRestrictions,
    InterPodAffinity,
    PodTopologySpread,
    DefaultPreemption,
    GangScheduling,
)


def busy(scheduling: Scheduling, *priorities: int, cpu: str = "1", first: int = 0) -> None:
    """Nodes of one core, each used by a pod of that priority."""
    for number, priority in enumerate(priorities, first):
        node = a_node(
            f"n{number}",
            {"cpu": cpu, "memory": "8Gi", "pods": "110"},
            labels={HOSTNAME: f"n{number}"},
        )
        user = a_pod(f"user{number}", {"cpu": cpu}, on=node.name, priority=priority)
        scheduling.see(node, user)


def victims(decisions: Iterable[r.Decision]) -> list[str]:
    rejected = [d for d in decisions if isinstance(d, r.Rejected)]
    return sorted(v.key.removeprefix("default/") for d in rejected for v in d.victims)


def messages(decisions: Iterable[r.Decision]) -> list[str]:
    return [d.message for d in decisions if isinstance(d, r.Rejected)]


def evict(scheduling: Scheduling) -> int:
    """Every eviction that is due is carried out. Returns how many those are."""
    due = len(scheduling.state.evictions)
    for uid, eviction in [*scheduling.state.evictions.items()]:
        scheduling.apply(r.VictimEvicted(eviction.victim.key, uid))
        scheduling.apply(r.ObjectGone("Pod", eviction.victim.key, uid))
    return due


def evicted_until_complete(scheduling: Scheduling) -> int:
    """Time passes, with all evictions, until none are due. Returns how many those were."""
    settle(scheduling, rounds=2)
    evicted = 0
    while due := evict(scheduling):
        evicted += due
        settle(scheduling, rounds=2)
    return evicted


def apart(pod: Pod) -> Pod:
    """No two of them on one node."""
    like = LabelSelector(match_labels=pod.labels)
    term = PodAffinityTerm(label_selector=like, topology_key=HOSTNAME)
    return _with(pod, affinity=Affinity(pod_anti_affinity=PodAffinity(required=(term,))))


def spread(pod: Pod) -> Pod:
    """As many on each node, give or take one."""
    like = LabelSelector(match_labels=pod.labels)
    evenly = TopologySpreadConstraint(topology_key=HOSTNAME, label_selector=like)
    return _with(pod, topology_spread_constraints=(evenly,))


def _with(pod: Pod, **spec: Any) -> Pod:
    return msgspec.structs.replace(pod, spec=msgspec.structs.replace(pod.spec, **spec))


def test_nobody_is_evicted_for_a_gang_that_stays_incomplete() -> None:
    scheduling = Scheduling(*PLUGINS)
    busy(scheduling, 0, 0, 9)
    scheduling.see(a_gang("a", 3), *gang_pods("a", 3, priority=5))
    decisions = scheduling.decide()
    assert victims(decisions) == []
    assert messages(decisions)[0] == (
        "0/3 nodes are available: 3 Insufficient cpu. " + IN_VAIN.format("default/a", 2, 3)
    )
    assert not scheduling.state.nominator
    # Another node makes it possible: then all are evicted who have to be.
    busy(scheduling, 0, first=3)
    assert evicted_until_complete(scheduling) == 3
    assert placed(scheduling) == ["a0", "a1", "a2", "user2"]
    check_replay(scheduling, *PLUGINS)


def test_journals_of_before_are_decided_as_before() -> None:
    scheduling = Scheduling(*PLUGINS, rules=Rules.FIRST)
    busy(scheduling, 0, 0, 9)
    scheduling.see(a_gang("a", 3), *gang_pods("a", 3, priority=5))
    assert victims(scheduling.decide()) == ["user0", "user1"]
    assert scheduling.state.rules < Rules.GANGS_EVICT_TOGETHER <= LATEST_RULES
    check_replay(scheduling, *PLUGINS)


@pytest.mark.parametrize("cpu", ["1", "3"])
def test_room_is_counted_for_as_many_as_are_missing(cpu: str) -> None:
    """Whether a member alone takes a node or three of them do."""
    scheduling = Scheduling(*PLUGINS)
    size = int(cpu)
    busy(scheduling, *[0] * 3, cpu=cpu)
    scheduling.see(a_gang("a", 3 * size), *gang_pods("a", 3 * size + 1, priority=5))
    assert victims(scheduling.decide()) == ["user0", "user1", "user2"]
    assert evicted_until_complete(scheduling) == 3
    assert len(placed(scheduling)) == 3 * size


def test_free_room_counts_too() -> None:
    scheduling = Scheduling(*PLUGINS)
    busy(scheduling, 0, 9)
    scheduling.see(a_node("free", {"cpu": "2", "memory": "8Gi", "pods": "110"}))
    scheduling.see(a_gang("a", 3), *gang_pods("a", 3, priority=5))
    assert victims(scheduling.decide()) == ["user0"]


def test_who_is_to_have_room_keeps_it() -> None:
    """What is made free for another gang is not counted once more."""
    scheduling = Scheduling(*PLUGINS)
    busy(scheduling, 0, 0, 0)
    scheduling.see(a_gang("a", 2), *gang_pods("a", 2, priority=5))
    assert len(victims(scheduling.decide())) == 2
    scheduling.see(a_gang("b", 2, 1), *gang_pods("b", 2, priority=5))
    assert victims(scheduling.decide()) == []


def test_members_of_another_kind_count() -> None:
    """Room for the small one alone is none for the gang."""
    scheduling = Scheduling(*PLUGINS)
    busy(scheduling, 0, 0, cpu="2")
    pods = [
        member("a", "leader", "1", priority=6),
        *gang_pods("a", 2, "2", priority=5),
    ]
    scheduling.see(a_gang("a", 3), *pods)
    decisions = scheduling.decide()
    assert victims(decisions) == []
    assert "default/a would be incomplete all the same: 2 of the 3" in messages(decisions)[0]
    busy(scheduling, 0, cpu="2", first=2)
    assert evicted_until_complete(scheduling) == 3
    assert len([name for name in placed(scheduling) if "user" not in name]) == 3


def test_one_to_a_node_on_too_few_nodes() -> None:
    scheduling = Scheduling(*PLUGINS)
    busy(scheduling, 0, 0, cpu="4")
    pods = gang_pods("a", 3, priority=5, labels={"app": "a"})
    scheduling.see(a_gang("a", 3), *map(apart, pods))
    assert victims(scheduling.decide()) == []
    busy(scheduling, 0, first=2)
    assert evicted_until_complete(scheduling) == 3
    assert len([name for name in placed(scheduling) if "user" not in name]) == 3


def test_spread_over_nodes_that_have_room() -> None:
    """The second on a node is in order once there is one on the other."""
    scheduling = Scheduling(*PLUGINS)
    busy(scheduling, 0, 0, cpu="2")
    pods = gang_pods("a", 4, priority=5, labels={"app": "a"})
    scheduling.see(a_gang("a", 4), *map(spread, pods))
    assert victims(scheduling.decide())


def test_the_last_one_missing_goes_by_itself() -> None:
    """Also of a gang that is running already."""
    scheduling = Scheduling(*PLUGINS)
    busy(scheduling, 0, 9, 9)
    there = [_with(pod, node_name="n1") for pod in gang_pods("a", 2, "0", priority=5)]
    scheduling.see(a_gang("a", 3), *there, member("a", "a2", priority=5))
    assert victims(scheduling.decide()) == ["user0"]


def test_what_is_held_stays_held() -> None:
    """A member of a less important gang, held at Permit, would give its place back for nothing."""
    scheduling = Scheduling(*PLUGINS)
    busy(scheduling, 9)
    scheduling.see(a_node("n1", {"cpu": "1", "memory": "8Gi", "pods": "110"}))
    scheduling.see(a_gang("low", 2), *gang_pods("low", 2, priority=1))
    scheduling.see(a_pod("lower", {"cpu": "1"}, on="gone", priority=0))
    scheduling.see(a_gang("high", 2), *gang_pods("high", 2, priority=5))
    decisions = scheduling.decide()
    assert not [
        d for d in decisions if isinstance(d, r.PermitRejected) and "preempted" in d.message
    ]
    assert victims(decisions) == []


def test_no_more_are_evicted_than_it_takes() -> None:
    scheduling = Scheduling(*PLUGINS)
    busy(scheduling, *[0] * 200)
    scheduling.see(a_gang("a", 2), *gang_pods("a", 2, priority=5))
    assert len(victims(scheduling.decide())) == 2


def test_a_gang_that_takes_most_of_many_nodes() -> None:
    scheduling = Scheduling(*PLUGINS)
    busy(scheduling, *[0] * 150, *[9] * 10)
    scheduling.see(a_gang("a", 150), *gang_pods("a", 150, priority=5))
    assert len(victims(scheduling.decide())) == 150
    other = Scheduling(*PLUGINS)
    busy(other, *[0] * 149, *[9] * 11)
    other.see(a_gang("a", 150), *gang_pods("a", 150, priority=5))
    assert victims(other.decide()) == []
