"""Measures the whole daemon in clusters of up to 100,000 nodes and a million bound pods.

    python -m benchmarks.scale.measure --size 10000x100000

For each size: a start with an empty journal, pods that come and go at a steady rate, ``asched
checkpoint``, and a start with that checkpoint. A process that generates lists page by page takes
the place of the API server, over HTTP. Linux only.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Annotated, Any, Final, NamedTuple

import aiohttp
import anyio
import typer

from benchmarks import page, processes, results
from benchmarks.processes import MeasuredProcess
from benchmarks.scale import chart
from benchmarks.scale.figures import RunFigures, ScaleFigures
from benchmarks.suite import machine

SIZES: Final = ((10_000, 100_000), (30_000, 300_000), (100_000, 1_000_000))
CHURN_PODS_PER_S, CHURN_S = 500, 60
_POLL_S = 0.1
_START_TIMEOUT_S = 600.0


class _Cluster(NamedTuple):
    """The server of a generated cluster, and the folder with the journal."""

    session: aiohttp.ClientSession
    server: str
    kubeconfig: Path
    journal: Path

    async def figures(self) -> dict[str, Any]:
        async with self.session.get(f"{self.server}/figures") as response:
            found: dict[str, Any] = await response.json()
            return found

    async def post(self, path: str, **options: int) -> dict[str, Any]:
        async with self.session.post(f"{self.server}/{path}", json=options) as response:
            found: dict[str, Any] = await response.json()
            return found


async def measure(nodes: int, pods: int, churn_s: int, folder: Path) -> ScaleFigures:
    """The figures of one size."""
    async with _cluster(nodes, pods, folder) as at:
        async with _scheduler(at) as (scheduler, start):
            _log(f"start: {start}")
            cpu_before_s = scheduler.cpu_s()
            churn = await at.post("churn", pods_per_s=CHURN_PODS_PER_S, seconds=churn_s)
            cpu_ms = (scheduler.cpu_s() - cpu_before_s) * 1000 / churn["created"]
            peak_mib = scheduler.peak_rss_mib()
        latencies_ms = sorted(churn["latencies_ms"])
        _log(f"churn: {len(latencies_ms)} pods, {cpu_ms:.2f} ms of CPU each")
        checkpoint = await _checkpoint(at)
        _log(f"checkpoint: {checkpoint}")
        await at.post("pending")
        async with _scheduler(at) as (_, restart):
            _log(f"restart: {restart}")
        return ScaleFigures(
            nodes=nodes,
            pods=pods,
            start=start,
            churn_pods_per_s=round(churn["bound"] / churn["elapsed_s"], 1),
            churn_p50_ms=round(latencies_ms[len(latencies_ms) // 2], 1),
            churn_p99_ms=round(latencies_ms[len(latencies_ms) * 99 // 100], 1),
            churn_cpu_ms_per_pod=round(cpu_ms, 3),
            churn_peak_mib=round(peak_mib),
            journal_mib=round(at.journal.stat().st_size / 2**20),
            checkpoint=checkpoint,
            restart=restart,
        )


@asynccontextmanager
async def _cluster(nodes: int, pods: int, folder: Path) -> AsyncIterator[_Cluster]:
    kubeconfig = folder / "kubeconfig"
    options = ("--nodes", str(nodes), "--pods", str(pods), "--kubeconfig", str(kubeconfig))
    module = "benchmarks.scale.server"
    timeout = aiohttp.ClientTimeout(total=None)
    async with (
        processes.running(folder, "server", *options, module=module) as server,
        aiohttp.ClientSession(timeout=timeout) as session,
    ):
        while "serving" not in server.output:
            server.check()
            await anyio.sleep(_POLL_S)
        url = server.output.split()[-1]
        yield _Cluster(session, url, kubeconfig, folder / "journal.db")


@asynccontextmanager
async def _scheduler(at: _Cluster) -> AsyncIterator[tuple[MeasuredProcess, RunFigures]]:
    """A scheduler that has bound a pod."""
    began_s = time.monotonic()
    async with processes.scheduler(at.kubeconfig.parent, at.kubeconfig, at.journal) as process:
        with anyio.fail_after(_START_TIMEOUT_S):
            while (bound_s := (await at.figures())["first_binding_s"]) is None:
                process.check()
                await anyio.sleep(_POLL_S)
        yield process, _run_figures(process, bound_s - began_s)


def _run_figures(process: MeasuredProcess, elapsed_s: float) -> RunFigures:
    cpu_s, peak_mib = process.cpu_s(), process.peak_rss_mib()
    return RunFigures(round(elapsed_s, 1), round(cpu_s, 1), round(peak_mib))


async def _checkpoint(at: _Cluster) -> RunFigures:
    began_s, figures = time.monotonic(), RunFigures(0, 0, 0)
    arguments = ("checkpoint", "--journal", str(at.journal))
    async with processes.running(at.journal.parent, "checkpoint", *arguments) as process:
        with suppress(OSError, AssertionError):  # the process has ended
            while True:
                figures = _run_figures(process, time.monotonic() - began_s)
                await anyio.sleep(_POLL_S)
        _log(process.output.strip())
    return figures


def _log(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _sizes(texts: list[str]) -> list[tuple[int, int]]:
    sizes = []
    for text in texts:
        nodes, _, pods = text.partition("x")
        if not (nodes.isdecimal() and pods.isdecimal()):
            raise typer.BadParameter(f"{text!r} is not NODESxPODS, such as 10000x100000")
        sizes.append((int(nodes), int(pods)))
    return sizes


def main(
    size: Annotated[
        list[str] | None, typer.Option(help="NODESxPODS (repeatable); by default three sizes.")
    ] = None,
    churn: Annotated[int, typer.Option(help="Seconds of churn.", min=1)] = CHURN_S,
    save: Annotated[bool, typer.Option(help="Save figures, table and chart.")] = True,
) -> None:
    """Measure each size."""
    figures = results.load(page.RESULTS)
    sizes = _sizes(size or []) or [*SIZES]
    figures.machine["scale"] = machine()
    for nodes, pods in sizes:
        _log(f"{nodes} nodes, {pods} pods")
        with tempfile.TemporaryDirectory() as folder:
            found = anyio.run(measure, nodes, pods, churn, Path(folder))
        _log(str(found))
        others = [row for row in figures.scale if (row.nodes, row.pods) != (nodes, pods)]
        figures.scale = sorted([*others, found], key=lambda row: row.pods)
        if save:
            results.save(page.RESULTS, figures)
            page.PAGE.write_text(page.rendered(page.PAGE.read_text(), figures))
            chart.CHART.write_text(chart.drawn(figures.scale))


if __name__ == "__main__":
    typer.run(main)
