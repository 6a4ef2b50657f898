"""The scheduling queue: pods that wait to be scheduled.

    added -> PreEnqueue -+-> gated ----------(own event)--------+
                         |                                      v
                         +-> active <---(backoff over)--- backoff <---+
                               |                                      |
                           (decided)                                  |
                               |          rejected: an event helps, or 5 minutes
                               +-> in flight -> unschedulable --------+
                               |                                      |
                               +-> assigned, bound: removed           +-> active (no backoff left)
                               |
                               +-> external call -> answered -> front of active (same attempt)

While active is empty, rejected pods are taken from backoff (:mod:`asched.state.backoff_queue`).

Active is a heap in the order of the profile's QueueSort. A rejected pod waits until the hint of
one of its rejecting plugins returns QUEUE for an event. A pod without a rejecting plugin (an
error, or no node at all) backs off. Events between a pod's decision and the end of its binding are
kept for it, so that it misses none. All times come from records; the queue reads no clock.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import copy
from typing import Any

from asched.framework.caching import ChangeLog
from asched.framework.pod_groups import group_of
from asched.framework.pod_info import PodInfo, QueuedPod
from asched.framework.runtime.plugin_calls import gate_status
from asched.framework.runtime.profile import Profile
from asched.model.quantity import NS_PER_S
from asched.state.backoff_queue import BackoffQueue
from asched.state.cluster_events import (
    QueuedClusterEvent,
    QueueingHints,
    QueueingStrategy,
    SelectedPods,
)
from asched.state.pod_groups import PodGroups
from asched.state.pod_heap import (
    FIRST,
    ActivePods,
    SortKey,
    from_stored_key,
    sort_key,
    to_stored_key,
)
from asched.state.queue_contents import (
    ACTIVE,
    ATTEMPT_FAILURE,
    BACKOFF,
    BACKOFF_COMPLETE,
    FORCE_ACTIVATE,
    GATED,
    POD_ADD,
    POP_FROM_BACKOFF,
    RECONFIGURED,
    TIMEOUT,
    UNSCHEDULABLE,
    QueuedPodSnapshot,
    QueueSnapshot,
    pod_form,
    restored,
    stored_fields,
)
from asched.state.records import QueueSettings
from asched.state.running_attempts import RunningAttempts
from asched.state.stored_form import STEP, Steps
from asched.state.unschedulable_pods import UnschedulablePods


class SchedulingQueue:
    """All pending pods of our profiles. Only the fold calls the methods that change it."""

    def __init__(self, groups: PodGroups | None = None) -> None:
        self._groups = PodGroups() if groups is None else groups
        self._hints = QueueingHints(self._groups)
        self._profiles: Mapping[str, Profile] = {}
        self._active = ActivePods()
        self._backoff = BackoffQueue()
        self._waiting = UnschedulablePods()
        # A pod with a running attempt is in flight, or active again if its attempt continues.
        self._attempts = RunningAttempts()
        self.incoming: Counter[tuple[str, str]] = Counter()
        """How many pods entered, by queue and event. For metrics only; not part of checkpoints."""
        self.replay_mismatches = 0
        """Recorded decisions about pods that were not active here: a plugin changed since."""

    # -- reading ------------------------------------------------------------------------------

    @property
    def settings(self) -> QueueSettings:
        return self._backoff.settings

    def __len__(self) -> int:
        waiting = self._waiting
        pods = (self._active.pods, self._backoff.pods, waiting.unschedulable, waiting.gated)
        return sum(map(len, pods))

    def __contains__(self, key: str) -> bool:
        return self.find_queued(key) is not None

    def __iter__(self) -> Iterator[QueuedPod]:
        """The waiting pods."""
        yield from self._active.pods.values()
        yield from self._backoff.pods.values()
        yield from self.unschedulable.values()
        yield from self.gated.values()

    @property
    def active(self) -> Mapping[str, QueuedPod]:
        return self._active.pods

    def has_active_of_others(self, namespace: str) -> bool:
        """Whether pods of other namespaces are active."""
        return self._active.has_others(namespace)

    @property
    def backoff(self) -> Mapping[str, QueuedPod]:
        return self._backoff.pods

    @property
    def unschedulable(self) -> Mapping[str, QueuedPod]:
        return self._waiting.unschedulable

    @property
    def gated(self) -> Mapping[str, QueuedPod]:
        return self._waiting.gated

    @property
    def waiting_by_plugin(self) -> Mapping[str, Mapping[str, QueuedPod]]:
        """The index of the gated and unschedulable pods by the plugins that they wait for."""
        return self._waiting.by_plugin

    @property
    def events(self) -> Sequence[QueuedClusterEvent]:
        """Kept for pods in flight, oldest first."""
        return self._attempts.events

    @property
    def in_flight(self) -> Iterable[str]:
        """Keys of the pods that wait for the end of their binding or for an external call."""
        return (key for key in self._attempts if key not in self._active.pods)

    @property
    def in_flight_pods(self) -> Iterator[QueuedPod]:
        return (self._attempts[key] for key in self.in_flight)

    def find_queued(self, key: str) -> QueuedPod | None:
        """A waiting pod."""
        return self._active.pods.get(key) or self._backoff.pods.get(key) or self._waiting.find(key)

    def find_queued_or_in_flight(self, key: str) -> QueuedPod | None:
        """A pod that waits or is in flight."""
        return self._attempts.find(key) or self.find_queued(key)

    @property
    def changes(self) -> ChangeLog[str]:
        """Keys of the pods that begin or cease to wait, and of those that other objects move
        from queue to queue."""
        return self._waiting.changes

    def head(self) -> QueuedPod | None:
        """The pod to schedule next."""
        first = self._active.head() or self._backoff.early.head()
        return None if first is None else first[1]

    def position_in_active(self, key: str) -> int:
        """The position in the active queue, from 1; 0 for a pod that is not active."""
        return self._active.position_of(key)

    def first_active(self, count: int) -> list[QueuedPod]:
        """The first pods of the active queue, the next one first."""
        return self._active.first(count)

    def next_timer_ns(self) -> int | None:
        """When the next backoff ends, or the next rejected pod times out."""
        times = [
            pod.timestamp_ns + self._unschedulable_timeout_ns for pod in self._waiting.oldest()
        ]
        first = self._backoff.by_end.head()
        if first is not None:
            times.append(first[0])
        return min(times, default=None)

    # -- configuration ------------------------------------------------------------------------

    def configure(
        self,
        profiles: Mapping[str, Profile],
        settings: QueueSettings,
        now_ns: int,
        *,
        pop_from_backoff: bool,
    ) -> None:
        """Replace the profiles and sort all waiting pods under them.

        ``pop_from_backoff``: while no pod is active, schedule pods that back off after a rejection.
        """
        waiting = [*self]
        self._profiles = profiles
        self._active.clear()
        self._backoff.clear()
        self._backoff.settings, self._backoff.pops_early = settings, pop_from_backoff
        self._waiting.clear()
        self._hints.configure(profiles)
        for pod in waiting:
            self._activate_or_gate(pod, now_ns, RECONFIGURED)

    # -- pods ---------------------------------------------------------------------------------

    def add(self, info: PodInfo, now_ns: int) -> None:
        """A pending pod of one of our profiles was added."""
        self._activate_or_gate(QueuedPod(info, now_ns), now_ns, POD_ADD)

    def update(self, info: PodInfo, events: Iterable[QueuedClusterEvent], now_ns: int) -> None:
        """One of our pods changed. If it was rejected, its hints decide about ``events``."""
        in_flight = self._attempts.find(info.key)
        if in_flight is not None:
            in_flight.info = info
            for event in events:
                self._attempts.add_event(event)
            return
        pod = self.find_queued(info.key)
        if pod is None:
            return
        pod.info = info
        if info.key in self._active.pods:
            # A QueueSort may read what changed.
            self._activate_or_gate(pod, now_ns)
        elif info.key in self._backoff.early.pods:
            self._backoff.push(pod, self._sort_key, early=True)
        elif info.key in self.gated:
            self._waiting.note_update(info.key)
            cause = next((queued_event.event.label for queued_event in events), "")
            self._requeue(pod, now_ns, cause)
        elif info.key in self.unschedulable:
            self._waiting.note_update(info.key)
            self._requeue_by_events(pod, events, now_ns)

    def remove(self, key: str) -> None:
        """A pod was deleted or bound."""
        self._remove_from_queues(key)
        self._attempts.end(key)

    # -- decisions and their outcomes ---------------------------------------------------------

    def pop(self, key: str, *, waiting: bool = False) -> QueuedPod | None:
        """The pod was decided: in flight until :meth:`reject`, :meth:`fail` or :meth:`remove`.
        None if it does not wait. ``waiting``: it may wait in any queue."""
        pod = self._active.pop(key) or self._pop_early(key)
        if pod is None:
            pod = self.find_queued(key)
            if pod is None:
                return None
            self._remove_from_queues(key)
            pod.gating_plugin = ""
            self.replay_mismatches += not waiting
        pod.attempts += 1
        self._attempts.begin(pod)
        return pod

    def _pop_early(self, key: str) -> QueuedPod | None:
        """Remove the pod from backoff if it may be scheduled now."""
        if self._active.pods or key not in self._backoff.early.pods:
            return None
        self.incoming[ACTIVE, POP_FROM_BACKOFF] += 1
        return self._backoff.pop(key)

    def resume_attempt(self, key: str) -> None:
        """An external call was answered: the attempt continues under the same number, before all
        other pods. Raises KeyError if the pod was not in flight."""
        pod = self._attempts[key]
        pod.attempts -= 1
        self._active.push(pod, FIRST)
        self.changes.append(key)

    def abandon_attempt(self, key: str) -> None:
        """Forget the attempt; the pod is active again. Raises KeyError if it was not in flight."""
        if key not in self._active.pods:
            self.resume_attempt(key)
        self._attempts.end(key)

    def reject(self, key: str, plugins: Iterable[str], pending: Iterable[str], now_ns: int) -> None:
        """``plugins`` rejected the attempt or its binding.

        Without a plugin no event could requeue the pod, so it backs off as after an error
        (``AddUnschedulablePodIfNotPresent`` of kube-scheduler).
        """
        pod = self._attempts[key]
        pod.unschedulable_plugins = frozenset(plugins)
        pod.pending_plugins = frozenset(pending)
        if not pod.unschedulable_plugins and not pod.pending_plugins:
            self.fail(key, now_ns)
            return
        pod.unschedulable_count += 1
        pod.consecutive_errors = 0
        pod.timestamp_ns = pod.rejected_at_ns = now_ns
        missed = self._attempts.missed_events(key)
        self._attempts.end(key)
        self._waiting.add_unschedulable(pod)
        self.incoming[UNSCHEDULABLE, ATTEMPT_FAILURE] += 1
        if missed is None:
            self._requeue(pod, now_ns, TIMEOUT)
        else:
            self._requeue_by_events(pod, missed, now_ns)

    def requeue_now(self, key: str, now_ns: int) -> None:
        """The attempt was rejected, but its cause is already gone: the pod is active again, before
        all others, so that no other pod takes the room that was made for it."""
        pod = self._attempts[key]
        pod.unschedulable_plugins = pod.pending_plugins = frozenset()
        pod.consecutive_errors = 0
        self._attempts.end(key)
        self._activate_or_gate(pod, now_ns, ATTEMPT_FAILURE)
        if key in self._active.pods:
            self._active.push(pod, FIRST)

    def fail(self, key: str, now_ns: int) -> None:
        """The attempt or its binding ended in an error: the pod backs off."""
        pod = self._attempts[key]
        pod.unschedulable_plugins = pod.pending_plugins = frozenset()
        pod.consecutive_errors += 1
        pod.timestamp_ns = pod.rejected_at_ns = now_ns
        self._attempts.end(key)
        self._requeue(pod, now_ns, ATTEMPT_FAILURE)

    def put_off(self, key: str, turn_ns: int, now_ns: int, *, yields: bool) -> None:
        """The pod was not attempted: it waits in the backoff queue for its turn. ``yields``: or
        until no pod is active."""
        pod = self._attempts[key]
        pod.unschedulable_plugins = pod.pending_plugins = frozenset()
        pod.timestamp_ns, pod.turn_ns, pod.yields = now_ns, turn_ns, yields or pod.yields
        self._attempts.end(key)
        self._requeue(pod, now_ns, ATTEMPT_FAILURE)

    def activate(self, key: str, now_ns: int) -> None:
        """Move a waiting pod to active (``Activate`` of kube-scheduler)."""
        pod = self.find_queued(key)
        if pod is not None and key not in self._active.pods:
            self._remove_from_queues(key)
            self._activate_or_gate(pod, now_ns, FORCE_ACTIVATE)

    def retry_preemptor(self, key: str, now_ns: int) -> None:
        """All victims of a waiting pod are gone: it is active, without backoff and at its first
        place, so that pods of its priority that came later do not delay it."""
        pod = self.find_queued(key)
        if pod is not None and key not in self._active.pods:
            self._remove_from_queues(key)
            # Pods that were added in the same turn have the same time.
            pod.timestamp_ns = pod.added_at_ns - 1
            self._activate_or_gate(pod, now_ns, FORCE_ACTIVATE)

    def sort_again(self, key: str, now_ns: int) -> None:
        """PreEnqueue and QueueSort may have another answer for a pod that may be scheduled."""
        pod = self._active.pods.get(key)
        if pod is not None and key not in self._attempts:
            self._activate_or_gate(pod, now_ns)
        early = self._backoff.early.pods.get(key)
        if early is not None:
            self._requeue(early, now_ns)

    # -- events and timers --------------------------------------------------------------------

    @property
    def uses_events(self) -> bool:
        """Whether any pod could be requeued by an event, now or when its attempt ends."""
        return bool(self._attempts.by_key or self._waiting.by_plugin)

    def move_on_event(self, queued_event: QueuedClusterEvent, now_ns: int) -> None:
        """Requeue the pods that the event may help (``MoveAllToActiveOrBackoffQueue``)."""
        if self._attempts.by_key:
            self._attempts.add_event(queued_event)
        if self._waiting.by_plugin:
            pods, selected = self._waiting.selected(self._hints, queued_event)
            for pod in pods:
                self._requeue_by_events(pod, (queued_event,), now_ns, selected)

    def retry_rejected_by(self, plugin: str, now_ns: int, cause: str) -> None:
        """Requeue the pods that a plugin rejected. For a change that is no event of the plugin:
        kube-scheduler leaves such pods to the flush."""
        for pod in self._waiting.rejected_by(plugin):
            self._requeue(pod, now_ns, cause)

    def flush(self, now_ns: int) -> None:
        """End the backoffs and timeouts that are due (``flushBackoffQCompleted`` and
        ``flushUnschedulablePodsLeftover``)."""
        while (first := self._backoff.by_end.head()) is not None and first[0] <= now_ns:
            self._backoff.pop(first[1].info.key)
            self.changes.append(first[1].info.key)
            self._activate_or_gate(first[1], now_ns, BACKOFF_COMPLETE)
        for pod in self._waiting.rejected_until(now_ns - self._unschedulable_timeout_ns):
            self._requeue(pod, now_ns, TIMEOUT)

    # -- checkpoints --------------------------------------------------------------------------

    def snapshot(self) -> Steps[QueueSnapshot]:
        """The steps that convert the contents at this moment."""
        copied = copy(self)
        vars(copied).update(
            _active=self._active.copy(),
            _backoff=self._backoff.copy(),
            _waiting=self._waiting.copy(),
            _attempts=self._attempts.copy(),
        )
        pods = [*dict.fromkeys((*self, *(pod for pod, _ in self._attempts.by_key.values())))]
        return copied.to_form(pods, [*map(stored_fields, pods)])

    def to_form(
        self, pods: Sequence[QueuedPod], fields: Iterable[Sequence[Any]]
    ) -> Steps[QueueSnapshot]:
        """Removes the pods from the heaps. ``fields`` are those of ``pods``."""
        forms: list[QueuedPodSnapshot] = []
        for of_pod in fields:
            forms.append(pod_form(of_pod))
            if len(forms) % STEP == 0:
                yield
        positions = {pod: position for position, pod in enumerate(pods)}

        def at(pods: Iterable[QueuedPod]) -> tuple[int, ...]:
            return tuple([positions[pod] for pod in pods])

        active, backoff = at(self.active.values()), at(self.backoff.values())
        yield
        active_order = yield from self._active.take_in_order(
            lambda key, pod: (positions[pod], to_stored_key(key))
        )
        early_order = yield from self._backoff.early.take_in_order(
            lambda key, pod: (positions[pod], to_stored_key(key[1]))
        )
        backoff_order = yield from self._backoff.by_end.take_in_order(lambda _, pod: positions[pod])
        return QueueSnapshot(
            pods=tuple(forms),
            active=active,
            active_order=active_order,
            backoff=backoff,
            backoff_order=backoff_order,
            early_order=early_order,
            unschedulable=at(self.unschedulable.values()),
            gated=at(self.gated.values()),
            waiting_for=tuple(
                (name, at(pods.values())) for name, pods in self._waiting.by_plugin.items()
            ),
            attempts=tuple(
                (positions[pod], events_from) for pod, events_from in self._attempts.by_key.values()
            ),
            events=tuple(self.events),
            events_start=self._attempts.events_start,
            replay_mismatches=self.replay_mismatches,
        )

    def restore(self, snapshot: QueueSnapshot) -> None:
        """Fill an empty queue that has its profiles."""
        pods = [restored(kept) for kept in snapshot.pods]

        def by_key(positions: Iterable[int]) -> dict[str, QueuedPod]:
            return {pods[position].info.key: pods[position] for position in positions}

        # The first push makes the order of arrival, the second one the order of the heap.
        for position in snapshot.active:
            self._active.push(pods[position], FIRST)
        for position, stored in snapshot.active_order:
            pod = pods[position]
            profile = self._profiles[pod.info.pod.spec.scheduler_name]
            self._active.push(pod, from_stored_key(stored) or sort_key(profile, pod))
        for position in (*snapshot.backoff, *snapshot.backoff_order):
            pod = pods[position]
            self._backoff.by_end.push(pod, self.backoff_ends_ns(pod))
        for position, stored in snapshot.early_order:
            pod = pods[position]
            sort = from_stored_key(stored) or self._sort_key(pod)
            self._backoff.early.push(pod, (self.backoff_ends_ns(pod), sort))
        by_plugin = {name: by_key(at) for name, at in snapshot.waiting_for}
        self._waiting.restore(by_key(snapshot.unschedulable), by_key(snapshot.gated), by_plugin)
        attempts = ((pods[position], first) for position, first in snapshot.attempts)
        self._attempts.restore(attempts, snapshot.events, snapshot.events_start)
        self.replay_mismatches = snapshot.replay_mismatches

    # -- internals ----------------------------------------------------------------------------

    @property
    def _unschedulable_timeout_ns(self) -> int:
        return round(self.settings.unschedulable_timeout_s * NS_PER_S)

    def backoff_ends_ns(self, pod: QueuedPod) -> int:
        """When a rejected pod may be retried."""
        return self._backoff.ends_ns(pod)

    def backoff_ns(self, failures: int) -> int:
        """The backoff after that many failures in a row, at least one."""
        return self._backoff.duration_ns(failures)

    def _sort_key(self, pod: QueuedPod) -> SortKey:
        return sort_key(self._profiles[pod.info.pod.spec.scheduler_name], pod)

    def _activate_or_gate(self, pod: QueuedPod, now_ns: int, cause: str = "") -> None:
        """``cause`` is the queue event; empty if the pod was in this queue before."""
        profile = self._profiles.get(pod.info.pod.spec.scheduler_name)
        if profile is None:
            return  # the profile was removed
        if self._gate(profile, pod, cause):
            return
        if pod.entered_at_ns is None:
            pod.entered_at_ns = now_ns
        if not self._active.has_first_place(pod.info.key):
            self._active.push(pod, sort_key(profile, pod))
        if cause:
            self.incoming[ACTIVE, cause] += 1

    def _gate(self, profile: Profile, pod: QueuedPod, cause: str) -> bool:
        """Call PreEnqueue. Returns whether the pod is gated."""
        was_gated = bool(pod.gating_plugin)
        gating = ""
        for plugin in profile.pre_enqueue:
            if gate_status(plugin, pod.info) is not None:
                gating = plugin.name
                break
        pod.gating_plugin = gating
        if gating:
            self._active.pop(pod.info.key)
            self._waiting.add_gated(pod)
            if cause and not was_gated:
                self.incoming[GATED, cause] += 1
        return bool(gating)

    def _requeue(
        self, pod: QueuedPod, now_ns: int, cause: str = "", *, immediately: bool = False
    ) -> None:
        """``cause`` as for :meth:`_activate_or_gate`."""
        self._remove_from_queues(pod.info.key)
        ends_ns = 0 if immediately else self.backoff_ends_ns(pod)
        if ends_ns <= now_ns:
            self._activate_or_gate(pod, now_ns, cause)
            return
        early = self._backoff.may_pop_early(pod)
        if early:
            profile = self._profiles.get(pod.info.pod.spec.scheduler_name)
            # PreEnqueue is not called again before the pod is scheduled early.
            if profile is None or self._gate(profile, pod, cause):
                return
        self._backoff.push(pod, self._sort_key, early=early)
        if cause:
            self.incoming[BACKOFF, cause] += 1
        group = group_of(pod.info.pod)
        if group is not None:
            self._groups.note_change(group)

    def _requeue_by_events(
        self,
        pod: QueuedPod,
        events: Iterable[QueuedClusterEvent],
        now_ns: int,
        selected: SelectedPods | None = None,
    ) -> None:
        """Requeue a waiting pod if any of the events may help it."""
        best, cause = QueueingStrategy.SKIP, ""
        for queued_event in events:
            strategy = self._hints.strategy(pod, queued_event, selected or {})
            if strategy > best:
                best, cause = strategy, queued_event.event.label
        if best is not QueueingStrategy.SKIP:
            immediately = best is QueueingStrategy.IMMEDIATELY
            self._requeue(pod, now_ns, cause, immediately=immediately)

    def _remove_from_queues(self, key: str) -> None:
        if key in self._active.pods:
            self._active.pop(key)
            self.changes.append(key)
        if key in self._backoff.pods:
            self._backoff.pop(key)
            self.changes.append(key)
        self._waiting.remove(key)
