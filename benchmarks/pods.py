"""Tracks the pods of a workload through a watch."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping

import anyio
import msgspec

from asched.kube.client import ApiClient

_PATH = "/api/v1/pods"
_WATCH_TIMEOUT_S = 3600.0
_CHECK_INTERVAL_S = 0.05


class _Meta(msgspec.Struct, frozen=True, rename="camel"):
    name: str = ""
    namespace: str = ""
    resource_version: str = ""
    labels: dict[str, str] = {}


class _Spec(msgspec.Struct, frozen=True, rename="camel"):
    node_name: str = ""


class _Condition(msgspec.Struct, frozen=True):
    type: str


class _Status(msgspec.Struct, frozen=True):
    conditions: tuple[_Condition, ...] = ()


class _Pod(msgspec.Struct, frozen=True):
    metadata: _Meta
    spec: _Spec = _Spec()
    status: _Status = _Status()


class _Event(msgspec.Struct, frozen=True):
    type: str
    object: _Pod


class _List(msgspec.Struct, frozen=True):
    metadata: _Meta
    items: tuple[_Pod, ...] = ()


class ObservedPod(msgspec.Struct):
    """One pod. Times are seconds of the tracker's clock."""

    namespace: str
    name: str
    labels: Mapping[str, str]
    created_s: float
    """When the API server answered the creation."""
    bound_s: float | None = None
    """When the watch showed the pod with a node."""
    attempted: bool = False
    """Whether the pod has a node or a PodScheduled condition."""
    deleted: bool = False

    def matches(self, namespaces: Collection[str], selector: Mapping[str, str]) -> bool:
        labels = self.labels
        return self.namespace in namespaces and all(
            labels.get(key) == value for key, value in selector.items()
        )


class PodTracker:
    """All pods that were created or observed."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._pods: dict[tuple[str, str], ObservedPod] = {}
        self._changed = anyio.Event()
        self.bound = 0
        self.synced = anyio.Event()
        """Set when the watch has started."""

    def __iter__(self) -> Iterator[ObservedPod]:
        return iter(self._pods.values())

    def created(self, namespace: str, name: str, labels: Mapping[str, str]) -> None:
        """Add a pod that the API server created. The watch may have shown it already."""
        now_s = self._clock()
        pod = self._pods.setdefault(
            (namespace, name), ObservedPod(namespace, name, labels, created_s=now_s)
        )
        pod.created_s = min(pod.created_s, now_s)

    async def wait_until(self, reached: Callable[[], bool]) -> None:
        """Wait until the condition is true. It is checked after changes, at a limited rate."""
        while not reached():
            await self._changed.wait()
            await anyio.sleep(_CHECK_INTERVAL_S)

    async def wait_until_bound(self, namespace: str, name: str) -> None:
        """Wait until the pod has a node."""

        def bound() -> bool:
            pod = self._pods.get((namespace, name))
            return pod is not None and pod.bound_s is not None

        await self.wait_until(bound)

    async def watch(self, client: ApiClient) -> None:
        """Follow all pods of the cluster until cancelled."""
        first = msgspec.json.decode(await client.request("GET", _PATH), type=_List)
        for pod in first.items:
            self._apply(_Event("ADDED", pod))
        version = first.metadata.resource_version
        self.synced.set()
        decoder = msgspec.json.Decoder(_Event)
        while True:
            params = {"watch": "1", "resourceVersion": version}
            async with client.stream(_PATH, params, timeout_s=_WATCH_TIMEOUT_S) as stream:
                rest = b""
                while arrived := await stream.read():
                    *lines, rest = (rest + arrived).split(b"\n")
                    for line in lines:
                        event = decoder.decode(line)
                        version = event.object.metadata.resource_version
                        self._apply(event)
                    self._changed.set()
                    self._changed = anyio.Event()

    def _apply(self, event: _Event) -> None:
        meta = event.object.metadata
        now_s = self._clock()
        pod = self._pods.setdefault(
            (meta.namespace, meta.name),
            ObservedPod(meta.namespace, meta.name, meta.labels, created_s=now_s),
        )
        pod.labels = meta.labels
        pod.deleted = event.type == "DELETED"
        if event.object.spec.node_name:
            if pod.bound_s is None:
                pod.bound_s = now_s
                self.bound += 1
            pod.attempted = True
        elif any(condition.type == "PodScheduled" for condition in event.object.status.conditions):
            pod.attempted = True
