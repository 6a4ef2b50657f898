"""Commands that run until a signal: start, connection, stop, reload; and the scheduling daemon."""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

import anyio
import msgspec
import structlog

from asched.cli.errors import CommandError, as_command_error
from asched.cli.options import given_gates, read_configuration
from asched.cli.run import ClusterOptions, RunOptions
from asched.config.file import Configuration, load
from asched.config.registry import PluginRegistry
from asched.config.settings import LogLevel
from asched.core.heap import freeze_gc, tune_gc
from asched.daemon.daemon import Daemon, running_daemon
from asched.daemon.engine.attempt_mark import AttemptMark
from asched.daemon.ha.leadership import LeadershipLostError, election_of, taking_part
from asched.daemon.ha.replica import Replica, running_replica
from asched.daemon.plugin_host.guarded_loop import (
    Watchdog,
    guarded_loop,
    limits_of,
    watched,
)
from asched.daemon.process import set_switch_interval
from asched.daemon.reload.reloader import ConfigApplied, ConfigFile, ConfigReloader, ReloadRequests
from asched.daemon.startup import DaemonContext, journal_when_reachable
from asched.daemon.step_time import measured_step_ns
from asched.daemon.telemetry.health import Check, Health, HealthAddressError, ServiceManager
from asched.daemon.telemetry.logs import configure_logs
from asched.daemon.telemetry.metrics import Metrics
from asched.daemon.telemetry.tracing import TracingUnavailableError, traced
from asched.framework.runtime.observation import OBSERVATION
from asched.journal.kind import require_kind
from asched.journal.opening import is_shared, journal_file, redacted
from asched.kube.client import ApiClient
from asched.kube.connection import connect
from asched.proof.keys import NO_KEYS, JournalKeys, SigningKey, expanded

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

_BAD_INPUT: Final = (HealthAddressError, TracingUnavailableError)
_FAILURES: Final = (LeadershipLostError,)


class ServiceControl(NamedTuple):
    """How a running command and its surroundings communicate."""

    started: anyio.Event
    """Set by the command once a stop has something to finish."""
    stop: anyio.Event
    """Set by the first signal."""
    manager: ServiceManager
    reloads: ReloadRequests
    """A request for each SIGHUP."""


Serve = Callable[[ServiceControl], Awaitable[None]]
RunningScheduler = Daemon | Replica


def run_until_signal(serve: Serve) -> None:
    """Serve until SIGTERM or SIGINT. Raises CommandError if an expected error ends it."""
    try:
        anyio.run(_until_signal, serve, backend_options={"loop_factory": guarded_loop})
    except (Exception, BaseExceptionGroup) as error:
        cause = as_command_error(error, bad_input=_BAD_INPUT, failures=_FAILURES)
        if not isinstance(cause, CommandError):
            # A bug, or an impossible state: one line would not be enough to analyze it.
            log.critical("stopped by an internal error", exc_info=cause)
        raise cause from None


async def _until_signal(serve: Serve) -> None:
    """The first signal stops gracefully; a second one, or one during the start, cancels."""
    control = ServiceControl(
        anyio.Event(), anyio.Event(), ServiceManager.from_environment(), ReloadRequests()
    )

    async def serve_and_end() -> None:
        await serve(control)
        tasks.cancel_scope.cancel()

    with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT, signal.SIGHUP) as signals:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(serve_and_end)
            tasks.start_soon(control.manager.run)
            async for number in signals:
                if number == signal.SIGHUP:
                    control.reloads.request()
                    continue
                log.info("stopping", signal=signal.Signals(number).name)
                control.manager.stopping()
                if control.stop.is_set() or not control.started.is_set():
                    tasks.cancel_scope.cancel()
                    return
                control.stop.set()


def load_and_log_configuration(options: ClusterOptions, registry: PluginRegistry) -> Configuration:
    """The configuration in the options, with logs set up accordingly, or at level debug.

    Raises BadInput with a line for each mistake.
    """
    read = read_configuration(options.config, registry, options.feature_gates)
    configuration = _with_debug(read, options)
    logs = configuration.settings.log
    configure_logs(logs)
    OBSERVATION.failed = _log_traceback if logs.level is LogLevel.DEBUG else None
    for warning in configuration.warnings:
        log.warning("configuration", warning=warning)
    for fault in configuration.faults:
        log.error("configuration", error=fault)
    return configuration


def _with_debug(configuration: Configuration, options: ClusterOptions) -> Configuration:
    """The configuration, with the level of logs that the options demand."""
    if not options.debug:
        return configuration
    replace, settings = msgspec.structs.replace, configuration.settings
    logs = replace(settings.log, level=LogLevel.DEBUG)
    return replace(configuration, settings=replace(settings, log=logs))


def signing_keys(configuration: Configuration) -> JournalKeys:
    """The key that signs the journal, if there is one. Raises KeyFileError."""
    path = configuration.settings.journal.signing_key
    return JournalKeys(SigningKey.load(expanded(path))) if path else NO_KEYS


def _log_traceback(plugin: str, point: str, error: BaseException) -> None:
    log.debug("plugin raised", plugin=plugin, point=point, exc_info=error)


def open_cluster_client(
    configuration: Configuration, options: ClusterOptions, metrics: Metrics, *, limited: bool = True
) -> AbstractAsyncContextManager[ApiClient]:
    """A client for the cluster in the options or in the configuration.

    ``limited``: whether the configured request rate applies.
    """
    connection = configuration.scheduler.client_connection
    named = configuration.settings.kubeconfig or connection.kubeconfig
    return connect(
        options.kubeconfig or (Path(named) if named else None),
        options.context,
        qps=connection.qps or None if limited else None,
        burst=connection.burst,
        observer=metrics.requests,
    )


def run_daemon(options: RunOptions) -> None:
    """Run the daemon in this process until a signal. Raises CommandError."""
    tune_gc()
    set_switch_interval()
    registry = PluginRegistry.discover()
    file = ConfigFile(options.config) if options.config else None
    configuration = load_and_log_configuration(options, registry)
    run_until_signal(partial(_serve_scheduler, configuration, registry, options, file))


async def _serve_scheduler(
    configuration: Configuration,
    registry: PluginRegistry,
    options: RunOptions,
    file: ConfigFile | None,
    control: ServiceControl,
) -> None:
    metrics, url = Metrics(), options.journal or configuration.settings.journal.url
    health, keys = Health(metrics.registry), signing_keys(configuration)
    async with (
        watched(configuration.settings) as watchdog,
        health.serving(configuration.settings.health),
        open_cluster_client(configuration, options, metrics) as client,
        journal_when_reachable(url, client.clock, client.random, keys) as store,
        traced(configuration.settings.tracing.sampling_ratio, metrics.cycle_sinks),
    ):
        metrics.watch_journal_file(journal_file(url))
        metrics.show(watchdog.metrics)
        await require_kind(store, shadow=False)
        context = DaemonContext(
            configuration=configuration,
            registry=registry,
            client=client,
            journal=store,
            metrics=metrics,
            step_ns=measured_step_ns(),
            take_over_names=options.take_over_names,
            mark=_attempt_mark(journal_file(url)),
        )
        async with (
            _open_scheduler(context, options, url) as scheduler,
            anyio.create_task_group() as tasks,
        ):
            control.manager.attach(scheduler.is_stuck)
            requests = Check("api-server", client.problem)
            tasks.start_soon(_report_state, scheduler, control, watchdog, health, requests)
            log.info(
                "scheduling" if scheduler.leadership is None else "candidate for leadership",
                server=client.server,
                journal=redacted(url),
                health=health.address,
            )
            warn_about_proofs(configuration, keys)
            apply = partial(_apply_config, scheduler, watchdog)
            reloader = _reloader(context, options, file, apply, control)
            tasks.start_soon(reloader.run, control.reloads)
            control.started.set()
            await control.stop.wait()
            tasks.cancel_scope.cancel()


def warn_about_proofs(configuration: Configuration, keys: JournalKeys) -> None:
    """Log what a forger of the journal could do."""
    if keys.signing is None:
        log.warning("journal is not signed", setting="journal.signingKey")
    elif not configuration.settings.journal.anchor_file and election_of(configuration) is None:
        log.warning(
            "journal is not anchored",
            setting="journal.anchorFile",
            risk="an earlier copy of the journal would be continued",
        )


def _attempt_mark(journal: Path | None) -> AttemptMark | None:
    """The note of the pod that is attempted, next to a journal in a file."""
    if journal is None:
        return None
    path = journal.with_name(f"{journal.name}.attempt")
    try:
        return AttemptMark.open(path)
    except (OSError, ValueError) as error:
        log.warning("attempt file not written", file=str(path), error=str(error))
        return None


@asynccontextmanager
async def _open_scheduler(
    context: DaemonContext, options: ClusterOptions, journal_url: str
) -> AsyncIterator[RunningScheduler]:
    """A daemon, or a replica if leader election is configured."""
    election, metrics = election_of(context.configuration), context.metrics
    if election is None:
        async with running_daemon(context) as daemon:
            yield daemon
        return
    async with (
        open_cluster_client(context.configuration, options, metrics, limited=False) as lease_client,
        taking_part(election, lease_client, metrics, context.runtime.instance) as leadership,
        running_replica(context, leadership, shared=is_shared(journal_url)) as replica,
    ):
        yield replica


def _reloader(
    context: DaemonContext,
    options: ClusterOptions,
    file: ConfigFile | None,
    apply: Callable[[Configuration], Awaitable[ConfigApplied]],
    control: ServiceControl,
) -> ConfigReloader:
    gates = given_gates(options.feature_gates)

    def read(path: Path) -> Configuration:
        return _with_debug(load(path, context.registry, gates), options)

    reloads, clock = context.metrics.reloads, context.client.clock
    return ConfigReloader(file, read, apply, reloads, control.manager, clock)


async def _apply_config(
    scheduler: RunningScheduler, watchdog: Watchdog, new: Configuration
) -> ConfigApplied:
    applied = await scheduler.apply_config(new)
    watchdog.set_limits(limits_of(new.settings))
    return applied


async def _report_state(
    scheduler: RunningScheduler,
    control: ServiceControl,
    watchdog: Watchdog,
    health: Health,
    requests: Check,
) -> None:
    """Attach the checks of /readyz and /livez, and report each state to the service manager."""

    liveness = Check("engine", lambda: "its turn does not end" if scheduler.is_stuck() else "")

    def attach() -> None:
        checks = [*scheduler.checks(), requests, Check("plugins", watchdog.problem)]
        health.attach(checks, alive=[liveness])

    attach()
    await scheduler.synced.wait()
    control.manager.ready("scheduling" if scheduler.leadership is None else "standby")
    freeze_gc()
    if scheduler.leadership is not None:
        await scheduler.leadership.acquired.wait()
        attach()  # the names of the checks differ for a leader
        control.manager.ready("leading")
