"""The scheduling queue: pods that wait to be tried.

    seen -> PreEnqueue -+-> gated ----------(own event)---------+
                        |                                       v
                        +-> active <---(backoff over)--- backoff <---+
                              |                                      |
                          (decided)                                  |
                              |          rejected: an event helps, or 5 minutes
                              +-> in flight -> unschedulable --------+
                              |                                      |
                              +-> assigned, bound: left the queue    +-> active (no backoff left)
                              |
                              +-> asked extenders -> answered -> front of active (same attempt)

Active is a heap in the order of the profile's QueueSort. A rejected pod waits until an event that
one of its rejecting plugins registered says QUEUE; one that no plugin answers for (an error, or no
node at all) just backs off. Events that happen between a pod's decision and the end of its binding
are kept for it, so one that arrives meanwhile is not lost. All times come from records; nothing
here looks at a clock.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice

from asched.framework.pod_info import PodInfo, QueuedPod
from asched.framework.runtime.plugin_calls import held_back
from asched.framework.runtime.profile import Profile
from asched.model.quantity import NS_PER_S
from asched.state import queue_events as arrivals
from asched.state.cluster_events import Listeners, Wake
from asched.state.pod_groups import PodGroups
from asched.state.pod_heap import FIRST_OF_ALL, PodHeap, sort_key
from asched.state.queue_events import Arrivals, QueuedClusterEvent
from asched.state.records import QueueSettings


class SchedulingQueue:
    """All pending pods of our profiles. Only the fold calls the methods that change it."""

    def __init__(self, groups: PodGroups | None = None) -> None:
        """``groups``: which pods are of one group."""
        self._listeners = Listeners(PodGroups() if groups is None else groups)
        self._profiles: Mapping[str, Profile] = {}
        self._settings = QueueSettings()
        self._active = PodHeap()
        self._backoff = PodHeap()
        self._unschedulable: dict[str, QueuedPod] = {}
        self._gated: dict[str, QueuedPod] = {}
        # Rejected and gated pods by the plugin that must change its mind, so that an event looks
        # only at pods it could concern.
        self._waiting_for: dict[str, dict[str, QueuedPod]] = {}
        # Attempts that were begun and have not ended, by pod, with where the events since begin. Such a
        # pod is in flight, or active again where its attempt goes on (extenders have answered).
        self._under_way: dict[str, tuple[QueuedPod, int]] = {}
        self._events: deque[QueuedClusterEvent] = deque()
        self._events_start = 0
        self.arrivals = Arrivals()
        self.drifted = 0
        """Recorded decisions of pods that were not active here: plugins changed since they were
        made."""

    # -- reading ------------------------------------------------------------------------------

    def __len__(self) -> int:
        return (
            len(self._active.pods)
            + len(self._backoff.pods)
            + len(self._unschedulable)
            + len(self._gated)
        )

    def __contains__(self, key: str) -> bool:
        return self.find(key) is not None

    @property
    def active(self) -> Mapping[str, QueuedPod]:
        return self._active.pods

    @property
    def backoff(self) -> Mapping[str, QueuedPod]:
        return self._backoff.pods

    @property
    def unschedulable(self) -> Mapping[str, QueuedPod]:
        return self._unschedulable

    @property
    def gated(self) -> Mapping[str, QueuedPod]:
        return self._gated

    @property
    def in_flight(self) -> Iterable[str]:
        """Keys of the pods that were decided and whose binding has not ended, or whose attempt waits
        for extenders."""
        return (key for key in self._under_way if key not in self._active.pods)

    @property
    def events(self) -> Iterable[QueuedClusterEvent]:
        """What is kept for pods in flight, oldest first."""
        return self._events

    @property
    def flying(self) -> Iterator[QueuedPod]:
        """The pods in flight."""
        return (self._under_way[key][0] for key in self.in_flight)

    def find(self, key: str) -> QueuedPod | None:
        return (
            self._active.pods.get(key)
            or self._unschedulable.get(key)
            or self._backoff.pods.get(key)
            or self._gated.get(key)
        )

    def known(self, key: str) -> QueuedPod | None:
        """The pod of that key, waiting or in flight."""
        begun = self._under_way.get(key)
        return self.find(key) if begun is None else begun[0]

    def head(self) -> QueuedPod | None:
        """The pod to be tried next."""
        first = self._active.head()
        return None if first is None else first[1]

    def in_order(self) -> list[QueuedPod]:
        """The active pods in the order in which they will be tried, as things are."""
        return self._active.in_order()

    def next_timer_ns(self) -> int | None:
        """When the next backoff ends, or the next rejected pod has waited long enough."""
        times = [
            pod.timestamp_ns + self._unschedulable_timeout_ns
            for pod in islice(self._unschedulable.values(), 1)
        ]
        first = self._backoff.head()
        if first is not None:
            times.append(first[0])
        return min(times, default=None)

    # -- configuration ------------------------------------------------------------------------

    @property
    def settings(self) -> QueueSettings:
        """The timing in force."""
        return self._settings

    def configure(
        self, profiles: Mapping[str, Profile], settings: QueueSettings, now_ns: int
    ) -> None:
        """New profiles: every waiting pod is sorted in afresh under them."""
        waiting = [*self]
        self._profiles, self._settings = profiles, settings
        self._active.clear()
        self._backoff.clear()
        self._unschedulable.clear()
        self._gated.clear()
        self._waiting_for.clear()
        self._listeners.configure(profiles)
        for pod in waiting:
            self._activate_or_gate(pod, now_ns, arrivals.RECONFIGURED)

    def __iter__(self) -> Iterator[QueuedPod]:
        yield from self._active.pods.values()
        yield from self._backoff.pods.values()
        yield from self._unschedulable.values()
        yield from self._gated.values()

    def _profile(self, pod: QueuedPod) -> Profile | None:
        return self._profiles.get(pod.info.pod.spec.scheduler_name)

    # -- pods come, change and go -------------------------------------------------------------

    def add(self, info: PodInfo, now_ns: int) -> None:
        """A pending pod of one of our profiles appeared."""
        self._activate_or_gate(QueuedPod(info, now_ns), now_ns, arrivals.POD_ADD)

    def update(self, info: PodInfo, events: Iterable[QueuedClusterEvent], now_ns: int) -> None:
        """One of our pods changed. Where it was rejected, its own hints decide."""
        begun = self._under_way.get(info.key)
        if begun is not None:
            begun[0].info = info
            self._events.extend(events)
            return
        pod = self.find(info.key)
        if pod is None:
            return
        pod.info = info
        if info.key in self._active.pods:
            # A QueueSort may read what changed.
            self._activate_or_gate(pod, now_ns)
        elif info.key in self._gated:
            what = next((happened.event.label for happened in events), "")
            self._requeue(pod, now_ns, what)
        elif info.key in self._unschedulable:
            self._wake_by(pod, events, now_ns)

    def remove(self, key: str) -> None:
        """A pod went, or is bound: forget it, wherever it is."""
        self._forget(key)
        self._end_attempt(key)

    # -- decisions and their outcomes ---------------------------------------------------------

    def take_off(self, key: str) -> bool:
        """The pod was decided. It is in flight until :meth:`reject`, :meth:`fail` or
        :meth:`remove`. False where it waits nowhere."""
        pod = self._active.pop(key)
        if pod is None:
            pod = self.find(key)
            if pod is None:
                return False
            self._forget(key)
            pod.gating_plugin = ""
            self.drifted += 1
        pod.attempts += 1
        # An attempt that goes on keeps the events since it began.
        self._under_way.setdefault(key, (pod, self._events_end))
        return True

    def resume(self, key: str) -> None:
        """What the pod's attempt waited for is there: it goes on, under the same number, before
        any other pod is tried. Raises KeyError if it was not in flight."""
        pod, _ = self._under_way[key]
        pod.attempts -= 1
        self._active.push(pod, FIRST_OF_ALL)

    def give_up(self, key: str) -> None:
        """Forget that the pod's attempt was begun; it is active again. Raises KeyError if it was not
        in flight."""
        if key not in self._active.pods:
            self.resume(key)
        self._end_attempt(key)

    def reject(self, key: str, plugins: Iterable[str], pending: Iterable[str], now_ns: int) -> None:
        """The attempt, or its binding, was turned down by ``plugins``.

        Where no plugin is named no event could wake the pod, so it is tried again after a backoff
        as after an error (``AddUnschedulablePodIfNotPresent`` of kube-scheduler).
        """
        pod, since = self._under_way[key]
        pod.unschedulable_plugins = frozenset(plugins)
        pod.pending_plugins = frozenset(pending)
        if not pod.unschedulable_plugins and not pod.pending_plugins:
            self.fail(key, now_ns)
            return
        pod.unschedulable_count += 1
        pod.consecutive_errors = 0
        pod.timestamp_ns = pod.rejected_at_ns = now_ns
        missed = [*islice(self._events, since - self._events_start, None)]
        self._end_attempt(key)
        self._wait(self._unschedulable, pod, pod.unschedulable_plugins | pod.pending_plugins)
        self.arrivals[arrivals.UNSCHEDULABLE, arrivals.ATTEMPT_FAILURE] += 1
        self._wake_by(pod, missed, now_ns)

    def try_again(self, key: str, now_ns: int) -> None:
        """The attempt was turned down, but what it lacked is there by now: nothing is known against
        the pod, and it takes its old place among the active ones."""
        pod, _ = self._under_way[key]
        pod.unschedulable_plugins = pod.pending_plugins = frozenset()
        pod.consecutive_errors = 0
        self._end_attempt(key)
        self._activate_or_gate(pod, now_ns, arrivals.ATTEMPT_FAILURE)

    def fail(self, key: str, now_ns: int) -> None:
        """The attempt, or its binding, ended in an error: tried again after a backoff."""
        pod, _ = self._under_way[key]
        pod.unschedulable_plugins = pod.pending_plugins = frozenset()
        pod.consecutive_errors += 1
        pod.timestamp_ns = pod.rejected_at_ns = now_ns
        self._end_attempt(key)
        self._requeue(pod, now_ns, arrivals.ATTEMPT_FAILURE)

    def activate(self, key: str, now_ns: int) -> None:
        """Try a waiting pod again at once, whatever it waits for (``Activate`` of kube-scheduler)."""
        pod = self.find(key)
        if pod is not None and key not in self._active.pods:
            self._forget(key)
            self._activate_or_gate(pod, now_ns, arrivals.FORCE_ACTIVATE)

    def sort_in_again(self, key: str, now_ns: int) -> None:
        """What PreEnqueue and QueueSort say of an active pod may be another thing now."""
        pod = self._active.pods.get(key)
        if pod is not None and key not in self._under_way:
            self._activate_or_gate(pod, now_ns)

    # -- events and timers --------------------------------------------------------------------

    @property
    def heeds_events(self) -> bool:
        """Whether there is any pod that an event could wake, now or when its attempt ends."""
        return bool(self._under_way or self._waiting_for)

    def happened(self, happened: QueuedClusterEvent, now_ns: int) -> None:
        """Something in the cluster changed: wake the pods that it may help."""
        if self._under_way:
            self._events.append(happened)
        if not self._waiting_for:
            return
        concerned: dict[str, QueuedPod] = {}
        for plugin, listeners in self._listeners.of(happened.event).items():
            waiting = self._waiting_for.get(plugin)
            if waiting:
                concerned.update(self._listeners.near(waiting, listeners, happened))
        for pod in concerned.values():
            self._wake_by(pod, (happened,), now_ns)

    def tick(self, now_ns: int) -> None:
        """The clock moved on: end backoffs, and retry what has waited too long."""
        while (first := self._backoff.head()) is not None and first[0] <= now_ns:
            self._backoff.pop(first[1].info.key)
            self._activate_or_gate(first[1], now_ns, arrivals.BACKOFF_COMPLETE)
        overdue: list[QueuedPod] = []
        for pod in self._unschedulable.values():
            # In order of rejection, so the first that is not overdue ends the search.
            if pod.timestamp_ns + self._unschedulable_timeout_ns > now_ns:
                break
            overdue.append(pod)
        for pod in overdue:
            self._requeue(pod, now_ns, arrivals.TIMEOUT)

    # -- invariants ---------------------------------------------------------------------------

    def check(self) -> None:
        """Raise AssertionError, in one line, where the queue's own books contradict each other."""
        waiting: dict[str, set[str]] = {}
        for pod in self._gated.values():
            waiting.setdefault(pod.gating_plugin, set()).add(pod.info.key)
        for pod in self._unschedulable.values():
            for plugin in pod.unschedulable_plugins | pod.pending_plugins:
                waiting.setdefault(plugin, set()).add(pod.info.key)
        indexed = {plugin: {*pods} for plugin, pods in self._waiting_for.items()}
        if indexed != waiting:
            raise AssertionError(f"queue: pods by plugin are {waiting}, the index says {indexed}")
        if self._events and not self._under_way:
            raise AssertionError(f"queue: {len(self._events)} events kept for no pod in flight")
        for key, pod in (*self._active.pods.items(), *self._backoff.pods.items()):
            if key != pod.info.key:
                raise AssertionError(f"queue: pod {pod.info.key} is filed as {key}")

    # -- inside -------------------------------------------------------------------------------

    @property
    def _unschedulable_timeout_ns(self) -> int:
        return round(self._settings.unschedulable_timeout_s * NS_PER_S)

    @property
    def _events_end(self) -> int:
        return self._events_start + len(self._events)

    def backoff_ends_ns(self, pod: QueuedPod) -> int:
        """When a rejected pod may be tried again: 1 s doubling to 10 s, by its own failures."""
        failures = pod.consecutive_errors or pod.unschedulable_count
        if not failures:
            return 0
        return pod.timestamp_ns + self.backoff_ns(failures)

    def backoff_ns(self, failures: int) -> int:
        """How long a pod is left alone after so many failures in a row, at least one."""
        # 2**62 s is long past any maximum; the bound keeps the number small.
        delay_s = self._settings.initial_backoff_s * (1 << min(failures - 1, 62))
        return round(min(delay_s, self._settings.max_backoff_s) * NS_PER_S)

    def _activate_or_gate(self, pod: QueuedPod, now_ns: int, why: str = "") -> None:
        """``why`` is what brings it; empty where it was in the queue before."""
        profile = self._profile(pod)
        if profile is None:
            # Taken out of the configuration: nobody is left to try the pod.
            return
        was_gated = bool(pod.gating_plugin)
        gating = pod.gating_plugin = _gating_plugin(profile, pod.info)
        if gating:
            self._active.pop(pod.info.key)
            self._wait(self._gated, pod, (gating,))
        else:
            if pod.entered_at_ns is None:
                pod.entered_at_ns = now_ns
            self._active.push(pod, sort_key(profile, pod))
        if why and not (was_gated and gating):
            self.arrivals[arrivals.GATED if gating else arrivals.ACTIVE, why] += 1

    def _requeue(self, pod: QueuedPod, now_ns: int, why: str, *, at_once: bool = False) -> None:
        self._forget(pod.info.key)
        ends_ns = 0 if at_once else self.backoff_ends_ns(pod)
        if ends_ns <= now_ns:
            self._activate_or_gate(pod, now_ns, why)
        else:
            self._backoff.push(pod, ends_ns)
            self.arrivals[arrivals.BACKOFF, why] += 1

    def _wake_by(self, pod: QueuedPod, events: Iterable[QueuedClusterEvent], now_ns: int) -> None:
        """Requeue a waiting pod if any of the events may help it."""
        wake, what = Wake.NO, ""
        for happened in events:
            said = self._listeners.wake(pod, happened)
            if said > wake:
                wake, what = said, happened.event.label
        if wake is not Wake.NO:
            self._requeue(pod, now_ns, what, at_once=wake is Wake.AT_ONCE)

    def _wait(self, where: dict[str, QueuedPod], pod: QueuedPod, plugins: Iterable[str]) -> None:
        where[pod.info.key] = pod
        for plugin in sorted(plugins):
            self._waiting_for.setdefault(plugin, {})[pod.info.key] = pod

    def _forget(self, key: str) -> None:
        if key in self._active.pods:
            self._active.pop(key)
        if key in self._backoff.pods:
            self._backoff.pop(key)
        pod = self._unschedulable.pop(key, None) or self._gated.pop(key, None)
        if pod is None:
            return
        plugins = (*pod.unschedulable_plugins, *pod.pending_plugins, pod.gating_plugin)
        for plugin in plugins:
            waiting = self._waiting_for.get(plugin)
            if waiting is not None:
                waiting.pop(key, None)
                if not waiting:
                    del self._waiting_for[plugin]

    def _end_attempt(self, key: str) -> None:
        if self._under_way.pop(key, None) is None:
            return
        # Dictionaries keep order: the first in flight is the one with the oldest events to keep.
        oldest = next((since for _, since in self._under_way.values()), self._events_end)
        while self._events_start < oldest:
            self._events.popleft()
            self._events_start += 1


def _gating_plugin(profile: Profile, info: PodInfo) -> str:
    """The first PreEnqueue plugin that holds the pod back, empty where none does."""
    for plugin in profile.pre_enqueue:
        if held_back(plugin, info) is not None:
            return plugin.name
    return ""
