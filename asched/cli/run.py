"""``asched run``: schedule a cluster."""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Annotated, NamedTuple

import anyio
import structlog
import typer

from asched.cli.errors import BadInput, CommandError
from asched.cli.root import JOURNAL_ENV, command_app
from asched.daemon import garbage
from asched.daemon.checks import Check
from asched.daemon.config_file import ConfigFileError, Configuration, load
from asched.daemon.daemon import running_daemon
from asched.daemon.elections import election_of, taking_part
from asched.daemon.guarded_loop import guarded_loop
from asched.daemon.health import Health, HealthAddressError
from asched.daemon.leadership import Leadership, LeadershipLostError
from asched.daemon.logs import configure_logs
from asched.daemon.machine import Machine
from asched.daemon.metrics import Metrics
from asched.daemon.notify import ServiceManager
from asched.daemon.reconfiguring import TakenUp
from asched.daemon.reloads import ConfigFile, ReloadRequests, Reloads
from asched.daemon.replica import ReplicaParts, running_replica
from asched.daemon.shadow.daemon import JournalKindError, require_kind
from asched.daemon.telemetry.tracing import TracingUnavailableError, traced
from asched.daemon.watchdog import OverrunMetrics, watched
from asched.framework.errors import ProfileError
from asched.framework.registry import Registry
from asched.journal.errors import (
    JournalError,
    JournalOpenError,
    JournalSchemaError,
    JournalUrlError,
)
from asched.journal.opening import is_shared, journal_file, open_journal, shown
from asched.journal.store import JournalStore
from asched.kube.client import ApiClient
from asched.kube.connection import connect
from asched.kube.errors import KubeConfigError

app = command_app("Schedule a cluster.")

USER_ERRORS = (
    HealthAddressError,
    JournalError,
    JournalKindError,
    KubeConfigError,
    LeadershipLostError,
    TracingUnavailableError,
    ProfileError,
)
"""What ends a daemon with a line for the user instead of a traceback."""

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


class RunMode(StrEnum):
    """What a daemon does."""

    SCHEDULE = "schedule"
    SHADOW = "shadow"


@app.command()
def run(
    kubeconfig: Annotated[
        Path | None,
        typer.Option(help="Kubeconfig file. Default: as kubectl finds it, or in-cluster."),
    ] = None,
    context: Annotated[str | None, typer.Option(help="Context of the kubeconfig.")] = None,
    config: Annotated[
        Path | None,
        typer.Option(help="KubeSchedulerConfiguration and asched's own settings, in one file."),
    ] = None,
    journal: Annotated[
        str | None,
        typer.Option(
            envvar=JOURNAL_ENV,
            help="Journal: a file, or sqlite+aiosqlite:///PATH. Default: asched.db.",
        ),
    ] = None,
    mode: Annotated[
        RunMode, typer.Option(help="Schedule, or compare as asched shadow does.")
    ] = RunMode.SCHEDULE,
) -> None:
    """Schedule a cluster until stopped (SIGTERM or Ctrl-C finishes bindings under way). SIGHUP, or
    a change of the file, loads the configuration again.

    With --mode shadow only compare with the scheduler that owns the cluster, and never write.
    """
    registry = Registry.discover()
    file = ConfigFile(config) if config else None
    try:
        configuration = load(config, registry)
    except ConfigFileError as error:
        raise BadInput(error.lines) from None
    configure_logs(configuration.settings.log)
    for warning in configuration.warnings:
        log.warning("configuration", warning=warning)
    for fault in configuration.faults:
        log.error("configuration", error=fault)
    if mode is RunMode.SHADOW:
        from asched.cli.shadow import compare_to_end

        compare_to_end(configuration, registry, RunOptions(kubeconfig, context, journal))
    else:
        schedule_to_end(configuration, registry, RunOptions(kubeconfig, context, journal, file))


class RunOptions(NamedTuple):
    """What the command line says beside the configuration."""

    kubeconfig: Path | None
    context: str | None
    journal: str | None
    file: ConfigFile | None = None
    """The configuration's own, where it is to be loaded again when it changes."""


def schedule_to_end(configuration: Configuration, registry: Registry, options: RunOptions) -> None:
    """Run the daemon in this process. Raises CommandError for what ends it before its time."""
    run_until_signal(partial(_serve, configuration, registry, options))


Serve = Callable[[anyio.Event, anyio.Event, ServiceManager, ReloadRequests], Awaitable[None]]
"""Sets the first event once there is something to bring to an end, which the second one asks for. The
service manager is told when all is ready. SIGHUP becomes a request to reload."""


def run_until_signal(serve: Serve) -> None:
    """Serve until SIGTERM or SIGINT. Raises CommandError for what ends it before its time."""
    try:
        anyio.run(_until_signal, serve, backend_options={"loop_factory": guarded_loop})
    except BaseExceptionGroup as group:
        cause = _first_cause(group)
        if not isinstance(cause, CommandError):
            # A bug, or a state that cannot be: whoever looks into it needs more than one line.
            log.critical("stopped by an internal error", exc_info=cause)
        raise cause from None
    except USER_ERRORS as error:
        raise _command_error(error) from None


async def _until_signal(serve: Serve) -> None:
    """The first signal lets what is under way end; a second one, or one that comes before there is
    any, ends everything at once."""
    started, stop, reloads = anyio.Event(), anyio.Event(), ReloadRequests()
    manager = ServiceManager.from_environment()

    async def serve_and_end() -> None:
        await serve(started, stop, manager, reloads)
        tasks.cancel_scope.cancel()

    with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT, signal.SIGHUP) as signals:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(serve_and_end)
            tasks.start_soon(manager.run)
            async for number in signals:
                if number == signal.SIGHUP:
                    reloads.ask()
                    continue
                log.info("stopping", signal=signal.Signals(number).name)
                manager.stopping()
                if stop.is_set() or not started.is_set():
                    tasks.cancel_scope.cancel()
                    return
                stop.set()


async def _serve(
    configuration: Configuration,
    registry: Registry,
    options: RunOptions,
    started: anyio.Event,
    stop: anyio.Event,
    manager: ServiceManager,
    requests: ReloadRequests,
) -> None:
    metrics, url = Metrics(), options.journal or configuration.settings.journal.url
    health = Health(metrics.registry)
    async with (
        watched(configuration.settings) as watchdog,
        health.serving(configuration.settings.health),
        connected(configuration, options, metrics) as client,
        open_journal(url) as store,
        traced(configuration.settings.tracing.sampling_ratio, metrics.cycle_sinks),
    ):
        metrics.watch_journal_file(journal_file(url))
        metrics.show(OverrunMetrics(watchdog))
        await require_kind(store, shadow=False)
        garbage.look_seldom()
        place = _Place(configuration, registry, client, store, metrics, url)
        async with _served(place, options) as served, anyio.create_task_group() as tasks:
            checks = [*served.checks(), Check("plugins", watchdog.trouble)]
            health.attach(checks, alive=served.alive())
            manager.attach(served.hangs)
            started.set()
            log.info("scheduling" if served.leadership is None else "candidate for leadership",
                     server=client.server, journal=shown(url), health=health.address)  # fmt: skip
            tasks.start_soon(_once_warm, served, manager, health)
            read = partial(load, registry=registry)
            reloads = Reloads(
                options.file, read, served.take_up, metrics.reloads, manager, client.clock
            )
            tasks.start_soon(reloads.run, requests)
            await stop.wait()
            tasks.cancel_scope.cancel()


class _Place(NamedTuple):
    """What is there before a scheduler runs."""

    configuration: Configuration
    registry: Registry
    client: ApiClient
    store: JournalStore
    metrics: Metrics
    url: str


class _Served(NamedTuple):
    """What runs, whichever it is."""

    checks: Callable[[], list[Check]]
    alive: Callable[[], list[Check]]
    hangs: Callable[[], bool]
    take_up: Callable[[Configuration], Awaitable[TakenUp]]
    warm: anyio.Event
    """Set once everything was listed."""
    leadership: Leadership | None = None


@asynccontextmanager
async def _served(place: _Place, options: RunOptions) -> AsyncIterator[_Served]:
    """A daemon, or a replica where the configuration asks for an election."""
    configuration, registry, client, store, metrics, url = place
    election = election_of(configuration)
    if election is None:
        async with running_daemon(configuration, registry, client, store, metrics) as daemon:
            yield _Served(
                daemon.checks, daemon.alive, daemon.hangs, daemon.take_up, daemon.engine.synced
            )
        return
    machine = Machine.of_this_process()
    async with (
        connected(configuration, options, metrics, limited=False) as lease_client,
        taking_part(election, lease_client, metrics, machine.instance) as leadership,
        running_replica(
            ReplicaParts(configuration, registry, client, store, leadership, metrics, machine),
            shared=is_shared(url),
        ) as replica,
    ):
        yield _Served(
            replica.checks, replica.alive, replica.hangs, replica.take_up, replica.warm, leadership
        )


async def _once_warm(served: _Served, manager: ServiceManager, health: Health) -> None:
    await served.warm.wait()
    manager.ready("scheduling" if served.leadership is None else "standby")
    garbage.keep_what_is_here()
    if served.leadership is not None:
        await served.leadership.won.wait()
        health.attach(served.checks(), alive=served.alive())
        manager.ready("leading")


def connected(
    configuration: Configuration, options: RunOptions, metrics: Metrics, *, limited: bool = True
) -> AbstractAsyncContextManager[ApiClient]:
    """A client for the cluster that the options, or else the configuration, name. ``limited``:
    whether the limit of requests that is configured holds for it."""
    connection = configuration.scheduler.client_connection
    file = (
        options.kubeconfig
        or _path(configuration.settings.kubeconfig)
        or _path(connection.kubeconfig)
    )
    return connect(
        file,
        options.context,
        qps=connection.qps or None if limited else None,
        burst=connection.burst,
        watcher=metrics.requests,
    )


def _path(text: str) -> Path | None:
    return Path(text) if text else None


def _first_cause(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """The one error that a user should read, out of what a task group gathered."""
    for error in group.exceptions:
        if isinstance(error, BaseExceptionGroup):
            return _first_cause(error)
        if isinstance(error, USER_ERRORS):
            return _command_error(error)
    return group.exceptions[0]


def _command_error(error: Exception) -> CommandError:
    wrong_input = (
        HealthAddressError,
        JournalKindError,
        JournalOpenError,
        JournalSchemaError,
        JournalUrlError,
        KubeConfigError,
        TracingUnavailableError,
    )
    kind = BadInput if isinstance(error, wrong_input) else CommandError
    return kind(f"asched: {error}")
