"""What the commands that serve until they are told to stop have in common."""

from __future__ import annotations

import signal
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Annotated, NamedTuple

import anyio
import structlog
import typer

from asched.cli.errors import BadInput, CommandError
from asched.cli.options import read_configuration
from asched.config.file import Configuration
from asched.config.registry import PluginRegistry
from asched.daemon.ha.leadership import LeadershipLostError
from asched.daemon.plugin_host.guarded_loop import guarded_loop
from asched.daemon.reload.reloads import ConfigFile, ReloadRequests
from asched.daemon.shadow.daemon import JournalKindError
from asched.daemon.telemetry.health import HealthAddressError
from asched.daemon.telemetry.logs import configure_logs
from asched.daemon.telemetry.metrics import Metrics
from asched.daemon.telemetry.systemd import ServiceManager
from asched.daemon.telemetry.tracing import TracingUnavailableError
from asched.framework.runtime.profile import ProfileError
from asched.journal.errors import (
    JournalError,
    JournalOpenError,
    JournalSchemaError,
    JournalUnreachableError,
    JournalUrlError,
)
from asched.kube.client import ApiClient
from asched.kube.connection import connect
from asched.kube.errors import CredentialPluginError, KubeConfigError

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

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


KubeconfigOption = Annotated[
    Path | None,
    typer.Option(help="Kubeconfig file. Default: as kubectl finds it, or in-cluster."),
]
ContextOption = Annotated[str | None, typer.Option(help="Context of the kubeconfig.")]
ConfigOption = Annotated[
    Path | None,
    typer.Option(help="KubeSchedulerConfiguration and asched's own settings, in one file."),
]


class RunOptions(NamedTuple):
    """What the command line says beside the configuration."""

    kubeconfig: Path | None
    context: str | None
    journal: str | None
    file: ConfigFile | None = None
    """The configuration's own, where it is to be loaded again when it changes."""


def configured(file: Path | None, registry: PluginRegistry) -> Configuration:
    """The configuration in ``file``; from here on there are logs as it says, and what it says in vain
    is the first in them. Raises BadInput with a line for each mistake."""
    configuration = read_configuration(file, registry)
    configure_logs(configuration.settings.log)
    for warning in configuration.warnings:
        log.warning("configuration", warning=warning)
    return configuration


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
    transient = isinstance(error, (CredentialPluginError, JournalUnreachableError))
    kind = BadInput if isinstance(error, wrong_input) and not transient else CommandError
    return kind(f"asched: {error}")
