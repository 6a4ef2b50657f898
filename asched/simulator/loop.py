"""The virtual clock: the real fold and the real decisions, over a simulated cluster.

As in :mod:`asched.daemon.engine.engine` a turn begins with a look at the clock, takes what has arrived, and
decides for the pods that are active; here the clock moves from one thing that is due to the next.
The scheduler itself takes no time unless :class:`Pace` says so. Nothing depends on the wall clock.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

import msgspec

from asched import __version__
from asched.core.scheduler import Budget, SchedulerCore
from asched.framework.runtime.profile import PluginLoader, ProfileError, ProfileSpec
from asched.framework.sessions import SessionSpec
from asched.simulator.trace import EndReason, WorkloadTrace, Run
from asched.simulator.pods import EventQueue, SimulatedPod
from asched.simulator.cluster import SimulatedCluster
from asched.state.cluster import ClusterState
from asched.state.fold import Fold
from asched.state.records import (
    AnyRecord,
    Assigned,
    AttemptFailed,
    Decision,
    EngineStarted,
    ExtenderCallRequested,
    PermitAllowed,
    PermitRejected,
    ProfilesLoaded,
    QueueSettings,
    Rejected,
)
from asched.state.session_records import (
    EvictionDecided,
    PodGroupStatusDecided,
    SessionExecuted,
    SessionsLoaded,
)

_PodDecision = Assigned | Rejected | AttemptFailed | PermitAllowed | PermitRejected

MAX_ATTEMPTS_AT_ONCE = 1_000
"""A pod that is tried more often than this while the clock stands still would be tried for ever."""


class Pace(msgspec.Struct, frozen=True):
    """How long the scheduler and the API server take for things."""

    decision_ns: int = 0
    """From taking up a pod to the decision; the next pod waits for so long."""
    bind_ns: int = 0
    """From a decision to the pod being bound and running."""
    evict_ns: int = 0
    """From a decision to its victims being asked to end."""


class Scheduler(msgspec.Struct, frozen=True):
    """The scheduler that is simulated. Extenders are not part of it: nobody would answer."""

    profiles: tuple[ProfileSpec, ...]
    queue: QueueSettings = QueueSettings()
    seed: int = 0
    pace: Pace = Pace()
    sessions: tuple[SessionSpec, ...] = ()
    """What batch sessions do, for the scheduler names that they serve."""


class Turn(NamedTuple):
    """What was recorded at one time, in the order and the form that a daemon's journal has."""

    now_ns: int
    records: list[AnyRecord]


class SimulationStuckError(Exception):
    """Decisions go round in circles while the clock stands still."""


class Simulation:
    """One run. Take all of :meth:`turns`, then :meth:`result`."""

    def __init__(self, history: WorkloadTrace, scheduler: Scheduler, load: PluginLoader) -> None:
        """``load`` finds the plugins of the profiles. Raises ProfileError where it does not."""
        self.now_ns = history.begin_ns
        self._history = history
        self._next_event = 0
        self._scheduler = scheduler
        self._core = SchedulerCore(Fold(ClusterState(), load))
        self._state = self._core.state
        self._agenda = EventQueue()
        self._tried: set[str] = set()
        """Keys of the pods that were tried in vain since anything last changed but the clock."""
        self._free_ns = history.begin_ns
        """When the scheduler has time for the next decision."""
        self._at_once: Counter[str] = Counter()
        self._world = SimulatedCluster(self._state, self._agenda, self._observe)
        self._begin()

    @property
    def cluster(self) -> ClusterState:
        """What the scheduler knows now. For reading only."""
        return self._state

    @property
    def events_happened(self) -> int:
        """How many events of the history are past."""
        return self._next_event

    def turns(self) -> Iterator[Turn]:
        """Run, turn by turn. The first one tells of the scheduler itself.

        Raises :class:`SimulationStuckError`, and AssertionError where the state contradicts itself.
        """
        yield self._taken()
        while (next_ns := self._next_ns()) is not None:
            self._turn(next_ns)
            yield self._taken()

    def result(self) -> Run:
        """What became of everything so far."""
        end_ns = self._history.end_ns
        return Run(
            self._history.begin_ns,
            self.now_ns if end_ns is None else end_ns,
            self._world.pods(),
            self._world.nodes(),
        )

    # -- the clock ------------------------------------------------------------------------------

    def _begin(self) -> None:
        self._core.begin_turn(self.now_ns)
        self._core.record_turn()
        chosen = self._scheduler
        self._core.apply(EngineStarted(__version__, chosen.seed))
        self._core.apply(ProfilesLoaded(self._scheduler.profiles, self._scheduler.queue))
        if self._scheduler.sessions:
            self._core.apply(SessionsLoaded(self._scheduler.sessions))
        for profile in self._state.profiles.values():
            if profile.missing:
                raise ProfileError(profile.missing)

    def _next_ns(self) -> int | None:
        """When the next turn is due; None where nothing happens any more."""
        end_ns = self._history.end_ns
        due = [ns for ns in (self._agenda.next_ns, self._next_event_ns()) if ns is not None]
        if self._state.queue.head() is not None:
            due.append(self._free_ns)
        due += [max(ns, self._free_ns) for ns in self._decisions_due()]
        timer_ns = self._state.queue.next_timer_ns()
        if timer_ns is not None and not self._settled():
            due.append(timer_ns)
        if not due:
            return None
        next_ns = max(self.now_ns, min(due))
        return None if end_ns is not None and next_ns > end_ns else next_ns

    def _next_event_ns(self) -> int | None:
        events = self._history.events
        return events[self._next_event].at_ns if self._next_event < len(events) else None

    def _decisions_due(self) -> Iterator[int]:
        """When there is something to decide by itself: a permit's time is up, or a session is to be
        held on what changed. One that would only be held because of the time is passed over, as in
        :meth:`_settled`."""
        permit_ns = self._state.permits.next_deadline_ns()
        if permit_ns is not None:
            yield permit_ns
        for profile in self._state.sessions:
            session_ns = profile.due_ns()
            if session_ns is not None and any(profile.changes):
                yield session_ns

    def _settled(self) -> bool:
        """Every pending pod was tried since anything last changed. To try one again would end the
        same way, so timers that would only do that are passed over: a pod that waits for days would
        be tried every five minutes else."""
        queue = self._state.queue
        waiting = len(queue.active) + len(queue.backoff) + len(queue.unschedulable)
        return len(self._tried) >= waiting

    # -- a turn -----------------------------------------------------------------------------------

    def _turn(self, now_ns: int) -> None:
        if now_ns > self.now_ns:
            self._at_once.clear()
        self.now_ns = now_ns
        self._core.begin_turn(now_ns)
        self._core.record_turn()
        while self._happens_by(now_ns):
            pass
        self._decide()

    def _happens_by(self, now_ns: int) -> bool:
        """Let the next thing happen that is due. What ends makes room before anything comes."""
        event_ns, own_ns = self._next_event_ns(), self._agenda.next_ns
        if own_ns is not None and own_ns <= now_ns and (event_ns is None or own_ns <= event_ns):
            self._agenda.act()
        elif event_ns is not None and event_ns <= now_ns:
            self._next_event += 1
            self._world.happen(self._history.events[self._next_event - 1])
        else:
            return False
        return True

    def _decide(self) -> None:
        takes_ns = self._scheduler.pace.decision_ns
        one = Budget(decisions=1)
        while self._free_ns <= self.now_ns and (decisions := self._core.decide(one)):
            if takes_ns:
                self._free_ns = self.now_ns + takes_ns
            for decision in decisions:
                self._follow(decision)

    def _observe(self, record: AnyRecord) -> None:
        self._core.apply(record)
        self._tried.clear()

    def _taken(self) -> Turn:
        return Turn(self.now_ns, self._core.take_records())

    # -- what follows from decisions ----------------------------------------------------------------

    def _follow(self, decision: Decision) -> None:
        decided_ns = self.now_ns + self._scheduler.pace.decision_ns
        match decision:
            case Assigned():
                life = self._life_of(decision)
                self._attempted(life)
                life.assign(decision.node, self.now_ns)
                self._bind_if_due(life, decided_ns)
            case PermitAllowed():
                self._bind_if_due(self._life_of(decision), decided_ns)
            case PermitRejected():
                life = self._life_of(decision)
                life.rejections += 1
                life.message = decision.message
                life.leave(self.now_ns, EndReason.BIND_FAILED)
                self._tried.clear()
            case Rejected():
                self._rejected(self._life_of(decision), decision, decided_ns)
            case AttemptFailed():
                life = self._life_of(decision)
                self._attempted(life)
                life.message = decision.message
                self._tried.add(life.key)
            case EvictionDecided():
                self._tried.clear()
                evict = partial(
                    self._world.preempt, decision.key, decision.uid, decision.preemptor.key
                )
                self._agenda.enter(decided_ns + self._scheduler.pace.evict_ns, evict)
            case PodGroupStatusDecided():
                self._agenda.enter(decided_ns, partial(self._world.write_group, decision))
            case SessionExecuted():
                pass  # what came of it are decisions of their own
            case ExtenderCallRequested():
                raise AssertionError("an extender was asked, and none was configured")

    def _life_of(self, decision: _PodDecision) -> SimulatedPod:
        life = self._world.life(decision.key, decision.uid)
        if life is None:
            raise AssertionError(f"a decision for pod {decision.key}, which is not there")
        return life

    def _attempted(self, life: SimulatedPod) -> None:
        life.attempts += 1
        self._at_once[life.uid] += 1
        if self._at_once[life.uid] > MAX_ATTEMPTS_AT_ONCE:
            raise SimulationStuckError(
                f"pod {life.key} is tried again and again at the same moment; last it was told:"
                f" {life.message or 'assigned'}"
            )

    def _rejected(self, life: SimulatedPod, decision: Rejected, decided_ns: int) -> None:
        self._attempted(life)
        life.rejections += 1
        life.message = decision.message
        nominated = life.nominated if decision.nominated_node is None else decision.nominated_node
        if decision.victims or decision.cleared_nominations or nominated != life.nominated:
            self._tried.clear()
        life.nominated = nominated
        self._tried.add(life.key)
        due_ns = decided_ns + self._scheduler.pace.evict_ns
        for victim in decision.victims:
            evict = partial(self._world.preempt, victim.key, victim.uid, life.key)
            self._agenda.enter(due_ns, evict)

    def _bind_if_due(self, life: SimulatedPod, decided_ns: int) -> None:
        self._tried.clear()
        placement = life.placement
        if placement is not None and life.key not in self._state.waiting:
            bind = partial(self._world.bind, life.key, life.uid, placement.node)
            self._agenda.enter(decided_ns + self._scheduler.pace.bind_ns, bind)


def simulate(
    history: WorkloadTrace,
    scheduler: Scheduler,
    load: PluginLoader,
    progress: Callable[[int], None] = lambda now_ns: None,
) -> Run:
    """The whole run at once; ``progress`` is told the virtual time, turn by turn.

    Raises as :class:`Simulation` and its turns do.
    """
    simulation = Simulation(history, scheduler, load)
    for turn in simulation.turns():
        progress(turn.now_ns)
    return simulation.result()
