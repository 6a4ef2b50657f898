"""All-or-nothing scheduling of gangs."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, ClassVar

import msgspec
import pytest

from asched.cycle.pod_groups import UNSCHEDULABLE
from asched.framework.cycle_state import CycleState
from asched.framework.interface import (
    PermitPlugin,
    PermitResult,
)
from asched.framework.pod_groups import POD_GROUP_SCHEDULED, MemberStatus, PodGroupKey
from asched.framework.pod_info import PodInfo
from asched.framework.runtime.profile import ProfileSpec
from asched.framework.status import Code, Status
from asched.model.groups import IncubatorPodGroup, PodGroup, PodGroupCondition, PodGroupStatus
from asched.model.quantity import NS_PER_S
from asched.plugins.default_preemption.plugin import DefaultPreemption
from asched.plugins.gang_scheduling import INCOMPLETE, Gang, GangScheduling
from asched.state import records as r
from asched.state.session_records import DecidedGroupCondition, PodGroupStatusDecided
from tests.cycle.scheduling import Scheduling
from tests.plugins.gangs import (
    GANGS,
    a_custom_gang,
    a_gang,
    bind,
    check_replay,
    custom_member,
    gang_pods,
    kinds,
    member,
    nodes,
    placed,
    settle,
    waiting,
)
from tests.state.objects import a_node, a_pod, bound, deleted
from tests.state.profiles import profile_of


class Counting(GangScheduling):
    """Counts lookups of gangs."""

    api_version: ClassVar[int] = 1
    questions: ClassVar[int] = 0

    def _gang(self, group: PodGroupKey | None) -> Gang | None:
        Counting.questions += 1
        return super()._gang(group)


# -- before there are enough ----------------------------------------------------------------------


def test_pods_wait_for_their_pod_group() -> None:
    scheduling = Scheduling(*GANGS)
    nodes(scheduling, 3)
    scheduling.see(*gang_pods("a", 2))
    assert scheduling.decide() == []
    assert set(scheduling.state.queue.gated) == {"default/a0", "default/a1"}
    scheduling.see(a_gang("a", 2))
    scheduling.decide()
    assert placed(scheduling) == ["a0", "a1"]
    check_replay(scheduling, *GANGS)


def test_pods_wait_for_min_count() -> None:
    scheduling = Scheduling(*GANGS)
    nodes(scheduling, 3)
    scheduling.see(a_gang("a", 3), *gang_pods("a", 2))
    assert scheduling.decide() == []
    # Pods of another group do not count.
    scheduling.see(a_gang("b", 9), member("b", "b0"))
    assert scheduling.decide() == []
    scheduling.see(member("a", "a2"))
    scheduling.decide()
    assert placed(scheduling) == ["a0", "a1", "a2"]


def test_gated_pods_do_not_count() -> None:
    scheduling = Scheduling(*GANGS)
    nodes(scheduling, 3)
    gated = member("a", "a2", gates=("wait",))
    scheduling.see(a_gang("a", 3), *gang_pods("a", 2), gated)
    assert scheduling.decide() == []
    scheduling.see(member("a", "a2"))
    scheduling.decide()
    assert placed(scheduling) == ["a0", "a1", "a2"]


@pytest.mark.parametrize("node", ["", "n1"])
def test_pod_that_joins_by_its_annotation_counts(node: str) -> None:
    scheduling = Scheduling(*GANGS)
    nodes(scheduling, 2)
    joins = custom_member("", "joins")
    scheduling.see(a_custom_gang("a", 2), custom_member("a", "first"), bound(joins, node))
    assert [*scheduling.state.queue.gated] == ["default/first"]
    scheduling.see(bound(custom_member("a", "joins"), node))
    scheduling.decide()
    assert placed(scheduling) == ["first", "joins"]
    check_replay(scheduling, *GANGS)


def test_bound_members_count() -> None:
    scheduling = Scheduling(*GANGS)
    nodes(scheduling, 3)
    scheduling.see(a_gang("a", 3), member("a", "a0"))
    assert scheduling.decide() == []
    scheduling.see(bound(member("a", "a1"), "n0"), bound(member("a", "a2"), "n1"))
    scheduling.decide()
    assert placed(scheduling) == ["a0", "a1", "a2"]


def test_gang_of_a_profile_that_is_loaded_later_is_scheduled() -> None:
    scheduling = Scheduling(*GANGS)
    nodes(scheduling, 2)
    scheduling.see(a_gang("a", 2), *gang_pods("a", 2, scheduler="gangs"))
    scheduling.apply(r.ProfilesLoaded((profile_of(*GANGS), profile_of(*GANGS, name="gangs"))))
    scheduling.decide()
    assert placed(scheduling) == ["a0", "a1"]
    check_replay(scheduling, *GANGS)


def test_group_without_min_count_is_not_a_gang() -> None:
    scheduling = Scheduling(*GANGS)
    nodes(scheduling, 1)
    scheduling.see(a_gang("a", 0), *gang_pods("a", 2))
    scheduling.decide()
    assert placed(scheduling) == ["a0"]


def test_custom_and_native_groups_are_distinct() -> None:
    scheduling = Scheduling(*GANGS)
    nodes(scheduling, 4)
    scheduling.see(a_gang("a", 1), custom_member("a", "c0"), custom_member("a", "c1"))
    assert scheduling.decide() == []
    scheduling.see(a_custom_gang("a", 2))
    scheduling.decide()
    assert placed(scheduling) == ["c0", "c1"]


def test_pods_without_group_are_ignored() -> None:
    scheduling = Scheduling(*GANGS)
    nodes(scheduling, 1)
    scheduling.see(a_pod("p", {"cpu": "1"}))
    assert kinds(scheduling.decide()) == [("Assigned", "p")]
    assert not scheduling.state.waiting


# -- all or none ----------------------------------------------------------------------------------


def test_complete_gang_is_allowed_immediately() -> None:
    scheduling = Scheduling(*GANGS)
    nodes(scheduling, 3)
    scheduling.see(a_gang("a", 3), *gang_pods("a", 3))
    batches = list(iter(scheduling.next, ()))
    assert [kinds([*batch]) for batch in batches[:3]] == [
        [("Assigned", "a2")],
        [("Assigned", "a0")],
        [("Assigned", "a1")],
    ]
    # No pod is bound before all have a node; then all are, in one journal batch.
    assert kinds([*batches[3]]) == [
        ("PermitAllowed", "a2"),
        ("PermitAllowed", "a0"),
        ("PermitAllowed", "a1"),
    ]
    check_replay(scheduling, *GANGS)


def test_incomplete_gang_releases_all_reservations() -> None:
    scheduling = Scheduling(*GANGS)
    nodes(scheduling, 2)
    scheduling.see(a_gang("a", 3), *gang_pods("a", 3))
    decisions = scheduling.decide()
    assert kinds(decisions) == [
        ("Assigned", "a2"),
        ("Assigned", "a0"),
        ("Rejected", "a1"),
        ("PermitRejected", "a2"),
        ("PermitRejected", "a0"),
    ]
    rejected = decisions[2]
    assert isinstance(rejected, r.Rejected)
    assert rejected.message == "0/2 nodes are available: 2 Insufficient cpu."
    assert scheduling.state.pods["default/a0"].rejection == INCOMPLETE
    assert scheduling.state.nodes.pod_count.sum() == 0
    scheduling.see(a_pod("p", {"cpu": "1"}), a_pod("q", {"cpu": "1"}))
    scheduling.decide()
    assert placed(scheduling) == ["p", "q"]
    check_replay(scheduling, *GANGS)


def test_later_members_reserve_nothing_after_a_rejection() -> None:
    scheduling = Scheduling(*GANGS)
    nodes(scheduling, 1)
    scheduling.see(a_gang("a", 4), *gang_pods("a", 4))
    decisions = scheduling.decide()
    assert kinds(decisions) == [
        ("Assigned", "a3"),
        ("Rejected", "a0"),
        ("PermitRejected", "a3"),
        ("Rejected", "a1"),
        ("Rejected", "a2"),
    ]
    last = decisions[-1]
    assert isinstance(last, r.Rejected)
    assert last.unschedulable_plugins == (GangScheduling.name,)
    why = "gang default/a cannot be completed: only 3 of its 4 required pods are schedulable"
    assert last.message == f"0/1 nodes are available: {why}."


def test_cost_of_a_pod_does_not_grow_with_gang_size() -> None:
    """Counts calls, which do not depend on the load of the machine."""
    asked: dict[int, int] = {}
    for size in (20, 80):
        Counting.questions = 0
        scheduling = Scheduling(*GANGS[:3], Counting, checked=False)
        nodes(scheduling, size)
        scheduling.see(a_gang("a", size), *gang_pods("a", size))
        scheduling.decide()
        assert len(placed(scheduling)) == size
        asked[size] = Counting.questions
    assert (asked[80] - asked[20]) / 60 < 8


def test_incomplete_gang_stops_retrying() -> None:
    scheduling = Scheduling(*GANGS)
    nodes(scheduling, 2)
    scheduling.see(a_gang("a", 3), *gang_pods("a", 3), a_gang("b", 3), *gang_pods("b", 3))
    settle(scheduling, rounds=6)
    before = len(scheduling.records)
    for _ in range(10):
        scheduling.pass_time(11)
        assert scheduling.decide() == []
    assert len(scheduling.records) == before + 10  # the turns alone


def test_pod_group_status_change_queues_no_pod() -> None:
    scheduling = Scheduling(*GANGS)
    nodes(scheduling, 2)
    group = a_gang("a", 3)
    scheduling.see(group, *gang_pods("a", 3))
    settle(scheduling)
    said = PodGroupStatus(conditions=(PodGroupCondition(type="PodGroupScheduled", status="False"),))
    scheduling.see(msgspec.structs.replace(group, status=said))
    scheduling.pass_time(11)
    assert scheduling.decide() == []
    scheduling.see(a_gang("a", 2))
    scheduling.pass_time(11)
    scheduling.decide()
    assert len(placed(scheduling)) == 2


def test_incomplete_gang_is_retried_when_it_fits() -> None:
    scheduling = Scheduling(*GANGS)
    nodes(scheduling, 2)
    scheduling.see(a_gang("a", 3), *gang_pods("a", 3))
    settle(scheduling)
    assert placed(scheduling) == []
    nodes(scheduling, 1, first=2)
    settle(scheduling, rounds=1)
    assert placed(scheduling) == ["a0", "a1", "a2"]
    check_replay(scheduling, *GANGS)


def test_retried_member_activates_siblings() -> None:
    """While one member does not fit, the other members reserve nothing."""
    scheduling = Scheduling(*GANGS)
    nodes(scheduling, 3)
    scheduling.see(a_gang("a", 3), *gang_pods("a", 2), member("a", "big", "2"))
    settle(scheduling)
    scheduling.see(a_pod("trigger", {"cpu": "1"}, on="n0"))
    gone = scheduling.state.pods["default/trigger"].info.pod
    scheduling.apply(r.ObjectDeleted("Pod", gone.key, gone.uid))
    scheduling.pass_time(11)
    assert {key for kind, key in kinds(scheduling.decide()) if kind == "Assigned"} == set()
    scheduling.see(a_node("large", {"cpu": "2", "memory": "8Gi", "pods": "110"}))
    scheduling.pass_time(11)
    decisions = kinds(scheduling.decide())
    assert decisions[0] == ("Assigned", "big")
    assert placed(scheduling) == ["a0", "a1", "big"]


def test_gang_with_more_members_than_min_count() -> None:
    scheduling = Scheduling(*GANGS)
    nodes(scheduling, 3)
    scheduling.see(a_gang("a", 2), *gang_pods("a", 5))
    scheduling.decide()
    assert len(placed(scheduling)) == 3
    assert waiting(scheduling) == []
    nodes(scheduling, 1, first=3)
    settle(scheduling, rounds=1)
    assert len(placed(scheduling)) == 4


def test_members_beyond_min_count_are_scheduled_singly() -> None:
    scheduling = Scheduling(*GANGS)
    nodes(scheduling, 3)
    scheduling.see(a_gang("a", 3), *gang_pods("a", 3))
    scheduling.decide()
    bind(scheduling)
    info = scheduling.state.pods["default/a1"].info
    scheduling.apply(r.ObjectDeleted("Pod", info.key, info.uid))
    scheduling.see(member("a", "again"))
    assert kinds(scheduling.decide()) == [("Assigned", "again")]
    assert not scheduling.state.waiting


def test_failed_binding_is_retried() -> None:
    scheduling = Scheduling(*GANGS)
    nodes(scheduling, 3)
    scheduling.see(a_gang("a", 3), *gang_pods("a", 3))
    scheduling.decide()
    entry = scheduling.state.pods["default/a1"]
    scheduling.apply(r.BindFailed("default/a1", entry.info.uid, entry.node, Code.ERROR))
    bind(scheduling)
    assert placed(scheduling) == ["a0", "a2"]
    settle(scheduling, rounds=1)
    assert placed(scheduling) == ["a0", "a1", "a2"]


# -- held pods ------------------------------------------------------------------------------------


def _holding() -> Scheduling:
    """a0 waits on Permit; a1 waits for an eviction."""
    scheduling = Scheduling(*GANGS[:3], DefaultPreemption, GangScheduling)
    nodes(scheduling, 2)
    scheduling.see(a_pod("old", {"cpu": "1"}, on="n0", priority=-1))
    scheduling.see(a_gang("a", 2), *gang_pods("a", 2))
    decisions = kinds(scheduling.decide())
    assert decisions == [("Assigned", "a1"), ("Rejected", "a0")]
    assert waiting(scheduling) == ["a1"]
    return scheduling


def test_reservations_are_held_during_evictions() -> None:
    scheduling = _holding()
    old = scheduling.state.pods["default/old"].info
    scheduling.see(deleted(old.pod, datetime(2026, 1, 1, tzinfo=UTC)))
    scheduling.pass_time(20)
    assert waiting(scheduling) == ["a1"]
    scheduling.apply(r.ObjectDeleted("Pod", old.key, old.uid))
    settle(scheduling, rounds=1)
    assert placed(scheduling) == ["a0", "a1"]


def test_waiting_pod_bound_by_another_client_counts_as_assigned() -> None:
    scheduling = _holding()
    pod = scheduling.state.pods["default/a1"].info.pod
    scheduling.see(bound(pod, "n0"))
    assert waiting(scheduling) == []
    members = scheduling.state.groups.members(PodGroupKey("default/a", native=True))
    assert members.statuses["default/a1"] is MemberStatus.ASSIGNED


def test_pod_bound_elsewhere_with_another_group_leaves_its_group() -> None:
    scheduling = Scheduling(*GANGS)
    nodes(scheduling, 2)
    scheduling.see(a_custom_gang("a", 1), a_custom_gang("b", 1), custom_member("a", "p"))
    scheduling.decide()
    other = "n1" if scheduling.state.pods["default/p"].node == "n0" else "n0"
    scheduling.see(bound(custom_member("b", "p"), other))
    assert [group.key for group in scheduling.state.groups] == ["default/b"]
    scheduling.apply(r.ObjectDeleted("Pod", "default/p", "pod-p"))
    assert [*scheduling.state.groups] == []
    check_replay(scheduling, *GANGS)


def test_gang_is_rejected_after_permit_timeout() -> None:
    scheduling = _holding()
    scheduling.pass_time(60)
    timed_out, said = scheduling.decide()
    assert isinstance(timed_out, r.PermitRejected)
    assert isinstance(said, PodGroupStatusDecided)
    message = "rejected due to timeout after waiting 1m0s at plugin GangScheduling"
    assert timed_out.message == message


def test_complete_gang_is_allowed_after_deadline() -> None:
    """The process stops when the last member has a node, and the next one starts later."""
    scheduling = Scheduling(*GANGS)
    nodes(scheduling, 2)
    scheduling.see(a_gang("a", 2), *gang_pods("a", 2))
    scheduling.next()
    scheduling.next()
    assert waiting(scheduling) == ["a0", "a1"]
    scheduling.pass_time(3600)
    scheduling.decide()
    assert placed(scheduling) == ["a0", "a1"]


def test_rejection_of_one_member_rejects_all() -> None:
    scheduling = Scheduling(*GANGS[:3], DefaultPreemption, GangScheduling)
    nodes(scheduling, 3)
    scheduling.see(a_pod("old", {"cpu": "1"}, on="n0", priority=-1))
    scheduling.see(a_gang("a", 3), *gang_pods("a", 3))
    scheduling.decide()
    assert len(waiting(scheduling)) == 2
    held = scheduling.state.waiting[f"default/{waiting(scheduling)[0]}"].info
    scheduling.apply(r.PermitRejected(held.key, held.uid, GangScheduling.name, "for a test"))
    assert [kind for kind, _ in kinds([*scheduling.next()])] == ["PermitRejected"]
    assert waiting(scheduling) == []


def test_deleted_waiting_pod_makes_gang_incomplete() -> None:
    scheduling = _holding()
    held = scheduling.state.waiting["default/a1"].info
    scheduling.apply(r.ObjectDeleted("Pod", held.key, held.uid))
    settle(scheduling)
    assert placed(scheduling) == ["old"]
    assert waiting(scheduling) == []


def test_deleted_group_releases_reservations() -> None:
    scheduling = _holding()
    scheduling.apply(r.ObjectDeleted("PodGroup", "default/a", "group-a"))
    assert kinds(scheduling.decide()) == [("PermitRejected", "a1")]


def test_lower_min_count_completes_gang() -> None:
    scheduling = _holding()
    scheduling.see(a_gang("a", 1))
    assert ("PermitAllowed", "a1") in kinds(scheduling.decide())


def test_group_that_is_no_longer_a_gang_allows_its_pods() -> None:
    scheduling = _holding()
    scheduling.see(a_gang("a", 0))
    assert ("PermitAllowed", "a1") in kinds(scheduling.decide())


class Veto(PermitPlugin):
    """Makes the pod with the label ``veto`` wait for five seconds."""

    name: ClassVar[str] = "Veto"
    api_version: ClassVar[int] = 1

    def permit(self, state: CycleState, pod: PodInfo, node_name: str) -> PermitResult:
        return PermitResult(Status(Code.WAIT), 5.0) if "veto" in pod.labels else PermitResult()


def test_pods_that_wait_for_another_plugin_do_not_count() -> None:
    scheduling = Scheduling(*GANGS, Veto)
    nodes(scheduling, 2)
    scheduling.see(a_gang("a", 2), member("a", "a0"), member("a", "a1", labels={"veto": "yes"}))
    scheduling.decide()
    assert waiting(scheduling) == ["a0", "a1"]
    scheduling.pass_time(5)
    scheduling.decide()
    assert placed(scheduling) == []
    check_replay(scheduling, *GANGS, Veto)


class Broken(GangScheduling):
    api_version: ClassVar[int] = 1

    def review_waiting_pods(self) -> None:
        raise RuntimeError("lost count")


def test_raising_review_rejects_waiting_pods() -> None:
    scheduling = Scheduling(*GANGS[:3], Broken)
    nodes(scheduling, 2)
    scheduling.see(a_gang("a", 2), *gang_pods("a", 2))
    decisions = scheduling.next() + scheduling.next()
    assert kinds([*decisions]) == [("Assigned", "a1"), ("PermitRejected", "a1")]
    assert isinstance(decisions[1], r.PermitRejected)
    assert "RuntimeError: lost count (" in decisions[1].message


# -- PodGroup conditions -----------------------------------------------------------------


def conditions(scheduling: Scheduling) -> list[DecidedGroupCondition]:
    """All conditions in order."""
    return [
        condition
        for record in scheduling.records
        if isinstance(record, PodGroupStatusDecided)
        for condition in record.conditions
    ]


NOT_SCHEDULED = DecidedGroupCondition(POD_GROUP_SCHEDULED, "False", "Unschedulable", UNSCHEDULABLE)
SCHEDULED = DecidedGroupCondition(POD_GROUP_SCHEDULED, "True", "Scheduled")


def test_pod_group_condition_is_decided_once() -> None:
    scheduling = Scheduling(*GANGS)
    nodes(scheduling, 2)
    scheduling.see(a_gang("a", 3), *gang_pods("a", 3))
    assert conditions(scheduling) == []
    settle(scheduling)
    assert conditions(scheduling) == [NOT_SCHEDULED]
    nodes(scheduling, 2, first=2)
    settle(scheduling)
    scheduling.see(member("a", "another"), member("a", "too-many"))
    settle(scheduling)
    assert len(placed(scheduling)) == 4
    assert conditions(scheduling) == [NOT_SCHEDULED, SCHEDULED]
    check_replay(scheduling, *GANGS, checkpoint_at=3)


def test_rejected_surplus_member_sets_no_condition() -> None:
    scheduling = Scheduling(*GANGS)
    nodes(scheduling, 2)
    scheduling.see(a_gang("a", 2), member("a", "huge", "9"), *gang_pods("a", 2))
    settle(scheduling)
    assert placed(scheduling) == ["a0", "a1"]
    assert conditions(scheduling) == [SCHEDULED]


def test_other_pod_group_conditions_are_kept() -> None:
    scheduling = Scheduling(*GANGS)
    nodes(scheduling, 2)
    other = PodGroupCondition(type="Other", status="True", reason="Because")
    group = a_gang("a", 1)
    said = msgspec.structs.replace(group, status=PodGroupStatus(conditions=(other,)))
    scheduling.see(said, member("a", "a0"))
    scheduling.decide()
    assert conditions(scheduling) == [DecidedGroupCondition("Other", "True", "Because"), SCHEDULED]


@pytest.mark.parametrize("group", [a_custom_gang("a", 1), a_gang("a", 0)])
def test_only_native_gangs_get_the_condition(group: IncubatorPodGroup | PodGroup) -> None:
    scheduling = Scheduling(*GANGS)
    nodes(scheduling, 2)
    pod = custom_member if isinstance(group, IncubatorPodGroup) else member
    scheduling.see(group, pod("a", "a0"))
    scheduling.decide()
    assert placed(scheduling) == ["a0"]
    assert conditions(scheduling) == []


# -- arguments ------------------------------------------------------------------------------------


@pytest.mark.parametrize("seconds", [1, 900])
def test_arguments_are_parsed(seconds: int) -> None:
    scheduling = Scheduling(*GANGS, profiles=[_profile(seconds)])
    nodes(scheduling, 1)
    scheduling.see(a_gang("a", 2), *gang_pods("a", 2))
    (assigned,) = scheduling.next()
    assert isinstance(assigned, r.Assigned)
    assert assigned.permit_waits == (r.PermitWait(GangScheduling.name, seconds * NS_PER_S),)


@pytest.mark.parametrize("seconds", [0, 901])
def test_invalid_arguments_are_rejected(seconds: int) -> None:
    scheduling = Scheduling(*GANGS, profiles=[_profile(seconds)])
    missing = scheduling.state.profiles["default-scheduler"].missing
    assert f"permitWaitingTimeSeconds: Invalid value: {seconds}" in missing


def _profile(seconds: int) -> ProfileSpec:
    arguments: dict[str, Any] = {"permitWaitingTimeSeconds": seconds}
    return profile_of(*GANGS, arguments={GangScheduling.name: arguments})
