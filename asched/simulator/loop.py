"""Discrete-event simulation: the real scheduler core on a simulated cluster and a virtual clock.

A turn is the same as in :mod:`asched.daemon.engine.engine`, but the clock advances from one due
event to the next. The scheduler takes no time unless :class:`Latencies` says so. Nothing depends on
the wall clock.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

import msgspec

from asched import __version__
from asched.config.file import Configuration
from asched.config.resolve import without_ignored_resources
from asched.core.scheduler import Budget, SchedulerCore
from asched.framework.feature_gates import DEFAULT_FEATURE_GATES, FeatureGates
from asched.framework.runtime.profile import (
    PluginLoader,
    ProfileError,
    ProfileSpec,
    evaluate_in_process,
)
from asched.framework.sessions import SessionSpec
from asched.simulator.cluster import SimulatedCluster
from asched.simulator.pods import EventQueue, SimulatedPod
from asched.simulator.trace import EndReason, WorkloadRun, WorkloadTrace
from asched.state.cluster import ClusterState
from asched.state.fold import Fold
from asched.state.group_records import PodGroupAttempted
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

MAX_ATTEMPTS_PER_INSTANT = 1_000
"""A pod with more attempts than this at one virtual time is in an endless loop."""


class Latencies(msgspec.Struct, frozen=True):
    """How long the scheduler and the API server take."""

    decision_ns: int = 0
    """Time of one decision; the next one starts after it."""
    bind_ns: int = 0
    """From a decision until the pod is bound and running."""
    evict_ns: int = 0
    """From a decision until its victims are deleted."""


class SchedulerSettings(msgspec.Struct, frozen=True):
    """The simulated scheduler. Extenders are not simulated."""

    profiles: tuple[ProfileSpec, ...]
    queue: QueueSettings = QueueSettings()
    seed: int = 0
    latencies: Latencies = Latencies()
    sessions: tuple[SessionSpec, ...] = ()
    feature_gates: FeatureGates = DEFAULT_FEATURE_GATES


def scheduler_from_config(configuration: Configuration, latencies: Latencies) -> SchedulerSettings:
    """The scheduler of a daemon with this configuration, without extenders."""
    scheduler, engine = configuration.scheduler, configuration.settings.engine
    profiles = without_ignored_resources(configuration.profiles, scheduler.extenders)
    return SchedulerSettings(
        profiles=evaluate_in_process(profiles),
        sessions=configuration.sessions,
        queue=QueueSettings(
            scheduler.pod_initial_backoff_seconds,
            scheduler.pod_max_backoff_seconds,
            engine.unschedulable_flush_interval.total_seconds(),
        ),
        seed=engine.seed,
        latencies=latencies,
        feature_gates=configuration.feature_gates,
    )


class Turn(NamedTuple):
    """The records of one virtual time, as in the journal of a daemon."""

    now_ns: int
    records: list[AnyRecord]


class SimulationStuckError(Exception):
    """Decisions repeat endlessly at one virtual time."""


class Simulation:
    """One run: exhaust :meth:`turns`, then call :meth:`result`."""

    def __init__(
        self, trace: WorkloadTrace, scheduler: SchedulerSettings, load: PluginLoader
    ) -> None:
        """``load`` finds the plugins of the profiles. Raises ProfileError for a missing plugin."""
        self.now_ns = trace.begin_ns
        self._trace = trace
        self._next_event = 0
        self._scheduler = scheduler
        self._core = SchedulerCore(Fold(ClusterState(), load))
        self.cluster: ClusterState = self._core.state
        """State of the scheduler. Read-only."""
        self._events = EventQueue()
        self._rejected: set[str] = set()
        """Keys of the pods rejected since the last change of the cluster."""
        self._closings = 0
        """How often a circuit breaker closed since ``_rejected`` last changed."""
        self._free_ns = trace.begin_ns
        """When the scheduler is free for the next decision."""
        self._attempts_now: Counter[str] = Counter()
        self._simulated = SimulatedCluster(self.cluster, self._events, self._observe)
        self._simulated.claims.templates = {t.key: t for t in trace.claim_templates}
        self._begin()

    @property
    def events_applied(self) -> int:
        """Number of events of the trace that are past."""
        return self._next_event

    def turns(self) -> Iterator[Turn]:
        """Run turn by turn. The first turn records the scheduler itself.

        Raises :class:`SimulationStuckError`, and AssertionError if the state contradicts itself.
        """
        yield self._take_turn()
        while (next_ns := self._next_ns()) is not None:
            self._turn(next_ns)
            yield self._take_turn()

    def result(self) -> WorkloadRun:
        end_ns = self._trace.end_ns
        return WorkloadRun(
            self._trace.begin_ns,
            self.now_ns if end_ns is None else end_ns,
            self._simulated.pods(),
            self._simulated.nodes(),
        )

    def _begin(self) -> None:
        self._core.begin_turn(self.now_ns)
        self._core.record_turn()
        self._core.apply(EngineStarted(__version__, self._scheduler.seed))
        scheduler = self._scheduler
        self._core.apply(
            ProfilesLoaded(
                scheduler.profiles, scheduler.queue, feature_gates=scheduler.feature_gates
            )
        )
        if self._scheduler.sessions:
            self._core.apply(SessionsLoaded(self._scheduler.sessions))
        for profile in self.cluster.profiles.values():
            if profile.missing:
                raise ProfileError(profile.missing)

    def _next_ns(self) -> int | None:
        """Time of the next turn; None at the end of the simulation."""
        end_ns = self._trace.end_ns
        due = [ns for ns in (self._events.next_ns, self._next_event_ns()) if ns is not None]
        if self.cluster.queue.head() is not None:
            due.append(self._free_ns)
        due += [max(ns, self._free_ns) for ns in self._decisions_due()]
        timer_ns = self.cluster.queue.next_timer_ns()
        if timer_ns is not None and not self._all_rejected_since_change():
            due.append(timer_ns)
        if not due:
            return None
        next_ns = max(self.now_ns, min(due))
        return None if end_ns is not None and next_ns > end_ns else next_ns

    def _next_event_ns(self) -> int | None:
        events = self._trace.events
        return events[self._next_event].at_ns if self._next_event < len(events) else None

    def _decisions_due(self) -> Iterator[int]:
        """Deadlines of decisions without an event: Permit, batch sessions and circuit breakers.

        A session without a change is skipped, as in :meth:`_all_rejected_since_change`.
        """
        permit_ns = self.cluster.waiting_pods.next_deadline_ns()
        if permit_ns is not None:
            yield permit_ns
        for profile in self.cluster.sessions:
            session_ns = profile.due_ns()
            if session_ns is not None and profile.changed:
                yield session_ns
        circuit_ns = self.cluster.guards.circuits.next_timer_ns()
        if circuit_ns is not None and not self._all_rejected_since_change():
            yield circuit_ns

    def _all_rejected_since_change(self) -> bool:
        """Whether every pending pod was rejected since the last change.

        Another attempt would have the same result, so the timers of retries are skipped. A
        rejection by an open circuit breaker does not count, unless a pod that was rejected before
        opens it again each time.
        """
        queue = self.cluster.queue
        waiting = len(queue.active) + len(queue.backoff) + len(queue.unschedulable)
        return len(self._rejected) >= waiting or self._closings > waiting

    def _mark_rejected(self, pod: SimulatedPod) -> None:
        if pod.key not in self._rejected:
            self._rejected.add(pod.key)
            self._closings = 0

    def _reconsider_rejected(self) -> None:
        """The cluster changed: pending pods may get another result."""
        self._rejected.clear()
        self._closings = 0

    def _turn(self, now_ns: int) -> None:
        if now_ns > self.now_ns:
            self._attempts_now.clear()
        self.now_ns = now_ns
        circuit_ns = self.cluster.guards.circuits.next_timer_ns()
        if circuit_ns is not None and circuit_ns <= now_ns:
            self._closings += 1
        self._core.begin_turn(now_ns)
        self._core.record_turn()
        while self._apply_next(now_ns):
            pass
        self._decide()

    def _apply_next(self, now_ns: int) -> bool:
        """Apply the next due event.

        Events of the simulated cluster precede those of the trace: a pod that ends frees its node
        first.
        """
        event_ns, cluster_ns = self._next_event_ns(), self._events.next_ns
        if (
            cluster_ns is not None
            and cluster_ns <= now_ns
            and (event_ns is None or cluster_ns <= event_ns)
        ):
            self._events.run_next()
        elif event_ns is not None and event_ns <= now_ns:
            self._next_event += 1
            self._simulated.apply(self._trace.events[self._next_event - 1])
        else:
            return False
        return True

    def _decide(self) -> None:
        takes_ns = self._scheduler.latencies.decision_ns
        one = Budget(decisions=1)
        while self._free_ns <= self.now_ns and (decisions := self._core.decide(one)):
            if takes_ns:
                self._free_ns = self.now_ns + takes_ns
            for decision in decisions:
                self._carry_out(decision)

    def _observe(self, record: AnyRecord) -> None:
        self._core.apply(record)
        self._reconsider_rejected()

    def _take_turn(self) -> Turn:
        return Turn(self.now_ns, self._core.take_records())

    # -- effects of decisions -------------------------------------------------------------------

    def _carry_out(self, decision: Decision) -> None:
        decided_ns = self.now_ns + self._scheduler.latencies.decision_ns
        match decision:
            case Assigned():
                pod = self._pod_of(decision)
                self._count_attempt(pod)
                pod.assign(decision.node, self.now_ns)
                self._bind_if_due(pod, decided_ns)
            case PermitAllowed():
                self._bind_if_due(self._pod_of(decision), decided_ns)
            case PermitRejected():
                pod = self._pod_of(decision)
                pod.rejections += 1
                pod.message = decision.message
                pod.release(self.now_ns, EndReason.BIND_FAILED)
                self._reconsider_rejected()
            case Rejected():
                self._reject(self._pod_of(decision), decision, decided_ns)
            case AttemptFailed():
                pod = self._pod_of(decision)
                self._count_attempt(pod)
                pod.message = decision.message
                self._mark_rejected(pod)
            case EvictionDecided():
                self._reconsider_rejected()
                evict = partial(
                    self._simulated.preempt, decision.key, decision.uid, decision.preemptor.key
                )
                self._events.schedule(decided_ns + self._scheduler.latencies.evict_ns, evict)
            case PodGroupStatusDecided():
                self._events.schedule(decided_ns, partial(self._simulated.write_group, decision))
            case SessionExecuted() | PodGroupAttempted():
                pass  # its results are decisions of their own
            case ExtenderCallRequested():
                raise AssertionError("an extender call without a configured extender")

    def _pod_of(self, decision: _PodDecision) -> SimulatedPod:
        pod = self._simulated.pod(decision.key, decision.uid)
        if pod is None:
            raise AssertionError(f"a decision for pod {decision.key}, which does not exist")
        return pod

    def _count_attempt(self, pod: SimulatedPod) -> None:
        pod.attempts += 1
        self._attempts_now[pod.uid] += 1
        if self._attempts_now[pod.uid] > MAX_ATTEMPTS_PER_INSTANT:
            raise SimulationStuckError(
                f"pod {pod.key}: more than {MAX_ATTEMPTS_PER_INSTANT} attempts at one time;"
                f" the last result: {pod.message or 'assigned'}"
            )

    def _reject(self, pod: SimulatedPod, decision: Rejected, decided_ns: int) -> None:
        self._count_attempt(pod)
        pod.rejections += 1
        pod.message = decision.message
        nominated = pod.nominated if decision.nominated_node is None else decision.nominated_node
        if decision.victims or decision.cleared_nominations or nominated != pod.nominated:
            self._reconsider_rejected()
        pod.nominated = nominated
        if not decision.open_circuit:
            self._mark_rejected(pod)
        due_ns = decided_ns + self._scheduler.latencies.evict_ns
        for victim in decision.victims:
            evict = partial(self._simulated.preempt, victim.key, victim.uid, pod.key)
            self._events.schedule(due_ns, evict)
        released = decision.released_claim
        if released is not None:
            self._reconsider_rejected()
            end = partial(self._simulated.claims.end_release, decision, released)
            self._events.schedule(due_ns, lambda _at_ns: end())

    def _bind_if_due(self, pod: SimulatedPod, decided_ns: int) -> None:
        self._reconsider_rejected()
        placement = pod.placement
        if placement is not None and pod.key not in self.cluster.waiting:
            bind = partial(self._simulated.bind, pod.key, pod.uid, placement.node)
            self._events.schedule(decided_ns + self._scheduler.latencies.bind_ns, bind)


def simulate(
    trace: WorkloadTrace,
    scheduler: SchedulerSettings,
    load: PluginLoader,
    progress: Callable[[int], None] = lambda now_ns: None,
) -> WorkloadRun:
    """Run to the end; ``progress`` receives the virtual time of each turn.

    Raises as :class:`Simulation` and its turns do.
    """
    simulation = Simulation(trace, scheduler, load)
    for turn in simulation.turns():
        progress(turn.now_ns)
    return simulation.result()
