"""Executes the steps of a workload: scheduler_perf's opcodes, through the API.

Source: ``test/integration/scheduler_perf`` of Kubernetes 1.36 (``operations.go``, ``executor.go``).
Nodes have ``kubernetes.io/hostname``, volumes are created bound to their claims, and pods without a
namespace are created in ``namespace-<number of the step>``.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterator, Mapping
from contextlib import AbstractAsyncContextManager
from fnmatch import fnmatchcase
from pathlib import Path
from random import Random
from typing import Protocol

import anyio
import msgspec
from anyio.abc import TaskGroup

from asched.dra.outcomes import AllocationError
from benchmarks import workload_files as w
from benchmarks.api import Api, in_parallel
from benchmarks.devices import ClaimAllocator, slice_of
from benchmarks.kinds import HOSTNAME, Json
from benchmarks.pods import ObservedPod, PodTracker
from benchmarks.templates import Template
from benchmarks.workload_files import Workload, WorkloadError

Measuring = Callable[[str, Collection[str], Mapping[str, str]], AbstractAsyncContextManager[None]]
"""``measuring(name, namespaces, selector)`` measures matching pods while its block is open."""
Report = Callable[[str], None]


class Gate(Protocol):
    """Suspends the scheduler while the measured pods are created."""

    def suspend(self) -> None: ...

    def resume(self) -> None: ...


_NODE: Json = {
    "apiVersion": "v1",
    "kind": "Node",
    "status": {
        "capacity": {"pods": "110", "cpu": "4", "memory": "32Gi"},
        "conditions": [{"status": "True", "type": "Ready"}],
    },
}
"""The node of a step without a template."""
_SIZE = {"cpu": "100m", "memory": "500Mi"}
_POD: Json = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"generateName": "pod-"},
    "spec": {
        "containers": [
            {
                "name": "pause",
                "image": "registry.k8s.io/pause:3.10.1",
                "ports": [{"containerPort": 80}],
                "resources": {"requests": _SIZE, "limits": _SIZE},
            }
        ]
    },
}
"""The pod of a step and a workload without a template."""
_SUFFIX_LETTERS = "bcdfghjklmnpqrstvwxz2456789"


class Executor:
    """Executes the steps of one workload."""

    def __init__(
        self,
        workload: Workload,
        api: Api,
        pods: PodTracker,
        tasks: TaskGroup,
        measuring: Measuring,
        report: Report = lambda text: None,
        backlog: Gate | None = None,
    ) -> None:
        """``tasks`` runs background steps: cancel it after :meth:`run`.

        With a gate ``backlog``, all measured pods exist before the first one is scheduled.
        """
        self._workload = workload
        self._api = api
        self._pods = pods
        self._tasks = tasks
        self._measuring = measuring
        self._report = report
        self._backlog = backlog
        self._unawaited: Counter[str] = Counter()
        """Number of created pods by namespace that no step has awaited yet."""
        self._namespaces: set[str] = set()
        self._open_measurement: AbstractAsyncContextManager[None] | None = None
        self._random = Random(0)

    async def run(self) -> None:
        """Execute all steps. Raises WorkloadError, ApiError, NoResponseError."""
        for index, operation in enumerate(self._workload.case.workload_template):
            self._report(f"step {index}: {operation.__struct_config__.tag}")
            await self._step(index, operation)
        if self._open_measurement is not None:
            raise WorkloadError(f"{self._workload.name}: no stopCollectingMetrics at the end")

    async def _step(self, index: int, operation: w.AnyOperation) -> None:
        match operation:
            case w.CreateNodes():
                await self._create_nodes(index, operation)
            case w.CreateNamespaces():
                await self._create_namespaces(operation)
            case w.CreatePods():
                await self._create_pods(index, operation)
            case w.CreatePodSets():
                for number in range(self._workload.count(operation)):
                    namespace = f"{operation.namespace_prefix}-{number}"
                    await self._create_pods(index, operation.create_pods_op, namespace)
            case w.CreateAny():
                await self._create_any(operation)
            case w.UpdateAny():
                await self._update_any(operation)
            case w.DeletePods():
                await self._delete_pods(operation)
            case w.Churn():
                namespace = operation.namespace or f"namespace-{index}"
                await self._ensure_namespace(namespace)
                self._tasks.start_soon(self._churn, operation, namespace)
            case w.Barrier():
                await self._barrier(operation)
            case w.Sleep():
                await anyio.sleep(self._workload.duration_s(operation))
            case w.CreateResourceDriver():
                await self._create_resource_driver(operation)
            case w.AllocResourceClaims():
                await self._allocate_claims(operation)
            case w.StartCollectingMetrics():
                self._open_measurement = self._measuring(
                    operation.name, operation.namespaces, operation.label_selector
                )
                await self._open_measurement.__aenter__()
            case w.StopCollectingMetrics():
                if self._open_measurement is None:
                    raise WorkloadError("stopCollectingMetrics without startCollectingMetrics")
                measurement, self._open_measurement = self._open_measurement, None
                await measurement.__aexit__(None, None, None)

    def _template(self, path: str) -> Template:
        return Template(self._workload.folder / Path(path))

    async def _ensure_namespace(self, name: str) -> None:
        if name not in self._namespaces:
            self._namespaces.add(name)
            await self._api.create_namespace(name)

    # -- nodes and namespaces -----------------------------------------------------------------

    async def _create_nodes(self, index: int, operation: w.CreateNodes) -> None:
        count = self._workload.count(operation)
        path = operation.node_template_path
        template = self._template(path) if path else None

        async def create(number: int) -> None:
            node = template.render(number, count) if template else copy.deepcopy(_NODE)
            meta = node.setdefault("metadata", {})
            name = meta.setdefault("name", self._name(meta.pop("generateName", f"node-{index}-")))
            labels = meta.setdefault("labels", {})
            labels[HOSTNAME] = name
            if (label_values := operation.label_node_prepare_strategy) is not None:
                values = label_values.label_values
                labels[label_values.label_key] = values[number % len(values)] if values else ""
            if (unique := operation.unique_node_label_strategy) is not None:
                labels[unique.label_key] = str(number)
            volumes = operation.node_allocatable_strategy
            if volumes is not None:
                status = node["status"]
                status["allocatable"] = {**status["capacity"], **volumes.node_allocatable}
                status["capacity"] = status["allocatable"]
                await self._api.create(_csi_node(name, volumes))
            await self._api.create(node)

        await in_parallel(count, create)

    def _name(self, prefix: str) -> str:
        """A generated name, chosen by the client because the hostname label repeats it."""
        return prefix + "".join(self._random.choices(_SUFFIX_LETTERS, k=8))

    async def _create_namespaces(self, operation: w.CreateNamespaces) -> None:
        count, path = self._workload.count(operation), operation.namespace_template_path
        for number in range(count):
            template = self._template(path).render(number, count) if path else None
            name = f"{operation.prefix}-{number}"
            self._namespaces.add(name)
            await self._api.create_namespace(name, template)

    # -- pods ---------------------------------------------------------------------------------

    async def _create_pods(self, index: int, operation: w.CreatePods, namespace: str = "") -> None:
        namespace = namespace or operation.namespace or f"namespace-{index}"
        await self._ensure_namespace(namespace)
        if not operation.collect_metrics:
            await self._create_pods_in(namespace, operation)
            return
        if self._backlog is None or self._workload.is_steady(operation):
            async with self._measuring(namespace, (namespace,), {}):
                await self._create_pods_in(namespace, operation)
            return
        self._backlog.suspend()
        await self._create_pods_in(
            namespace, msgspec.structs.replace(operation, skip_wait_to_completion=True)
        )
        async with self._measuring(namespace, (namespace,), {}):
            self._backlog.resume()
            await self._wait_until_scheduled((namespace,), {})

    async def _create_pods_in(self, namespace: str, operation: w.CreatePods) -> None:
        count = self._workload.count(operation)
        path = operation.pod_template_path or self._workload.case.default_pod_template_path
        template = self._template(path) if path else None
        volumes = _Volumes.of(self._workload, operation)

        async def create(number: int) -> None:
            pod = template.render(number, count) if template else copy.deepcopy(_POD)
            if volumes is not None:
                await volumes.mount(self._api, pod, namespace, number, count)
            name = await self._api.create(pod, namespace)
            self._pods.created(namespace, name, pod["metadata"].get("labels", {}))

        if self._workload.is_steady(operation):
            await self._run_steady_state(namespace, count, operation, create)
            return
        await in_parallel(count, create)
        if operation.skip_wait_to_completion:
            self._unawaited[namespace] += count
        else:
            await self._wait_until_scheduled((namespace,), {})

    async def _run_steady_state(
        self,
        namespace: str,
        count: int,
        operation: w.CreatePods,
        create: Callable[[int], Awaitable[None]],
    ) -> None:
        """Replace each scheduled pod by a new one until the duration is over."""
        await in_parallel(count, create)
        deleted: set[str] = set()

        def scheduled() -> list[ObservedPod]:
            pods = self._existing_pods((namespace,), {})
            return [pod for pod in pods if pod.bound_s is not None and pod.name not in deleted]

        with anyio.move_on_after(self._workload.duration_s(operation)):
            while True:
                await self._pods.wait_until(lambda: bool(scheduled()))
                ready = scheduled()
                deleted.update(pod.name for pod in ready)

                async def replace(number: int, ready: list[ObservedPod] = ready) -> None:
                    await self._api.delete("Pod", ready[number].name, namespace, grace_s=0)
                    await create(number)

                await in_parallel(len(ready), replace)

    async def _delete_pods(self, operation: w.DeletePods) -> None:
        pods = list(self._existing_pods((operation.namespace,), operation.label_selector))
        per_s = operation.delete_pods_per_second

        async def delete(number: int) -> None:
            await self._api.delete("Pod", pods[number].name, operation.namespace)

        async def delete_all() -> None:
            if not per_s:
                await in_parallel(len(pods), delete)
                return
            async for number in _ticks(len(pods), 1 / per_s):
                await delete(number)

        if operation.skip_wait_to_completion:
            self._tasks.start_soon(delete_all)
        else:
            await delete_all()

    # -- waiting ------------------------------------------------------------------------------

    async def _barrier(self, operation: w.Barrier) -> None:
        namespaces = operation.namespaces or tuple(self._unawaited)
        if operation.stage_requirement == "Attempted":
            selector = operation.label_selector
            await self._pods.wait_until(
                lambda: all(pod.attempted for pod in self._existing_pods(namespaces, selector))
            )
            return
        await self._wait_until_scheduled(namespaces, operation.label_selector)
        for namespace in namespaces:
            del self._unawaited[namespace]

    async def _wait_until_scheduled(
        self, namespaces: Collection[str], selector: Mapping[str, str]
    ) -> None:
        await self._pods.wait_until(
            lambda: all(p.bound_s is not None for p in self._existing_pods(namespaces, selector))
        )

    def _existing_pods(
        self, namespaces: Collection[str], selector: Mapping[str, str]
    ) -> Iterator[ObservedPod]:
        return (p for p in self._pods if not p.deleted and p.matches(namespaces, selector))

    # -- other objects ------------------------------------------------------------------------

    async def _create_any(self, operation: w.CreateAny) -> None:
        count = self._workload.count(operation, 1)
        template = self._template(operation.template_path)
        if operation.namespace:
            await self._ensure_namespace(operation.namespace)
        for number in range(count):
            await self._api.create(template.render(number, count), operation.namespace)

    async def _create_resource_driver(self, operation: w.CreateResourceDriver) -> None:
        listed = [node["metadata"]["name"] for node in await self._api.list("Node")]
        names = [name for name in listed if fnmatchcase(name, operation.nodes)]
        devices = self._workload.devices_per_node(operation)

        async def publish(number: int) -> None:
            await self._api.create(slice_of(operation.driver_name, names[number], devices))

        await in_parallel(len(names), publish)

    async def _allocate_claims(self, operation: w.AllocResourceClaims) -> None:
        kinds = ("Node", "ResourceSlice", "DeviceClass")
        allocator = ClaimAllocator(*[await self._api.list(kind) for kind in kinds])
        claims = await self._api.list("ResourceClaim", operation.namespace)
        # Those with devices come first: they keep them.
        claims.sort(key=lambda claim: "allocation" not in claim.get("status", {}))

        async def allocate(number: int) -> None:
            claim = {"kind": "ResourceClaim", **claims[number]}
            try:
                found = allocator.allocate(claim)
            except AllocationError as error:
                raise WorkloadError(f"{self._workload.name}: {error}") from None
            if found is None:
                raise WorkloadError(f"{self._workload.name}: fewer devices than claims")
            await self._api.set_status(claim, {"allocation": msgspec.to_builtins(found)})

        await in_parallel(len(claims), allocate)

    async def _update_any(self, operation: w.UpdateAny) -> None:
        count = self._workload.count(operation, 1)
        template = self._template(operation.template_path)
        pause_s = 1 / operation.update_per_second if operation.update_per_second else 0.0
        async for number in _ticks(count, pause_s):
            obj = template.render(number, count)
            await self._api.update(obj, operation.namespace, operation.subresources)

    async def _churn(self, operation: w.Churn, namespace: str) -> None:
        templates = [self._template(path) for path in operation.template_paths]
        pause_s = operation.interval_milliseconds / 1000
        names: dict[tuple[int, int], str] = {}
        rounds = operation.number if operation.mode == "create" and operation.number else None
        async for turn in _ticks(rounds, pause_s):
            slot = turn % operation.number if operation.mode == "recreate" else turn
            for place, template in enumerate(templates):
                obj = template.render(turn, 0)
                where = namespace if self._api.is_namespaced(obj) else ""
                name = names.pop((place, slot), "")
                if name:
                    await self._api.delete(obj["kind"], name, where)
                else:
                    name = await self._api.create(obj, where)
                    if operation.mode == "recreate":
                        names[place, slot] = name


class _Volumes:
    """Creates a volume for each pod of a step, bound to the pod's claim."""

    def __init__(self, volume: Template, claim: Template) -> None:
        self._volume = volume
        self._claim = claim

    @classmethod
    def of(cls, workload: Workload, operation: w.CreatePods) -> _Volumes | None:
        volume = operation.persistent_volume_template_path
        claim = operation.persistent_volume_claim_template_path
        if not volume or not claim:
            return None
        return cls(Template(workload.folder / volume), Template(workload.folder / claim))

    async def mount(self, api: Api, pod: Json, namespace: str, number: int, count: int) -> None:
        """Create a volume and its claim, and mount the claim in ``pod``."""
        claim_name = f"pvc-{number}"
        volume, claim = self._volume.render(number, count), self._claim.render(number, count)
        name = f"{namespace}-pv-{number}"
        volume.setdefault("metadata", {})["name"] = name
        claim.setdefault("metadata", {})["name"] = claim_name
        spec = volume["spec"]
        if "csi" in spec:
            spec["csi"]["volumeHandle"] = name
        reference = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "name": claim_name}
        spec["claimRef"] = {**reference, "namespace": namespace}
        claim["spec"]["volumeName"] = name
        await api.create_bound(volume)
        await api.create_bound(claim, namespace)
        mounted = {"name": "vol", "persistentVolumeClaim": {"claimName": claim_name}}
        pod["spec"]["volumes"] = [mounted]


def _csi_node(name: str, volumes: w.NodeAllocatable) -> Json:
    drivers = [
        {"name": driver, "nodeID": name, "allocatable": {"count": limit.count}}
        for driver, limit in volumes.csi_node_allocatable.items()
    ]
    meta: Json = {"name": name}
    if volumes.migrated_plugins:
        migrated = ",".join(volumes.migrated_plugins)
        meta["annotations"] = {"storage.alpha.kubernetes.io/migrated-plugins": migrated}
    return {
        "apiVersion": "storage.k8s.io/v1",
        "kind": "CSINode",
        "metadata": meta,
        "spec": {"drivers": drivers},
    }


async def _ticks(count: int | None, pause_s: float) -> AsyncIterator[int]:
    """0, 1, 2 ... at intervals of ``pause_s``, without accumulating delays; None: infinite."""
    number, due_s = 0, anyio.current_time()
    while count is None or number < count:
        due_s += pause_s
        await anyio.sleep_until(due_s)
        yield number
        number += 1
