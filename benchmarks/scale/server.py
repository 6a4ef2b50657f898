"""An API server for a large cluster: lists in pages, watches, bindings and Events over HTTP.

    python -m benchmarks.scale.server --nodes 10000 --pods 100000 --kubeconfig FILE

Lists are generated page by page, so a million pods take no memory here. ``POST /churn`` creates
pods at a rate and deletes them after a while.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Final, NamedTuple

import anyio
import msgspec
import typer
import yaml
from aiohttp import web

from benchmarks.scale.cluster import GeneratedCluster

_HOST: Final = "127.0.0.1"
_LIFETIME_S: Final = 10
"""How long a pod of the churn lives."""
_TICK_S: Final = 0.01
_HISTORY: Final = 10_000
_HEADERS: Final = {"Content-Type": "application/json"}


class ChurnFigures(msgspec.Struct):
    """What became of the pods of a churn."""

    created: int = 0
    bound: int = 0
    deleted: int = 0
    elapsed_s: float = 0.0
    """From the first creation to the last binding."""
    latencies_ms: list[float] = []
    """From creation to binding."""


class _Page(NamedTuple):
    path: str
    limit: int
    """0 for all objects."""
    begin: int
    version: int
    """Of the list: an older page is not used."""


class _Collection(NamedTuple):
    size: int
    item: Callable[[int], bytes]


class ScaleServer:
    """Serves one generated cluster."""

    def __init__(self, cluster: GeneratedCluster) -> None:
        self._cluster = cluster
        self._version = 10
        self._next_pod = cluster.pods
        self._created_s: dict[int, float] = {}
        """When each pending pod was created."""
        self._bound: dict[int, str] = {}
        """The nodes of pods of the churn."""
        self._by_key: dict[tuple[str, str], int] = {}
        self._watchers: set[asyncio.Queue[bytes]] = set()
        self._history: deque[tuple[int, bytes]] = deque(maxlen=_HISTORY)
        """The latest changes of pods, for watches that begin after their list."""
        self._prepared = _Page("", 0, 0, 0), b""
        """The items of the page that is expected next."""
        self._figures = ChurnFigures()
        self._churn_began_s = 0.0
        self.first_binding_s: float | None = None
        """When a pod was bound for the first time, on the monotonic clock."""

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        path, query = request.path, request.query
        if request.method == "POST":
            return await self._post(request, path)
        if path == "/version":
            return _response({"major": "1", "minor": "36", "gitVersion": "v1.36.2"})
        if path == "/figures":
            first_s = self.first_binding_s
            return _response({**msgspec.to_builtins(self._figures), "first_binding_s": first_s})
        if "watch" in query:
            return await self._watch(request, pods=path == "/api/v1/pods")
        if path.startswith("/apis/scheduling.k8s.io/") and path.count("/") == 3:
            return _response({"kind": "Status", "code": 404}, 404)
        limit, begin = int(query.get("limit", 0)), int(query.get("continue", 0))
        return await self._list(request, _Page(path, limit, begin, self._version))

    async def _list(self, request: web.BaseRequest, page: _Page) -> web.StreamResponse:
        """Sends a page, and generates the next one afterwards: an API server on another machine
        does so while the scheduler reads the page."""
        known, items = self._prepared
        if known != page:
            items = self._items(page)
        end = page.begin + page.limit
        continues = bool(page.limit) and end < self._collection(page.path).size
        token = f'"continue":"{end}",' if continues else ""
        head = f'{{"metadata":{{{token}"resourceVersion":"{self._version}"}},"items":['
        body = b"".join((head.encode(), items, b"]}"))
        assert request.transport is not None, "the request has a connection"
        request.transport.set_write_buffer_limits(0)  # a write returns once the page is sent
        response = web.StreamResponse(headers=_HEADERS)
        response.content_length = len(body)
        await response.prepare(request)
        await response.write(body)
        await response.write_eof()
        if continues:
            following = page._replace(begin=end)
            self._prepared = following, self._items(following)
        return response

    def _items(self, page: _Page) -> bytes:
        size, item = self._collection(page.path)
        end = min(size, page.begin + page.limit) if page.limit else size
        return b",".join(filter(None, map(item, range(page.begin, end))))

    def _collection(self, path: str) -> _Collection:
        cluster = self._cluster
        if path == "/api/v1/nodes":
            return _Collection(cluster.nodes, cluster.node)
        if path == "/api/v1/pods":
            return _Collection(self._next_pod, self._listed_pod)
        names = [*cluster.namespaces(self._next_pod)] if path == "/api/v1/namespaces" else []
        return _Collection(len(names), names.__getitem__)

    def _listed_pod(self, number: int) -> bytes:
        if number < self._cluster.pods:
            return self._cluster.pod(number, self._cluster.node_of(number), 3)
        if number in self._bound or number in self._created_s:
            return self._cluster.pod(number, self._bound.get(number, ""), 3)
        return b""  # deleted

    async def _watch(self, request: web.BaseRequest, *, pods: bool) -> web.StreamResponse:
        response = web.StreamResponse(headers=_HEADERS)
        await response.prepare(request)
        queue: asyncio.Queue[bytes] = asyncio.Queue()
        if pods:
            since = int(request.query["resourceVersion"])
            for version, line in self._history:
                if version > since:
                    queue.put_nowait(line)
            self._watchers.add(queue)
        try:
            while True:
                lines = [await queue.get()]
                while not queue.empty():
                    lines.append(queue.get_nowait())
                await response.write(b"".join(lines))
        except ConnectionError:
            return response
        finally:
            self._watchers.discard(queue)

    async def _post(self, request: web.BaseRequest, path: str) -> web.Response:
        body = await request.read()
        if path == "/pending":
            self.first_binding_s = None
            return _response({"pod": self.create()})
        if path == "/churn":
            options = json.loads(body)
            await self._churn(options["pods_per_s"], options["seconds"])
            return _response(msgspec.to_builtins(self._figures))
        parts = path.split("/")
        if parts[-1] == "binding":
            self._bind(parts[4], parts[6], json.loads(body)["target"]["name"])
            return _response({"kind": "Status", "status": "Success", "code": 201}, 201)
        return web.Response(status=201, body=body, headers=_HEADERS)

    def _bind(self, namespace: str, name: str, node: str) -> None:
        number = self._by_key[namespace, name]
        self._bound[number] = node
        now_s = time.monotonic()
        if self.first_binding_s is None:
            self.first_binding_s = now_s
        self._figures.bound += 1
        self._figures.latencies_ms.append((now_s - self._created_s.pop(number)) * 1000)
        self._figures.elapsed_s = now_s - self._churn_began_s
        self._publish("MODIFIED", number)

    def create(self) -> int:
        """Create a pending pod."""
        number = self._next_pod
        self._next_pod += 1
        self._created_s[number] = time.monotonic()
        self._by_key[self._cluster.pod_key(number)] = number
        self._figures.created += 1
        self._publish("ADDED", number)
        return number

    def _delete(self, number: int) -> None:
        self._publish("DELETED", number)
        del self._bound[number], self._by_key[self._cluster.pod_key(number)]
        self._figures.deleted += 1

    def _publish(self, kind: str, number: int) -> None:
        self._version += 1
        pod = self._cluster.pod(number, self._bound.get(number, ""), self._version)
        line = b'{"type":"%s","object":%s}\n' % (kind.encode(), pod)
        self._history.append((self._version, line))
        for queue in self._watchers:
            queue.put_nowait(line)

    async def _churn(self, pods_per_s: int, seconds: int) -> None:
        """Create pods evenly for ``seconds``, and delete each bound one after its lifetime. Returns
        when all are bound and deleted."""
        self._figures = ChurnFigures(latencies_ms=[])
        alive: deque[tuple[float, int]] = deque()
        begin_s = now_s = self._churn_began_s = time.monotonic()
        while alive or now_s < begin_s + seconds:
            due = min(seconds, now_s - begin_s) * pods_per_s
            while self._figures.created < due:
                alive.append((now_s + _LIFETIME_S, self.create()))
            while alive and alive[0][0] <= now_s and alive[0][1] in self._bound:
                self._delete(alive.popleft()[1])
            await asyncio.sleep(_TICK_S)
            now_s = time.monotonic()


def _response(value: object, status: int = 200) -> web.Response:
    return web.Response(status=status, body=json.dumps(value).encode(), headers=_HEADERS)


async def _serve(cluster: GeneratedCluster, kubeconfig: Path) -> None:
    server = ScaleServer(cluster)
    server.create()
    runner = web.ServerRunner(web.Server(server.handle, access_log=None))
    await runner.setup()
    await web.TCPSite(runner, _HOST, 0).start()
    url = f"http://{_HOST}:{runner.addresses[0][1]}"
    await anyio.Path(kubeconfig).write_text(_kubeconfig(url))
    print(f"serving on {url}", flush=True)
    await asyncio.Event().wait()


def _kubeconfig(url: str) -> str:
    name = "scale"
    return yaml.safe_dump(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": name, "cluster": {"server": url}}],
            "users": [{"name": name, "user": {}}],
            "contexts": [{"name": name, "context": {"cluster": name, "user": name}}],
            "current-context": name,
        }
    )


def main(
    kubeconfig: Annotated[Path, typer.Option(help="Where to write a kubeconfig.")],
    nodes: Annotated[int, typer.Option(help="Number of nodes.")] = 10_000,
    pods: Annotated[int, typer.Option(help="Number of bound pods.")] = 100_000,
) -> None:
    """Serve a generated cluster until a signal."""
    asyncio.run(_serve(GeneratedCluster(nodes, pods), kubeconfig))


if __name__ == "__main__":
    typer.run(main)
