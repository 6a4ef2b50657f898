"""A test cluster for daemons: the embedded API server over real HTTP, with checks."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import anyio

from asched.apiserver.cluster import EmbeddedCluster
from asched.apiserver.faults import Fault, Faults
from asched.apiserver.group_forms import KubernetesVersion
from asched.apiserver.http import ApiServer
from asched.apiserver.kubelet import simulated_node
from asched.apiserver.storage import DELETED, StoreChange
from asched.comparer.journal import JournalComparer
from asched.config.file import parse
from asched.config.registry import PluginRegistry
from asched.daemon.daemon import Daemon, running_daemon
from asched.daemon.process import Runtime
from asched.daemon.startup import DaemonContext
from asched.daemon.telemetry.health import Check
from asched.daemon.telemetry.metrics import Metrics
from asched.framework.interface import Plugin
from asched.journal import open_journal
from asched.journal.store import JournalStore
from asched.kube.connection import connect
from asched.model.quantity import milli_value

Object = dict[str, Any]

TIMEOUT_S = 60.0
"""Time limit of a wait; only a failing test reaches it."""
KUBE = "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n"
OWN = "apiVersion: asched.dev/v1\nkind: AschedConfiguration\n"


def failed_checks(checks: Sequence[Check]) -> list[str]:
    """What is wrong now, a line for each failed check."""
    return [problem for check in checks if (problem := check.problem())]


class ObservedFaults(Faults):
    """Faults, with a callback for every request before it takes effect."""

    def __init__(self) -> None:
        super().__init__()
        self.on_request: Callable[[str, str], None] = lambda verb, resource: None

    def take(self, verb: str, resource: str) -> Fault | None:
        self.on_request(verb, resource)
        return super().take(verb, resource)


class Placements:
    """The node of each pod, and every violated invariant."""

    def __init__(self, cluster: EmbeddedCluster) -> None:
        self._cluster = cluster
        self.node_of: dict[str, str] = {}
        """By uid, for all pods that ever existed."""
        self.order: list[str] = []
        """Names of pods in binding order."""
        self.violations: list[str] = []
        """Pods that changed their node, nodes over capacity."""
        self._charged: dict[str, tuple[str, int]] = {}
        self._used_millis: dict[str, int] = {}
        cluster.listen("pods", self._on_pod)

    def _on_pod(self, change: StoreChange) -> None:
        pod = change.new.obj
        uid, node = pod["metadata"]["uid"], pod["spec"].get("nodeName", "")
        before = self.node_of.get(uid, "")
        if before not in ("", node):
            self.violations.append(f"{pod['metadata']['name']} moved from {before} to {node}")
        if change.type == DELETED or pod["status"].get("phase") in ("Succeeded", "Failed"):
            node, millis = self._charged.pop(uid, ("", 0))
            self._used_millis[node] = self._used_millis.get(node, 0) - millis
        elif node and not before:
            self.node_of[uid] = node
            self.order.append(pod["metadata"]["name"])
            self._charge(uid, node, cpu_millis(pod))
        elif uid in self._charged:
            # In-place resize.
            charged_node, millis = self._charged[uid]
            self._used_millis[charged_node] -= millis
            self._charged[uid] = node, cpu_millis(pod)
            self._used_millis[node] = self._used_millis.get(node, 0) + cpu_millis(pod)

    def _charge(self, uid: str, node: str, millis: int) -> None:
        self._charged[uid] = node, millis
        used = self._used_millis[node] = self._used_millis.get(node, 0) + millis
        allocatable = self._cluster.get("nodes", node)["status"]["allocatable"]["cpu"]
        if used > milli_value(allocatable):
            self.violations.append(f"{node} is over capacity: {used}m of {allocatable}")


def cpu_millis(pod: Object) -> int:
    requested = [c["resources"].get("requests", {}) for c in pod["spec"]["containers"]]
    return sum(milli_value(requests.get("cpu", "0")) for requests in requested)


class World:
    """The cluster, its server and its observers; created by :func:`world`."""

    def __init__(
        self,
        cluster: EmbeddedCluster,
        server: ApiServer,
        faults: ObservedFaults,
        folder: Path,
        listener: _Listener,
    ) -> None:
        self._listener = listener
        self.cluster = cluster
        self.server = server
        self.faults = faults
        self.folder = folder
        self.placements = Placements(cluster)
        self.journal = folder / "journal.db"
        self.kubeconfig = server.kubeconfig(folder / "kubeconfig.yaml")
        self._changed = anyio.Event()
        for resource in ("pods", "nodes", "events.events.k8s.io"):
            cluster.listen(resource, self._on_change)

    def _on_change(self, _: StoreChange) -> None:
        self.touch()

    def touch(self) -> None:
        """Check the condition of :meth:`until` again."""
        self._changed.set()
        self._changed = anyio.Event()

    async def until(self, holds: Callable[[], bool]) -> None:
        """Wait for the condition, which is checked after every change in the cluster."""
        with anyio.fail_after(TIMEOUT_S):
            while not holds():
                assert not self.placements.violations
                await self._changed.wait()
        assert not self.placements.violations

    # -- objects ------------------------------------------------------------------------------

    def add_node(self, name: str, cpu: str = "4", pods: str = "110", **labels: str) -> None:
        capacity = {"cpu": cpu, "memory": "16Gi", "ephemeral-storage": "50Gi", "pods": pods}
        self.cluster.create("nodes", simulated_node(name, capacity=capacity, labels=labels))

    def add_pod(
        self, name: str, cpu: str = "100m", *, labels: Mapping[str, str] | None = None, **spec: Any
    ) -> Object:
        container = {"name": "c", "image": "app", "resources": {"requests": {"cpu": cpu}}}
        return self.cluster.create(
            "pods",
            {
                "metadata": {"name": name, "labels": dict(labels or {})},
                "spec": {"containers": [container], **spec},
            },
        )

    def add_pods(self, count: int, prefix: str, cpu: str = "100m") -> None:
        for number in range(count):
            self.add_pod(f"{prefix}-{number}", cpu)

    # -- state --------------------------------------------------------------------------------

    def pod(self, name: str) -> Object:
        return self.cluster.get("pods", name, namespace="default")

    def node_of(self, name: str) -> str:
        node: str = self.pod(name)["spec"].get("nodeName", "")
        return node

    def condition(self, name: str) -> Mapping[str, str]:
        """The pod's PodScheduled condition, or an empty mapping."""
        for condition in self.pod(name)["status"].get("conditions") or ():
            if condition["type"] == "PodScheduled":
                found: Mapping[str, str] = condition
                return found
        return {}

    def message(self, name: str) -> str:
        return self.condition(name).get("message", "")

    def unbound(self) -> list[str]:
        pods = self.cluster.list("pods", fields="spec.nodeName=")
        return [pod["metadata"]["name"] for pod in pods]

    def events(self, name: str) -> list[tuple[str, str]]:
        """Reasons and notes of the Events about a pod."""
        found = self.cluster.list("events", namespace="default")
        return [(e["reason"], e["message"]) for e in found if e["involvedObject"]["name"] == name]

    @asynccontextmanager
    async def outage(self) -> AsyncIterator[None]:
        """Stop the API server during the block."""
        await self._listener.stop()
        try:
            yield
        finally:
            await self._listener.start()

    # -- daemons ------------------------------------------------------------------------------

    @asynccontextmanager
    async def daemon(
        self,
        config: str = "",
        *plugins: type[Plugin],
        metrics: Metrics | None = None,
        runtime: Runtime | None = None,
        compare_at_end: bool = True,
    ) -> AsyncIterator[Daemon]:
        """Run a daemon in this process, with the journal of this world. ``compare_at_end`` as for
        :meth:`daemon_on`."""
        async with (
            open_journal(str(self.journal)) as store,
            self.daemon_on(
                store,
                config,
                *plugins,
                metrics=metrics,
                runtime=runtime,
                compare_at_end=compare_at_end,
            ) as daemon,
        ):
            yield daemon

    @asynccontextmanager
    async def daemon_on(
        self,
        store: JournalStore,
        config: str = "",
        *plugins: type[Plugin],
        metrics: Metrics | None = None,
        runtime: Runtime | None = None,
        compare_at_end: bool = True,
    ) -> AsyncIterator[Daemon]:
        """``compare_at_end``: check at the end that the state follows from the journal."""
        registry = registry_with(*plugins)
        configuration = parse(config, "test", registry, empty_is_defaults=True)
        async with (
            connect(self.kubeconfig, observer=metrics.requests if metrics else None) as client,
            running_daemon(
                DaemonContext(
                    configuration=configuration,
                    registry=registry,
                    client=client,
                    journal=store,
                    metrics=metrics or Metrics(),
                    runtime=runtime or Runtime.of_this_process(),
                )
            ) as daemon,
        ):
            yield daemon
            if compare_at_end:
                await check_against_journal(daemon, store, registry)


async def check_against_journal(
    daemon: Daemon, store: JournalStore, registry: PluginRegistry
) -> None:
    """Check that the state of a daemon follows from its journal. A daemon between two appends, or
    with a journal that cannot be read, is not checked."""
    if not daemon.engine.all_committed:
        return
    runtime = Runtime.of_this_process()
    comparer = JournalComparer(store, registry.load, runtime, daemon.cluster, daemon.engine, 1_000)
    await comparer.compare()
    assert not comparer.differences


def registry_with(*plugins: type[Plugin]) -> PluginRegistry:
    """A registry of the installed plugins and these."""
    installed = PluginRegistry.discover()
    known = {name: installed.load(name) for name in installed.names}
    return PluginRegistry(known | {plugin.name: plugin for plugin in plugins})


class _Listener:
    """Runs the API server, and can restart it at the same address."""

    def __init__(self, server: ApiServer) -> None:
        self._server = server
        self._running = AsyncExitStack()
        self._port = 0

    async def start(self) -> None:
        await self._running.enter_async_context(self._server.run(port=self._port))
        self._port = int(self._server.url.rpartition(":")[2])

    async def stop(self) -> None:
        await self._running.aclose()


@asynccontextmanager
async def world(
    folder: Path,
    nodes: int = 0,
    version: KubernetesVersion = KubernetesVersion.V1_36,
    **node: str,
) -> AsyncIterator[World]:
    """Serve a cluster with ``nodes`` equal nodes."""
    faults = ObservedFaults()
    cluster = EmbeddedCluster(seed=1, version=version)
    server = ApiServer(cluster, faults=faults)
    listener = _Listener(server)
    await listener.start()
    try:
        created = World(cluster, server, faults, folder, listener)
        for number in range(nodes):
            created.add_node(f"n{number}", **node)
        yield created
    finally:
        await listener.stop()
