"""Workers of the lab that import nothing: forked as those of a server are."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from contextlib import suppress
from multiprocessing.context import ForkServerProcess

from asched.ui.lab import worker

running: set[int] = set()
"""Ids of the processes that have not ended."""


class ForkedWorker:
    """A worker process, with the part of :class:`asyncio.subprocess.Process` that the lab uses."""

    def __init__(
        self,
        process: ForkServerProcess,
        stdout: asyncio.StreamReader,
        stdin: asyncio.StreamWriter,
    ) -> None:
        self.stdin, self.stdout = stdin, stdout
        self.returncode: int | None = None
        assert process.pid is not None
        self._pid = process.pid
        running.add(self._pid)
        self._end = asyncio.ensure_future(self._until_end(process))

    async def _until_end(self, process: ForkServerProcess) -> None:
        await asyncio.to_thread(process.join)
        running.remove(self._pid)
        self.returncode = process.exitcode
        self.stdin.close()

    async def wait(self) -> int:
        await asyncio.shield(self._end)
        assert self.returncode is not None
        return self.returncode

    def kill(self) -> None:
        with suppress(ProcessLookupError):
            os.kill(self._pid, signal.SIGKILL)


async def start_worker() -> ForkedWorker:
    """As :func:`asched.ui.lab.runs.start_worker`."""
    ours, theirs = socket.socketpair()
    process = ForkServerProcess(target=_run, args=(theirs,), daemon=True)
    process.start()
    theirs.close()
    return ForkedWorker(process, *await asyncio.open_connection(sock=ours))


def _run(streams: socket.socket) -> None:
    """Run the worker with this socket as standard input and output."""
    os.setsid()
    os.dup2(streams.fileno(), 0)
    os.dup2(streams.fileno(), 1)
    streams.close()
    sys.stdin = open(0, closefd=False)  # noqa: SIM115  open until the process ends
    sys.exit(worker.main())
