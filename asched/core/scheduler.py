"""The scheduler as a state machine without I/O, as ``distributed.worker_state_machine`` of Dask."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final, NamedTuple, Protocol

from asched.batch.decide import SessionDecider
from asched.batch.registry import SessionRegistry
from asched.core.confirmations import PendingEvictions, UnconfirmedBindings
from asched.core.held_updates import UPDATES, HeldUpdates
from asched.core.inputs import Change, Listed, Outcome, Upserted
from asched.cycle.decide import AttemptMarker, AttemptObserver, Decider
from asched.framework.sessions import SessionOutcome
from asched.group_cycle.decide import GroupDecider
from asched.model.resources import Resource, WatchedResource
from asched.state import records as r
from asched.state.cluster import ClusterState
from asched.state.observe import (
    ListedChange,
    RefusedPod,
    UnlistedObjects,
    observe_deletion,
    observe_list,
    observe_object,
)


class RecordFold(Protocol):
    """Applies records to a state."""

    @property
    def state(self) -> ClusterState: ...

    def apply(self, record: r.AnyRecord) -> object: ...


class DecisionListener(Protocol):
    """Receives decisions for metrics. Must not change the state."""

    def deciding(self, decision: r.Decision) -> None:
        """The decision is about to be folded."""

    def decided(self, decisions: tuple[r.Decision, ...], duration_ns: int) -> None:
        """The decisions of one round were folded; deciding and folding took ``duration_ns``."""


class Budget(NamedTuple):
    """Limits of one :meth:`SchedulerCore.decide`."""

    decisions: int
    """No new round starts after this many decisions."""
    deadline_ns: int = 2**63
    """No new round starts after this time of the core's monotonic clock."""


LIST_STEP: Final = 4
"""Objects of a list that are folded at once. A pod takes 20 us."""


class SchedulerCore:
    """One scheduler. Not thread-safe; the driver calls it from one task.

    A turn is :meth:`begin_turn`, then any number of :meth:`observe`, :meth:`handle_outcome` and
    :meth:`decide`, then :meth:`take_records`. The driver appends these records to the journal and
    carries out the decisions among them afterwards.
    """

    def __init__(
        self,
        fold: RecordFold,
        *,
        monotonic_ns: Callable[[], int] = lambda: 0,
        unsynced: Iterable[WatchedResource] = (),
        sessions: SessionRegistry | None = None,
        observer: AttemptObserver | None = None,
        listener: DecisionListener | None = None,
        standby: bool = False,
    ) -> None:
        """``unsynced``: resources that must be listed before the first decision. ``sessions``:
        actions and plugins of batch sessions, by default all installed ones. ``observer`` times
        attempts. A ``standby`` decides nothing until the outcome ``LeadershipGained``."""
        self.state = fold.state
        self.now_ns = fold.state.now_ns
        """Time of the turn."""
        self.standby = standby
        self.idle = False
        """Whether there is nothing to decide until something else is folded."""
        self.unsynced: dict[WatchedResource, int] = dict.fromkeys(unsynced, 0)
        """Resources to be listed before a decision, with the least relist count of that list."""
        self._fold = fold
        self._seen = fold.state.seen
        self._monotonic_ns = monotonic_ns
        self._listener = listener
        self._pod_decider = Decider(fold.state, observer)
        self._pod_decider.groups = GroupDecider(fold.state, self._pod_decider.cache)
        source = SessionRegistry.discover if sessions is None else lambda: sessions
        self._session_decider = SessionDecider(fold.state, source)
        self._pending_evictions = PendingEvictions(fold.state)
        self._victims = fold.state.evictions.by_victim
        self._unconfirmed_bindings = UnconfirmedBindings(fold.state)
        self._listing: _Listing | None = None
        self._unlisted: dict[WatchedResource, UnlistedObjects] = {}
        """Of lists that are not complete yet."""
        self.held_updates = HeldUpdates(fold.state)
        self._refused: list[RefusedPod] = []
        self._refuse = self._refused.append
        self._records: list[r.AnyRecord] = []
        self._turn_recorded = False
        self.state.follow_pods()

    def mark_attempts(self, marker: AttemptMarker) -> None:
        """Note each attempt before it begins. The note remains if the process dies in it."""
        self._pod_decider.marker = marker

    # -- a turn -------------------------------------------------------------------------------

    def begin_turn(self, now_ns: int) -> None:
        """Start a turn at ``now_ns``, which must not be before the last turn."""
        self.now_ns = now_ns
        self._turn_recorded = False

    def step_clock(self, offset_ns: int) -> None:
        """Record the offset of dates from turn times if it changed."""
        if offset_ns != self.state.engine.clock_offset_ns:
            self.apply(r.ClockStepped(offset_ns))

    @property
    def date_ns(self) -> int:
        """Date of the turn: nanoseconds since the epoch by the wall clock, as far as it was
        right."""
        return self.now_ns + self.state.engine.clock_offset_ns

    def fire_timers(self, *, may_decide: bool) -> None:
        """Record the turn if a timer is due, so that folding it ends backoffs and timeouts, and the
        updates for which their namespaces have budget again."""
        due_ns = self.next_timer_ns(may_decide=may_decide)
        if due_ns is not None and due_ns <= self.now_ns:
            self.record_turn()
        if self.held_updates:
            for change in self.held_updates.take_due(self.now_ns):
                self._record_held(change)

    def record_turn(self) -> None:
        """Record the clock of the turn, once. Records depend on it, so it precedes the first."""
        if not self._turn_recorded:
            self._turn_recorded = True
            self.apply(r.TurnStarted(self.now_ns))
            self.state.follow_pods()

    def apply(self, record: r.AnyRecord) -> None:
        """Fold a record and add it to the records of the turn."""
        if not self._turn_recorded:
            self.record_turn()
        if (
            self._victims or self._pending_evictions.accepted
        ):  # a test without a call, for each record
            report = self._pending_evictions.due_before(record)
            if report is not None:
                self.apply(report)
        self._fold.apply(record)
        self.idle = False
        self._records.append(record)

    def replay(self, record: r.AnyRecord) -> None:
        """Fold a record that the journal holds."""
        self._fold.apply(record)
        self.idle = False

    @property
    def has_records(self) -> bool:
        return bool(self._records)

    def take_records(self) -> list[r.AnyRecord]:
        """Remove and return the records since the last call, in order."""
        records, self._records = self._records, []
        return records

    # -- input --------------------------------------------------------------------------------

    @property
    def listing(self) -> bool:
        """Whether part of a list is still to be folded by :meth:`continue_list`."""
        return self._listing is not None

    def observe(self, change: Change) -> None:
        """Fold what a change of the cluster means for scheduling. A change that no decision depends
        on leaves no record. After a list, or a part of one, call :meth:`continue_list` until
        :attr:`listing` ends."""
        if isinstance(change, Listed):
            self._observe_list(change)
            return
        if isinstance(change, Upserted):
            self._observe_upserted(change)
            return
        if self.held_updates.by_namespace:
            self.held_updates.discard(change.resource, change.object.key)
        record = observe_deletion(self.state, change.object)
        if record is not None:
            self.apply(record)

    def _observe_list(self, change: Listed) -> None:
        resource = change.resource
        if change.begins:
            self.held_updates.discard_all(resource)
            self._unlisted[resource] = UnlistedObjects(self.state, resource)
        unlisted = self._unlisted.pop(resource) if change.ends else self._unlisted[resource]
        changes = observe_list(
            self.state,
            resource,
            change.objects,
            change.unreadable,
            self._refuse,
            api_version=change.api_version,
            unlisted=unlisted,
            ends=change.ends,
            versions=change.versions,
            unchanged=change.unchanged,
        )
        self._listing = _Listing(resource, change.relist_count, changes, change.ends)

    def _observe_upserted(self, change: Upserted) -> None:
        record = observe_object(self.state, change.object, self._refuse)
        held = self.held_updates
        if (
            record is not None
            and type(record) in UPDATES
            and held.defer(change, record, self.now_ns)
        ):
            return
        if held.by_namespace:
            held.discard(change.resource, change.object.key)
        if record is not None:
            self.apply(record)
        self._seen.note(change.object, change.version)

    def _record_held(self, change: Upserted) -> None:
        record = observe_object(self.state, change.object, self._refuse)
        if record is not None:
            self.held_updates.charge(change.object.namespace, record, self.now_ns)
            self.apply(record)
        self._seen.note(change.object, change.version)

    def _observe_head(self) -> None:
        """Record the held form of the pod that is decided next."""
        while self.held_updates:
            head = self.state.queue.head()
            held = head and self.held_updates.discard(Resource.PODS, head.info.key)
            if not held:
                return
            self._record_held(held)

    def continue_list(self) -> None:
        """Fold the next objects of a list. Long lists are spread over several turns."""
        if self._listing is None:
            return
        changes = self._listing.changes
        for _ in range(LIST_STEP):
            record = next(changes, None)
            if record is None:
                break
            self.apply(record)
        else:
            return
        resource, relist_count, _, ends = self._listing
        self._listing = None
        if ends:
            self.mark_listed(resource, relist_count)

    def take_refused(self) -> list[RefusedPod]:
        """Remove and return the pods that were not recorded since the last call."""
        refused = self._refused[:]
        self._refused.clear()
        return refused

    def mark_listed(self, resource: WatchedResource, relist_count: int = 0) -> None:
        """Note that a list of the resource was folded."""
        least = self.unsynced.get(resource)
        if least is not None and relist_count >= least:
            del self.unsynced[resource]

    def await_lists(self, relist_counts: Mapping[WatchedResource, int]) -> None:
        """Decide nothing until each resource is listed with at least this relist count."""
        self.unsynced |= relist_counts

    def handle_outcome(self, outcome: Outcome) -> None:
        """Fold the outcome of an effect. Bindings and evictions wait for the watch to confirm
        them."""
        if isinstance(outcome, r.Bound):
            self._unconfirmed_bindings.add(outcome)
            return
        if isinstance(outcome, r.EvictionSucceeded):
            if self._pending_evictions.hold(outcome):
                return
            outcome = self._pending_evictions.with_unplaced_flag(outcome)
        elif isinstance(outcome, r.LeadershipGained | r.LeadershipLost):
            self.record_unconfirmed()
            self.standby = isinstance(outcome, r.LeadershipLost)
        self.apply(outcome)

    @property
    def has_unconfirmed(self) -> bool:
        """Whether bindings wait for :meth:`record_unconfirmed`."""
        return bool(self._unconfirmed_bindings)

    def record_unconfirmed(self) -> None:
        """Record the bindings that the watch has not confirmed since their answer."""
        for bound in self._unconfirmed_bindings.take():
            self.apply(bound)

    # -- decisions ----------------------------------------------------------------------------

    def propose(self) -> tuple[r.Decision, ...]:
        """The next decisions, empty if there is nothing to decide now. Fold all of them before the
        next call. A batch session that is due precedes pods: it is short, and a backlog of pods
        would delay it."""
        if self.state.sessions and (decisions := self._session_decider.next()):
            return decisions
        return self._pod_decider.next()

    def decide(self, budget: Budget) -> list[r.Decision]:
        """Decide and fold until nothing is left to decide or the budget is used up. Decides nothing
        on standby, or while resources are unsynced."""
        made: list[r.Decision] = []
        if self.unsynced or self.standby or budget.decisions <= 0:
            return made
        if not self._may_have_decisions():
            return made
        self.record_turn()
        now_ns = self._monotonic_ns()
        while len(made) < budget.decisions and now_ns < budget.deadline_ns:
            if self.held_updates.by_namespace:
                self._observe_head()
            decisions, began_ns = self.propose(), now_ns
            if not decisions:
                self.idle = True
                break
            for decision in decisions:
                if self._listener is not None:
                    self._listener.deciding(decision)
                self.apply(decision)
            now_ns = self._monotonic_ns()
            if self._listener is not None:
                self._listener.decided(decisions, now_ns - began_ns)
            made.extend(decisions)
        return made

    def _may_have_decisions(self) -> bool:
        """False if :meth:`propose` returned nothing and nothing changed since.

        Two changes leave no record: asynchronous answers of Permit plugins, and deadlines that
        passed while nothing could be decided.
        """
        if not self.idle or self.state.waiting_pods.answers:
            return True
        due_ns = self.next_decision_ns()
        return due_ns is not None and due_ns <= self.now_ns

    def next_decision_ns(self) -> int | None:
        """Deadline of the next decision that needs no input (nanoseconds since the epoch): a Permit
        timeout, a batch session, a circuit breaker, or the condition of a gated PodGroup."""
        state = self.state
        return _earliest(
            state.waiting_pods.next_deadline_ns(),
            state.sessions.next_timer_ns(),
            state.guards.circuits.next_timer_ns(),
            self._pod_decider.gated.next_due_ns(),
        )

    def next_timer_ns(self, *, may_decide: bool = True) -> int | None:
        """Deadline of the next turn that needs no input. Without ``may_decide``, deadlines that
        only a decision can end are left out: they would cause one turn after the other."""
        return _earliest(
            self.state.queue.next_timer_ns(),
            self.state.reserve_calls.next_timer_ns(),
            self.held_updates.next_due_ns() if self.held_updates.by_namespace else None,
            self.next_decision_ns() if may_decide else None,
        )

    @property
    def last_session(self) -> SessionOutcome | None:
        """Outcome of the last batch session; for metrics."""
        return self._session_decider.last


def _earliest(*deadlines: int | None) -> int | None:
    first: int | None = None
    for due_ns in deadlines:
        if due_ns is not None and (first is None or due_ns < first):
            first = due_ns
    return first


class _Listing(NamedTuple):
    """A list, or a part of one, that is being folded."""

    resource: WatchedResource
    relist_count: int
    changes: Iterator[ListedChange]
    ends: bool
