"""A proxy to the API server that can drop all bytes while connections stay open."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from time import monotonic

import anyio
from anyio.abc import ByteStream, SocketAttribute, SocketStream
from anyio.streams.stapled import MultiListener


class Proxy:
    """Forwards bytes in both directions until it is cut."""

    def __init__(self, server: str) -> None:
        """``server`` is ``http://HOST:PORT``."""
        host, _, port = server.removeprefix("http://").partition(":")
        self._host, self._port = host, int(port)
        self._server = server
        self.address = ""
        self.cut_at_s: float | None = None
        self._cuts_next_request = False
        self._cut = anyio.Event()
        self.binding_sent_s: list[float] = []
        """When bindings were sent that the cut has swallowed."""

    async def cut(self) -> None:
        """Drop all bytes from the next request on, without closing connections. Returns when that
        request is lost."""
        self._cuts_next_request = True
        await self._cut.wait()

    def kubeconfig(self, original: Path, path: Path) -> Path:
        """The kubeconfig of the server, by this way."""
        path.write_text(original.read_text().replace(self._server, self.address))
        return path

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        listener: MultiListener[SocketStream] = await anyio.create_tcp_listener(
            local_host="127.0.0.1"
        )
        port = listener.extra(SocketAttribute.local_port)
        self.address = f"http://127.0.0.1:{port}"
        async with listener, anyio.create_task_group() as tasks:
            tasks.start_soon(listener.serve, self._serve)
            yield
            tasks.cancel_scope.cancel()

    async def _serve(self, client: SocketStream) -> None:
        async with (
            client,
            await anyio.connect_tcp(self._host, self._port) as server,
            anyio.create_task_group() as tasks,
        ):
            tasks.start_soon(self._pass_on, server, client)
            await self._pass_on(client, server, asked=True)
            tasks.cancel_scope.cancel()

    async def _pass_on(self, source: ByteStream, to: ByteStream, asked: bool = False) -> None:
        try:
            async for chunk in source:
                if asked and self._cuts_next_request and self.cut_at_s is None:
                    self.cut_at_s = monotonic()
                    self._cut.set()
                if self.cut_at_s is None:
                    await to.send(chunk)
                elif asked and b"/binding HTTP" in chunk:
                    self.binding_sent_s.append(monotonic())
        except (anyio.BrokenResourceError, anyio.ClosedResourceError):
            return
