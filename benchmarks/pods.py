"""What became of the pods of a workload, as a watch shows it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping

import anyio
import msgspec

from asched.kube.client import ApiClient

_PATH = "/api/v1/pods"
_WATCH_TIMEOUT_S = 3600.0
_LOOK_S = 0.05


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


class PodFate(msgspec.Struct):
    """One pod. Times are seconds of the clock that :class:`Pods` was given."""

    namespace: str
    name: str
    labels: Mapping[str, str]
    created_s: float
    """When the API server had confirmed it."""
    bound_s: float | None = None
    """When the watch showed it with a node."""
    attempted: bool = False
    """It has a node, or a condition that says why not."""
    gone: bool = False

    def is_of(self, namespaces: Collection[str], selector: Mapping[str, str]) -> bool:
        labels = self.labels
        return self.namespace in namespaces and all(
            labels.get(key) == value for key, value in selector.items()
        )


class Pods:
    """All pods that were created or seen."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._fates: dict[tuple[str, str], PodFate] = {}
        self._changed = anyio.Event()
        self.bound = 0
        self.synced = anyio.Event()
        """Set once the watch has begun."""

    def __iter__(self) -> Iterator[PodFate]:
        return iter(self._fates.values())

    def created(self, namespace: str, name: str, labels: Mapping[str, str]) -> None:
        """The API server confirmed a pod. The watch may have shown it already."""
        now_s = self._clock()
        fate = self._fates.setdefault(
            (namespace, name), PodFate(namespace, name, labels, created_s=now_s)
        )
        fate.created_s = min(fate.created_s, now_s)

    async def until(self, reached: Callable[[], bool]) -> None:
        """Wait until it is so; looked at after changes, but not so often as to take the machine away
        from what is measured."""
        while not reached():
            await self._changed.wait()
            await anyio.sleep(_LOOK_S)

    async def until_bound(self, namespace: str, name: str) -> None:
        """Wait until this pod has a node."""

        def bound() -> bool:
            fate = self._fates.get((namespace, name))
            return fate is not None and fate.bound_s is not None

        await self.until(bound)

    async def watch(self, client: ApiClient) -> None:
        """Follow all pods of the cluster until cancelled."""
        first = msgspec.json.decode(await client.request("GET", _PATH), type=_List)
        for pod in first.items:
            self._seen(_Event("ADDED", pod))
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
                        self._seen(event)
                    self._changed.set()
                    self._changed = anyio.Event()

    def _seen(self, event: _Event) -> None:
        meta = event.object.metadata
        now_s = self._clock()
        fate = self._fates.setdefault(
            (meta.namespace, meta.name),
            PodFate(meta.namespace, meta.name, meta.labels, created_s=now_s),
        )
        fate.labels = meta.labels
        fate.gone = event.type == "DELETED"
        if event.object.spec.node_name:
            if fate.bound_s is None:
                fate.bound_s = now_s
                self.bound += 1
            fate.attempted = True
        elif any(condition.type == "PodScheduled" for condition in event.object.status.conditions):
            fate.attempted = True
