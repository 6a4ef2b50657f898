"""Situations of groups in one rack: what makes nodes unusable, what counts as used, and members
that Permit delays or rejects."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import ClassVar, NamedTuple

import msgspec
import pytest

from asched.framework.cycle_state import CycleState
from asched.framework.interface import PermitPlugin, PermitResult, Plugin
from asched.framework.pod_info import PodInfo
from asched.framework.status import Code, Status
from asched.model.groups import PodGroup
from asched.model.meta import ObjectMeta
from asched.model.node import NO_SCHEDULE, Node, Taint
from asched.model.pod import ContainerPort, Pod, Toleration
from asched.model.selectors import LabelSelector
from asched.model.workloads import PodDisruptionBudget, PodDisruptionBudgetSpec
from asched.plugins.node_affinity import NodeAffinityPlugin
from asched.plugins.node_filters import NodePorts, NodeUnschedulable
from asched.plugins.taint_toleration import TaintToleration
from asched.state import records as r
from asched.state.group_records import GroupOutcome
from tests.group_cycle.groups import (
    PLUGINS,
    RACK,
    GroupScheduling,
    a_group,
    messages,
    outcomes,
    victims,
)
from tests.plugins.gangs import bind, check_replay, gang_pods, member, settle
from tests.state.objects import a_node, a_pod, bound, deleted, in_phase

FILTERS: tuple[type[Plugin], ...] = (
    NodeUnschedulable,
    TaintToleration,
    NodeAffinityPlugin,
    NodePorts,
    *PLUGINS,
)
_replace = msgspec.structs.replace
TAINT = Taint(key="reserved", effect=NO_SCHEDULE)


def node(number: int, rack: str, cpu: int = 2, *, pods: int = 110, **rest: object) -> Node:
    offered = {"cpu": str(cpu), "memory": "64Gi", "pods": str(pods)}
    labels = {RACK: rack, "disk": str(rest.pop("disk", "ssd"))} if rack else {}
    return a_node(f"n{number}", offered, labels=labels, **rest)  # type: ignore[arg-type]


def other(name: str, on: str, cpu: int = 1) -> Pod:
    """A pod of no group."""
    return bound(a_pod(name, {"cpu": str(cpu)}), on)


def workers(count: int, cpu: str = "1", **pod: object) -> tuple[Pod, ...]:
    return tuple(gang_pods("a", count, cpu, **pod))


def on_ssd(pods: tuple[Pod, ...]) -> tuple[Pod, ...]:
    selector = {"disk": "ssd"}
    return tuple(_replace(pod, spec=_replace(pod.spec, node_selector=selector)) for pod in pods)


class Case(NamedTuple):
    """The group ``a`` needs one rack for its members."""

    nodes: tuple[Node, ...]
    pending: tuple[Pod, ...]
    rack: str
    """Where all pending members are placed; empty if none is."""
    others: tuple[Pod, ...] = ()
    minimum: int = 0
    """0 for all pending members."""
    message: str = ""
    """Part of the message of some member."""


TWO_RACKS = (node(0, "r0"), node(1, "r0"), node(2, "r1"), node(3, "r1"))
CASES: Mapping[str, Case] = {
    "cordoned node in the rack": Case(
        (node(0, "r0"), node(1, "r0", unschedulable=True), node(2, "r1"), node(3, "r1")),
        workers(4),
        "r1",
    ),
    "tainted node in the rack": Case(
        (node(0, "r0"), node(1, "r0", taints=(TAINT,)), node(2, "r1"), node(3, "r1")),
        workers(4),
        "r1",
    ),
    "tolerated taint": Case(
        (node(0, "r0", taints=(TAINT,)), node(1, "r1", 1)),
        workers(2, tolerations=(Toleration(key="reserved", operator="Exists"),)),
        "r0",
    ),
    "node selector leaves one rack": Case(
        (node(0, "r0", 8, disk="hdd"), node(1, "r1")),
        on_ssd(workers(2)),
        "r1",
    ),
    "node selector leaves no rack": Case(
        (node(0, "r0", disk="hdd"),),
        on_ssd(workers(2)),
        "",
        message="didn't match Pod's node affinity/selector",
    ),
    "number of pods of a node": Case(
        (node(0, "r0", 8, pods=2), node(1, "r1", 3)), workers(3), "r1"
    ),
    "host port once for each node": Case(
        (node(0, "r0", 8), node(1, "r1"), node(2, "r1")),
        workers(2, ports=(ContainerPort(host_port=80),)),
        "r1",
    ),
    "pods of no group": Case(TWO_RACKS, workers(4), "r1", others=(other("x", "n0"),)),
    "terminating pods still use their node": Case(
        TWO_RACKS,
        workers(4),
        "r1",
        others=(deleted(other("x", "n0"), datetime(2026, 1, 1, tzinfo=UTC)),),
    ),
    "finished pods do not": Case(
        (node(0, "r0"), node(1, "r0")),
        workers(4),
        "r0",
        others=(in_phase(other("x", "n0"), "Succeeded"), in_phase(other("y", "n1"), "Failed")),
    ),
    "enough in the cluster, but in no rack": Case(
        (node(0, "r0", 3), node(1, "r1", 3)), workers(4), "", message="Insufficient cpu"
    ),
    "enough in a rack, but members are too large for its nodes": Case(
        (*(node(n, "r0", 1) for n in range(4)), node(4, "r1", 3)),
        workers(2, "2"),
        "",
        message="Insufficient cpu",
    ),
    "members of different sizes": Case(
        (node(0, "r0", 3), node(1, "r0", 1), node(2, "r1", 4), node(3, "r1", 1)),
        (member("a", "large", "3", priority=1), *workers(2)),
        "r1",
    ),
    "nodes without the label": Case(
        (node(0, "", 8), node(1, "r0", 1), node(2, "r1", 2)), workers(2), "r1"
    ),
    "running member fixes the rack, although another has more room": Case(
        (node(0, "r0", 3), node(1, "r1", 8)),
        workers(2),
        "r0",
        others=(bound(member("a", "runs"), "n0"),),
        minimum=3,
    ),
    "running member in a full rack": Case(
        (node(0, "r0", 1), node(1, "r1", 8)),
        workers(2),
        "",
        others=(bound(member("a", "runs"), "n0"),),
        minimum=3,
        message="Insufficient cpu",
    ),
    "terminating member does not fix the rack": Case(
        (node(0, "r0", 1), node(1, "r1", 8)),
        workers(2),
        "r1",
        others=(deleted(bound(member("a", "runs"), "n0"), datetime(2026, 1, 1, tzinfo=UTC)),),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_group_runs_in_the_rack_that_has_room(name: str) -> None:
    case = CASES[name]
    s = GroupScheduling(plugins=FILTERS)
    group = a_group("a", case.minimum or len(case.pending), rack=True)
    s.see(*case.nodes, group, *case.others, *case.pending)
    decisions = s.next()
    nodes = {s.state.pods[f"default/{pod.metadata.name}"].node for pod in case.pending}
    labels = {each.name: each.labels.get(RACK, "") for each in case.nodes}
    assert {labels.get(found, "") for found in nodes} == {case.rack}
    expected = GroupOutcome.SCHEDULED if case.rack else GroupOutcome.UNSCHEDULABLE
    assert outcomes(decisions) == [expected]
    found = messages(decisions).values()
    assert not case.message or any(case.message in each for each in found)
    check_replay(s, *FILTERS)


class Reviewer(PermitPlugin):
    """Rejects, delays or fails for members by the end of their name."""

    name: ClassVar[str] = "Reviewer"
    api_version: ClassVar[int] = 1

    def permit(self, state: CycleState, pod: PodInfo, node_name: str) -> PermitResult:
        if pod.name.endswith("rejected"):
            return PermitResult(Status.unschedulable("not this one"))
        if pod.name.endswith("waits"):
            return PermitResult(Status(Code.WAIT, ("not yet",)), timeout_s=60)
        if pod.name.endswith("fails"):
            raise RuntimeError("no answer")
        return PermitResult()


PERMITS = {
    "a like one is rejected before": (("a-rejected", "one"), 1, GroupOutcome.SCHEDULED, 1),
    "all allowed": (("one", "two"), 2, GroupOutcome.SCHEDULED, 2),
    "one waits": (("one", "waits"), 2, GroupOutcome.SCHEDULED, 2),
    "all wait": (("first-waits", "waits"), 2, GroupOutcome.SCHEDULED, 2),
    "one beyond the minimum is rejected": (("one", "rejected"), 1, GroupOutcome.SCHEDULED, 1),
    "one of the minimum is rejected": (("one", "rejected"), 2, GroupOutcome.UNSCHEDULABLE, 0),
    "one fails": (("fails", "one"), 1, GroupOutcome.ERROR, 0),
    "one fails after another was rejected": (("a-rejected", "fails"), 1, GroupOutcome.ERROR, 0),
}


@pytest.mark.parametrize("name", PERMITS)
def test_permit_of_members(name: str) -> None:
    """A member that waits has its node, and counts. kube-scheduler counts it too, unless all
    members wait; then it rejects the group."""
    names, minimum, outcome, placed = PERMITS[name]
    s = GroupScheduling(plugins=(*PLUGINS, Reviewer))
    s.see(node(0, "r0"), a_group("a", minimum), *(member("a", each) for each in names))
    assert outcomes(s.next()) == [outcome]
    assert sum(bool(entry.node) for entry in s.state.pods.values()) == placed
    check_replay(s, *PLUGINS, Reviewer)


def many(size: int, minimum: int) -> GroupScheduling:
    """The state is not checked after each pod, as elsewhere."""
    s = GroupScheduling()
    s.see(*(node(number, "r0", 16) for number in range(4)), a_group("a", minimum))
    for pod in gang_pods("a", size, "10m"):
        s.fold.apply(r.ObjectObserved(pod))
    return s


def test_group_of_ten_thousand_pods_is_tried_in_part() -> None:
    decisions = many(10_000, 440).decider.next()
    assert outcomes(decisions) == [GroupOutcome.SCHEDULED]
    assert sum(isinstance(decision, r.Assigned) for decision in decisions) == 440
    # The others that were tried. The rest is still active.
    assert 1_500 < len(messages(decisions)) < 1_600


def test_group_that_needs_ten_thousand_pods_is_too_expensive() -> None:
    decisions = many(10_001, 10_000).decider.next()
    assert outcomes(decisions) == [GroupOutcome.UNSCHEDULABLE]
    assert {*messages(decisions).values()} == {
        "too expensive: 10000 members at once take too long to try in this cluster"
    }
    assert len(messages(decisions)) == 10_001


def test_members_of_a_large_group_beyond_the_room_are_left_behind() -> None:
    decisions = many(5_000, 440).decider.next()
    assert outcomes(decisions) == [GroupOutcome.SCHEDULED]
    assert sum(isinstance(decision, r.Assigned) for decision in decisions) == 440
    assert len(messages(decisions)) == 5_000 - 440


def test_label_that_changes_under_running_members_is_named_until_they_agree_again() -> None:
    s = GroupScheduling()
    s.see(node(0, "r0"), node(1, "r0"), a_group("a", 1, rack=True))
    first, second, third, fourth = workers(4)
    s.see(bound(first, "n0"), bound(second, "n1"))
    s.see(node(1, "r1"), third)
    assert "more than 1 domain found for pod group: r0, r1" in messages(s.next())["a2"]
    s.see(node(1, ""))
    s.see(fourth)
    assert "no topology domain found for pod default/a1" in messages(s.next())["a3"]
    s.see(node(1, "r0"))
    settle(s, 3)
    assert {entry.node for entry in s.state.pods.values()} == {"n0", "n1"}


MINIMUMS = {
    "below what runs": (1, 3),
    "equal to what runs": (2, 3),
    "equal to all members": (3, 3),
    "above all members": (4, 2),
}


@pytest.mark.parametrize("name", MINIMUMS)
def test_minimum_changes_while_members_run(name: str) -> None:
    """Running members stay, and the condition stays True. Others wait for the new minimum."""
    minimum, running = MINIMUMS[name]
    s = GroupScheduling()
    s.see(node(0, "r0", 8), a_group("a", 2), *workers(2))
    s.next()
    bind(s)
    s.see(a_group("a", minimum), workers(3)[2])
    settle(s, 2)
    assert sum(bool(entry.node) for entry in s.state.pods.values()) == running
    assert not s.state.evictions
    s.see(a_group("a", minimum), *workers(4)[3:])
    settle(s, 2)
    assert sum(bool(entry.node) for entry in s.state.pods.values()) == 4


class VictimCase(NamedTuple):
    """One node, and a group of priority 50 that preempts as one for a pod with one core."""

    cpu: int
    running: tuple[Pod, ...]
    victims: tuple[str, ...]
    groups: tuple[PodGroup, ...] = ()
    protected: bool = False
    """A PodDisruptionBudget allows no eviction of pods with the label ``app: protected``."""
    policies: tuple[str, str] = ("", "")
    """``preemptionPolicy`` of the group and of its pod."""
    priorities: tuple[int, int] = (50, 50)
    """Of the group and of its pod."""
    asks: str = "1"
    """Cores of the pod."""


def runs(name: str, priority: int = 0, since: int = 0, *, protected: bool = False) -> Pod:
    """A pod on the node. One with a name like ``g-0`` is in the group ``g``."""
    group, _, rest = name.partition("-")
    made = member(group, name, priority=priority) if rest else a_pod(name, {"cpu": "1"})
    made = _replace(made, spec=_replace(made.spec, priority=priority))
    labels = {"app": "protected"} if protected else {}
    made = _replace(made, metadata=_replace(made.metadata, labels=labels))
    started = datetime(2026, 1, 1 + since, tzinfo=UTC)
    return bound(_replace(made, status=_replace(made.status, start_time=started)), "n0")


WHOLE = (a_group("g", 2, mode="All"),)
SINGLE = (a_group("g", 2),)
EVICTIONS: Mapping[str, VictimCase] = {
    "pod without group before a member": VictimCase(2, (runs("x"), runs("g-0")), ("x",), SINGLE),
    "younger member of one group": VictimCase(
        2, (runs("g-0", since=1), runs("g-1")), ("g-0",), SINGLE
    ),
    "least important": VictimCase(3, (runs("x", 20), runs("y", 10), runs("z", 30)), ("y",)),
    "as few as possible": VictimCase(4, tuple(runs(x) for x in "wxyz"), ("z",)),
    "equal priority": VictimCase(1, (runs("x", 50),), ()),
    "pod before a whole group": VictimCase(3, (runs("x"), runs("g-0"), runs("g-1")), ("x",), WHOLE),
    "less important whole group": VictimCase(
        3, (runs("x", 20), runs("g-0", 10), runs("g-1", 10)), ("g-0", "g-1"), WHOLE
    ),
    "budget before priority": VictimCase(
        2, (runs("x", protected=True), runs("y", 10)), ("y",), protected=True
    ),
    "budget of one member protects the whole group": VictimCase(
        3, (runs("g-0", protected=True), runs("g-1"), runs("x", 20)), ("x",), WHOLE, protected=True
    ),
    "least important if all are protected": VictimCase(
        2, (runs("x", protected=True), runs("y", 10, protected=True)), ("x",), protected=True
    ),
    "more important pod": VictimCase(1, (runs("x", 60),), ()),
    "node that is too small even if it is empty": VictimCase(2, (runs("x"),), (), asks="9"),
    "empty node that is too small": VictimCase(2, (), (), asks="9"),
    "several victims, less important ones first": VictimCase(
        4, (runs("x", 10), runs("y"), runs("g-0", 5), runs("h-0")), ("h-0", "y"), asks="2"
    ),
    "members of one group without the others": VictimCase(
        3, (runs("g-0"), runs("g-1"), runs("g-2")), ("g-1", "g-2"), SINGLE, asks="2"
    ),
    "less important member before a pod without group": VictimCase(
        2, (runs("x", 20), runs("g-0", 10)), ("g-0",), SINGLE
    ),
    "budget of a member in a group before the priority of a pod": VictimCase(
        2, (runs("g-0", protected=True), runs("x", 10)), ("x",), SINGLE, protected=True
    ),
    "smaller one of two whole groups": VictimCase(
        5,
        tuple(runs(name) for name in ("g-0", "g-1", "h-0", "h-1", "h-2")),
        ("g-0", "g-1"),
        (*WHOLE, a_group("h", 3, mode="All")),
    ),
    "younger one of two whole groups": VictimCase(
        4,
        (*(runs(name, since=1) for name in ("g-0", "g-1")), runs("h-0"), runs("h-1")),
        ("g-0", "g-1"),
        (*WHOLE, a_group("h", 2, mode="All")),
    ),
    "whole group with less priority than its pods": VictimCase(
        2, (runs("g-0", 90), runs("g-1", 90)), ("g-0", "g-1"), (a_group("g", 2, mode="All"),)
    ),
    "whole group with more priority than its pods": VictimCase(
        2, (runs("g-0"), runs("g-1")), (), (a_group("g", 2, mode="All", priority=90),)
    ),
    "members with more priority than their group": VictimCase(
        2, (runs("g-0", 90), runs("g-1", 90)), (), SINGLE
    ),
    "group with more priority than its pod": VictimCase(
        1, (runs("x", 10),), ("x",), priorities=(50, 0)
    ),
    "group with less priority than its pod": VictimCase(
        1, (runs("x", 10),), (), priorities=(5, 50)
    ),
    "group never preempts": VictimCase(
        1, (runs("x"),), (), policies=("Never", "PreemptLowerPriority")
    ),
    "pod never preempts": VictimCase(1, (runs("x"),), (), policies=("", "Never")),
    "policy of the group before that of its pod": VictimCase(
        1, (runs("x"),), ("x",), policies=("PreemptLowerPriority", "Never")
    ),
}


@pytest.mark.parametrize("name", EVICTIONS)
def test_victims_of_a_group(name: str) -> None:
    case = EVICTIONS[name]
    s = GroupScheduling(group_preemption=True)
    s.see(node(0, "r0", case.cpu), *case.groups, *case.running)
    if case.protected:
        budget = PodDisruptionBudget(
            metadata=ObjectMeta(name="b", namespace="default", uid="b"),
            spec=PodDisruptionBudgetSpec(selector=LabelSelector(match_labels={"app": "protected"})),
        )
        s.see(budget)
    of_group, of_pod = case.policies
    of_group_itself, of_its_pod = case.priorities
    group = a_group("a", 1, priority=of_group_itself)
    pod = member("a", "a0", case.asks, priority=of_its_pod)
    s.see(
        _replace(group, spec=_replace(group.spec, preemption_policy=of_group)),
        _replace(pod, spec=_replace(pod.spec, preemption_policy=of_pod)),
    )
    assert tuple(victims(s.next())) == case.victims
    check_replay(s, *PLUGINS)


def test_empty_label_value_is_a_domain() -> None:
    s = GroupScheduling()
    s.see(
        node(0, "r0"), a_node("n1", {"cpu": "2", "memory": "64Gi", "pods": "9"}, labels={RACK: ""})
    )
    s.see(a_group("a", 2, rack=True), bound(workers(1)[0], "n1"), workers(2)[1])
    s.next()
    assert {entry.node for entry in s.state.pods.values()} == {"n1"}
