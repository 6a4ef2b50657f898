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

Active is a heap in the order of the profile's QueueSort. A rejected pod waits until an event that
one of its rejecting plugins registered says QUEUE. Events that happen between a pod's decision and
the end of its binding are kept for it, so one that arrives meanwhile is not lost. All times come
from records; nothing here looks at a clock.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from functools import cmp_to_key
from typing import Any, NamedTuple

from asched.framework.events import ClusterEvent, QueueingHint
from asched.framework.pod_info import PodInfo, QueuedPod
from asched.framework.profile import Profile, RegisteredEvent
from asched.model.meta import Object
from asched.model.pod import Pod
from asched.state.records import QueueSettings

NS_PER_S = 1_000_000_000


class Happened(NamedTuple):
    """An event with the objects it is about."""

    event: ClusterEvent
    old: Object | None
    new: Object | None


class Listener(NamedTuple):
    """A plugin's registration within one profile."""

    scheduler_name: str
    registered: RegisteredEvent


class SchedulingQueue:
    """All pending pods of our profiles. Only the fold calls the methods that change it."""

    def __init__(self) -> None:
        self._profiles: Mapping[str, Profile] = {}
        self._settings = QueueSettings()
        self._order = 0
        self._active: list[tuple[Any, int, QueuedPod]] = []
        self._active_keys: dict[str, QueuedPod] = {}
        self._backoff: list[tuple[int, int, QueuedPod]] = []
        self._backoff_keys: dict[str, QueuedPod] = {}
        self._unschedulable: dict[str, QueuedPod] = {}
        self._gated: dict[str, QueuedPod] = {}
        # Rejected and gated pods by the plugin that must change its mind, so that an event looks
        # only at pods it could concern.
        self._waiting_for: dict[str, dict[str, QueuedPod]] = {}
        self._in_flight: dict[str, tuple[QueuedPod, int]] = {}
        self._events: deque[Happened] = deque()
        self._events_start = 0
        self._listeners_of: dict[ClusterEvent, Mapping[str, tuple[Listener, ...]]] = {}

    # -- reading ------------------------------------------------------------------------------

    def __len__(self) -> int:
        return (
            len(self._active_keys)
            + len(self._backoff_keys)
            + len(self._unschedulable)
            + len(self._gated)
        )

    def __contains__(self, key: str) -> bool:
        return self.find(key) is not None

    @property
    def active(self) -> Mapping[str, QueuedPod]:
        return self._active_keys

    @property
    def backoff(self) -> Mapping[str, QueuedPod]:
        return self._backoff_keys

    @property
    def unschedulable(self) -> Mapping[str, QueuedPod]:
        return self._unschedulable

    @property
    def gated(self) -> Mapping[str, QueuedPod]:
        return self._gated

    @property
    def in_flight(self) -> Iterable[str]:
        """Keys of the pods that were decided and whose binding has not ended."""
        return self._in_flight.keys()

    def find(self, key: str) -> QueuedPod | None:
        return (
            self._active_keys.get(key)
            or self._unschedulable.get(key)
            or self._backoff_keys.get(key)
            or self._gated.get(key)
        )

    def head(self) -> QueuedPod | None:
        """The pod to be tried next."""
        heap = self._active
        while heap:
            pod = heap[0][2]
            if self._active_keys.get(pod.info.key) is pod:
                return pod
            heapq.heappop(heap)
        return None

    def next_timer_ns(self) -> int | None:
        """When the next backoff ends, or the next rejected pod has waited long enough."""
        times: list[int] = [entry[0] for entry in self._backoff[:1]]
        for pod in self._unschedulable.values():
            times.append(pod.timestamp_ns + self._unschedulable_timeout_ns)
            break
        return min(times, default=None)

    # -- configuration ------------------------------------------------------------------------

    def configure(self, profiles: Mapping[str, Profile], settings: QueueSettings) -> None:
        """New profiles: every waiting pod is sorted in afresh under them."""
        waiting = [*self]
        self._profiles, self._settings = profiles, settings
        self._active.clear()
        self._active_keys.clear()
        self._backoff.clear()
        self._backoff_keys.clear()
        self._unschedulable.clear()
        self._gated.clear()
        self._waiting_for.clear()
        self._listeners_of.clear()
        for pod in waiting:
            if pod.info.pod.spec.scheduler_name in profiles:
                self._activate_or_gate(pod)

    def __iter__(self) -> Iterator[QueuedPod]:
        yield from self._active_keys.values()
        yield from self._backoff_keys.values()
        yield from self._unschedulable.values()
        yield from self._gated.values()

    def _profile(self, pod: QueuedPod) -> Profile:
        return self._profiles[pod.info.pod.spec.scheduler_name]

    # -- pods come, change and go -------------------------------------------------------------

    def add(self, info: PodInfo, now_ns: int) -> None:
        """A pending pod of one of our profiles appeared."""
        self._activate_or_gate(QueuedPod(info, now_ns))

    def update(self, info: PodInfo, events: Iterable[Happened], now_ns: int) -> None:
        """One of our pods changed. Where it was rejected, its own hints decide."""
        flying = self._in_flight.get(info.key)
        if flying is not None:
            flying[0].info = info
            return
        pod = self.find(info.key)
        if pod is None:
            return
        pod.info = info
        if info.key in self._active_keys or info.key in self._backoff_keys:
            return
        if info.key in self._gated:
            self._requeue(pod, now_ns)
            return
        if any(self._may_help(pod, happened) for happened in events):
            self._requeue(pod, now_ns)

    def remove(self, key: str) -> None:
        """A pod went, or is bound: forget it, wherever it is."""
        self._forget(key)
        self._end_flight(key)

    # -- decisions and their outcomes ---------------------------------------------------------

    def take_off(self, key: str) -> QueuedPod:
        """The pod was decided. It is in flight until :meth:`done` or :meth:`reject`.

        Raises KeyError if it was not active.
        """
        pod = self._active_keys.pop(key)
        pod.attempts += 1
        self._in_flight[key] = (pod, self._events_start + len(self._events))
        return pod

    def done(self, key: str) -> None:
        """The pod is bound."""
        self._end_flight(key)

    def reject(self, key: str, plugins: Iterable[str], pending: Iterable[str], now_ns: int) -> None:
        """The attempt, or its binding, was turned down by ``plugins``."""
        pod, since = self._in_flight[key]
        pod.unschedulable_plugins = frozenset(plugins)
        pod.pending_plugins = frozenset(pending)
        pod.unschedulable_count += 1
        pod.consecutive_errors = 0
        pod.timestamp_ns = pod.rejected_at_ns = now_ns
        missed = [self._events[i - self._events_start] for i in range(since, self._events_end)]
        self._end_flight(key)
        if any(self._may_help(pod, happened) for happened in missed):
            self._requeue(pod, now_ns)
        else:
            self._wait(self._unschedulable, pod, pod.unschedulable_plugins | pod.pending_plugins)

    def fail(self, key: str, now_ns: int) -> None:
        """The attempt, or its binding, ended in an error: tried again after a backoff."""
        pod, _ = self._in_flight[key]
        pod.unschedulable_plugins = pod.pending_plugins = frozenset()
        pod.consecutive_errors += 1
        pod.timestamp_ns = pod.rejected_at_ns = now_ns
        self._end_flight(key)
        self._requeue(pod, now_ns)

    # -- events and timers --------------------------------------------------------------------

    def happened(self, happened: Happened, now_ns: int) -> None:
        """Something in the cluster changed: wake the pods that it may help."""
        if self._in_flight:
            self._events.append(happened)
        if not self._waiting_for:
            return
        concerned: dict[str, QueuedPod] = {}
        for plugin in self._listeners(happened.event):
            concerned.update(self._waiting_for.get(plugin, {}))
        for pod in concerned.values():
            if self._may_help(pod, happened):
                self._requeue(pod, now_ns)

    def tick(self, now_ns: int) -> None:
        """The clock moved on: end backoffs, and retry what has waited too long."""
        while self._backoff and self._backoff[0][0] <= now_ns:
            pod = heapq.heappop(self._backoff)[2]
            if self._backoff_keys.get(pod.info.key) is pod:
                del self._backoff_keys[pod.info.key]
                self._activate_or_gate(pod)
        overdue: list[QueuedPod] = []
        for pod in self._unschedulable.values():
            # In order of rejection, so the first that is not overdue ends the search.
            if pod.timestamp_ns + self._unschedulable_timeout_ns > now_ns:
                break
            overdue.append(pod)
        for pod in overdue:
            self._requeue(pod, now_ns)

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
        # 2**62 s is long past any maximum; the bound keeps the number small.
        delay_s = self._settings.initial_backoff_s * (1 << min(failures - 1, 62))
        return pod.timestamp_ns + round(min(delay_s, self._settings.max_backoff_s) * NS_PER_S)

    def _activate_or_gate(self, pod: QueuedPod) -> None:
        profile = self._profile(pod)
        for plugin in profile.pre_enqueue:
            if not plugin.pre_enqueue(pod.info).is_success:
                pod.gating_plugin = plugin.name
                self._wait(self._gated, pod, (plugin.name,))
                return
        pod.gating_plugin = ""
        self._order += 1
        self._active_keys[pod.info.key] = pod
        heapq.heappush(self._active, (self._sort_key(profile, pod), self._order, pod))

    @staticmethod
    def _sort_key(profile: Profile, pod: QueuedPod) -> Any:
        key = profile.queue_sort.sort_key(pod)
        return _comparable(profile, pod) if key is None else key

    def _requeue(self, pod: QueuedPod, now_ns: int) -> None:
        self._forget(pod.info.key)
        ends_ns = 0 if pod.pending_plugins else self.backoff_ends_ns(pod)
        if ends_ns <= now_ns:
            self._activate_or_gate(pod)
            return
        self._order += 1
        self._backoff_keys[pod.info.key] = pod
        heapq.heappush(self._backoff, (ends_ns, self._order, pod))

    def _wait(self, where: dict[str, QueuedPod], pod: QueuedPod, plugins: Iterable[str]) -> None:
        where[pod.info.key] = pod
        for plugin in sorted(plugins):
            self._waiting_for.setdefault(plugin, {})[pod.info.key] = pod

    def _forget(self, key: str) -> None:
        self._active_keys.pop(key, None)
        self._backoff_keys.pop(key, None)
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

    def _end_flight(self, key: str) -> None:
        if self._in_flight.pop(key, None) is None:
            return
        # Dictionaries keep order: the first in flight is the one with the oldest events to keep.
        oldest = next((since for _, since in self._in_flight.values()), self._events_end)
        while self._events_start < oldest:
            self._events.popleft()
            self._events_start += 1

    def _listeners(self, event: ClusterEvent) -> Mapping[str, tuple[Listener, ...]]:
        """Registrations that cover the event, by plugin; looked up once per kind of event."""
        known = self._listeners_of.get(event)
        if known is not None:
            return known
        found: dict[str, tuple[Listener, ...]] = {}
        for name, profile in self._profiles.items():
            for registered in profile.events:
                if registered.event.covers(event):
                    entry = Listener(name, registered)
                    found[registered.plugin] = (*found.get(registered.plugin, ()), entry)
        self._listeners_of[event] = found
        return found

    def _may_help(self, pod: QueuedPod, happened: Happened) -> bool:
        plugins = pod.unschedulable_plugins | pod.pending_plugins
        if pod.gating_plugin:
            plugins = frozenset({pod.gating_plugin})
        if not plugins:
            return True
        scheduler = pod.info.pod.spec.scheduler_name
        for plugin, listeners in self._listeners(happened.event).items():
            if plugin not in plugins:
                continue
            for listener in listeners:
                if (
                    listener.scheduler_name == scheduler
                    and _hint(listener.registered, pod.info.pod, happened) is QueueingHint.QUEUE
                ):
                    return True
        return False


def _hint(registered: RegisteredEvent, pod: Pod, happened: Happened) -> QueueingHint:
    if registered.hint is None:
        return QueueingHint.QUEUE
    try:
        return registered.hint(pod, happened.old, happened.new)
    except Exception:  # noqa: BLE001  a hint is a plugin's code: its bug must not strand a pod
        return QueueingHint.QUEUE


def _comparable(profile: Profile, pod: QueuedPod) -> Any:
    """A heap key for a QueueSort that only has ``less``."""
    sort = profile.queue_sort

    def compare(first: QueuedPod, second: QueuedPod) -> int:
        return -1 if sort.less(first, second) else int(sort.less(second, first))

    return cmp_to_key(compare)(pod)
