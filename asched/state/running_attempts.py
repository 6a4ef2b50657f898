"""The part of the scheduling queue with the pods in flight. A part of :mod:`asched.state.queue`.

Cluster events between a pod's decision and the end of its binding are kept for it: should the
attempt be rejected, its queueing hints decide about them (``inFlightPods`` and ``inFlightEvents``
of kube-scheduler). A binding may take ten minutes, and events hold pods that no longer exist, so
the oldest events are dropped beyond a limit. An attempt that missed them is repeated if it is
rejected.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from copy import copy
from itertools import islice
from typing import Final

import msgspec

from asched.framework.pod_info import QueuedPod
from asched.state.cluster_events import QueuedClusterEvent

MAX_EVENTS: Final = 4096
_CHUNK: Final = 512
"""The size of the newest events is checked after this many."""
_MAX_CHUNK_BYTES: Final = 4 * 1024 * 1024
"""JSON of the objects of that many events: 8 KiB for each, ten times as much as usual."""

_encode = msgspec.json.Encoder().encode

RunningAttempt = tuple[QueuedPod, int]
"""A pod, and the number of the first event since its attempt began."""


class RunningAttempts:
    """The attempts that have not ended, by the key of their pod."""

    def __init__(self) -> None:
        self.by_key: dict[str, RunningAttempt] = {}
        """Oldest attempt first. Read-only."""
        self.events: deque[QueuedClusterEvent] = deque()
        """Kept for pods in flight, oldest first."""
        self.events_start = 0
        """The number of the oldest event."""

    def __contains__(self, key: str) -> bool:
        return key in self.by_key

    def __iter__(self) -> Iterator[str]:
        """The keys, oldest attempt first."""
        return iter(self.by_key)

    def __getitem__(self, key: str) -> QueuedPod:
        """The pod of that key. Raises KeyError if no attempt of it runs."""
        return self.by_key[key][0]

    def find(self, key: str) -> QueuedPod | None:
        attempt = self.by_key.get(key)
        return None if attempt is None else attempt[0]

    @property
    def _events_end(self) -> int:
        return self.events_start + len(self.events)

    def begin(self, pod: QueuedPod) -> None:
        """An attempt that is continued keeps the events since it began."""
        self.by_key.setdefault(pod.info.key, (pod, self._events_end))

    def add_event(self, queued_event: QueuedClusterEvent) -> None:
        """Keep an event, and drop the oldest ones if they are too many or too large. That depends
        on the kept events only, so a restored state drops the same."""
        events = self.events
        events.append(queued_event)
        if len(events) < _CHUNK or self._events_end % _CHUNK:
            return
        newest = islice(reversed(events), _CHUNK)
        size_bytes = sum(len(_encode(event.old or event.new)) for event in newest)
        if size_bytes > _MAX_CHUNK_BYTES:
            self._keep(_CHUNK // 2)
        elif len(events) > MAX_EVENTS:
            self._keep(MAX_EVENTS // 2)

    def _keep(self, most: int) -> None:
        while len(self.events) > most:
            self.events.popleft()
            self.events_start += 1

    def missed_events(self, key: str) -> list[QueuedClusterEvent] | None:
        """The events since the attempt began; None if some of them were dropped. Raises KeyError if
        none of that key runs."""
        _, events_from = self.by_key[key]
        if events_from < self.events_start:
            return None
        return [*islice(self.events, events_from - self.events_start, None)]

    def end(self, key: str) -> None:
        """Also forgets the events that no other attempt needs."""
        if self.by_key.pop(key, None) is None:
            return
        # Dictionaries keep order: the first attempt is the one with the oldest events.
        oldest = self._events_end
        for _, oldest in self.by_key.values():  # noqa: B007  read below
            break
        while self.events_start < oldest:
            self.events.popleft()
            self.events_start += 1

    def copy(self) -> RunningAttempts:
        """The same attempts and events; it can be changed on its own."""
        copied = copy(self)
        copied.by_key, copied.events = {**self.by_key}, self.events.copy()
        return copied

    def restore(
        self,
        attempts: Iterable[RunningAttempt],
        events: Iterable[QueuedClusterEvent],
        events_start: int,
    ) -> None:
        """Fill it. ``events_start`` is the number of the first event."""
        self.by_key = {pod.info.key: (pod, first) for pod, first in attempts}
        self.events.extend(events)
        self.events_start = events_start
