"""Preemption over real HTTP: victims are marked and deleted, then the preemptor is bound."""

from __future__ import annotations

from pathlib import Path

import anyio

from asched.apiserver.kubelet import Kubelets, KubeletTimings
from tests.daemon.world import World, world

NEVER_S = 3600.0
"""A delay longer than any test."""


def add_classes(w: World, **values: int) -> None:
    for name, value in values.items():
        w.cluster.create("priorityclasses", {"metadata": {"name": name}, "value": value})


def nominated(w: World, name: str) -> str:
    node: str = w.pod(name)["status"].get("nominatedNodeName", "")
    return node


def disruption(w: World, name: str) -> list[str]:
    conditions = w.pod(name)["status"].get("conditions") or ()
    return [c["reason"] for c in conditions if c["type"] == "DisruptionTarget"]


async def test_victims_terminate_gracefully_before_preemptor_is_bound(tmp_path: Path) -> None:
    async with world(tmp_path, nodes=2, cpu="2") as w, anyio.create_task_group() as tasks:
        add_classes(w, low=1, high=1000)
        kubelets = Kubelets(w.cluster, KubeletTimings(start_s=0.01))
        tasks.start_soon(kubelets.run)
        async with w.daemon():
            for n in range(4):
                w.add_pod(f"low-{n}", "900m", priorityClassName="low")
            await w.until(lambda: not w.unbound())
            marked: dict[str, list[str]] = {}
            w.cluster.listen(
                "pods",
                lambda change: (
                    marked.update(
                        {
                            change.new.obj["metadata"]["name"]: [
                                c["reason"]
                                for c in change.new.obj["status"].get("conditions") or ()
                                if c["type"] == "DisruptionTarget"
                            ]
                        }
                    )
                    if change.new.obj["metadata"].get("deletionTimestamp")
                    else None
                ),
            )
            w.add_pod("urgent", "1500m", priorityClassName="high")
            await w.until(lambda: w.node_of("urgent") != "")
            remaining = {pod["metadata"]["name"] for pod in w.cluster.list("pods")}
            assert len(remaining) == 3
            assert marked == {
                name: ["PreemptionByScheduler"]
                for name in {f"low-{n}" for n in range(4)} - remaining
            }
        tasks.cancel_scope.cancel()


async def test_other_pods_are_scheduled_while_victims_terminate(tmp_path: Path) -> None:
    async with world(tmp_path, nodes=1, cpu="2") as w:
        add_classes(w, low=1, high=1000)
        w.add_pod("victim", "1500m", priorityClassName="low")
        async with w.daemon():
            await w.until(lambda: w.node_of("victim") == "n0")
            # No kubelet runs, so the victim terminates only when the test deletes it.
            w.add_pod("urgent", "1800m", priorityClassName="high")
            await w.until(lambda: nominated(w, "urgent") == "n0" and bool(disruption(w, "victim")))
            w.add_node("n1", cpu="1")
            w.add_pod("small", "500m", priorityClassName="low")
            await w.until(lambda: w.node_of("small") == "n1")
            w.cluster.delete("pods", "victim", namespace="default", grace_period_s=0)
            await w.until(lambda: w.node_of("urgent") == "n0")


async def test_nomination_is_cleared_by_higher_preemptor(tmp_path: Path) -> None:
    async with world(tmp_path, nodes=1, cpu="2") as w:
        add_classes(w, low=1, middle=500, high=1000)
        w.add_pod("victim", "800m", priorityClassName="low")
        w.add_pod("other", "800m", priorityClassName="low")
        async with w.daemon():
            await w.until(lambda: not w.unbound())
            w.add_pod("middle", "1", priorityClassName="middle")
            await w.until(lambda: nominated(w, "middle") == "n0")
            w.add_pod("urgent", "1900m", priorityClassName="high")
            await w.until(lambda: nominated(w, "urgent") == "n0" and nominated(w, "middle") == "")


async def test_nomination_not_written_before_crash_is_written_after_restart(tmp_path: Path) -> None:
    async with world(tmp_path, nodes=1, cpu="2") as w:
        add_classes(w, low=1, high=1000)
        w.add_pod("victim", "1500m", priorityClassName="low")
        async with w.daemon():
            await w.until(lambda: w.node_of("victim") == "n0")
        w.faults.on_request = lambda verb, resource: w.touch()
        w.faults.delay(NEVER_S, count=100, verb="patch", resource="pods/status")
        w.add_pod("urgent", "1800m", priorityClassName="high")
        with anyio.CancelScope() as scope:
            async with w.daemon() as daemon:
                await w.until(lambda: w.faults.injected > 0)
                scope.cancel()
        assert daemon.cluster.nominator.node_of("default/urgent") == "n0"
        assert nominated(w, "urgent") == ""
        w.faults.clear()
        async with w.daemon():
            # No kubelet runs, so the victim stays and no decision is made.
            await w.until(lambda: nominated(w, "urgent") == "n0")
