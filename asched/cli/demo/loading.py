"""Puts the workload onto the cluster, through its API as any user would."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Final

import anyio
import msgspec
from anyio.streams.memory import MemoryObjectReceiveStream

from asched.cli.demo.workload import NAMESPACES, PRIORITY_CLASSES, Arrival, Workload
from asched.kube.client import STRATEGIC_MERGE_PATCH, ApiClient

Object = dict[str, Any]

_CONCURRENT: Final = 24
_NODES_JOIN_AT: Final = 0.45
_CORDON_AT: Final = 0.5
_UNCORDON_AT: Final = 0.8
"""When the cluster itself changes, as parts of the time in which pods arrive."""
_CORDONED_PART: Final = 0.05


@dataclass
class Loading:
    """How far the loading is. Only :class:`Loader` writes it."""

    created_pods: int = 0
    notices: list[str] = field(default_factory=list)
    """What happened to the cluster besides pods, in order."""
    done: bool = False


class Loader:
    """Creates the workload's objects over HTTP."""

    def __init__(
        self, client: ApiClient, workload: Workload, over_s: float, clock: Callable[[], float]
    ) -> None:
        """:param clock: seconds on a monotonic clock."""
        self.progress = Loading()
        self._client = client
        self.workload = workload
        self._over_s = over_s
        self._clock = clock

    async def prepare(self) -> None:
        """Namespaces, priority classes and the nodes that are there from the beginning.

        Raises ApiError and NoAnswerError.
        """
        for name in NAMESPACES:
            await self._post("/api/v1/namespaces", {"metadata": {"name": name}})
        for name, value in PRIORITY_CLASSES.items():
            body = {"metadata": {"name": name}, "value": value}
            await self._post("/apis/scheduling.k8s.io/v1/priorityclasses", body)
        nodes = [n for pool in self.workload.pools if not pool.late for n in pool.nodes()]
        await self._in_parallel([("/api/v1/nodes", node) for node in nodes])

    async def run(self) -> None:
        """Pods as they arrive, and nodes that join, are cordoned and uncordoned meanwhile."""
        begun_s = self._clock()
        send, receive = anyio.create_memory_object_stream[Arrival](_CONCURRENT)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._change_nodes)
            for _ in range(_CONCURRENT):
                tasks.start_soon(self._create_pods, receive.clone())
            receive.close()
            with send:
                for arrival in self.workload.arrivals:
                    await anyio.sleep(max(0.0, begun_s + arrival.at_s - self._clock()))
                    await send.send(arrival)
        self.progress.done = True

    async def _create_pods(self, arrivals: MemoryObjectReceiveStream[Arrival]) -> None:
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
        self._note(f"{_nodes(len(late))} joined: {late[0]['metadata']['name']} ...")
        await self._until(begun_s, _CORDON_AT)
        await self._cordon(cordoned, True)
        await self._until(begun_s, _UNCORDON_AT)
        await self._cordon(cordoned, False)

    async def _until(self, begun_s: float, part: float) -> None:
        await anyio.sleep(max(0.0, begun_s + part * self._over_s - self._clock()))

    async def _cordon(self, names: list[str], unschedulable: bool) -> None:
        body = msgspec.json.encode({"spec": {"unschedulable": unschedulable or None}})
        for name in names:
            await self._client.request(
                "PATCH", f"/api/v1/nodes/{name}", body=body, content_type=STRATEGIC_MERGE_PATCH,
                idempotent=True,
            )  # fmt: skip
        word = "cordoned" if unschedulable else "uncordoned"
        self._note(f"{_nodes(len(names))} {word}: {names[0]} ...")

    def _note(self, text: str) -> None:
        self.progress.notices.append(text)

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
