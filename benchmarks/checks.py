"""What the workloads of Kubernetes do not ask: a start in a full cluster, a steady stream of pods,
and whether those who are slow hold up those who have nothing to do with them.
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
from benchmarks.kinds import HOSTNAME, Json, pod_spec
from benchmarks.measurement import Measurements, Report
from benchmarks.operations import Report as Progress
from benchmarks.processes import SchedulerOptions
from benchmarks.workload_files import Workload
from benchmarks.workload_run import Setting, Stage, report_of, run, stage

_NAMESPACE = "checked"
_EXTENDED = "example.com/slow"
_EXTENDER_TIMEOUT_S = 5
_CONCERNED_PODS = 50


class StartFigures(msgspec.Struct):
    """A start of the scheduler in a cluster that is there already."""

    name: str
    nodes: int
    pods: int
    first_decision_s: float
    """From the start of the process to the binding of a pod that waited."""
    cpu_s: float
    peak_rss_mib: float


class SteadyFigures(msgspec.Struct):
    """Pods that arrive at a steady rate."""

    pods_per_s: int
    pods: int
    seen_to_decided_p50_ms: float
    seen_to_decided_p99_ms: float
    created_to_bound_p50_ms: float
    created_to_bound_p99_ms: float
    scheduler_cpu_ms_per_pod: float


class InterferenceFigures(msgspec.Struct):
    """How plain pods fare while something else is in trouble."""

    trouble: str
    pods_per_s: float
    scheduler_cpu_ms_per_pod: float


# -- a start ----------------------------------------------------------------------------------------


async def start(nodes: int, pods: int, progress: Progress) -> list[StartFigures]:
    """Start on ``pods`` bound pods: with an empty journal, and again with the full one."""
    async with stage(Setting()) as at:
        await _fill(at, nodes, pods, progress)
        figures: list[StartFigures] = []
        for name in ("first start", "start with the journal of the first"):
            waiting = f"waiting-{len(figures)}"
            await at.api.create(_pod(waiting), _NAMESPACE)
            at.pods.created(_NAMESPACE, waiting, {})
            begin_s = time.monotonic()
            async with at.scheduler(Setting(), progress) as scheduler:
                await at.pods.until_bound(_NAMESPACE, waiting)
                first_s = time.monotonic() - begin_s
                cpu_s = await scheduler.settled_cpu_s()
                rss_mib = scheduler.peak_rss_mib()
            row = StartFigures(
                name, nodes, pods, round(first_s, 2), round(cpu_s, 2), round(rss_mib, 1)
            )
            progress(f"{name}: {row}")
            figures.append(row)
        return figures


async def _fill(at: Stage, nodes: int, pods: int, progress: Progress) -> None:
    await at.api.create_namespace(_NAMESPACE)

    async def create_node(number: int) -> None:
        await at.api.create(_node(number))

    async def create_pod(number: int) -> None:
        pod = _pod(f"bound-{number}")
        pod["spec"]["nodeName"] = f"node-{number % nodes}"
        await at.api.create(pod, _NAMESPACE)

    progress(f"creating {nodes} nodes and {pods} bound pods")
    await in_parallel(nodes, create_node)
    await in_parallel(pods, create_pod)


# -- a stream ---------------------------------------------------------------------------------------


async def steady(nodes: int, per_s: int, seconds: int, progress: Progress) -> SteadyFigures:
    """``per_s`` pods a second, evenly, for ``seconds``."""
    async with stage(Setting()) as at:
        await _fill(at, nodes, 0, progress)
        async with at.scheduler(Setting(), progress) as scheduler:
            measurements = Measurements(at.pods, scheduler, time.monotonic)
            await _warm_up(at)
            async with measurements.measuring(_NAMESPACE, (_NAMESPACE,), {}):
                await _arrive(at, per_s, seconds * per_s)
            report = report_of("steady", measurements, scheduler, at.pods)
        await journal_times.complete(report, at.journal)
        return _steady_figures(report, per_s)


async def _warm_up(at: Stage) -> None:
    """A pod before the measurement: caches are listed, connections are open."""
    await at.api.create_namespace("before")
    await at.api.create(_pod("before"), "before")
    at.pods.created("before", "before", {})
    await at.pods.until_bound("before", "before")


async def _arrive(at: Stage, per_s: int, count: int) -> None:
    begin_s = anyio.current_time()

    async def create(number: int) -> None:
        await anyio.sleep_until(begin_s + number / per_s)
        name = f"steady-{number}"
        await at.api.create(_pod(name), _NAMESPACE)
        at.pods.created(_NAMESPACE, name, {})

    await in_parallel(count, create)
    await at.pods.until(lambda: all(fate.bound_s is not None for fate in at.pods))


def _steady_figures(report: Report, per_s: int) -> SteadyFigures:
    phase = report.phases[0]
    decided, bound = phase.seen_to_decided_ms, phase.created_to_bound_ms
    assert decided is not None, "pods were decided on"
    assert bound is not None, "pods were bound"
    return SteadyFigures(
        per_s, phase.pods, decided.perc50, decided.perc99, bound.perc50, bound.perc99,
        phase.scheduler_cpu_ms_per_pod,
    )  # fmt: skip


# -- troubles of others -----------------------------------------------------------------------------

_PLUGIN = """\
import asyncio
import time

from asched.framework import SUCCESS, FilterPlugin, Isolation, PreBindPlugin


class Slow(PreBindPlugin):
    name = "Slow"
    api_version = 1

    async def pre_bind(self, client, pod, node_name):
        await asyncio.sleep(600)
        return SUCCESS


class Endless(FilterPlugin):
    name = "Endless"
    api_version = 1
    runs_in = Isolation.WORKER

    def filter(self, state, pod, node):
        while True:
            time.sleep(600)


class Broken(FilterPlugin):
    name = "Broken"
    api_version = 1

    def filter(self, state, pod, node):
        raise RuntimeError("broken")
"""
_KUBE = "---\napiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n"
_SLOW_PROFILE = """\
profiles:
- schedulerName: default-scheduler
- schedulerName: slow
  plugins: {{multiPoint: {{enabled: [{{name: {plugin}}}]}}}}
"""


class Trouble(StrEnum):
    """Who is in trouble beside plain pods."""

    NONE = "none"
    SLOW_EVENTS = "Event sink answers after 5 s"
    REFUSED_EVENTS = "Event sink answers 503"
    SILENT_EXTENDER = "extender never answers"
    DEAD_EXTENDER = "extender is not there"
    SLOW_PLUGIN = "plugin takes 10 min in PreBind"
    ENDLESS_PLUGIN = "plugin never returns, in its worker"
    BROKEN_PLUGIN = "plugin raises in Filter"


_PLUGIN_OF = {
    Trouble.SLOW_PLUGIN: "Slow",
    Trouble.ENDLESS_PLUGIN: "Endless",
    Trouble.BROKEN_PLUGIN: "Broken",
}


async def interference(
    nodes: int,
    pods: int,
    folder: Path,
    progress: Progress,
    troubles: Sequence[Trouble] = tuple(Trouble),
) -> list[InterferenceFigures]:
    """Plain pods beside slow and dead helpers of others. ``folder`` takes a plugin's distribution."""
    site = _distribution(folder)
    figures = []
    async with _silent_server() as port:
        for trouble in troubles:
            workload = _beside(nodes, pods, folder, trouble)
            report = await run(workload, _setting(trouble, site, port), progress)
            phase = report.phases[0]
            row = InterferenceFigures(trouble, phase.pods_per_s, phase.scheduler_cpu_ms_per_pod)
            progress(str(row))
            figures.append(row)
    return figures


def _setting(trouble: Trouble, site: Path, silent_port: int) -> Setting:
    lasting = "*1000000@events"
    match trouble:
        case Trouble.NONE:
            return Setting()
        case Trouble.SLOW_EVENTS:
            return Setting(faults=f"delay=5{lasting}")
        case Trouble.REFUSED_EVENTS:
            return Setting(faults=f"503{lasting}")
        case Trouble.SILENT_EXTENDER:
            return Setting(scheduler=SchedulerOptions(_KUBE + _extender(silent_port)))
        case Trouble.DEAD_EXTENDER:
            return Setting(scheduler=SchedulerOptions(_KUBE + _extender(_nobody_listens())))
        case Trouble.SLOW_PLUGIN | Trouble.ENDLESS_PLUGIN | Trouble.BROKEN_PLUGIN:
            profiles = _SLOW_PROFILE.format(plugin=_PLUGIN_OF[trouble])
            return Setting(scheduler=SchedulerOptions(_KUBE + profiles, site))


def _beside(nodes: int, pods: int, folder: Path, trouble: Trouble) -> Workload:
    """Plain pods, measured, after some that need the one in trouble."""
    concerned = _pod("")
    concerned["metadata"] = {"generateName": "concerned-"}
    steps: list[w.AnyOperation] = [w.CreateNodes(count=nodes)]
    if trouble in (Trouble.SILENT_EXTENDER, Trouble.DEAD_EXTENDER):
        sizes = concerned["spec"]["containers"][0]["resources"]
        sizes["limits"] = sizes["requests"] = {**sizes["requests"], _EXTENDED: "1"}
    elif trouble in _PLUGIN_OF:
        concerned["spec"]["schedulerName"] = "slow"
    template = folder / "concerned.yaml"
    template.write_bytes(msgspec.yaml.encode(concerned))
    steps.append(
        w.CreatePods(
            count=_CONCERNED_PODS, pod_template_path=str(template), skip_wait_to_completion=True
        )
    )
    steps.append(w.CreatePods(count=pods, collect_metrics=True))
    return Workload(w.Case("beside", tuple(steps), ()), w.WorkloadSize(f"{nodes}Nodes"), folder)


def _extender(port: int) -> str:
    extender = {
        "urlPrefix": f"http://127.0.0.1:{port}",
        "filterVerb": "filter",
        "httpTimeout": f"{_EXTENDER_TIMEOUT_S}s",
        "managedResources": [{"name": _EXTENDED, "ignoredByScheduler": True}],
    }
    return msgspec.yaml.encode({"extenders": [extender]}).decode()


def _distribution(folder: Path) -> Path:
    """A plugin as pip would leave it on disk; the folder to put on the search path."""
    site = folder / "site"
    info = site / "slow-1.0.dist-info"
    info.mkdir(parents=True)
    (site / "slow_plugin.py").write_text(_PLUGIN)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: slow\nVersion: 1.0\n")
    points = "".join(f"{name} = slow_plugin:{name}\n" for name in _PLUGIN_OF.values())
    (info / "entry_points.txt").write_text(f"[asched.plugins]\n{points}")
    return site


@asynccontextmanager
async def _silent_server() -> AsyncIterator[int]:
    """A port where calls are taken and never answered."""

    async def listen_only(stream: SocketStream) -> None:
        async with stream:
            async for _ in stream:
                pass

    listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
    async with listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, listen_only)
        yield int(listener.extra(SocketAttribute.local_port))
        tasks.cancel_scope.cancel()


def _nobody_listens() -> int:
    """A port that is free now."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


# -- objects ----------------------------------------------------------------------------------------


def _node(number: int) -> Json:
    name = f"node-{number}"
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": {HOSTNAME: name}},
        "status": {
            "capacity": {"pods": "110", "cpu": "4", "memory": "32Gi"},
            "conditions": [{"status": "True", "type": "Ready"}],
        },
    }


def _pod(name: str) -> Json:
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": pod_spec()}
