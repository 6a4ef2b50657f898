"""Runs ``asched`` processes in tests."""

from __future__ import annotations

import atexit
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import cache
from pathlib import Path

import anyio
from anyio.streams.buffered import BufferedByteReceiveStream

from tests.daemon.world import OWN, TIMEOUT_S

ROOT = Path(__file__).resolve().parents[2]
NO_HEALTH = OWN + "health: {address: ''}\nlog: {format: json}\n"
FORKED = "tests.daemon.forked_commands"
_LINE_LIMIT = 100


class Command:
    """One run of ``asched``."""

    def __init__(self, pid: int, output: Path) -> None:
        self.pid = pid
        self.status: int | None = None
        """The exit status after :meth:`Commands.ended`; minus the signal number if killed."""
        self._output = output

    def send(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)

    @property
    def output(self) -> str:
        """Output to stdout and stderr so far."""
        return self._output.read_text() if self._output.exists() else ""

    @property
    def lines(self) -> list[str]:
        return self.output.splitlines()


class Commands:
    """Starts commands one at a time; created by :func:`commands`."""

    def __init__(self, runner: anyio.abc.ByteStream, folder: Path) -> None:
        self._runner = runner
        self._responses = BufferedByteReceiveStream(runner)
        self._folder = folder
        self._started = 0

    async def _response(self, timeout_s: float = TIMEOUT_S) -> str:
        with anyio.fail_after(timeout_s):
            return (await self._responses.receive_until(b"\n", _LINE_LIMIT)).decode()

    async def start(self, *arguments: str) -> Command:
        self._started += 1
        output = self._folder / f"output-{self._started}"
        await self._runner.send(json.dumps([str(output), *arguments]).encode() + b"\n")
        return Command(int(await self._response()), output)

    async def ended(self, command: Command, timeout_s: float = TIMEOUT_S) -> int:
        """Wait for the end of the command; returns its exit status."""
        if command.status is None:
            command.status = int(await self._response(timeout_s))
        return command.status


@cache
def _runners() -> str:
    """The socket of a program that forks runners, started once in each process of tests."""
    path = Path(tempfile.mkdtemp(prefix="asched-")) / "socket"
    program = [sys.executable, "-m", FORKED, str(path)]
    process = subprocess.Popen(program, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    atexit.register(process.communicate)
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    return str(path)


@asynccontextmanager
async def commands(
    folder: Path, module: str = FORKED, environment: Mapping[str, str] | None = None
) -> AsyncIterator[Commands]:
    """Run commands as children of one process, which ends with the block.

    ``module`` has a function ``prepare`` that the process calls first. ``environment``: additional
    variables of the commands.
    """
    variables = {**os.environ, **(environment or {})}
    path = await anyio.to_thread.run_sync(_runners)
    async with await anyio.connect_unix(path) as runner:
        await runner.send(json.dumps([module, variables]).encode() + b"\n")
        yield Commands(runner, folder)


@asynccontextmanager
async def running(runner: Commands, *arguments: str) -> AsyncIterator[Command]:
    """Run a command in this block; it is killed at the end if it still runs."""
    command = await runner.start(*arguments)
    try:
        yield command
    finally:
        if command.status is None:
            command.send(signal.SIGKILL)
            with anyio.CancelScope(shield=True):
                await runner.ended(command)
