"""Whole groups with a daemon and an API server: bindings, conditions, preemption, restarts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import yaml

from asched.apiserver.kubelet import Kubelets, KubeletTimings
from asched.audit.explain import explain
from asched.audit.lookup import PodName
from asched.config.registry import PluginRegistry
from asched.journal import open_journal
from asched.plugins.gang_scheduling import INCOMPLETE
from asched.state.group_records import GroupOutcome, PodGroupAttempted
from asched.state.records import Assigned, Rejected
from tests.daemon.test_gangs import check_replay, group_condition
from tests.daemon.test_restart import BINDING, NEVER_S, crash, decided, recorded
from tests.daemon.world import World, world

RACK = "topology.kubernetes.io/rack"
GROUPS = "podgroups.scheduling.k8s.io"


def config(*, group_preemption: bool = False) -> str:
    """A profile that schedules whole groups."""
    names = ("GangScheduling", "TopologyPlacementGenerator", "PodGroupPodsCount")
    args = {"groupCycle": True, "groupPreemption": group_preemption}
    return yaml.safe_dump(
        {
            "apiVersion": "kubescheduler.config.k8s.io/v1",
            "kind": "KubeSchedulerConfiguration",
            "profiles": [
                {
                    "schedulerName": "default-scheduler",
                    "plugins": {"multiPoint": {"enabled": [{"name": name} for name in names]}},
                    "pluginConfig": [{"name": "GangScheduling", "args": args}],
                }
            ],
        }
    )


def add_group(w: World, min_count: int, **spec: Any) -> None:
    policy = {"gang": {"minCount": min_count}}
    w.cluster.create(
        GROUPS,
        {
            "apiVersion": "scheduling.k8s.io/v1alpha2",
            "kind": "PodGroup",
            "metadata": {"name": "training", "namespace": "default"},
            "spec": {"schedulingPolicy": policy, **spec},
        },
    )
    w.cluster.listen(GROUPS, lambda change: w.touch())


def add_workers(w: World, count: int, **spec: Any) -> None:
    for number in range(count):
        group = {"podGroupName": "training"}
        w.add_pod(f"worker-{number}", cpu="600m", schedulingGroup=group, **spec)


async def cycles(w: World) -> list[GroupOutcome]:
    """The recorded outcomes."""
    async with open_journal(str(w.journal), read_only=True) as store:
        records = [stored.record async for stored in store.read()]
    return [record.outcome for record in records if isinstance(record, PodGroupAttempted)]


def racks(w: World, count: int) -> set[str]:
    nodes = {w.node_of(f"worker-{number}") for number in range(count)}
    return {w.cluster.get("nodes", node)["metadata"]["labels"][RACK] for node in nodes}


async def test_group_is_bound_in_one_rack(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        for number in range(2):
            w.add_node(f"n{number}", cpu="1", **{RACK: "small"})
        add_group(w, 3, schedulingConstraints={"topology": [{"key": RACK}]})
        add_workers(w, 3)
        async with w.daemon(config()):
            await w.until(lambda: all(w.message(f"worker-{n}") for n in range(3)))
            shown = sorted(w.message(f"worker-{n}").partition(".")[0] for n in range(3))
            assert shown == ["0/2 nodes are available: 2 Insufficient cpu", INCOMPLETE, INCOMPLETE]
            await w.until(lambda: group_condition(w).get("status") == "False")
            for number in range(3):
                w.add_node(f"m{number}", cpu="1", **{RACK: "large"})
            await w.until(lambda: not w.unbound())
            await w.until(lambda: group_condition(w)["status"] == "True")
        assert racks(w, 3) == {"large"}
        async with open_journal(str(w.journal), read_only=True) as store:
            registry = PluginRegistry.discover()
            name = PodName.parse("default/worker-0")
            first = await explain(store, name, registry.load, attempt=1)
            last = await explain(store, name, registry.load)
        assert first.reproduced
        assert last.reproduced
        assert "unschedulable: 2 of 3 pending members fit in domain small" in first.notes[-1]
        assert "scheduled: 3 of 3 pending members fit in domain large (2 domains" in last.notes[-1]
        assert (await cycles(w))[-1] is GroupOutcome.SCHEDULED
        await check_replay(w)


async def test_conditions_of_other_clients_stay(tmp_path: Path) -> None:
    """The API server rejects a condition without its time, which the state does not keep."""
    then, reason = "2026-01-01T00:00:00Z", "PreemptionByScheduler"
    target = {"type": "DisruptionTarget", "status": "True", "reason": reason, "message": "m"}
    other = {**target, "type": "example.com/Quota", "lastTransitionTime": then}
    async with world(tmp_path, cpu="2") as w:
        add_group(w, 3)
        conditions = [{**target, "lastTransitionTime": then}, other]
        status = {"status": {"conditions": conditions}}
        w.cluster.patch(GROUPS, "training", status, namespace="default", subresource="status")
        add_workers(w, 3)

        def shown() -> dict[str, Any]:
            group = w.cluster.get(GROUPS, "training", namespace="default")
            return {c["type"]: c for c in group["status"]["conditions"]}

        async with w.daemon(config()):
            await w.until(lambda: "PodGroupScheduled" in shown())
            since = shown()["PodGroupScheduled"]["lastTransitionTime"]
            assert shown()["example.com/Quota"] == other
            assert "DisruptionTarget" in shown()
            w.add_node("m0", cpu="2")
            await w.until(lambda: shown()["PodGroupScheduled"]["status"] == "True")
        assert shown().keys() == {"PodGroupScheduled", "example.com/Quota"}
        assert shown()["example.com/Quota"] == other
        assert shown()["PodGroupScheduled"]["lastTransitionTime"] >= since
        await check_replay(w)


async def test_condition_that_the_watch_does_not_show_yet_is_removed(tmp_path: Path) -> None:
    async with world(tmp_path, nodes=3, cpu="1") as w:
        add_group(w, 3)
        target = {"type": "DisruptionTarget", "status": "True", "reason": "r", "message": "m"}

        def written(verb: str, resource: str) -> None:
            """Another client is faster than the scheduler's first write."""
            if (verb, resource) == ("patch", "podgroups/status"):
                w.faults.on_request = lambda verb, resource: None
                conditions = [{**target, "lastTransitionTime": "2026-01-01T00:00:00Z"}]
                status = {"status": {"conditions": conditions}}
                w.cluster.patch(
                    GROUPS, "training", status, namespace="default", subresource="status"
                )

        w.faults.on_request = written
        add_workers(w, 3)

        def shown() -> list[str]:
            group = w.cluster.get(GROUPS, "training", namespace="default")
            return [each["type"] for each in group["status"].get("conditions") or ()]

        async with w.daemon(config()):
            await w.until(lambda: "PodGroupScheduled" in shown())
        assert w.faults.on_request is not written
        assert shown() == ["PodGroupScheduled"]
        await check_replay(w)


async def test_restart_in_mid_group_completes_its_bindings(tmp_path: Path) -> None:
    async with world(tmp_path, nodes=3, cpu="1") as w:
        w.faults.delay(NEVER_S, count=2, verb="create", resource=BINDING)
        add_group(w, 3)
        add_workers(w, 3)
        await crash(w, lambda daemon: decided(3)(daemon) and len(w.unbound()) == 2, config())
        nodes = await recorded(w)
        assert len(nodes) == 3
        async with w.daemon(config()) as daemon:
            await w.until(lambda: not w.unbound())
            await w.until(lambda: group_condition(w).get("status") == "True")
            assert daemon.engine.stats.assigned == 0
        assert {name: w.node_of(name) for name in nodes} == nodes
        assert await cycles(w) == [GroupOutcome.SCHEDULED]
        await check_replay(w)


async def test_group_evicts_once_and_is_bound(tmp_path: Path) -> None:
    async with world(tmp_path, nodes=2, cpu="1") as w, anyio.create_task_group() as tasks:
        tasks.start_soon(Kubelets(w.cluster, KubeletTimings(start_s=0.01)).run)
        for number in range(2):
            w.add_pod(f"low-{number}", cpu="600m")
        high = {"metadata": {"name": "high"}, "value": 1000}
        w.cluster.create("priorityclasses", high)
        async with w.daemon(config(group_preemption=True)):
            await w.until(lambda: not w.unbound())
            add_group(w, 2, priority=1000)
            add_workers(w, 2, priorityClassName="high")
            await w.until(lambda: bool(w.node_of("worker-0")) and bool(w.node_of("worker-1")))
        async with open_journal(str(w.journal), read_only=True) as store:
            records = [stored.record async for stored in store.read()]
        victims = [v.key for d in records if isinstance(d, Rejected) for v in d.victims]
        assert sorted(victims) == ["default/low-0", "default/low-1"]
        grouped = [d for d in records if isinstance(d, Assigned) and d.grouped]
        assert len(grouped) == 2
        assert GroupOutcome.WAITING in await cycles(w)
        await check_replay(w)
        tasks.cancel_scope.cancel()
