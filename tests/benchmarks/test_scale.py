"""The generated cluster of the scale benchmark, and its chart."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from xml.etree import ElementTree as ET

from aiohttp import web

from asched.kube.client import ApiClient
from asched.kube.reflector import Reflector, ReflectorSettings
from asched.model.pod import Pod
from asched.model.resources import Resource
from asched.state.observe import observe_object
from asched.state.records import ObjectObserved, PodObserved
from benchmarks.scale import chart
from benchmarks.scale.cluster import PODS_PER_TEMPLATE, GeneratedCluster
from benchmarks.scale.figures import RunFigures, ScaleFigures
from benchmarks.scale.server import ScaleServer
from tests.kube.harness import ManualClock, View, client_for, running
from tests.state.profiles import DEFAULT, a_fold


@asynccontextmanager
async def served(server: ScaleServer) -> AsyncIterator[ApiClient]:
    handler = web.Server(server.handle, access_log=None)
    runner = web.ServerRunner(handler, handler_cancellation=True, shutdown_timeout=1.0)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        async with client_for(url, ManualClock()) as client:
            yield client
    finally:
        await runner.cleanup()


async def test_generated_pods_are_listed_in_pages_bound_and_watched() -> None:
    server, view = ScaleServer(GeneratedCluster(nodes=3, pods=25)), View()
    pending = server.create()
    settings = ReflectorSettings(page_limit=10)
    async with (
        served(server) as client,
        running(Reflector(client, Resource.PODS, view, settings).run),
    ):
        await view.until(lambda: len(view.names(Resource.PODS)) == 26)
        namespace, name = GeneratedCluster.pod_key(pending)
        path = f"/api/v1/namespaces/{namespace}/pods/{name}/binding"
        await client.request("POST", path, body=b'{"target":{"name":"node-2"}}')
        key, pods = f"{namespace}/{name}", view.of(Resource.PODS)
        await view.until(lambda: isinstance(p := pods[key], Pod) and p.node_name == "node-2")
    assert server.first_binding_s is not None
    nodes = {pod.node_name for pod in pods.values() if isinstance(pod, Pod)}
    assert nodes == {"node-0", "node-1", "node-2"}


async def test_generated_pods_are_copies_of_few_templates() -> None:
    server, view = ScaleServer(GeneratedCluster(nodes=2, pods=2 * PODS_PER_TEMPLATE)), View()
    async with served(server) as client, running(Reflector(client, Resource.PODS, view).run):
        await view.until(lambda: len(view.names(Resource.PODS)) == 2 * PODS_PER_TEMPLATE)
    fold, kinds = a_fold(*DEFAULT), []
    for pod in view.of(Resource.PODS).values():
        record = observe_object(fold.state, pod)
        assert record is not None
        fold.apply(record)
        kinds.append(type(record))
    assert kinds.count(ObjectObserved) == 2
    assert kinds.count(PodObserved) == len(kinds) - 2


def test_chart_has_a_line_for_each_figure() -> None:
    run = RunFigures(elapsed_s=3.0, cpu_s=2.0, peak_mib=512)
    rows = [ScaleFigures(n, 10 * n, run, 500, 9, 30, 0.5, 500, 10, run, run) for n in (10, 100)]
    drawn = ET.fromstring(chart.drawn(rows))
    lines = [e for e in drawn.iter() if e.tag.endswith("polyline")]
    assert [line.get("points") for line in lines] == ["56,44 310,44"] * 3 + ["436,77 690,77"] * 3
