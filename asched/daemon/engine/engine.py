"""The engine loop: collect changes, decide, commit to the journal, start effects.

A turn folds what arrived, decides for as many pods as fit a time slice, appends all records in one
batch, and starts the effects once the batch is durable. So durability costs one group commit a turn
instead of one a pod, and watches are never delayed for longer than a slice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import anyio
import msgspec
import structlog

from asched.batch.registry import SessionRegistry
from asched.core.held_updates import HeldUpdates
from asched.core.scheduler import Budget, SchedulerCore
from asched.daemon.effects.dispatcher import EffectDispatcher
from asched.daemon.engine.attempt_mark import AttemptMark
from asched.daemon.engine.inbox import Inbox, Reconfiguration
from asched.daemon.engine.journaling import JournalAppender
from asched.daemon.engine.turn_loop import TurnLoop
from asched.daemon.telemetry.engine_observer import EngineObserver
from asched.daemon.telemetry.health import Check
from asched.daemon.telemetry.metrics import Metrics
from asched.daemon.telemetry.scheduler_metrics import AttemptResult
from asched.daemon.telemetry.stopwatch import CycleStopwatch
from asched.framework.runtime.profile import ProfileError
from asched.kube.timing import Clock
from asched.model.quantity import NS_PER_S
from asched.model.resources import Resource, WatchedResource
from asched.state.fold import Fold
from asched.state.group_records import PodGroupAttempted
from asched.state.records import (
    AnyRecord,
    Assigned,
    AttemptFailed,
    BindFailed,
    Bound,
    Decision,
    ExtenderCallRequested,
    LeadershipLost,
    ObjectDeleted,
    PermitAllowed,
    PermitRejected,
    Rejected,
)
from asched.state.session_records import EvictionDecided, PodGroupStatusDecided, SessionExecuted

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


UNREADY_TURN_S = 10.0
"""Duration of a turn after which the daemon is not ready: nothing is decided or recorded."""
SLOW_TURN_S = 30.0
"""Duration of a turn after which it is stuck, unless it waits for the journal."""


class EngineStats(msgspec.Struct):
    """Counts since the start. Only the engine writes them."""

    turns: int = 0
    """Turns that were committed."""
    records: int = 0
    assigned: int = 0
    bound: int = 0
    failed: int = 0


class EngineOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How an engine is run."""

    unsynced: frozenset[WatchedResource] = frozenset(Resource)
    """Resources that must be listed before the first decision."""
    slice_s: float = 0.05
    """Time for observing, and again for deciding, before the turn commits."""
    max_effects_in_flight: int = 2_000
    """No decisions while effects for this many pods are in flight."""
    committed: Callable[[int], None] = lambda seq: None
    """Called with the number of the last record of each stored batch."""
    sessions: SessionRegistry | None = None
    """Actions and plugins of batch sessions; by default all installed ones."""
    standby: bool = False
    """Observe and record, and decide nothing until the outcome ``LeadershipGained``."""
    may_decide: Callable[[], bool] = lambda: True
    """Called before each round of decisions: a leader with an expired lease must not decide."""
    stopwatch: CycleStopwatch | None = None
    """Times some of the attempts."""


class Engine(TurnLoop):
    """The loop of a daemon. One per process."""

    def __init__(
        self,
        fold: Fold,
        appender: JournalAppender,
        effects: EffectDispatcher,
        inbox: Inbox,
        clock: Clock,
        metrics: Metrics,
        options: EngineOptions | None = None,
    ) -> None:
        self.stats = EngineStats()
        self._options = options or EngineOptions()
        self._slice_s = self._options.slice_s
        self.effects = effects
        self._metrics = metrics
        self._watch = EngineObserver(
            fold.state, clock.monotonic_ns, metrics.cycles, metrics.scheduling
        )
        core = SchedulerCore(
            fold,
            monotonic_ns=clock.monotonic_ns,
            unsynced=self._options.unsynced,
            sessions=self._options.sessions,
            observer=self._options.stopwatch,
            listener=self,
            standby=self._options.standby,
        )
        super().__init__(core, appender, inbox, clock, metrics.engine)
        # A standby must not continue decisions of an earlier term: another leader may have used
        # the capacity since.
        self._recover = effects.abandon_previous_term if core.standby else effects.resume
        self._appending = False
        """Whether a batch is being appended, or its append failed."""
        self._bound = 0
        """Successful bindings reported in this turn."""
        self._turn_began_ns: int | None = None
        self._plugin_faults_reported = 0
        self.resigned = anyio.Event()
        """Set once the journal holds the loss of leadership."""

    async def turn(self) -> None:
        """Observe, decide, commit, start effects."""
        core = self._core
        self._turn_began_ns = self._clock.monotonic_ns()
        self._begin_turn()
        core.fire_timers(may_decide=self._may_decide())
        with self._watch.turn():
            self._observe_changes()
            self._report_refused()
            self._report_limited()
            core.record_unconfirmed()
            self._observe_outcomes()
            self._inbox.turn_taken(deferred=core.has_unconfirmed)
            decisions = core.decide(self._budget()) if self._decides() else []
        if core.has_records:
            batch = core.take_records()
            self._appending = True
            last_seq = await self._appender.append(batch, core.date_ns)
            self._appending = False
            self._options.committed(last_seq)
            for decision in decisions:
                self.effects.dispatch(decision)
            self._after_commit(batch, last_seq)
        self.stats.bound += self._bound
        self._bound = 0
        self._turn_began_ns = None

    def stop(self) -> None:
        self.effects.engine_waits = True
        self.effects.stop()
        super().stop()

    def limit_turns(self, slice_s: float) -> None:
        """Change the time slice of a turn."""
        self._slice_s = slice_s

    def record_start(self, *records: AnyRecord) -> None:
        """As :class:`TurnLoop`. Raises ProfileError for a missing plugin."""
        super().record_start(*records)
        for profile in self._core.state.profiles.values():
            if profile.missing:
                raise ProfileError(profile.missing)

    def mark_attempts(self, mark: AttemptMark) -> None:
        """Note each attempt, and quarantine the pod of the last two deaths. After
        :meth:`record_start`."""
        quarantined = mark.after_death()
        if quarantined is not None:
            self._core.apply(quarantined)
            log.error(
                "pod quarantined",
                reason="the process died twice while it decided on the pod",
                pod=quarantined.key,
                uid=quarantined.uid,
            )
        self._core.mark_attempts(mark)

    @property
    def journal_error(self) -> str:
        """Why the journal cannot be written; empty while it can."""
        return self._appender.error

    @property
    def held_updates(self) -> HeldUpdates:
        """Updates that are not recorded yet."""
        return self._core.held_updates

    @property
    def received_changes(self) -> int:
        """Number of changes that the watches delivered."""
        return self._inbox.received

    @property
    def folded_changes(self) -> int:
        """Number of these changes that are folded completely."""
        return self._inbox.taken - self._core.listing

    def holds_update(self, resource: WatchedResource, key: str) -> bool:
        """Whether the newest form of an object is held back."""
        return self._core.held_updates.holds(resource, key)

    @property
    def leading(self) -> bool:
        """Whether it decides, apart from lease and caches."""
        return not self._core.standby

    @property
    def drained(self) -> bool:
        waiting = self.effects.in_flight or self._inbox.outcomes or self._core.has_unconfirmed
        return self._stopping and not waiting

    @property
    def all_committed(self) -> bool:
        """Whether the journal holds every record that the state was folded from. False after an
        append was interrupted."""
        return not self._core.has_records and not self._appending

    @property
    def committed_seq(self) -> int:
        """The last record that the journal holds."""
        return self._appender.last_seq

    def checks(self) -> list[Check]:
        return [
            *super().checks(),
            Check("engine-turn", self._slow_turn),
            Check("bindings", self.effects.binding_problem),
        ]

    def is_stuck(self) -> bool:
        """Whether the current turn takes longer than :data:`SLOW_TURN_S` for an unknown reason. A
        turn that waits for the journal does not count: a restart would wait again."""
        return self._turn_s() > SLOW_TURN_S and not self.journal_error

    def _slow_turn(self) -> str:
        turn_s = self._turn_s()
        return (
            "" if turn_s <= UNREADY_TURN_S else f"the engine's turn has taken {turn_s:.0f} s so far"
        )

    def _turn_s(self) -> float:
        """Age of the current turn; 0 between turns."""
        if self._turn_began_ns is None:
            return 0.0
        return (self._clock.monotonic_ns() - self._turn_began_ns) / NS_PER_S

    def _observe_changes(self) -> None:
        core, ends_ns = self._core, self._slice_ends_ns()
        while self._clock.monotonic_ns() < ends_ns:
            if core.listing:  # a long list takes several turns, so that other tasks can run
                self._continue_list()
            elif (change := self._inbox.next_change()) is not None:
                self._watch.observe(change, core.observe)
            else:
                return

    def _report_refused(self) -> None:
        refused = self._core.take_refused()
        if refused:
            self._metrics.engine.pods_refused(len(refused))
            first = refused[0]
            log.warning(
                "pods with a used uid refused",
                pods=len(refused),
                pod=first.key,
                uid=first.uid,
                other=first.other_key,
            )

    def _report_limited(self) -> None:
        if self._core.held_updates:
            for namespace in self._core.held_updates.take_newly_limited():
                log.warning(
                    "updates held back",
                    namespace=namespace,
                    reason="the namespace used up its budget of journal bytes",
                )

    def _continue_list(self) -> None:
        was_waiting = bool(self._core.unsynced)
        self._core.continue_list()
        if not was_waiting or self._core.unsynced or self.synced.is_set():
            return
        self._recover()
        self._mark_synced()

    def _observe_outcomes(self) -> None:
        # Changes come first: the watch has mostly shown a binding before it is answered.
        listing = self._core.listing
        while (outcome := self._inbox.next_outcome(listing=listing)) is not None:
            if isinstance(outcome, Reconfiguration):
                self._reconfigure(outcome)
            else:
                self._bound += isinstance(outcome, Bound)
                self._core.handle_outcome(outcome)

    def _reconfigure(self, change: Reconfiguration) -> None:
        for record in change.records:
            self._core.apply(record)
        self._core.await_lists(change.unsynced)
        change.applied()

    def _decides(self) -> bool:
        core = self._core
        ready = not core.unsynced and not self._stopping and not core.standby
        return ready and self._options.may_decide()

    def _may_decide(self) -> bool:
        too_many = self.effects.load >= self._options.max_effects_in_flight
        self.effects.engine_waits = too_many or self._stopping
        return not too_many and self._decides()

    def _budget(self) -> Budget:
        return Budget(
            self._options.max_effects_in_flight - self.effects.load, self._slice_ends_ns()
        )

    def _slice_ends_ns(self) -> int:
        return self._clock.monotonic_ns() + round(self._slice_s * NS_PER_S)

    def deciding(self, decision: Decision) -> None:
        """As :class:`~asched.core.scheduler.DecisionListener`."""
        self._watch.decided(decision)

    def decided(self, decisions: tuple[Decision, ...], duration_ns: int) -> None:
        """As :class:`~asched.core.scheduler.DecisionListener`."""
        duration_s = duration_ns / NS_PER_S
        self._metrics.scheduling.decided(duration_s)
        for decision in decisions:
            self._count(decision, duration_s)

    def _count(self, decision: Decision, duration_s: float) -> None:
        match decision:
            case Assigned():
                self.stats.assigned += 1  # its attempt is counted when the binding ends
                return
            case PermitAllowed() | ExtenderCallRequested():
                return
            case EvictionDecided() | PodGroupStatusDecided() | PodGroupAttempted():
                return
            case SessionExecuted():
                self._metrics.sessions.executed(decision, self._core.last_session, duration_s)
                return
            case Rejected() | PermitRejected():
                if isinstance(decision, Rejected) and decision.put_off_until_ns:
                    self._metrics.engine.attempt_put_off()
                result = AttemptResult.UNSCHEDULABLE
            case AttemptFailed():
                self.stats.failed += 1
                result = AttemptResult.ERROR
                log.warning("attempt failed", pod=decision.key, error=decision.message)
        profile = self._core.state.pods[decision.key].info.pod.spec.scheduler_name
        self._metrics.scheduling.attempt_ended(result, profile, duration_s)

    def _after_commit(self, batch: list[AnyRecord], last_seq: int) -> None:
        self.stats.records += len(batch)
        self.stats.turns += 1
        for record in batch:
            match record:
                case BindFailed():
                    self.effects.binding_failed(record)
                case ObjectDeleted(kind="Pod"):
                    self.effects.on_pod_deleted(record.key, record.uid)
                case LeadershipLost():
                    self.resigned.set()
        self._report_plugin_faults()
        if self._options.stopwatch is not None:
            self._options.stopwatch.committed(batch, last_seq)
        self._metrics.engine.turned(self._turn_s())

    def _report_plugin_faults(self) -> None:
        calls = self._core.state.reserve_calls
        faults = calls.error_count - self._plugin_faults_reported
        if faults:
            self._plugin_faults_reported = calls.error_count
            last = calls.errors[-1]
            log.error(
                "Reserve plugins raised",
                faults=faults,
                plugin=last.plugin,
                pod=last.pod,
                error=last.error,
            )

    def _unsynced(self) -> Iterable[WatchedResource]:
        return self._core.unsynced

    def _has_work(self) -> bool:
        core = self._core
        return core.listing or (not core.idle and self._may_decide())

    def _next_due_ns(self) -> int | None:
        return self._core.next_timer_ns(may_decide=self._may_decide())
