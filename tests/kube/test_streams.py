"""Responses that are read while they arrive, on both event loops, with and without TLS."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest
import uvloop

from asched.kube import streams
from asched.kube.connection import client_tls_context
from asched.kube.errors import NoResponseError
from asched.kube.pool import ConnectionPool, Endpoint
from asched.kube.response_parser import HEAD_LIMIT_BYTES
from asched.kube.streams import ResponseStream, enable_keepalive
from tests.extenders.certificates import CERTIFICATE, KEY, NAME
from tests.kube.test_pool import REQUEST, Server, Talk, exchange, polite, pool

HEAD = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


def sends(*pieces: bytes, hang: bool = False) -> Talk:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
        if hang:
            await reader.read()

    return talk


@asynccontextmanager
async def opened(
    connections: ConnectionPool, endpoint: Endpoint, timeout_s: float = 30.0
) -> AsyncIterator[ResponseStream]:
    transport = await connections.take_out(endpoint, 10.0)
    enable_keepalive(transport)
    stream = await ResponseStream.open(transport, REQUEST, timeout_s)
    try:
        yield stream
    finally:
        stream.release()


async def read_all(talk: Talk, timeout_s: float = 30.0) -> bytes:
    async with (
        Server(talk).run() as endpoint,
        pool() as connections,
        opened(connections, endpoint, timeout_s) as stream,
    ):
        return (await stream.read_all()).body


def server_tls(folder: Path) -> ssl.SSLContext:
    (folder / "both.pem").write_text(KEY + CERTIFICATE)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(folder / "both.pem")
    return context


Run = Callable[[Coroutine[Any, Any, None]], None]


@pytest.mark.parametrize("secure", [False, True], ids=["plain", "tls"])
@pytest.mark.parametrize("run", [asyncio.run, uvloop.run])
def test_slow_reader_stops_the_server(
    run: Run, secure: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "_BUFFER_BYTES", 64 * 1024)
    sent, most = 0, 64 * 2**20

    async def flood(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        await reader.readuntil(b"\r\n\r\n")
        writer.write(HEAD)
        while sent < most:
            writer.write(chunk(b"x" * 2**16))
            await writer.drain()
            sent += 2**16
        writer.write(b"0\r\n\r\n")

    async def scenario() -> None:
        context = server_tls(tmp_path) if secure else None
        async with Server(flood).run(context) as endpoint, pool() as connections:
            if secure:
                trusting = client_tls_context(None, CERTIFICATE, verify=True)
                endpoint = endpoint._replace(tls=trusting, tls_server_name=NAME)
            async with opened(connections, endpoint) as stream:
                before = -1
                while sent > before:  # until the server waits for its reader
                    before = sent
                    for _ in range(1000):
                        await asyncio.sleep(0)
                assert 0 < sent < most
                received = 0
                while data := await stream.read():
                    received += len(data)
                assert received == sent == most

    run(scenario())


async def test_pieces_are_delivered_as_they_arrive() -> None:
    proceed = anyio.Event()

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(HEAD + chunk(b"one"))
        await proceed.wait()
        writer.write(chunk(b"two") + b"0\r\n\r\n")

    async with (
        Server(talk).run() as endpoint,
        pool() as connections,
        opened(connections, endpoint) as stream,
    ):
        assert stream.status == 200
        assert await stream.read() == b"one"
        proceed.set()
        assert await stream.read() == b"two"
        assert await stream.read() == b""


async def test_body_to_the_end_of_the_connection() -> None:
    assert await read_all(sends(b"HTTP/1.1 200 OK\r\n\r\n", b"body")) == b"body"


@pytest.mark.parametrize(
    ("pieces", "why"),
    [
        ((), "the connection was closed"),
        ((b"HTTP/1.1 200 OK\r\n",), "the connection was closed"),
        ((HEAD, chunk(b"one")), "the connection was closed"),
        ((b"SSH-2.0\r\n",), "malformed response"),
        ((HEAD, b"no chunk\r\n"), "malformed response"),
        ((HEAD, b"0\r\n" + b"X: y\r\n" * HEAD_LIMIT_BYTES), "without end"),
    ],
)
async def test_broken_response(pieces: tuple[bytes, ...], why: str) -> None:
    with pytest.raises(NoResponseError, match=why) as raised:
        await read_all(sends(*pieces))
    assert raised.value.sent


async def test_data_after_the_response_is_ignored() -> None:
    response = HEAD + chunk(b"one") + b"0\r\n\r\n"
    assert await read_all(sends(response + response)) == b"one"


async def test_data_before_the_failure_is_delivered() -> None:
    async with (
        Server(sends(HEAD + chunk(b"one"))).run() as endpoint,
        pool() as connections,
        opened(connections, endpoint) as stream,
    ):
        assert await stream.read() == b"one"
        with pytest.raises(NoResponseError, match="the connection was closed"):
            await stream.read()


@pytest.mark.parametrize("pieces", [(), (HEAD, chunk(b"one"))], ids=["head", "body"])
async def test_timeout(pieces: tuple[bytes, ...]) -> None:
    with pytest.raises(NoResponseError, match=r"timed out after 0.05 s"):
        await read_all(sends(*pieces, hang=True), timeout_s=0.05)


async def test_cancelled_request_closes_its_connection() -> None:
    received, closed = anyio.Event(), anyio.Event()

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        received.set()
        try:
            await reader.read()
        finally:
            closed.set()

    async with Server(talk).run() as endpoint, pool() as connections:
        transport = await connections.take_out(endpoint, 10.0)
        task = asyncio.ensure_future(ResponseStream.open(transport, REQUEST, 30.0))
        await received.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        with anyio.fail_after(10.0):
            await closed.wait()


async def test_unreachable_server() -> None:
    endpoint = Endpoint.of("http://127.0.0.1:1", None, None)
    async with pool() as connections:
        with pytest.raises(NoResponseError, match="cannot connect") as raised:
            await connections.take_out(endpoint, 10.0)
    assert not raised.value.sent


async def test_stream_takes_over_a_connection_that_just_responded() -> None:
    server, count = Server(polite), 5
    async with server.run() as endpoint, pool() as connections:
        async with anyio.create_task_group() as tasks:
            for _ in range(count):
                tasks.start_soon(partial(exchange, connections, endpoint, 10.0))
        assert connections.idle == server.accepted == count
        taken = [await connections.take_out(endpoint, 10.0) for _ in range(count)]
        assert connections.idle == 2, "the next requests find a connection"
        assert server.accepted == count + 2
        for transport in taken:
            transport.abort()
        # The pool is as before: those taken out do not count.
        await exchange(connections, endpoint, 10.0)
        assert connections.idle == 2


async def test_stream_does_not_take_over_a_connection_that_may_hang(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    server = Server(polite)
    async with server.run() as endpoint, pool() as connections:
        async with anyio.create_task_group() as tasks:
            for _ in range(4):
                tasks.start_soon(partial(exchange, connections, endpoint, 10.0))
        monkeypatch.setattr("asched.kube.pool._FRESH_S", -1.0)
        (await connections.take_out(endpoint, 10.0)).abort()
        assert connections.idle == 4
    assert server.accepted == 5
