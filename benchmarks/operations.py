"""Runs the steps of a workload: what scheduler_perf's opcodes mean, through the API.

Source of the meanings: ``test/integration/scheduler_perf`` of Kubernetes 1.36 (``operations.go``,
``executor.go``). Nodes get ``kubernetes.io/hostname``, volumes come bound to their claims, pods
without a namespace of their own get ``namespace-<number of the step>``.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterator, Mapping
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from random import Random
from typing import Protocol

import anyio
import msgspec
from anyio.abc import TaskGroup

from benchmarks import workload_files as w
from benchmarks.api import Api, in_parallel
from benchmarks.kinds import HOSTNAME, Json
from benchmarks.pods import PodFate, Pods
from benchmarks.templates import Template
from benchmarks.workload_files import Workload, WorkloadError

Measuring = Callable[[str, Collection[str], Mapping[str, str]], AbstractAsyncContextManager[None]]
"""Measures the pods of some namespaces with some labels while the block is open; first its name."""
Report = Callable[[str], None]


class Gate(Protocol):
    """Holds the scheduler back while the pods that it is measured on are made."""

    def pause(self) -> None: ...

    def proceed(self) -> None: ...


_NODE: Json = {
    "apiVersion": "v1",
    "kind": "Node",
    "status": {
        "capacity": {"pods": "110", "cpu": "4", "memory": "32Gi"},
        "conditions": [{"status": "True", "type": "Ready"}],
    },
}
"""The node of a workload that names no template."""
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
"""The pod of a step that names no template, nor the workload."""
_SUFFIX_LETTERS = "bcdfghjklmnpqrstvwxz2456789"


class Executor:
    """One run of one workload."""

    def __init__(
        self,
        workload: Workload,
        api: Api,
        pods: Pods,
        tasks: TaskGroup,
        measuring: Measuring,
        report: Report = lambda text: None,
        backlog: Gate | None = None,
    ) -> None:
        """``tasks`` is for what goes on beside the steps: cancel it when :meth:`run` is over. With a
        gate ``backlog`` measured pods are all there before the first of them is scheduled."""
        self._workload = workload
        self._api = api
        self._pods = pods
        self._tasks = tasks
        self._measuring = measuring
        self._report = report
        self._backlog = backlog
        self._waited_for: Counter[str] = Counter()
        """Namespaces with pods that no step has waited for yet."""
        self._namespaces: set[str] = set()
        self._open_measurement: AbstractAsyncContextManager[None] | None = None
        self._random = Random(0)

    async def run(self) -> None:
        """All steps. Raises WorkloadError, ApiError, NoAnswerError."""
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
                await self._need_namespace(namespace)
                self._tasks.start_soon(self._churn, operation, namespace)
            case w.Barrier():
                await self._barrier(operation)
            case w.Sleep():
                await anyio.sleep(self._workload.duration_s(operation))
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

    async def _need_namespace(self, name: str) -> None:
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
            if (in_turn := operation.label_node_prepare_strategy) is not None:
                values = in_turn.label_values
                labels[in_turn.label_key] = values[number % len(values)] if values else ""
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
        """As the API server generates one. Given here because the hostname label repeats it."""
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
        await self._need_namespace(namespace)
        if not operation.collect_metrics:
            await self._create_pods_in(namespace, operation)
            return
        if self._backlog is None or operation.steady_state:
            async with self._measuring(namespace, (namespace,), {}):
                await self._create_pods_in(namespace, operation)
            return
        self._backlog.pause()
        await self._create_pods_in(
            namespace, msgspec.structs.replace(operation, skip_wait_to_completion=True)
        )
        async with self._measuring(namespace, (namespace,), {}):
            self._backlog.proceed()
            await self._until_none_waits((namespace,), {})

    async def _create_pods_in(self, namespace: str, operation: w.CreatePods) -> None:
        count = self._workload.count(operation)
        path = operation.pod_template_path or self._workload.case.default_pod_template_path
        template = self._template(path) if path else None
        volumes = _Volumes.of(self._workload, operation)

        async def create(number: int) -> None:
            pod = template.render(number, count) if template else copy.deepcopy(_POD)
            if volumes is not None:
                await volumes.give(self._api, pod, namespace, number, count)
            name = await self._api.create(pod, namespace)
            self._pods.created(namespace, name, pod["metadata"].get("labels", {}))

        if operation.steady_state:
            await self._keep_steady(namespace, count, operation, create)
            return
        await in_parallel(count, create)
        if operation.skip_wait_to_completion:
            self._waited_for[namespace] += count
        else:
            await self._until_none_waits((namespace,), {})

    async def _keep_steady(
        self,
        namespace: str,
        count: int,
        operation: w.CreatePods,
        create: Callable[[int], Awaitable[None]],
    ) -> None:
        """Delete each scheduled pod and create another, until the time is up."""
        await in_parallel(count, create)
        deleted: set[str] = set()

        def scheduled() -> list[PodFate]:
            fates = self._fates((namespace,), {})
            return [f for f in fates if f.bound_s is not None and f.name not in deleted]

        with anyio.move_on_after(self._workload.duration_s(operation)):
            while True:
                await self._pods.until(lambda: bool(scheduled()))
                ready = scheduled()
                deleted.update(fate.name for fate in ready)

                async def replace(number: int, ready: list[PodFate] = ready) -> None:
                    await self._api.delete("Pod", ready[number].name, namespace, grace_s=0)
                    await create(number)

                await in_parallel(len(ready), replace)

    async def _delete_pods(self, operation: w.DeletePods) -> None:
        fates = list(self._fates((operation.namespace,), operation.label_selector))
        per_s = operation.delete_pods_per_second

        async def delete(number: int) -> None:
            await self._api.delete("Pod", fates[number].name, operation.namespace)

        async def delete_all() -> None:
            if not per_s:
                await in_parallel(len(fates), delete)
                return
            async for number in _ticks(len(fates), 1 / per_s):
                await delete(number)

        if operation.skip_wait_to_completion:
            self._tasks.start_soon(delete_all)
        else:
            await delete_all()

    # -- waiting ------------------------------------------------------------------------------

    async def _barrier(self, operation: w.Barrier) -> None:
        namespaces = operation.namespaces or tuple(self._waited_for)
        if operation.stage_requirement == "Attempted":
            await self._pods.until(
                lambda: all(f.attempted for f in self._fates(namespaces, operation.label_selector))
            )
            return
        await self._until_none_waits(namespaces, operation.label_selector)
        for namespace in namespaces:
            del self._waited_for[namespace]

    async def _until_none_waits(
        self, namespaces: Collection[str], selector: Mapping[str, str]
    ) -> None:
        await self._pods.until(
            lambda: all(f.bound_s is not None for f in self._fates(namespaces, selector))
        )

    def _fates(self, namespaces: Collection[str], selector: Mapping[str, str]) -> Iterator[PodFate]:
        """The pods there are."""
        return (f for f in self._pods if not f.gone and f.is_of(namespaces, selector))

    # -- other objects ------------------------------------------------------------------------

    async def _create_any(self, operation: w.CreateAny) -> None:
        count, template = (
            self._workload.count(operation, 1),
            self._template(operation.template_path),
        )
        if operation.namespace:
            await self._need_namespace(operation.namespace)
        for number in range(count):
            await self._api.create(template.render(number, count), operation.namespace)

    async def _update_any(self, operation: w.UpdateAny) -> None:
        count, template = (
            self._workload.count(operation, 1),
            self._template(operation.template_path),
        )
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
    """A volume for each pod of a step, bound to the pod's claim."""

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

    async def give(self, api: Api, pod: Json, namespace: str, number: int, count: int) -> None:
        """Make a volume and its claim, and mount the claim in ``pod``."""
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
    """0, 1, 2 ..., the next one ``pause_s`` after the one before was due; without end for None."""
    number, due_s = 0, anyio.current_time()
    while count is None or number < count:
        due_s += pause_s
        await anyio.sleep_until(due_s)
        yield number
        number += 1
