"""SchedulerPreemption: pods of lower priority give way, these and no others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel

from asched.apiserver.storage import StoreChange
from asched.model.resources import Resource
from tests.daemon.world import PATIENCE_S
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
    """Two pods a node that use 4 of 5 of its units; the first of all is of low priority."""
    s.create_priority_classes(PRIORITIES)
    names: list[str] = []
    for node in WORKERS:
        await s.offer(node, FOO, "5")
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


async def _run_a_victim_that_stays(s: Suite) -> None:
    """It fills the one unit of the first node, and goes only when its finalizer is taken off."""
    await s.offer(WORKERS[0], FOO, "1")
    victim = pause_pod(
        "victim", {FOO: "1"}, priorityClassName="low-priority", finalizers=[FINALIZER]
    )
    await s.run(victim)


def _condition(pod: dict[str, Any], kind: str) -> dict[str, Any]:
    found = [c for c in pod["status"].get("conditions") or () if c["type"] == kind]
    return found[0] if found else {}


async def test_basic_preemption(tmp_path: Path) -> None:
    async with suite(tmp_path) as s:
        names = await _fill(s)
        preemptor = pause_pod("preemptor-pod", {FOO: "2"}, priorityClassName="high-priority")
        assert await s.run(preemptor) == WORKERS[0]
        assert s.is_leaving_or_gone(names[0])
        assert not any(map(s.is_leaving_or_gone, names[1:]))


async def test_a_critical_pod_preempts(tmp_path: Path) -> None:
    async with suite(tmp_path) as s:
        names = await _fill(s)
        critical = pause_pod(
            "critical-pod", {FOO: "2"}, priorityClassName="system-cluster-critical"
        )
        assert await s.run(critical, namespace="kube-system") == WORKERS[0]
        assert s.is_leaving_or_gone(names[0])
        assert not any(map(s.is_leaving_or_gone, names[1:]))


async def test_a_victim_is_told_why_and_given_its_grace(tmp_path: Path) -> None:
    graces: list[int] = []

    def on_pod(change: StoreChange) -> None:
        """Note the grace period when the deletion begins; the kubelet ends it early."""
        old = change.old.obj["metadata"] if change.old else {}
        new = change.new.obj["metadata"]
        if "deletionTimestamp" in new and "deletionTimestamp" not in old:
            graces.append(new["deletionGracePeriodSeconds"])

    async with suite(tmp_path) as s:
        s.cluster.listen("pods", on_pod)
        s.create_priority_classes(PRIORITIES)
        await s.offer(WORKERS[0], FOO, "1")
        await s.run(
            pause_pod(
                "victim", {FOO: "1"}, priorityClassName="low-priority", finalizers=[FINALIZER]
            )
        )
        s.create(pause_pod("preemptor", {FOO: "1"}, priorityClassName="high-priority"))
        await s.until(lambda: s.is_leaving_or_gone("victim"))
        victim = s.pod("victim")
        assert graces == [1]
        told = _condition(victim, "DisruptionTarget")
        assert (told["status"], told["reason"]) == ("True", "PreemptionByScheduler")
        assert told["message"] == (
            "default-scheduler: preempting to accommodate a higher priority pod"
        )
        # The finalizer holds it: the preemptor is nominated, and waits for the room.
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


async def test_as_many_victims_as_spreading_needs(tmp_path: Path) -> None:
    key = label = "kubernetes.io-e2e-pts-preemption"
    resource = "example.com/fakePTSRes"
    async with suite(tmp_path) as s:
        s.create_priority_classes(PRIORITIES)
        nodes = WORKERS[:2]
        await s.label_nodes_with_their_names(key, *nodes)
        for node in nodes:
            await s.offer(node, resource, "10")

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
        # One low pod would be room enough, but then [high | medium low low] would be skewed.
        assert await s.run(medium) != high
        await s.until(lambda: len(s.pods()) == 3)
        left = sorted(pod["metadata"]["name"].partition("-")[0] for pod in s.pods())
        assert left == ["high", "low", "medium"]


async def test_replica_sets_of_several_priorities(tmp_path: Path) -> None:
    resource = "example.com/fakecpu"
    async with suite(tmp_path) as s:
        s.create_priority_classes({f"p{value}": value for value in range(1, 5)})
        await s.offer(WORKERS[0], resource, "1000")

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

        def made() -> list[int]:
            return [sum(name.startswith(f"rs-pod{n}-") for name in s.created) for n in (1, 2, 3)]

        await s.until(lambda: made() == [2, 2, 1])
        for name in s.created:
            if name.startswith(("rs-pod1-", "rs-pod2-")) and not s.is_leaving_or_gone(name):
                await s.rejected(name)
        # Nothing more happens: a pod that comes later is placed, the counts stay.
        await s.run(pause_pod("later"))
        assert made() == [2, 2, 1]
        assert s.tally() == (3, 2)


# -- beyond the suite's own cases -----------------------------------------------------------------


async def test_budgets_choose_the_node(tmp_path: Path) -> None:
    async with suite(tmp_path) as s:
        s.create_priority_classes(PRIORITIES)
        for node, guarded in zip(WORKERS, ("yes", "no", "yes"), strict=True):
            await s.offer(node, FOO, "1")
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
        budget = s.cluster.patch(
            "poddisruptionbudgets",
            "guard",
            {"status": {"disruptionsAllowed": 0, "currentHealthy": 2, "desiredHealthy": 2,
                        "expectedPods": 2, "observedGeneration": 1}},
            namespace="default",
            subresource="status",
        )  # fmt: skip

        await s.known(Resource.POD_DISRUPTION_BUDGETS, budget)

        def high(name: str) -> dict[str, Any]:
            return pause_pod(name, {FOO: "1"}, priorityClassName="high-priority")

        assert await s.run(high("first")) == WORKERS[1]
        # Budgets are honoured where that is possible, and violated where it is not.
        assert await s.run(high("second")) in (WORKERS[0], WORKERS[2])


async def test_a_pod_that_never_preempts(tmp_path: Path) -> None:
    async with suite(tmp_path) as s:
        names = await _fill(s)
        s.cluster.create(
            "priorityclasses",
            {"metadata": {"name": "polite"}, "value": 5000, "preemptionPolicy": "Never"},
        )
        s.create(pause_pod("polite", {FOO: "2"}, priorityClassName="polite"))
        note = await s.rejected("polite")
        assert "preemption: not eligible due to preemptionPolicy=Never." in note
        assert not any(map(s.is_leaving_or_gone, names))


async def test_another_node_becomes_free_while_victims_go(tmp_path: Path) -> None:
    async with suite(tmp_path) as s:
        s.create_priority_classes(PRIORITIES)
        await _run_a_victim_that_stays(s)
        s.create(pause_pod("preemptor", {FOO: "1"}, priorityClassName="high-priority"))
        await s.until(lambda: s.pod("preemptor")["status"].get("nominatedNodeName") == WORKERS[0])
        # Before that the preemptor would be held back, as by kube-scheduler, until the victim is gone.
        await s.until(lambda: s.is_leaving_or_gone("victim"))
        with anyio.fail_after(PATIENCE_S):
            while s.daemon.cluster.evictions:
                await anyio.lowlevel.checkpoint()
        await s.offer(WORKERS[1], FOO, "1")
        assert await s.running("preemptor") == WORKERS[1]
        assert s.pod("victim")["metadata"]["deletionTimestamp"]


async def test_a_higher_preemptor_takes_the_nomination(tmp_path: Path) -> None:
    async with suite(tmp_path) as s:
        s.create_priority_classes(PRIORITIES)
        await _run_a_victim_that_stays(s)

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
        # At once, or, if the victim was on its way already, when it is tried again: as kube-scheduler.
        await s.until(lambda: not nomination("medium"))
        assert not s.pod("medium")["spec"].get("nodeName")


async def test_nobody_is_evicted_where_it_would_not_help(tmp_path: Path) -> None:
    async with suite(tmp_path) as s:
        names = await _fill(s)
        s.create(pause_pod("too-big", {FOO: "6"}, priorityClassName="high-priority"))
        note = await s.rejected("too-big")
        assert f"3 Insufficient {FOO}" in note
        s.create(
            pause_pod(
                "unwanted",
                {FOO: "1"},
                priorityClassName="high-priority",
                affinity=on_node(CONTROL_PLANE),
            )
        )
        await s.rejected("unwanted")
        assert not any(map(s.is_leaving_or_gone, names))
