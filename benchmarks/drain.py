"""How fast a backlog of pods drains over real HTTP, and what it costs the scheduler.

The embedded API server runs in this process, ``asched run`` in its own: its CPU time is what the
operating system accounts for that process, its start included. The journal is on disk.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Annotated, Any

import anyio
import typer

from asched.sim.cluster import Cluster
from asched.sim.http import ApiServer
from asched.sim.nodes import simulated_nodes
from asched.sim.store import Change

PATIENCE_S = 900.0


def _pod(number: int, shapes: int) -> dict[str, Any]:
    requests = {"cpu": f"{100 + number % shapes}m", "memory": "500Mi"}
    container = {"name": "main", "image": "registry.k8s.io/pause:3.9"}
    return {
        "metadata": {"name": f"pod-{number}", "labels": {"app": "drain"}},
        "spec": {"containers": [{**container, "resources": {"requests": requests}}]},
    }


class _Progress:
    """When the first and the last pod were bound."""

    def __init__(self, pods: int) -> None:
        self._left = pods
        self.first_s = self.last_s = 0.0
        self.done = anyio.Event()

    def heard(self, change: Change) -> None:
        node = change.new.obj["spec"].get("nodeName")
        if not node or (change.old is not None and change.old.obj["spec"].get("nodeName")):
            return
        self.last_s = time.monotonic()
        self.first_s = self.first_s or self.last_s
        self._left -= 1
        if not self._left:
            self.done.set()


def _start_scheduler(*arguments: str) -> int:
    command = [sys.executable, "-m", "asched", "run", *arguments]
    return os.posix_spawn(command[0], command, os.environ)


async def _measure(nodes: int, pods: int, shapes: int, folder: Path) -> dict[str, float]:
    cluster = Cluster()
    for node in simulated_nodes(nodes):
        cluster.create("nodes", node)
    for number in range(pods):
        cluster.create("pods", _pod(number, shapes))
    progress = _Progress(pods)
    cluster.listen("pods", progress.heard)
    journal = folder / "journal.db"
    settings = folder / "settings.yaml"
    settings.write_text(
        "apiVersion: asched.dev/v1\nkind: AschedConfiguration\nhealth: {address: ''}\n"
    )
    async with ApiServer(cluster).run() as server:
        kubeconfig = server.kubeconfig(folder / "kubeconfig")
        arguments = ["--kubeconfig", str(kubeconfig), "--journal", str(journal)]
        pid = _start_scheduler("--config", str(settings), *arguments)
        try:
            with anyio.fail_after(PATIENCE_S):
                await progress.done.wait()
        finally:
            os.kill(pid, signal.SIGTERM)
            _, _, usage = await anyio.to_thread.run_sync(os.wait4, pid, 0)
    return {
        "nodes": nodes,
        "pods": pods,
        "shapes": shapes,
        "pods_per_s": round(pods / (progress.last_s - progress.first_s), 1),
        "scheduler_cpu_ms_per_pod": round((usage.ru_utime + usage.ru_stime) * 1000 / pods, 3),
        "scheduler_peak_rss_mib": round(usage.ru_maxrss / 1024, 1),
        "journal_bytes_per_pod": round(journal.stat().st_size / pods),
    }


def main(
    nodes: Annotated[int, typer.Option(help="Simulated nodes.")] = 5000,
    pods: Annotated[int, typer.Option(help="Pods waiting when the scheduler starts.")] = 10_000,
    shapes: Annotated[int, typer.Option(help="Distinct pod templates among them.")] = 1,
) -> None:
    """Drain a backlog of pods over HTTP and print the figures as JSON."""
    with tempfile.TemporaryDirectory() as folder:
        print(json.dumps(anyio.run(_measure, nodes, pods, shapes, Path(folder)), indent=2))


if __name__ == "__main__":
    typer.run(main)
