"""Runs the scheduler and the API server as processes, and reads their CPU time and memory.

Reads ``/proc``: Linux only.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from subprocess import CalledProcessError
from typing import Any, Final

import anyio
import msgspec
from anyio.abc import Process

_TIMEOUT_S = 60.0
_IDLE_CPU_S = 0.02
"""A process that uses less CPU than this in an interval is idle."""
_IDLE_INTERVAL_S = 0.4
_MAX_INTERVALS = 25
_TICKS = os.sysconf("SC_CLK_TCK")
_SETTINGS = """\
apiVersion: asched.dev/v1
kind: AschedConfiguration
health: {address: ''}
log: {level: warning, format: json}
"""

_UNLIMITED: Final = {
    "contentType": "application/json",
    "acceptContentTypes": "application/json",
    "qps": 5000,
    "burst": 5000,
}


class ProcessEndedError(RuntimeError):
    """A process ended unexpectedly; the message is the end of its output."""


class MeasuredProcess:
    """A running process and its resource usage."""

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
        """Number of open sockets, listening ones included."""
        found = 0
        for entry in Path(f"/proc/{self.pid}/fd").iterdir():
            # A descriptor may be closed after the directory was read.
            with suppress(FileNotFoundError):
                found += str(entry.readlink()).startswith("socket:")
        return found

    async def settled_cpu_s(self) -> float:
        """CPU time once the process is idle, or after ten seconds."""
        before_s = self.cpu_s()
        for _ in range(_MAX_INTERVALS):
            await anyio.sleep(_IDLE_INTERVAL_S)
            now_s = self.cpu_s()
            if now_s - before_s < _IDLE_CPU_S:
                return now_s
            before_s = now_s
        return before_s

    def suspend(self) -> None:
        """Stop the process until :meth:`resume`."""
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def check(self) -> None:
        """Raises :class:`ProcessEndedError` if the process has ended."""
        if self._process.returncode is not None:
            raise ProcessEndedError(self.output[-2000:])


class SchedulerOptions(msgspec.Struct, frozen=True):
    """Options of the scheduler process."""

    configuration: str = ""
    """YAML documents appended to the configuration file."""
    search_path: Path | None = None
    """A folder with installed plugin distributions."""
    profile: Path | None = None
    """Output file of cProfile, which slows the scheduler down."""
    kube_scheduler: Path | None = None
    """Run this kube-scheduler instead of asched; of the other options, ``profiles`` apply to it."""
    profiles: tuple[dict[str, Any], ...] = ()
    """Profiles of a KubeSchedulerConfiguration; empty for the defaults."""


@asynccontextmanager
async def running(
    folder: Path,
    name: str,
    *arguments: str,
    options: SchedulerOptions | None = None,
    module: str = "asched",
) -> AsyncIterator[MeasuredProcess]:
    """Run ``asched`` or another module with these arguments; ends with SIGTERM when the block is
    left."""
    options = options or SchedulerOptions()
    command = [sys.executable, "-m", module, *arguments]
    if options.profile is not None:
        command[1:1] = ["-m", "cProfile", "-o", str(options.profile)]
    environment = dict(os.environ)
    # An installed asched has compiled modules; a measured one has them from the second start on.
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    if options.search_path is not None:
        environment["PYTHONPATH"] = str(options.search_path)
    async with _process(folder / f"{name}.log", command, environment) as measured:
        yield measured


@asynccontextmanager
async def _process(
    output: Path, command: list[str], environment: dict[str, str]
) -> AsyncIterator[MeasuredProcess]:
    with output.open("wb") as file:
        # A new session, as for a service: Linux divides CPU time between sessions.
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
                with anyio.CancelScope(shield=True), anyio.move_on_after(_TIMEOUT_S):
                    if process.returncode is None:
                        process.send_signal(signal.SIGTERM)
                        process.send_signal(signal.SIGCONT)
                    await process.wait()


@asynccontextmanager
async def api_server(folder: Path, faults: str = "", *, tls: bool = False) -> AsyncIterator[Path]:
    """Run an embedded cluster in a process; yields the path of its kubeconfig.

    ``faults`` as in ``asched apiserver``. ``tls``: HTTPS with a new certificate. Raises
    ProcessEndedError if openssl cannot create the certificate.
    """
    kubeconfig = folder / "kubeconfig"
    arguments = ["apiserver", "--no-kubelets", "--heartbeat", "0", "--kubeconfig", str(kubeconfig)]
    arguments += ["--faults", faults] if faults else []
    arguments += await _certificate(folder) if tls else []
    async with running(folder, "apiserver", *arguments) as server:
        with anyio.fail_after(_TIMEOUT_S):
            while "serving" not in server.output:
                server.check()
                await anyio.sleep(0.05)
        yield kubeconfig


async def _certificate(folder: Path) -> list[str]:
    """Create a certificate for 127.0.0.1; returns the options of the server."""
    certificate, key = folder / "certificate.pem", folder / "key.pem"
    options = (
        "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2"
        f" -subj /CN=127.0.0.1 -addext subjectAltName=IP:127.0.0.1 -keyout {key} -out {certificate}"
    )
    try:
        await anyio.run_process(["openssl", *options.split()])
    except (OSError, CalledProcessError) as error:
        raise ProcessEndedError(f"cannot create a certificate with openssl: {error}") from None
    return ["--tls-certificate", str(certificate), "--tls-key", str(key)]


@asynccontextmanager
async def scheduler(
    folder: Path, kubeconfig: Path, journal: Path, options: SchedulerOptions | None = None
) -> AsyncIterator[MeasuredProcess]:
    """Run ``asched run`` with a SQLite journal and Events, or the kube-scheduler of the options."""
    if options is not None and options.kube_scheduler is not None:
        binary, profiles = options.kube_scheduler, options.profiles
        async with _kube_scheduler(folder, kubeconfig, binary, profiles) as process:
            yield process
        return
    options, settings = options or SchedulerOptions(), folder / "settings.yaml"
    documents = f"---\n{_kube_configuration(options.profiles)}\n" if options.profiles else ""
    settings.write_text(_SETTINGS + options.configuration + documents)
    arguments = ("--kubeconfig", kubeconfig, "--config", settings, "--journal", journal)
    command = ("run", *map(str, arguments))
    async with running(folder, "scheduler", *command, options=options) as process:
        yield process


def _kube_configuration(profiles: tuple[dict[str, Any], ...], **fields: Any) -> str:
    """A KubeSchedulerConfiguration."""
    kind = {"apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "KubeSchedulerConfiguration"}
    return json.dumps({**kind, **({"profiles": profiles} if profiles else {}), **fields})


@asynccontextmanager
async def _kube_scheduler(
    folder: Path, kubeconfig: Path, binary: Path, profiles: tuple[dict[str, Any], ...]
) -> AsyncIterator[MeasuredProcess]:
    """Run a kube-scheduler without limits on its requests, as scheduler_perf does."""
    settings = folder / "kube-scheduler.yaml"
    connection = {"kubeconfig": str(kubeconfig), **_UNLIMITED}
    election = {"leaderElect": False}
    settings.write_text(
        _kube_configuration(profiles, clientConnection=connection, leaderElection=election)
    )
    options = ("--secure-port=0", "--authentication-skip-lookup=true", "--leader-elect=false")
    command = [str(binary), f"--config={settings}", *options]
    async with _process(folder / "scheduler.log", command, dict(os.environ)) as process:
        yield process
