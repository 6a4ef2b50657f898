"""Kubernetes Events about pods and PodGroups: Scheduled, FailedScheduling, Preempted ...

Recording never waits and never fails. Events go into a bounded queue with an equal share for each
namespace. Sender tasks empty it. Repetitions of an event become a series of one Event, as with
client-go's recorder, and new Events about one object are limited.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple

import anyio
import msgspec
import structlog

from asched.kube.client import MERGE_PATCH, ApiClient, RequestOptions
from asched.kube.errors import ApiError, NoResponseError
from asched.kube.event_bodies import (
    NAME_LIMIT,
    EventBody,
    EventMeta,
    EventSeries,
    SeriesPatch,
    collection_of,
    cut_note,
    encode,
    micro_time,
    reference_to,
)
from asched.kube.event_limits import Deferral, FairQueue, ObjectLimit
from asched.kube.group_writer import GroupRef
from asched.kube.pod_writer import PodTarget
from asched.kube.timing import RetryPolicy, StoppableSleep
from asched.kube.transport import JSON, ApiRequest

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


class EventRecorderSettings(msgspec.Struct, frozen=True):
    """Sizes, delays and limits of the recorder."""

    queue_limit: int = 4096
    senders: int = 4
    parallel_from: int = 256
    """Number of waiting Events from which senders work in parallel."""
    pipeline_limit: int = 16
    """Maximum number of new Events in one pipelined write."""
    gather_s: float = 1.0
    """How long a sender waits for more Events, unless they fill a pipeline: all Events of that time
    at once would occupy the API server, and bindings would wait."""
    yield_s: float = 30.0
    """How long Events wait at most for other requests to the API server, see
    :meth:`EventRecorder.yield_while`."""
    pipeline_pause_s: float = 60.0
    """How long pipelining is disabled after one without a response."""
    series_window_s: float = 360.0
    """A series ends if its event has not occurred for this long (client-go: 6 min)."""
    series_update_s: float = 60.0
    """Minimum time between updates of a growing series, after its second event."""
    series_limit: int = 4096
    warn_every_s: float = 60.0
    retry: RetryPolicy = RetryPolicy(attempts=4, initial_s=0.5, max_s=10.0)
    request_timeout_s: float = 10.0

    def __post_init__(self) -> None:
        if min(self.queue_limit, self.senders, self.series_limit, self.pipeline_limit) < 1:
            raise ValueError("limits of the event recorder must be at least 1")


class EventCounts(msgspec.Struct):
    """Counters of recorded events, updated by the recorder."""

    recorded: int = 0
    sent: int = 0
    dropped: int = 0
    """Dropped because the queue was full."""
    failed: int = 0
    """Abandoned after failures or without a response."""
    limited: int = 0
    """Not written: too many Events about one object."""


class _Key(NamedTuple):
    """Events with the same key belong to one series."""

    reason: str
    note: str
    regarding: PodTarget | GroupRef
    related: PodTarget | None = None


@dataclass(slots=True)
class _Occurrence:
    """One Event on the server, and how often it occurred."""

    event: EventBody
    last_at: datetime
    last_at_s: float
    updated_at_s: float
    count: int = 1
    count_sent: int = 0
    created: bool = False
    queued: bool = False


class EventRecorder:
    """Records events; :meth:`run` sends them, :meth:`stop` sends the rest and ends it."""

    def __init__(
        self,
        client: ApiClient,
        controller: str,
        instance: str,
        settings: EventRecorderSettings | None = None,
    ) -> None:
        """``controller`` is the scheduler's name, ``instance`` identifies the replica."""
        self.counts = EventCounts()
        self._client = client
        self._controller = controller
        self._instance = instance
        self._settings = settings or EventRecorderSettings()
        self._options = RequestOptions(
            idempotent=True, retry=self._settings.retry, timeout_s=self._settings.request_timeout_s
        )
        self._series: OrderedDict[_Key, _Occurrence] = OrderedDict()
        self._queue: FairQueue[_Occurrence] = FairQueue(
            self._settings.queue_limit, lambda occurrence: occurrence.event.metadata.namespace
        )
        self._object_limit = ObjectLimit()
        self._wake = anyio.Event()
        """Set when the queue grows, and when the recorder is closed."""
        self._gather_lock = anyio.Lock()
        self._gathering = StoppableSleep(client.clock)
        self._in_flight = 0
        """Events taken from the queue and not yet sent or failed."""
        self._no_pipelining_until_s = 0.0
        self._deferral = Deferral(self._settings.yield_s)
        self._closed = False
        self._sending = anyio.CancelScope()
        self._sent_all = anyio.Event()
        self._drops_not_logged = 0
        self._warned_at_s: float | None = None
        self._last_name_ns = 0

    def yield_while(self, busy: Callable[[], bool]) -> None:
        """While ``busy()``, queued Events wait, up to ``yield_s`` or until the queue is three
        quarters full. Pods do not wait for Events, but they wait for evictions and bindings, and
        all of them need the same API server."""
        self._deferral.busy = busy

    @property
    def waiting(self) -> int:
        """Number of queued events."""
        return len(self._queue)

    def scheduled(self, pod: PodTarget, node: str) -> None:
        """Record that a pod was bound. This happens once per pod, so no series is kept."""
        note = f"Successfully assigned {pod.namespace}/{pod.name} to {node}"
        self._record(_Key("Scheduled", note, pod), "Binding", "Normal", once=True)

    def failed_scheduling(self, pod: PodTarget, message: str) -> None:
        self._record(_Key("FailedScheduling", message, pod), "Scheduling", "Warning")

    def preempted(self, victim: PodTarget, preemptor: PodTarget, node: str) -> None:
        note = f"Preempted by pod {preemptor.uid} on node {node}"
        self._record(_Key("Preempted", note, victim, preemptor), "Preempting", "Normal")

    def record_group(self, group: GroupRef, event_type: str, reason: str, note: str) -> None:
        """Record an Event about a PodGroup."""
        self._record(_Key(reason, note, group), "Scheduling", event_type)

    def _record(self, key: _Key, action: str, event_type: str, *, once: bool = False) -> None:
        self.counts.recorded += 1
        now, now_s = self._client.clock.utc(), self._client.clock.monotonic_s()
        self._end_series(now_s)
        known = None if once else self._series.get(key)
        if known is not None:
            self._series.move_to_end(key)
            known.count += 1
            known.last_at, known.last_at_s = now, now_s
            due_s = known.updated_at_s + self._settings.series_update_s
            if known.count == 2 or now_s >= due_s:
                self._enqueue(known)
            return
        if not once and not self._object_limit.allows(key.regarding, now_s):
            self.counts.limited += 1
            return
        occurrence = self._occurrence(key, action, event_type, now, now_s)
        if not once:
            self._series[key] = occurrence
        self._enqueue(occurrence)

    def _occurrence(
        self, key: _Key, action: str, event_type: str, now: datetime, now_s: float
    ) -> _Occurrence:
        regarding, related = key.regarding, key.related
        event = EventBody(
            api_version="events.k8s.io/v1",
            kind="Event",
            metadata=EventMeta(self._name(regarding.name, now), regarding.namespace),
            event_time=micro_time(now),
            reporting_controller=self._controller,
            reporting_instance=self._instance,
            action=action,
            reason=key.reason,
            regarding=reference_to(regarding),
            note=cut_note(key.note),
            type=event_type,
            related=reference_to(related) if related is not None else None,
        )
        return _Occurrence(event, now, now_s, now_s)

    def _name(self, pod_name: str, now: datetime) -> str:
        """``<pod>.<nanoseconds in hex>`` as in client-go, unique and within the length limit."""
        stamp_ns = max(int(now.timestamp() * 1e6) * 1000, self._last_name_ns + 1)
        self._last_name_ns = stamp_ns
        suffix = f".{stamp_ns:x}"
        return pod_name[: NAME_LIMIT - len(suffix)].rstrip("-.") + suffix

    def _end_series(self, now_s: float) -> None:
        """Remove expired series after a last update, and the oldest if there are too many."""
        while self._series:
            key, oldest = next(iter(self._series.items()))
            expired = now_s - oldest.last_at_s >= self._settings.series_window_s
            if not expired and len(self._series) < self._settings.series_limit:
                return
            del self._series[key]
            self._enqueue_if_behind(oldest)

    def _enqueue_if_behind(self, occurrence: _Occurrence) -> None:
        if occurrence.count > 1 and occurrence.count > occurrence.count_sent:
            self._enqueue(occurrence)

    def _enqueue(self, occurrence: _Occurrence) -> None:
        if occurrence.queued:
            return
        occurrence.updated_at_s = occurrence.last_at_s
        if self._closed:
            self.counts.dropped += 1
            return
        occurrence.queued = True
        dropped = self._queue.put(occurrence)
        if dropped is not None:
            dropped.queued = False
            self.counts.dropped += 1
            self._drops_not_logged += 1
            self._log_drops(occurrence.last_at_s)
        self._wake.set()
        if len(self._queue) == self._settings.pipeline_limit:
            self._gathering.wake()

    def _log_drops(self, now_s: float) -> None:
        last_s = self._warned_at_s
        if last_s is not None and now_s - last_s < self._settings.warn_every_s:
            return
        self._warned_at_s = now_s
        log.warning("events dropped: queue is full", dropped=self._drops_not_logged)
        self._drops_not_logged = 0

    async def run(self) -> None:
        """Send recorded events until stopped or cancelled."""
        try:
            with self._sending:
                async with anyio.create_task_group() as tasks:
                    for _ in range(self._settings.senders):
                        tasks.start_soon(self._send_queued)
        finally:
            self._closed = True
            self._sent_all.set()

    async def stop(self, deadline_s: float) -> None:
        """Stop accepting events and send the queued ones within ``deadline_s`` seconds."""
        for occurrence in self._series.values():
            self._enqueue_if_behind(occurrence)
        self._series.clear()
        self._closed = True
        self._wake.set()
        self._gathering.end()
        with anyio.move_on_after(deadline_s):
            await self._sent_all.wait()
        if self._queue or self._in_flight:
            log.warning(
                "events not sent before shutdown", events=len(self._queue) + self._in_flight
            )
        self._sending.cancel()

    async def _send_queued(self) -> None:
        while True:
            async with self._gather_lock:
                occurrences = await self._gathered()
                if len(self._queue) < self._settings.parallel_from:
                    # One request at a time, so that Events do not delay bindings.
                    await self._send(occurrences)
                    occurrences.clear()
            await self._send(occurrences)
            if self._closed and not self._queue:
                return

    async def _send(self, occurrences: Sequence[_Occurrence]) -> None:
        for occurrence in await self._create_pipelined(occurrences):
            try:
                await self._deliver(occurrence)
            except (ApiError, NoResponseError) as error:
                self.counts.failed += 1
                log.warning("event not sent", reason=occurrence.event.reason, error=str(error))
            else:
                self.counts.sent += 1
            self._in_flight -= 1

    async def _gathered(self) -> list[_Occurrence]:
        """The next events to send, after a short wait for more of them; empty when closed."""
        limit = self._settings.pipeline_limit
        while not self._queue:
            if self._closed:
                return []
            self._wake = anyio.Event()
            await self._wake.wait()
        if len(self._queue) < limit and not self._closed:
            await self._gathering.pause(self._settings.gather_s)
        while self._yields():
            await self._gathering.pause(self._settings.gather_s)
        taken = [self._queue.take() for _ in range(min(limit, len(self._queue)))]
        self._in_flight += len(taken)
        for occurrence in taken:
            occurrence.queued = False
        return taken

    def _yields(self) -> bool:
        has_room = 4 * len(self._queue) < 3 * self._settings.queue_limit
        waits = self._deferral.waits(self._client.clock.monotonic_s())
        return waits and has_room and not self._closed

    async def _create_pipelined(self, occurrences: Sequence[_Occurrence]) -> Sequence[_Occurrence]:
        """Create new Events in one write, at half the cost. Returns those to be sent one by one."""
        new: list[_Occurrence] = []
        left: list[_Occurrence] = []
        for occurrence in occurrences:
            is_new = not occurrence.created and occurrence.count == 1
            (new if is_new else left).append(occurrence)
        if len(new) < 2 or self._client.clock.monotonic_s() < self._no_pipelining_until_s:
            return occurrences
        timeout_s = self._settings.request_timeout_s
        requests = [
            ApiRequest("POST", collection_of(one.event), None, JSON, encode(one.event), timeout_s)
            for one in new
        ]
        try:
            answers = await self._client.request_pipelined(requests)
        except NoResponseError:
            self._no_pipelining_until_s = (
                self._client.clock.monotonic_s() + self._settings.pipeline_pause_s
            )
            return occurrences
        for one, answer in zip(new, answers, strict=True):
            if isinstance(answer, ApiError):
                left.append(one)
            else:
                one.created = True
                one.count_sent = 1
                self.counts.sent += 1
                self._in_flight -= 1
        return left

    async def _deliver(self, occurrence: _Occurrence) -> None:
        count = occurrence.count
        if not occurrence.created:
            await self._create(occurrence)
        if count > 1:
            try:
                await self._update(occurrence, count)
            except ApiError as error:
                if error.status != 404:
                    raise
                # Events expire after an hour; the series continues in a new one of the same name.
                await self._create(occurrence)
                await self._update(occurrence, count)
        occurrence.count_sent = count

    async def _create(self, occurrence: _Occurrence) -> None:
        try:
            await self._request("POST", collection_of(occurrence.event), occurrence.event)
        except ApiError as error:
            # The name is unique, so an earlier attempt succeeded.
            if error.reason != "AlreadyExists":
                raise
        occurrence.created = True

    async def _update(self, occurrence: _Occurrence, count: int) -> None:
        path = f"{collection_of(occurrence.event)}/{occurrence.event.metadata.name}"
        series = EventSeries(count, micro_time(occurrence.last_at))
        await self._request("PATCH", path, SeriesPatch(series))

    async def _request(self, method: str, path: str, body: msgspec.Struct) -> None:
        # Both are idempotent: a created event has a fixed name, and a series an absolute count.
        await self._client.request(
            method,
            path,
            body=encode(body),
            content_type=MERGE_PATCH if method == "PATCH" else JSON,
            options=self._options,
        )
