"""Measurements that Kubernetes' workloads do not contain.

A start in a full cluster, pods that arrive at a steady rate, and the effect of a faulty extender,
plugin or Event sink on pods that do not use it.
"""

from __future__ import annotations

import socket
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from enum import StrEnum
from pathlib import Path

import anyio
import msgspec
from anyio.abc import SocketAttribute, SocketStream

from benchmarks import journal_times
from benchmarks import workload_files as w
from benchmarks.api import in_parallel
from benchmarks.kinds import Json, pod_spec, ready_node
from benchmarks.measurement import Measurements, Report
from benchmarks.operations import Report as Progress
from benchmarks.processes import SchedulerOptions
from benchmarks.workload_files import Workload
from benchmarks.workload_run import (
    BenchmarkCluster,
    RunOptions,
    benchmark_cluster,
    build_report,
    run,
)

_NAMESPACE = "checks"
_EXTENDED = "example.com/slow"
_EXTENDER_TIMEOUT_S = 5
_AFFECTED_PODS = 50


class StartFigures(msgspec.Struct):
    """A start of the scheduler in a cluster with bound pods."""

    name: str
    nodes: int
    pods: int
    first_decision_s: float
    """From the start of the process to the binding of a pending pod."""
    cpu_s: float
    peak_rss_mib: float


class SteadyFigures(msgspec.Struct):
    """Pods that arrive at a steady rate."""

    pods_per_s: int
    pods: int
    observed_to_decided_p50_ms: float
    observed_to_decided_p99_ms: float
    created_to_bound_p50_ms: float
    created_to_bound_p99_ms: float
    scheduler_cpu_ms_per_pod: float


class InterferenceFigures(msgspec.Struct):
    """Plain pods while something else is faulty."""

    fault: str
    pods_per_s: float
    scheduler_cpu_ms_per_pod: float


# -- start ----------------------------------------------------------------------------------------


async def start(nodes: int, pods: int, progress: Progress) -> list[StartFigures]:
    """Start with ``pods`` bound pods, first with an empty journal, then with the journal of
    that."""
    async with benchmark_cluster(RunOptions()) as at:
        await _fill(at, nodes, pods, progress)
        figures: list[StartFigures] = []
        for name in ("first start", "start with the journal of the first"):
            waiting = f"waiting-{len(figures)}"
            await at.api.create(_pod(waiting), _NAMESPACE)
            at.pods.created(_NAMESPACE, waiting, {})
            begin_s = time.monotonic()
            async with at.scheduler(RunOptions(), progress) as scheduler:
                await at.pods.wait_until_bound(_NAMESPACE, waiting)
                first_s = time.monotonic() - begin_s
                cpu_s = await scheduler.settled_cpu_s()
                rss_mib = scheduler.peak_rss_mib()
            row = StartFigures(
                name, nodes, pods, round(first_s, 2), round(cpu_s, 2), round(rss_mib, 1)
            )
            progress(f"{name}: {row}")
            figures.append(row)
        return figures


async def _fill(at: BenchmarkCluster, nodes: int, pods: int, progress: Progress) -> None:
    await at.api.create_namespace(_NAMESPACE)

    async def create_node(number: int) -> None:
        await at.api.create(ready_node(number))

    async def create_pod(number: int) -> None:
        pod = _pod(f"bound-{number}")
        pod["spec"]["nodeName"] = f"node-{number % nodes}"
        await at.api.create(pod, _NAMESPACE)

    progress(f"creating {nodes} nodes and {pods} bound pods")
    await in_parallel(nodes, create_node)
    await in_parallel(pods, create_pod)


# -- steady rate ----------------------------------------------------------------------------------


async def steady(nodes: int, per_s: int, seconds: int, progress: Progress) -> SteadyFigures:
    """Create ``per_s`` pods a second, evenly spaced, for ``seconds``."""
    async with benchmark_cluster(RunOptions()) as at:
        await _fill(at, nodes, 0, progress)
        async with at.scheduler(RunOptions(), progress) as scheduler:
            measurements = Measurements(at.pods, scheduler, time.monotonic)
            await _warm_up(at)
            async with measurements.measuring(_NAMESPACE, (_NAMESPACE,), {}):
                await _arrive(at, per_s, seconds * per_s)
            report = build_report("steady", measurements, scheduler, at.pods)
        await journal_times.add_journal_figures(report, at.journal)
        return _steady_figures(report, per_s)


async def _warm_up(at: BenchmarkCluster) -> None:
    """Schedule one pod, after which caches are filled and connections are open."""
    await at.api.create_namespace("before")
    await at.api.create(_pod("before"), "before")
    at.pods.created("before", "before", {})
    await at.pods.wait_until_bound("before", "before")


async def _arrive(at: BenchmarkCluster, per_s: int, count: int) -> None:
    begin_s = anyio.current_time()

    async def create(number: int) -> None:
        await anyio.sleep_until(begin_s + number / per_s)
        name = f"steady-{number}"
        await at.api.create(_pod(name), _NAMESPACE)
        at.pods.created(_NAMESPACE, name, {})

    await in_parallel(count, create)
    await at.pods.wait_until(lambda: all(pod.bound_s is not None for pod in at.pods))


def _steady_figures(report: Report, per_s: int) -> SteadyFigures:
    phase = report.phases[0]
    decided, bound = phase.observed_to_decided_ms, phase.created_to_bound_ms
    assert decided is not None, "pods were decided on"
    assert bound is not None, "pods were bound"
    return SteadyFigures(
        pods_per_s=per_s,
        pods=phase.pods,
        observed_to_decided_p50_ms=decided.perc50,
        observed_to_decided_p99_ms=decided.perc99,
        created_to_bound_p50_ms=bound.perc50,
        created_to_bound_p99_ms=bound.perc99,
        scheduler_cpu_ms_per_pod=phase.scheduler_cpu_ms_per_pod,
    )


# -- interference ---------------------------------------------------------------------------------

_PLUGIN = """\
import asyncio
import time

from asched.framework import SUCCESS, ExecutionMode, FilterPlugin, PreBindPlugin


class Slow(PreBindPlugin):
    name = "Slow"
    api_version = 1

    async def pre_bind(self, client, pod, node_name):
        await asyncio.sleep(600)
        return SUCCESS


class Hanging(FilterPlugin):
    name = "Hanging"
    api_version = 1
    execution_mode = ExecutionMode.WORKER

    def filter(self, state, pod, node):
        while True:
            time.sleep(600)


class Failing(FilterPlugin):
    name = "Failing"
    api_version = 1

    def filter(self, state, pod, node):
        raise RuntimeError("failed")
"""
_KUBE = "---\napiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n"
_SLOW_PROFILE = """\
profiles:
- schedulerName: default-scheduler
- schedulerName: slow
  plugins: {{multiPoint: {{enabled: [{{name: {plugin}}}]}}}}
"""


class Fault(StrEnum):
    """What is faulty while plain pods are scheduled."""

    NONE = "none"
    SLOW_EVENTS = "Event sink answers after 5 s"
    REJECTED_EVENTS = "Event sink answers 503"
    UNRESPONSIVE_EXTENDER = "extender never answers"
    UNREACHABLE_EXTENDER = "extender refuses connections"
    SLOW_PLUGIN = "plugin takes 10 min in PreBind"
    HANGING_PLUGIN = "plugin in a worker never returns"
    FAILING_PLUGIN = "plugin raises in Filter"


_PLUGIN_OF = {
    Fault.SLOW_PLUGIN: "Slow",
    Fault.HANGING_PLUGIN: "Hanging",
    Fault.FAILING_PLUGIN: "Failing",
}


async def interference(
    nodes: int,
    pods: int,
    folder: Path,
    progress: Progress,
    faults: Sequence[Fault] = tuple(Fault),
) -> list[InterferenceFigures]:
    """Measure plain pods under each fault. A plugin distribution is written to ``folder``."""
    site = _distribution(folder)
    figures = []
    async with _unresponsive_server() as port:
        for fault in faults:
            workload = _workload(nodes, pods, folder, fault)
            report = await run(workload, _options(fault, site, port), progress)
            phase = report.phases[0]
            row = InterferenceFigures(fault, phase.pods_per_s, phase.scheduler_cpu_ms_per_pod)
            progress(str(row))
            figures.append(row)
    return figures


def _options(fault: Fault, site: Path, extender_port: int) -> RunOptions:
    all_events = "*1000000@events"
    match fault:
        case Fault.NONE:
            return RunOptions()
        case Fault.SLOW_EVENTS:
            return RunOptions(faults=f"delay=5{all_events}")
        case Fault.REJECTED_EVENTS:
            return RunOptions(faults=f"503{all_events}")
        case Fault.UNRESPONSIVE_EXTENDER:
            return RunOptions(scheduler=SchedulerOptions(_KUBE + _extender(extender_port)))
        case Fault.UNREACHABLE_EXTENDER:
            return RunOptions(scheduler=SchedulerOptions(_KUBE + _extender(_unused_port())))
        case Fault.SLOW_PLUGIN | Fault.HANGING_PLUGIN | Fault.FAILING_PLUGIN:
            profiles = _SLOW_PROFILE.format(plugin=_PLUGIN_OF[fault])
            return RunOptions(scheduler=SchedulerOptions(_KUBE + profiles, site))


def _workload(nodes: int, pods: int, folder: Path, fault: Fault) -> Workload:
    """Measured plain pods, after some pods that depend on the faulty part."""
    affected = _pod("")
    affected["metadata"] = {"generateName": "affected-"}
    steps: list[w.AnyOperation] = [w.CreateNodes(count=nodes)]
    if fault in (Fault.UNRESPONSIVE_EXTENDER, Fault.UNREACHABLE_EXTENDER):
        sizes = affected["spec"]["containers"][0]["resources"]
        sizes["limits"] = sizes["requests"] = {**sizes["requests"], _EXTENDED: "1"}
    elif fault in _PLUGIN_OF:
        affected["spec"]["schedulerName"] = "slow"
    template = folder / "affected.yaml"
    template.write_bytes(msgspec.yaml.encode(affected))
    steps.append(
        w.CreatePods(
            count=_AFFECTED_PODS, pod_template_path=str(template), skip_wait_to_completion=True
        )
    )
    steps.append(w.CreatePods(count=pods, collect_metrics=True))
    return Workload(
        w.Case("interference", tuple(steps), ()), w.WorkloadSize(f"{nodes}Nodes"), folder
    )


def _extender(port: int) -> str:
    extender = {
        "urlPrefix": f"http://127.0.0.1:{port}",
        "filterVerb": "filter",
        "httpTimeout": f"{_EXTENDER_TIMEOUT_S}s",
        "managedResources": [{"name": _EXTENDED, "ignoredByScheduler": True}],
    }
    return msgspec.yaml.encode({"extenders": [extender]}).decode()


def _distribution(folder: Path) -> Path:
    """Write an installed plugin distribution; returns the folder for the search path."""
    site = folder / "site"
    info = site / "slow-1.0.dist-info"
    info.mkdir(parents=True)
    (site / "slow_plugin.py").write_text(_PLUGIN)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: slow\nVersion: 1.0\n")
    points = "".join(f"{name} = slow_plugin:{name}\n" for name in _PLUGIN_OF.values())
    (info / "entry_points.txt").write_text(f"[asched.plugins]\n{points}")
    return site


@asynccontextmanager
async def _unresponsive_server() -> AsyncIterator[int]:
    """The port of a server that accepts requests and never answers."""

    async def discard(stream: SocketStream) -> None:
        async with stream:
            async for _ in stream:
                pass

    listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
    async with listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, discard)
        yield int(listener.extra(SocketAttribute.local_port))
        tasks.cancel_scope.cancel()


def _unused_port() -> int:
    """A port without a listener."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


# -- objects --------------------------------------------------------------------------------------


def _pod(name: str) -> Json:
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": pod_spec()}
