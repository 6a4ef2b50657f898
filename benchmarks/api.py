"""Objects made, changed and deleted through the API, as a user of the cluster does."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, NamedTuple

import anyio
import msgspec

from asched.kube.client import MERGE_PATCH, ApiClient
from asched.kube.errors import ApiError
from benchmarks.kinds import Json
from benchmarks.workload_files import WorkloadError

PARALLEL: Final = 30
"""Requests under way at once, as in scheduler_perf."""


_GENERATED_NAMES: Final = 8
"""So many names a server draws before it gives up; one that draws once only is asked again."""


class _Collection(NamedTuple):
    path: str
    plural: str
    namespaced: bool


_COLLECTIONS: Final = {
    "Pod": _Collection("/api/v1", "pods", True),
    "Node": _Collection("/api/v1", "nodes", False),
    "Namespace": _Collection("/api/v1", "namespaces", False),
    "Service": _Collection("/api/v1", "services", True),
    "PersistentVolume": _Collection("/api/v1", "persistentvolumes", False),
    "PersistentVolumeClaim": _Collection("/api/v1", "persistentvolumeclaims", True),
    "CSINode": _Collection("/apis/storage.k8s.io/v1", "csinodes", False),
    "StorageClass": _Collection("/apis/storage.k8s.io/v1", "storageclasses", False),
    "PriorityClass": _Collection("/apis/scheduling.k8s.io/v1", "priorityclasses", False),
}


class _Meta(msgspec.Struct, frozen=True):
    name: str


class _Created(msgspec.Struct, frozen=True):
    metadata: _Meta


class Api:
    """Writes objects of the kinds that workloads have."""

    def __init__(self, client: ApiClient) -> None:
        self._client = client
        self._priorities: set[int] = set()
        self._making_class = anyio.Lock()

    async def create(self, obj: Json, namespace: str = "") -> str:
        """The name of the object made. Raises ApiError, NoAnswerError, WorkloadError."""
        if obj["kind"] == "Pod":
            await self._name_priority(obj["spec"])
        path, body = self._path(obj, namespace), msgspec.json.encode(obj)
        for attempts_left in reversed(range(_GENERATED_NAMES)):
            try:
                answer = await self._client.request("POST", path, body=body)
                return msgspec.json.decode(answer, type=_Created).metadata.name
            except ApiError as error:
                # Among ten thousand names of five letters some are drawn twice.
                drawn = "name" not in obj.get("metadata", {})
                if error.status != 409 or not drawn or not attempts_left:
                    raise
        raise AssertionError("the last attempt returns or raises")

    async def create_namespace(self, name: str, template: Json | None = None) -> None:
        """Also where it exists already."""
        obj: Json = template or {"apiVersion": "v1", "kind": "Namespace"}
        obj.setdefault("metadata", {})["name"] = name
        try:
            await self.create(obj)
        except ApiError as error:
            if error.status != 409:
                raise

    async def create_bound(self, obj: Json, namespace: str = "") -> None:
        """A volume or a claim that says it is bound: its status takes a request of its own."""
        name = await self.create(obj, namespace)
        path = f"{self._path(obj, namespace)}/{name}/status"
        bound = msgspec.json.encode({"status": {"phase": "Bound"}})
        await self._client.request("PATCH", path, body=bound, content_type=MERGE_PATCH)

    async def update(self, obj: Json, namespace: str, subresources: tuple[str, ...]) -> None:
        """Replace an object, or some of its subresources, and then its status."""
        path = f"{self._path(obj, namespace)}/{obj['metadata']['name']}"
        if obj["kind"] == "Pod":
            await self._name_priority(obj["spec"])
            await self._keep_what_cannot_change(obj, path)
        status = obj.get("status", {})
        if obj["kind"] == "Node" and "capacity" in status:
            # A server does so with every request it decodes; the embedded one with new nodes only.
            status.setdefault("allocatable", status["capacity"])
        body = msgspec.json.encode(obj)
        for part in subresources or ("",):
            await self._client.request("PUT", f"{path}/{part}".rstrip("/"), body=body)
        if "status" in obj:
            await self._client.request("PUT", f"{path}/status", body=body)

    async def delete(
        self, kind: str, name: str, namespace: str = "", *, grace_s: int | None = None
    ) -> None:
        """Also where it is gone already. ``grace_s`` None leaves it to the object."""
        body = None if grace_s is None else msgspec.json.encode({"gracePeriodSeconds": grace_s})
        path = self._path({"kind": kind}, namespace)
        try:
            await self._client.request("DELETE", f"{path}/{name}", body=body)
        except ApiError as error:
            if error.status != 404:
                raise

    @staticmethod
    def is_namespaced(obj: Json) -> bool:
        return _COLLECTIONS[obj["kind"]].namespaced

    def _path(self, obj: Mapping[str, Any], namespace: str) -> str:
        collection = _COLLECTIONS.get(obj["kind"])
        if collection is None:
            raise WorkloadError(f"objects of kind {obj['kind']} are not known here")
        if not collection.namespaced:
            return f"{collection.path}/{collection.plural}"
        return f"{collection.path}/namespaces/{namespace}/{collection.plural}"

    async def _name_priority(self, spec: Json) -> None:
        """The benchmark gives pods a bare priority, with the admission of priorities turned off.
        Where it is on, a class of that value has to be named; it does no harm where it is off."""
        priority = spec.get("priority")
        if priority is None:
            return
        name = f"scheduler-perf-{priority}"
        spec["priorityClassName"] = name
        async with self._making_class:
            if priority not in self._priorities:
                made = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass"}
                try:
                    await self.create({**made, "metadata": {"name": name}, "value": priority})
                except ApiError as error:
                    if error.status != 409:
                        raise
                self._priorities.add(priority)

    async def _keep_what_cannot_change(self, obj: Json, path: str) -> None:
        """Fill in what the API server filled in when the pod was made: an update must repeat it."""
        stored = msgspec.json.decode(await self._client.request("GET", path))
        spec, before = obj["spec"], stored["spec"]
        for field, value in before.items():
            if field == "tolerations":
                given = spec.get("tolerations") or []
                spec["tolerations"] = [*value, *(t for t in given if t not in value)]
            elif field == "containers":
                for container, old in zip(spec["containers"], value, strict=True):
                    container.update({k: v for k, v in old.items() if k not in container})
            elif field != "schedulingGates":
                spec.setdefault(field, value)


async def in_parallel(count: int, make: Callable[[int], Awaitable[None]]) -> None:
    """``make(0)`` to ``make(count - 1)``, so many at once as :data:`PARALLEL` says."""
    numbers = iter(range(count))

    async def worker() -> None:
        for number in numbers:
            await make(number)

    async with anyio.create_task_group() as tasks:
        for _ in range(min(PARALLEL, count)):
            tasks.start_soon(worker)
