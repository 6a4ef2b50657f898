"""List and watch one resource for ever, and hand over what changes.

    list -> watch -> (ended) -> watch again from the last resourceVersion
      ^        |
      +- 410 --+

Every request that brought nothing new is followed by a pause that grows, so nothing spins however
the server misbehaves; one that did bring something is followed by the next at once.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

import anyio
import anyio.lowlevel
import msgspec
import structlog
from anyio.abc import TaskGroup, TaskStatus

from asched.kube.changes import Change, ChangeSink, Listed
from asched.kube.client import ApiClient
from asched.kube.decoding import (
    LineSplitter,
    MalformedAnswerError,
    ObjectDecoder,
    WatchEvent,
    WatchEventType,
    parse_event,
    parse_status,
    resource_version,
)
from asched.kube.errors import ApiError, NoResponseError
from asched.kube.permissions import OPTIONAL
from asched.kube.timing import Backoff, Clock, RetryPolicy
from asched.model.resources import (
    AnyObject,
    CustomWatched,
    Resource,
    WatchedResource,
)

UNFINISHED = "status.phase!=Succeeded,status.phase!=Failed"
"""Selects pods as kube-scheduler does: it sees finished pods go rather than finish."""

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


class ReflectorSettings(msgspec.Struct, frozen=True):
    """Sizes and patience of a reflector. The defaults suit a real cluster."""

    page_limit: int = 500
    watch_timeout_s: tuple[int, int] = (300, 600)
    """A watch asks the server to end it after a random time between these."""
    watch_grace_s: float = 30.0
    """So much longer than it asked for, a watch is taken for dead."""
    healthy_watch_s: float = 10.0
    """A watch that lived this long is opened again without a pause, even if it was silent."""
    retry: RetryPolicy = RetryPolicy(initial_s=0.8, max_s=30.0)
    slow_retry: RetryPolicy = RetryPolicy(initial_s=10.0, max_s=60.0)
    """For what only somebody else can mend: no permission, a resource that is not served."""
    complain_every_s: float = 300.0
    """The same trouble is not logged more often than this."""
    relist_after_failures: int = 5
    """A watch refused so often in a row is given up for a new list."""


class ReflectorCounts(msgspec.Struct):
    """Requests of one reflector. Only it writes them."""

    lists: int = 0
    watches: int = 0
    failures: int = 0


class _Complaints:
    """Says each trouble once per while, and once when it is over."""

    def __init__(self, resource: WatchedResource, clock: Clock, every_s: float) -> None:
        self._resource = resource
        self._clock = clock
        self._every_s = every_s
        self._kind = ""
        self._said_at_s = 0.0

    def about(self, kind: str, text: str) -> None:
        now_s = self._clock.monotonic_s()
        if kind == self._kind and now_s - self._said_at_s < self._every_s:
            return
        self._kind, self._said_at_s = kind, now_s
        # That an optional API group is not installed, and that kube-scheduler's role does not let us
        # read the rest of these, is how most clusters are.
        say = log.info if self._resource in OPTIONAL else log.warning
        say(kind, resource=self._resource.label, error=text)

    def over(self) -> None:
        if self._kind:
            log.info("watching again", resource=self._resource.label, after=self._kind)
            self._kind = ""


class Reflector:
    """Keeps a sink informed of one resource. ``run`` never returns by itself."""

    def __init__(
        self,
        client: ApiClient,
        resource: WatchedResource,
        sink: ChangeSink,
        settings: ReflectorSettings | None = None,
        *,
        field_selector: str = "",
        annotations: Collection[str] = (),
    ) -> None:
        """``field_selector`` leaves out objects that nobody wants to hear of; ``annotations`` are those
        of pods that plugins read."""
        self.resource = resource
        self.synced = False
        """Whether the sink has had a list (an empty one if the resource is not served)."""
        self.decoder = ObjectDecoder(resource, annotations)
        self.counts = ReflectorCounts()
        self._client = client
        self._sink = sink
        self.field_selector = field_selector
        """Which objects are watched; all where it is empty."""
        self._settings = settings or ReflectorSettings()
        self._backoff = Backoff(self._settings.retry, client.random)
        self._slow_backoff = Backoff(self._settings.slow_retry, client.random)
        self._complaints = _Complaints(resource, client.clock, self._settings.complain_every_s)
        self._resource_version = ""
        """Where to go on watching; empty if a list is due."""
        self._list_due = False
        """Whether to list whatever is known."""
        self.generation = 0
        """How often it was told to :meth:`list_again`; its lists say so."""
        self._present = anyio.CancelScope()
        """Around the present step and the pause that follows it."""
        self._failures_in_a_row = 0
        self._garbled_after: str | None = None
        """The version after which a line was garbled once already."""
        self.fresh = anyio.Event()
        """Set when a list, or the answer to a watch, has come since :meth:`watch_again`, or the start."""

    @property
    def resource_version(self) -> str:
        """How far the watch has got; empty if a list is due."""
        return self._resource_version

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Reports as started after the first attempt to list, whether or not it succeeded."""
        started = False
        while True:
            if self._list_due:
                # Whatever the watch that was cut off has brought.
                self._list_due = False
                self._resource_version = ""
            with anyio.CancelScope() as self._present:
                pause_s = await self._step()
                if not started:
                    task_status.started()
                    started = True
                if pause_s > 0:
                    await self._client.clock.sleep(pause_s)
                else:
                    await anyio.lowlevel.checkpoint()

    def watch_again(self) -> None:
        """Cut off what is under way, a pause as well, and go on from where the watch has got: what a
        connection that hangs did not bring comes at once."""
        self.fresh = anyio.Event()
        self._present.cancel()

    def list_again(self, field_selector: str) -> None:
        """Cut off what is under way and begin with a list of what ``field_selector`` selects."""
        self.field_selector = field_selector
        self._list_due = True
        self.generation += 1
        self._present.cancel()

    async def _step(self) -> float:
        """One list, or the life of one watch. Returns how long to pause before the next, seconds."""
        try:
            if not self._resource_version:
                await self._list()
                return 0.0
            return await self._watch()
        except ApiError as error:
            self.counts.failures += 1
            return await self._after_refusal(error)
        except (NoResponseError, MalformedAnswerError) as error:
            self.counts.failures += 1
            self._complaints.about("no answer from the API server", str(error))
            return self._backoff.next_s()

    # -- list ---------------------------------------------------------------------------------

    async def _list(self) -> None:
        """Get everything, page by page, and hand it over as one list."""
        self.counts.lists += 1
        generation = self.generation
        params = self._selector() | {"limit": str(self._settings.page_limit)}
        objects: list[AnyObject] = []
        unreadable: set[str] = set()
        expired = 0
        while True:
            try:
                body = await self._client.request("GET", self.resource.path, params=params)
            except ApiError as error:
                if not (error.expired and "continue" in params):
                    raise
                # The pages were too slow. Once more, and if that is too slow too, in one piece.
                expired += 1
                objects.clear()
                unreadable.clear()
                params = self._selector()
                if expired == 1:
                    params["limit"] = str(self._settings.page_limit)
                continue
            page = self.decoder.page(body)
            objects += page.objects
            unreadable |= page.unreadable
            if not page.continue_token:
                break
            params["continue"] = page.continue_token
        if not page.resource_version:
            raise MalformedAnswerError(f"list of {self.resource.plural} without a resourceVersion")
        listed = Listed(self.resource, tuple(objects), frozenset(unreadable), generation)
        self._sink.put_changes((listed,))
        self.synced = True
        self.fresh.set()
        self._resource_version = page.resource_version
        self._failures_in_a_row = 0
        self._slow_backoff.reset()
        await self._sink.until_room()

    def _selector(self) -> dict[str, str]:
        return {"fieldSelector": self.field_selector} if self.field_selector else {}

    # -- watch --------------------------------------------------------------------------------

    async def _watch(self) -> float:
        """Watch until the stream ends. Raises what ended it unless something had come before."""
        self.counts.watches += 1
        timeout_s = self._client.random.randint(*self._settings.watch_timeout_s)
        params = self._selector() | {
            "watch": "1",
            "resourceVersion": self._resource_version,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(timeout_s),
        }
        began_at_s = self._client.clock.monotonic_s()
        events_before = self.decoder.counts.events
        version_before = self._resource_version
        broken: NoResponseError | MalformedAnswerError | None = None
        try:
            await self._read_watch(params, timeout_s + self._settings.watch_grace_s)
        except (NoResponseError, MalformedAnswerError) as error:
            broken = error
        # Bookmarks do not count: a server that sends one and hangs up is still to be paced.
        progress = (
            self.decoder.counts.events > events_before and self._resource_version != version_before
        )
        lived_s = self._client.clock.monotonic_s() - began_at_s
        if progress or lived_s >= self._settings.healthy_watch_s:
            self._backoff.reset()
            return 0.0
        if broken is not None:
            raise broken
        return self._backoff.next_s()

    async def _read_watch(self, params: dict[str, str], timeout_s: float) -> None:
        lines = LineSplitter()
        overlong = 0
        async with self._client.stream(self.resource.path, params, timeout_s=timeout_s) as stream:
            self.fresh.set()
            while chunk := await stream.read():
                await self._deliver(lines.feed(chunk))
                self._complaints.over()
                if lines.overlong > overlong:
                    overlong = lines.overlong
                    self.decoder.skip_line("longer than any object can be")

    async def _deliver(self, lines: list[bytes]) -> None:
        """Hand over the changes of one chunk as one batch, remember how far that is, and wait for room.

        Raises ApiError for an ERROR event and MalformedAnswerError for a garbled line, both after what
        came before it was handed over.
        """
        changes: list[Change] = []
        events: list[WatchEvent] = []
        ended: ApiError | MalformedAnswerError | None = None
        for line in lines:
            try:
                event = parse_event(line)
            except MalformedAnswerError as error:
                version = _last_version(events) or self._resource_version
                if self._may_read_again(version):
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
            self._resource_version = _last_version(events) or self._resource_version
            self._failures_in_a_row = 0
        if changes:
            await self._sink.until_room()
        if ended is not None:
            raise ended

    def _may_read_again(self, version: str) -> bool:
        """A garbled line may be an event lost, so it is asked for once more before it is skipped."""
        if self._garbled_after == version:
            return False
        self._garbled_after = version
        return True

    # -- trouble ------------------------------------------------------------------------------

    async def _after_refusal(self, error: ApiError) -> float:
        """What an error of the API server means for the next step. Returns the pause, seconds."""
        if error.expired:
            log.info("listing again", resource=self.resource.label, because=error.message)
            self._resource_version = ""
            return self._backoff.next_s()
        if error.status == 404 and not self.resource.value.group:
            # Every API server has the core API: this is a proxy's answer, or one that just starts.
            self._complaints.about("not found, though every API server serves it", str(error))
            self._resource_version = ""
            return self._slow_backoff.next_s(error.retry_after_s)
        if error.status == 404:
            self._complaints.about("not served by the API server", "404; tried again later")
            return await self._without()
        if error.status == 403:
            self._complaints.about("not permitted", error.message)
            if self.resource in OPTIONAL or isinstance(self.resource, CustomWatched):
                return await self._without()
            return self._slow_backoff.next_s(error.retry_after_s)
        self._complaints.about("refused by the API server", str(error))
        self._failures_in_a_row += 1
        our_fault = 400 <= error.status < 500 and error.status not in (401, 429)
        if our_fault or self._failures_in_a_row >= self._settings.relist_after_failures:
            self._resource_version = ""
        return self._backoff.next_s(error.retry_after_s)

    async def _without(self) -> float:
        """To the scheduler a resource that does not exist is one without objects.

        That holds for one never seen only: a server that forgets a resource it served before, as a
        broken proxy would make it seem, does not delete what is known.
        """
        self._resource_version = ""
        self.fresh.set()
        if not self.synced:
            self._sink.put_changes((Listed(self.resource, (), generation=self.generation),))
            self.synced = True
            await self._sink.until_room()
        return self._slow_backoff.next_s()


def _last_version(events: list[WatchEvent]) -> str:
    """The newest resourceVersion among events in their order; empty if none has one."""
    for event in reversed(events):
        if version := resource_version(event.object):
            return version
    return ""


class ClusterWatch:
    """Reflectors of all that scheduling reads, with one sink."""

    def __init__(
        self,
        client: ApiClient,
        sink: ChangeSink,
        resources: Iterable[WatchedResource] = Resource,
        settings: ReflectorSettings | None = None,
        *,
        finished_pods: bool = False,
        annotations: Collection[str] = (),
    ) -> None:
        """``finished_pods``: whether pods that have finished are of interest, too; ``annotations``: those
        of pods that plugins read."""
        self.annotations = frozenset(annotations)
        self._client = client
        self._sink = sink
        self._settings = settings
        self.finished_pods = finished_pods
        """Whether pods that have finished are watched."""
        self._begun = anyio.Event()
        self._tasks: TaskGroup | None = None
        self.reflectors = [self._reflector(resource) for resource in resources]

    def _reflector(self, resource: WatchedResource) -> Reflector:
        leaves_out = resource is Resource.PODS and not self.finished_pods
        selector = UNFINISHED if leaves_out else ""
        return Reflector(
            self._client,
            resource,
            self._sink,
            self._settings,
            field_selector=selector,
            annotations=self.annotations if resource is Resource.PODS else (),
        )

    async def run(self) -> None:
        """Watch until cancelled.

        The resources are listed one after the other in their order, so that what pods refer to is
        known before the pods; one that cannot be listed does not hold up the next.
        """
        async with anyio.create_task_group() as tasks:
            for reflector in self.reflectors:
                await tasks.start(reflector.run)
            self._tasks = tasks
            self._begun.set()

    async def renew(self, within_s: float) -> Sequence[WatchedResource]:
        """Begin all watches anew from where they have got, so that none is behind for a connection that
        hangs or a pause. Returns those that the API server has not answered ``within_s``."""
        for reflector in self.reflectors:
            reflector.watch_again()
        with anyio.move_on_after(within_s):
            for reflector in self.reflectors:
                await reflector.fresh.wait()
        return [r.resource for r in self.reflectors if not r.fresh.is_set()]

    async def extend(
        self,
        resources: Iterable[WatchedResource],
        *,
        finished_pods: bool = False,
        annotations: Collection[str] = (),
    ) -> None:
        """Watch more while it runs: these resources, pods that have finished as well, and these
        annotations of pods. What is watched already goes on. Waits for a first attempt to list what
        is new."""
        await self._begun.wait()
        assert self._tasks is not None
        if finished_pods and not self.finished_pods:
            self.finished_pods = True
            for reflector in self.reflectors:
                if reflector.resource is Resource.PODS:
                    reflector.list_again("")
        if not self.annotations.issuperset(annotations):
            self.annotations |= frozenset(annotations)
            for reflector in self.reflectors:
                if reflector.resource is Resource.PODS:
                    reflector.decoder.declare(self.annotations)
                    reflector.list_again(reflector.field_selector)
        known = {reflector.resource for reflector in self.reflectors}
        for resource in resources:
            if resource not in known:
                reflector = self._reflector(resource)
                self.reflectors.append(reflector)
                await self._tasks.start(reflector.run)
