"""``asched run``: schedule a cluster."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Annotated

import anyio
import structlog
import typer

from asched.cli.errors import BadInput, CommandError
from asched.cli.root import command_app
from asched.daemon.config_file import ConfigFileError, Configuration, load
from asched.daemon.daemon import running_daemon
from asched.daemon.logs import configure_logs
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


def run_to_end(
    configuration: Configuration,
    registry: Registry,
    kubeconfig: Path | None,
    context: str | None,
    journal: str | None,
) -> None:
    """Run the daemon in this process. Raises CommandError for what ends it before its time."""
    try:
        anyio.run(
            _serve, configuration, registry, kubeconfig, context, journal,
            backend_options={"use_uvloop": True},
        )  # fmt: skip
    except BaseExceptionGroup as group:
        raise _first_cause(group) from None
    except (KubeConfigError, JournalError) as error:
        raise _command_error(error) from None


async def _serve(
    configuration: Configuration,
    registry: Registry,
    kubeconfig: Path | None,
    context: str | None,
    journal: str | None,
) -> None:
    settings, connection = configuration.settings, configuration.scheduler.client_connection
    file = kubeconfig or _path(settings.kubeconfig) or _path(connection.kubeconfig)
    async with (
        connect(file, context, qps=connection.qps or None, burst=connection.burst) as client,
        open_journal(journal or settings.journal.url) as store,
        running_daemon(configuration, registry, client, store) as daemon,
    ):
        log.info("scheduling", server=client.server, journal=journal or settings.journal.url)
        with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
            async for number in signals:
                log.info("stopping", signal=signal.Signals(number).name)
                break
        daemon.engine.stop()


def _path(text: str) -> Path | None:
    return Path(text) if text else None


def _first_cause(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """The one error that a user should read, out of what a task group gathered."""
    for error in group.exceptions:
        if isinstance(error, BaseExceptionGroup):
            return _first_cause(error)
        if isinstance(error, KubeConfigError | JournalError):
            return _command_error(error)
    return group.exceptions[0]


def _command_error(error: KubeConfigError | JournalError) -> CommandError:
    wrong_input = (KubeConfigError, JournalOpenError, JournalSchemaError, JournalUrlError)
    kind = BadInput if isinstance(error, wrong_input) else CommandError
    return kind(f"asched: {error}")
