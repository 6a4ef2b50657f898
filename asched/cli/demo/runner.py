"""Runs the demo: API server process, workload, daemon, and counts from the journal."""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

import anyio
import structlog
import typer
from anyio.abc import Process
from anyio.streams.text import TextReceiveStream

from asched.audit.whatif.occupancy import percentile
from asched.cli.demo import DemoOptions
from asched.cli.demo.browser import browser_interface
from asched.cli.demo.view import (
    DemoResult,
    DemoStatus,
    next_commands,
    open_view,
    pending_reasons,
    print_summary,
    utilization,
)
from asched.cli.demo.workload import (
    DEVICES,
    DemoWorkload,
    Loader,
    LoadProgress,
    build,
    most_pods,
)
from asched.cli.errors import BadInput, CommandError, as_command_error
from asched.cli.options import installed_plugins, log_warnings, read_configuration
from asched.config.file import Configuration
from asched.config.registry import PluginRegistry
from asched.daemon.daemon import Daemon, running_daemon
from asched.daemon.startup import DaemonContext
from asched.journal.opening import open_journal
from asched.journal.store import JournalStore
from asched.kube.connection import connect
from asched.kube.errors import ApiError, NoResponseError
from asched.model.pod import Pod
from asched.model.quantity import NS_PER_S
from asched.state.cluster import ClusterState
from asched.state.records import (
    AnyRecord,
    Assigned,
    AttemptFailed,
    BindFailed,
    Bound,
    ObjectObserved,
    PodObserved,
    PodUpdated,
    Rejected,
    TurnStarted,
)

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

START_TIMEOUT_S: Final = 30.0
STOP_TIMEOUT_S: Final = 10.0
_REFRESH_S: Final = 0.25
_POD_START_S: Final = 0.3
_LATEST: Final = 6


def run_demo(options: DemoOptions) -> bool:
    """Run the demo. Returns whether every schedulable pod was bound. Raises CommandError."""
    journal = options.journal
    if options.pods > most_pods(options.nodes):
        raise BadInput(f"{options.nodes} nodes take at most {most_pods(options.nodes)} pods here")
    if journal is not None and journal.exists():
        raise BadInput(f"{journal} exists; the demo writes a new journal")
    if journal is not None and not journal.parent.is_dir():
        raise BadInput(f"cannot write a journal in {journal.parent}: not a folder")
    registry = installed_plugins()
    configuration = _configuration(options.config, registry)
    folder = Path(tempfile.mkdtemp(prefix="asched-demo-"))
    run = partial(_demo, options, folder, configuration, registry)
    try:
        return anyio.run(run, backend_options={"use_uvloop": True})
    except Exception as error:  # noqa: BLE001  raised again
        raise as_command_error(error, failures=(ApiError, NoResponseError)) from None
    finally:
        if journal is not None:
            folder.rmdir()


async def _demo(
    options: DemoOptions, folder: Path, configuration: Configuration, registry: PluginRegistry
) -> bool:
    journal = (options.journal or folder / "journal.db").absolute()
    name = configuration.profiles[0].scheduler_name
    workload = build(options.nodes, options.pods, options.over, options.seed, name)
    _announce(options, workload)
    async with api_server(folder, _POD_START_S) as kubeconfigs:
        demo = _Demo(options, journal, workload, kubeconfigs)
        result = await demo.run(configuration, registry)
    if not demo.stays:
        print_summary(result)
        _print_next_commands(result, None)
    return result.succeeded


def _configuration(config: Path | None, registry: PluginRegistry) -> Configuration:
    configuration = read_configuration(config, registry)
    for line in (*configuration.warnings, *configuration.faults):
        typer.echo(line, err=True)
    if not configuration.profiles:
        raise BadInput(f"{config} has no profile; the demo's pods use the first one")
    return configuration


def _announce(options: DemoOptions, workload: DemoWorkload) -> None:
    reasons = sorted(set(workload.infeasible.values()))
    late = sum(pool.count for pool in workload.pools if pool.late)
    print(f"{options.nodes} nodes, {late} more to join; {options.pods} schedulable pods, created")
    print(f"within {options.over:g} s, and {len(workload.infeasible)} unschedulable pods. Each one")
    for reason in reasons:
        print(f"  - {reason}")
    print(flush=True)


class _Demo(NamedTuple):
    """One run on a served cluster."""

    options: DemoOptions
    journal: Path
    workload: DemoWorkload
    kubeconfigs: Kubeconfigs

    @property
    def stays(self) -> bool:
        """Whether all parts keep running after the summary."""
        return self.options.keep or self.options.ui

    async def run(self, configuration: Configuration, registry: PluginRegistry) -> DemoResult:
        log_warnings()
        async with (
            connect(self.kubeconfigs.admin) as admin,
            connect(self.kubeconfigs.scheduler) as client,
            open_journal(str(self.journal)) as store,
            AsyncExitStack() as parts,
        ):
            loader = Loader(admin, self.workload, self.options.over, time.monotonic)
            await loader.prepare()
            async with running_daemon(
                DaemonContext(configuration, registry, client, store)
            ) as daemon:
                await daemon.engine.synced.wait()
                await self._open_browser(parts)
                counts = JournalCounts(self.workload.feasible)
                with open_view() as show:
                    # Again: the live view has replaced stderr, to print log lines above itself.
                    log_warnings()
                    await self._until_settled(loader, daemon, counts, store, show)
                log_warnings()
                state = daemon.cluster
                result = DemoResult(
                    self.workload, counts, utilization(state), _pending(state), self.journal
                )
                if self.stays:
                    print_summary(result)
                    await _stay(result, self.kubeconfigs)
        return result

    async def _open_browser(self, parts: AsyncExitStack) -> None:
        if self.options.ui:
            url = await parts.enter_async_context(browser_interface(self.journal))
            if url:
                print(f"The journal in the browser: {url}", flush=True)

    async def _until_settled(
        self,
        loader: Loader,
        daemon: Daemon,
        counts: JournalCounts,
        store: JournalStore,
        show: Callable[[DemoStatus], None],
    ) -> None:
        """Create the workload and show the progress, until all is settled or the time is over."""
        begun_s = time.monotonic()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(loader.run)
            while True:
                await anyio.sleep(_REFRESH_S)
                await counts.catch_up(store)
                elapsed_s = time.monotonic() - begun_s
                show(_status(elapsed_s, self.workload, loader.progress, counts, daemon.cluster))
                pending = _pending(daemon.cluster).keys()
                bound = loader.progress.done and not counts.unbound
                settled = bound and self.workload.infeasible.keys() <= pending
                if settled or elapsed_s > self.options.over + self.options.timeout:
                    tasks.cancel_scope.cancel()
                    return


def _pending(state: ClusterState) -> dict[str, str]:
    """The scheduler's message for each rejected or gated pod, by key."""
    messages = {key: f"gated by {pod.gating_plugin}" for key, pod in state.queue.gated.items()}
    for pod in state.queue:
        rejection = state.pods[pod.info.key].rejection
        if rejection:
            messages.setdefault(pod.info.key, rejection)
    return messages


def _status(
    elapsed_s: float,
    workload: DemoWorkload,
    loading: LoadProgress,
    counts: JournalCounts,
    state: ClusterState,
) -> DemoStatus:
    queue, feasible = state.queue, len(workload.feasible)
    return DemoStatus(
        elapsed_s=elapsed_s,
        total=len(workload.arrivals),
        feasible=feasible,
        created=loading.created_pods,
        bound=feasible - len(counts.unbound),
        recent_per_s=counts.recent_per_s,
        nodes=state.nodes.cluster_size,
        active=len(queue.active),
        backoff=len(queue.backoff),
        unschedulable=len(queue.unschedulable),
        gated=len(queue.gated),
        in_flight=len(list(queue.in_flight)),
        utilization=utilization(state),
        reasons=pending_reasons(state),
        latest=tuple(counts.latest),
        notices=tuple(loading.notices),
    )


def _print_next_commands(result: DemoResult, kubeconfig: Path | None) -> None:
    print("Next:")
    for line in next_commands(result, kubeconfig):
        print(f"  {line}")
    if kubeconfig is not None:
        print("\nCluster and daemon keep running; Ctrl-C ends them.")
    sys.stdout.flush()


async def _stay(result: DemoResult, kubeconfigs: Kubeconfigs) -> None:
    with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        # After the receiver is open: a reader may press Ctrl-C as soon as the text mentions it.
        _print_next_commands(result, kubeconfigs.admin)
        async for _ in signals:
            return


class Kubeconfigs(NamedTuple):
    """Kubeconfigs for the cluster, by user."""

    admin: Path
    scheduler: Path
    """Has only the permissions of ``system:kube-scheduler``."""


@asynccontextmanager
async def api_server(folder: Path, pod_start_s: float) -> AsyncIterator[Kubeconfigs]:
    """Serve an empty cluster until the end of the block, with kubeconfigs in ``folder``.

    Raises CommandError if the server does not start.
    """
    files = Kubeconfigs(folder / "kubeconfig.yaml", folder / "kubeconfig-scheduler.yaml")
    command = [sys.executable, "-m", "asched", "apiserver", "--until-stdin-closes"]
    command += ["--kubeconfig", str(files.admin), "--scheduler-kubeconfig", str(files.scheduler)]
    command += ["--pod-start", str(pod_start_s), "--devices", DEVICES]
    # A new session: Ctrl-C reaches only this process, and the daemon finishes first. The end of
    # the input stops the server if this process is killed.
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
            file.unlink(missing_ok=True)


async def _ready(process: Process) -> None:
    """Wait until the server listens, which is when it prints its first line."""
    assert process.stdout is not None
    with anyio.move_on_after(START_TIMEOUT_S):
        async for text in TextReceiveStream(process.stdout):
            if "\n" in text:
                return
        raise CommandError("the demo's API server ended at its start")
    raise CommandError(f"the demo's API server did not listen in {START_TIMEOUT_S:.0f} s")


async def _stop(process: Process) -> None:
    assert process.stdin is not None
    await process.stdin.aclose()
    with anyio.move_on_after(STOP_TIMEOUT_S):
        await process.wait()
    if process.returncode is None:
        process.kill()
        await process.wait()
    await process.aclose()


class JournalCounts:
    """Counts and times of the run so far, a projection of the journal's records.

    Times are those of the turns in which a pod and the confirmation of its binding were observed.
    """

    def __init__(self, feasible: set[str]) -> None:
        """:param feasible: keys of the pods that are expected to be bound."""
        self.seq = 0
        """The last record read."""
        self.unbound = set(feasible)
        """Keys of feasible pods without a confirmed binding."""
        self.failures = 0
        self.latencies_ns: list[int] = []
        """From observed to bound, for each bound pod."""
        self.latest: deque[str] = deque(maxlen=_LATEST)
        self.first_observed_ns = 0
        self.last_bound_ns = 0
        self.attempts: dict[str, int] = {}
        """Attempts by key, for pods with more than one."""
        self._now_ns = 0
        self._observed_ns: dict[str, int] = {}
        self._bound_per_s: dict[int, int] = {}

    @property
    def bound(self) -> int:
        return len(self.latencies_ns)

    async def catch_up(self, journal: JournalStore) -> None:
        """Apply the records appended since the last call."""
        async for stored in journal.read(self.seq):
            self._apply(stored.record)
            self.seq = stored.seq

    def _apply(self, record: AnyRecord) -> None:
        match record:
            case TurnStarted():
                self._now_ns = record.now_ns
            case ObjectObserved(object=Pod() as pod):
                self._pod_observed(pod.metadata.uid, pod.node_name)
                if pod.node_name:
                    self._pod_bound(pod.key, pod.metadata.uid)
            case PodObserved():
                self._pod_observed(record.uid, record.node_name)
            case Assigned():
                text = f"to {record.node}, best of {record.feasible_nodes}"
                self._attempted(record, text)
            case Rejected():
                self._attempted(record, f"unschedulable: {record.message}")
            case AttemptFailed() | BindFailed():
                self.failures += 1
                self.latest.append(f"{record.key} failed: {record.message}")
            case Bound():
                self._pod_bound(record.key, record.uid)
            case PodUpdated() if record.node_name:
                # The watch reported the binding before its request returned.
                self._pod_bound(record.key, record.uid)

    def _attempted(self, record: Assigned | Rejected, text: str) -> None:
        self.latest.append(f"{record.key} {text}")
        if record.attempt > 1:
            self.attempts[record.key] = record.attempt

    def _pod_observed(self, uid: str, node_name: str) -> None:
        if node_name or uid in self._observed_ns:
            return
        self._observed_ns[uid] = self._now_ns
        self.first_observed_ns = self.first_observed_ns or self._now_ns

    def _pod_bound(self, key: str, uid: str) -> None:
        """Count the binding once: the confirmation and the watch may both report it."""
        observed_ns = self._observed_ns.pop(uid, None)
        self.unbound.discard(key)
        if observed_ns is None:
            return
        self.latencies_ns.append(self._now_ns - observed_ns)
        self.last_bound_ns = self._now_ns
        second = self._now_ns // NS_PER_S
        self._bound_per_s[second] = self._bound_per_s.get(second, 0) + 1

    @property
    def elapsed_s(self) -> float:
        """From the first observed to the last bound pod."""
        return max(0, self.last_bound_ns - self.first_observed_ns) / NS_PER_S

    @property
    def pods_per_s(self) -> float:
        return self.bound / self.elapsed_s if self.elapsed_s else float(self.bound)

    @property
    def best_second(self) -> int:
        """The most pods bound within a second of the clock."""
        return max(self._bound_per_s.values(), default=0)

    @property
    def recent_per_s(self) -> int:
        """Pods bound in the last full second."""
        return self._bound_per_s.get(self._now_ns // NS_PER_S - 1, 0)

    def latency_s(self, percent: float) -> float:
        """A percentile (nearest rank) of the time from observed to bound, in seconds."""
        return (percentile(sorted(self.latencies_ns), percent) or 0) / NS_PER_S
