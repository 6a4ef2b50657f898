"""A worker process, seen from the daemon."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from contextlib import AsyncExitStack

import anyio
from anyio.abc import Process
from anyio.streams.buffered import BufferedByteReceiveStream

from asched.daemon.outside import messages as m

START_TIME_LIMIT_S = 30.0
"""From the start of the process until its plugin is made: that may have much to import."""
_LAST_WORDS_S = 1.0
"""How long a process that closed its pipes may take to end by itself."""
_PRIVATE = ("ASCHED_", "KUBECONFIG", "KUBERNETES_", "PG", "NOTIFY_SOCKET")
"""Beginnings of the names of variables that are no concern of a plugin."""


class WorkerLostError(Exception):
    """The process ended, could not be started, or was ended because it took too long."""


class WorkerProcess:
    """One process from its start to its end. Raises :class:`WorkerLostError` once it is over."""

    def __init__(self) -> None:
        self._stack = AsyncExitStack()
        self._process: Process | None = None
        self._source: BufferedByteReceiveStream | None = None

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.returncode is None

    async def start(self, begin: m.Begin) -> None:
        command = [sys.executable, "-m", "asched.daemon.outside.worker"]
        environment = {k: v for k, v in os.environ.items() if not k.startswith(_PRIVATE)}
        try:
            self._process = await anyio.open_process(command, stderr=None, env=environment)
        except OSError as error:
            raise WorkerLostError(f"its worker cannot be started: {error}") from None
        assert self._process.stdout is not None
        self._source = BufferedByteReceiveStream(self._process.stdout)
        with anyio.move_on_after(START_TIME_LIMIT_S):
            await self.send([begin])
            reply = await self.receive()
            if isinstance(reply, m.Failed):
                await self.end()
                raise WorkerLostError(f"it cannot be made in its worker: {reply.message}")
            return
        await self.end()
        raise WorkerLostError(f"its worker did not start within {START_TIME_LIMIT_S:g} s")

    async def send(self, messages: Iterable[m.ToWorker]) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        try:
            await self._process.stdin.send(b"".join(map(m.framed, messages)))
        except (anyio.BrokenResourceError, anyio.ClosedResourceError, OSError):
            raise await self._lost() from None

    async def receive(self) -> m.FromWorker:
        assert self._source is not None
        try:
            head = await self._source.receive_exactly(m.LENGTH_BYTES)
            body = await self._source.receive_exactly(int.from_bytes(head, "big"))
        except (anyio.IncompleteRead, anyio.BrokenResourceError, anyio.ClosedResourceError):
            raise await self._lost() from None
        try:
            reply: m.FromWorker = m.decode_from_worker(body)
        except ValueError as error:
            await self.end()
            raise WorkerLostError(f"its worker talks nonsense: {error}") from None
        return reply

    async def _lost(self) -> WorkerLostError:
        assert self._process is not None
        # Its pipes are closed, so it has ended or is about to: how, is worth knowing.
        with anyio.move_on_after(_LAST_WORDS_S):
            await self._process.wait()
        await self.end()
        return WorkerLostError(f"its worker ended with code {self._process.returncode}")

    async def end(self) -> None:
        """End it at once, whatever it does."""
        if self._process is None:
            return
        with anyio.CancelScope(shield=True):
            if self._process.returncode is None:
                self._process.kill()
            await self._process.aclose()
