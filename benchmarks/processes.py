"""The scheduler and the API server as processes of their own, and what they cost.

CPU time and memory are read from ``/proc``: Linux only.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from subprocess import CalledProcessError

import anyio
import msgspec
from anyio.abc import Process

_PATIENCE_S = 60.0
_SETTLED_CPU_S = 0.02
"""A process that takes less than this in a look is idle."""
_LOOK_S = 0.4
_MOST_LOOKS = 25
_TICKS = os.sysconf("SC_CLK_TCK")
_SETTINGS = """\
apiVersion: asched.dev/v1
kind: AschedConfiguration
health: {address: ''}
log: {level: warning, format: json}
"""


class ProcessEndedError(RuntimeError):
    """A process ended that should not have; the message is the end of what it said."""


class MeasuredProcess:
    """A running process."""

    def __init__(self, process: Process, output: Path) -> None:
        self._process = process
        self._output = output

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def output(self) -> str:
        return self._output.read_text()

    def cpu_s(self) -> float:
        """CPU time so far, in user and kernel mode."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / _TICKS

    def peak_rss_mib(self) -> float:
        return self._memory_mib("VmHWM")

    def rss_mib(self) -> float:
        return self._memory_mib("VmRSS")

    def _memory_mib(self, name: str) -> float:
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if line.startswith(f"{name}:"):
                return int(line.split()[1]) / 1024
        raise AssertionError(f"every process has a {name}")

    def sockets(self) -> int:
        """Open sockets: connections, and where it listens."""
        found = 0
        for entry in Path(f"/proc/{self.pid}/fd").iterdir():
            # One may be closed between the look at the folder and the look at it.
            with suppress(FileNotFoundError):
                found += str(entry.readlink()).startswith("socket:")
        return found

    async def settled_cpu_s(self) -> float:
        """CPU time so far, once there is little more: what was begun (Events) is paid for. At most
        ten seconds later, where it never becomes idle."""
        before_s = self.cpu_s()
        for _ in range(_MOST_LOOKS):
            await anyio.sleep(_LOOK_S)
            now_s = self.cpu_s()
            if now_s - before_s < _SETTLED_CPU_S:
                return now_s
            before_s = now_s
        return before_s

    def pause(self) -> None:
        """Let it do nothing until :meth:`proceed`."""
        self._process.send_signal(signal.SIGSTOP)

    def proceed(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def check(self) -> None:
        """Raises :class:`ProcessEndedError` where it does not run any more."""
        if self._process.returncode is not None:
            raise ProcessEndedError(self.output[-2000:])


class SchedulerOptions(msgspec.Struct, frozen=True):
    """How the scheduler is run, beside what every measurement has in common."""

    configuration: str = ""
    """Further YAML documents of its configuration file."""
    search_path: Path | None = None
    """A folder with distributions of plugins."""
    profile: Path | None = None
    """Where cProfile is to leave its statistics. It slows the scheduler down."""


@asynccontextmanager
async def running(
    folder: Path, name: str, *arguments: str, options: SchedulerOptions | None = None
) -> AsyncIterator[MeasuredProcess]:
    """``asched`` with these arguments, ended with SIGTERM when the block is left."""
    output, options = folder / f"{name}.log", options or SchedulerOptions()
    command = [sys.executable, "-m", "asched", *arguments]
    if options.profile is not None:
        command[1:1] = ["-m", "cProfile", "-o", str(options.profile)]
    environment = dict(os.environ)
    # An installed asched finds its modules compiled; so shall a measured one from the second start on.
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    if options.search_path is not None:
        environment["PYTHONPATH"] = str(options.search_path)
    with output.open("wb") as file:
        # In sessions of their own, as services are: Linux shares out a busy machine by session.
        process = await anyio.open_process(
            command,
            stdin=None,
            stdout=file,
            stderr=file,
            env=environment,
            start_new_session=True,
        )
        async with process:
            measured = MeasuredProcess(process, output)
            try:
                yield measured
            finally:
                with anyio.CancelScope(shield=True), anyio.move_on_after(_PATIENCE_S):
                    if process.returncode is None:
                        process.send_signal(signal.SIGTERM)
                        process.send_signal(signal.SIGCONT)
                    await process.wait()


@asynccontextmanager
async def api_server(folder: Path, faults: str = "", *, tls: bool = False) -> AsyncIterator[Path]:
    """An embedded cluster in a process of its own; the path of its kubeconfig. ``faults`` as
    ``asched apiserver`` takes them; ``tls``: over HTTPS, with a certificate made for it.

    Raises ProcessEndedError where openssl cannot make that.
    """
    kubeconfig = folder / "kubeconfig"
    arguments = ["apiserver", "--no-kubelets", "--heartbeat", "0", "--kubeconfig", str(kubeconfig)]
    arguments += ["--faults", faults] if faults else []
    arguments += await _certificate(folder) if tls else []
    async with running(folder, "apiserver", *arguments) as server:
        with anyio.fail_after(_PATIENCE_S):
            while "serving" not in server.output:
                server.check()
                await anyio.sleep(0.05)
        yield kubeconfig


async def _certificate(folder: Path) -> list[str]:
    """Options of a server that proves to be 127.0.0.1."""
    certificate, key = folder / "certificate.pem", folder / "key.pem"
    options = (
        "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2"
        f" -subj /CN=127.0.0.1 -addext subjectAltName=IP:127.0.0.1 -keyout {key} -out {certificate}"
    )
    try:
        await anyio.run_process(["openssl", *options.split()])
    except (OSError, CalledProcessError) as error:
        raise ProcessEndedError(f"a certificate takes the openssl command: {error}") from None
    return ["--tls-certificate", str(certificate), "--tls-key", str(key)]


@asynccontextmanager
async def scheduler(
    folder: Path, kubeconfig: Path, journal: Path, options: SchedulerOptions | None = None
) -> AsyncIterator[MeasuredProcess]:
    """``asched run`` with its journal on SQLite and Events on."""
    options, settings = options or SchedulerOptions(), folder / "settings.yaml"
    settings.write_text(_SETTINGS + options.configuration)
    arguments = ("--kubeconfig", kubeconfig, "--config", settings, "--journal", journal)
    command = ("run", *map(str, arguments))
    async with running(folder, "scheduler", *command, options=options) as process:
        yield process
