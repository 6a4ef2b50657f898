"""Changes that unblock a pending pod. Each is verified with the scheduler: after the change the pod
is assigned, and after a smaller change it is not."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from asched.audit.explain import explain
from asched.audit.explanation import Explanation
from asched.audit.lookup import PodName
from asched.audit.unblock import ChangeKind, UnblockingChange
from asched.cycle.decide import Decider
from asched.model.node import Node
from asched.model.pod import Pod
from asched.model.resources import AnyObject, Resource, decode
from asched.state.cluster import ClusterState
from asched.state.fold import Fold
from asched.state.records import Assigned, ObjectDeleted, ObjectObserved, TurnStarted
from tests.audit.recording import BEGIN_NS, REGISTRY, Recording, node, pod

HOSTNAME = "kubernetes.io/hostname"


async def explained(recording: Recording, name: str = "p") -> Explanation:
    return await explain(await recording.journal(), PodName.parse(name), REGISTRY.load)


async def changes(
    recording: Recording, on: str, name: str = "p"
) -> dict[ChangeKind, UnblockingChange]:
    found = await explained(recording, name)
    assert found.unblocking is not None
    found_changes = [change for p in found.unblocking if p.node == on for change in p.changes]
    unique = {(change.kind, change.key, change.value) for change in found_changes}
    assert len(unique) == len(found_changes)
    return {change.kind: change for change in found_changes}


def assigned_after(
    recording: Recording, *seen: AnyObject, gone: tuple[str, ...] = (), name: str = "default/p"
) -> str:
    """The node that the pod gets after these changes; may be empty."""
    fold = Fold(ClusterState(), REGISTRY.load)
    fold.apply_all(recording.records)
    fold.apply_all(ObjectDeleted("Pod", key, fold.state.pods[key].info.uid) for key in gone)
    fold.apply_all(ObjectObserved(thing) for thing in seen)
    fold.apply(TurnStarted(fold.state.now_ns + 3600 * 10**9))
    decider = Decider(fold.state)
    while decisions := decider.next():
        fold.apply_all(decisions)
        for decision in decisions:
            if isinstance(decision, Assigned) and decision.key == name:
                return decision.node
    return ""


def anti(app: str, topology: str = HOSTNAME) -> dict[str, Any]:
    term = {"labelSelector": {"matchLabels": {"app": app}}, "topologyKey": topology}
    return {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}


def labelled(plain: Pod, **labels: str) -> Pod:
    metadata = msgspec.structs.replace(plain.metadata, labels=labels)
    return msgspec.structs.replace(plain, metadata=metadata)


def running(plain: Pod, started_minute: int | None) -> Pod:
    started = (
        None if started_minute is None else datetime(2026, 1, 1, 0, started_minute, tzinfo=UTC)
    )
    status = msgspec.structs.replace(plain.status, phase="Running", start_time=started)
    return msgspec.structs.replace(plain, status=status)


def pending(*others: AnyObject, cpu: str = "1", **spec: Any) -> Recording:
    recording = Recording()
    recording.see(*others, pod("p", cpu, **spec))
    recording.decide()
    return recording


async def test_more_room_is_exact() -> None:
    recording = pending(node("small", "1500m"), cpu="2")
    change = (await changes(recording, "small"))[ChangeKind.MORE_CAPACITY]
    assert change.amounts == {"cpu": 500}
    assert change.summary == "500m cpu more on the node"
    assert assigned_after(recording, node("small", "2000m")) == "small"
    assert assigned_after(recording, node("small", "1999m")) == ""


async def test_two_missing_resources_are_one_change() -> None:
    tiny = decode(
        Resource.NODES,
        b'{"metadata":{"name":"n","uid":"n"},"status":{"allocatable":{"cpu":"1","pods":"0"}}}',
    )
    assert isinstance(tiny, Node)
    change = (await changes(pending(tiny, cpu="2"), "n"))[ChangeKind.MORE_CAPACITY]
    assert change.amounts == {"cpu": 1000, "pods": 1}


async def test_missing_toleration() -> None:
    recording = pending(node("n", taint="dedicated"))
    found = await changes(recording, "n")
    assert set(found) == {ChangeKind.TOLERATION}
    change = found[ChangeKind.TOLERATION]
    assert (change.key, change.value, change.effect) == ("dedicated", "", "NoSchedule")
    toleration = {"key": change.key, "operator": "Equal", "value": "", "effect": change.effect}
    assert assigned_after(recording, pod("p", tolerations=[toleration])) == "n"


async def test_two_missing_tolerations_are_no_single_change() -> None:
    two = node("n", taint="dedicated")
    [taint] = two.spec.taints
    other = msgspec.structs.replace(taint, key="other")
    two = msgspec.structs.replace(
        two, spec=msgspec.structs.replace(two.spec, taints=(taint, other))
    )
    assert await changes(pending(two), "n") == {}


@pytest.mark.parametrize(
    ("spec", "key", "value"),
    [
        ({"nodeSelector": {"disk": "ssd"}}, "disk", "ssd"),
        (("In", ["fast", "slow"]), "disk", "fast"),
        (("Exists", []), "disk", ""),
        (("Gt", ["3"]), "disk", "4"),
        (("NotIn", ["hdd"]), "disk", None),
        (("DoesNotExist", []), "disk", None),
    ],
)
async def test_missing_node_label(spec: Any, key: str, value: str | None) -> None:
    if isinstance(spec, tuple):
        expression = {"key": "disk", "operator": spec[0], "values": spec[1]}
        terms = {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}
        required = {"requiredDuringSchedulingIgnoredDuringExecution": terms}
        spec = {"affinity": {"nodeAffinity": required}}
    before = {"disk": "hdd"} if value is None else {}
    recording = pending(node("n", **before), **spec)
    found = await changes(recording, "n")
    change = found[ChangeKind.NODE_LABEL]
    assert (change.key, change.value) == (key, value)
    after = {} if value is None else {key: value}
    assert assigned_after(recording, node("n", **after)) == "n"
    assert assigned_after(recording, node("n", **before)) == ""


async def test_uncordon() -> None:
    plain = node("n")
    spec = msgspec.structs.replace(plain.spec, unschedulable=True)
    recording = pending(msgspec.structs.replace(plain, spec=spec))
    assert set(await changes(recording, "n")) == {ChangeKind.UNCORDON}
    assert assigned_after(recording, plain) == "n"


async def test_anti_affinity_of_another_pod() -> None:
    guard = pod("guard", nodeName="n", affinity=anti("web"))
    web = labelled(pod("p"), app="web")
    recording = Recording()
    recording.see(node("n", **{HOSTNAME: "n"}), guard, web)
    recording.decide()
    change = (await changes(recording, "n"))[ChangeKind.OTHER_ANTI_AFFINITY]
    assert change.pods == ("default/guard",)
    assert assigned_after(recording, pod("guard", nodeName="n")) == "n"
    assert assigned_after(recording, guard) == ""


async def test_own_anti_affinity() -> None:
    other = labelled(pod("other", nodeName="n"), app="web")
    recording = Recording()
    recording.see(node("n", **{HOSTNAME: "n"}), other, pod("p", affinity=anti("web")))
    recording.decide()
    found = await changes(recording, "n")
    assert (
        found[ChangeKind.POD_CONSTRAINT].summary
        == "without the pod's own required pod anti-affinity"
    )
    assert found[ChangeKind.EVICTIONS].pods == ("default/other",)
    assert assigned_after(recording, pod("p")) == "n"
    assert assigned_after(recording, gone=("default/other",)) == "n"


async def test_spread_constraint_and_its_topology_label() -> None:
    constraint = {
        "maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule",
        "labelSelector": {"matchLabels": {"app": "web"}},
    }  # fmt: skip
    recording = Recording()
    recording.see(node("nowhere"), node("full", "1", zone="a"), node("b", "1", zone="b"))
    recording.see(labelled(pod("q", nodeName="full"), app="web"), pod("r", nodeName="b"))
    web = labelled(pod("p", topologySpreadConstraints=[constraint]), app="web")
    recording.see(web)
    recording.decide()
    found = await changes(recording, "nowhere")
    assert found[ChangeKind.POD_CONSTRAINT].key == "zone"
    assert (found[ChangeKind.NODE_LABEL].key, found[ChangeKind.NODE_LABEL].value) == ("zone", "b")
    assert assigned_after(recording, node("nowhere", zone="b")) == "nowhere"
    assert assigned_after(recording, node("nowhere", zone="a")) == ""


async def test_evictions_are_minimal() -> None:
    recording = Recording()
    recording.see(node("n", "4"))
    for name, cpu, priority in (("a", "1", 5), ("b", "2", 1), ("c", "1", 9)):
        recording.see(pod(name, cpu, nodeName="n", priority=priority))
    recording.see(pod("p", "2", priority=10, preemptionPolicy="Never"))
    recording.decide()
    change = (await changes(recording, "n"))[ChangeKind.EVICTIONS]
    assert (change.pods, change.lower_priority) == (("default/b",), True)
    assert assigned_after(recording, gone=change.pods) == "n"


async def test_evictions_of_equal_priority_are_marked() -> None:
    recording = pending(node("n", "2"), pod("a", "2", nodeName="n"), cpu="2")
    change = (await changes(recording, "n"))[ChangeKind.EVICTIONS]
    assert (change.pods, change.lower_priority) == (("default/a",), False)
    assert "not all of lower priority" in change.summary


async def test_evictions_prefer_pods_that_started_later() -> None:
    recording = Recording()
    recording.see(node("n", "3"))
    for name, started_minute in (("late", 2), ("never", None), ("early", 1)):
        recording.see(running(pod(name, "1", nodeName="n"), started_minute))
    recording.see(pod("p", "2", priority=10, preemptionPolicy="Never"))
    recording.decide()
    change = (await changes(recording, "n"))[ChangeKind.EVICTIONS]
    assert set(change.pods) == {"default/late", "default/never"}


async def test_assumed_pod_can_be_evicted() -> None:
    recording = Recording()
    recording.see(node("n", "2"), pod("a", "2"))
    recording.decide()
    recording.see(pod("p", "2"))
    recording.decide()
    assert (await changes(recording, "n"))[ChangeKind.EVICTIONS].pods == ("default/a",)


async def test_scheduling_gate() -> None:
    gates = [{"name": "example.com/quota"}]
    recording = pending(node("n"), schedulingGates=gates)
    change = (await changes(recording, ""))[ChangeKind.UNGATE]
    assert change.key == "example.com/quota"
    assert assigned_after(recording, pod("p")) == "n"
    found = await explained(pending(node("n"), cpu="9", schedulingGates=gates))
    assert found.unblocking == ()


async def test_no_changes_if_no_single_change_helps() -> None:
    recording = pending(node("n", "1", taint="dedicated"), cpu="2", nodeSelector={"disk": "ssd"})
    found = await explained(recording)
    assert found.unblocking is not None
    [unblocking] = found.unblocking
    assert unblocking.changes == ()
    assert set(unblocking.rejected_by) == {"TaintToleration", "NodeAffinity", "NodeResourcesFit"}


async def test_nearest_nodes_come_first() -> None:
    recording = pending(
        node("a", "1", taint="x"), node("b", "1"), node("c", "3"), node("d", "2"), cpu="4"
    )
    found = await explained(recording)
    assert found.unblocking is not None
    assert [unblocking.node for unblocking in found.unblocking] == ["c", "d", "b", "a"]


async def test_schedulable_pod_has_no_unblocking() -> None:
    assert (await explained(pending(node("n")))).unblocking is None


async def test_unblocking_does_not_change_the_explanation() -> None:
    recording = pending(node("n", "1"), pod("a", nodeName="n"), cpu="2")
    journal = await recording.journal()
    with_help = await explain(journal, PodName.parse("p"), REGISTRY.load)
    without = await explain(journal, PodName.parse("p"), REGISTRY.load, unblock=False)
    assert msgspec.structs.replace(with_help, unblocking=None) == without


async def test_explanation_at_an_earlier_time() -> None:
    recording = pending(node("n", "1"), cpu="2")
    journal = await recording.journal()
    first = await explain(journal, PodName.parse("p"), REGISTRY.load)
    await journal.append([TurnStarted(BEGIN_NS + 10**9), ObjectObserved(node("large", "9"))],
                         written_at_ns=BEGIN_NS + 10**9)  # fmt: skip
    await journal.append(
        [Assigned("default/p", "uid-p", "large", 2, 1)], written_at_ns=BEGIN_NS + 9 * 10**9
    )
    now = await explain(journal, PodName.parse("p"), REGISTRY.load)
    assert now.decision.kind == "assigned"
    for at_ns in (BEGIN_NS, BEGIN_NS + 8 * 10**9):
        then = await explain(journal, PodName.parse("p"), REGISTRY.load, at_ns=at_ns)
        assert (then.decision.kind, then.decision.seq) == ("rejected", first.decision.seq)
