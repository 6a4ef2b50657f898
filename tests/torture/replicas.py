"""Replicas of ``asched run`` that are restarted whenever they end, as by systemd."""

from __future__ import annotations

import math
import os
import signal
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from time import monotonic
from typing import NamedTuple

import aiohttp
import anyio

from tests.daemon.processes import Command, Commands, commands
from tests.daemon.world import OWN
from tests.replicas.pair import SHORT_LEASE
from tests.torture.canaries import JOURNAL_PASSWORD, TOKEN, VARIABLE, leaks
from tests.torture.history import HealthSample
from tests.torture.lying_proxy import LyingProxy
from tests.torture.replica_process import CLOCK_ENV, ClockOffset

RESTART_S = 0.2
HEALTH_TIMEOUT_S = 1.0
_EXEC_PLUGIN = """\
#!/bin/sh
env > "{folder}/exec-environment-$$"
if [ -e "{folder}/hang" ]; then
    echo $$ >> "{folder}/hanging"
    exec sleep 600
fi
echo '{{"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential",
  "status": {{"token": "{token}"}}}}'
"""


class UnexpectedEnd(NamedTuple):
    """A replica ended in a way that no fault explains."""

    replica: str
    text: str


class SupervisedReplica:
    """One of the replicas. Created by :func:`supervised`."""

    def __init__(self, folder: Path, journal: str, proxy: LyingProxy) -> None:
        self.name = folder.name
        self.folder = folder
        self.journal = journal
        self.proxy = proxy
        self.clock = ClockOffset(folder / "clock")
        self.command: Command | None = None
        self.samples: list[HealthSample] = []
        """Of the current process."""
        self.leaks: set[str] = set()
        """Secrets on its pages."""
        self.unexpected_ends: list[UnexpectedEnd] = []
        self.starts = 0
        self.stopping = False
        """Whether it is not to be started again."""
        self._terminated = False
        """Whether its present process was asked to end."""
        self.recorded_at_s = monotonic()
        """When its journal's files changed last."""
        self._files: tuple[object, ...] = ()
        self._health = f"127.0.0.1:{_free_port()}"

    # -- the process --------------------------------------------------------------------------

    async def supervise(self, runner: Commands, arguments: list[str]) -> None:
        """Start it, and start it again after each end until it is stopped."""
        while not self.stopping:
            self.samples.clear()
            self._terminated = False
            self.starts += 1
            self.command = await runner.start(*arguments)
            status = await runner.ended(self.command, math.inf)
            self._judge_end(status)
            await anyio.sleep(RESTART_S)

    def _judge_end(self, status: int) -> None:
        last = self.process.lines[-1] if self.process.lines else ""
        if status == 2:
            end = f"ended with code 2, after which systemd does not restart it: {last}"
        elif status == 0 and not self._terminated:
            end = "ended with code 0 without a signal"
        elif status < 0 and status not in self._expected_signals():
            end = f"was killed by {signal.Signals(-status).name}"
        else:
            return
        self.unexpected_ends.append(UnexpectedEnd(self.name, end))

    def _expected_signals(self) -> tuple[int, ...]:
        """A process that has just begun to start has no handler yet."""
        return (-signal.SIGKILL, -signal.SIGTERM) if self._terminated else (-signal.SIGKILL,)

    @property
    def process(self) -> Command:
        assert self.command is not None
        return self.command

    @property
    def runs(self) -> bool:
        return self.command is not None and self.command.status is None

    def send(self, number: signal.Signals) -> None:
        """Send a signal; a process that has just ended gets none."""
        if self.runs:
            self._terminated |= number == signal.SIGTERM
            with suppress(ProcessLookupError):
                self.process.send(number)

    def holds(self, holder: str) -> bool:
        """Whether the holder of a lease is its process."""
        return self.command is not None and f"_{self.command.pid}_" in holder

    def open_files(self) -> int:
        with suppress(OSError):
            return len(os.listdir(f"/proc/{self.process.pid}/fd"))
        return 0

    def kill_hanging_plugins(self) -> None:
        """Kill the exec plugins that hang, if asched has not."""
        (self.folder / "hang").unlink(missing_ok=True)
        hanging = self.folder / "hanging"
        for pid in hanging.read_text().split() if hanging.exists() else ():
            with suppress(OSError):
                if b"sleep\x00600" in Path(f"/proc/{pid}/cmdline").read_bytes():
                    os.kill(int(pid), signal.SIGKILL)
        hanging.unlink(missing_ok=True)

    # -- observation --------------------------------------------------------------------------

    @property
    def journal_files(self) -> list[Path]:
        """The files of a journal in SQLite."""
        if "://" in self.journal:
            return []
        return [Path(self.journal + suffix) for suffix in ("", "-wal", "-shm")]

    async def sample(self, session: aiohttp.ClientSession, *, metrics: bool) -> None:
        """Read its pages once."""
        status, text = await self._page(session, "readyz?verbose")
        self.samples.append(HealthSample(monotonic(), status == 200, text))
        self.leaks.update(leaks(text.encode(), "/readyz"))
        if metrics:
            _, page = await self._page(session, "metrics")
            self.leaks.update(leaks(page.encode(), "/metrics"))
        files = tuple(_signature(file) for file in self.journal_files[:2])
        if files != self._files:
            self._files, self.recorded_at_s = files, monotonic()

    async def _page(self, session: aiohttp.ClientSession, page: str) -> tuple[int, str]:
        try:
            with anyio.fail_after(HEALTH_TIMEOUT_S):
                async with session.get(f"http://{self._health}/{page}") as response:
                    return response.status, await response.text()
        except (aiohttp.ClientError, OSError):
            return 0, "no answer"

    # -- files --------------------------------------------------------------------------------

    def write_configuration(self) -> Path:
        file = self.folder / "config.yaml"
        file.write_text(
            f"{OWN}health: {{address: '{self._health}'}}\nlog: {{format: json}}\n"
            f"leaderElection: {SHORT_LEASE}\n"
        )
        return file

    def write_kubeconfig(self, *, exec_plugin: bool) -> Path:
        """The proxy's address, with the token in the file or from an exec plugin."""
        user = f"{{token: {TOKEN}}}"
        if exec_plugin:
            plugin = self.folder / "credential-plugin"
            plugin.write_text(_EXEC_PLUGIN.format(folder=self.folder, token=TOKEN))
            plugin.chmod(0o700)
            user = (
                "{exec: {apiVersion: client.authentication.k8s.io/v1, interactiveMode: Never,"
                f" command: {plugin}}}}}"
            )
        file = self.folder / "kubeconfig"
        file.touch(mode=0o600)
        file.write_text(
            "{apiVersion: v1, kind: Config, current-context: c,\n"
            f" clusters: [{{name: c, cluster: {{server: '{self.proxy.url}'}}}}],\n"
            f" users: [{{name: u, user: {user}}}],\n"
            " contexts: [{name: c, context: {cluster: c, user: u}}]}\n"
        )
        return file


def _signature(file: Path) -> tuple[int, int, int] | None:
    with suppress(OSError):
        found = file.stat()
        return found.st_ino, found.st_size, found.st_mtime_ns
    return None


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@asynccontextmanager
async def supervised(replica: SupervisedReplica, *, exec_plugin: bool) -> AsyncIterator[Commands]:
    """Run the replica in this block; at the end it is killed if it still runs."""
    environment = {
        "ASCHED_JOURNAL": replica.journal,
        "TORTURE_VARIABLE": VARIABLE,
        CLOCK_ENV: str(replica.folder / "clock"),
    }
    arguments = ["run", "--config", str(replica.write_configuration())]
    arguments += ["--kubeconfig", str(replica.write_kubeconfig(exec_plugin=exec_plugin))]
    module = "tests.torture.replica_process"
    async with (
        commands(replica.folder, module, environment) as runner,
        anyio.create_task_group() as tasks,
    ):
        tasks.start_soon(replica.supervise, runner, arguments)
        try:
            yield runner
        finally:
            replica.stopping = True
            replica.kill_hanging_plugins()
            replica.send(signal.SIGKILL)
            with anyio.CancelScope(shield=True), anyio.move_on_after(10):
                while replica.runs:  # noqa: ASYNC110  the supervisor waits for it
                    await anyio.sleep(RESTART_S)
            tasks.cancel_scope.cancel()


def with_password(url: str) -> str:
    """The URL of a database with the password that must not appear anywhere."""
    return url.replace("://postgres@", f"://postgres:{JOURNAL_PASSWORD}@").replace(
        "://postgres:@", f"://postgres:{JOURNAL_PASSWORD}@"
    )
