"""plugins/asched-gpu in a whole daemon: cards are written to pods, and reports of nodes are
followed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from asched.apiserver.kubelet import simulated_node
from tests.daemon.test_third_party_plugins import enabled
from tests.daemon.world import KUBE, World, world

GPU_MILLI = "alibabacloud.com/gpu-milli"
GPU_INDEX = "alibabacloud.com/gpu-index"
MANIFESTS = Path(__file__).parents[2] / "plugins" / "asched-gpu" / "manifests"


def gpu_node(w: World, name: str, cards: int) -> None:
    capacity = {"cpu": "8", "memory": "16Gi", "pods": "110", GPU_MILLI: str(cards * 1000)}
    w.cluster.create("nodes", simulated_node(name, capacity=capacity))


def gpu_pod(w: World, name: str, milli: int) -> None:
    amounts = {"cpu": "100m", GPU_MILLI: str(milli)}
    container = {"name": "c", "image": "app", "resources": {"requests": amounts, "limits": amounts}}
    w.cluster.create("pods", {"metadata": {"name": name}, "spec": {"containers": [container]}})


def card(w: World, name: str) -> str:
    index: str = (w.pod(name)["metadata"].get("annotations") or {}).get(GPU_INDEX, "")
    return index


def lose_journal(folder: Path) -> None:
    for path in folder.glob("journal.db*"):
        path.unlink()


async def test_cards_are_written_to_pods_and_read_from_them(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        gpu_node(w, "n", 2)
        async with w.daemon(enabled("GpuShare")):
            gpu_pod(w, "a", 600)
            gpu_pod(w, "b", 600)
            gpu_pod(w, "c", 600)
            await w.until(lambda: len(w.unbound()) == 1 and w.message(w.unbound()[0]) != "")
            [waiting] = w.unbound()
            assert f"Insufficient {GPU_MILLI} on a card" in w.message(waiting)
            bound = sorted({"a", "b", "c"} - {waiting})
            assert sorted(card(w, name) for name in bound) == ["0", "1"]
            w.cluster.delete("pods", bound[0], namespace="default", grace_period_s=0)
            await w.until(lambda: w.node_of(waiting) == "n")
        # The journal is lost; what the pods say is not.
        lose_journal(tmp_path)
        taken = card(w, waiting)
        w.cluster.delete("pods", waiting, namespace="default", grace_period_s=0)
        async with w.daemon(enabled("GpuShare")):
            gpu_pod(w, "whole", 1000)
            await w.until(lambda: w.node_of("whole") == "n")
            assert card(w, "whole") == taken


def scv(name: str, free_memory: int) -> dict[str, Any]:
    card = {"id": 0, "health": "Healthy", "freeMemory": free_memory, "totalMemory": 16_000}
    return {
        "apiVersion": "core.run-linux.com/v1",
        "kind": "Scv",
        "metadata": {"name": name},
        "status": {
            "cardNumber": 1,
            "cardList": [card],
            "freeMemorySum": free_memory,
            "totalMemorySum": 16_000,
        },
    }


YODA = (
    KUBE + "profiles:\n- plugins:\n    queueSort:\n      enabled: [{name: Yoda}]\n"
    "      disabled: [{name: '*'}]\n    filter:\n      enabled: [{name: Yoda}]\n"
    "    preScore:\n      enabled: [{name: Yoda}]\n    score:\n      enabled: [{name: Yoda}]\n"
)


async def test_reports_of_nodes_are_followed(tmp_path: Path) -> None:
    async with world(tmp_path, nodes=2) as w:
        definition = yaml.safe_load((MANIFESTS / "scv-crd.yaml").read_text())
        w.cluster.create("customresourcedefinitions", definition)
        w.cluster.create("scvs", scv("n0", 4_000))
        async with w.daemon(YODA):
            w.add_pod("hungry", labels={"scv/memory": "8000"})
            await w.until(lambda: "no Scv of the node" in w.message("hungry"))
            w.cluster.create("scvs", scv("n1", 12_000))
            await w.until(lambda: w.node_of("hungry") == "n1")
