"""Lists and watches resources, and delivers their changes to a sink.

A watch that ends is reopened from the last resourceVersion; after 410 the resource is listed again.
A request without progress is followed by a growing delay, so the loop cannot spin whatever the
server does. A request with progress is followed by the next one immediately.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import NamedTuple

import anyio
import anyio.lowlevel
import msgspec
import structlog
from anyio.abc import TaskGroup, TaskStatus

from asched.core.inputs import Change, ChangeSink, Listed
from asched.kube.client import ApiClient
from asched.kube.decoding import (
    LineSplitter,
    MalformedResponseError,
    ObjectDecoder,
    WatchEvent,
    WatchEventType,
    parse_event,
    parse_status,
    resource_version,
)
from asched.kube.errors import ApiError, NoResponseError
from asched.kube.paged_lists import PagedLists
from asched.kube.served_versions import ServedVersion
from asched.kube.timing import Backoff, Clock, RetryPolicy
from asched.model.resources import (
    CustomWatched,
    GroupResource,
    Resource,
    WatchedResource,
)
from asched.state.seen_versions import SeenVersions

UNFINISHED_PODS = "status.phase!=Succeeded,status.phase!=Failed"
"""kube-scheduler's field selector for pods: a pod that finishes is seen as deleted."""
OPTIONAL: frozenset[WatchedResource] = frozenset({Resource.PRIORITY_CLASSES, *GroupResource})
"""Resources that ``system:kube-scheduler`` does not allow to read. If reading one is forbidden, the
scheduler continues as if it had no objects. The API server copies a priority class's value into
each pod. Only some configurations use pod groups and queues (see ``docs/how-to/batch.md``)."""

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


class ReflectorSettings(msgspec.Struct, frozen=True):
    """Sizes, timeouts and delays of a reflector."""

    page_limit: int = 500
    """Largest number of objects in a page of a list."""
    part_objects: int | None = None
    """Least number of objects in a part of a list but the last. By default a list is delivered in
    one part, once it is complete."""
    watch_timeout_s: tuple[int, int] = (300, 600)
    """Range of the random ``timeoutSeconds`` of a watch."""
    watch_grace_s: float = 30.0
    """How long after its ``timeoutSeconds`` a watch is abandoned."""
    healthy_watch_s: float = 10.0
    """A watch that lasted this long is reopened without delay, even without events."""
    retry: RetryPolicy = RetryPolicy(initial_s=0.8, max_s=30.0)
    slow_retry: RetryPolicy = RetryPolicy(initial_s=10.0, max_s=60.0)
    """For failures that need an administrator: no permission, resource not served."""
    log_every_s: float = 300.0
    """Minimum time between two log lines about the same problem."""
    relist_after_failures: int = 5
    """Number of consecutive failures of a watch after which the resource is listed again."""


class ReflectorCounts(msgspec.Struct):
    """Counters of one reflector."""

    lists: int = 0
    watches: int = 0
    failures: int = 0


@dataclass(slots=True)
class _ProblemLog:
    """Logs a problem of one kind of request once per interval, and when it ends."""

    request: str
    """``list`` or ``watch``."""
    resource: WatchedResource
    clock: Clock
    every_s: float
    _kind: str = ""
    _logged_at_s: float = 0.0

    def problem(self, kind: str, text: str) -> None:
        now_s = self.clock.monotonic_s()
        if kind == self._kind and now_s - self._logged_at_s < self.every_s:
            return
        self._kind, self._logged_at_s = kind, now_s
        # In most clusters optional API groups are not installed or not readable.
        write = log.info if self.resource in OPTIONAL else log.warning
        write(kind, resource=self.resource.label, request=self.request, error=text)

    def resolved(self) -> None:
        if self._kind:
            log.info(
                "requests succeed again",
                resource=self.resource.label,
                request=self.request,
                after=self._kind,
            )
            self._kind = ""


class _Problems(NamedTuple):
    list: _ProblemLog
    watch: _ProblemLog


class Reflector:
    """Delivers the changes of one resource to a sink. :meth:`run` never returns."""

    def __init__(
        self,
        client: ApiClient,
        resource: WatchedResource,
        sink: ChangeSink,
        settings: ReflectorSettings | None = None,
        *,
        field_selector: str = "",
        annotations: Collection[str] = (),
        seen: SeenVersions | None = None,
    ) -> None:
        """``annotations``: names of pod annotations that plugins read. ``seen``: objects that
        the first list need not decode."""
        self.resource = resource
        self.synced = False
        """Whether the sink received a list (an empty one if the resource is not served)."""
        self.decoder = ObjectDecoder(resource, annotations)
        self.counts = ReflectorCounts()
        self._client = client
        self._sink = sink
        self._seen = seen
        self.field_selector = field_selector
        """Selects the objects; empty selects all."""
        self._settings = settings or ReflectorSettings()
        self._served = ServedVersion(client, resource)
        self._lists = PagedLists(
            client, self.decoder, self._settings.page_limit, self._settings.part_objects
        )
        self._backoff = Backoff(self._settings.retry, client.random)
        self._slow_backoff = Backoff(self._settings.slow_retry, client.random)
        every_s = self._settings.log_every_s
        self._problems = _Problems(
            _ProblemLog("list", resource, client.clock, every_s),
            _ProblemLog("watch", resource, client.clock, every_s),
        )
        self.resource_version = ""
        """Version of the last delivered change; empty if a list is due."""
        self._relist_requested = False
        self.relist_count = 0
        """Number of calls of :meth:`relist`; part of each list."""
        self._step_scope = anyio.CancelScope()
        """Around the current step and the delay after it."""
        self._consecutive_failures = 0
        self._malformed_after: str | None = None
        """The resourceVersion after which a line was already malformed once."""
        self.responded = anyio.Event()
        """Set by the first list or open watch since the start, :meth:`restart_watch`, or the last
        failure."""

    @property
    def position(self) -> int | None:
        """Version up to which all changes were delivered; None while a list is due, or if the
        server's versions are not numbers. Versions of one resource are comparable (KEP-5504)."""
        version = self.resource_version
        return int(version) if version.isdecimal() and not self._relist_requested else None

    @property
    def path(self) -> str:
        """Path of the collection in the version that is watched."""
        return self._served.path

    @property
    def selector(self) -> dict[str, str]:
        """Parameters of a list that select the watched objects."""
        return {"fieldSelector": self.field_selector} if self.field_selector else {}

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Reports as started after the first attempt to list, successful or not."""
        started = False
        while True:
            if self._relist_requested:
                self._relist_requested = False
                self.resource_version = ""
            with anyio.CancelScope() as self._step_scope:
                delay_s = await self._step()
                if not started:
                    task_status.started()
                    started = True
                if delay_s > 0:
                    await self._client.clock.sleep(delay_s)
                else:
                    await anyio.lowlevel.checkpoint()

    def restart_watch(self) -> None:
        """Continue from the last resourceVersion on a new connection, if one hangs."""
        self.responded = anyio.Event()
        self._step_scope.cancel()

    def relist(self, field_selector: str) -> None:
        """Cancel the current request or delay and list the objects that the selector matches."""
        self.field_selector = field_selector
        self._relist_requested = True
        self.relist_count += 1
        self._step_scope.cancel()

    async def _step(self) -> float:
        """List once, or run one watch to its end. Returns the delay until the next step in s."""
        problems = self._problems.watch if self.resource_version else self._problems.list
        try:
            if await self._served.changes():
                self.resource_version = ""
            if not self.resource_version:
                await self._list()
                return 0.0
            return await self._watch()
        except ApiError as error:
            self.counts.failures += 1
            self._note_failure()
            return await self._after_failure(error, problems)
        except NoResponseError as error:
            problems.problem("no response from the API server", str(error))
        except MalformedResponseError as error:
            problems.problem("malformed response from the API server", str(error))
        self.counts.failures += 1
        return self._backoff.next_s()

    def _note_failure(self) -> None:
        """Changes may be missing until the next response."""
        if self.responded.is_set():  # else somebody may wait for it
            self.responded = anyio.Event()

    async def _list(self) -> None:
        """Fetch all pages and deliver them."""
        self.counts.lists += 1
        relist_count = self.relist_count
        # A later list also repairs what the state has in another form than the cluster.
        seen = self._seen if not self.synced and self._seen and self._seen.restored else None
        parts = self._lists.fetch(self._served.path, self.selector, seen)
        async with aclosing(parts):
            async for part in parts:
                listed = Listed(
                    self.resource,
                    tuple(part.found.objects),
                    frozenset(part.found.unreadable),
                    relist_count,
                    api_version=self._served.api_version,
                    begins=part.begins,
                    ends=part.ends,
                    versions=tuple(part.found.versions),
                    unchanged=tuple(part.found.unchanged),
                )
                self._sink.put_changes((listed,))
                self.responded.set()
                if part.ends:
                    self._on_listed(part.resource_version)
                del part, listed  # the sink may drop the objects while it has no capacity
                await self._sink.wait_for_capacity()

    def _on_listed(self, resource_version: str) -> None:
        """A complete list was delivered."""
        self.synced = True
        self.resource_version = resource_version
        self._consecutive_failures = 0
        self._slow_backoff.reset()
        self._problems.list.resolved()

    async def _watch(self) -> float:
        """Watch until the stream ends. Raises the error that ended it if there was no progress."""
        self.counts.watches += 1
        timeout_s = self._client.random.randint(*self._settings.watch_timeout_s)
        params = self.selector | {
            "watch": "1",
            "resourceVersion": self.resource_version,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(timeout_s),
        }
        began_at_s = self._client.clock.monotonic_s()
        events_before = self.decoder.counts.events
        version_before = self.resource_version
        broken: NoResponseError | MalformedResponseError | None = None
        try:
            await self._read_watch(params, timeout_s + self._settings.watch_grace_s)
        except (NoResponseError, MalformedResponseError) as error:
            broken = error
            self._note_failure()
        # Bookmarks are not progress: a server that sends one and hangs up must not cause a loop.
        progress = (
            self.decoder.counts.events > events_before and self.resource_version != version_before
        )
        duration_s = self._client.clock.monotonic_s() - began_at_s
        if progress or duration_s >= self._settings.healthy_watch_s:
            self._backoff.reset()
            return 0.0
        if broken is not None:
            raise broken
        return self._backoff.next_s()

    async def _read_watch(self, params: dict[str, str], timeout_s: float) -> None:
        lines = LineSplitter()
        overlong = 0
        async with self._client.stream(self._served.path, params, timeout_s=timeout_s) as stream:
            self.responded.set()
            while chunk := await stream.read():
                await self._deliver(lines.feed(chunk))
                self._problems.watch.resolved()
                if lines.overlong > overlong:
                    overlong = lines.overlong
                    self.decoder.skip_line("line too long")

    async def _deliver(self, lines: list[bytes]) -> None:
        """Deliver the changes of one chunk as one batch, store the version, and wait for the sink.

        Raises ApiError for an ERROR event and MalformedResponseError for a malformed line, both
        after the preceding changes were delivered.
        """
        changes: list[Change] = []
        events: list[WatchEvent] = []
        ended: ApiError | MalformedResponseError | None = None
        for line in lines:
            try:
                event = parse_event(line)
            except MalformedResponseError as error:
                version = _last_version(events) or self.resource_version
                # The line may hide an event, so it is requested again once before it is skipped.
                if self._malformed_after != version:
                    self._malformed_after = version
                    ended = error
                    break
                self.decoder.skip_line(str(error))
                continue
            if event.type is WatchEventType.ERROR:
                ended = ApiError.from_status(parse_status(event.object))
                break
            events.append(event)
            if event.type is not WatchEventType.BOOKMARK:
                change = self.decoder.change(event)
                if change is not None:
                    changes.append(change)
        if changes:
            self._sink.put_changes(tuple(changes))
        if events:
            self.resource_version = _last_version(events) or self.resource_version
            self._consecutive_failures = 0
        if changes:
            await self._sink.wait_for_capacity()
        if ended is not None:
            raise ended

    async def _after_failure(self, error: ApiError, problems: _ProblemLog) -> float:
        """Choose the next step after a failure. Returns the delay in seconds."""
        if error.expired:
            log.info("relisting", resource=self.resource.label, reason=error.message)
            self.resource_version = ""
            return self._backoff.next_s()
        if error.status == 404 and not self.resource.value.group:
            # Every API server has the core API: a proxy responded, or a starting server.
            problems.problem("core resource not found", str(error))
            self.resource_version = ""
            return self._slow_backoff.next_s(error.retry_after_s)
        if error.status == 404 and self._served.withdraw():
            problems.problem("API version no longer served", self._served.path)
            self.resource_version = ""
            return self._backoff.next_s()
        if error.status == 404:
            problems.problem("not served by the API server", "404; will retry")
            return await self._treat_as_empty()
        if error.status == 403:
            problems.problem("not permitted", error.message)
            if self.resource in OPTIONAL or isinstance(self.resource, CustomWatched):
                return await self._treat_as_empty()
            return self._slow_backoff.next_s(error.retry_after_s)
        problems.problem("API server returned an error", str(error))
        self._consecutive_failures += 1
        client_error = 400 <= error.status < 500 and error.status not in (401, 429)
        if client_error or self._consecutive_failures >= self._settings.relist_after_failures:
            self.resource_version = ""
        return self._backoff.next_s(error.retry_after_s)

    async def _treat_as_empty(self) -> float:
        """Deliver an empty list for a resource that is not served, unless it was listed before. A
        resource that seems to vanish, as behind a broken proxy, keeps its known objects."""
        self.resource_version = ""
        self.responded.set()
        if not self.synced:
            self._sink.put_changes((Listed(self.resource, (), relist_count=self.relist_count),))
            self.synced = True
            await self._sink.wait_for_capacity()
        return self._slow_backoff.next_s()


def _last_version(events: list[WatchEvent]) -> str:
    """The resourceVersion of the last event that has one, else empty."""
    return next(filter(None, (resource_version(e.object) for e in reversed(events))), "")


class ClusterWatch:
    """The reflectors of all resources that scheduling reads, with one sink."""

    def __init__(
        self,
        client: ApiClient,
        sink: ChangeSink,
        resources: Iterable[WatchedResource] = Resource,
        *,
        finished_pods: bool = False,
        annotations: Collection[str] = (),
        settings: ReflectorSettings | None = None,
        seen: SeenVersions | None = None,
    ) -> None:
        """``finished_pods``: whether to watch finished pods; ``annotations`` and ``seen`` as
        :class:`Reflector`."""
        self.annotations = frozenset(annotations)
        self._seen = seen
        self._settings = settings
        self._client = client
        self._sink = sink
        self.finished_pods = finished_pods
        """Whether finished pods are watched."""
        self._started = anyio.Event()
        self._tasks: TaskGroup | None = None
        self.reflectors = [self._reflector(resource) for resource in resources]

    def _reflector(self, resource: WatchedResource) -> Reflector:
        pods = resource is Resource.PODS
        return Reflector(
            self._client,
            resource,
            self._sink,
            self._settings,
            field_selector=UNFINISHED_PODS if pods and not self.finished_pods else "",
            annotations=self.annotations if pods else (),
            seen=self._seen,
        )

    async def run(self) -> None:
        """Watch until cancelled. All resources but pods are listed at the same time, and pods after
        them: what pods refer to is known before. One that cannot be listed delays no other."""
        pods = [r for r in self.reflectors if r.resource is Resource.PODS]
        others = [r for r in self.reflectors if r.resource is not Resource.PODS]
        async with anyio.create_task_group() as tasks:
            for reflectors in (others, pods):
                async with anyio.create_task_group() as first_lists:
                    for reflector in reflectors:
                        first_lists.start_soon(tasks.start, reflector.run)
            self._tasks = tasks
            self._started.set()

    async def restart(self, within_s: float) -> Sequence[WatchedResource]:
        """Restart all watches. Returns the resources without a response after ``within_s``."""
        for reflector in self.reflectors:
            reflector.restart_watch()
        return await self.wait_for_responses(within_s)

    async def wait_for_responses(
        self, within_s: float, among: Collection[WatchedResource] = ()
    ) -> Sequence[WatchedResource]:
        """Wait for watches that failed, by default for all. Returns the resources that still have
        no response after ``within_s``."""
        awaited = [r for r in self.reflectors if not among or r.resource in among]
        with anyio.move_on_after(within_s):
            for reflector in awaited:
                await reflector.responded.wait()
        return [r.resource for r in awaited if not r.responded.is_set()]

    async def extend(
        self,
        resources: Iterable[WatchedResource],
        *,
        finished_pods: bool = False,
        annotations: Collection[str] = (),
        relist_pods: bool = False,
    ) -> None:
        """Watch these, too. Returns after the first attempt to list each new resource.

        ``relist_pods``: list the pods again, even if the watch already shows what is wanted.
        """
        await self._started.wait()
        assert self._tasks is not None
        wanted = self.annotations.union(annotations), self.finished_pods or finished_pods
        if relist_pods or wanted != (self.annotations, self.finished_pods):
            self.annotations, self.finished_pods = wanted
            for reflector in self.reflectors:
                if reflector.resource is Resource.PODS:
                    reflector.decoder.keep_annotations(self.annotations)
                    reflector.relist("" if self.finished_pods else reflector.field_selector)
        known = {reflector.resource for reflector in self.reflectors}
        for resource in resources:
            if resource not in known:
                self.reflectors.append(self._reflector(resource))
                await self._tasks.start(self.reflectors[-1].run)
