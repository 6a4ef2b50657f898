"""The connection pool: reuse, limits and failures, on both event loops."""

from __future__ import annotations

import asyncio
import socket
import ssl
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager, closing
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest
import uvloop

from asched.kube.errors import NoResponseError
from asched.kube.pool import ConnectionPool, Endpoint
from asched.kube.transport import HttpResponse, always
from tests.extenders.certificates import CERTIFICATE, KEY, NAME

REQUEST = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
Talk = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def answer(body: bytes, fields: bytes = b"") -> bytes:
    return b"HTTP/1.1 200 OK\r\n%sContent-Length: %d\r\n\r\n%s" % (fields, len(body), body)


class Server:
    """A server that counts its connections; the test scripts each one."""

    def __init__(self, talk: Talk) -> None:
        self._talk = talk
        self.accepted = 0

    @asynccontextmanager
    async def run(self, tls: ssl.SSLContext | None = None) -> AsyncIterator[Endpoint]:
        server = await asyncio.start_server(self._accept, "127.0.0.1", 0, ssl=tls)
        host, port = server.sockets[0].getsockname()
        try:
            yield Endpoint.of(f"http://{host}:{port}", None, None)
        finally:
            server.close()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        try:
            await self._talk(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass  # the client closed first
        finally:
            writer.close()


@asynccontextmanager
async def pool(limit: int = 8, keepalive_s: float = 60.0) -> AsyncIterator[ConnectionPool]:
    connections = ConnectionPool(limit, keepalive_s)
    try:
        yield connections
    finally:
        await connections.close()


async def polite(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while await reader.readuntil(b"\r\n\r\n"):
        writer.write(answer(b"hello"))
        await writer.drain()


async def exchange(
    connections: ConnectionPool,
    endpoint: Endpoint,
    timeout_s: float,
    may_send: Callable[[], bool] = always,
) -> HttpResponse:
    (response,) = await connections.exchange(endpoint, REQUEST, 1, timeout_s, may_send)
    return response


async def together(count: int, work: Callable[[], Coroutine[Any, Any, object]]) -> None:
    async with anyio.create_task_group() as tasks:
        for _ in range(count):
            tasks.start_soon(work)


async def test_connection_is_reused() -> None:
    server = Server(polite)
    async with server.run() as endpoint, pool() as connections:
        for _ in range(5):
            assert (await exchange(connections, endpoint, 10.0)).body == b"hello"
    assert server.accepted == 1


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run])
def test_connection_limit_and_fair_waiting(run: Any) -> None:
    async def scenario() -> None:
        server = Server(polite)
        answered = []
        async with server.run() as endpoint, pool(limit=3) as connections:

            async def ask() -> None:
                answered.append(await exchange(connections, endpoint, 10.0))

            await together(50, ask)
        assert len(answered) == 50
        assert server.accepted == 3

    run(scenario())


async def test_urgent_requests_precede_others_and_do_not_stop_them() -> None:
    order: list[str] = []
    async with Server(polite).run() as endpoint, pool(limit=1) as connections:

        async def ask(name: str, urgent: bool) -> None:
            await connections.exchange(endpoint, REQUEST, 1, 10.0, urgent=urgent)
            order.append(name)

        async with anyio.create_task_group() as tasks:
            for number in range(4):
                tasks.start_soon(ask, f"other {number}", False)
            for number in range(7):
                tasks.start_soon(ask, f"urgent {number}", True)
    urgent = [f"urgent {number}" for number in range(7)]
    # The first request found a free connection.
    assert order == [
        *("other 0", *urgent[:3], "other 1", *urgent[3:6], "other 2", urgent[6], "other 3"),
    ]


@pytest.mark.parametrize("fields", [b"Connection: close\r\n", b""])
async def test_closed_connection_is_replaced(fields: bytes) -> None:
    async def once(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer(b"bye", fields))

    server = Server(once)
    async with server.run() as endpoint, pool(limit=1) as connections:
        for _ in range(3):
            assert (await exchange(connections, endpoint, 10.0)).body == b"bye"
            with anyio.fail_after(10.0):
                while connections.idle:
                    await anyio.lowlevel.checkpoint()
    assert server.accepted == 3


async def test_idle_connection_expires() -> None:
    server = Server(polite)
    async with server.run() as endpoint, pool(keepalive_s=0.0) as connections:
        for _ in range(3):
            await exchange(connections, endpoint, 10.0)
    assert server.accepted == 3


async def test_connections_of_burst_are_closed() -> None:
    server = Server(polite)
    async with server.run() as endpoint, pool(keepalive_s=0.05) as connections:
        await together(5, partial(exchange, connections, endpoint, 10.0))
        assert connections.idle == server.accepted == 5
        with anyio.fail_after(10.0):
            while connections.idle > 1:
                await exchange(connections, endpoint, 10.0)
        assert server.accepted < 10


async def test_burst_opens_few_connections_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    opening = most = 0
    async with pool(limit=32) as connections, Server(polite).run() as endpoint:
        create = connections.loop.create_connection

        async def counted(*arguments: Any, **options: Any) -> Any:
            nonlocal opening, most
            opening += 1
            most = max(most, opening)
            try:
                return await create(*arguments, **options)
            finally:
                opening -= 1

        monkeypatch.setattr(connections.loop, "create_connection", counted)
        await together(100, partial(exchange, connections, endpoint, 60))
    assert most == 4


async def test_unsolicited_response_closes_connection() -> None:
    received = anyio.Event()

    async def talkative(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer(b"one"))
        await received.wait()
        writer.write(answer(b"two"))
        await reader.read()

    server = Server(talkative)
    async with server.run() as endpoint, pool() as connections:
        assert (await exchange(connections, endpoint, 10.0)).body == b"one"
        received.set()
        with anyio.fail_after(10.0):
            while connections.idle:
                await anyio.lowlevel.checkpoint()
    assert server.accepted == 1


@pytest.mark.parametrize("said", [b"", b"HTTP/1.1 200 OK\r\n", b"nonsense\r\n\r\n"])
async def test_broken_response_has_unknown_result(said: bytes) -> None:
    async def broken(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(said)

    async with Server(broken).run() as endpoint, pool() as connections:
        with pytest.raises(NoResponseError) as caught:
            await exchange(connections, endpoint, 10.0)
    assert caught.value.sent


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run])
def test_pipelined_requests_are_answered_in_order(run: Any) -> None:
    async def patient(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Responds once the last of three requests arrived."""
        for _ in range(3):
            await reader.readuntil(b"\r\n\r\n")
        for number in range(3):
            writer.write(answer(b"%d" % number))
            await writer.drain()
        await polite(reader, writer)

    async def scenario() -> None:
        server = Server(patient)
        async with server.run() as endpoint, pool() as connections:
            answers = await connections.exchange(endpoint, REQUEST * 3, 3, 10.0)
            assert [found.body for found in answers] == [b"0", b"1", b"2"]
            assert (await exchange(connections, endpoint, 10.0)).body == b"hello"
        assert server.accepted == 1

    run(scenario())


@pytest.mark.parametrize(
    "said",
    [
        answer(b"one"),
        answer(b"one") + b"HTTP/1.1 200 OK\r\n",
        answer(b"one", b"Connection: close\r\n"),
        answer(b"one", b"Connection: close\r\n") + answer(b"two"),
        answer(b"one") * 3,
    ],
)
async def test_incomplete_pipeline_has_unknown_result(said: bytes) -> None:
    async def broken(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(said)
        await writer.drain()

    server = Server(broken)
    async with server.run() as endpoint, pool() as connections:
        for _ in range(2):
            with pytest.raises(NoResponseError) as caught:
                await connections.exchange(endpoint, REQUEST * 2, 2, 10.0)
            assert caught.value.sent
    assert server.accepted == 2


async def silent(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
    await reader.read()


async def test_timeout_waiting_for_connection_sends_nothing() -> None:
    async with Server(silent).run() as endpoint, pool(limit=1) as connections:
        errors: list[NoResponseError] = []

        async def ask(timeout_s: float) -> None:
            with pytest.raises(NoResponseError) as caught:
                await exchange(connections, endpoint, timeout_s)
            errors.append(caught.value)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ask, 0.2)
            tasks.start_soon(ask, 0.05)
    assert [error.sent for error in errors] == [False, True]
    assert all("timed out" in str(error) for error in errors)


async def test_cancelled_request_frees_connection() -> None:
    calls = 0

    async def first_silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal calls
        calls += 1
        await (silent if calls == 1 else polite)(reader, writer)

    async with Server(first_silent).run() as endpoint, pool(limit=1) as connections:
        with anyio.move_on_after(0.05):
            await exchange(connections, endpoint, 10.0)
        assert (await exchange(connections, endpoint, 10.0)).body == b"hello"


async def test_connections_are_not_shared_between_credentials() -> None:
    server = Server(polite)
    async with server.run() as endpoint, pool() as connections:
        await exchange(connections, endpoint, 10.0)
        await exchange(connections, endpoint._replace(tls_server_name="x"), 10.0)
        assert connections.idle == 1
    assert server.accepted == 2


async def test_waiting_request_is_not_sent_to_another_server() -> None:
    """The credentials were renewed while it waited: its token is for the first server."""
    received: dict[str, list[bytes]] = {"first": [], "second": []}
    answering = anyio.Event()

    def noting(name: str) -> Talk:
        async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            while head := await reader.readuntil(b"\r\n\r\n"):
                received[name].append(head.split()[1])
                await answering.wait()
                writer.write(answer(b"hello"))

        return talk

    async with (
        Server(noting("first")).run() as first,
        Server(noting("second")).run() as second,
        pool(limit=1) as connections,
    ):

        async def ask(endpoint: Endpoint, path: bytes, *, urgent: bool = False) -> None:
            request = REQUEST.replace(b"/ ", path + b" ", 1)
            await connections.exchange(endpoint, request, 1, 10.0, urgent=urgent)

        async def refused() -> None:
            with pytest.raises(NoResponseError, match="the server or its certificates") as caught:
                await ask(first, b"/waits")
            assert not caught.value.sent

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ask, first, b"/sent")
            await anyio.lowlevel.checkpoint()
            tasks.start_soon(refused)
            await anyio.lowlevel.checkpoint()
            tasks.start_soon(partial(ask, second, b"/overtakes", urgent=True))
            await anyio.lowlevel.checkpoint()
            answering.set()
    assert received == {"first": [b"/sent"], "second": [b"/overtakes"]}


async def test_server_without_tls_is_rejected() -> None:
    async with Server(silent).run() as endpoint, pool() as connections:
        secure = endpoint._replace(tls=ssl.create_default_context())

        async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read(10)
            writer.write(b"what?\r\n")

        async with Server(hang_up).run() as other:
            with pytest.raises(NoResponseError) as caught:
                await exchange(connections, secure._replace(port=other.port), 10.0)
    assert not caught.value.sent
    assert "cannot connect" in str(caught.value)


def trusting(authority: str | None) -> ssl.SSLContext:
    return ssl.create_default_context(cadata=authority)


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run])
def test_server_certificate_must_match_name(run: Any, tmp_path: Path) -> None:
    (tmp_path / "both.pem").write_text(KEY + CERTIFICATE)
    itself = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    itself.load_cert_chain(tmp_path / "both.pem")
    blind = trusting(None)
    blind.check_hostname, blind.verify_mode = False, ssl.CERT_NONE

    async def scenario() -> None:
        async with Server(polite).run(itself) as endpoint, pool() as connections:
            for tls, name in ((trusting(CERTIFICATE), NAME), (blind, None)):
                good = endpoint._replace(tls=tls, tls_server_name=name)
                assert (await exchange(connections, good, 10.0)).body == b"hello"
            for tls, name, why in (
                (trusting(CERTIFICATE), None, "IP address mismatch"),
                (trusting(CERTIFICATE), "other.test", "Hostname mismatch"),
                (trusting(None), NAME, "self-signed"),
            ):
                bad = endpoint._replace(tls=tls, tls_server_name=name)
                with pytest.raises(NoResponseError, match=why) as caught:
                    await exchange(connections, bad, 10.0)
                assert not caught.value.sent

    run(scenario())


def test_default_context_uses_system_authorities() -> None:
    tls = Endpoint.of("https://a", None, None).tls
    assert tls is not None
    assert (tls.verify_mode, tls.check_hostname) == (ssl.CERT_REQUIRED, True)


def test_url_ports() -> None:
    assert Endpoint.of("http://a/x", None, None)[:3] == ("a", 80, None)
    assert Endpoint.of("https://[::1]", None, None)[:2] == ("::1", 443)
    assert Endpoint.of("https://a:6443", None, "b").tls is not None


async def test_may_send_is_checked_after_waiting_for_connection() -> None:
    """A leader's lease may expire during the wait."""
    asked = []
    allowed = True

    async def one_after_the_other(
        reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        nonlocal allowed
        while head := await reader.readuntil(b"\r\n\r\n"):
            asked.append(head)
            allowed = False
            writer.write(answer(b"hello"))

    server = Server(one_after_the_other)
    async with server.run() as endpoint, pool(limit=1) as connections:
        send = partial(exchange, connections, endpoint, 10.0)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(send)
            await anyio.lowlevel.checkpoint()  # it is the first
            with pytest.raises(NoResponseError, match="no longer permitted") as refused:
                await send(lambda: allowed)
        assert not refused.value.sent
        assert (await send()).body == b"hello", "the connection is not lost"
    assert (len(asked), server.accepted) == (2, 1)


async def test_may_send_is_checked_after_connecting() -> None:
    server = Server(polite)
    async with server.run() as endpoint, pool() as connections:
        with pytest.raises(NoResponseError, match="no longer permitted"):
            await exchange(connections, endpoint, 10.0, lambda: False)
        assert connections.idle == server.accepted == 1


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run])
def test_request_is_written_immediately(run: Any) -> None:
    """Otherwise it would be sent after a long turn, when the lease may have expired."""
    arrived = threading.Event()

    def listen(listener: socket.socket) -> None:
        connection, _ = listener.accept()
        with connection:
            connection.recv(1)
            arrived.set()
            connection.recv(1000)
            connection.recv(1)

    async def scenario() -> None:
        port = listener.getsockname()[1]
        endpoint = Endpoint.of(f"http://127.0.0.1:{port}", None, None)
        async with pool() as connections, anyio.create_task_group() as tasks:
            loop = asyncio.get_running_loop()
            # Called just before it is sent, so that the loop is blocked right after that.
            ask = partial(loop.call_soon, hold)
            tasks.start_soon(exchange, connections, endpoint, 60.0, lambda: bool(ask()))
            await held.wait()
            tasks.cancel_scope.cancel()

    def hold() -> None:
        in_time.append(arrived.wait(10.0))
        held.set()

    in_time: list[bool] = []
    held = anyio.Event()
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        thread = threading.Thread(target=listen, args=(listener,))
        thread.start()
        run(scenario())
        thread.join()
    assert in_time == [True]
