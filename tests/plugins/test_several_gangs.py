"""Several gangs do not block each other forever."""

from __future__ import annotations

from typing import ClassVar

import pytest

from asched.framework.cycle_state import CycleState
from asched.framework.interface import (
    NodeToStatus,
    Plugin,
    PostFilterResult,
)
from asched.framework.pod_info import PodInfo
from asched.framework.status import Status
from asched.plugins.default_preemption.plugin import DefaultPreemption
from asched.plugins.gang_scheduling import Gang, GangScheduling
from asched.state import records as r
from tests.cycle.scheduling import Scheduling
from tests.plugins.gangs import (
    GANGS,
    INTERLEAVED,
    a_gang,
    check_replay,
    gang_pods,
    kinds,
    member,
    nodes,
    placed,
    settle,
    waiting,
)
from tests.state.objects import a_pod


class Patient(GangScheduling):
    """Gang scheduling without yielding: members wait on Permit until the timeout."""

    api_version: ClassVar[int] = 1

    def _cannot_complete(self, gang: Gang) -> bool:
        return False

    def post_filter(
        self, state: CycleState, pod: PodInfo, statuses: NodeToStatus
    ) -> PostFilterResult:
        return PostFilterResult(Status.unschedulable())


def _in_turns(gang_scheduling: type[Plugin], *, size: int = 4, room: int = 4) -> Scheduling:
    """Two gangs with alternating pods, so that each gets half of the room."""
    scheduling = Scheduling(*INTERLEAVED[:2], gang_scheduling)
    nodes(scheduling, room)
    scheduling.see(a_gang("old", size, created_s=1), a_gang("new", size, created_s=2))
    pairs = zip(gang_pods("old", size), gang_pods("new", size), strict=True)
    for pod in (pod for pair in pairs for pod in pair):
        scheduling.see(pod)
        scheduling.pass_time(0.001)
    return scheduling


def test_two_gangs_deadlock_if_neither_yields() -> None:
    scheduling = _in_turns(Patient)
    scheduling.decide()
    held = waiting(scheduling)
    assert len([name for name in held if name.startswith("old")]) == 2
    assert len([name for name in held if name.startswith("new")]) == 2
    scheduling.pass_time(59)
    assert scheduling.decide() == []
    assert waiting(scheduling) == held
    assert placed(scheduling) == []


def test_earlier_of_two_incomplete_gangs_completes() -> None:
    scheduling = _in_turns(GangScheduling)
    scheduling.decide()
    assert placed(scheduling) == ["old0", "old1", "old2", "old3"]
    assert waiting(scheduling) == []
    settle(scheduling)
    for entry in [*scheduling.state.pods.values()]:
        if entry.info.name.startswith("old"):
            scheduling.apply(r.ObjectDeleted("Pod", entry.info.key, entry.info.uid))
    settle(scheduling, rounds=2)
    assert placed(scheduling) == ["new0", "new1", "new2", "new3"]
    check_replay(scheduling, *INTERLEAVED, checkpoint_at=5)


def test_gangs_that_do_not_fit_do_not_block_others() -> None:
    scheduling = _in_turns(GangScheduling, size=4, room=3)
    settle(scheduling)
    assert placed(scheduling) == []
    assert waiting(scheduling) == []


def test_gang_does_not_yield_to_pod_that_does_not_fit() -> None:
    """The earlier gang's last pod does not fit, even without the later gang."""
    scheduling = Scheduling(*INTERLEAVED)
    nodes(scheduling, 3)
    scheduling.see(a_gang("old", 2, created_s=1), a_gang("new", 2, created_s=2))
    for pod in (member("new", "new0"), member("old", "old0"), member("old", "huge", "4")):
        scheduling.see(pod)
        scheduling.pass_time(0.001)
    scheduling.see(member("new", "new1"))
    scheduling.decide()
    assert placed(scheduling) == ["new0", "new1"]
    assert not any(
        isinstance(record, r.PermitRejected) and record.key.startswith("default/new")
        for record in scheduling.records
    )


@pytest.mark.parametrize("younger_priority", [0, 1])
def test_gang_does_not_yield_to_lower_priority(younger_priority: int) -> None:
    """The later gang reserves two nodes while pods are evicted from a third."""
    scheduling = Scheduling(*GANGS[:3], DefaultPreemption, GangScheduling)
    nodes(scheduling, 3)
    scheduling.see(a_pod("low", {"cpu": "1"}, on="n0", priority=-1))
    scheduling.see(a_gang("old", 2, created_s=1), a_gang("new", 3, created_s=2))
    scheduling.see(*gang_pods("new", 3, priority=younger_priority))
    scheduling.decide()
    assert len(waiting(scheduling)) == 2
    scheduling.see(*gang_pods("old", 2, priority=0))
    scheduling.decide()
    if younger_priority:
        assert len(waiting(scheduling)) == 2
        assert placed(scheduling) == ["low"]
    else:
        assert waiting(scheduling) == []
        assert placed(scheduling) == ["low", "old0", "old1"]


def test_gang_sort_keeps_members_together() -> None:
    """GangSort keeps members together, even if the pods of gangs alternate."""
    scheduling = Scheduling(*GANGS)
    nodes(scheduling, 8)
    scheduling.see(a_gang("b", 3, created_s=1), a_gang("a", 3, created_s=2))
    scheduling.see(a_gang("c", 1, created_s=2))
    for a, b in zip(gang_pods("a", 3), gang_pods("b", 3), strict=True):
        scheduling.see(a, b)
    scheduling.see(member("c", "c0", priority=5), a_pod("late", {"cpu": "1"}))
    scheduling.pass_time(10)
    assigned = [key for kind, key in kinds(scheduling.decide()) if kind == "Assigned"]
    assert [key[0] for key in assigned] == ["c", "l", "b", "b", "b", "a", "a", "a"]
