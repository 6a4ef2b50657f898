"""The dominant reason of a group, what its domains lack, and the changes that admit it.

Each change is applied to the recorded cluster, and the scheduler then starts the group.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import msgspec
import pytest
from msgspec.structs import replace

from asched.audit.pod_group.forms import GroupChangeKind as Change
from asched.audit.pod_group.forms import GroupReasonKind as Kind
from asched.model.workloads import PodDisruptionBudget
from asched.state.group_records import GroupOutcome
from asched.state.records import ObjectDeleted
from tests.audit.group_recording import (
    HOST,
    RACK,
    GroupRecording,
    custom_group,
    custom_members,
    group,
    member,
    members,
    outcome_after,
    rack_node,
    racks,
    used,
)
from tests.audit.recording import node
from tests.plugins.dynamic_resources.objects import a_claim, a_class, a_request, a_slice


class Situation(NamedTuple):
    """A cluster with the group default/a, and its explanation."""

    name: str
    build: Callable[[GroupRecording], None]
    kind: Kind
    sentence: str
    changes: Mapping[Change, str] = MappingProxyType({})
    """All of them, by kind; one summary of each."""
    lacks: tuple[str, ...] = ()
    """By row of domains: how many, how many members fit, and what they lack."""
    whole: bool = True
    preempts: bool = False


def short_everywhere(s: GroupRecording) -> None:
    s.see(*racks(3, 3), *racks(0, 0, 2), group("a", 16, rack=True), *members("a", 16))


def short_by_one(s: GroupRecording) -> None:
    s.see(*racks(2, 3), used("x", "r1n0", "1"), group("a", 12, rack=True), *members("a", 12))


def fragmented(s: GroupRecording) -> None:
    s.see(*racks(3, 2), group("a", 4, rack=True), *members("a", 4, "3"))


def no_topology(s: GroupRecording) -> None:
    s.see(*racks(2), group("a", 3), *members("a", 3, "3"))


def tainted(s: GroupRecording) -> None:
    s.see(*racks(1, 3, taint="gpu"), rack_node("free", "r1"))
    s.see(group("a", 3, rack=True), *members("a", 3, "3"))


def cordoned(s: GroupRecording) -> None:
    closed = [replace(one, spec=replace(one.spec, unschedulable=True)) for one in racks(3)]
    s.see(*closed, rack_node("open", "r0"), group("a", 2), *members("a", 2, "3"))


def selected(s: GroupRecording) -> None:
    s.see(*racks(3), group("a", 2), *members("a", 2, nodeSelector={"pool": "gold"}))


def _apart(topology: str = HOST) -> dict[str, Any]:
    term = {"labelSelector": {"matchLabels": {"group": "a"}}, "topologyKey": topology}
    return {
        "affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
    }


def apart(s: GroupRecording) -> None:
    s.see(*racks(2), group("a", 3), *members("a", 3, **_apart()))


def spread(s: GroupRecording) -> None:
    rule = {
        "maxSkew": 1,
        "topologyKey": RACK,
        "whenUnsatisfiable": "DoNotSchedule",
        "labelSelector": {"matchLabels": {"group": "a"}},
    }
    s.see(*racks(1, 3, cpu="1"), group("a", 4))
    s.see(*members("a", 4, topologySpreadConstraints=[rule]))


def ports(s: GroupRecording) -> None:
    container = {"name": "c", "image": "app", "ports": [{"containerPort": 80, "hostPort": 80}]}
    s.see(*racks(2), group("a", 3))
    s.see(*members("a", 3, containers=[container]))


def missing_members(s: GroupRecording) -> None:
    s.see(*racks(3), group("a", 8), *members("a", 5))


def minimum_above_room_and_members(s: GroupRecording) -> None:
    s.see(*racks(1), group("a", 10_000), *members("a", 2))


def custom(s: GroupRecording) -> None:
    s.see(*racks(3), custom_group("a", 3), *custom_members("a", 2))


def gated(s: GroupRecording) -> None:
    s.see(*racks(3), group("a", 4), *members("a", 2))
    s.see(member("a", "g0", schedulingGates=[{"name": "quota"}]))
    s.see(member("a", "g1", schedulingGates=[{"name": "quota"}]))


def priority_too_low(s: GroupRecording) -> None:
    s.see(*racks(2), group("a", 2), *members("a", 2, "3"))
    s.see(*(used(f"x{n}", f"r0n{n}", "3", priority=100) for n in range(2)))


def lower_priority(s: GroupRecording) -> None:
    s.see(*racks(2), group("a", 2, priority=10), *members("a", 2, "3", priority=10))
    s.see(*(used(f"x{n}", f"r0n{n}", "3", priority=1) for n in range(2)))


def budget(s: GroupRecording) -> None:
    s.see(*racks(2), group("a", 2), group("b", 2), *members("a", 2, "3"))
    s.see(*(used(f"b{n}", f"r0n{n}", "3", of="b") for n in range(2)))
    raw = {
        "kind": "PodDisruptionBudget",
        "metadata": {"name": "b", "namespace": "default", "uid": "b"},
        "spec": {"selector": {"matchLabels": {"group": "b"}}},
        "status": {"disruptionsAllowed": 0},
    }
    s.see(msgspec.convert(raw, PodDisruptionBudget))


def no_label(s: GroupRecording) -> None:
    s.see(node("n0"), node("n1"), node("n2"), group("a", 2, rack=True), *members("a", 2, "3"))


def no_nodes(s: GroupRecording) -> None:
    s.see(group("a", 2, rack=True), *members("a", 2))


def running_domain_is_full(s: GroupRecording) -> None:
    s.see(*racks(1, 3), used("a9", "r0n0", "2", of="a"))
    s.see(group("a", 3, rack=True), *members("a", 2, "2"))


def running_in_two_domains(s: GroupRecording) -> None:
    s.see(*racks(2, 2), used("a8", "r0n0", "2", of="a"), used("a9", "r1n0", "2", of="a"))
    s.see(group("a", 3, rack=True), *members("a", 2, "2"))


def two_schedulers(s: GroupRecording) -> None:
    s.see(*racks(2), group("a", 2), member("a", "a0"))
    s.see(member("a", "a1", schedulerName="other"))


def another_scheduler(s: GroupRecording) -> None:
    s.see(*racks(2), group("a", 2), *members("a", 2, schedulerName="other"))


def no_pods(s: GroupRecording) -> None:
    s.see(*racks(2), group("a", 2))


def no_group(s: GroupRecording) -> None:
    s.see(*racks(2), *members("a", 2))


def too_expensive(s: GroupRecording) -> None:
    s.see(*racks(2), group("a", 2))
    key = {"key": "k", "operator": "In", "values": ["v"]}
    terms = [{"matchExpressions": [key] * 50} for _ in range(3000)]
    rule = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
    s.see(*members("a", 2, affinity={"nodeAffinity": rule}))


def surplus(s: GroupRecording) -> None:
    s.see(*racks(1), group("a", 1), *members("a", 2, "3"))


def fits_again(s: GroupRecording) -> None:
    s.see(*racks(1), used("x", "r0n0", "3"), group("a", 2, rack=True), *members("a", 2, "2"))
    s.decide()
    s.add(ObjectDeleted("Pod", "default/x", "uid-x"))


def runs(s: GroupRecording) -> None:
    s.see(*racks(1), group("a", 2, rack=True), *members("a", 2, "2"))


def evicting(s: GroupRecording) -> None:
    lower_priority(s)
    s.decide_once()


def devices(s: GroupRecording) -> None:
    s.see(*racks(2, 1), a_class(), group("a", 3, rack=True))
    s.see(*(a_slice(name, "gpu-0", "gpu-1", "gpu-2") for name in ("r0n0", "r0n1", "r1n0")))
    for number in range(3):
        claim = a_claim(f"c{number}", a_request(count=2))
        s.see(replace(claim, metadata=replace(claim.metadata, namespace="default")))
        entry = {"name": "gpus", "resourceClaimName": f"c{number}"}
        s.see(member("a", f"a{number}", resourceClaims=[entry]))


ONE_LEFT = "needs 2 devices (class gpu); no node has more than 1 left"
NO_LOWER = ", and no pod has a lower priority than 0"

SITUATIONS = (
    Situation(
        "resources short in every domain",
        short_everywhere,
        Kind.RESOURCES,
        "needs 16 cpu in one rack; the largest free domain has 12 (r0)",
        {
            Change.LOWER_MINIMUM: "lower minCount from 16 to 12",
            Change.ADD_NODES: "add 1 node like r0n1 to r0",
        },
        ("2 12 4 cpu short", "1 8 8 cpu short"),
    ),
    Situation(
        "one domain short by one pod",
        short_by_one,
        Kind.RESOURCES,
        "needs 12 cpu in one rack; the largest free domain has 11 (r1)",
        {
            Change.LOWER_MINIMUM: "lower minCount from 12 to 11",
            Change.ADD_NODES: "add 1 node like r1n2 to r1",
            Change.EVICT_PODS: "evict pod default/x",
        },
        ("1 11 1 cpu short", "1 8 4 cpu short"),
    ),
    Situation(
        "enough in total, but not on one node",
        fragmented,
        Kind.RESOURCES,
        "needs room for 4 pods with 3 cpu each in one rack; the best rack (r0) has room for 3:"
        " 12 cpu are free, but spread over several nodes",
        {
            Change.LOWER_MINIMUM: "lower minCount from 4 to 3",
            Change.ADD_NODES: "add 1 node like r0n0 to r0",
        },
        ("1 3 no node has room for 1 more pod", "1 2 4 cpu short"),
    ),
    Situation(
        "resources short without topology",
        no_topology,
        Kind.RESOURCES,
        "needs 9 cpu; nodes that accept its pods have 8 free",
        {
            Change.LOWER_MINIMUM: "lower minCount from 3 to 2",
            Change.ADD_NODES: "add 1 node like r0n1",
        },
        ("1 2 1 cpu short",),
    ),
    Situation(
        "resources short, pod by pod",
        no_topology,
        Kind.RESOURCES,
        "needs 9 cpu; nodes that accept its pods have 8 free",
        {
            Change.LOWER_MINIMUM: "lower minCount from 3 to 2",
            Change.ADD_NODES: "add 1 node like r0n1",
        },
        ("1 2 1 cpu short",),
        whole=False,
    ),
    Situation(
        "taints",
        tainted,
        Kind.TAINTS,
        "needs nodes for 3 pods in one rack; at most 1 fits (r1): 3 of 4 nodes had untolerated"
        " taint(s)",
        {
            Change.REMOVE_TAINT: "remove the taint gpu:NoSchedule from 2 nodes of r1: r1n0, r1n1",
            Change.LOWER_MINIMUM: "lower minCount from 3 to 1",
            Change.ADD_NODES: "add 2 nodes like free to r1",
        },
        ("1 1 3 of 4 nodes had untolerated taint(s)", "1 0 1 of 1 nodes had untolerated taint(s)"),
    ),
    Situation(
        "cordoned nodes",
        cordoned,
        Kind.CORDONED,
        "needs nodes for 2 pods; at most 1 fits: 3 of 4 nodes were unschedulable",
        {
            Change.UNCORDON: "uncordon node r0n0",
            Change.LOWER_MINIMUM: "lower minCount from 2 to 1",
            Change.ADD_NODES: "add 1 node like open",
        },
        ("1 1 3 of 4 nodes were unschedulable",),
    ),
    Situation(
        "node affinity",
        selected,
        Kind.NODE_AFFINITY,
        "needs nodes for 2 pods; none fits: 3 of 3 nodes didn't match Pod's node affinity/selector",
        {Change.LABEL_NODES: "set the label pool=gold of node r0n0"},
        ("1 0 3 of 3 nodes didn't match Pod's node affinity/selector",),
    ),
    Situation(
        "anti-affinity between members",
        apart,
        Kind.POD_AFFINITY,
        "needs nodes for 3 pods; at most 2 fit: 2 of 2 nodes didn't match pod anti-affinity rules",
        {
            Change.LOWER_MINIMUM: "lower minCount from 3 to 2",
            Change.ADD_NODES: "add 1 node like r0n1",
            Change.POD_CONSTRAINT: "without the required pod anti-affinity of its pods",
        },
        ("1 2 2 of 2 nodes didn't match pod anti-affinity rules",),
    ),
    Situation(
        "topology spread",
        spread,
        Kind.SPREAD,
        "needs nodes for 4 pods; at most 3 fit: 1 of 4 nodes didn't match pod topology spread"
        " constraints",
        {
            Change.LOWER_MINIMUM: "lower minCount from 4 to 3",
            Change.POD_CONSTRAINT: f"without the spread constraint over {RACK} of its pods",
        },
        ("1 3 1 of 4 nodes didn't match pod topology spread constraints",),
    ),
    Situation(
        "host ports",
        ports,
        Kind.PORTS,
        "needs nodes for 3 pods; at most 2 fit: 2 of 2 nodes didn't have free ports for the"
        " requested pod ports",
        {
            Change.LOWER_MINIMUM: "lower minCount from 3 to 2",
            Change.ADD_NODES: "add 1 node like r0n1",
        },
        ("1 2 2 of 2 nodes didn't have free ports for the requested pod ports",),
    ),
    Situation(
        "devices short",
        devices,
        Kind.DEVICES,
        "needs nodes for 3 pods in one rack; at most 2 fit (r0): request r of claim default/c2"
        " needs 2 devices (class gpu); no node has more than 1 left",
        {
            Change.LOWER_MINIMUM: "lower minCount from 3 to 2",
            Change.ADD_NODES: "add 1 node like r0n0 to r0",
        },
        (
            f"1 2 request r of claim default/c2 {ONE_LEFT}",
            f"1 1 request r of claim default/c1 {ONE_LEFT}",
        ),
    ),
    Situation(
        "members missing",
        missing_members,
        Kind.MISSING_MEMBERS,
        "needs 8 pods; only 5 exist",
        {
            Change.LOWER_MINIMUM: "lower minCount from 8 to 5",
            Change.ADD_PODS: "create 3 more pods like default/a0",
        },
    ),
    Situation(
        "minimum far above the members",
        minimum_above_room_and_members,
        Kind.MISSING_MEMBERS,
        "needs 10000 pods; only 2 exist",
        {Change.LOWER_MINIMUM: "lower minCount from 10000 to 2"},
    ),
    Situation(
        "members missing in a group of kube-batch",
        custom,
        Kind.MISSING_MEMBERS,
        "needs 3 pods; only 2 exist",
        {
            Change.LOWER_MINIMUM: "lower minMember from 3 to 2",
            Change.ADD_PODS: "create 1 more pod like default/a0",
        },
    ),
    Situation(
        "members gated",
        gated,
        Kind.GATED,
        "needs 4 pods; 2 have the scheduling gate quota, 2 have none",
        {
            Change.LOWER_MINIMUM: "lower minCount from 4 to 2",
            Change.UNGATE: "remove the scheduling gate quota from 2 pods",
        },
        ("1 2 all pending pods fit",),
    ),
    Situation(
        "members gated, pod by pod",
        gated,
        Kind.GATED,
        "needs 4 pods; 2 have the scheduling gate quota, 2 have none",
        {
            Change.LOWER_MINIMUM: "lower minCount from 4 to 2",
            Change.UNGATE: "remove the scheduling gate quota from 2 pods",
        },
        whole=False,
    ),
    Situation(
        "priority too low for preemption",
        priority_too_low,
        Kind.RESOURCES,
        f"needs 6 cpu; nodes that accept its pods have 2 free{NO_LOWER}",
        {
            Change.ADD_NODES: "add 2 nodes like r0n0",
            Change.RAISE_PRIORITY: "raise the priority from 0 to 101, so that it preempts",
            Change.EVICT_PODS: "evict 2 pods default/x0, default/x1",
        },
        ("1 0 4 cpu short",),
        preempts=True,
    ),
    Situation(
        "another group that a budget protects",
        budget,
        Kind.RESOURCES,
        f"needs 6 cpu; nodes that accept its pods have 2 free{NO_LOWER}",
        {
            Change.EVICT_GROUP: "evict or finish PodGroup default/b: 2 pods (a PodDisruptionBudget"
            " protects 2 of them)",
            Change.ADD_NODES: "add 2 nodes like r0n0",
            Change.RAISE_PRIORITY: "raise the priority from 0 to 1, so that it preempts",
            Change.EVICT_PODS: "evict 2 pods default/b0, default/b1 (a PodDisruptionBudget protects"
            " 2 of them)",
        },
        ("1 0 4 cpu short",),
        preempts=True,
    ),
    Situation(
        "victims still run, the group preempts as one",
        evicting,
        Kind.PREEMPTS,
        "waits until 2 pods (default/x0, default/x1) are gone: evicted for it",
        preempts=True,
    ),
    Situation(
        "victims still run, members preempt",
        evicting,
        Kind.PREEMPTS,
        "waits until 2 pods (default/x0, default/x1) are gone: evicted for it",
    ),
    Situation(
        "victims still run, pod by pod",
        evicting,
        Kind.PREEMPTS,
        "waits until 1 pod (default/x1) is gone: evicted for it",
        whole=False,
    ),
    Situation(
        "domain label on no node",
        no_label,
        Kind.DOMAIN_LABEL,
        f"needs one rack; none of 3 nodes has the label {RACK}",
        {
            Change.LABEL_NODES: f"set the label {RACK} to one value, such as domain-1, on 2 nodes:"
            " n1, n2"
        },
    ),
    Situation("no nodes", no_nodes, Kind.NO_NODES, "the cluster has no nodes"),
    Situation(
        "domain of running members is full",
        running_domain_is_full,
        Kind.RESOURCES,
        "needs 4 more cpu in one rack; r0, where its members run, has 2 free",
        {
            Change.LOWER_MINIMUM: "lower minCount from 3 to 2",
            Change.ADD_NODES: "add 1 node like r0n0 to r0",
        },
        ("1 1 2 cpu short",),
    ),
    Situation(
        "members run in two domains",
        running_in_two_domains,
        Kind.DOMAIN,
        "cannot determine domain for already scheduled pods: more than 1 domain found for pod"
        " group: r0, r1",
    ),
    Situation(
        "a member of another scheduler",
        two_schedulers,
        Kind.MISSING_MEMBERS,
        "needs 2 pods; only 1 exists, 1 has the name of another scheduler",
        {Change.LOWER_MINIMUM: "lower minCount from 2 to 1"},
    ),
    Situation(
        "only members of another scheduler",
        another_scheduler,
        Kind.SCHEDULER_NAMES,
        "no profile has the scheduler name 'other' of 2 pods",
    ),
    Situation("no pods", no_pods, Kind.NO_PODS, "no pod names PodGroup default/a"),
    Situation(
        "no PodGroup",
        no_group,
        Kind.NO_POD_GROUP,
        "PodGroup default/a does not exist, but 2 pods name it",
    ),
    Situation(
        "pods above a limit",
        too_expensive,
        Kind.LIMITS,
        "needs nodes for 2 pods; none fits: too expensive: 303,000 selector requirements and"
        " values, at most 2,048",
        {},
        ("1 0 too expensive: 303,000 selector requirements and values, at most 2,048",),
    ),
    Situation(
        "a member beyond the minimum",
        surplus,
        Kind.RESOURCES,
        f"needs 3 more cpu; nodes that accept its pods have 1 free{NO_LOWER}",
        {Change.ADD_NODES: "add 1 node like r0n0"},
        ("1 0 2 cpu short",),
    ),
    Situation(
        "fits now",
        fits_again,
        Kind.FITS,
        "fits in r0 now (2 of 2 pending pods); waits for its next attempt in the backoff queue",
    ),
    Situation("runs", runs, Kind.RUNS, "runs: 2 of 2 pods have a node, at least 2 are required"),
)


@pytest.mark.parametrize("case", SITUATIONS, ids=lambda case: case.name)
async def test_dominant_reason(case: Situation) -> None:
    recording = GroupRecording(whole=case.whole, preempts=case.preempts)
    case.build(recording)
    if not recording.state.evictions:
        recording.decide()
    found = await recording.explained()
    assert (found.reason, found.sentence) == (case.kind, case.sentence)
    rows = tuple(f"{row.domains} {row.fits} {row.lacks}" for row in found.domains)
    assert rows == case.lacks
    changes = found.changes or ()
    sizes = [change.size for change in changes]
    assert sizes == sorted(sizes)
    assert {change.kind for change in changes} == {*case.changes}
    for kind, summary in case.changes.items():
        assert summary in [change.summary for change in changes if change.kind is kind]
    for change in changes if case.whole else ():
        outcome = outcome_after(recording, change, "default/a")
        expected = (
            (GroupOutcome.WAITING,)
            if change.kind is Change.RAISE_PRIORITY
            else (GroupOutcome.SCHEDULED,)
        )
        assert outcome in expected, change


@pytest.mark.parametrize("rack", [False, True])
async def test_group_that_would_preempt_needs_no_change(rack: bool) -> None:
    recording = GroupRecording(preempts=True)
    lower_priority(recording)
    recording.see(group("a", 2, rack=rack, priority=10))
    found = await recording.explained()
    assert found.reason is Kind.PREEMPTS
    assert found.sentence == (
        "fits once 2 pods (default/x0, default/x1) of lower priority are evicted"
    )
    assert found.changes is None
