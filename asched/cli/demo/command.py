"""The command itself: options, and the order in which things happen.

The demo's API server: ``asched apiserver`` in a process of its own.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Final, NamedTuple

import anyio
import structlog
import typer
from anyio.abc import Process
from anyio.streams.text import TextReceiveStream

from asched.cli.demo.progress import JournalCounts, standing, utilisation
from asched.cli.demo.view import DemoResult, View, next_commands, open_view, print_summary
from asched.cli.demo.workload import MIN_NODES, DemoWorkload, Loader, build, most_pods
from asched.cli.errors import BadInput, CommandError, as_command_error
from asched.cli.main import command_app
from asched.cli.options import read_configuration
from asched.config.file import Configuration
from asched.config.registry import PluginRegistry
from asched.config.settings import LogLevel, LogSettings
from asched.daemon.daemon import Daemon, running_daemon
from asched.daemon.telemetry.logs import configure_logs
from asched.journal.opening import open_journal
from asched.journal.store import JournalStore
from asched.kube.connection import connect
from asched.state.cluster import ClusterState

START_TIMEOUT_S: Final = 30.0
STOP_TIMEOUT_S: Final = 10.0


class Kubeconfigs(NamedTuple):
    """How to reach the cluster as one user or another."""

    admin: Path
    scheduler: Path
    """With the permissions of ``system:kube-scheduler`` alone."""


@asynccontextmanager
async def api_server(folder: Path, pod_start_s: float) -> AsyncIterator[Kubeconfigs]:
    """Serve an empty cluster until the block ends; kubeconfigs are written into ``folder``.

    Raises CommandError if the server does not come up.
    """
    files = Kubeconfigs(folder / "kubeconfig.yaml", folder / "kubeconfig-scheduler.yaml")
    command = [
        sys.executable, "-m", "asched", "apiserver", "--until-stdin-closes",
        "--kubeconfig", str(files.admin), "--scheduler-kubeconfig", str(files.scheduler),
        "--pod-start", str(pod_start_s),
    ]  # fmt: skip
    # In a session of its own, so that Ctrl-C reaches us alone and the daemon can finish first. If
    # we are killed, the end of its input stops it.
    process = await anyio.open_process(
        command, stdin=subprocess.PIPE, stderr=None, start_new_session=True
    )
    try:
        await _ready(process)
        yield files
    finally:
        with anyio.CancelScope(shield=True):
            await _stop(process)
        for file in files:
            file.unlink(missing_ok=True)  # nobody answers there any more


async def _ready(process: Process) -> None:
    """Until the server says that it listens: it prints a line then and not before."""
    assert process.stdout is not None
    with anyio.move_on_after(START_TIMEOUT_S):
        async for text in TextReceiveStream(process.stdout):
            if "\n" in text:
                return
        raise CommandError("asched: the demo's API server ended before it listened")
    raise CommandError(f"asched: the demo's API server did not listen in {START_TIMEOUT_S:.0f} s")


async def _stop(process: Process) -> None:
    assert process.stdin is not None
    await process.stdin.aclose()
    with anyio.move_on_after(STOP_TIMEOUT_S):
        await process.wait()
    if process.returncode is None:
        process.kill()
        await process.wait()
    await process.aclose()


app = command_app("Schedule a simulated cluster, live: API server, kubelets, workload and daemon.")

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

_REFRESH_S: Final = 0.25
_POD_START_S: Final = 0.3


class Options(NamedTuple):
    nodes: int
    pods: int
    seed: int
    over_s: float
    timeout_s: float
    journal: Path
    folder: Path
    keep: bool


@app.command()
def demo(
    nodes: Annotated[int, typer.Option(help="Nodes to begin with.", min=MIN_NODES)] = 200,
    pods: Annotated[int, typer.Option(help="Pods that can run.", min=1)] = 2000,
    seed: Annotated[int, typer.Option(help="Draws the workload.", min=0)] = 1,
    over: Annotated[
        float, typer.Option(help="Seconds within which the pods arrive.", min=0.1)
    ] = 6.0,
    timeout: Annotated[
        float, typer.Option(help="Give up when pods that can run are not bound so many seconds on.")
    ] = 120.0,
    config: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Profiles and plugins, as for asched run. Default: defaults."
        ),
    ] = None,
    journal: Annotated[
        Path | None,
        typer.Option(help="A new file for the journal. Default: one in a new temporary folder."),
    ] = None,
    keep: Annotated[
        bool,
        typer.Option(
            "--keep/--exit", help="Keep cluster and daemon running after the summary, until Ctrl-C."
        ),
    ] = False,
) -> None:
    """Schedule a simulated cluster, live: API server, kubelets, workload and daemon.

    The API server runs in a process of its own; all talk to it over HTTP. A few pods that cannot
    run are among the workload, each for another reason. All are for the first profile of the
    configuration. Exits with 0 only if every pod that can run was bound.
    """
    if pods > most_pods(nodes):
        raise BadInput(f"asched: {nodes} nodes take at most {most_pods(nodes)} pods here")
    if journal is not None and journal.exists():
        raise BadInput(f"asched: {journal} exists; the demo writes a new journal")
    if journal is not None and not journal.parent.is_dir():
        raise BadInput(f"asched: cannot write a journal in {journal.parent}: it is no folder")
    registry = PluginRegistry.discover()
    configuration = _configuration(config, registry)
    folder = Path(tempfile.mkdtemp(prefix="asched-demo-"))
    path = (journal or folder / "journal.db").absolute()
    options = Options(nodes, pods, seed, over, timeout, path, folder, keep)
    try:
        succeeded = anyio.run(
            _demo, options, configuration, registry, backend_options={"use_uvloop": True}
        )
    except Exception as error:  # noqa: BLE001  whatever it is is raised again
        raise as_command_error(error) from None
    finally:
        if journal is not None:
            folder.rmdir()
    raise typer.Exit(0 if succeeded else 1)


async def _demo(options: Options, configuration: Configuration, registry: PluginRegistry) -> bool:
    name = configuration.profiles[0].scheduler_name
    workload = build(options.nodes, options.pods, options.over_s, options.seed, name)
    _announce(options, workload)
    async with api_server(options.folder, _POD_START_S) as kubeconfigs:
        outcome = await _run(options, configuration, registry, workload, kubeconfigs)
    if not options.keep:
        print_summary(outcome)
        _point_further(outcome, None)
    return outcome.succeeded


def _configuration(config: Path | None, registry: PluginRegistry) -> Configuration:
    """Raises BadInput with a line for each mistake."""
    configuration = read_configuration(config, registry)
    for line in (*configuration.warnings, *configuration.faults):
        typer.echo(line, err=True)
    if not configuration.profiles:
        raise BadInput(f"asched: {config} has no profile; the demo's pods are for the first one")
    return configuration


def _announce(options: Options, workload: DemoWorkload) -> None:
    reasons = sorted(set(workload.hopeless.values()))
    late = sum(pool.count for pool in workload.pools if pool.late)
    print(f"{options.nodes} nodes, {late} more to join; {options.pods} pods that can run, arriving")
    print(f"over {options.over_s:g} s, and {len(workload.hopeless)} that cannot, each because it")
    for reason in reasons:
        print(f"  - {reason}")
    print(flush=True)


async def _run(
    options: Options,
    configuration: Configuration,
    registry: PluginRegistry,
    workload: DemoWorkload,
    kubeconfigs: Kubeconfigs,
) -> DemoResult:
    _log_warnings()
    async with (
        connect(kubeconfigs.admin) as admin,
        connect(kubeconfigs.scheduler) as client,
        open_journal(str(options.journal)) as store,
    ):
        loader = Loader(admin, workload, options.over_s, time.monotonic)
        await loader.prepare()
        async with running_daemon(configuration, registry, client, store) as daemon:
            await daemon.engine.synced.wait()
            tally = JournalCounts(workload.feasible)
            with open_view() as view:
                # Again, because a live view takes what goes to stderr and puts it above itself.
                _log_warnings()
                await _until_settled(options, loader, daemon, tally, store, view)
            _log_warnings()
            outcome = _outcome(options, workload, tally, daemon.cluster)
            if options.keep:
                print_summary(outcome)
                await _stay(outcome, kubeconfigs)
    return outcome


def _log_warnings() -> None:
    configure_logs(LogSettings(level=LogLevel.WARNING))


async def _until_settled(
    options: Options,
    loader: Loader,
    daemon: Daemon,
    tally: JournalCounts,
    store: JournalStore,
    view: View,
) -> None:
    """Load the cluster and watch, until nothing more is to be expected or time is up."""
    workload, state = loader.workload, daemon.cluster
    total, feasible = len(workload.arrivals), len(workload.feasible)
    begun_s = time.monotonic()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(loader.run)
        while True:
            await anyio.sleep(_REFRESH_S)
            await tally.read_on(store)
            elapsed_s = time.monotonic() - begun_s
            view.show(standing(elapsed_s, total, feasible, loader.progress, tally, state))
            settled = loader.progress.done and _settled(workload, tally, state)
            if settled or elapsed_s > options.over_s + options.timeout_s:
                tasks.cancel_scope.cancel()
                return


def _settled(workload: DemoWorkload, tally: JournalCounts, state: ClusterState) -> bool:
    return not tally.unbound and workload.hopeless.keys() <= _pending(state).keys()


def _pending(state: ClusterState) -> dict[str, str]:
    """What the scheduler says of each pod that it tried or holds back, by key."""
    said = {key: f"held back by {pod.gating_plugin}" for key, pod in state.queue.gated.items()}
    for pod in state.queue:
        rejection = state.pods[pod.info.key].rejection
        if rejection:
            said.setdefault(pod.info.key, rejection)
    return said


def _outcome(
    options: Options, workload: DemoWorkload, tally: JournalCounts, state: ClusterState
) -> DemoResult:
    return DemoResult(workload, tally, utilisation(state), _pending(state), options.journal)


def _point_further(outcome: DemoResult, kubeconfig: Path | None) -> None:
    print("Look further:")
    for line in next_commands(outcome, kubeconfig):
        print(f"  {line}")
    if kubeconfig is not None:
        print("\nCluster and daemon go on; Ctrl-C ends them.")
    sys.stdout.flush()


async def _stay(outcome: DemoResult, kubeconfigs: Kubeconfigs) -> None:
    with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        # Only now, so that whoever does what it says is heard.
        _point_further(outcome, kubeconfigs.admin)
        async for _ in signals:
            return
