"""Clients that do harm to the health port: slow, many, malformed, curious."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from http import HTTPStatus

import aiohttp
import anyio
import pytest
from anyio.abc import SocketStream
from prometheus_client import CollectorRegistry

from asched.daemon.telemetry.health import Check, Health
from asched.daemon.telemetry.responder import MAX_CONNECTIONS, ProbeResponse, Responder
from asched.journal import errors
from tests.daemon.test_health import ANY_PORT
from tests.kube.harness import TIMEOUT_S


@asynccontextmanager
async def health_port() -> AsyncIterator[tuple[str, int]]:
    health = Health(CollectorRegistry())
    async with health.serving(ANY_PORT):
        host, _, port = health.address.rpartition(":")
        yield host, int(port)


async def livez(host: str, port: int) -> int:
    async with (
        aiohttp.ClientSession() as session,
        session.get(f"http://{host}:{port}/livez") as response,
    ):
        return response.status


async def ended(stream: SocketStream) -> bool:
    """Whether the server closed the connection."""
    try:
        while await stream.receive():
            pass
    except (anyio.EndOfStream, anyio.BrokenResourceError):
        return True
    return False


async def test_probe_is_answered_while_clients_hold_connections() -> None:
    async with health_port() as (host, port), anyio.create_task_group() as tasks:
        streams = []
        with anyio.fail_after(TIMEOUT_S):
            for number in range(3 * MAX_CONNECTIONS):
                stream = await anyio.connect_tcp(host, port)
                await stream.send(b"GET /livez HTTP/1.1\r\nHost: h\r\nX: y")
                streams.append(stream)
                if number % 50 == 0:
                    assert await livez(host, port) == 200
            assert await livez(host, port) == 200
            for stream in streams[: 2 * MAX_CONNECTIONS]:
                assert await ended(stream), "the oldest are closed"
            for stream in streams:
                await stream.aclose()
        tasks.cancel_scope.cancel()


async def test_connection_ends_after_its_time() -> None:
    responder = Responder(lambda path, query: ProbeResponse(HTTPStatus.OK, b""), timeout_s=0.05)
    listener = await asyncio.get_running_loop().create_server(responder, "127.0.0.1", 0)
    async with listener:
        port = listener.sockets[0].getsockname()[1]
        with anyio.fail_after(TIMEOUT_S):
            stream = await anyio.connect_tcp("127.0.0.1", port)
            await stream.send(b"GET / HTTP/1.1\r\n")
            assert await ended(stream)
    assert not responder.open
    await stream.aclose()


async def test_one_response_per_connection() -> None:
    async with health_port() as (host, port):
        with anyio.fail_after(TIMEOUT_S):
            stream = await anyio.connect_tcp(host, port)
            await stream.send(b"GET /livez HTTP/1.1\r\nHost: h\r\n\r\n")
            assert b"Connection: close" in await stream.receive()
            assert await ended(stream)
            await stream.aclose()


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET /livez HTTP/1.1\r\nBad Header\r\n\r\n",
        b"GET /livez HTTP/1.1\r\nA: " + b"x" * 20_000 + b"\r\n\r\n",
        b"GET /livez HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
        b"POST /livez HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    ],
)
async def test_malformed_request_leaves_no_log(
    request_bytes: bytes, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        async with health_port() as (host, port):
            with anyio.fail_after(TIMEOUT_S):
                stream = await anyio.connect_tcp(host, port)
                await stream.send(request_bytes)
                assert await ended(stream)
                await stream.aclose()
                assert await livez(host, port) == 200
    assert caplog.text == ""
    assert "".join(capfd.readouterr()) == ""


def _fail() -> str:
    raise RuntimeError("ours")


async def test_own_failures_are_logged(capfd: pytest.CaptureFixture[str]) -> None:
    health = Health(CollectorRegistry())
    health.attach([Check("failing", _fail)])
    async with (
        health.serving(ANY_PORT),
        aiohttp.ClientSession() as session,
        session.get(f"http://{health.address}/readyz") as response,
    ):
        assert response.status == 500
    assert "ours" in "".join(capfd.readouterr())


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (b"HEAD /livez HTTP/1.1\r\n\r\n", 200),
        (b"GET /livez/ HTTP/1.1\r\n\r\n", 404),
        (b"GET /livez/ping/x HTTP/1.1\r\n\r\n", 404),
        (b"GET /live%7a?verbose&exclude=ping HTTP/1.1\r\n\r\n", 200),
        (b"GET http://[x/ HTTP/1.1\r\n\r\n", 400),
        (b"GET /livez HTTP/1.1\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n", 200),
        (b"POST /livez HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc", 405),
    ],
)
async def test_single_requests(request_bytes: bytes, status: int) -> None:
    async with health_port() as (host, port):
        reader, writer = await asyncio.open_connection(host, port)
        writer.write(request_bytes)
        head, _, body = (await reader.read()).partition(b"\r\n\r\n")
        writer.close()
    assert head.startswith(b"HTTP/1.1 %d " % status)
    assert (body == b"") == request_bytes.startswith(b"HEAD")


@pytest.mark.parametrize("kind", [k for k in vars(errors).values() if isinstance(k, type)])
def test_reasons_hold_no_paths_and_hosts(kind: type) -> None:
    if issubclass(kind, errors.JournalError):
        reason = errors.reason_of(kind("cannot write /var/lib/x.db at db.example.com"))
        assert "/var" not in reason
        assert "example" not in reason
        assert reason
