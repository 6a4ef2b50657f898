"""Gangs with a daemon and an API server, using the examples of ``docs/how-to/gang.md``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from asched.audit.replay import replay
from asched.config.registry import PluginRegistry
from asched.cycle.pod_groups import UNSCHEDULABLE
from asched.journal import open_journal
from asched.model.groups import CUSTOM_POD_GROUPS
from asched.model.resources import GroupResource
from asched.plugins.gang_scheduling import INCOMPLETE
from tests.batch_world.manifests import install_crds
from tests.daemon.world import World, world

CUSTOM_KINDS = frozenset(kind.__name__ for kind in CUSTOM_POD_GROUPS)
PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "gang.md"


def examples() -> tuple[str, dict[str, Any], dict[str, Any]]:
    """The first configuration, PodGroup and pod of the page."""
    config, objects, *_ = re.findall(r"```yaml\n(.*?)```", PAGE.read_text(), re.DOTALL)
    group, pod = yaml.safe_load_all(objects)
    return config, group, pod


def add_worker(w: World, number: int) -> None:
    pod = examples()[2]
    pod["metadata"]["name"] = f"worker-{number}"
    w.cluster.create("pods", pod)


def group_condition(w: World, name: str = "training") -> Mapping[str, str]:
    """The PodGroup's condition, or an empty mapping."""
    group = w.cluster.get("podgroups.scheduling.k8s.io", name, namespace="default")
    conditions = group.get("status", {}).get("conditions") or [{}]
    (condition,) = conditions
    found: Mapping[str, str] = condition
    return found


async def check_replay(w: World) -> None:
    async with open_journal(str(w.journal)) as journal:
        report = await replay(journal, PluginRegistry.discover())
    assert report.divergence is None
    assert report.decisions


async def test_gang_is_bound_when_missing_node_is_added(tmp_path: Path) -> None:
    """As in the recording of kube-scheduler 1.36: two of three pods fit, then a node is added."""
    config, group, _ = examples()
    async with world(tmp_path, nodes=2, cpu="1") as w:
        w.cluster.listen("podgroups.scheduling.k8s.io", lambda change: w.touch())
        w.cluster.create("podgroups.scheduling.k8s.io", group)
        for number in range(3):
            add_worker(w, number)
        w.add_pod("lone", schedulingGroup={"podGroupName": "nope"})
        async with w.daemon(config):
            workers = [f"worker-{number}" for number in range(3)]
            await w.until(lambda: all(w.message(name) for name in workers))
            assert sorted(w.message(name).partition(".")[0] for name in workers) == [
                "0/2 nodes are available: 2 Insufficient cpu",
                INCOMPLETE,
                INCOMPLETE,
            ]
            await w.until(lambda: bool(group_condition(w)))
            found = group_condition(w)
            assert (found["type"], found["status"]) == ("PodGroupScheduled", "False")
            assert (found["reason"], found["message"]) == ("Unschedulable", UNSCHEDULABLE)
            assert not any(w.node_of(name) for name in workers)
            w.add_node("n2", cpu="1")
            await w.until(lambda: all(w.node_of(name) for name in workers))
            await w.until(lambda: group_condition(w)["status"] == "True")
            assert group_condition(w)["reason"] == "Scheduled"
            assert w.condition("lone") == {}
        await check_replay(w)


async def test_incomplete_gang_is_bound_after_restart(tmp_path: Path) -> None:
    config, group, _ = examples()
    async with world(tmp_path, nodes=3, cpu="1") as w:
        w.cluster.create("podgroups.scheduling.k8s.io", group)
        async with w.daemon(config) as daemon:
            add_worker(w, 0)
            add_worker(w, 1)
            w.add_pod("other")
            await w.until(lambda: bool(w.node_of("other")))
            assert set(daemon.cluster.queue.gated) == {"default/worker-0", "default/worker-1"}
        add_worker(w, 2)
        async with w.daemon(config):
            await w.until(lambda: not w.unbound())
        await check_replay(w)


def test_messages_equal_recorded_ones_of_kube_scheduler(shared_dir: Path) -> None:
    recorded = shared_dir / "apiserver-1.36" / "podgroup-exchanges.json"
    exchanges = {
        e["name"]: e["response"]["body"] for e in msgspec.json.decode(recorded.read_bytes())
    }
    (short,) = exchanges["gang-short-podgroup-status"]["status"]["conditions"]
    (fits,) = exchanges["gang-fits-podgroup-status"]["status"]["conditions"]
    assert (short["type"], short["reason"], short["message"]) == (
        "PodGroupScheduled",
        "Unschedulable",
        UNSCHEDULABLE,
    )
    assert (fits["status"], fits["reason"], fits["message"]) == ("True", "Scheduled", "")
    messages = {
        pod["metadata"]["name"]: pod["status"]["conditions"][0]["message"]
        for pod in exchanges["gang-short-pods"]["items"]
        if pod["status"].get("conditions")
    }
    assert messages["p0"] == messages["p1"] == INCOMPLETE
    assert "lone" not in messages


@pytest.mark.parametrize(
    "resource",
    [resource for resource in GroupResource if resource.type.__name__ in CUSTOM_KINDS],
    ids=lambda resource: resource.value.group,
)
async def test_gang_of_custom_pod_group_is_bound(tmp_path: Path, resource: GroupResource) -> None:
    """A custom PodGroup named in an annotation of the pods; its status is not written."""
    config = examples()[0]
    async with world(tmp_path, nodes=1, cpu="1") as w:
        install_crds(w.cluster)
        group = {"metadata": {"name": "job"}, "spec": {"minMember": 2}}
        plural = f"{resource.plural}.{resource.value.group}"
        async with w.daemon(config) as daemon:
            for number in range(2):
                add_annotated(w, f"task-{number}", "job")
            w.add_pod("other", cpu="400m")
            await w.until(lambda: bool(w.node_of("other")))
            assert set(daemon.cluster.queue.gated) == {"default/task-0", "default/task-1"}
            w.cluster.create(
                plural, {**group, "apiVersion": api_version(resource), "kind": "PodGroup"}
            )
            await w.until(lambda: bool(w.message("task-0")) and bool(w.message("task-1")))
            assert not w.node_of("task-0")
            assert not w.node_of("task-1")
            w.add_node("n1", cpu="1")
            await w.until(lambda: not w.unbound())
        await check_replay(w)


def api_version(resource: GroupResource) -> str:
    return f"{resource.value.group}/{resource.value.version}"


def add_annotated(w: World, name: str, group: str) -> None:
    container = {"name": "c", "image": "app", "resources": {"requests": {"cpu": "600m"}}}
    annotations = {"scheduling.k8s.io/group-name": group}
    w.cluster.create(
        "pods",
        {
            "metadata": {"name": name, "annotations": annotations},
            "spec": {"containers": [container]},
        },
    )
