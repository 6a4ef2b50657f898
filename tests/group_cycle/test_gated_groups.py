"""The condition of PodGroups with all members gated by PreEnqueue."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asched.cycle.gated_groups import DELAY_NS, GatedGroups
from asched.framework.events import (
    ActionType,
    ClusterEvent,
    ClusterEventWithHint,
    EventResource,
)
from asched.framework.interface import EnqueueExtensions, Plugin, PreEnqueuePlugin
from asched.framework.pod_info import PodInfo
from asched.framework.status import SUCCESS, Status
from asched.model.groups import PodGroup, PodGroupCondition
from asched.model.pod import Pod, PodResourceClaim, SchedulingGate
from asched.model.quantity import NS_PER_S
from asched.plugins.dynamic_resources.plugin import DynamicResources
from asched.plugins.gang_scheduling import TOO_FEW
from asched.state import records as r
from asched.state.session_records import PodGroupStatusDecided, PodGroupStatusWriteFailed
from tests.cycle.scheduling import Scheduling
from tests.docs.shown_messages import is_shown
from tests.group_cycle.groups import PLUGINS, GroupScheduling, a_group
from tests.plugins.gangs import GANGS, bind, check_replay, gang_pods, member
from tests.state.objects import a_node, bound

DELAY_S = DELAY_NS // NS_PER_S
_replace = msgspec.structs.replace


class NeedsNode(PreEnqueuePlugin, EnqueueExtensions):
    """Gates pods until a node has the name of the pod."""

    name: ClassVar[str] = "NeedsNode"
    api_version: ClassVar[int] = 1

    def pre_enqueue(self, pod: PodInfo) -> Status:
        if self.handle.cluster.nodes.row_of(pod.name) is not None:
            return SUCCESS
        return Status.unresolvable(f"no node {pod.name}")

    def events_to_register(self) -> Sequence[ClusterEventWithHint]:
        return (ClusterEventWithHint(ClusterEvent(EventResource.NODE, ActionType.ADD)),)


WITH_GATE: tuple[type[Plugin], ...] = (*PLUGINS, NeedsNode)
BY_POD: tuple[type[Plugin], ...] = (*GANGS, NeedsNode)


def gated(pod: Pod, *names: str) -> Pod:
    gates = tuple(SchedulingGate(name=name) for name in names)
    return _replace(pod, spec=_replace(pod.spec, scheduling_gates=gates))


def written(s: Scheduling) -> list[tuple[str, str, str]]:
    """The conditions that are decided now: (status, reason, message). The writes succeed."""
    found: list[tuple[str, str, str]] = []
    for decision in s.decide():
        if isinstance(decision, PodGroupStatusDecided):
            condition = decision.conditions[-1]
            found.append((condition.status, condition.reason, condition.message))
            group = s.state.objects(PodGroup)[decision.group]
            shown = tuple(
                PodGroupCondition(type=c.type, status=c.status, reason=c.reason, message=c.message)
                for c in decision.conditions
            )
            s.see(_replace(group, status=_replace(group.status, conditions=shown)))
    return found


def one(message: str) -> list[tuple[str, str, str]]:
    return [("False", "SchedulingGated", f"all pods are gated by {message}")]


@pytest.mark.parametrize("plugins", [WITH_GATE, BY_POD])
def test_condition_names_what_the_pods_wait_for(plugins: tuple[type[Plugin], ...]) -> None:
    s = GroupScheduling(plugins=plugins) if plugins is WITH_GATE else Scheduling(*plugins)
    s.see(a_node("n", {"cpu": "4", "memory": "8Gi", "pods": "110"}), a_group("a", 2))
    s.see(*gang_pods("a", 2))
    assert written(s) == []
    s.pass_time(DELAY_S)
    assert written(s) == one("NeedsNode, for example default/a1: no node a1")
    s.pass_time(100)
    assert written(s) == []
    s.see(a_node("a1"), a_node("a0"))
    assert written(s) == [("True", "Scheduled", "")]
    check_replay(s, *plugins, checkpoint_at=1)


def test_pods_without_claims_are_named() -> None:
    s = GroupScheduling(plugins=(*PLUGINS, DynamicResources))
    claim = PodResourceClaim(name="gpu", resource_claim_template_name="gpu")
    pod = member("a", "worker-7")
    s.see(a_group("a", 1), _replace(pod, spec=_replace(pod.spec, resource_claims=(claim,))))
    s.pass_time(DELAY_S)
    ((_, _, message),) = written(s)
    assert is_shown("how-to/gang.md", message), message


def test_gates_of_different_plugins_are_named() -> None:
    s = GroupScheduling(plugins=WITH_GATE)
    s.see(a_group("a", 2), gated(member("a", "a0"), "quota", "team"), member("a", "a1"))
    s.pass_time(DELAY_S)
    assert written(s) == one("NeedsNode and SchedulingGates, for example default/a1: no node a1")
    s.see(a_node("a1"))
    # The second pod is tried, and the group is not gated any longer.
    assert [reason for _, reason, _ in written(s)] == ["Unschedulable"]
    check_replay(s, *WITH_GATE)


def test_group_with_too_few_members_is_named_once_while_they_arrive() -> None:
    s = GroupScheduling()
    s.see(a_node("n"), a_group("a", 4))
    for pod in gang_pods("a", 3):
        s.see(pod)
        s.pass_time(DELAY_S - 1)
        assert written(s) == []
    s.pass_time(1)
    assert written(s) == one(f"GangScheduling, for example default/a2: {TOO_FEW}")
    s.see(a_group("a", 5), gang_pods("a", 4)[3])
    s.pass_time(DELAY_S)
    assert written(s) == []
    check_replay(s, *PLUGINS)


def test_no_condition_while_a_member_is_not_gated() -> None:
    s = GroupScheduling(plugins=WITH_GATE)
    s.see(a_node("n"), a_group("a", 1))
    s.see(bound(member("a", "runs"), "n"), member("a", "a1"))
    s.pass_time(DELAY_S)
    assert written(s) == []
    running = s.state.pods["default/runs"].info
    s.apply(r.ObjectDeleted("Pod", running.key, running.uid))
    assert written(s) == one("NeedsNode, for example default/a1: no node a1")
    check_replay(s, *WITH_GATE)


def test_condition_that_is_true_stays() -> None:
    s = GroupScheduling(plugins=WITH_GATE)
    s.see(a_group("a", 1), a_node("a0"), member("a", "a0"))
    assert written(s) == [("True", "Scheduled", "")]
    bind(s)
    info = s.state.pods["default/a0"].info
    s.apply(r.ObjectDeleted("Pod", info.key, info.uid))
    s.see(member("a", "a1"))
    s.pass_time(DELAY_S)
    assert written(s) == []


def test_failed_write_is_not_repeated_until_the_group_changes() -> None:
    s = GroupScheduling(plugins=WITH_GATE)
    s.see(a_group("a", 1), member("a", "a1"))
    s.pass_time(DELAY_S)
    (decided,) = s.next()
    assert isinstance(decided, PodGroupStatusDecided)
    s.apply(PodGroupStatusWriteFailed("PodGroup", decided.group, decided.uid, "forbidden"))
    s.pass_time(100)
    assert s.next() == ()
    # Another client replaces the condition.
    group = a_group("a", 1)
    other = PodGroupCondition(
        type="PodGroupScheduled", status="False", reason="Other", message="why"
    )
    s.see(_replace(group, status=_replace(group.status, conditions=(other,))))
    assert written(s) == one("NeedsNode, for example default/a1: no node a1")


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["pod", "gated pod", "group", "node", "delete", "time", "ungate"]),
        st.integers(0, 2),
        st.integers(0, 2),
    ),
    max_size=30,
)


@given(STEPS)
def test_conditions_follow_from_the_state_alone(steps: list[tuple[str, int, int]]) -> None:
    """What the logs of changes select is what a look at all groups finds, so a replay may begin
    anywhere."""
    s = GroupScheduling(plugins=WITH_GATE)
    for what, number, size in steps:
        pod = member(f"g{number}", f"p{number}{size}")
        key = f"default/{pod.metadata.name}"
        match what:
            case "pod" | "ungate":
                s.see(pod)
            case "gated pod":
                if key not in s.state.pods:
                    s.see(gated(pod, "gate"))
            case "group":
                s.see(a_group(f"g{number}", size + 1))
            case "node":
                s.see(a_node(pod.metadata.name))
            case "delete" if key in s.state.pods:
                s.apply(r.ObjectDeleted("Pod", key, s.state.pods[key].info.uid))
            case _:
                s.pass_time(size * DELAY_S / 2)
        while True:
            expected = GatedGroups(s.state).decide() if s.state.queue.head() is None else None
            decisions = s.next()
            assert expected is None or decisions == expected
            if not decisions:
                break
    check_replay(s, *WITH_GATE, checkpoint_at=len(steps) // 2)
