"""The steps of a workload, on an embedded cluster with a real daemon."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import anyio
import anyio.lowlevel
import pytest

from asched.apiserver.cluster import EmbeddedCluster
from asched.apiserver.storage import StoreChange
from asched.kube.connection import connect
from benchmarks import workload_files as w
from benchmarks.api import Api
from benchmarks.kinds import HOSTNAME, Json
from benchmarks.operations import Executor
from benchmarks.pods import PodTracker
from benchmarks.workload_files import Workload, WorkloadError
from tests.daemon.world import TIMEOUT_S, World, world

TEMPLATES = {
    "pod.yaml": """
apiVersion: v1
kind: Pod
metadata: {generateName: pod-, labels: {app: a}}
spec: {containers: [{name: c, image: i, resources: {requests: {cpu: 100m}}}]}
""",
    "named-pod.yaml": """
apiVersion: v1
kind: Pod
metadata: {name: "pod-{{.Index}}", labels: {app: named}}
spec:
  schedulingGates: [{name: held}]
  terminationGracePeriodSeconds: 0
  containers: [{name: c, image: i}]
""",
    "free-pod.yaml": """
apiVersion: v1
kind: Pod
metadata: {name: "pod-{{.Index}}", labels: {app: named}}
spec: {containers: [{name: c, image: i}]}
""",
    "urgent-pod.yaml": """
apiVersion: v1
kind: Pod
metadata: {generateName: urgent-}
spec: {priority: 10, containers: [{name: c, image: i}]}
""",
    "huge-pod.yaml": """
apiVersion: v1
kind: Pod
metadata: {generateName: huge-, labels: {app: huge}}
spec: {containers: [{name: c, image: i, resources: {requests: {cpu: 90}}}]}
""",
    "node.yaml": """
apiVersion: v1
kind: Node
metadata: {generateName: n-}
status:
  capacity: {pods: "20", cpu: "4", memory: 8Gi}
  conditions: [{type: Ready, status: "True"}]
""",
    "volume.yaml": """
apiVersion: v1
kind: PersistentVolume
spec:
  accessModes: [ReadOnlyMany]
  capacity: {storage: 1Gi}
  csi: {driver: ebs.csi.aws.com}
  persistentVolumeReclaimPolicy: Retain
""",
    "claim.yaml": """
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {annotations: {pv.kubernetes.io/bind-completed: "true"}}
spec: {accessModes: [ReadOnlyMany], resources: {requests: {storage: 1Gi}}}
""",
    "namespace.yaml": """
apiVersion: v1
kind: Namespace
metadata: {labels: {team: devops}}
""",
    "service.yaml": """
apiVersion: v1
kind: Service
metadata: {generateName: service-}
spec: {selector: {app: a}, ports: [{port: 80}]}
""",
}


class RecordedMeasurements:
    """Records the measurements that steps begin and end."""

    def __init__(self) -> None:
        self.begun: list[tuple[str, tuple[str, ...], dict[str, str]]] = []
        self.ended = 0

    @asynccontextmanager
    async def measuring(
        self, name: str, namespaces: Collection[str], selector: Mapping[str, str]
    ) -> AsyncIterator[None]:
        self.begun.append((name, tuple(namespaces), dict(selector)))
        yield
        self.ended += 1


class RecordingGate:
    """Records suspensions, and the number of pods on resumption."""

    def __init__(self) -> None:
        self.cluster: EmbeddedCluster | None = None
        self.calls: list[str] = []

    def suspend(self) -> None:
        self.calls.append("suspend")

    def resume(self) -> None:
        assert self.cluster is not None
        self.calls.append(f"resume with {self.cluster.count('pods')}")


class Bench:
    """Runs steps in a cluster, and shows its objects afterwards."""

    def __init__(self, folder: Path) -> None:
        self.measured = RecordedMeasurements()
        self.cluster = EmbeddedCluster()
        self.placed: list[str] = []
        self.changes: list[tuple[str, str]] = []
        """Resource and type of each change."""
        self._folder = folder
        for name, text in TEMPLATES.items():
            (folder / name).write_text(text)

    async def run(self, *steps: w.AnyOperation, backlog: RecordingGate | None = None) -> None:
        case = w.Case("test", steps, (), default_pod_template_path="pod.yaml")
        workload = Workload(case, w.WorkloadSize("size", params={"n": 3}), self._folder)
        async with (
            world(self._folder) as at,
            at.daemon(),
            connect(at.kubeconfig, None) as client,
            anyio.create_task_group() as tasks,
        ):
            self._follow(at, backlog)
            pods = PodTracker(time.monotonic)
            tasks.start_soon(pods.watch, client)
            await pods.synced.wait()
            api, measuring = Api(client), self.measured.measuring
            executor = Executor(workload, api, pods, tasks, measuring, backlog=backlog)
            with anyio.fail_after(TIMEOUT_S):
                await executor.run()
            tasks.cancel_scope.cancel()

    def _follow(self, at: World, gate: RecordingGate | None) -> None:
        self.cluster, self.placed = at.cluster, at.placements.order
        for resource in ("services", "nodes"):
            at.cluster.listen(resource, partial(self._record_change, resource))
        if gate is not None:
            gate.cluster = at.cluster

    def _record_change(self, resource: str, change: StoreChange) -> None:
        self.changes.append((resource, change.type))

    def objects(self, resource: str, namespace: str = "") -> list[Json]:
        return self.cluster.list(resource, namespace=namespace)

    def unbound(self) -> list[Json]:
        return self.cluster.list("pods", fields="spec.nodeName=")


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


NODES = w.CreateNodes(count=3)


async def test_create_nodes_sets_hostname_and_label_values_round_robin(bench: Bench) -> None:
    zones = w.NodeLabels("zone", ("a", "b"))
    await bench.run(
        w.CreateNodes(
            count_param="$n", node_template_path="node.yaml", label_node_prepare_strategy=zones
        ),
        w.CreateNodes(count=1, unique_node_label_strategy=w.UniqueNodeLabel("own")),
    )
    nodes = [node["metadata"] for node in bench.objects("nodes")]
    assert all(meta["labels"][HOSTNAME] == meta["name"] for meta in nodes)
    assert sorted(meta["labels"].get("zone", "") for meta in nodes) == ["", "a", "a", "b"]
    assert [meta["labels"]["own"] for meta in nodes if "own" in meta["labels"]] == ["0"]
    assert sum(meta["name"].startswith("n-") for meta in nodes) == 3


async def test_create_nodes_sets_volume_limits(bench: Bench) -> None:
    volumes = w.NodeAllocatable({"attachable-volumes-x": "39"}, {"x": w.CsiAllocatable(39)}, ("y",))
    await bench.run(w.CreateNodes(count=1, node_allocatable_strategy=volumes))
    (node,), (csi,) = bench.objects("nodes"), bench.objects("csinodes")
    assert node["status"]["allocatable"]["attachable-volumes-x"] == "39"
    assert csi["metadata"]["name"] == node["metadata"]["name"]
    assert csi["spec"]["drivers"][0]["allocatable"] == {"count": 39}
    assert csi["metadata"]["annotations"] == {"storage.alpha.kubernetes.io/migrated-plugins": "y"}


async def test_create_pods_waits_until_measured_pods_are_scheduled(bench: Bench) -> None:
    await bench.run(NODES, w.CreatePods(count=5), w.CreatePods(count=9, collect_metrics=True))
    assert not bench.unbound()
    assert [len(bench.objects("pods", f"namespace-{n}")) for n in (1, 2)] == [5, 9]
    assert bench.measured.begun == [("namespace-2", ("namespace-2",), {})]
    assert bench.measured.ended == 1


async def test_backlog_exists_before_scheduler_resumes(bench: Bench) -> None:
    gate = RecordingGate()
    await bench.run(NODES, w.CreatePods(count=6, collect_metrics=True), backlog=gate)
    assert gate.calls == ["suspend", "resume with 6"]
    assert not bench.unbound()


async def test_create_pod_sets_uses_labelled_namespaces(bench: Bench) -> None:
    await bench.run(
        NODES,
        w.CreateNamespaces(prefix="ns", count=2, namespace_template_path="namespace.yaml"),
        w.CreatePodSets(count=2, namespace_prefix="ns", create_pods_op=w.CreatePods(count=2)),
    )
    created = [
        ns["metadata"] for ns in bench.objects("namespaces") if "team" in ns["metadata"]["labels"]
    ]
    assert sorted(meta["name"] for meta in created) == ["ns-0", "ns-1"]
    assert [len(bench.objects("pods", f"ns-{n}")) for n in (0, 1)] == [2, 2]


async def test_create_pods_binds_volume_to_each_claim(bench: Bench) -> None:
    await bench.run(
        NODES,
        w.CreatePods(
            count=2,
            namespace="v",
            persistent_volume_template_path="volume.yaml",
            persistent_volume_claim_template_path="claim.yaml",
        ),
    )
    assert not bench.unbound()
    volumes = {each["metadata"]["name"]: each for each in bench.objects("persistentvolumes")}
    for claim in bench.objects("persistentvolumeclaims", "v"):
        volume = volumes.pop(claim["spec"]["volumeName"])
        assert claim["status"]["phase"] == volume["status"]["phase"] == "Bound"
        assert volume["spec"]["claimRef"]["name"] == claim["metadata"]["name"]
        assert volume["spec"]["csi"]["volumeHandle"] == volume["metadata"]["name"]
    assert not volumes


async def test_create_pods_sets_priority_through_class(bench: Bench) -> None:
    await bench.run(NODES, w.CreatePods(count=3, pod_template_path="urgent-pod.yaml"))
    assert [pod["spec"]["priority"] for pod in bench.objects("pods")] == [10, 10, 10]


async def test_barrier_waits_until_ungated_pods_are_scheduled(bench: Bench) -> None:
    await bench.run(
        NODES,
        w.CreatePods(
            count=4, namespace="g", pod_template_path="named-pod.yaml", skip_wait_to_completion=True
        ),
        w.Barrier(stage_requirement="Attempted", label_selector={"app": "named"}),
        w.UpdateAny(count=4, template_path="free-pod.yaml", namespace="g", update_per_second=100),
        w.Barrier(),
    )
    assert all(pod["spec"]["nodeName"] for pod in bench.objects("pods", "g"))


async def test_attempted_barrier_does_not_wait_for_unschedulable_pods(bench: Bench) -> None:
    await bench.run(
        NODES,
        w.CreatePods(
            count=2, namespace="h", pod_template_path="huge-pod.yaml", skip_wait_to_completion=True
        ),
        w.Barrier(stage_requirement="Attempted"),
        w.DeletePods(namespace="h", label_selector={"app": "huge"}),
    )
    assert bench.objects("pods") == []


async def test_metrics_cover_several_steps(bench: Bench) -> None:
    await bench.run(
        NODES,
        w.StartCollectingMetrics(namespaces=("m",), name="all", label_selector={"app": "a"}),
        w.CreatePods(count=2, namespace="m"),
        w.StopCollectingMetrics(),
    )
    assert bench.measured.begun == [("all", ("m",), {"app": "a"})]
    assert bench.measured.ended == 1


async def test_missing_stop_of_metrics_is_error(bench: Bench) -> None:
    with pytest.raises(BaseExceptionGroup) as raised:
        await bench.run(w.StartCollectingMetrics(namespaces=("m",)))
    assert raised.group_contains(WorkloadError, match="no stopCollectingMetrics")


async def test_churn_recreates_objects(bench: Bench) -> None:
    paths = ("service.yaml", "node.yaml")
    churn = w.Churn(mode="recreate", number=1, template_paths=paths, interval_milliseconds=10)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(bench.run, NODES, churn, w.Sleep(duration="600s"))
        with anyio.fail_after(TIMEOUT_S):
            while any(bench.changes.count((kind, "DELETED")) < 2 for kind in ("services", "nodes")):
                await anyio.lowlevel.checkpoint()
        tasks.cancel_scope.cancel()
    assert len(bench.objects("services")) <= 1
    assert len(bench.objects("nodes")) <= 4


async def test_churn_in_create_mode_stops_at_its_number(bench: Bench) -> None:
    churn = w.Churn(
        mode="create", number=4, template_paths=("service.yaml",), interval_milliseconds=1
    )
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(bench.run, NODES, churn, w.Sleep(duration="600s"))
        with anyio.fail_after(TIMEOUT_S):
            while len(bench.objects("services", "namespace-1")) < 4:
                await anyio.lowlevel.checkpoint()
        # Long enough for a hundred more.
        await anyio.sleep(0.1)
        tasks.cancel_scope.cancel()
    assert len(bench.objects("services", "namespace-1")) == 4


async def test_steady_state_replaces_scheduled_pods(bench: Bench) -> None:
    steady = w.CreatePods(count=3, namespace="s", steady_state=True, duration="600s")
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(bench.run, NODES, steady)
        with anyio.fail_after(TIMEOUT_S):
            while len(bench.placed) <= 3:
                await anyio.lowlevel.checkpoint()
        assert len(bench.objects("pods", "s")) <= 4
        tasks.cancel_scope.cancel()


async def test_steady_state_ends_after_its_duration(bench: Bench) -> None:
    steady = w.CreatePods(count=3, namespace="s", steady_state=True, duration="1s")
    await bench.run(NODES, steady)
    assert len(bench.placed) >= 3


async def test_unknown_kind_is_rejected(bench: Bench, tmp_path: Path) -> None:
    (tmp_path / "odd.yaml").write_text("{apiVersion: v1, kind: Oddity, metadata: {name: a}}")
    with pytest.raises(BaseExceptionGroup) as raised:
        await bench.run(w.CreateAny(template_path="odd.yaml"))
    assert raised.group_contains(WorkloadError, match="unsupported kind Oddity")
