"""The part of the scheduling queue with the pods that wait for an event. A part of
:mod:`asched.state.queue`.

They are indexed by the plugins that they wait for, so that an event looks only at the pods that one
of its plugins rejected or gates.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from copy import copy
from itertools import islice

from asched.framework.caching import ChangeLog
from asched.framework.pod_info import QueuedPod
from asched.framework.query_index import RejectedPods
from asched.state.cluster_events import QueuedClusterEvent, QueueingHints, SelectedPods

_MAX_CHANGES = 8192


class UnschedulablePods:
    """Rejected pods, and pods that PreEnqueue gates."""

    def __init__(self) -> None:
        self.unschedulable: dict[str, QueuedPod] = {}
        """In order of rejection."""
        self.gated: dict[str, QueuedPod] = {}
        self.by_plugin: dict[str, dict[str, QueuedPod]] = {}
        """By the name of each plugin that a pod waits for."""
        self._waiting_of: Counter[tuple[str, str]] = Counter()
        """How many pods wait, by plugin and by the scheduler name in ``_names``."""
        self._names: dict[str, str] = {}
        """The scheduler name that each pod had when it began to wait, by key."""
        self.changes: ChangeLog[str] = ChangeLog(_MAX_CHANGES)
        """Keys of pods that begin or cease to wait, or are updated while they wait, and of those
        that other objects move from queue to queue. A cache: it is not part of checkpoints."""

    def find(self, key: str) -> QueuedPod | None:
        """The rejected or gated pod of that key."""
        return self.unschedulable.get(key) or self.gated.get(key)

    def add_unschedulable(self, pod: QueuedPod) -> None:
        """The plugins in ``unschedulable_plugins`` and ``pending_plugins`` rejected the pod."""
        self.unschedulable[pod.info.key] = pod
        self._index(pod, pod.unschedulable_plugins | pod.pending_plugins)

    def add_gated(self, pod: QueuedPod) -> None:
        """``gating_plugin`` gates the pod."""
        self.gated[pod.info.key] = pod
        self._index(pod, (pod.gating_plugin,))

    def _index(self, pod: QueuedPod, plugins: Iterable[str]) -> None:
        key = pod.info.key
        self.changes.append(key)
        name = self._names[key] = pod.info.pod.spec.scheduler_name
        for plugin in sorted(plugins):
            self.by_plugin.setdefault(plugin, {})[key] = pod
            self._waiting_of[plugin, name] += 1

    def note_update(self, key: str) -> None:
        """The pod of that key was updated while it waits."""
        self.changes.append(key)

    def remove(self, key: str) -> None:
        """Nothing if no such pod waits."""
        pod = self.unschedulable.pop(key, None) or self.gated.pop(key, None)
        if pod is None:
            return
        self.changes.append(key)
        name = self._names.pop(key)
        for plugin in (*pod.unschedulable_plugins, *pod.pending_plugins, pod.gating_plugin):
            waiting = self.by_plugin.get(plugin)
            if waiting is not None and waiting.pop(key, None) is not None:
                if not waiting:
                    del self.by_plugin[plugin]
                self._waiting_of[plugin, name] -= 1
                if not self._waiting_of[plugin, name]:
                    del self._waiting_of[plugin, name]

    def clear(self) -> None:
        self.unschedulable.clear()
        self.gated.clear()
        self.by_plugin.clear()
        self._waiting_of.clear()
        self._names.clear()
        self.changes.forget()

    def restore(
        self,
        unschedulable: dict[str, QueuedPod],
        gated: dict[str, QueuedPod],
        by_plugin: dict[str, dict[str, QueuedPod]],
    ) -> None:
        """Fill it."""
        self.unschedulable, self.gated, self.by_plugin = unschedulable, gated, by_plugin
        self._names = {
            key: pod.info.pod.spec.scheduler_name
            for pods in (unschedulable, gated)
            for key, pod in pods.items()
        }
        self._waiting_of = Counter(
            (plugin, self._names[key]) for plugin, pods in by_plugin.items() for key in pods
        )

    def copy(self) -> UnschedulablePods:
        """The same pods, for a snapshot. The log of changes is shared."""
        copied = copy(self)
        copied.unschedulable, copied.gated = {**self.unschedulable}, {**self.gated}
        copied.by_plugin = {plugin: {**pods} for plugin, pods in self.by_plugin.items()}
        copied._waiting_of, copied._names = self._waiting_of.copy(), {**self._names}
        return copied

    def selected(
        self, hints: QueueingHints, queued_event: QueuedClusterEvent
    ) -> tuple[Collection[QueuedPod], SelectedPods]:
        """The pods that the event may help, and the keys by plugin that selects among them."""
        parts: list[_Part] = []
        selected: dict[str, Collection[str]] = {}
        registered = hints.for_event(queued_event.event)
        if registered.keys().isdisjoint(self.by_plugin):
            return (), selected
        for plugin, of_profiles in registered.items():
            waiting = self.by_plugin.get(plugin)
            if not waiting:
                continue
            # Pods of one profile do not cost hints of the others.
            of_plugin = [h for h in of_profiles if (plugin, h.scheduler_name) in self._waiting_of]
            if of_plugin:
                rejected = RejectedPods(waiting, self.changes)
                chosen = hints.selected(rejected, of_plugin, queued_event)
                if chosen is not None:
                    # Mostly few of many, and mostly none.
                    chosen = selected[plugin] = waiting.keys() & chosen
                if chosen is None or chosen:
                    parts.append((hints.candidates(waiting, of_plugin, queued_event), chosen))
        return _union(parts).values() if parts else (), selected

    def rejected_by(self, plugin: str) -> list[QueuedPod]:
        """The rejected pods, without gated ones, that wait for the plugin."""
        waiting = self.by_plugin.get(plugin, {})
        return [pod for key, pod in waiting.items() if key in self.unschedulable]

    def oldest(self) -> Iterator[QueuedPod]:
        """The pod that was rejected first, if any."""
        return islice(self.unschedulable.values(), 1)

    def rejected_until(self, time_ns: int) -> list[QueuedPod]:
        """The pods that were rejected at ``time_ns`` or earlier."""
        found: list[QueuedPod] = []
        for pod in self.unschedulable.values():
            # In order of rejection: the first later one ends the search.
            if pod.timestamp_ns > time_ns:
                break
            found.append(pod)
        return found


_Part = tuple[Mapping[str, QueuedPod], Collection[str] | None]
"""The pods that wait for a plugin, and the keys of those that it selects; None for all."""


def _union(parts: Sequence[_Part]) -> dict[str, QueuedPod]:
    """The pods that any plugin selects, in the same order as if each selected all."""
    found: dict[str, QueuedPod] = {}
    if all(selected is None for _, selected in parts):
        for waiting, _ in parts:
            found.update(waiting)
        return found
    keys: set[str] = set()
    for waiting, selected in parts:
        keys.update(waiting if selected is None else selected)
    if keys:
        for waiting, _ in parts:
            found.update({key: pod for key, pod in waiting.items() if key in keys})
    return found
