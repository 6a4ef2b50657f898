"""``asched run``: schedule a cluster."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from enum import StrEnum
from functools import partial
from typing import Annotated, NamedTuple

import anyio
import structlog
import typer

from asched.cli.main import JOURNAL_ENV, command_app
from asched.cli.service import (
    ConfigOption,
    ContextOption,
    KubeconfigOption,
    RunOptions,
    configured,
    connected,
    run_until_signal,
)
from asched.config.file import Configuration, load
from asched.config.registry import PluginRegistry
from asched.daemon.daemon import running_daemon
from asched.daemon.engine.commits import journal_when_reachable
from asched.daemon.engine.runtime import Runtime
from asched.daemon.ha.leadership import Leadership, election_of, taking_part
from asched.daemon.ha.replica import ReplicaParts, running_replica
from asched.daemon.interpreter import freeze_gc, set_switch_interval, tune_gc
from asched.daemon.plugin_host.watchdog import OverrunMetrics, Watchdog, limits_of, watched
from asched.daemon.reload.reconfiguring import ConfigApplied
from asched.daemon.reload.reloads import ConfigFile, ReloadRequests, Reloads
from asched.daemon.shadow.daemon import require_kind
from asched.daemon.telemetry.health import Check, Health
from asched.daemon.telemetry.metrics import Metrics
from asched.daemon.telemetry.systemd import ServiceManager
from asched.daemon.telemetry.tracing import traced
from asched.journal.opening import is_shared, journal_file, shown
from asched.journal.store import JournalStore
from asched.kube.client import ApiClient

app = command_app("Schedule a cluster.")

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


class RunMode(StrEnum):
    """What a daemon does."""

    SCHEDULE = "schedule"
    SHADOW = "shadow"


@app.command()
def run(
    kubeconfig: KubeconfigOption = None,
    context: ContextOption = None,
    config: ConfigOption = None,
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
    registry = PluginRegistry.discover()
    file = ConfigFile(config) if config else None
    configuration = configured(config, registry)
    for fault in configuration.faults:
        log.error("configuration", error=fault)
    if mode is RunMode.SHADOW:
        from asched.cli.shadow import compare_to_end

        compare_to_end(configuration, registry, RunOptions(kubeconfig, context, journal))
    else:
        schedule_to_end(configuration, registry, RunOptions(kubeconfig, context, journal, file))


def schedule_to_end(
    configuration: Configuration, registry: PluginRegistry, options: RunOptions
) -> None:
    """Run the daemon in this process. Raises CommandError for what ends it before its time."""
    run_until_signal(partial(_serve, configuration, registry, options))


async def _serve(
    configuration: Configuration,
    registry: PluginRegistry,
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
        journal_when_reachable(url, client.clock, client.random) as store,
        traced(configuration.settings.tracing.sampling_ratio, metrics.cycle_sinks),
    ):
        metrics.watch_journal_file(journal_file(url))
        metrics.show(OverrunMetrics(watchdog))
        await require_kind(store, shadow=False)
        tune_gc()
        set_switch_interval()
        place = _Place(configuration, registry, client, store, metrics, url)
        async with _served(place, options) as served, anyio.create_task_group() as tasks:
            shown_checks = _ShownChecks(served, watchdog, health)
            shown_checks.attach()
            manager.attach(served.hangs)
            started.set()
            log.info("scheduling" if served.leadership is None else "candidate for leadership",
                     server=client.server, journal=shown(url), health=health.address)  # fmt: skip
            tasks.start_soon(_once_warm, served, manager, shown_checks)

            async def take_up(new: Configuration) -> ConfigApplied:
                taken = await served.take_up(new)
                watchdog.limit_by(limits_of(new.settings))
                return taken

            read = partial(load, registry=registry)
            reloads = Reloads(options.file, read, take_up, metrics.reloads, manager, client.clock)
            tasks.start_soon(reloads.run, requests)
            await stop.wait()
            tasks.cancel_scope.cancel()


class _Place(NamedTuple):
    """What is there before a scheduler runs."""

    configuration: Configuration
    registry: PluginRegistry
    client: ApiClient
    store: JournalStore
    metrics: Metrics
    url: str


class _Served(NamedTuple):
    """What runs, whichever it is."""

    checks: Callable[[], list[Check]]
    alive: Callable[[], list[Check]]
    hangs: Callable[[], bool]
    take_up: Callable[[Configuration], Awaitable[ConfigApplied]]
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
    machine = Runtime.of_this_process()
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


class _ShownChecks(NamedTuple):
    """What /readyz and /livez ask."""

    served: _Served
    watchdog: Watchdog
    health: Health

    def attach(self) -> None:
        """Ask that from now on: as the names of the checks are now."""
        checks = [*self.served.checks(), Check("plugins", self.watchdog.trouble)]
        self.health.attach(checks, alive=self.served.alive())


async def _once_warm(served: _Served, manager: ServiceManager, checks: _ShownChecks) -> None:
    await served.warm.wait()
    manager.ready("scheduling" if served.leadership is None else "standby")
    freeze_gc()
    if served.leadership is not None:
        await served.leadership.won.wait()
        checks.attach()
        manager.ready("leading")
