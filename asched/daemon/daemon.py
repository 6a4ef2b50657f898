"""The composition root: one daemon, from a configuration to a running engine."""

from __future__ import annotations

import os
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import NamedTuple

import anyio
import structlog
from anyio.abc import TaskGroup

from asched import __version__
from asched.daemon.clock import SystemEngineClock
from asched.daemon.config_file import Configuration
from asched.daemon.effects import Effects
from asched.daemon.engine import Engine, EngineLimits
from asched.daemon.inbox import Inbox
from asched.framework.registry import Registry
from asched.journal.store import JournalStore
from asched.kube.client import ApiClient
from asched.kube.events import EventRecorder, EventSettings
from asched.kube.reflector import run_reflectors
from asched.kube.timing import Backoff, RetryPolicy
from asched.kube.writers import PodWriter
from asched.state.cluster import ClusterState
from asched.state.fold import Fold
from asched.state.records import EngineStarted, LeadershipGained, ProfilesLoaded, QueueSettings

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

EVENT_FLUSH_S = 5.0
"""How long a stopping daemon goes on sending Events."""
DRAIN_S = 20.0
"""How long a stopping daemon waits for bindings under way."""
_EFFECT_RETRY = RetryPolicy(attempts=1, initial_s=0.2, max_s=10.0)
_REPORT_EVERY = 100_000


class Daemon(NamedTuple):
    """A running daemon."""

    engine: Engine
    cluster: ClusterState
    """For reading only."""
    events: EventRecorder | None


@asynccontextmanager
async def running_daemon(
    configuration: Configuration, registry: Registry, client: ApiClient, journal: JournalStore
) -> AsyncIterator[Daemon]:
    """Fold the journal, take up the watches, and schedule until the block ends.

    At the end of the block effects under way are finished and Events are flushed. Raises a
    :class:`~asched.journal.errors.JournalError` where the journal cannot be read or written.
    """
    instance = f"{socket.gethostname()}_{os.getpid()}"
    # First the claim, then the fold: after it nobody else can append.
    epoch = await journal.claim(instance, claimed_at_ns=SystemEngineClock().time_ns())
    fold = Fold(ClusterState(), registry.load)
    next_seq = await fold_journal(fold, journal)
    async with anyio.create_task_group() as tasks:
        daemon, inbox = _assemble(configuration, fold, next_seq, client, journal, tasks, instance)
        _record_start(configuration, daemon.engine, epoch)
        async with anyio.create_task_group() as watching:
            watching.start_soon(run_reflectors, client, inbox.put_changes)
            watching.start_soon(_run_engine, daemon.engine, watching.cancel_scope)
            try:
                yield daemon
            finally:
                daemon.engine.stop()
                watching.cancel_scope.deadline = anyio.current_time() + DRAIN_S
        if daemon.events is not None:
            await daemon.events.stop(EVENT_FLUSH_S)
        tasks.cancel_scope.cancel()


async def _run_engine(engine: Engine, watching: anyio.CancelScope) -> None:
    await engine.run()
    # Nothing folds any more what the watches would bring.
    watching.cancel()


async def fold_journal(fold: Fold, journal: JournalStore) -> int:
    """Bring the state up to the journal's end. Returns the number of the next record."""
    last_seq = 0
    async for stored in journal.read():
        fold.apply(stored.record)
        last_seq = stored.seq
        if last_seq % _REPORT_EVERY == 0:
            log.info("folding the journal", records=last_seq)
    if last_seq:
        log.info("journal folded", records=last_seq, pods=len(fold.state.pods))
    return last_seq + 1


def _assemble(
    configuration: Configuration,
    fold: Fold,
    next_seq: int,
    client: ApiClient,
    journal: JournalStore,
    tasks: TaskGroup,
    instance: str,
) -> tuple[Daemon, Inbox]:
    settings = configuration.settings
    inbox = Inbox()
    events = None
    if settings.events.enabled:
        limit = EventSettings(queue_limit=settings.events.queue_limit)
        controller = configuration.profiles[0].scheduler_name
        events = EventRecorder(client, controller, instance, limit)
        tasks.start_soon(events.run)
    effects = Effects(
        fold.state,
        PodWriter(client),
        events,
        tasks,
        inbox,
        client.clock,
        lambda: Backoff(_EFFECT_RETRY, client.random),
    )
    engine = Engine(
        fold,
        journal,
        effects,
        inbox,
        SystemEngineClock(),
        next_seq=next_seq,
        limits=EngineLimits(slice_s=settings.engine.turn_time_slice.total_seconds()),
    )
    return Daemon(engine, fold.state, events), inbox


def _record_start(configuration: Configuration, engine: Engine, epoch: int) -> None:
    scheduler, settings = configuration.scheduler, configuration.settings.engine
    engine.record_start(
        EngineStarted(__version__, settings.seed),
        LeadershipGained(epoch),
        ProfilesLoaded(
            configuration.profiles,
            QueueSettings(
                scheduler.pod_initial_backoff_seconds,
                scheduler.pod_max_backoff_seconds,
                settings.unschedulable_flush_interval.total_seconds(),
            ),
        ),
    )
