"""The demo's workload: node pools, groups of pods, and the loader that creates them over HTTP.

A seed determines everything. Each group gets a share of its pool. No pod requests more than an
eighth of a node, and a quarter of each pool stays free. So every feasible pod fits, in any order of
arrival.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final

import anyio
import msgspec
from anyio.streams.memory import MemoryObjectReceiveStream

from asched.apiserver.kubelet import REGION, RUN_SECONDS, ZONES, simulated_node
from asched.kube.client import STRATEGIC_MERGE_PATCH, ApiClient, RequestOptions
from asched.model.pod import DEFAULT_SCHEDULER_NAME

Object = dict[str, Any]

NAMESPACES: Final = ("shop", "data", "ml", "ops")
GPU: Final = "nvidia.com/gpu"
GPU_MODEL: Final = "nvidia.com/gpu.product"
NIC: Final = "nic.example.com"
"""Driver and class of the devices that every node has."""
DEVICES: Final = f"4,driver={NIC},gbit=100,queues=64k"
"""For ``asched apiserver --devices``."""
POOL: Final = "pool"
PODS_PER_NODE: Final = 110

_GPU_TAINT: Final = {"key": GPU, "value": "present", "effect": "NoSchedule"}
_GPU_TOLERATION: Final = {"key": GPU, "operator": "Exists", "effect": "NoSchedule"}
_SPOT_TAINT: Final = {"key": "spot", "value": "true", "effect": "PreferNoSchedule"}
_LARGEST_PART_OF_A_NODE: Final = 8
_CPU_SHARE: Final = 0.62
_MEMORY_SHARE: Final = 0.35
"""Share of a pool that all its feasible pods request together."""

PRIORITY_CLASSES: Final = {"production": 100_000, "interactive": 10_000, "batch": 100}


@dataclass(frozen=True)
class Pool:
    """Equal nodes. Those of a ``late`` pool join while the workload runs."""

    name: str
    count: int
    cpu: int
    memory_gi: int
    gpus: int = 0
    gpu_model: str = ""
    taints: tuple[Object, ...] = ()
    late: bool = False

    def nodes(self) -> Iterator[Object]:
        for index in range(self.count):
            labels = {
                POOL: self.name,
                "topology.kubernetes.io/zone": ZONES[index % len(ZONES)],
                "topology.kubernetes.io/region": REGION,
            }
            capacity = {
                "cpu": str(self.cpu),
                "memory": f"{self.memory_gi}Gi",
                "ephemeral-storage": "500Gi",
                "pods": str(PODS_PER_NODE),
            }
            if self.gpus:
                labels[GPU_MODEL] = self.gpu_model
                capacity[GPU] = str(self.gpus)
            name = f"{self.name}-{index:03d}"
            node = simulated_node(name, capacity=capacity, labels=labels, index=index)
            if self.taints:
                node["spec"]["taints"] = list(self.taints)
            yield node


def pools(nodes: int) -> tuple[Pool, ...]:
    """A mixed cluster of ``nodes`` nodes, and some that join later."""
    memory, a100, l4 = (max(1, round(nodes * part)) for part in (0.12, 0.09, 0.06))
    spot = max(1, nodes // 20)
    general = nodes - memory - a100 - l4 - spot
    return (
        Pool("general", general, cpu=16, memory_gi=64),
        Pool("spot", spot, cpu=16, memory_gi=64, taints=(_SPOT_TAINT,)),
        Pool("memory", memory, cpu=32, memory_gi=256),
        Pool("a100", a100, cpu=96, memory_gi=768, gpus=8, gpu_model="A100", taints=(_GPU_TAINT,)),
        Pool("l4", l4, cpu=48, memory_gi=192, gpus=4, gpu_model="L4", taints=(_GPU_TAINT,)),
        Pool(
            "h100",
            max(1, nodes // 50),
            cpu=96,
            memory_gi=768,
            gpus=8,
            gpu_model="H100",
            taints=(_GPU_TAINT,),
            late=True,
        ),
    )


@dataclass(frozen=True)
class DemoArrival:
    """A pod and the time of its creation."""

    at_s: float
    """Seconds after the start."""
    pod: Object


@dataclass
class DemoWorkload:
    """Everything that the demo creates."""

    pools: tuple[Pool, ...]
    arrivals: list[DemoArrival] = field(default_factory=list)
    feasible: set[str] = field(default_factory=set)
    """Keys of the schedulable pods."""
    infeasible: dict[str, str] = field(default_factory=dict)
    """Keys of the unschedulable pods, with the reason."""


@dataclass(frozen=True)
class _WorkloadKind:
    """Pods of a Deployment or a Job."""

    name: str
    namespace: str
    pool: str
    share: float
    """Share of all feasible pods."""
    replicas: tuple[int, int]
    """Minimum and maximum number of pods in one group."""
    priority_class: str = ""
    run_s: tuple[float, float] | None = None
    """Range of seconds until success; None for pods that never end."""
    spec: Mapping[str, Any] = field(default_factory=dict)
    gpus: tuple[int, ...] = ()
    """Possible numbers of GPUs per pod of a group."""


def _node_affinity(key: str, value: str, *, required: bool = True) -> Object:
    term = {"matchExpressions": [{"key": key, "operator": "In", "values": [value]}]}
    rule: Object = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}
    if not required:
        preferred = [{"weight": 50, "preference": term}]
        rule = {"preferredDuringSchedulingIgnoredDuringExecution": preferred}
    return {"affinity": {"nodeAffinity": rule}}


_L4: Final[Object] = {"nodeSelector": {GPU_MODEL: "L4"}, "tolerations": [_GPU_TOLERATION]}
_A100: Final[Object] = {**_node_affinity(GPU_MODEL, "A100"), "tolerations": [_GPU_TOLERATION]}
_H100: Final[Object] = {"nodeSelector": {GPU_MODEL: "H100"}, "tolerations": [_GPU_TOLERATION]}
_WITH_NIC: Final[Object] = {"resourceClaims": [{"name": "nic", "resourceClaimTemplateName": "nic"}]}
_MEMORY: Final = _node_affinity(POOL, "memory")
_ZONE_A: Final = _node_affinity("topology.kubernetes.io/zone", "zone-a", required=False)

_GROUPS: Final = (
    _WorkloadKind("web", "shop", "general", 0.28, (20, 60), "production"),
    _WorkloadKind("api", "shop", "general", 0.20, (10, 30), "production", spec=_ZONE_A),
    _WorkloadKind("report", "data", "general", 0.20, (20, 50), "batch", run_s=(2.0, 6.0)),
    _WorkloadKind("stream", "data", "general", 0.02, (2, 10), "interactive", spec=_WITH_NIC),
    _WorkloadKind("cache", "data", "memory", 0.10, (5, 20), "interactive", spec=_MEMORY),
    _WorkloadKind("exporter", "ops", "general", 0.10, (5, 15)),
    _WorkloadKind("infer", "ml", "l4", 0.04, (1, 6), "interactive", gpus=(1,), spec=_L4),
    _WorkloadKind("train", "ml", "a100", 0.05, (1, 8), "batch", gpus=(1, 2, 4), spec=_A100),
    _WorkloadKind("finetune", "ml", "h100", 0.01, (1, 4), "batch", gpus=(1, 2), spec=_H100),
)
"""GPU groups get fewer pods if their pool lacks GPUs. ``web`` gets the remaining pods."""

_INFEASIBLE: Final[tuple[tuple[str, str, Object, Object], ...]] = (
    ("giant", "requests more cpu than any node has", {"cpu": "500", "memory": "1Gi"}, {}),
    ("lost", "selects a label of no node", {"cpu": "100m"}, {"nodeSelector": {"disk": "tape"}}),
    (
        "intolerant",
        "selects a GPU node without tolerating its taint",
        {"cpu": "100m"},
        {"nodeSelector": {GPU_MODEL: "A100"}},
    ),
    (
        "greedy",
        "requests 16 GPUs, and nodes have at most 8",
        {"cpu": "1", GPU: "16"},
        {"tolerations": [_GPU_TOLERATION]},
    ),
    (
        "quantum",
        "claims a device of a class that does not exist",
        {"cpu": "100m"},
        {"resourceClaims": [{"name": "qpu", "resourceClaimTemplateName": "quantum"}]},
    ),
    (
        "gated",
        "has a scheduling gate",
        {"cpu": "100m"},
        {"schedulingGates": [{"name": "example.com/quota"}]},
    ),
)
"""Name, reason, requests and spec of each kind of unschedulable pod."""


_TEMPLATES: Final = (("data", "nic", NIC), ("ops", "quantum", "quantum.example.com"))
"""Namespace, name and device class of each ResourceClaimTemplate."""


def _template(name: str, device_class: str) -> Object:
    request = {"name": "device", "exactly": {"deviceClassName": device_class}}
    spec = {"spec": {"devices": {"requests": [request]}}}
    return {"metadata": {"name": name}, "spec": spec}


def most_pods(nodes: int) -> int:
    """Maximum number of feasible pods for ``nodes`` nodes."""
    general = next(pool.count for pool in pools(nodes) if pool.name == "general")
    return general * PODS_PER_NODE * 3 // 4


def build(
    nodes: int, pods: int, over_s: float, seed: int, scheduler_name: str = DEFAULT_SCHEDULER_NAME
) -> DemoWorkload:
    """``pods`` feasible pods and some infeasible ones, created within ``over_s`` seconds."""
    workload = _WorkloadBuilder(nodes, pods, over_s, seed).build()
    for arrival in workload.arrivals:
        arrival.pod["spec"]["schedulerName"] = scheduler_name
    return workload


_NODES_JOIN_AT: Final = 0.45
_CORDON_AT: Final = 0.5
_UNCORDON_AT: Final = 0.8
"""Times of changes to the cluster, as shares of the time in which pods are created."""
_CORDONED_PART: Final = 0.05


class _WorkloadBuilder:
    def __init__(self, nodes: int, pods: int, over_s: float, seed: int) -> None:
        self._random = Random(seed)
        self._pods = pods
        self._over_s = over_s
        self._workload = DemoWorkload(pools(nodes))
        self._pools = {pool.name: pool for pool in self._workload.pools}
        # With at most half of a pool's GPUs in use and at most 4 of 8 per pod, every pod fits.
        self._gpus_left = {p.name: p.count * p.gpus // 2 for p in self._workload.pools}

    def build(self) -> DemoWorkload:
        left = self._pods
        for group in _GROUPS[1:]:
            left -= self._add_groups(group, round(self._pods * group.share))
        self._add_groups(_GROUPS[0], left)
        for kind in _INFEASIBLE:
            self._add_infeasible(*kind)
        self._workload.arrivals.sort(key=lambda arrival: arrival.at_s)
        return self._workload

    def _add_groups(self, kind: _WorkloadKind, count: int) -> int:
        """Add up to ``count`` pods of a kind, in groups. Returns the number added."""
        made = 0
        while made < count:
            replicas = min(self._random.randint(*kind.replicas), count - made)
            requests, fitting = self._requests(kind, replicas)
            if not fitting:
                break
            self._add_group(kind, fitting, requests)
            made += fitting
        return made

    def _requests(self, kind: _WorkloadKind, replicas: int) -> tuple[Object, int]:
        """The requests of each pod of a group, and the number of pods that fit."""
        pool = self._pools[kind.pool]
        requests: Object = {}
        if kind.gpus:
            left = self._gpus_left[kind.pool]
            gpus = self._random.choice([n for n in kind.gpus if n <= max(1, left)])
            replicas = min(replicas, left // gpus)
            self._gpus_left[kind.pool] -= gpus * replicas
            requests[GPU] = str(gpus)
        peers = max(1, round(self._pods * sum(g.share for g in _GROUPS if g.pool == kind.pool)))
        spread = self._random.uniform(0.6, 1.2)
        nodes_per_pod = pool.count / peers
        most = 1 / _LARGEST_PART_OF_A_NODE
        cpu = min(_CPU_SHARE * nodes_per_pod * spread, most) * pool.cpu
        memory = min(_MEMORY_SHARE * nodes_per_pod * spread, most) * pool.memory_gi
        requests["cpu"] = f"{max(10, round(cpu * 100) * 10)}m"
        requests["memory"] = f"{max(16, round(memory * 64) * 16)}Mi"
        return requests, replicas

    def _add_group(self, kind: _WorkloadKind, replicas: int, requests: Object) -> None:
        suffix = f"{self._random.getrandbits(20):05x}"
        # Pods for nodes that join later are created early, and wait.
        latest = 0.3 if self._pools[kind.pool].late else 0.9
        starts_s = self._random.uniform(0.0, self._over_s * latest)
        for index in range(replicas):
            name = f"{kind.name}-{suffix}-{index:03d}"
            spec: Object = {**kind.spec}
            annotations = {}
            if kind.priority_class:
                spec["priorityClassName"] = kind.priority_class
            if kind.run_s is not None:
                spec["restartPolicy"] = "Never"
                annotations[RUN_SECONDS] = f"{self._random.uniform(*kind.run_s):.1f}"
            labels = {"app": kind.name, "group": f"{kind.name}-{suffix}"}
            pod = _pod(kind.namespace, name, requests, spec, labels, annotations)
            # A controller creates a group in a burst.
            at_s = min(starts_s + index * 0.005, self._over_s)
            self._workload.arrivals.append(DemoArrival(at_s, pod))
            self._workload.feasible.add(f"{kind.namespace}/{name}")

    def _add_infeasible(self, name: str, why: str, requests: Object, spec: Object) -> None:
        for index in range(max(1, min(5, self._pods // 200))):
            full_name = f"{name}-{index}"
            pod = _pod("ops", full_name, requests, dict(spec), {"app": name}, {})
            # After the last change of a node, so that each is rejected by the same nodes.
            at_s = self._random.uniform(_UNCORDON_AT, 1.0) * self._over_s
            self._workload.arrivals.append(DemoArrival(at_s, pod))
            self._workload.infeasible[f"ops/{full_name}"] = why


def _pod(
    namespace: str, name: str, requests: Object, spec: Object, labels: Object, annotations: Object
) -> Object:
    resources: Object = {"requests": requests}
    if GPU in requests:
        # Extended resources need equal requests and limits.
        resources["limits"] = {GPU: requests[GPU]}
    container = {"name": "main", "image": f"example.com/{labels['app']}:1", "resources": resources}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "namespace": namespace,
            "name": name,
            "labels": labels,
            "annotations": annotations,
        },
        "spec": {**spec, "containers": [container]},
    }


_CONCURRENT: Final = 24


@dataclass
class LoadProgress:
    """The progress of a :class:`Loader`."""

    created_pods: int = 0
    notices: list[str] = field(default_factory=list)
    """Changes to nodes, in order."""
    done: bool = False


class Loader:
    """Creates the objects of the workload."""

    def __init__(
        self, client: ApiClient, workload: DemoWorkload, over_s: float, clock: Callable[[], float]
    ) -> None:
        """:param clock: seconds on a monotonic clock."""
        self.progress = LoadProgress()
        self._client = client
        self.workload = workload
        self._over_s = over_s
        self._clock = clock
        self._nodes_changed = anyio.Event()

    async def prepare(self) -> None:
        """Create namespaces, priority classes, templates of claims and the first nodes.

        Raises ApiError and NoResponseError.
        """
        for name in NAMESPACES:
            await self._post("/api/v1/namespaces", {"metadata": {"name": name}})
        for name, value in PRIORITY_CLASSES.items():
            body = {"metadata": {"name": name}, "value": value}
            await self._post("/apis/scheduling.k8s.io/v1/priorityclasses", body)
        for namespace, name, device_class in _TEMPLATES:
            path = f"/apis/resource.k8s.io/v1/namespaces/{namespace}/resourceclaimtemplates"
            await self._post(path, _template(name, device_class))
        nodes = [n for pool in self.workload.pools if not pool.late for n in pool.nodes()]
        await self._in_parallel([("/api/v1/nodes", node) for node in nodes])

    async def run(self) -> None:
        """Create the pods in time. Meanwhile nodes join, are cordoned and uncordoned."""
        begun_s = self._clock()
        send, receive = anyio.create_memory_object_stream[DemoArrival](_CONCURRENT)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._change_nodes)
            for _ in range(_CONCURRENT):
                tasks.start_soon(self._create_pods, receive.clone())
            receive.close()
            with send:
                for arrival in self.workload.arrivals:
                    await anyio.sleep(max(0.0, begun_s + arrival.at_s - self._clock()))
                    if arrival.at_s >= _UNCORDON_AT * self._over_s:
                        await self._nodes_changed.wait()
                    await send.send(arrival)
        self.progress.done = True

    async def _create_pods(self, arrivals: MemoryObjectReceiveStream[DemoArrival]) -> None:
        with arrivals:
            async for arrival in arrivals:
                namespace = arrival.pod["metadata"]["namespace"]
                await self._post(f"/api/v1/namespaces/{namespace}/pods", arrival.pod)
                self.progress.created_pods += 1

    async def _change_nodes(self) -> None:
        begun_s = self._clock()
        general = [node["metadata"]["name"] for node in self.workload.pools[0].nodes()]
        cordoned = general[: max(1, round(len(general) * _CORDONED_PART))]
        await self._until(begun_s, _NODES_JOIN_AT)
        late = [node for pool in self.workload.pools if pool.late for node in pool.nodes()]
        await self._in_parallel([("/api/v1/nodes", node) for node in late])
        self.progress.notices.append(
            f"{_nodes(len(late))} joined: {late[0]['metadata']['name']} ..."
        )
        await self._until(begun_s, _CORDON_AT)
        await self._cordon(cordoned, True)
        await self._until(begun_s, _UNCORDON_AT)
        await self._cordon(cordoned, False)
        self._nodes_changed.set()

    async def _until(self, begun_s: float, part: float) -> None:
        await anyio.sleep(max(0.0, begun_s + part * self._over_s - self._clock()))

    async def _cordon(self, names: list[str], unschedulable: bool) -> None:
        body = msgspec.json.encode({"spec": {"unschedulable": unschedulable or None}})
        for name in names:
            await self._client.request(
                "PATCH", f"/api/v1/nodes/{name}", body=body, content_type=STRATEGIC_MERGE_PATCH,
                options=RequestOptions(idempotent=True),
            )  # fmt: skip
        word = "cordoned" if unschedulable else "uncordoned"
        self.progress.notices.append(f"{_nodes(len(names))} {word}: {names[0]} ...")

    async def _in_parallel(self, requests: Iterable[tuple[str, Object]]) -> None:
        limit = anyio.CapacityLimiter(_CONCURRENT)

        async def post(path: str, body: Object) -> None:
            async with limit:
                await self._post(path, body)

        async with anyio.create_task_group() as tasks:
            for path, body in requests:
                tasks.start_soon(post, path, body)

    async def _post(self, path: str, body: Object) -> None:
        await self._client.request("POST", path, body=msgspec.json.encode(body))


def _nodes(count: int) -> str:
    return "1 node" if count == 1 else f"{count} nodes"
