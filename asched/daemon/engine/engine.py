"""The engine: it only loops. Decisions are made in the core, effects are carried out elsewhere.

A turn takes what has arrived, folds it, decides for as many pods as fit a time slice, appends all
of it to the journal in one batch, and when that is durable releases the effects. So durability
costs one group commit a turn, not one a pod, and the watches are never starved for longer than a
slice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import anyio
import anyio.lowlevel
import msgspec
import structlog

from asched.batch.registry import SessionRegistry
from asched.core.confirmations import PendingEvictions, UnconfirmedBindings
from asched.core.deciders import AllDeciders
from asched.core.inputs import Change, Deleted, Listed
from asched.daemon.effects.dispatcher import Effects
from asched.daemon.engine.checkpoints import Committed
from asched.daemon.engine.clock import EngineClock, SteadyTime
from asched.daemon.engine.commits import Commits
from asched.daemon.engine.inbox import Inbox, Reconfiguration
from asched.daemon.telemetry.engine_watch import EngineWatch
from asched.daemon.telemetry.health import Check
from asched.daemon.telemetry.metrics import Metrics
from asched.daemon.telemetry.scheduler_metrics import AttemptResult
from asched.daemon.telemetry.stopwatch import CycleStopwatch
from asched.framework.runtime.profile import ProfileError
from asched.model.quantity import NS_PER_S
from asched.model.resources import Resource, WatchedResource
from asched.state.fold import Fold
from asched.state.observe import News, observe_deletion, observe_list, observe_object
from asched.state.records import (
    AnyRecord,
    Assigned,
    AttemptFailed,
    BindFailed,
    Bound,
    Decision,
    ExtenderAsked,
    LeadershipGained,
    LeadershipLost,
    ObjectGone,
    PermitAllowed,
    PermitRejected,
    Rejected,
    TurnStarted,
    VictimEvicted,
)
from asched.state.session_records import EvictionDecided, PodGroupDecided, SessionHeld

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


class EngineLimits(msgspec.Struct, frozen=True):
    """Bounds of one turn."""

    slice_s: float = 0.05
    """How long a turn may go on observing, and again deciding, before it commits."""
    effects_under_way: int = 2_000
    """No more decisions while this many pods have effects that have not ended."""
    least_turn_s: float = 0.005
    """A turn begins no sooner than this after the one before: each costs a commit, however little has
    arrived. What comes after a pause is taken up at once."""


class EngineStats(msgspec.Struct):
    """Counts since the start. Only the engine writes them."""

    turns: int = 0
    records: int = 0
    assigned: int = 0
    bound: int = 0
    rejected: int = 0
    failed: int = 0


class Engine:
    """Owns the loop. One per process."""

    def __init__(
        self,
        fold: Fold,
        commits: Commits,
        effects: Effects,
        inbox: Inbox,
        clock: EngineClock,
        metrics: Metrics,
        *,
        awaited: frozenset[WatchedResource] = frozenset(Resource),
        limits: EngineLimits | None = None,
        committed: Committed = lambda seq: None,
        sessions: SessionRegistry | None = None,
        standby: bool = False,
        permitted: Callable[[], bool] = lambda: True,
        observer: CycleStopwatch | None = None,
    ) -> None:
        """Nothing is decided before each of ``awaited`` was listed once. ``committed`` is told the last
        record of each batch that was stored. ``sessions``: what takes part in batch sessions, by
        default all that is installed.

        On ``standby`` it observes and records, and decides nothing until a ``LeadershipGained`` comes
        through the inbox; with ``LeadershipLost`` that is over again. ``permitted`` is asked before
        each round of decisions: a leader whose lease may end must not decide. ``observer`` watches
        attempts."""
        self.stats = EngineStats()
        self._fold = fold
        self._cluster = fold.state
        self._decider = AllDeciders(fold.state, sessions, observer)
        self._effects = effects
        self._inbox = inbox
        self._clock = clock
        self._time = SteadyTime(clock, fold.state.now_ns)
        self._metrics = metrics
        self._observer = observer
        self._watch = EngineWatch(
            fold.state, clock.monotonic_ns, metrics.cycles, metrics.scheduling
        )
        self._awaited = dict.fromkeys(awaited, 0)
        """Of which generation a list of each has to be at least."""
        self._limits = limits or EngineLimits()
        self._commits = commits
        self._committed = committed
        self._settled = False
        """Whether, as the state is, nothing is to be decided: nothing was folded since that was said."""
        self._batch: list[AnyRecord] = []
        self._appending = False
        """Whether a batch is on its way to the journal, or never got there."""
        self._now_ns = fold.state.now_ns
        self._turn_begun = False
        self._turn_began_ns: int | None = None
        self._stopping = False
        self._confirmed = 0
        """Bindings that the API server answered for in this turn."""
        self._book_faults_reported = 0
        self._evicted = PendingEvictions(fold.state)
        self._unshown = UnconfirmedBindings(fold.state)
        self._listing: Iterator[News] | None = None
        """What is left of a list that did not fit its turn."""
        self._listing_of: tuple[WatchedResource, int] = Resource.PODS, 0
        self._standby = standby
        # What was decided before a standby started is of a term that another leader may have ended.
        self._take_up = effects.disown if standby else effects.resume
        self._permitted = permitted
        self.resigned = anyio.Event()
        """Set once the journal holds that leadership was lost."""
        self.synced = anyio.Event()
        """Set once everything was listed and decisions begin, or could if this were no standby."""

    @property
    def journal_trouble(self) -> str:
        """Why the journal cannot be written now; empty while it can."""
        return self._commits.trouble

    # -- the loop -----------------------------------------------------------------------------

    async def run(self) -> None:
        """Turn after turn, until :meth:`stop` and the end of all effects under way.

        Raises a :class:`~asched.journal.errors.JournalError` where the journal cannot be gone on
        with (a newer writer, damage), and AssertionError where the state contradicts itself.
        """
        while not self.drained:
            begun_ns = self._clock.monotonic_ns()
            await self.turn()
            await self._wait()
            early_s = self._limits.least_turn_s - (self._clock.monotonic_ns() - begun_ns) / NS_PER_S
            if early_s > 0 and not self._stopping:
                await anyio.sleep(early_s)

    def stop(self) -> None:
        """Decide nothing more; end when the effects under way have ended."""
        self._stopping = True
        self._effects.stop()
        self._inbox.wake()

    def depose(self) -> None:
        """Begin nothing more in the cluster, and cancel what plugins do there: leadership was lost."""
        self._effects.depose()

    @property
    def sending(self) -> bool:
        """Whether effects are under way."""
        return bool(self._effects.under_way)

    @property
    def left_in_doubt(self) -> bool:
        """Whether a binding was left by the stop that may still arrive."""
        return self._effects.left_in_doubt

    @property
    def leading(self) -> bool:
        """Whether it decides, as far as it is for the leader to."""
        return not self._standby

    @property
    def drained(self) -> bool:
        """Whether it was stopped and has nothing under way any more."""
        settled = not self._effects.under_way and not self._inbox.outcomes and not self._unshown
        return self._stopping and settled

    @property
    def all_committed(self) -> bool:
        """Whether the journal is known to hold all that the state was made of. An engine that was ended
        amid a commit has folded more."""
        return not self._batch and not self._appending

    def limit_turns(self, slice_s: float) -> None:
        """From now on a turn goes on deciding for ``slice_s`` before it commits."""
        self._limits = msgspec.structs.replace(self._limits, slice_s=slice_s)

    def record_start(self, *records: AnyRecord) -> None:
        """Fold what a start adds to the journal (who we are, our profiles); committed first."""
        self._look_at_the_clock()
        for record in records:
            self._apply(record)
        for profile in self._cluster.profiles.values():
            if profile.missing:
                raise ProfileError(profile.missing)

    async def turn(self) -> None:
        """Observe, decide, commit, release."""
        self._turn_began_ns = self._clock.monotonic_ns()
        self._look_at_the_clock()
        decisions: list[Decision] = []
        with self._watch.turn():
            self._observe()
            if self._decides():
                self._decide(decisions)
        if self._batch:
            batch, self._batch = self._batch, []
            self._appending = True
            last_seq = await self._commits.append(batch, self._now_ns)
            self._appending = False
            self._committed(last_seq)
            self.stats.records += len(batch)
            self.stats.turns += 1
            for decision in decisions:
                self._effects.release(decision)
            self._after_commit(batch)
            if self._observer is not None:
                self._observer.committed(batch, last_seq)
            self._metrics.engine.turned(self._turn_s())
        self.stats.bound += self._confirmed
        self._confirmed = 0
        self._turn_began_ns = None

    def checks(self, slow_turn_s: float) -> list[Check]:
        """What has to be so for it to schedule: caches that were listed, a journal that can be
        written, no turn that takes longer than ``slow_turn_s``."""
        return [
            Check("caches", self._unlisted),
            Check("journal", self._commits.unwritable),
            Check("engine-turn", partial(self._slow_turn, slow_turn_s)),
        ]

    def _unlisted(self) -> str:
        missing = ", ".join(sorted(resource.label for resource in self._awaited))
        return f"not listed yet: {missing}" if missing else ""

    def _slow_turn(self, slow_turn_s: float) -> str:
        turn_s = self._turn_s()
        if turn_s <= slow_turn_s:
            return ""
        return f"the present turn of the engine takes {turn_s:.0f} s already"

    def hangs(self, slow_turn_s: float) -> bool:
        """Whether the present turn takes longer than ``slow_turn_s`` for no reason that is known. One
        that waits for a journal that cannot be written would wait again after a restart."""
        return self._turn_s() > slow_turn_s and not self.journal_trouble

    def _turn_s(self) -> float:
        """How long the present turn takes already; 0 between turns."""
        if self._turn_began_ns is None:
            return 0.0
        return (self._clock.monotonic_ns() - self._turn_began_ns) / NS_PER_S

    # -- a turn's records ---------------------------------------------------------------------

    def _look_at_the_clock(self) -> None:
        self._now_ns = self._time.now_ns()
        self._turn_begun = False
        due_ns = self._next_timer_ns()
        if due_ns is not None and due_ns <= self._now_ns:
            self._begin()

    def _begin(self) -> None:
        """The clock goes into the journal before the first record that depends on it."""
        if not self._turn_begun:
            self._turn_begun = True
            self._apply(TurnStarted(self._now_ns))

    def _apply(self, record: AnyRecord) -> None:
        if not self._turn_begun:
            self._begin()
        if (report := self._evicted.told_before(record)) is not None:
            self._apply(report)
        self._fold.apply(record)
        self._settled = False
        self._batch.append(record)

    # -- observing ----------------------------------------------------------------------------

    def _observe(self) -> None:
        # In this order a binding is mostly seen before it is answered.
        self._observe_changes()
        self._record_unshown()
        amid_list = self._listing is not None
        while (outcome := self._inbox.next_outcome(amid_list=amid_list)) is not None:
            if isinstance(outcome, Reconfiguration):
                self._reconfigure(outcome)
                continue
            if isinstance(outcome, Bound):
                self._confirmed += 1
                self._unshown.answered(outcome)
                continue
            if isinstance(outcome, VictimEvicted):
                if self._evicted.holds(outcome):
                    continue
                outcome = self._evicted.as_it_stands(outcome)
            elif isinstance(outcome, LeadershipGained | LeadershipLost):
                self._record_unshown()
                self._standby = isinstance(outcome, LeadershipLost)
            self._apply(outcome)

    def _record_unshown(self) -> None:
        for answer in self._unshown.overdue():
            self._apply(answer)

    def _reconfigure(self, change: Reconfiguration) -> None:
        for record in change.records:
            self._apply(record)
        self._awaited |= change.awaited
        change.taken_up()

    def _observe_changes(self) -> None:
        ends_ns = self._clock.monotonic_ns() + round(self._limits.slice_s * NS_PER_S)
        while self._clock.monotonic_ns() < ends_ns:
            if self._listing is None:
                change = self._inbox.next_change()
                if change is None:
                    return
                self._watch.observe(change, self._observe_change)
                continue
            # A long list takes as many turns as it needs: other tasks have to live meanwhile.
            news = next(self._listing, None)
            if news is not None:
                self._apply(news)
                continue
            self._listing = None
            self._listed(*self._listing_of)

    def _observe_change(self, change: Change) -> None:
        if isinstance(change, Listed):
            self._listing_of = change.resource, change.generation
            self._listing = observe_list(
                self._cluster, change.resource, change.objects, change.unreadable
            )
            return
        if isinstance(change, Deleted):
            record: AnyRecord | None = observe_deletion(self._cluster, change.object)
        else:
            record = observe_object(self._cluster, change.object)
        if record is not None:
            self._apply(record)

    def _listed(self, resource: WatchedResource, generation: int) -> None:
        least = self._awaited.get(resource)
        if least is None or generation < least:
            return
        del self._awaited[resource]
        if not self._awaited and not self.synced.is_set():
            log.info(
                "caches synced", nodes=self._cluster.nodes.cluster_size,
                pods=len(self._cluster.pods), pending=len(self._cluster.queue),
            )  # fmt: skip
            self._take_up()
            self.synced.set()

    # -- deciding -----------------------------------------------------------------------------

    def _decide(self, decisions: list[Decision]) -> None:
        room = self._limits.effects_under_way - self._effects.load
        if room <= 0 or not self._something_to_decide():
            return
        ends_ns = self._clock.monotonic_ns() + round(self._limits.slice_s * NS_PER_S)
        self._begin()  # a decision is made at the time that is recorded before it
        now_ns = self._clock.monotonic_ns()
        while len(decisions) < room and now_ns < ends_ns:
            began_ns = now_ns
            next_decisions = self._decider.next()
            if not next_decisions:
                self._settled = True
                return
            for decision in next_decisions:
                self._watch.decided(decision)
                self._apply(decision)
            now_ns = self._clock.monotonic_ns()
            duration_s = (now_ns - began_ns) / NS_PER_S
            self._metrics.scheduling.decided(duration_s)
            for decision in next_decisions:
                self._count(decision, duration_s)
            decisions.extend(next_decisions)

    def _something_to_decide(self) -> bool:
        """Whether a decision may follow now. What plugins say of held pods from asynchronous code is in
        no record, and a session or a permit may have fallen due while nothing could be decided, when
        the look at the clock passed it over."""
        if not self._settled or self._cluster.permits.answers:
            return True
        due_ns = self._decider.next_timer_ns()
        return due_ns is not None and due_ns <= self._now_ns

    def _count(self, decision: Decision, duration_s: float) -> None:
        match decision:
            case Assigned():
                self.stats.assigned += 1  # as an attempt it counts when the binding has ended
                return
            case PermitAllowed() | ExtenderAsked() | EvictionDecided() | PodGroupDecided():
                return
            case SessionHeld():
                self._metrics.sessions.held(decision, self._decider.last_session, duration_s)
                return
            case Rejected() | PermitRejected():
                self.stats.rejected += 1
                result = AttemptResult.UNSCHEDULABLE
            case AttemptFailed():
                self.stats.failed += 1
                result = AttemptResult.ERROR
                log.warning("attempt failed", pod=decision.key, error=decision.message)
        profile = self._cluster.pods[decision.key].info.pod.spec.scheduler_name
        self._metrics.scheduling.attempt_ended(result, profile, duration_s)

    # -- after a commit -------------------------------------------------------------------------

    def _after_commit(self, batch: list[AnyRecord]) -> None:
        for record in batch:
            match record:
                case BindFailed():
                    self._effects.binding_failed(record)
                case ObjectGone(kind="Pod"):
                    self._effects.forget(record.key, record.uid)
                case LeadershipLost():
                    self.resigned.set()
        self._report_book_faults()

    def _report_book_faults(self) -> None:
        books = self._cluster.books
        new = books.fault_count - self._book_faults_reported
        if new:
            self._book_faults_reported = books.fault_count
            last = books.faults[-1]
            log.error("plugins raised keeping their books, which may be wrong now", faults=new,
                      plugin=last.plugin, pod=last.pod, error=last.what)  # fmt: skip

    # -- waiting ------------------------------------------------------------------------------

    def _next_timer_ns(self) -> int | None:
        """When the next thing falls due by itself."""
        times = []
        queue_ns = self._cluster.queue.next_timer_ns()
        if queue_ns is not None:
            times.append(queue_ns)
        if self._may_decide():
            # Only a decision ends a permit's time, or holds a session: one that is overdue
            # meanwhile is no reason to take turn after turn.
            decision_ns = self._decider.next_timer_ns()
            if decision_ns is not None:
                times.append(decision_ns)
        return min(times, default=None)

    def _decides(self) -> bool:
        return not self._awaited and not self._stopping and not self._standby and self._permitted()

    def _may_decide(self) -> bool:
        return self._decides() and self._effects.load < self._limits.effects_under_way

    async def _wait(self) -> None:
        """Until there is something to do. Always lets other tasks run first."""
        await anyio.lowlevel.checkpoint()
        if len(self._inbox) or self._listing is not None or self._unshown or self.drained:
            return
        if self._may_decide() and not self._settled:
            return
        due_ns = self._next_timer_ns()
        if due_ns is None or self._stopping:
            await self._inbox.wait()
            return
        pause_s = max(0.0, (due_ns - self._time.now_ns()) / NS_PER_S)
        with anyio.move_on_after(pause_s):
            await self._inbox.wait()
