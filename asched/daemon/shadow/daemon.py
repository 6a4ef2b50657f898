"""The composition root of shadow mode: watches, journal and the comparing engine. No writer.

Shadow mode on a recording.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import NamedTuple

import anyio
import structlog

from asched import __version__
from asched.config.file import Configuration
from asched.config.registry import PluginRegistry
from asched.daemon.engine.commits import Commits
from asched.daemon.engine.inbox import Inbox
from asched.daemon.engine.runtime import Runtime
from asched.daemon.reload.reconfiguring import annotations_read, custom_resources_read
from asched.daemon.shadow.engine import Listener, ShadowEngine
from asched.daemon.shadow.explaining import Window
from asched.daemon.shadow.follower import ShadowFollower, profiles_record, start_notes
from asched.daemon.shadow.report import Difference, Report
from asched.daemon.telemetry.metrics import Metrics
from asched.journal.store import JournalStore
from asched.kube.client import ApiClient
from asched.kube.reflector import ClusterWatch
from asched.kube.tape import Tape
from asched.model.quantity import NS_PER_S
from asched.model.resources import in_order_of_listing
from asched.state.cluster import ClusterState
from asched.state.records import (
    AnyRecord,
    EngineStarted,
    LeadershipGained,
    ShadowCompared,
    TurnStarted,
)

STOP_LIMIT_S = 20.0
"""How long a stopping daemon may take to explain what is open and to commit it."""

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


class JournalKindError(Exception):
    """The journal is of the other kind; the text is one line for the user."""


class Shadow(NamedTuple):
    """A running shadow."""

    engine: ShadowEngine
    cluster: ClusterState
    """For reading only."""
    watch: ClusterWatch
    follower: ShadowFollower

    def report(self) -> Report:
        """What was found up to now."""
        return self.follower.report()


async def require_kind(journal: JournalStore, *, shadow: bool) -> None:
    """Refuse to mix: what a shadow saw was decided by another, and what a scheduler decided it is
    still to carry out. An empty journal is of either kind. Raises :class:`JournalKindError`."""
    async for stored in journal.read():
        if isinstance(stored.record, EngineStarted):
            if stored.record.shadow and not shadow:
                raise JournalKindError("the journal is that of a shadow; give another one")
            if shadow and not stored.record.shadow:
                raise JournalKindError("the journal is that of a scheduler; give another one")
            return


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
) -> AsyncIterator[Shadow]:
    """Watch a cluster that another scheduler owns, and compare until the block ends.

    Raises :class:`JournalKindError` and :class:`~asched.journal.errors.JournalError`.
    """
    await require_kind(journal, shadow=True)
    metrics = metrics or Metrics()
    machine = Runtime.of_this_process()
    epoch = await journal.claim(machine.instance, claimed_at_ns=machine.clock.time_ns())
    load, profiles = registry.load, configuration.profiles
    resources = in_order_of_listing((), custom_resources_read(profiles, load))
    follower = ShadowFollower(load, window, resources)
    next_seq = 1
    async for stored in journal.read():
        follower.remember(stored.record)
        next_seq = stored.seq + 1
    for note in start_notes(configuration):
        follower.note(note)
        log.warning("shadow mode", note=note)
    clock, inbox = machine.clock, Inbox()
    commits = Commits(journal, clock, metrics, next_seq=next_seq)
    engine = ShadowEngine(follower, commits, inbox, clock, listener or log_finding)
    engine.record_start(
        EngineStarted(__version__, configuration.settings.engine.seed, shadow=True),
        LeadershipGained(epoch),
        profiles_record(configuration),
    )
    watch = ClusterWatch(
        client.read_only(),
        inbox,
        resources,
        annotations=annotations_read(profiles, load),
    )
    metrics.watch(follower.state, lambda: watch.reflectors)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(watch.run)
        tasks.start_soon(_run, engine, tasks.cancel_scope)
        try:
            yield Shadow(engine, follower.state, watch, follower)
        finally:
            engine.stop()
            tasks.cancel_scope.deadline = anyio.current_time() + STOP_LIMIT_S


async def _run(engine: ShadowEngine, watching: anyio.CancelScope) -> None:
    await engine.run()
    watching.cancel()


def log_finding(finding: ShadowCompared | Difference) -> None:
    """A line in the log for every disagreement: when it is seen, and when it is looked into."""
    if isinstance(finding, Difference):
        log.warning(
            "disagreement explained", pod=finding.pod, number=finding.number,
            cause=finding.cause.value, detail=finding.detail,
        )  # fmt: skip
    elif not finding.agreed:
        log.warning(
            "disagreement", pod=finding.key, number=finding.number, node=finding.node,
            message=finding.message, best=finding.best, own_message=finding.own_message,
        )  # fmt: skip


def records_of(
    tape: Tape, follower: ShadowFollower, configuration: Configuration
) -> Iterator[AnyRecord]:
    """All records of a run over the tape, each folded already. Raises TapeError."""

    def applied(record: AnyRecord) -> AnyRecord:
        follower.apply(record)
        return record

    seed = configuration.settings.engine.seed
    yield applied(EngineStarted(__version__, seed, shadow=True))
    yield applied(profiles_record(configuration))
    for recorded in tape:
        # The tape's clock begins with 0; a tape whose lines are out of order keeps their order.
        now_ns = max(follower.state.now_ns, round(recorded.at_s * NS_PER_S))
        if now_ns != follower.state.now_ns:
            yield applied(TurnStarted(now_ns))
        for record in follower.observe(recorded.change):
            yield applied(record)
        for explained in follower.explained():
            yield applied(explained)
    for explained in follower.explained_at_the_end():
        yield applied(explained)


def compare_recording(
    tape: Tape, configuration: Configuration, registry: PluginRegistry, window: Window | None = None
) -> Report:
    """Compare every decision on the tape. Raises TapeError."""
    follower = ShadowFollower(registry.load, window)
    for note in start_notes(configuration):
        follower.note(note)
    for _ in records_of(tape, follower, configuration):
        pass
    return follower.report()
