"""Each lie of the proxy does what it is named after."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random

import aiohttp
import anyio
import pytest

from asched.apiserver.cluster import EmbeddedCluster
from asched.apiserver.http import ApiServer
from tests.daemon.world import Object
from tests.torture.lying_proxy import Lie, LyingProxy

PODS = "/api/v1/namespaces/default/pods"
TIMEOUT_S = 30.0


class Setup:
    """A cluster behind a proxy, and a client."""

    def __init__(
        self, cluster: EmbeddedCluster, proxy: LyingProxy, session: aiohttp.ClientSession
    ) -> None:
        self.cluster = cluster
        self.proxy = proxy
        self._session = session

    async def create(self, name: str) -> int:
        """Create a pod through the proxy; the status of the response."""
        pod = {"metadata": {"name": name}, "spec": {"containers": [{"name": "c", "image": "i"}]}}
        async with self._session.post(PODS, json=pod) as response:
            await response.read()
            return response.status

    async def bind(self, name: str) -> int:
        """Send a binding through the proxy; the status of the response."""
        binding = {"metadata": {"name": name}, "target": {"kind": "Node", "name": "n"}}
        async with self._session.post(f"{PODS}/{name}/binding", json=binding) as response:
            return response.status

    async def names(self) -> list[str]:
        """The pods, as the proxy shows them."""
        async with self._session.get(PODS) as response:
            return [pod["metadata"]["name"] for pod in (await response.json())["items"]]

    @property
    def existing(self) -> list[str]:
        return [pod["metadata"]["name"] for pod in self.cluster.list("pods")]


@asynccontextmanager
async def proxied() -> AsyncIterator[Setup]:
    cluster = EmbeddedCluster(seed=1)
    async with ApiServer(cluster).run() as server:
        proxy = LyingProxy(server.url, Random(1))
        with anyio.fail_after(TIMEOUT_S):
            async with proxy.running(), aiohttp.ClientSession(proxy.url) as session:
                yield Setup(cluster, proxy, session)


async def test_without_a_lie_requests_pass() -> None:
    async with proxied() as setup:
        assert await setup.create("p") == 201
        assert await setup.names() == ["p"]
        assert setup.proxy.injected == {}


@pytest.mark.parametrize(("lie", "executed"), [(Lie.RESET, False), (Lie.RESET_AFTER, True)])
async def test_broken_connection(lie: Lie, executed: bool) -> None:
    async with proxied() as setup:
        setup.proxy.set(lie)
        with pytest.raises(aiohttp.ClientError):
            await setup.create("p")
        assert setup.existing == (["p"] if executed else [])


async def test_error_after_the_effect() -> None:
    async with proxied() as setup:
        setup.proxy.set(Lie.ERROR_AFTER)
        assert await setup.create("p") in (500, 502, 503, 504)
        assert await setup.names() == ["p"]


async def test_only_bindings_are_refused() -> None:
    async with proxied() as setup:
        setup.proxy.set(Lie.BINDINGS_REFUSED)
        assert await setup.create("p") == 201
        assert await setup.bind("p") == 503
        assert setup.cluster.get("pods", "p", namespace="default")["spec"].get("nodeName") is None


async def test_repeated_request() -> None:
    async with proxied() as setup:
        setup.proxy.set(Lie.DUPLICATE_REQUEST)
        assert await setup.create("p") == 409
        assert setup.existing == ["p"]


async def test_truncated_response() -> None:
    async with proxied() as setup:
        setup.proxy.set(Lie.TRUNCATE)
        with pytest.raises(aiohttp.ClientPayloadError):
            await setup.names()


async def test_stale_list_until_healed() -> None:
    async with proxied() as setup:
        await setup.create("p")
        assert await setup.names() == ["p"]
        await setup.create("q")
        setup.proxy.set(Lie.STALE_LIST)
        assert await setup.names() == ["p"]
        setup.proxy.heal()
        assert await setup.names() == ["p", "q"]


async def test_revoked_token() -> None:
    async with proxied() as setup:
        setup.proxy.set(Lie.UNAUTHORIZED)
        assert await setup.create("p") == 401
        assert setup.existing == []


async def test_silent_server_answers_nothing_until_healed() -> None:
    async with proxied() as setup, anyio.create_task_group() as tasks:
        setup.proxy.set(Lie.BLACK_HOLE)
        ended = anyio.Event()

        async def create() -> None:
            with pytest.raises(aiohttp.ClientError):
                await setup.create("p")
            ended.set()

        tasks.start_soon(create)
        while Lie.BLACK_HOLE not in setup.proxy.injected:  # noqa: ASYNC110  within the time limit
            await anyio.sleep(0.01)
        assert not ended.is_set()
        setup.proxy.heal()
        await ended.wait()
        assert setup.existing == []


async def test_repeated_response_arrives_on_the_same_connection() -> None:
    async with proxied() as setup:
        setup.proxy.set(Lie.DUPLICATE_ANSWER)
        host, _, port = setup.proxy.url.removeprefix("http://").partition(":")
        async with await anyio.connect_tcp(host, int(port)) as stream:
            await stream.send(f"GET {PODS} HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
            answers = [b""]
            received = b""
            while len(answers) < 2 or answers[0] != answers[1]:
                received += await stream.receive()
                answers = [answer for answer in received.split(b"HTTP/1.1 ") if answer]
        listed: Object = json.loads(answers[0].partition(b"\r\n\r\n")[2])
        assert listed["kind"] == "PodList"
