"""The composition root: one daemon, from a configuration to a running engine."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing, asynccontextmanager
from typing import NamedTuple

import anyio
import structlog
from anyio.abc import TaskGroup

from asched import __version__
from asched.batch.registry import SessionRegistry
from asched.config.file import Configuration
from asched.config.registry import PluginRegistry
from asched.config.settings import PluginLimits
from asched.core.inputs import ChangeSink
from asched.daemon.effects.dispatcher import EffectDispatcher, EffectServices
from asched.daemon.effects.extender_pool import ExtenderPool
from asched.daemon.engine.checkpoints import Checkpoints
from asched.daemon.engine.commits import Commits
from asched.daemon.engine.engine import Engine, EngineLimits, EngineOptions
from asched.daemon.engine.inbox import Inbox
from asched.daemon.engine.runtime import Runtime
from asched.daemon.ha.follower import BufferedWatch, StartState
from asched.daemon.ha.leadership import Leadership, LeadershipController
from asched.daemon.plugin_host.external_plugins import ExternalPlugins
from asched.daemon.reload.reconfigurer import (
    ConfigApplied,
    Reconfigurer,
    ReloadTargets,
    profiles_record,
)
from asched.daemon.reload.session_files import SessionFiles
from asched.daemon.reload.watched import annotations_of, watched_resources
from asched.daemon.telemetry.batch_metrics import TimedRegistry
from asched.daemon.telemetry.collectors import Backlog
from asched.daemon.telemetry.health import Check, troubles
from asched.daemon.telemetry.metrics import Metrics
from asched.daemon.telemetry.scheduler_metrics import CountedBackoff
from asched.daemon.telemetry.stopwatch import CycleStopwatch
from asched.framework.runtime.profile import PluginLoader
from asched.journal.checkpoints import nearest
from asched.journal.errors import (
    JournalBusyError,
    JournalError,
    JournalFullError,
    JournalIOError,
)
from asched.journal.store import JournalStore
from asched.kube.client import NO_RETRY, ApiClient, RequestOptions
from asched.kube.errors import ApiError, NoResponseError
from asched.kube.events import EventRecorder, EventRecorderSettings
from asched.kube.extenders import HttpExtender
from asched.kube.reflector import ClusterWatch
from asched.kube.timing import Backoff, RetryPolicy
from asched.state.cluster import ClusterState
from asched.state.fold import Fold
from asched.state.records import (
    EngineStarted,
    LeadershipGained,
)
from asched.state.session_records import SessionsLoaded

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

EVENT_FLUSH_S = 3.0
"""How long a stopping daemon goes on sending Events."""
DRAIN_S = 20.0
"""How long a stopping daemon waits for effects under way. Together with the Events and the last
checkpoint less than the 30 s that Kubernetes grants a pod to end; what is left undone the next start takes
up."""
LAST_CHECKPOINT_S = 5.0
"""How long a stopping daemon waits for its last checkpoint; without it the next start folds more."""
SLOW_TURN_S = 30.0
"""A turn of the engine that takes longer makes the daemon unready."""
_FIRST_ANSWER_RETRY = RetryPolicy(initial_s=0.2, max_s=5.0)
_FIRST_ANSWER_TIMEOUT_S = 10.0
_FIRST_ANSWER_COMPLAINT_S = 60.0
_EFFECT_RETRY = RetryPolicy(attempts=1, initial_s=0.2, max_s=10.0)
_CLAIM_RETRY_S = 5.0
_PASSING = (JournalBusyError, JournalFullError, JournalIOError)
"""What may be over the next time that the journal is written."""
_REPORT_EVERY = 100_000


class Daemon(NamedTuple):
    """A running daemon."""

    engine: Engine
    cluster: ClusterState
    """For reading only."""
    events: EventRecorder | None
    watch: ClusterWatch
    inbox: Inbox
    apply_config: Callable[[Configuration], Awaitable[ConfigApplied]]
    """Decides by another configuration from now on: :meth:`Reconfigurer.apply_config`."""

    def checks(self) -> list[Check]:
        """What has to be so for it to be ready."""
        return self.engine.checks(SLOW_TURN_S)

    def troubles(self) -> list[str]:
        """What keeps it from scheduling now, a line each; empty if nothing does."""
        return troubles(self.checks())

    def alive(self) -> list[Check]:
        """What only a restart may mend where it is not so."""
        return [Check("engine", lambda: "a turn of it hangs" if self.hangs() else "")]

    def hangs(self) -> bool:
        """Whether only a restart may help."""
        return self.engine.is_stuck(SLOW_TURN_S)


@asynccontextmanager
async def running_daemon(
    configuration: Configuration,
    registry: PluginRegistry,
    client: ApiClient,
    journal: JournalStore,
    metrics: Metrics | None = None,
    machine: Runtime | None = None,
    *,
    leadership: Leadership | None = None,
    start: StartState | None = None,
) -> AsyncIterator[Daemon]:
    """Fold the journal, take up the watches, and schedule until the block ends.

    At the end of the block effects under way are finished and Events are flushed. ``metrics`` is
    where to count; nobody sees it by default. ``machine``: whose time and threads to use, by default
    those of this process. Raises a :class:`~asched.journal.errors.JournalError` where the journal
    cannot be read or written.

    With ``leadership`` it is a standby that observes and records, until it leads; with ``start``
    as well it leads already.
    """
    metrics, machine = metrics or Metrics(), machine or Runtime.of_this_process()
    standby = leadership is not None and start is None
    if start is None:
        start = await _start(journal, registry, machine, patient=leadership is not None)
    every = configuration.settings.journal.checkpoint_every
    checkpoints = Checkpoints(
        journal, start.fold.state, machine, every=every, last_seq=start.kept_seq
    )
    limits = PluginLimits(configuration.settings.plugins)
    plugins = ExternalPlugins(start.fold.state, registry.load, limits)
    async with aclosing(plugins), anyio.create_task_group() as tasks:
        extenders = ExtenderPool(tasks, client.clock)
        parts = _Parts(
            configuration, registry, client, journal, metrics, tasks, machine, extenders,
            checkpoints, plugins, leadership, standby,
        )  # fmt: skip
        first = await extenders.replacement(configuration.scheduler.extenders)
        first.use()
        tasks.start_soon(checkpoints.run)
        daemon = _assemble(parts, start, first.extenders)
        _record_start(configuration, daemon, None if standby else start.epoch)
        office = None
        if leadership is not None:
            office = LeadershipController(
                leadership, daemon.engine, daemon.inbox, start.epoch, shared=start.held is not None
            )
        async with anyio.create_task_group() as watching:
            watching.start_soon(_watch, client, daemon, start.held)
            watching.start_soon(_run_engine, daemon.engine, watching.cancel_scope, office)
            if office is not None and standby:
                watching.start_soon(office.take, client, daemon.watch)
            try:
                yield daemon
            finally:
                daemon.engine.stop()
                watching.cancel_scope.deadline = anyio.current_time() + DRAIN_S
        if office is not None:
            await office.leave()
        # Where the journal is shared, the next leader has it already.
        await _finish(daemon, None if start.held is not None else checkpoints)
        tasks.cancel_scope.cancel()


async def _finish(daemon: Daemon, checkpoints: Checkpoints | None) -> None:
    if checkpoints is not None and daemon.engine.all_committed:
        with anyio.move_on_after(LAST_CHECKPOINT_S) as limit:
            await checkpoints.write_last()
        if limit.cancelled_caught:
            log.warning("no last checkpoint: the journal takes too long", limit_s=LAST_CHECKPOINT_S)
    if daemon.events is not None:
        await daemon.events.stop(EVENT_FLUSH_S)


async def _start(
    journal: JournalStore, registry: PluginRegistry, machine: Runtime, *, patient: bool
) -> StartState:
    # First the claim, then the fold: after it nobody else can append.
    epoch = await _claim(journal, machine, patient=patient)
    fold, kept_seq = await nearest(journal, registry.load)
    next_seq = await fold_journal(fold, journal, kept_seq)
    return StartState(fold, next_seq, kept_seq, epoch)


async def _claim(journal: JournalStore, machine: Runtime, *, patient: bool) -> int:
    """The epoch. ``patient``: of several, where one that gave its leadership up because it could not
    write comes back as a standby, and waits until it can."""
    while True:
        try:
            return await journal.claim(machine.instance, claimed_at_ns=machine.clock.time_ns())
        except _PASSING as error:
            if not patient:
                raise
            log.warning("the journal cannot be claimed yet", error=str(error))
        await machine.clock.sleep(_CLAIM_RETRY_S)


async def _run_engine(
    engine: Engine, watching: anyio.CancelScope, office: LeadershipController | None
) -> None:
    try:
        await engine.run()
    except JournalError as error:
        if office is not None:
            await office.give_up()
        # Who was told to stop may stop without its last turn: nothing of that was carried out.
        stopping = watching.deadline < math.inf
        if not stopping or not isinstance(error, _PASSING):
            raise
        log.warning("stopped while the journal cannot be written", error=str(error))
    # Nothing folds any more what the watches would bring.
    watching.cancel()


async def _watch(client: ApiClient, daemon: Daemon, held: BufferedWatch | None) -> None:
    if held is None:
        await watch_from_first_answer(client, daemon.watch)
    else:
        held.room.hand_over(daemon.inbox)


async def watch_from_first_answer(client: ApiClient, watch: ClusterWatch) -> None:
    """Watch, once the API server answers at all."""
    await _first_answer(client)
    await watch.run()


async def _first_answer(client: ApiClient) -> None:
    """Wait until the API server answers anything: one line in the log says so while it does not,
    where every watch would say the same."""
    backoff = Backoff(_FIRST_ANSWER_RETRY, client.random)
    complained_at_s = -_FIRST_ANSWER_COMPLAINT_S
    while True:
        try:
            await client.request(
                "GET", "/version", options=RequestOptions(None, NO_RETRY, _FIRST_ANSWER_TIMEOUT_S)
            )
        except ApiError:
            return
        except NoResponseError as error:
            now_s = client.clock.monotonic_s()
            if now_s - complained_at_s >= _FIRST_ANSWER_COMPLAINT_S:
                complained_at_s = now_s
                log.warning(
                    "the API server does not answer; trying until it does",
                    server=client.server, error=str(error),
                )  # fmt: skip
        else:
            return
        await client.clock.sleep(backoff.next_s())


async def fold_journal(fold: Fold, journal: JournalStore, after_seq: int = 0) -> int:
    """Bring the state of the records up to ``after_seq`` up to the journal's end. Returns the number
    of the next record."""
    last_seq = after_seq
    async for stored in journal.read(after_seq):
        fold.apply(stored.record)
        last_seq = stored.seq
        if last_seq % _REPORT_EVERY == 0:
            log.info("folding the journal", records=last_seq)
    if last_seq:
        log.info(
            "journal folded", records=last_seq, checkpoint=after_seq, pods=len(fold.state.pods)
        )
    return last_seq + 1


class _Parts(NamedTuple):
    """What a daemon is made from."""

    configuration: Configuration
    registry: PluginRegistry
    client: ApiClient
    journal: JournalStore
    metrics: Metrics
    tasks: TaskGroup
    machine: Runtime
    extenders: ExtenderPool
    checkpoints: Checkpoints
    plugins: ExternalPlugins
    leadership: Leadership | None
    standby: bool


def _assemble(parts: _Parts, start: StartState, extenders: Sequence[HttpExtender]) -> Daemon:
    settings, client, fold = parts.configuration.settings, parts.client, start.fold
    leadership = parts.leadership
    monotonic_ns = parts.machine.clock.monotonic_ns
    inbox = Inbox(monotonic_ns=monotonic_ns)
    stopwatch = CycleStopwatch(monotonic_ns, parts.metrics.cycle_sinks)
    events = _event_recorder(parts)
    effects = _effects(parts, fold.state, inbox, events, extenders, stopwatch)
    configuration, registry = parts.configuration, SessionRegistry.discover()
    load, profiles = parts.registry.load, configuration.profiles
    resources = watched_resources(profiles, configuration.sessions, load)
    # Where the journal is shared, a next leader could write it no better.
    patience_s = leadership.journal_patience_s if leadership and parts.standby else _for_ever
    engine = Engine(
        fold,
        Commits(
            parts.journal,
            parts.machine.clock,
            parts.metrics,
            next_seq=start.next_seq,
            patience_s=patience_s,
        ),
        effects,
        inbox,
        parts.machine.clock,
        parts.metrics,
        EngineOptions(
            awaited=frozenset(resources),
            limits=EngineLimits(slice_s=settings.engine.turn_time_slice.total_seconds()),
            committed=parts.checkpoints.committed,
            sessions=TimedRegistry(registry, parts.metrics.sessions),
            stopwatch=stopwatch,
            standby=parts.standby,
            may_decide=_always if leadership is None else leadership.leads,
        ),
    )
    files = SessionFiles(
        settings.batch, configuration.sessions, registry, client.clock, inbox.put_outcome
    )
    parts.tasks.start_soon(files.run)
    watch = (
        start.held.watch
        if start.held is not None
        else cluster_watch(parts.configuration, client, inbox, load)
    )
    parts.metrics.watch(fold.state, lambda: watch.reflectors)
    parts.metrics.watch_work(
        lambda: Backlog(len(inbox), inbox.oldest_age_s), lambda: effects.in_flight, events
    )
    running = ReloadTargets(
        engine, effects, inbox, parts.extenders, files, watch, fold.state, parts.registry.load
    )
    reconfigurer = Reconfigurer(configuration, running)
    return Daemon(engine, fold.state, events, watch, inbox, reconfigurer.apply_config)


def _effects(
    parts: _Parts,
    state: ClusterState,
    inbox: Inbox,
    events: EventRecorder | None,
    extenders: Sequence[HttpExtender],
    stopwatch: CycleStopwatch,
) -> EffectDispatcher:
    client, leadership, metrics = parts.client, parts.leadership, parts.metrics
    services = EffectServices(
        client=client.guarded_by(leadership) if leadership is not None else client,
        events=events,
        tasks=parts.tasks,
        backoff=lambda: CountedBackoff(_EFFECT_RETRY, client.random, metrics.engine.effect_retried),
        metrics=metrics,
        plugins=parts.plugins,
        extenders=extenders,
        stopwatch=stopwatch,
    )
    return EffectDispatcher(state, inbox, services)


def cluster_watch(
    configuration: Configuration, client: ApiClient, sink: ChangeSink, load: PluginLoader
) -> ClusterWatch:
    """A watch of all that the configuration has a use for."""
    profiles, sessions = configuration.profiles, configuration.sessions
    return ClusterWatch(
        client,
        sink,
        watched_resources(profiles, sessions, load),
        # How many pods of a job have finished is part of what a session looks at.
        finished_pods=bool(sessions),
        annotations=annotations_of(profiles, load),
    )


def _always() -> bool:
    return True


def _for_ever() -> float:
    return math.inf


def _event_recorder(parts: _Parts) -> EventRecorder | None:
    settings = parts.configuration.settings.events
    if not settings.enabled:
        return None
    names = (
        *(profile.scheduler_name for profile in parts.configuration.profiles),
        *(session.scheduler_name for session in parts.configuration.sessions),
    )
    limit = EventRecorderSettings(queue_limit=settings.queue_limit)
    events = EventRecorder(parts.client, names[0], parts.machine.instance, limit)
    parts.tasks.start_soon(events.run)
    return events


def _record_start(configuration: Configuration, daemon: Daemon, epoch: int | None) -> None:
    """``epoch`` is None for a standby."""
    settings, sessions = configuration.settings.engine, configuration.sessions
    # A journal that never knew sessions need not hear that there are none.
    loaded = (SessionsLoaded(sessions),) if sessions or daemon.cluster.sessions else ()
    daemon.engine.record_start(
        EngineStarted(__version__, settings.seed),
        *(() if epoch is None else (LeadershipGained(epoch),)),
        profiles_record(configuration),
        *loaded,
    )
