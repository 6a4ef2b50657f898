"""The composition root: one daemon, from a configuration to a running engine."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing, asynccontextmanager
from functools import partial
from typing import NamedTuple

import anyio
import structlog
from anyio.abc import TaskGroup

from asched import __version__
from asched.batch.registry import SessionRegistry
from asched.comparer.cluster import ClusterComparer
from asched.comparer.comparer import compare_periodically
from asched.comparer.journal import JournalComparer
from asched.config.file import Configuration
from asched.config.settings import PluginLimits
from asched.daemon.effects.dispatcher import EffectDispatcher
from asched.daemon.effects.external_calls import ExtenderPool
from asched.daemon.effects.per_pod_queue import EffectServices
from asched.daemon.engine.engine import Engine, EngineOptions
from asched.daemon.engine.inbox import Inbox
from asched.daemon.engine.journaling import Checkpoints, JournalAppender
from asched.daemon.engine.turn_loop import watch_journal
from asched.daemon.ha.follower import BufferedWatch, StartState
from asched.daemon.ha.leadership import Leadership, LeadershipController
from asched.daemon.ha.lease import COVERED, NameGuard
from asched.daemon.plugin_host.external_plugins import ExternalPlugins
from asched.daemon.reload.reconfigurer import Reconfigurer, ReloadTargets, profiles_record
from asched.daemon.reload.reloader import ConfigApplied, SessionFiles
from asched.daemon.signing.signer import HeadSigner, head_metrics
from asched.daemon.signing.start import check_against, file_anchors
from asched.daemon.startup import (
    PART_OBJECTS,
    DaemonContext,
    cluster_watch,
    pod_reading,
    recover,
    watch_when_reachable,
    watched_resources,
)
from asched.daemon.telemetry.batch_metrics import TimedRegistry
from asched.daemon.telemetry.health import Check
from asched.daemon.telemetry.scheduler_metrics import CountedBackoff
from asched.daemon.telemetry.stopwatch import CycleStopwatch
from asched.journal.errors import TRANSIENT_ERRORS, JournalError
from asched.kube.client import ApiClient
from asched.kube.events import EventRecorder, EventRecorderSettings
from asched.kube.extenders import HttpExtender
from asched.kube.reflector import ClusterWatch
from asched.kube.timing import RetryPolicy
from asched.state.cluster import ClusterState
from asched.state.records import EngineStarted, LeadershipGained
from asched.state.session_records import SessionsLoaded

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

EVENTS_YIELD_FROM = 8
"""Pods with effects in flight from which Events wait."""
EVENT_FLUSH_S = 3.0
"""How long a stopping daemon continues to send Events."""
DRAIN_S = 20.0
"""How long a stopping daemon waits for effects in flight; the next start resumes the rest. With
Events and the last checkpoint it is less than a pod's default grace period of 30 s."""
LAST_CHECKPOINT_S = 5.0
"""How long a stopping daemon waits for its last checkpoint, which shortens the next start, in
addition to what is left of :data:`DRAIN_S`: with a million pods it takes longer than 5 s."""
_EFFECT_RETRY = RetryPolicy(attempts=1, initial_s=0.2, max_s=10.0)


class Daemon(NamedTuple):
    """A running daemon."""

    engine: Engine
    cluster: ClusterState
    """Read-only."""
    events: EventRecorder | None
    watch: ClusterWatch
    inbox: Inbox
    apply_config: Callable[[Configuration], Awaitable[ConfigApplied]]
    """Replaces the configuration: :meth:`Reconfigurer.apply_config`."""
    leadership: Leadership | None
    """None without leader election."""
    guard: NameGuard

    @property
    def synced(self) -> anyio.Event:
        """Set once everything was listed."""
        return self.engine.synced

    def checks(self) -> list[Check]:
        """Conditions of readiness."""
        return [*self.engine.checks(), self.guard.check()]

    def is_stuck(self) -> bool:
        """Whether the engine's turn does not end: a restart may help."""
        return self.engine.is_stuck()


@asynccontextmanager
async def running_daemon(
    context: DaemonContext,
    *,
    leadership: Leadership | None = None,
    start: StartState | None = None,
) -> AsyncIterator[Daemon]:
    """Recover the journal, watch the cluster and schedule until the block ends.

    With ``leadership`` the daemon is a standby, which observes and records, until it leads; with
    ``start`` as well it leads from the start. At the end of the block effects in flight are
    completed and Events are flushed. Raises a :class:`~asched.journal.errors.JournalError` if the
    journal cannot be read or written.
    """
    settings = context.configuration.settings
    standby = leadership is not None and start is None
    if start is None:
        start = await recover(context, wait=leadership is not None)
    state, load = start.fold.state, context.registry.load
    signer = _signer(context, start, leadership)
    plugins = ExternalPlugins(state, load, PluginLimits(settings.plugins))
    async with aclosing(plugins), anyio.create_task_group() as tasks:
        parts = _Parts(
            context=context,
            tasks=tasks,
            extenders=ExtenderPool(tasks, context.client.clock),
            checkpoints=Checkpoints(
                context.journal,
                state,
                context.runtime,
                every=settings.journal.checkpoint_every,
                last_seq=start.checkpoint_seq,
                sign=signer.sign,
            ),
            signer=signer,
            plugins=plugins,
            leadership=leadership,
            standby=standby,
            guard=_name_guard(context, state, leadership),
        )
        async with _scheduling(parts, start) as daemon:
            yield daemon
        tasks.cancel_scope.cancel()


class _Parts(NamedTuple):
    """What a daemon is made of."""

    context: DaemonContext
    tasks: TaskGroup
    extenders: ExtenderPool
    checkpoints: Checkpoints
    signer: HeadSigner
    plugins: ExternalPlugins
    leadership: Leadership | None
    standby: bool
    guard: NameGuard

    def may_decide(self) -> bool:
        return self.guard.may_decide() and (self.leadership is None or self.leadership.leads())


@asynccontextmanager
async def _scheduling(parts: _Parts, start: StartState) -> AsyncIterator[Daemon]:
    """A daemon that runs until the end of the block, and has stopped completely after it."""
    first = await parts.extenders.replacement(parts.context.configuration.scheduler.extenders)
    first.use()
    parts.tasks.start_soon(parts.checkpoints.run)
    parts.tasks.start_soon(parts.signer.run)
    daemon = _assemble(parts, start, first.extenders)
    _record_start(parts.context, daemon, None if parts.standby else start.epoch)
    if parts.context.mark is not None:
        daemon.engine.mark_attempts(parts.context.mark)
    # The next leader has a shared journal, with its state, already.
    shared = start.buffered is not None
    controller = None
    if parts.leadership is not None:
        parts.leadership.use_journal(start.journal_id, shared=shared)
        controller = LeadershipController(
            parts.leadership, daemon.engine, daemon.inbox, start.epoch, shared=shared
        )
        controller.after_acquire = partial(_use_lease_anchor, parts)
        controller.before_release = partial(_sign_last_head, parts, daemon.engine)
    async with anyio.create_task_group() as running:
        running.start_soon(_watch, parts.context.client, daemon, start.buffered)
        running.start_soon(_run_engine, daemon.engine, running.cancel_scope, controller)
        context = parts.context
        running.start_soon(watch_journal, context.journal, context.runtime.clock, daemon.engine)
        if context.configuration.settings.comparer.enabled:
            running.start_soon(_compare, context, daemon)
        if controller is not None and parts.standby:
            running.start_soon(controller.acquire, parts.context.client, daemon.watch)
        try:
            yield daemon
        finally:
            daemon.engine.stop()
            drained_by = running.cancel_scope.deadline = anyio.current_time() + DRAIN_S
    if controller is not None:
        await controller.release()
    await _sign_last_head(parts, daemon.engine)
    if not shared and daemon.engine.all_committed:
        await _write_last_checkpoint(parts.checkpoints, drained_by + LAST_CHECKPOINT_S)
    if daemon.events is not None:
        await daemon.events.stop(EVENT_FLUSH_S)


async def _compare(context: DaemonContext, daemon: Daemon) -> None:
    """Compare the state in the background once everything was listed."""
    settings, clock = context.configuration.settings.comparer, context.runtime.clock
    cluster = ClusterComparer(
        context.client,
        clock,
        daemon.cluster,
        daemon.engine,
        lambda: daemon.watch.reflectors,
        settings.slice_objects,
    )
    journal = JournalComparer(
        context.journal,
        context.registry.load,
        context.runtime,
        daemon.cluster,
        daemon.engine,
        settings.slice_objects,
    )
    context.metrics.watch_comparisons({"cluster": cluster.counts, "journal": journal.counts})
    await daemon.synced.wait()
    await compare_periodically([cluster, journal], clock, settings.interval.total_seconds())


async def _sign_last_head(parts: _Parts, engine: Engine) -> None:
    await parts.signer.finish(all_committed=engine.all_committed)


async def _use_lease_anchor(parts: _Parts) -> None:
    """Compare the journal with the head in the lease, and publish later heads there.

    Raises a :class:`~asched.journal.errors.JournalError` if they differ.
    """
    if parts.leadership is not None and parts.signer.signs:
        anchor = parts.leadership.anchor(parts.context.runtime.instance, shared=False)
        await check_against(parts.context.journal, [anchor])
        parts.signer.publish_to(anchor, 0.0)


async def _watch(client: ApiClient, daemon: Daemon, buffered_watch: BufferedWatch | None) -> None:
    if buffered_watch is None:
        await watch_when_reachable(client, daemon.watch)
    else:
        buffered_watch.changes.forward_to(daemon.inbox)


async def _run_engine(
    engine: Engine, running: anyio.CancelScope, controller: LeadershipController | None
) -> None:
    try:
        await engine.run()
    except JournalError as error:
        if controller is not None:
            await controller.abandon()
        # A stopping daemon may lose its last turn: none of its effects were started.
        stopping = running.deadline < math.inf
        if not stopping or not isinstance(error, TRANSIENT_ERRORS):
            raise
        log.warning("stopped without writing the journal", error=str(error))
    running.cancel()  # nothing folds the changes of the watches any longer


async def _write_last_checkpoint(checkpoints: Checkpoints, deadline: float) -> None:
    with anyio.CancelScope(deadline=deadline) as limit:
        await checkpoints.write_last()
    if limit.cancelled_caught:
        log.warning("last checkpoint not written: timeout")


def _signer(context: DaemonContext, start: StartState, leadership: Leadership | None) -> HeadSigner:
    settings, runtime = context.configuration.settings.journal, context.runtime
    signer = HeadSigner(context.journal, start.position, runtime.clock, start.tips)
    for anchor in file_anchors(settings):
        signer.publish_to(anchor, settings.anchor_interval.total_seconds())
    if start.buffered is not None and leadership is not None:
        # It leads, and compared its journal with the lease before.
        signer.publish_to(leadership.anchor(runtime.instance, shared=True), 0.0)
    context.metrics.show(partial(head_metrics, signer))
    return signer


def _assemble(parts: _Parts, start: StartState, extenders: Sequence[HttpExtender]) -> Daemon:
    context, state = parts.context, start.fold.state
    configuration, client, metrics = context.configuration, context.client, context.metrics
    monotonic_ns = context.runtime.clock.monotonic_ns
    inbox = Inbox(monotonic_ns=monotonic_ns)
    stopwatch = CycleStopwatch(monotonic_ns, metrics.cycle_sinks)
    events, sessions = _event_recorder(parts), SessionRegistry.discover()
    effects = _effects(parts, state, inbox, events, extenders, stopwatch)
    if events is not None:
        events.yield_while(lambda: effects.in_flight >= EVENTS_YIELD_FROM)
    engine = _engine(parts, start, effects, inbox, sessions, stopwatch)
    files = SessionFiles(
        configuration.settings.batch,
        configuration.sessions,
        sessions,
        client.clock,
        inbox.put_outcome,
    )
    parts.tasks.start_soon(files.run)
    parts.guard.on_change = inbox.wake
    parts.tasks.start_soon(parts.guard.run)
    if start.buffered is not None:
        watch = start.buffered.watch
    else:
        load = context.registry.load
        watch = cluster_watch(configuration, client, inbox, load, PART_OBJECTS, state.seen)
    metrics.watch(state, lambda: watch.reflectors)
    metrics.watch_work(inbox, lambda: effects.in_flight, events)
    metrics.watch_held_updates(engine.held_updates)
    targets = ReloadTargets(
        engine=engine,
        inbox=inbox,
        extenders=parts.extenders,
        files=files,
        watch=watch,
        cluster=state,
        load=context.registry.load,
    )
    reconfigurer = Reconfigurer(configuration, targets)
    return Daemon(
        engine=engine,
        cluster=state,
        events=events,
        watch=watch,
        inbox=inbox,
        apply_config=reconfigurer.apply_config,
        leadership=parts.leadership,
        guard=parts.guard,
    )


def _name_guard(
    context: DaemonContext, state: ClusterState, leadership: Leadership | None
) -> NameGuard:
    take_over = context.take_over_names or context.configuration.settings.take_over_names
    return NameGuard(
        context.client,
        lambda: {*state.profiles, *(spec.scheduler_name for spec in state.sessions.specs)},
        {} if take_over else COVERED,
        own_lease="" if leadership is None else str(leadership.elector.lease),
    )


def _engine(
    parts: _Parts,
    start: StartState,
    effects: EffectDispatcher,
    inbox: Inbox,
    sessions: SessionRegistry,
    stopwatch: CycleStopwatch,
) -> Engine:
    context, leadership = parts.context, parts.leadership
    configuration, clock, metrics = context.configuration, context.runtime.clock, context.metrics
    # A leader with a journal of its own resigns if it cannot write. With a shared journal the next
    # leader could write it no better.
    timeout_s = leadership.journal_timeout_s if leadership and parts.standby else None
    load = context.registry.load
    return Engine(
        start.fold,
        JournalAppender(
            context.journal,
            clock,
            metrics,
            next_seq=start.next_seq,
            timeout_s=timeout_s,
            appended=parts.signer.appended,
        ),
        effects,
        inbox,
        clock,
        metrics=metrics,
        options=EngineOptions(
            unsynced=frozenset(
                watched_resources(configuration.profiles, configuration.sessions, load)
            ),
            slice_s=configuration.settings.engine.turn_time_slice.total_seconds(),
            committed=parts.checkpoints.committed,
            sessions=TimedRegistry(sessions, metrics.sessions),
            stopwatch=stopwatch,
            standby=parts.standby,
            may_decide=parts.may_decide,
        ),
    )


def _effects(
    parts: _Parts,
    state: ClusterState,
    inbox: Inbox,
    events: EventRecorder | None,
    extenders: Sequence[HttpExtender],
    stopwatch: CycleStopwatch,
) -> EffectDispatcher:
    client, metrics = parts.context.client, parts.context.metrics
    leadership = parts.leadership
    services = EffectServices(
        client=client.guarded_by(leadership.elector) if leadership is not None else client,
        events=events,
        tasks=parts.tasks,
        backoff=lambda: CountedBackoff(_EFFECT_RETRY, client.random, metrics.engine.effect_retried),
        metrics=metrics,
        plugins=parts.plugins,
        check_writer=parts.context.journal.check_writer,
        extenders=extenders,
        stopwatch=stopwatch,
    )
    return EffectDispatcher(state, inbox, services)


def _event_recorder(parts: _Parts) -> EventRecorder | None:
    context, configuration = parts.context, parts.context.configuration
    settings = configuration.settings.events
    if not settings.enabled:
        return None
    names = (
        *(profile.scheduler_name for profile in configuration.profiles),
        *(session.scheduler_name for session in configuration.sessions),
    )
    limit = EventRecorderSettings(queue_limit=settings.queue_limit)
    events = EventRecorder(context.client, names[0], context.runtime.instance, limit)
    parts.tasks.start_soon(events.run)
    return events


def _record_start(context: DaemonContext, daemon: Daemon, epoch: int | None) -> None:
    """``epoch`` is None for a standby."""
    configuration = context.configuration
    sessions = configuration.sessions
    # A journal without batch sessions needs no record that there are none.
    loaded = (SessionsLoaded(sessions),) if sessions or daemon.cluster.sessions else ()
    daemon.engine.record_start(
        EngineStarted(__version__, configuration.settings.engine.seed, step_ns=context.step_ns),
        *(() if epoch is None else (LeadershipGained(epoch),)),
        profiles_record(configuration),
        *loaded,
    )
    daemon.cluster.seen.begin(pod_reading(configuration, context.registry.load))
