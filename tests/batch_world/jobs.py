"""Jobs for sessions, in a world: queues, PodGroups and their pods."""

from __future__ import annotations

from typing import Any

from asched.audit.replay import replay
from asched.config.registry import PluginRegistry
from asched.journal import open_journal
from asched.state.records import AnyRecord
from tests.batch_world.manifests import install_crds
from tests.daemon.world import OWN, World

BATCH = OWN + "batch: [{period: 20ms}]\n"
GROUP = "scheduling.incubator.k8s.io"
POD_GROUPS, QUEUES = f"podgroups.{GROUP}", f"queues.{GROUP}"

Object = dict[str, Any]


def prepare(w: World, *queues: str) -> None:
    """Install the definitions and make queues of equal weight, by default one named ``default``."""
    install_crds(w.cluster, GROUP)
    w.cluster.listen(POD_GROUPS, lambda change: w.touch())
    for name in queues or ("default",):
        w.cluster.create(QUEUES, {"metadata": {"name": name}, "spec": {"weight": 1}})


def add_gang(
    w: World, name: str, size: int, cpu: str, *, pods: int | None = None, **spec: Any
) -> None:
    """A PodGroup that needs ``size`` pods, and that many (or ``pods``)."""
    group = {"minMember": size, "queue": "default", **spec}
    metadata = {"name": name, "annotations": {"example.com/token": "s3cr3t"}}
    w.cluster.create(POD_GROUPS, {"metadata": metadata, "spec": group})
    for number in range(size if pods is None else pods):
        add_member(w, name, number, cpu)


def add_member(w: World, group: str, number: int, cpu: str, **spec: Any) -> None:
    container = {"name": "c", "image": "app", "resources": {"requests": {"cpu": cpu}}}
    annotations = {"scheduling.k8s.io/group-name": group, "example.com/token": "s3cr3t"}
    w.cluster.create(
        "pods",
        {
            "metadata": {"name": f"{group}-{number}", "annotations": annotations},
            "spec": {"schedulerName": "kube-batch", "containers": [container], **spec},
        },
    )


def set_phase(w: World, pod: str, phase: str) -> None:
    """The pod status that a kubelet writes."""
    w.cluster.patch(
        "pods", pod, {"status": {"phase": phase}}, namespace="default", subresource="status"
    )


def run_all(w: World) -> None:
    """Marks all bound pods as running."""
    for pod in w.cluster.list("pods", fields="spec.nodeName!="):
        if pod["status"]["phase"] == "Pending":
            set_phase(w, pod["metadata"]["name"], "Running")


def status(w: World, name: str) -> Object:
    """The PodGroup's status."""
    found: Object = w.cluster.get(POD_GROUPS, name, namespace="default").get("status") or {}
    return found


def unschedulable(w: World, name: str) -> Object:
    """The PodGroup's condition of that type; empty if it has none."""
    for condition in status(w, name).get("conditions") or ():
        if condition["type"] == "Unschedulable":
            found: Object = condition
            return found
    return {}


def bound(w: World, group: str) -> int:
    """How many pods of the group have a node."""
    return sum(
        pod["metadata"]["name"].startswith(f"{group}-")
        for pod in w.cluster.list("pods", fields="spec.nodeName!=")
    )


async def recorded(w: World) -> list[AnyRecord]:
    """The whole journal."""
    async with open_journal(str(w.journal), read_only=True) as store:
        return [stored.record async for stored in store.read()]


async def check_replay(w: World, first_seq: int = 1) -> int:
    """Asserts that replay gives identical decisions. Returns their number."""
    async with open_journal(str(w.journal), read_only=True) as store:
        report = await replay(store, PluginRegistry.discover(), first_seq=first_seq)
    assert report.equal, report.divergence
    return report.decisions
