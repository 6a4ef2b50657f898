"""A running ``asched ui``, and requests with the time that the server took."""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

import aiohttp
import anyio
import msgspec
from anyio.abc import Process

_DURATION: Final = re.compile(r"total;dur=([0-9.]+)")
_SAMPLE_S: Final = 0.25
_KIB: Final = 1024
_PROPORTIONAL: Final = re.compile(r"^Pss: +(\d+) kB", re.MULTILINE)
_STOP_S: Final = 30


class Answered(NamedTuple):
    """An answer of the server."""

    status: int
    server_ms: float
    """Until the first byte of the answer."""
    body: bytes

    def json(self) -> Any:
        return msgspec.json.decode(self.body)


class Server:
    """A running server."""

    def __init__(self, process: Process, url: str, begun_s: float) -> None:
        self.url = url
        self.begun_s = begun_s
        """When the process was started."""
        self.peak_mib = 0.0
        """Of the process with all its children."""
        self._process = process

    async def get(self, session: aiohttp.ClientSession, path: str) -> Answered:
        async with session.get(self.url + path) as response:
            body = await response.read()
            found = _DURATION.search(response.headers.get("Server-Timing", ""))
            server_ms = float(found[1]) if found is not None else 0.0
            return Answered(response.status, server_ms, body)

    def cpu_s(self) -> float:
        """CPU time of the process with all its children."""
        return sum(map(_cpu_s, tree(self._process.pid)))

    async def watch_memory(self) -> None:
        """Until cancelled."""
        while True:
            self.peak_mib = max(self.peak_mib, memory_mib(self._process.pid))
            await anyio.sleep(_SAMPLE_S)

    async def wait_for_index(self, session: aiohttp.ClientSession) -> int:
        """Wait until the whole journal is indexed and verified. Returns its last record."""
        while True:
            answered = await self.get(session, "/api/v1/journal")
            if answered.status == 200:
                report = answered.json()
                progress = report["progress"]
                seq: int = progress["head"]["seq"]
                if seq and progress["indexedSeq"] == seq and report["verification"]:
                    return seq
            await anyio.sleep(0.5)


def tree(pid: int) -> list[int]:
    """A process and all below it."""
    found, pids = [], [pid]
    while pids:
        one = pids.pop()
        found.append(one)
        try:
            for task in Path(f"/proc/{one}/task").iterdir():
                pids += map(int, (task / "children").read_text().split())
        except OSError:
            continue
    return found


def memory_mib(pid: int) -> float:
    """Resident memory of a process and its children. A page that several of them share counts
    once."""
    return sum(map(_proportional_kib, tree(pid))) / _KIB


def _proportional_kib(pid: int) -> int:
    try:
        found = _PROPORTIONAL.search(Path(f"/proc/{pid}/smaps_rollup").read_text())
    except OSError:
        return 0
    return 0 if found is None else int(found[1])


def _cpu_s(pid: int) -> float:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    # Also that of children that ended: each question about the past has one.
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")


@asynccontextmanager
async def serving(journal: Path, index_dir: Path) -> AsyncIterator[Server]:
    """Start ``asched ui`` and stop it at the end of the block."""
    command = [sys.executable, "-m", "asched", "ui", "--journal", str(journal)]
    command += ["--listen", "127.0.0.1:0", "--index-dir", str(index_dir)]
    begun_s = time.monotonic()
    async with await anyio.open_process(command, stderr=sys.stderr.fileno()) as process:
        assert process.stdout is not None, "it is a pipe"
        text = b""
        while b"\n" not in text:
            text += await process.stdout.receive()
        url = text.decode().partition(" at ")[2].partition(",")[0]
        server = Server(process, url, begun_s)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(server.watch_memory)
            try:
                yield server
            finally:
                tasks.cancel_scope.cancel()
                process.terminate()
                with anyio.CancelScope(shield=True), anyio.move_on_after(_STOP_S):
                    await process.wait()
