"""``asched run``: schedule a cluster."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Annotated, NamedTuple

import anyio
import structlog
import typer
from anyio.abc import TaskGroup

from asched.cli.errors import BadInput, CommandError
from asched.cli.root import command_app
from asched.daemon.config_file import ConfigFileError, Configuration, load
from asched.daemon.daemon import running_daemon
from asched.daemon.health import Health, HealthAddressError
from asched.daemon.logs import configure_logs
from asched.daemon.metrics import Metrics
from asched.framework.registry import Registry
from asched.journal.errors import (
    JournalError,
    JournalOpenError,
    JournalSchemaError,
    JournalUrlError,
)
from asched.journal.opening import open_journal
from asched.kube.connection import connect
from asched.kube.errors import KubeConfigError

app = command_app("Schedule a cluster.")

USER_ERRORS = (HealthAddressError, JournalError, KubeConfigError)
"""What ends a daemon with a line for the user instead of a traceback."""

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


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
        typer.Option(help="Journal: a file, or sqlite+aiosqlite:///PATH. Default: asched.db."),
    ] = None,
) -> None:
    """Schedule a cluster until stopped (SIGTERM or Ctrl-C finishes bindings under way)."""
    registry = Registry.discover()
    try:
        configuration = load(config, registry)
    except ConfigFileError as error:
        raise BadInput(error.lines) from None
    configure_logs(configuration.settings.log)
    for warning in configuration.warnings:
        log.warning("configuration", warning=warning)
    run_to_end(configuration, registry, kubeconfig, context, journal)


class RunOptions(NamedTuple):
    """What the command line says beside the configuration."""

    kubeconfig: Path | None
    context: str | None
    journal: str


def run_to_end(
    configuration: Configuration,
    registry: Registry,
    kubeconfig: Path | None,
    context: str | None,
    journal: str | None,
) -> None:
    """Run the daemon in this process. Raises CommandError for what ends it before its time."""
    options = RunOptions(kubeconfig, context, journal or configuration.settings.journal.url)
    try:
        anyio.run(
            _until_signal, configuration, registry, options, backend_options={"use_uvloop": True}
        )
    except BaseExceptionGroup as group:
        cause = _first_cause(group)
        if not isinstance(cause, CommandError):
            # A bug, or a state that cannot be: whoever looks into it needs more than one line.
            log.critical("stopped by an internal error", exc_info=cause)
        raise cause from None
    except USER_ERRORS as error:
        raise _command_error(error) from None


async def _until_signal(
    configuration: Configuration, registry: Registry, options: RunOptions
) -> None:
    """The first signal lets bindings under way end; a second one, or one that comes before there
    are any, ends everything at once."""
    started, stop = anyio.Event(), anyio.Event()
    with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_serve, configuration, registry, options, started, stop, tasks)
            async for number in signals:
                log.info("stopping", signal=signal.Signals(number).name)
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
    tasks: TaskGroup,
) -> None:
    settings, connection = configuration.settings, configuration.scheduler.client_connection
    file = options.kubeconfig or _path(settings.kubeconfig) or _path(connection.kubeconfig)
    metrics = Metrics()
    health = Health(metrics.registry)
    async with (
        health.serving(settings.health),
        connect(
            file, options.context, qps=connection.qps or None, burst=connection.burst
        ) as client,
        open_journal(options.journal) as store,
        running_daemon(configuration, registry, client, store, metrics) as daemon,
    ):
        health.attach(daemon.troubles)
        started.set()
        log.info("scheduling", server=client.server, journal=options.journal, health=health.address)
        await stop.wait()
    tasks.cancel_scope.cancel()


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
        JournalOpenError,
        JournalSchemaError,
        JournalUrlError,
        KubeConfigError,
    )
    kind = BadInput if isinstance(error, wrong_input) else CommandError
    return kind(f"asched: {error}")
