"""Creates, updates and deletes objects through the API, as a user of the cluster does."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, NamedTuple

import anyio
import msgspec

from asched.kube.client import MERGE_PATCH, ApiClient
from asched.kube.errors import ApiError
from benchmarks.kinds import Json, with_token
from benchmarks.workload_files import WorkloadError

PARALLEL: Final = 30
"""Concurrent requests, as in scheduler_perf."""

_NAME_ATTEMPTS: Final = 8
"""Attempts to create an object with a generated name. A real API server tries as often."""


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
    "DeviceClass": _Collection("/apis/resource.k8s.io/v1", "deviceclasses", False),
    "ResourceSlice": _Collection("/apis/resource.k8s.io/v1", "resourceslices", False),
    "ResourceClaim": _Collection("/apis/resource.k8s.io/v1", "resourceclaims", True),
    "ResourceClaimTemplate": _Collection(
        "/apis/resource.k8s.io/v1", "resourceclaimtemplates", True
    ),
    "PriorityClass": _Collection("/apis/scheduling.k8s.io/v1", "priorityclasses", False),
}


class _Meta(msgspec.Struct, frozen=True):
    name: str


class _Created(msgspec.Struct, frozen=True):
    metadata: _Meta


class Api:
    """Writes objects of the kinds that occur in workloads."""

    def __init__(self, client: ApiClient, *, token_volumes: bool = False) -> None:
        """``token_volumes``: mount a service account token into each pod that is created."""
        self._client = client
        self._token_volumes = token_volumes
        self._created: list[tuple[str, str, str]] = []
        """Kind, name and namespace."""
        self._priorities: set[int] = set()
        self._class_lock = anyio.Lock()

    async def create(self, obj: Json, namespace: str = "") -> str:
        """Create an object and return its name.

        Raises ApiError, NoResponseError, WorkloadError.
        """
        if obj["kind"] == "Pod":
            await self._name_priority_class(obj["spec"])
            if self._token_volumes:
                obj = {**obj, "spec": with_token(obj["spec"])}
        path, body = self._path(obj, namespace), msgspec.json.encode(obj)
        for attempts_left in reversed(range(_NAME_ATTEMPTS)):
            try:
                answer = await self._client.request("POST", path, body=body)
                name = msgspec.json.decode(answer, type=_Created).metadata.name
                self._created.append((obj["kind"], name, namespace))
                return name
            except ApiError as error:
                # Among ten thousand generated names of five letters some collide.
                generated = "name" not in obj.get("metadata", {})
                if error.status != 409 or not generated or not attempts_left:
                    raise
        raise AssertionError("the last attempt returns or raises")

    async def create_namespace(self, name: str, template: Json | None = None) -> None:
        """Create a namespace unless it exists."""
        obj: Json = template or {"apiVersion": "v1", "kind": "Namespace"}
        obj.setdefault("metadata", {})["name"] = name
        try:
            await self.create(obj)
        except ApiError as error:
            if error.status != 409:
                raise

    async def create_bound(self, obj: Json, namespace: str = "") -> None:
        """Create a volume or claim with phase Bound, which takes a second request."""
        name = await self.create(obj, namespace)
        path = f"{self._path(obj, namespace)}/{name}/status"
        bound = msgspec.json.encode({"status": {"phase": "Bound"}})
        await self._client.request("PATCH", path, body=bound, content_type=MERGE_PATCH)

    async def update(self, obj: Json, namespace: str, subresources: tuple[str, ...]) -> None:
        """Replace an object, or some of its subresources, and then its status."""
        path = f"{self._path(obj, namespace)}/{obj['metadata']['name']}"
        if obj["kind"] == "Pod":
            await self._name_priority_class(obj["spec"])
            await self._copy_immutable_fields(obj, path)
        status = obj.get("status", {})
        if obj["kind"] == "Node" and "capacity" in status:
            # A real API server sets this default on updates too, the embedded one on creation only.
            status.setdefault("allocatable", status["capacity"])
        body = msgspec.json.encode(obj)
        for part in subresources or ("",):
            await self._client.request("PUT", f"{path}/{part}".rstrip("/"), body=body)
        if "status" in obj:
            await self._client.request("PUT", f"{path}/status", body=body)

    async def list(self, kind: str, namespace: str = "") -> list[Json]:
        """All objects of a kind, of one namespace or the whole cluster."""
        path = self._path({"kind": kind}, namespace)
        if not namespace:
            collection = _COLLECTIONS[kind]
            path = f"{collection.path}/{collection.plural}"
        items: list[Json] = msgspec.json.decode(await self._client.request("GET", path))["items"]
        return items

    async def set_status(self, obj: Json, status: Json) -> None:
        """Merge ``status`` into the status of a stored object."""
        meta = obj["metadata"]
        path = f"{self._path(obj, meta.get('namespace', ''))}/{meta['name']}/status"
        body = msgspec.json.encode({"status": status})
        await self._client.request("PATCH", path, body=body, content_type=MERGE_PATCH)

    async def delete(
        self, kind: str, name: str, namespace: str = "", *, grace_s: int | None = None
    ) -> None:
        """Delete an object if it exists. ``grace_s`` None: the object's own grace period."""
        body = None if grace_s is None else msgspec.json.encode({"gracePeriodSeconds": grace_s})
        path = self._path({"kind": kind}, namespace)
        try:
            await self._client.request("DELETE", f"{path}/{name}", body=body)
        except ApiError as error:
            if error.status != 404:
                raise

    async def delete_created(self) -> None:
        """Delete what :meth:`create` created, apart from namespaces, newest objects first."""
        created = [each for each in reversed(self._created) if each[0] != "Namespace"]
        self._created.clear()

        async def delete(number: int) -> None:
            kind, name, namespace = created[number]
            await self.delete(kind, name, namespace, grace_s=0)

        await in_parallel(len(created), delete)

    @staticmethod
    def is_namespaced(obj: Json) -> bool:
        return _COLLECTIONS[obj["kind"]].namespaced

    def _path(self, obj: Mapping[str, Any], namespace: str) -> str:
        collection = _COLLECTIONS.get(obj["kind"])
        if collection is None:
            raise WorkloadError(f"unsupported kind {obj['kind']}")
        if not collection.namespaced:
            return f"{collection.path}/{collection.plural}"
        return f"{collection.path}/namespaces/{namespace}/{collection.plural}"

    async def _name_priority_class(self, spec: Json) -> None:
        """Name a PriorityClass with the pod's priority, and create it if necessary.

        scheduler_perf sets the bare number and disables the Priority admission plugin. With that
        plugin enabled, only a class may set a priority.
        """
        priority = spec.get("priority")
        if priority is None:
            return
        name = f"scheduler-perf-{priority}"
        spec["priorityClassName"] = name
        async with self._class_lock:
            if priority not in self._priorities:
                new = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass"}
                try:
                    await self.create({**new, "metadata": {"name": name}, "value": priority})
                except ApiError as error:
                    if error.status != 409:
                        raise
                self._priorities.add(priority)

    async def _copy_immutable_fields(self, obj: Json, path: str) -> None:
        """Copy the fields that the API server set on creation: an update must repeat them."""
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
    """Call ``make`` with 0 to ``count - 1``, at most :data:`PARALLEL` at the same time."""
    numbers = iter(range(count))

    async def worker() -> None:
        for number in numbers:
            await make(number)

    async with anyio.create_task_group() as tasks:
        for _ in range(min(PARALLEL, count)):
            tasks.start_soon(worker)
