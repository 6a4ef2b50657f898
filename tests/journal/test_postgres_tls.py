"""A journal's password is not sent to another machine without verified TLS."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest
from anyio.abc import SocketAttribute, SocketStream

from asched.journal.errors import (
    JournalError,
    JournalOpenError,
    JournalUnreachableError,
    JournalUrlError,
)
from asched.journal.opening import open_journal, redacted

SSL_REQUEST = b"\x00\x00\x00\x08\x04\xd2\x16\x2f"
CLEARTEXT_PASSWORD = b"R\x00\x00\x00\x08\x00\x00\x00\x03"


@asynccontextmanager
async def greedy_server(received: list[bytes]) -> AsyncIterator[int]:
    """A server without TLS that asks for the password in clear text."""

    async def serve(stream: SocketStream) -> None:
        async with stream:
            while True:
                try:
                    data = await stream.receive()
                except (anyio.EndOfStream, anyio.BrokenResourceError):
                    return
                received.append(data)
                await stream.send(b"N" if data == SSL_REQUEST else CLEARTEXT_PASSWORD)

    listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
    async with listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, serve)
        yield listener.extra(SocketAttribute.local_port)
        tasks.cancel_scope.cancel()


@pytest.mark.parametrize(
    ("url", "host"),
    [
        ("postgresql+asyncpg://u:canary@db.test:{port}/d", None),
        ("postgresql+asyncpg://u:canary@/d?host=db.test&port={port}", None),
        ("postgresql+asyncpg://u:canary@:{port}/d", "db.test"),
        ("postgresql+asyncpg://u:canary@/d?host=db.test:{port}", None),
    ],
)
async def test_password_is_not_sent_to_a_server_without_tls(
    url: str, host: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    lookup = socket.getaddrinfo

    def resolve(name: Any, *args: Any, **kwargs: Any) -> Any:
        return lookup("127.0.0.1" if name in ("db.test", b"db.test") else name, *args, **kwargs)

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    if host is not None:
        monkeypatch.setenv("PGHOST", host)
    received: list[bytes] = []
    async with greedy_server(received) as port:
        with pytest.raises(JournalError) as caught:
            async with open_journal(url.format(port=port)):
                pass
    assert received, "the server was asked for TLS"
    assert set(received) == {SSL_REQUEST}
    assert "canary" not in str(caught.value)


@pytest.mark.parametrize(
    "url",
    [
        "postgresql+asyncpg://u:canary@host:port/d",
        "postgresql+asyncpg://u:ca/n@canary@host:port/d?password=canary",
        "mysql://u:canary@host/d?password=canary",
        "sqlite://u:canary@host/d",
        "sqlite:///d.db?key=canary",
    ],
)
async def test_invalid_url_is_shown_without_password(url: str) -> None:
    with pytest.raises(JournalUrlError) as caught:
        async with open_journal(url):
            pass
    assert "canary" not in str(caught.value)


def test_redacted_url_has_no_password() -> None:
    assert "canary" not in redacted("postgresql+asyncpg://u:canary@h/d?password=canary")


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("127.0.0.1:1/d?sslmode=require", "unknown option 'sslmode' in the URL; TLS is set with"),
        ("127.0.0.1:99999/d", "host or port of the URL: connect.*: port must be 0-65535"),
        ("a..b/d", "host or port of the URL: "),
    ],
)
async def test_unusable_url_is_not_retried(address: str, message: str) -> None:
    with pytest.raises(JournalOpenError, match=message) as caught:
        async with open_journal(f"postgresql+asyncpg://u:canary@{address}", read_only=True):
            pass
    assert not isinstance(caught.value, JournalUnreachableError)
    assert "canary" not in str(caught.value)
