"""Runs shadow mode, on a live cluster or on a recording: compare, fold, commit.

It has no writer and only a read-only client, so it cannot change the cluster.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import asynccontextmanager
from typing import NamedTuple

import anyio
import structlog

from asched import __version__
from asched.config.file import Configuration
from asched.config.registry import PluginRegistry
from asched.core.scheduler import SchedulerCore
from asched.cycle.shadow_report import Difference, Report
from asched.daemon.engine.inbox import Inbox
from asched.daemon.engine.journaling import JournalAppender
from asched.daemon.engine.turn_loop import TurnLoop, watch_journal
from asched.daemon.process import Runtime
from asched.daemon.shadow.explainer import Window
from asched.daemon.shadow.follower import ShadowFollower, shadow_profiles, start_notes
from asched.daemon.startup import annotations_of, custom_resources_of
from asched.daemon.telemetry.metrics import Metrics
from asched.journal.checkpoints import folding
from asched.journal.kind import require_kind
from asched.journal.store import JournalStore
from asched.kube.client import ApiClient
from asched.kube.reflector import ClusterWatch
from asched.kube.tape import Tape
from asched.kube.timing import Clock
from asched.model.quantity import NS_PER_S
from asched.model.resources import WatchedResource, in_order_of_listing
from asched.pricing.prices import Prices
from asched.state.cluster import ClusterState
from asched.state.records import (
    AnyRecord,
    EngineStarted,
    LeadershipGained,
    ShadowCompared,
    TurnStarted,
)

STOP_TIMEOUT_S = 20.0
"""Limit for explaining open disagreements and committing them at a stop."""

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)
SLICE_S = 0.05
"""Time for comparing before a turn commits."""

Listener = Callable[[ShadowCompared | Difference], None]
"""Called with each comparison when it is durable, and with each difference once it is explained."""


class ShadowEngine(TurnLoop):
    """The loop of shadow mode. One per process."""

    def __init__(
        self,
        follower: ShadowFollower,
        appender: JournalAppender,
        inbox: Inbox,
        clock: Clock,
        listener: Listener,
    ) -> None:
        super().__init__(SchedulerCore(follower), appender, inbox, clock)
        self._follower = follower
        self._listener = listener

    async def run(self) -> None:
        """Turn after turn until :meth:`stop`; then explain the remaining differences. Raises a
        :class:`~asched.journal.errors.JournalError` if the journal is unusable."""
        await super().run()
        self._begin_turn()
        for record in self._follower.explained(final=True):
            self._core.apply(record)
        await self._commit()

    async def turn(self) -> None:
        """Compare and fold what arrived, then commit."""
        core, follower = self._core, self._follower
        self._begin_turn()
        ends_ns = self._clock.monotonic_ns() + round(SLICE_S * NS_PER_S)
        while (change := self._inbox.next_change()) is not None:
            for record in follower.observe(change, core.record_turn):
                core.apply(record)
            if self._clock.monotonic_ns() >= ends_ns:
                break
        self._inbox.turn_taken()
        due_ns = follower.due_ns()
        if due_ns is not None and due_ns <= core.now_ns:
            core.record_turn()
        for explained in follower.explained():
            core.apply(explained)
        await self._commit()
        if not follower.unsynced and not self.synced.is_set():
            self._mark_synced()

    async def _commit(self) -> None:
        if not self._core.has_records:
            return
        batch = self._core.take_records()
        await self._appender.append(batch, self._core.date_ns)
        for record in batch:
            if isinstance(record, ShadowCompared):
                self._listener(record)
        for difference in self._follower.take_differences():
            self._listener(difference)

    def _unsynced(self) -> Iterable[WatchedResource]:
        return self._follower.unsynced

    def _next_due_ns(self) -> int | None:
        return self._follower.due_ns()


class Shadow(NamedTuple):
    """Shadow mode on a live cluster."""

    engine: ShadowEngine
    cluster: ClusterState
    """Read-only."""
    watch: ClusterWatch
    follower: ShadowFollower

    def report(self) -> Report:
        """The report up to now."""
        return self.follower.report()


@asynccontextmanager
async def running_shadow(
    configuration: Configuration,
    registry: PluginRegistry,
    client: ApiClient,
    journal: JournalStore,
    metrics: Metrics | None = None,
    *,
    listener: Listener | None = None,
    window: Window | None = None,
    prices: Prices | None = None,
) -> AsyncIterator[Shadow]:
    """Watch a cluster that another scheduler owns, and compare until the block ends. ``prices``
    adds costs to the report. Raises
    :class:`~asched.journal.errors.JournalError`."""
    await require_kind(journal, shadow=True)
    metrics, runtime, inbox = metrics or Metrics(), Runtime.of_this_process(), Inbox()
    load, profiles = registry.load, configuration.profiles
    resources = in_order_of_listing((), custom_resources_of(profiles, load))
    epoch = await journal.claim(runtime.instance, claimed_at_ns=runtime.clock.time_ns())
    follower, next_seq = ShadowFollower(load, window, resources, prices), 1
    async for stored in journal.read():  # records of earlier runs
        with folding(stored):
            follower.restore(stored.record)
        next_seq = stored.seq + 1
    follower.notes += start_notes(configuration)
    for note in follower.notes:
        log.warning("setting ignored", note=note)
    appender = JournalAppender(journal, runtime.clock, metrics, next_seq=next_seq)
    engine = ShadowEngine(follower, appender, inbox, runtime.clock, listener or log_finding)
    engine.record_start(
        _started(configuration), LeadershipGained(epoch), shadow_profiles(configuration)
    )
    watch = ClusterWatch(
        client.read_only(), inbox, resources, annotations=annotations_of(profiles, load)
    )
    metrics.watch(follower.state, lambda: watch.reflectors)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(watch.run)
        tasks.start_soon(_run, engine, tasks.cancel_scope)
        tasks.start_soon(watch_journal, journal, runtime.clock, engine)
        try:
            yield Shadow(engine, follower.state, watch, follower)
        finally:
            engine.stop()
            tasks.cancel_scope.deadline = anyio.current_time() + STOP_TIMEOUT_S


def _started(configuration: Configuration) -> EngineStarted:
    return EngineStarted(__version__, configuration.settings.engine.seed, shadow=True)


async def _run(engine: ShadowEngine, watching: anyio.CancelScope) -> None:
    await engine.run()
    watching.cancel()


def log_finding(finding: ShadowCompared | Difference) -> None:
    """Log a disagreement: when it is found, and when it is explained."""
    if isinstance(finding, Difference):
        log.warning(
            "disagreement explained",
            pod=finding.pod,
            number=finding.number,
            cause=finding.cause.value,
            detail=finding.detail,
        )
    elif not finding.agreed:
        log.warning(
            "disagreement",
            pod=finding.key,
            number=finding.number,
            node=finding.node,
            message=finding.message,
            best=finding.best,
            own_message=finding.own_message,
        )


# -- on a recording -------------------------------------------------------------------------------


def records_of(
    tape: Tape, follower: ShadowFollower, configuration: Configuration
) -> Iterator[AnyRecord]:
    """All records of a run over the tape, each already folded. Raises TapeError."""

    def applied(record: AnyRecord) -> AnyRecord:
        follower.apply(record)
        return record

    yield applied(_started(configuration))
    yield applied(shadow_profiles(configuration))
    for recorded in tape:
        # The tape's clock starts at 0. Its lines are not necessarily in order of time.
        now_ns = max(follower.state.now_ns, round(recorded.at_s * NS_PER_S))
        if now_ns != follower.state.now_ns:
            yield applied(TurnStarted(now_ns))
        for record in follower.observe(recorded.change):
            yield applied(record)
        for explained in follower.explained():
            yield applied(explained)
    for explained in follower.explained(final=True):
        yield applied(explained)


def compare_recording(
    tape: Tape,
    configuration: Configuration,
    registry: PluginRegistry,
    prices: Prices | None = None,
) -> Report:
    """Compare every decision on the tape. ``prices`` adds costs. Raises TapeError."""
    follower = ShadowFollower(registry.load, prices=prices)
    follower.notes += start_notes(configuration)
    for _ in records_of(tape, follower, configuration):
        pass
    return follower.report()
