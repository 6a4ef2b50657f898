"""Members of a gang do not evict pods if the gang would stay incomplete."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec
import pytest

from asched.cycle.pod_groups import GANG_INCOMPLETE, GANG_TOO_VARIED
from asched.framework.interface import Plugin
from asched.framework.pod_groups import GANG_INFEASIBLE_REASON, MemberStatus, PodGroupKey
from asched.model.node import Node
from asched.model.pod import Affinity, Pod, PodAffinity, PodAffinityTerm, TopologySpreadConstraint
from asched.model.selectors import LabelSelector
from asched.plugins.default_preemption.plugin import DefaultPreemption
from asched.plugins.gang_scheduling import GangScheduling
from asched.plugins.inter_pod_affinity.plugin import InterPodAffinity
from asched.plugins.node_filters import NodeUnschedulable
from asched.plugins.pod_topology_spread.plugin import PodTopologySpread
from asched.plugins.volume_restrictions import VolumeRestrictions
from asched.state import attempt_budget
from asched.state import records as r
from tests.cycle.scheduling import Scheduling
from tests.docs.shown_messages import is_shown
from tests.plugins.gangs import (
    GANGS,
    a_gang,
    check_replay,
    gang_pods,
    member,
    placed,
    settle,
    waiting,
)
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
    """Nodes with one core, each used by a pod of this priority."""
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
    """Carry out all pending evictions. Returns their number."""
    due = len(scheduling.state.evictions)
    for uid, eviction in [*scheduling.state.evictions.items()]:
        scheduling.apply(r.EvictionSucceeded(eviction.victim.key, uid))
        scheduling.apply(r.ObjectDeleted("Pod", eviction.victim.key, uid))
    return due


def evicted_until_complete(scheduling: Scheduling) -> int:
    """Let time pass and carry out evictions until there are none. Returns their number."""
    settle(scheduling, rounds=2)
    evicted = 0
    while due := evict(scheduling):
        evicted += due
        settle(scheduling, rounds=2)
    return evicted


def apart(pod: Pod) -> Pod:
    """Anti-affinity: at most one per node."""
    like = LabelSelector(match_labels=pod.labels)
    term = PodAffinityTerm(label_selector=like, topology_key=HOSTNAME)
    return _with(pod, affinity=Affinity(pod_anti_affinity=PodAffinity(required=(term,))))


def spread(pod: Pod) -> Pod:
    """Topology spread by host with maxSkew 1."""
    like = LabelSelector(match_labels=pod.labels)
    evenly = TopologySpreadConstraint(topology_key=HOSTNAME, label_selector=like)
    return _with(pod, topology_spread_constraints=(evenly,))


def nominated(pod: Pod, node: str) -> Pod:
    """A pod with a nomination in its status."""
    status = msgspec.structs.replace(pod.status, nominated_node_name=node)
    return msgspec.structs.replace(pod, status=status)


def _with(pod: Pod, **spec: Any) -> Pod:
    return msgspec.structs.replace(pod, spec=msgspec.structs.replace(pod.spec, **spec))


def test_gang_of_too_many_forms_evicts_no_pod(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attempt_budget, "MIN_GANG_FORMS", 2)
    monkeypatch.setattr(attempt_budget, "GANG_FORMS_BY_NODES", 6)
    scheduling = Scheduling(*PLUGINS)
    busy(scheduling, 0, 0, 0)
    scheduling.see(a_gang("a", 3))
    for number in range(3):
        scheduling.see(member("a", f"a{number}", f"{1000 - number}m", priority=5))
    decisions = scheduling.decide()
    assert victims(decisions) == []
    assert messages(decisions)[0].endswith(GANG_TOO_VARIED.format("default/a", 3, 2))
    monkeypatch.setattr(attempt_budget, "GANG_FORMS_BY_NODES", 9)
    scheduling.pass_time(301)  # the flush of the queue
    assert evicted_until_complete(scheduling) == 3


def test_incomplete_gang_evicts_no_pod() -> None:
    scheduling = Scheduling(*PLUGINS)
    busy(scheduling, 0, 0, 9)
    scheduling.see(a_gang("a", 3), *gang_pods("a", 3, priority=5))
    decisions = scheduling.decide()
    assert victims(decisions) == []
    assert messages(decisions)[0] == (
        "0/3 nodes are available: 3 Insufficient cpu. " + GANG_INCOMPLETE.format("default/a", 2, 3)
    )
    assert not scheduling.state.nominator
    # With another node the gang is feasible, so all its victims are evicted.
    busy(scheduling, 0, first=3)
    assert evicted_until_complete(scheduling) == 3
    assert placed(scheduling) == ["a0", "a1", "a2", "user2"]
    check_replay(scheduling, *PLUGINS)


@pytest.mark.parametrize("cpu", ["1", "3"])
def test_dry_run_places_all_missing_members(cpu: str) -> None:
    """With one member or three members per node."""
    scheduling = Scheduling(*PLUGINS)
    size = int(cpu)
    busy(scheduling, *[0] * 3, cpu=cpu)
    scheduling.see(a_gang("a", 3 * size), *gang_pods("a", 3 * size + 1, priority=5))
    assert victims(scheduling.decide()) == ["user0", "user1", "user2"]
    assert evicted_until_complete(scheduling) == 3
    assert len(placed(scheduling)) == 3 * size


def test_dry_run_uses_free_room() -> None:
    scheduling = Scheduling(*PLUGINS)
    busy(scheduling, 0, 9)
    scheduling.see(a_node("free", {"cpu": "2", "memory": "8Gi", "pods": "110"}))
    scheduling.see(a_gang("a", 3), *gang_pods("a", 3, priority=5))
    assert victims(scheduling.decide()) == ["user0"]


def test_dry_run_respects_nominated_pods() -> None:
    """Room that is nominated to another gang does not count."""
    scheduling = Scheduling(*PLUGINS)
    busy(scheduling, 0, 0, 0)
    scheduling.see(a_gang("a", 2), *gang_pods("a", 2, priority=5))
    assert len(victims(scheduling.decide())) == 2
    scheduling.see(a_gang("b", 2, 1), *gang_pods("b", 2, priority=5))
    assert victims(scheduling.decide()) == []


def test_dry_run_places_members_of_other_shapes() -> None:
    """Room for the small member alone is not enough."""
    scheduling = Scheduling(*PLUGINS)
    busy(scheduling, 0, 0, cpu="2")
    pods = [
        member("a", "leader", "1", priority=6),
        *gang_pods("a", 2, "2", priority=5),
    ]
    scheduling.see(a_gang("a", 3), *pods)
    decisions = scheduling.decide()
    assert victims(decisions) == []
    shown = messages(decisions)[0].replace("default/a", "default/training")
    assert is_shown("how-to/gang.md", shown), shown
    busy(scheduling, 0, cpu="2", first=2)
    assert evicted_until_complete(scheduling) == 3
    assert len([name for name in placed(scheduling) if "user" not in name]) == 3


def test_dry_run_respects_anti_affinity_between_members() -> None:
    scheduling = Scheduling(*PLUGINS)
    busy(scheduling, 0, 0, cpu="4")
    pods = gang_pods("a", 3, priority=5, labels={"app": "a"})
    scheduling.see(a_gang("a", 3), *map(apart, pods))
    assert victims(scheduling.decide()) == []
    busy(scheduling, 0, first=2)
    assert evicted_until_complete(scheduling) == 3
    assert len([name for name in placed(scheduling) if "user" not in name]) == 3


def test_members_with_anti_affinity_preempt_on_enough_nodes() -> None:
    """maxSkew allows a second member on a node once the other node has one."""
    scheduling = Scheduling(*PLUGINS)
    busy(scheduling, 0, 0, cpu="2")
    pods = gang_pods("a", 4, priority=5, labels={"app": "a"})
    scheduling.see(a_gang("a", 4), *map(spread, pods))
    assert victims(scheduling.decide())


def test_last_missing_member_preempts_without_dry_run() -> None:
    """Also for a gang that is already running."""
    scheduling = Scheduling(*PLUGINS)
    busy(scheduling, 0, 9, 9)
    there = [_with(pod, node_name="n1") for pod in gang_pods("a", 2, "0", priority=5)]
    scheduling.see(a_gang("a", 3), *there, member("a", "a2", priority=5))
    assert victims(scheduling.decide()) == ["user0"]


def test_answers_of_dropped_preemption_are_discarded() -> None:
    """A waiting member of a less important gang must not be rejected for nothing."""
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


GPU = "example.com/gpu"


def wants_gpu(group: str, name: str, **pod: Any) -> Pod:
    like = a_pod(name, {"cpu": "1", GPU: "1"}, **pod)
    return _with(like, scheduling_group=member(group, name).spec.scheduling_group)


def a_gpu_node(name: str) -> Node:
    return a_node(name, {"cpu": "1", "memory": "8Gi", "pods": "110", GPU: "1"})


def test_event_for_sibling_queues_member_that_did_not_evict() -> None:
    """The sibling was not tried, so its rejecting plugins are unknown."""
    scheduling = Scheduling(*PLUGINS)
    busy(scheduling, 0, cpu="2")
    pods = [member("a", "big", "2", priority=6), wants_gpu("a", "small", priority=5)]
    scheduling.see(a_gang("a", 2), *pods)
    decisions = scheduling.decide()
    assert victims(decisions) == []
    assert [d.unschedulable_plugins for d in decisions if isinstance(d, r.Rejected)] == [
        (GANG_INFEASIBLE_REASON, "NodeResourcesFit"),
        ("GangScheduling",),
    ]
    scheduling.pass_time(30)
    assert scheduling.decide() == []
    scheduling.see(a_gpu_node("g"))
    assert evicted_until_complete(scheduling) == 1
    assert placed(scheduling) == ["big", "small"]
    check_replay(scheduling, *PLUGINS, checkpoint_at=1)


def test_only_member_that_did_not_evict_is_retried_after_backoff() -> None:
    """After any event, and for any size of the gang."""
    scheduling = Scheduling(*PLUGINS)
    busy(scheduling, 0, 0, 9)
    scheduling.see(a_gang("a", 5), *gang_pods("a", 5, priority=5))
    scheduling.decide()
    settle(scheduling, rounds=3)
    for number in range(3, 9):
        busy(scheduling, 9, first=number)
        assert len([d for d in scheduling.decide() if isinstance(d, r.Rejected)]) <= 1
    scheduling.pass_time(11)
    assert len([d for d in scheduling.decide() if isinstance(d, r.Rejected)]) == 1
    scheduling.pass_time(11)
    assert scheduling.decide() == []


def test_member_that_did_not_evict_counts_for_siblings() -> None:
    """If there are more members than needed, each may be one of those that fit."""
    scheduling = Scheduling(*PLUGINS)
    busy(scheduling, 0, 9, cpu="2")
    big = [member("a", f"big{n}", "2", priority=6) for n in range(2)]
    scheduling.see(a_gang("a", 2), *big, wants_gpu("a", "small", priority=5))
    assert victims(scheduling.decide()) == []
    statuses = scheduling.state.group_members(PodGroupKey("default/a", native=True)).statuses
    assert [*statuses.values()].count(MemberStatus.GANG_INFEASIBLE) == 2
    # The first has room on two nodes now: its own and the other's.
    busy(scheduling, 0, cpu="2", first=2)
    assert evicted_until_complete(scheduling) == 2
    assert {"big0", "big1"} <= {*placed(scheduling)}


def test_potential_victims_of_important_sibling_do_not_count() -> None:
    """The less important member is tried alone, and runs the check for both."""
    scheduling = Scheduling(*PLUGINS)
    scheduling.see(a_gpu_node("g"), a_gang("a", 2), wants_gpu("a", "high", priority=7))
    busy(scheduling, 9, cpu="2")
    scheduling.see(member("a", "low", "2", priority=5))
    scheduling.decide()
    settle(scheduling, rounds=2)
    # Another pod takes the room that the more important member released.
    taken = a_pod("between", {"cpu": "1", GPU: "1"}, on="g", priority=6)
    scheduling.see(taken)
    busy(scheduling, 0, cpu="2", first=1)
    assert evicted_until_complete(scheduling) == 2
    assert {"low", "high"} <= {*placed(scheduling)}


def test_nominated_siblings_count_once() -> None:
    """For example by an earlier leader: they count as missing, not as nominated."""
    scheduling = Scheduling(*PLUGINS)
    busy(scheduling, 0, 0, 0)
    first, *others = gang_pods("a", 3, priority=5)
    before = [nominated(pod, f"n{n}") for n, pod in enumerate(others)]
    scheduling.see(a_gang("a", 3), first, *before)
    decisions = scheduling.decide()
    assert not [d for d in decisions if isinstance(d, r.AttemptFailed)]
    assert victims(decisions) == ["user0", "user1", "user2"]
    assert evicted_until_complete(scheduling) == 3
    assert placed(scheduling) == ["a0", "a1", "a2"]


def test_assigned_sibling_is_not_removed() -> None:
    """Even if it is less important than the others: the gang needs it."""
    scheduling = Scheduling(*PLUGINS)
    scheduling.see(a_node("n0", {"cpu": "1", "memory": "8Gi", "pods": "110"}))
    busy(scheduling, 0, first=1)
    there = _with(member("a", "there", priority=1), node_name="n0")
    scheduling.see(a_gang("a", 3), there, *gang_pods("a", 2, priority=5))
    decisions = scheduling.decide()
    assert victims(decisions) == []
    assert "2 of its 3 required pods" in messages(decisions)[0]


def test_nomination_of_less_important_sibling_counts_once() -> None:
    scheduling = Scheduling(*PLUGINS)
    busy(scheduling, 0, 0)
    low = nominated(member("a", "low", priority=5), "n0")
    scheduling.see(a_gang("a", 2), low, member("a", "lower", priority=4))
    assert victims(scheduling.decide()) == ["user0", "user1"]
    scheduling.see(a_gang("a", 4), *gang_pods("a", 2, priority=7))
    decisions = scheduling.decide()
    assert victims(decisions) == []
    assert "2 of its 4 required pods" in messages(decisions)[0]


@pytest.mark.parametrize("which", [0, 1])
def test_sibling_may_use_its_former_nomination(which: int) -> None:
    """It counts there once, whichever of the two is tried first."""
    scheduling = Scheduling(*PLUGINS)
    busy(scheduling, 0, cpu="4")
    pods = gang_pods("a", 2, priority=5)
    pods[which] = nominated(pods[which], "n0")
    scheduling.see(a_gang("a", 2), *pods)
    decisions = scheduling.decide()
    assert not [d for d in decisions if isinstance(d, r.AttemptFailed)]
    assert evicted_until_complete(scheduling) == 1
    assert placed(scheduling) == ["a0", "a1"]


def test_gang_evicts_no_more_than_needed() -> None:
    scheduling = Scheduling(*PLUGINS)
    busy(scheduling, *[0] * 200)
    scheduling.see(a_gang("a", 2), *gang_pods("a", 2, priority=5))
    assert len(victims(scheduling.decide())) == 2


def test_large_gang_preempts_on_many_nodes() -> None:
    scheduling = Scheduling(*PLUGINS)
    busy(scheduling, *[0] * 150, *[9] * 10)
    scheduling.see(a_gang("a", 150), *gang_pods("a", 150, priority=5))
    assert len(victims(scheduling.decide())) == 150
    other = Scheduling(*PLUGINS)
    busy(other, *[0] * 149, *[9] * 11)
    other.see(a_gang("a", 150), *gang_pods("a", 150, priority=5))
    assert victims(other.decide()) == []


def test_preemptor_continues_while_siblings_wait_at_permit() -> None:
    """Otherwise a backoff longer than the Permit timeout would never complete the gang."""
    scheduling = Scheduling(*PLUGINS)
    scheduling.see(a_node("free", {"cpu": "1", "memory": "8Gi", "pods": "110"}))
    busy(scheduling, 0)
    scheduling.see(a_gang("a", 2), *gang_pods("a", 2, priority=5))
    assert victims(scheduling.decide()) == ["user0"]
    assert evict(scheduling) == 1
    # No time has passed, so the backoff of the rejected pod is not over.
    scheduling.decide()
    assert placed(scheduling) == ["a0", "a1"]
    check_replay(scheduling, *PLUGINS)


def test_room_of_rejected_waiting_pod_is_used_immediately() -> None:
    """A rejection at Permit evicts no pod, so only the nomination shows the preemptor."""
    scheduling = Scheduling(*PLUGINS)
    offers = {"cpu": "1", "memory": "8Gi", "pods": "110"}
    scheduling.see(a_node("n0", offers), a_gang("b", 2), *gang_pods("b", 2, priority=1))
    scheduling.next()
    assert len(waiting(scheduling)) == 1
    scheduling.see(a_node("free", offers), a_gang("a", 2), *gang_pods("a", 2, priority=5))
    scheduling.decide()
    assert placed(scheduling) == ["a0", "a1"]


ORDERS: tuple[tuple[type[Plugin], ...], ...] = (
    (DefaultPreemption, GangScheduling),
    (GangScheduling, DefaultPreemption),
)
"""Both orders of the PostFilter plugins."""


def beside_a_reservation(size: int, *order: type[Plugin]) -> Scheduling:
    """An earlier gang of this size; a later one holds one node, a victim uses the other one."""
    scheduling = Scheduling(*GANGS[:1], *GANGS[2:3], *order)
    scheduling.see(a_node("n0", {"cpu": "1", "memory": "8Gi", "pods": "110"}))
    scheduling.see(a_gang("b", 2, created_s=50))
    scheduling.see(member("b", "b0", priority=5), member("b", "b1", priority=1))
    scheduling.next()
    assert waiting(scheduling) == ["b0"]
    busy(scheduling, 0, first=1)
    scheduling.see(a_gang("a", size), *gang_pods("a", size, priority=5))
    return scheduling


@pytest.mark.parametrize("order", ORDERS)
def test_dropped_preemption_keeps_rejections_of_waiting_pods(
    order: tuple[type[Plugin], ...],
) -> None:
    """Otherwise the preemptor is retried without backoff forever."""
    scheduling = beside_a_reservation(3, *order)
    rejected, *others = scheduling.next()
    assert isinstance(rejected, r.Rejected)
    assert rejected.requeue_now
    assert [d.key for d in others if isinstance(d, r.PermitRejected)] == ["default/b0"]
    rounds = 0
    while scheduling.next():
        rounds += 1
        assert rounds < 20
    preemptors = {eviction.preemptor.key for eviction in scheduling.state.evictions.values()}
    assert preemptors <= {"default/b0"}
    check_replay(scheduling, *GANGS[:1], *GANGS[2:3], *order)


def test_successful_preemption_keeps_immediate_retry() -> None:
    scheduling = beside_a_reservation(1, GangScheduling, DefaultPreemption)
    rejected = scheduling.next()[0]
    assert isinstance(rejected, r.Rejected)
    assert victims([rejected]) == ["user1"]
    assert rejected.requeue_now
    assert evict(scheduling) == 1
    scheduling.decide()
    assert "a0" in placed(scheduling)
