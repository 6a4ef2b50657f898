"""SchedulerPreemption: which pods of lower priority are evicted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel

from asched.apiserver.storage import StoreChange
from asched.model.resources import Resource
from tests.daemon.world import TIMEOUT_S
from tests.e2e.suite import (
    CONTROL_PLANE,
    HOSTNAME,
    PRIORITIES,
    WORKERS,
    Suite,
    on_node,
    pause_pod,
    spread_constraint,
    suite,
    with_label,
)

FOO = "scheduling.k8s.io/foo"
FINALIZER = "example.com/test-finalizer"


async def _fill(s: Suite) -> list[str]:
    """Run two pods per node that use 4 of its 5 units; only the first pod has low priority."""
    s.create_priority_classes(PRIORITIES)
    names: list[str] = []
    for node in WORKERS:
        await s.set_capacity(node, FOO, "5")
        for _ in range(2):
            priority = "medium-priority" if names else "low-priority"
            name = f"pod-{len(names)}"
            s.create(
                pause_pod(name, {FOO: "2"}, priorityClassName=priority, affinity=on_node(node))
            )
            names.append(name)
    for name in names:
        await s.running(name)
    return names


async def _run_victim_with_finalizer(s: Suite) -> None:
    """Run a pod that uses the only unit of the first node, until its finalizer is removed."""
    await s.set_capacity(WORKERS[0], FOO, "1")
    victim = pause_pod(
        "victim", {FOO: "1"}, priorityClassName="low-priority", finalizers=[FINALIZER]
    )
    await s.run(victim)


def _condition(pod: dict[str, Any], kind: str) -> dict[str, Any]:
    found = [c for c in pod["status"].get("conditions") or () if c["type"] == kind]
    return found[0] if found else {}


async def test_preemptor_evicts_pod_of_lowest_priority(tmp_path: Path) -> None:
    async with suite(tmp_path) as s:
        names = await _fill(s)
        preemptor = pause_pod("preemptor-pod", {FOO: "2"}, priorityClassName="high-priority")
        assert await s.run(preemptor) == WORKERS[0]
        assert s.is_terminating_or_deleted(names[0])
        assert not any(map(s.is_terminating_or_deleted, names[1:]))


async def test_critical_pod_preempts(tmp_path: Path) -> None:
    async with suite(tmp_path) as s:
        names = await _fill(s)
        critical = pause_pod(
            "critical-pod", {FOO: "2"}, priorityClassName="system-cluster-critical"
        )
        assert await s.run(critical, namespace="kube-system") == WORKERS[0]
        assert s.is_terminating_or_deleted(names[0])
        assert not any(map(s.is_terminating_or_deleted, names[1:]))


async def test_victim_gets_condition_and_grace_period(tmp_path: Path) -> None:
    graces: list[int] = []

    def on_pod(change: StoreChange) -> None:
        """Record the grace period when the deletion begins; the kubelet shortens it later."""
        old = change.old.obj["metadata"] if change.old else {}
        new = change.new.obj["metadata"]
        if "deletionTimestamp" in new and "deletionTimestamp" not in old:
            graces.append(new["deletionGracePeriodSeconds"])

    async with suite(tmp_path) as s:
        s.cluster.listen("pods", on_pod)
        s.create_priority_classes(PRIORITIES)
        await s.set_capacity(WORKERS[0], FOO, "1")
        await s.run(
            pause_pod(
                "victim", {FOO: "1"}, priorityClassName="low-priority", finalizers=[FINALIZER]
            )
        )
        s.create(pause_pod("preemptor", {FOO: "1"}, priorityClassName="high-priority"))
        await s.until(lambda: s.is_terminating_or_deleted("victim"))
        victim = s.pod("victim")
        assert graces == [1]
        condition = _condition(victim, "DisruptionTarget")
        assert (condition["status"], condition["reason"]) == ("True", "PreemptionByScheduler")
        assert condition["message"] == (
            "default-scheduler: preempting to accommodate a higher priority pod"
        )
        # The finalizer keeps the victim, so the preemptor is nominated and waits.
        await s.until(lambda: s.pod("preemptor")["status"].get("nominatedNodeName") == WORKERS[0])
        assert not s.pod("preemptor")["spec"].get("nodeName")
        patch = {"metadata": {"finalizers": None}}
        s.cluster.patch("pods", "victim", patch, namespace="default")
        assert await s.running("preemptor") == WORKERS[0]
        await s.until(lambda: any(reason == "Preempted" for reason, _ in s.world.events("victim")))
        uid = s.pod("preemptor")["metadata"]["uid"]
        assert ("Preempted", f"Preempted by pod {uid} on node {WORKERS[0]}") in s.world.events(
            "victim"
        )


async def test_preemption_respects_topology_spread(tmp_path: Path) -> None:
    key = label = "kubernetes.io-e2e-pts-preemption"
    resource = "example.com/fakePTSRes"
    async with suite(tmp_path) as s:
        s.create_priority_classes(PRIORITIES)
        nodes = WORKERS[:2]
        await s.label_nodes_with_names(key, *nodes)
        for node in nodes:
            await s.set_capacity(node, resource, "10")

        def pod(name: str, priority: str, amount: str, **spec: Any) -> dict[str, Any]:
            return pause_pod(
                name,
                {resource: amount},
                labels={label: ""},
                priorityClassName=f"{priority}-priority",
                affinity=with_label(key, *nodes),
                **spec,
            )

        high = await s.run(pod("high", "high", "9"))
        for number in range(3):
            await s.run(pod(f"low-{number}", "low", "3"))
        constraint = spread_constraint(key, label, "DoNotSchedule")
        medium = pod("medium", "medium", "3", topologySpreadConstraints=[constraint])
        # Evicting one low pod frees enough, but [high | medium low low] violates the skew.
        assert await s.run(medium) != high
        await s.until(lambda: len(s.pods()) == 3)
        left = sorted(pod["metadata"]["name"].partition("-")[0] for pod in s.pods())
        assert left == ["high", "low", "medium"]


async def test_replica_sets_preempt_by_priority(tmp_path: Path) -> None:
    resource = "example.com/fakecpu"
    async with suite(tmp_path) as s:
        s.create_priority_classes({f"p{value}": value for value in range(1, 5)})
        await s.set_capacity(WORKERS[0], resource, "1000")

        def pod(number: int, amount: str) -> dict[str, Any]:
            return pause_pod(
                f"pod{number}",
                {resource: amount},
                labels={"name": f"pod{number}"},
                priorityClassName=f"p{number}",
                nodeSelector={HOSTNAME: WORKERS[0]},
            )

        for number, amount in ((1, "200"), (2, "300"), (3, "450")):
            await s.replicas_running(
                await s.create_replicas(Resource.REPLICA_SETS, pod(number, amount), 1)
            )
        assert await s.run(pod(4, "500")) == WORKERS[0]

        def created_pods() -> list[int]:
            return [sum(name.startswith(f"rs-pod{n}-") for name in s.created) for n in (1, 2, 3)]

        await s.until(lambda: created_pods() == [2, 2, 1])
        for name in s.created:
            if name.startswith(("rs-pod1-", "rs-pod2-")) and not s.is_terminating_or_deleted(name):
                await s.rejected(name)
        # After a later pod was scheduled, the counts are unchanged.
        await s.run(pause_pod("later"))
        assert created_pods() == [2, 2, 1]
        assert s.pod_counts() == (3, 2)


# -- further cases --------------------------------------------------------------------------------


async def test_preemption_prefers_node_without_budget_violation(tmp_path: Path) -> None:
    async with suite(tmp_path) as s:
        s.create_priority_classes(PRIORITIES)
        for node, guarded in zip(WORKERS, ("yes", "no", "yes"), strict=True):
            await s.set_capacity(node, FOO, "1")
            await s.run(
                pause_pod(
                    f"on-{node}",
                    {FOO: "1"},
                    labels={"guarded": guarded},
                    priorityClassName="low-priority",
                    affinity=on_node(node),
                )
            )
        s.cluster.create(
            "poddisruptionbudgets",
            {
                "metadata": {"name": "guard", "namespace": "default"},
                "spec": {"minAvailable": 2, "selector": {"matchLabels": {"guarded": "yes"}}},
            },
        )
        status = {
            "disruptionsAllowed": 0,
            "currentHealthy": 2,
            "desiredHealthy": 2,
            "expectedPods": 2,
            "observedGeneration": 1,
        }
        budget = s.cluster.patch(
            "poddisruptionbudgets",
            "guard",
            {"status": status},
            namespace="default",
            subresource="status",
        )
        await s.wait_until_observed(Resource.POD_DISRUPTION_BUDGETS, budget)

        def high(name: str) -> dict[str, Any]:
            return pause_pod(name, {FOO: "1"}, priorityClassName="high-priority")

        assert await s.run(high("first")) == WORKERS[1]
        # Budgets are respected if possible, and violated otherwise.
        assert await s.run(high("second")) in (WORKERS[0], WORKERS[2])


async def test_pod_with_policy_never_does_not_preempt(tmp_path: Path) -> None:
    async with suite(tmp_path) as s:
        names = await _fill(s)
        s.cluster.create(
            "priorityclasses",
            {"metadata": {"name": "non-preempting"}, "value": 5000, "preemptionPolicy": "Never"},
        )
        s.create(pause_pod("non-preempting", {FOO: "2"}, priorityClassName="non-preempting"))
        note = await s.rejected("non-preempting")
        assert "preemption: not eligible due to preemptionPolicy=Never." in note
        assert not any(map(s.is_terminating_or_deleted, names))


async def test_preemptor_runs_on_another_node_freed_while_victims_terminate(tmp_path: Path) -> None:
    async with suite(tmp_path) as s:
        s.create_priority_classes(PRIORITIES)
        await _run_victim_with_finalizer(s)
        s.create(pause_pod("preemptor", {FOO: "1"}, priorityClassName="high-priority"))
        await s.until(lambda: s.pod("preemptor")["status"].get("nominatedNodeName") == WORKERS[0])
        # Until the eviction is done, the preemptor is held back, as in kube-scheduler.
        await s.until(lambda: s.is_terminating_or_deleted("victim"))
        with anyio.fail_after(TIMEOUT_S):
            while s.daemon.cluster.evictions:
                await anyio.lowlevel.checkpoint()
        await s.set_capacity(WORKERS[1], FOO, "1")
        assert await s.running("preemptor") == WORKERS[1]
        assert s.pod("victim")["metadata"]["deletionTimestamp"]


async def test_higher_preemptor_replaces_nomination(tmp_path: Path) -> None:
    async with suite(tmp_path) as s:
        s.create_priority_classes(PRIORITIES)
        await _run_victim_with_finalizer(s)

        def nomination(name: str) -> str:
            node: str = s.pod(name)["status"].get("nominatedNodeName") or ""
            return node

        s.create(pause_pod("medium", {FOO: "1"}, priorityClassName="medium-priority"))
        await s.until(lambda: nomination("medium") == WORKERS[0])
        s.create(pause_pod("high", {FOO: "1"}, priorityClassName="high-priority"))
        await s.until(lambda: nomination("high") == WORKERS[0])
        patch = {"metadata": {"finalizers": None}}
        s.cluster.patch("pods", "victim", patch, namespace="default")
        assert await s.running("high") == WORKERS[0]
        # Immediately, or with the next attempt if the victim terminates already, as in
        # kube-scheduler.
        await s.until(lambda: not nomination("medium"))
        assert not s.pod("medium")["spec"].get("nodeName")


async def test_pods_are_not_evicted_if_preemption_does_not_help(tmp_path: Path) -> None:
    async with suite(tmp_path) as s:
        names = await _fill(s)
        s.create(pause_pod("too-big", {FOO: "6"}, priorityClassName="high-priority"))
        note = await s.rejected("too-big")
        assert f"3 Insufficient {FOO}" in note
        s.create(
            pause_pod(
                "no-match",
                {FOO: "1"},
                priorityClassName="high-priority",
                affinity=on_node(CONTROL_PLANE),
            )
        )
        await s.rejected("no-match")
        assert not any(map(s.is_terminating_or_deleted, names))
