"""Renewals of OpenID Connect tokens verify the certificate of the provider."""

from __future__ import annotations

import asyncio
import base64
import json
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from asched.kube.connection import KubeConfig
from asched.kube.errors import KubeConfigError
from tests.extenders.certificates import CERTIFICATE, KEY, NAME
from tests.kube.harness import BEGIN
from tests.kube.test_connection import kubeconfig

EXPIRED = f"a.{base64.urlsafe_b64encode(json.dumps({'exp': 1}).encode()).decode().rstrip('=')}.c"
# The library uses functions that aiohttp and Python will remove.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


@asynccontextmanager
async def provider(folder: Path) -> AsyncIterator[tuple[int, list[bytes]]]:
    """The port of a provider with a self-signed certificate, and what it received."""
    (folder / "crt").write_text(CERTIFICATE)
    (folder / "key").write_text(KEY)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(folder / "crt", folder / "key")
    received: list[bytes] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        _, found, length = head.lower().partition(b"content-length: ")
        body = await reader.readexactly(int(length.split()[0])) if found else b""
        received.append(head + body)
        tokens = {"id_token": "fresh", "refresh_token": "next"}
        known = {"token_endpoint": f"https://{NAME}:{port}/token"}
        text = json.dumps(known if b"well-known" in head else tokens).encode()
        writer.write(
            b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nConnection: close\r\n"
            b"Content-Length: %d\r\n\r\n%b" % (len(text), text)
        )
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0, ssl=tls) as server:
        port = server.sockets[0].getsockname()[1]
        yield port, received


@pytest.fixture(autouse=True)
def named_provider(monkeypatch: pytest.MonkeyPatch) -> None:
    """The name in the certificate is an address of this machine."""
    resolve = asyncio.BaseEventLoop.getaddrinfo

    async def to_loopback(self: Any, host: str, *args: Any, **kwargs: Any) -> Any:
        return await resolve(self, "127.0.0.1" if host == NAME else host, *args, **kwargs)

    monkeypatch.setattr(asyncio.BaseEventLoop, "getaddrinfo", to_loopback)


def user(port: int, **authority: str) -> dict[str, Any]:
    config = {
        "id-token": EXPIRED,
        "refresh-token": "canary",
        "client-id": "asched",
        "client-secret": "canary",
        "idp-issuer-url": f"https://{NAME}:{port}",
        **authority,
    }
    return {"auth-provider": {"name": "oidc", "config": config}}


async def test_unknown_provider_gets_no_refresh_token(tmp_path: Path) -> None:
    async with provider(tmp_path) as (port, received):
        path = kubeconfig(tmp_path, "https://api", user(port))
        with pytest.raises(KubeConfigError, match="oidc: the provider does not answer: ") as caught:
            await KubeConfig([path]).load(BEGIN)
    assert received == []
    assert "canary" not in str(caught.value)


@pytest.mark.parametrize("in_file", [True, False])
async def test_token_is_renewed_from_a_provider_with_a_known_authority(
    in_file: bool, tmp_path: Path
) -> None:
    async with provider(tmp_path) as (port, received):
        authority = {"idp-certificate-authority": "crt"}
        if not in_file:
            encoded = base64.b64encode(CERTIFICATE.encode()).decode()
            authority = {"idp-certificate-authority-data": encoded}
        path = kubeconfig(tmp_path, "https://api", user(port, **authority))
        found = await KubeConfig([path]).load(BEGIN)
    assert found.authorization == "Bearer fresh"
    assert b"refresh_token=canary" in received[1]
