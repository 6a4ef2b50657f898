"""Checks that the daemon's memory, tasks and connections do not grow over time.

    python -m benchmarks.soak --minutes 30 --rate 200

An ``asched run`` process schedules an embedded cluster over HTTP. Pods are created at a steady rate
and deleted later; rollouts change templates, some pods fit nowhere, and node labels change. Prints
the resource usage of the daemon every minute. Linux only.
"""

from __future__ import annotations

import json
import os
import socket
import tempfile
import time
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated

import aiohttp
import anyio
import msgspec
import typer
from anyio.abc import TaskGroup
from prometheus_client.parser import text_string_to_metric_families
from rich.console import Console
from rich.table import Table

from asched.kube.connection import connect
from asched.kube.errors import ApiError, NoResponseError
from benchmarks import processes
from benchmarks.api import Api, in_parallel
from benchmarks.kinds import HOSTNAME, Json, ready_node
from benchmarks.processes import MeasuredProcess
from benchmarks.soak_report import Minute, Sample, by_minute, evaluate

_SETTINGS = """\
apiVersion: asched.dev/v1
kind: AschedConfiguration
health: {{address: "127.0.0.1:{port}"}}
log: {{level: warning, format: json}}
"""
_NODES = 500
_TICK_S = 0.05
_SAMPLE_S = 5.0
_ROLLOUT_PODS = 500
"""Pods with the same template and labels."""
_UNSCHEDULABLE_EVERY = 100
_NODE_CHANGE_S = 2.0
_NAMESPACE = "soak"
_TIMEOUT_S = 60.0
_MAX_IN_FLIGHT = 100
"""Concurrent requests that create pods."""
_MAX_DELAY_S = 1.0
"""Pods that are later than this are skipped."""


class Churn:
    """Creates and deletes pods, and changes nodes."""

    def __init__(self, api: Api, rate: float, keep_s: float) -> None:
        """``rate`` pods a second, each deleted ``keep_s`` after its creation."""
        self._api = api
        self._rate = rate
        self._keep_s = keep_s
        self._created: deque[tuple[float, str]] = deque()
        self._count = 0
        self._in_flight = 0
        self.failures = 0
        """Requests without a successful response."""
        self.skipped = 0
        """Pods that were not created because the machine was too slow."""

    async def prepare(self) -> None:
        await self._api.create_namespace(_NAMESPACE)

        async def create(number: int) -> None:
            await self._api.create(ready_node(number, cpu="8"))

        await in_parallel(_NODES, create)

    async def run(self, ends_s: float) -> None:
        """Run until this time of the monotonic clock. Existing pods are kept."""
        began_s = time.monotonic()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._change_nodes, ends_s)
            while (now_s := time.monotonic()) < ends_s:
                due = round((now_s - began_s) * self._rate) - self.skipped
                # Delayed pods are created later, but not in one burst.
                self.skipped += max(0, due - self._count - round(_MAX_DELAY_S * self._rate))
                due = min(due, self._count + _MAX_IN_FLIGHT - self._in_flight)
                for number in range(self._count, due):
                    self._in_flight += 1
                    tasks.start_soon(self._create, number)
                self._count = max(self._count, due)
                self._delete_old(tasks, now_s)
                await anyio.sleep(_TICK_S)

    def _delete_old(self, tasks: TaskGroup, now_s: float) -> None:
        while self._created and self._created[0][0] + self._keep_s <= now_s:
            tasks.start_soon(self._delete, self._created.popleft()[1])

    async def _create(self, number: int) -> None:
        try:
            name = await self._api.create(_pod(number), _NAMESPACE)
        except (ApiError, NoResponseError):
            self.failures += 1
            return
        finally:
            self._in_flight -= 1
        self._created.append((time.monotonic(), name))

    async def _delete(self, name: str) -> None:
        try:
            await self._api.delete("Pod", name, _NAMESPACE, grace_s=0)
        except (ApiError, NoResponseError):
            self.failures += 1

    async def _change_nodes(self, ends_s: float) -> None:
        number = 0
        while time.monotonic() < ends_s:
            node = ready_node(number % _NODES, cpu="8")
            node["metadata"]["labels"]["soak/round"] = str(number // _NODES)
            try:
                await self._api.update(node, "", ())
            except (ApiError, NoResponseError):
                self.failures += 1
            number += 1
            await anyio.sleep(_NODE_CHANGE_S)


def _pod(number: int) -> Json:
    rollout = number // _ROLLOUT_PODS
    cpu = "100" if number % _UNSCHEDULABLE_EVERY == 0 else f"{50 + rollout % 100}m"
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": f"pod-{number}",
            "labels": {"app": f"app-{rollout % 7}", "pod-template-hash": f"{rollout:x}"},
        },
        "spec": {
            "containers": [
                {
                    "name": "pause",
                    "image": f"registry.k8s.io/pause:{rollout}",
                    "resources": {"requests": {"cpu": cpu, "memory": "50Mi"}},
                }
            ],
            "topologySpreadConstraints": [
                {
                    "maxSkew": 5,
                    "topologyKey": HOSTNAME,
                    "whenUnsatisfiable": "ScheduleAnyway",
                    "labelSelector": {"matchLabels": {"app": f"app-{rollout % 7}"}},
                }
            ]
            if rollout % 2
            else [],
        },
    }


class DaemonProbe:
    """Reads the daemon's metrics and resource usage."""

    def __init__(
        self, process: MeasuredProcess, http: aiohttp.ClientSession, began_s: float
    ) -> None:
        self._process = process
        self._http = http
        self._began_s = began_s

    async def sample(self) -> Sample:
        metrics = await self._metrics()
        return Sample(
            at_s=time.monotonic() - self._began_s,
            rss_mib=self._process.rss_mib(),
            cpu_s=self._process.cpu_s(),
            open_fds=int(metrics["process_open_fds"]),
            connections=self._process.sockets(),
            tasks=int(metrics["asched_tasks"]),
            journal_mib=metrics["asched_journal_file_bytes"] / 2**20,
            pods=int(metrics["scheduler_cache_size/pods"]),
            pending=int(metrics["scheduler_pending_pods"]),
            bound=int(metrics["scheduler_schedule_attempts_total/scheduled"]),
            lag_s=metrics["asched_fold_lag_seconds"],
        )

    async def _metrics(self) -> dict[str, float]:
        """Sums by name, and by name with type or result."""
        async with self._http.get("/metrics") as response:
            text = await response.text()
        found: dict[str, float] = {"scheduler_schedule_attempts_total/scheduled": 0.0}
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                kind = sample.labels.get("type") or sample.labels.get("result") or ""
                for key in (sample.name, f"{sample.name}/{kind}"):
                    found[key] = found.get(key, 0.0) + sample.value
        return found

    async def until_ready(self) -> None:
        """Raises TimeoutError, ProcessEndedError."""
        with anyio.fail_after(_TIMEOUT_S):
            while not await self._ready():
                self._process.check()
                await anyio.sleep(0.1)

    async def _ready(self) -> bool:
        try:
            async with self._http.get("/readyz") as response:
                return response.status == 200
        except aiohttp.ClientConnectionError:
            return False


class SoakOptions(msgspec.Struct, frozen=True):
    """Duration and load of a run."""

    minutes: float
    rate: float
    keep_s: float


async def run(soak: SoakOptions, console: Console) -> list[Minute]:
    """Run the soak test; returns figures by minute. Raises ProcessEndedError, TimeoutError."""
    with tempfile.TemporaryDirectory(prefix="asched-soak-") as folder_name:
        folder, port = Path(folder_name), _free_port()
        async with (
            processes.api_server(folder) as kubeconfig,
            connect(kubeconfig, None) as client,
        ):
            churn = Churn(Api(client), soak.rate, soak.keep_s)
            await churn.prepare()
            async with (
                _scheduler(folder, kubeconfig, port) as process,
                aiohttp.ClientSession(f"http://127.0.0.1:{port}") as http,
            ):
                began_s = time.monotonic()
                probe = DaemonProbe(process, http, began_s)
                await probe.until_ready()
                samples = await _samples(churn, probe, began_s + 60 * soak.minutes, console)
                process.check()
                if churn.failures or churn.skipped:
                    console.print(
                        f"{churn.failures} requests failed;"
                        f" {churn.skipped} pods were skipped because the machine was too slow"
                    )
        return by_minute(samples)


async def _samples(
    churn: Churn, probe: DaemonProbe, ends_s: float, console: Console
) -> list[Sample]:
    samples: list[Sample] = []
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(churn.run, ends_s)
        printed = 0
        while time.monotonic() < ends_s:
            await anyio.sleep(_SAMPLE_S)
            samples.append(await probe.sample())
            rows = by_minute(samples)
            if len(rows) > printed + 1:
                # The last minute is incomplete.
                printed = len(rows) - 1
                console.print(json.dumps(msgspec.to_builtins(rows[printed - 1])))
    return samples


@asynccontextmanager
async def _scheduler(folder: Path, kubeconfig: Path, port: int) -> AsyncIterator[MeasuredProcess]:
    settings = folder / "settings.yaml"
    settings.write_text(_SETTINGS.format(port=port))
    arguments = ("--kubeconfig", kubeconfig, "--config", settings, "--journal", folder / "j.db")
    async with processes.running(folder, "scheduler", "run", *map(str, arguments)) as process:
        yield process


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def table(rows: list[Minute]) -> Table:
    shown = Table(title="The daemon by minute")
    for field in msgspec.structs.fields(Minute):
        shown.add_column(field.name, justify="right")
    for row in rows:
        shown.add_row(*map(str, msgspec.structs.astuple(row)))
    return shown


def main(
    minutes: Annotated[float, typer.Option(help="Duration in minutes.", min=0.1)] = 30.0,
    rate: Annotated[float, typer.Option(help="Pods created per second.", min=1.0)] = 200.0,
    keep: Annotated[float, typer.Option(help="Seconds until a pod is deleted.", min=1.0)] = 20.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Create and delete pods, and check that memory, tasks and connections do not grow."""
    console = Console(stderr=True, width=160)
    console.print(f"{minutes:g} min at {rate:g} pods/s, on {os.cpu_count()} CPUs")
    rows = anyio.run(
        run, SoakOptions(minutes, rate, keep), console, backend_options={"use_uvloop": True}
    )
    if as_json:
        print(json.dumps(msgspec.to_builtins(rows), indent=2))
    else:
        Console(width=160).print(table(rows))
    result = evaluate(rows, rate * (1 - 1 / _UNSCHEDULABLE_EVERY))
    if result.memory_growth is not None:
        console.print(f"memory grew by {result.memory_growth:.1%} after the first 5 minutes")
    for failure in result.failures:
        console.print(f"failed: {failure}")
    if not result.passed:
        raise typer.Exit(1)
    console.print("passed: memory grew by less than 5 %, tasks and connections did not grow")


if __name__ == "__main__":
    typer.run(main)
