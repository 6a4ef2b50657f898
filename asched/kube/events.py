"""The Events that users see with ``kubectl describe``: Scheduled, FailedScheduling, Preempted, and
those about PodGroups.

Recording never waits and never fails: events are put into a bounded queue which sender tasks empty,
and when it is full the oldest goes. The same event of the same object within a while becomes a
series of one Event, as client-go's recorder makes it.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from typing import NamedTuple

import anyio
import msgspec
import structlog

from asched.kube.client import JSON, MERGE_PATCH, ApiClient
from asched.kube.errors import ApiError, NoResponseError
from asched.kube.group_writer import GroupRef
from asched.kube.timing import RetryPolicy
from asched.kube.transport import ApiRequest
from asched.kube.writers import PodRef

NOTE_LIMIT_BYTES = 1024
"""The API server refuses longer notes."""
_CUT = " ..."
NAME_LIMIT = 253

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


class EventRecorderSettings(msgspec.Struct, frozen=True):
    """Bounds of the recorder."""

    queue_limit: int = 4096
    senders: int = 4
    line_limit: int = 16
    """So many new Events are sent in one go, at most."""
    gather_s: float = 0.02
    """How long a sender waits for more of them."""
    line_pause_s: float = 60.0
    """How long Events are sent one by one after a line of them had no answer."""
    series_window_s: float = 360.0
    """A series ends when its event has not occurred for this long (client-go: 6 min)."""
    series_update_s: float = 60.0
    """A growing series is updated on the server at most this often, after its second event."""
    series_limit: int = 4096
    warn_every_s: float = 60.0
    retry: RetryPolicy = RetryPolicy(attempts=4, initial_s=0.5, max_s=10.0)
    request_timeout_s: float = 10.0

    def __post_init__(self) -> None:
        if min(self.queue_limit, self.senders, self.series_limit, self.line_limit) < 1:
            raise ValueError("an event recorder needs room for one event and one sender")


class EventCounts(msgspec.Struct):
    """What became of recorded events. Only the recorder writes them."""

    recorded: int = 0
    sent: int = 0
    dropped: int = 0
    """Left out because the queue was full."""
    failed: int = 0
    """Given up after the server refused them or did not answer."""


class _Reference(msgspec.Struct, frozen=True, rename="camel"):
    namespace: str
    name: str
    uid: str
    kind: str = "Pod"
    api_version: str = "v1"


class _Meta(msgspec.Struct, frozen=True):
    name: str
    namespace: str


class _Event(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    api_version: str
    kind: str
    metadata: _Meta
    event_time: str
    reporting_controller: str
    reporting_instance: str
    action: str
    reason: str
    regarding: _Reference
    note: str
    type: str
    related: _Reference | None = None


class _Series(msgspec.Struct, frozen=True, rename="camel"):
    count: int
    last_observed_time: str


class _SeriesPatch(msgspec.Struct, frozen=True):
    series: _Series


class _Key(NamedTuple):
    """Two events that agree in this are the same one occurring again."""

    reason: str
    note: str
    regarding: PodRef | GroupRef
    related: PodRef | None


class _Occurrence:
    """One Event on the server, and how often it has occurred."""

    __slots__ = ("count", "count_sent", "created", "event", "last_at", "last_at_s", "queued",
                 "updated_at_s")  # fmt: skip

    def __init__(self, event: _Event, at: datetime, at_s: float) -> None:
        self.event = event
        self.count = 1
        self.count_sent = 0
        self.created = False
        self.queued = False
        self.last_at = at
        self.last_at_s = at_s
        self.updated_at_s = at_s


class EventRecorder:
    """Records events about pods and sends them in the background.

    ``run`` must be running for anything to be sent; ``stop`` ends it after a last effort.
    """

    def __init__(
        self,
        client: ApiClient,
        controller: str,
        instance: str,
        settings: EventRecorderSettings | None = None,
    ) -> None:
        """``controller`` is the scheduler's name, ``instance`` this process among its replicas."""
        self.counts = EventCounts()
        self._client = client
        self._controller = controller
        self._instance = instance
        self._settings = settings or EventRecorderSettings()
        self._series: OrderedDict[_Key, _Occurrence] = OrderedDict()
        self._queue: deque[_Occurrence] = deque()
        self._arrived = anyio.Event()
        """Set when something was put into the queue, or nothing more will be."""
        self._gathering = anyio.Lock()
        self._unanswered = 0
        """Events that were taken from the queue and whose fate is open."""
        self._no_lines_until_s = 0.0
        self._closed = False
        self._sending = anyio.CancelScope()
        self._sent_all = anyio.Event()
        self._dropped_unsaid = 0
        self._warned_at_s: float | None = None
        self._last_name_ns = 0

    @property
    def waiting(self) -> int:
        """Events that wait to be sent."""
        return len(self._queue)

    # -- recording ----------------------------------------------------------------------------

    def scheduled(self, pod: PodRef, node: str) -> None:
        """Happens to a pod once, so there is no series to look for, and none is kept from growing."""
        note = f"Successfully assigned {pod.namespace}/{pod.name} to {node}"
        self.counts.recorded += 1
        now, now_s = self._client.clock.utc(), self._client.clock.monotonic_s()
        self._end_series(now_s)
        key = _Key("Scheduled", note, pod, None)
        self._enqueue(self._occurrence(key, "Binding", "Normal", now, now_s))

    def failed_scheduling(self, pod: PodRef, message: str) -> None:
        self._record("FailedScheduling", "Scheduling", "Warning", message, pod)

    def preempted(self, victim: PodRef, preemptor: PodRef, node: str) -> None:
        note = f"Preempted by pod {preemptor.uid} on node {node}"
        self._record("Preempted", "Preempting", "Normal", note, victim, preemptor)

    def of_group(self, group: GroupRef, event_type: str, reason: str, note: str) -> None:
        """An Event about a PodGroup."""
        self._record(reason, "Scheduling", event_type, note, group)

    def _record(
        self,
        reason: str,
        action: str,
        event_type: str,
        note: str,
        regarding: PodRef | GroupRef,
        related: PodRef | None = None,
    ) -> None:
        self.counts.recorded += 1
        now, now_s = self._client.clock.utc(), self._client.clock.monotonic_s()
        self._end_series(now_s)
        key = _Key(reason, note, regarding, related)
        known = self._series.get(key)
        if known is not None:
            self._series.move_to_end(key)
            known.count += 1
            known.last_at, known.last_at_s = now, now_s
            due_s = known.updated_at_s + self._settings.series_update_s
            if known.count == 2 or now_s >= due_s:
                self._enqueue(known)
            return
        occurrence = self._series[key] = self._occurrence(key, action, event_type, now, now_s)
        self._enqueue(occurrence)

    def _occurrence(
        self, key: _Key, action: str, event_type: str, now: datetime, now_s: float
    ) -> _Occurrence:
        """A new one."""
        regarding, related = key.regarding, key.related
        event = _Event(
            api_version="events.k8s.io/v1",
            kind="Event",
            metadata=_Meta(self._name(regarding.name, now), regarding.namespace),
            event_time=_micro_time(now),
            reporting_controller=self._controller,
            reporting_instance=self._instance,
            action=action,
            reason=key.reason,
            regarding=_reference(regarding),
            note=cut_note(key.note),
            type=event_type,
            related=_reference(related) if related is not None else None,
        )
        return _Occurrence(event, now, now_s)

    def _name(self, pod_name: str, now: datetime) -> str:
        """``<pod>.<nanoseconds in hex>`` like client-go's, unique here, and never too long."""
        stamp_ns = max(int(now.timestamp() * 1e6) * 1000, self._last_name_ns + 1)
        self._last_name_ns = stamp_ns
        suffix = f".{stamp_ns:x}"
        return pod_name[: NAME_LIMIT - len(suffix)].rstrip("-.") + suffix

    def _end_series(self, now_s: float) -> None:
        """Forget series that have not grown for a while, after a last update."""
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
        if len(self._queue) >= self._settings.queue_limit:
            self._queue.popleft().queued = False
            self.counts.dropped += 1
            self._dropped_unsaid += 1
            self._warn_of_drops(occurrence.last_at_s)
        self._queue.append(occurrence)
        occurrence.queued = True
        self._arrived.set()

    def _warn_of_drops(self, now_s: float) -> None:
        last_s = self._warned_at_s
        if last_s is not None and now_s - last_s < self._settings.warn_every_s:
            return
        self._warned_at_s = now_s
        log.warning("events dropped: the API server is too slow", dropped=self._dropped_unsaid)
        self._dropped_unsaid = 0

    # -- sending ------------------------------------------------------------------------------

    async def run(self) -> None:
        """Send what is recorded, until stopped or cancelled."""
        try:
            with self._sending:
                async with anyio.create_task_group() as tasks:
                    for _ in range(self._settings.senders):
                        tasks.start_soon(self._send_queued)
        finally:
            self._closed = True
            self._sent_all.set()

    async def stop(self, deadline_s: float) -> None:
        """Take no more events, send those that wait, and give up after ``deadline_s`` seconds."""
        for occurrence in self._series.values():
            self._enqueue_if_behind(occurrence)
        self._series.clear()
        self._closed = True
        self._arrived.set()
        with anyio.move_on_after(deadline_s):
            await self._sent_all.wait()
        if self._queue or self._unanswered:
            log.warning(
                "events not sent before the end", events=len(self._queue) + self._unanswered
            )
        self._sending.cancel()

    async def _send_queued(self) -> None:
        while occurrences := await self._gathered():
            for occurrence in await self._left_by_a_line(occurrences):
                try:
                    await self._deliver(occurrence)
                except (ApiError, NoResponseError) as error:
                    self.counts.failed += 1
                    log.warning("event not sent", reason=occurrence.event.reason, error=str(error))
                else:
                    self.counts.sent += 1
                self._unanswered -= 1

    async def _gathered(self) -> list[_Occurrence]:
        """What is to be sent next; nothing at the end. Nobody looks for an Event as soon as it
        happens, so a moment is given to others to be sent along."""
        limit = self._settings.line_limit
        async with self._gathering:
            while not self._queue:
                if self._closed:
                    return []
                self._arrived = anyio.Event()
                await self._arrived.wait()
            if len(self._queue) < limit and not self._closed:
                await self._client.clock.sleep(self._settings.gather_s)
            taken = [self._queue.popleft() for _ in range(min(limit, len(self._queue)))]
        self._unanswered += len(taken)
        for occurrence in taken:
            occurrence.queued = False
        return taken

    async def _left_by_a_line(self, occurrences: Sequence[_Occurrence]) -> Sequence[_Occurrence]:
        """Create what is new in one go: half of what a request costs is its way there and back. What
        is left to be delivered one by one is returned."""
        new: list[_Occurrence] = []
        left: list[_Occurrence] = []
        for occurrence in occurrences:
            is_new = not occurrence.created and occurrence.count == 1
            (new if is_new else left).append(occurrence)
        if len(new) < 2 or self._client.clock.monotonic_s() < self._no_lines_until_s:
            return occurrences
        requests = [
            ApiRequest("POST", _collection(one.event), None, JSON, _encode(one.event),
                       self._settings.request_timeout_s)
            for one in new
        ]  # fmt: skip
        try:
            answers = await self._client.request_line(requests)
        except NoResponseError:
            self._no_lines_until_s = self._client.clock.monotonic_s() + self._settings.line_pause_s
            return occurrences
        for one, answer in zip(new, answers, strict=True):
            if isinstance(answer, ApiError):
                left.append(one)
            else:
                one.created = True
                one.count_sent = 1
                self.counts.sent += 1
                self._unanswered -= 1
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
                # Events live for an hour; the series goes on in a new one of the same name.
                await self._create(occurrence)
                await self._update(occurrence, count)
        occurrence.count_sent = count

    async def _create(self, occurrence: _Occurrence) -> None:
        try:
            await self._request("POST", _collection(occurrence.event), occurrence.event)
        except ApiError as error:
            # Its name is ours alone, so it is there because an earlier try did get through.
            if error.reason != "AlreadyExists":
                raise
        occurrence.created = True

    async def _update(self, occurrence: _Occurrence, count: int) -> None:
        path = f"{_collection(occurrence.event)}/{occurrence.event.metadata.name}"
        series = _Series(count, _micro_time(occurrence.last_at))
        await self._request("PATCH", path, _SeriesPatch(series))

    async def _request(self, method: str, path: str, body: msgspec.Struct) -> None:
        # Both repeat without harm: the name of a created event is given, a series counts absolutely.
        await self._client.request(
            method,
            path,
            body=_encode(body),
            content_type=MERGE_PATCH if method == "PATCH" else JSON,
            idempotent=True,
            retry=self._settings.retry,
            timeout_s=self._settings.request_timeout_s,
        )


_encode: Callable[[msgspec.Struct], bytes] = msgspec.json.Encoder().encode


def cut_note(note: str) -> str:
    """At most 1024 bytes, cut as kube-scheduler cuts it but never within a character."""
    encoded = note.encode()
    if len(encoded) <= NOTE_LIMIT_BYTES:
        return note
    kept = encoded[: NOTE_LIMIT_BYTES - len(_CUT)]
    return kept.decode(errors="ignore") + _CUT


def _collection(event: _Event) -> str:
    return f"/apis/events.k8s.io/v1/namespaces/{event.metadata.namespace}/events"


def _reference(thing: PodRef | GroupRef) -> _Reference:
    if isinstance(thing, GroupRef):
        kind, version = thing.resource.kind, thing.api_version
        return _Reference(thing.namespace, thing.name, thing.uid, kind, version)
    return _Reference(thing.namespace, thing.name, thing.uid)


def _micro_time(moment: datetime) -> str:
    """``metav1.MicroTime``."""
    return f"{_to_the_second(int(moment.timestamp()))}.{moment.microsecond:06d}Z"


@lru_cache(maxsize=8)
def _to_the_second(unix_s: int) -> str:
    """A burst of Events has many in each second, and a time takes longer to write than the rest."""
    return datetime.fromtimestamp(unix_s, UTC).isoformat()[: -len("+00:00")]
