"""Groups of Kubernetes 1.36 and 1.37 with a daemon over HTTP, and an upgrade under it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

from asched.apiserver.group_forms import KubernetesVersion
from asched.apiserver.kubelet import Kubelets, KubeletTimings
from asched.journal import open_journal
from asched.model.groups import CompositePodGroup, PodGroup
from asched.state.records import AnyRecord, ApiVersionServed, ObjectDeleted
from tests.daemon.test_gangs import check_replay, group_condition
from tests.daemon.test_group_cycle import GROUPS, add_workers, config
from tests.daemon.world import World, world

V1_36, V1_37 = KubernetesVersion.V1_36, KubernetesVersion.V1_37
COMPOSITES = "compositepodgroups.scheduling.k8s.io"
CONDITION = {V1_36: "PodGroupScheduled", V1_37: "PodGroupInitiallyScheduled"}
PREFERRED = {V1_36: "scheduling.k8s.io/v1alpha2", V1_37: "scheduling.k8s.io/v1beta1"}

REFERENCE = {"workloadName": "w", "templateName": "t"}


def add_group(w: World, name: str, min_count: int, **spec: Any) -> None:
    """In the preferred served version."""
    spec.setdefault("schedulingPolicy", {"gang": {"minCount": min_count}})
    w.cluster.create(GROUPS, {"metadata": {"name": name}, "spec": spec})


@asynccontextmanager
async def groups_of(folder: Path, version: KubernetesVersion, nodes: int) -> AsyncIterator[World]:
    async with world(folder, nodes, version, cpu="1") as w:
        w.cluster.listen(GROUPS, lambda change: w.touch())
        yield w


async def records(w: World) -> list[AnyRecord]:
    async with open_journal(str(w.journal), read_only=True) as store:
        return [stored.record async for stored in store.read()]


async def versions(w: World) -> list[str]:
    """The recorded versions of PodGroups."""
    served = [r for r in await records(w) if isinstance(r, ApiVersionServed)]
    return [record.api_version for record in served if record.kind == PodGroup.__name__]


@pytest.mark.parametrize("version", [V1_36, V1_37])
async def test_group_is_scheduled(tmp_path: Path, version: KubernetesVersion) -> None:
    async with groups_of(tmp_path, version, 3) as w:
        add_group(w, "training", 3)
        add_workers(w, 3)
        async with w.daemon(config()):
            await w.until(lambda: group_condition(w).get("status") == "True")
            found = group_condition(w)
            assert (found["type"], found["reason"]) == (CONDITION[version], "Scheduled")
            assert found["lastTransitionTime"]
        assert await versions(w) == [PREFERRED[version]]
        async with w.daemon(config()) as daemon:
            await daemon.synced.wait()
        assert await versions(w) == [PREFERRED[version]], "recorded once"
        await check_replay(w)


async def test_upgrade_under_a_running_daemon(tmp_path: Path) -> None:
    async with groups_of(tmp_path, V1_36, 3) as w:
        add_group(w, "training", 3, disruptionMode="PodGroup")
        add_workers(w, 2)
        async with w.daemon(config()) as daemon:
            await daemon.synced.wait()
            before = daemon.cluster.objects(PodGroup)["default/training"]
            w.server.upgrade(V1_37)
            add_workers_from(w, 2)
            await w.until(lambda: not w.unbound())
            await w.until(lambda: group_condition(w).get("status") == "True")
            assert group_condition(w)["type"] == "PodGroupInitiallyScheduled"
            after = daemon.cluster.objects(PodGroup)["default/training"]
            assert (after.uid, after.spec) == (before.uid, before.spec)
            add_group(w, "later", 1)
            w.add_pod("later-0", cpu="100m", schedulingGroup={"podGroupName": "later"})
            await w.until(lambda: group_condition(w, "later").get("status") == "True")
        assert await versions(w) == [PREFERRED[V1_36], PREFERRED[V1_37]]
        gone = [r for r in await records(w) if isinstance(r, ObjectDeleted)]
        assert not [record for record in gone if record.kind == PodGroup.__name__]
        await check_replay(w)


def add_workers_from(w: World, first: int) -> None:
    group = {"podGroupName": "training"}
    w.add_pod(f"worker-{first}", cpu="600m", schedulingGroup=group)


async def test_status_that_is_due_at_an_upgrade_is_written(tmp_path: Path) -> None:
    """The write gets 404 in the old version, and is repeated in the new one."""
    async with groups_of(tmp_path, V1_36, 1) as w:
        add_group(w, "training", 1)
        async with w.daemon(config()) as daemon:
            await daemon.synced.wait()
            w.faults.delay(0.5, count=1, verb="list", resource="podgroups")
            w.server.upgrade(V1_37)
            add_workers(w, 1)
            await w.until(lambda: group_condition(w).get("status") == "True")
        assert group_condition(w)["type"] == "PodGroupInitiallyScheduled"
        await check_replay(w)


async def test_condition_of_an_earlier_version_is_replaced(tmp_path: Path) -> None:
    """An upgrade keeps its name, and conditions are merged by name."""
    zone = "topology.kubernetes.io/zone"
    async with groups_of(tmp_path, V1_36, 0) as w:
        w.add_node("a", cpu="1", **{zone: "a"})
        metadata = {"name": "training", "annotations": {"asched.dev/required-topology": zone}}
        policy = {"schedulingPolicy": {"gang": {"minCount": 2}}}
        w.cluster.create(GROUPS, {"metadata": metadata, "spec": policy})
        add_workers(w, 2)
        async with w.daemon(config()) as daemon:
            await daemon.synced.wait()
            await w.until(lambda: group_condition(w).get("status") == "False")
            before = group_condition(w)
            w.server.upgrade(V1_37)
            w.add_node("b", cpu="1", **{zone: "b"})
            await w.until(lambda: group_condition(w)["message"] != before["message"])
        found = group_condition(w)
        assert (before["type"], found["type"]) == (CONDITION[V1_36], CONDITION[V1_37])
        assert (found["status"], found["reason"]) == (before["status"], before["reason"])
        assert found["lastTransitionTime"]
        await check_replay(w)


async def test_group_with_unknown_value_waits_with_a_message(tmp_path: Path) -> None:
    """A later API server may know values that this scheduler does not."""
    async with groups_of(tmp_path, V1_37, 1) as w:
        add_group(w, "training", 1)
        stored = w.cluster.stored(GROUPS)[0]
        mode: dict[str, Any] = {"disruptionMode": {"half": {}}}
        changed = {**stored.obj, "spec": {**stored.obj["spec"], **mode}}
        changed["metadata"] = dict(changed["metadata"])
        w.cluster.api.storages[GROUPS].write(stored.key, changed)
        add_workers(w, 1)
        async with w.daemon(config()):
            problem = "spec.disruptionMode: needs one of the known members single and all"
            await w.until(lambda: group_condition(w).get("message") == problem)
            found = group_condition(w)
            assert (found["type"], found["status"]) == (CONDITION[V1_37], "False")
            await w.until(lambda: w.message("worker-0") == problem)
            w.cluster.api.storages[GROUPS].write(stored.key, dict(stored.obj))
            await w.until(lambda: not w.unbound())
        await check_replay(w)


async def test_minimum_changes_below_and_above_what_runs(tmp_path: Path) -> None:
    async with groups_of(tmp_path, V1_37, 2) as w:
        add_group(w, "training", 2)
        add_workers(w, 2)
        async with w.daemon(config()) as daemon:
            await w.until(lambda: group_condition(w).get("status") == "True")
            for minimum in (1, 5):
                gang = {"spec": {"schedulingPolicy": {"gang": {"minCount": minimum}}}}
                w.cluster.patch(GROUPS, "training", gang, namespace="default")
            w.add_node("more", cpu="1")
            add_workers_from(w, 2)
            w.add_pod("other")
            await w.until(lambda: bool(w.node_of("other")))
            assert set(daemon.cluster.queue.gated) == {"default/worker-2"}
            assert group_condition(w)["status"] == "True", "it stays"
            gang = {"spec": {"schedulingPolicy": {"gang": {"minCount": 3}}}}
            w.cluster.patch(GROUPS, "training", gang, namespace="default")
            await w.until(lambda: not w.unbound())
        await check_replay(w)


async def test_composite_groups_are_known(tmp_path: Path) -> None:
    async with groups_of(tmp_path, V1_37, 1) as w:
        policy = {"gang": {"minGroupCount": 2}}
        spec = {"schedulingPolicy": policy, "workloadRef": REFERENCE}
        w.cluster.create(COMPOSITES, {"metadata": {"name": "all"}, "spec": spec})
        add_group(w, "training", 1, workloadRef=REFERENCE, parentCompositePodGroupName="all")
        async with w.daemon(config()) as daemon:
            await daemon.synced.wait()
            composite = daemon.cluster.objects(CompositePodGroup)["default/all"]
            group = daemon.cluster.objects(PodGroup)["default/training"]
            assert composite.min_group_count == 2
            assert group.spec.parent_composite_pod_group_name == composite.name


async def test_groups_below_a_composite_are_scheduled_as_one(tmp_path: Path) -> None:
    async with groups_of(tmp_path, V1_37, 1) as w:
        below = {"workloadRef": REFERENCE, "parentCompositePodGroupName": "all"}
        add_group(w, "training", 1, **below)
        add_workers(w, 1)
        async with w.daemon(config()):
            problem = (
                "PodGroup default/training: its parent CompositePodGroup default/all not found"
            )
            await w.until(lambda: w.message("worker-0") == problem)
            policy = {"gang": {"minGroupCount": 2}}
            spec = {"schedulingPolicy": policy, "workloadRef": REFERENCE}
            w.cluster.create(COMPOSITES, {"metadata": {"name": "all"}, "spec": spec})
            await w.until(lambda: composite_condition(w).get("status") == "False")
            problem = "CompositePodGroup default/all is unschedulable: 1 of its 2 required"
            assert composite_condition(w)["message"].startswith(problem)
            add_group(w, "serving", 1, **below)
            w.add_pod("serving-0", cpu="100m", schedulingGroup={"podGroupName": "serving"})
            await w.until(lambda: composite_condition(w).get("status") == "True")
            await w.until(lambda: not w.unbound())
        assert composite_condition(w)["type"] == "CompositePodGroupInitiallyScheduled"
        await check_replay(w)


def composite_condition(w: World) -> dict[str, Any]:
    status = w.cluster.get(COMPOSITES, "all", namespace="default").get("status", {})
    found: list[dict[str, Any]] = status.get("conditions", [{}])
    return found[0]


async def test_group_that_is_evicted_as_a_whole_gets_a_condition(tmp_path: Path) -> None:
    async with groups_of(tmp_path, V1_37, 2) as w, anyio.create_task_group() as tasks:
        tasks.start_soon(Kubelets(w.cluster, KubeletTimings(start_s=0.01)).run)
        w.cluster.create("priorityclasses", {"metadata": {"name": "high"}, "value": 1000})
        add_group(w, "low", 2, disruptionMode={"all": {}})
        for number in range(2):
            w.add_pod(f"low-{number}", cpu="600m", schedulingGroup={"podGroupName": "low"})
        async with w.daemon(config(group_preemption=True)):
            await w.until(lambda: group_condition(w, "low").get("status") == "True")
            add_group(w, "training", 1, priorityClassName="high")
            add_workers(w, 1, priorityClassName="high")
            await w.until(lambda: bool(w.node_of("worker-0")))
            await w.until(lambda: len(conditions(w, "low")) == 2)
        assert conditions(w, "low") == {
            "PodGroupInitiallyScheduled": ("True", "Scheduled"),
            "DisruptionTarget": ("True", "PreemptionByScheduler"),
        }
        await check_replay(w)
        tasks.cancel_scope.cancel()


def conditions(w: World, name: str) -> dict[str, tuple[str, str]]:
    group = w.cluster.get(GROUPS, name, namespace="default")
    found = group["status"].get("conditions") or []
    return {each["type"]: (each["status"], each["reason"]) for each in found}
