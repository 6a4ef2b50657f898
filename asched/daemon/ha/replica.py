"""One of several schedulers on a cluster: a standby, and then perhaps the leader.

With a journal of its own a replica is a daemon from the start, which observes, records and decides
nothing until it leads. Replicas that share a journal must not write to it before they lead: until then
such a one follows what the leader writes, keeps its watches connected, and becomes a daemon when it
has won.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import NamedTuple

import anyio
import structlog

from asched.config.file import Configuration
from asched.config.registry import PluginRegistry
from asched.daemon.daemon import (
    Daemon,
    running_daemon,
)
from asched.daemon.engine.runtime import Runtime
from asched.daemon.ha.follower import BufferedChanges, BufferedWatch, JournalFollower, StartState
from asched.daemon.ha.leadership import Leadership
from asched.daemon.reload.reconfigurer import (
    ConfigApplied,
    ReconfigurationError,
    check_buildable,
    check_valid,
    profiles_record,
    restart_settings,
)
from asched.daemon.reload.watched import annotations_of, watched_resources
from asched.daemon.startup import cluster_watch, watch_when_reachable
from asched.daemon.telemetry.health import Check
from asched.daemon.telemetry.metrics import Metrics
from asched.journal.errors import JournalBusyError, JournalIOError
from asched.journal.store import JournalStore
from asched.kube.client import ApiClient
from asched.kube.errors import KubeConfigError
from asched.kube.extenders import open_extenders
from asched.kube.timing import Backoff, RetryPolicy
from asched.model.resources import WatchedResource

_TAKEOVER_RETRY = RetryPolicy(initial_s=0.1, max_s=2.0)

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


class ReplicaParts(NamedTuple):
    """What a replica is made from."""

    configuration: Configuration
    registry: PluginRegistry
    client: ApiClient
    journal: JournalStore
    leadership: Leadership
    metrics: Metrics
    machine: Runtime


class Replica:
    """A running replica. Made by :func:`running_replica`."""

    def __init__(self, leadership: Leadership) -> None:
        self.warm = anyio.Event()
        """Set once everything was listed: it decides, or could."""
        self.daemon: Daemon | None = None
        """None while it follows the journal of a leader."""
        self._leadership = leadership
        self.standby: Standby | None = None
        """None where it has a journal of its own."""
        self._one_at_a_time = anyio.Lock()

    def checks(self) -> list[Check]:
        """What has to be so for it to be ready, as a standby or as the leader."""
        return [
            Check("caches", partial(self._trouble, "caches")),
            Check("journal", partial(self._trouble, "journal")),
            Check("engine-turn", partial(self._trouble, "engine-turn")),
            # The name says what it is; to be a standby is no trouble.
            Check("leading" if self._leadership.leads() else "standby", lambda: ""),
        ]

    def _trouble(self, name: str) -> str:
        if self.daemon is not None:
            found = {check.name: check.trouble for check in self.daemon.checks()}
            return found[name]()
        return "" if self.standby is None else self.standby.trouble(name)

    def alive(self) -> list[Check]:
        """What only a restart may mend where it is not so."""
        return [Check("engine", lambda: "a turn of it hangs" if self.hangs() else "")]

    def hangs(self) -> bool:
        """Whether only a restart may help."""
        return self.daemon is not None and self.daemon.hangs()

    async def apply_config(self, new: Configuration) -> ConfigApplied:
        """As :meth:`Daemon.apply_config`; a standby that follows a journal decides by it once it leads."""
        async with self._one_at_a_time:
            if self.daemon is not None:
                return await self.daemon.apply_config(new)
            if self.standby is None:
                raise ReconfigurationError("nothing was started yet")
            return await self.standby.apply_config(new)

    async def lead(self, daemon: Daemon, standby: Standby, configuration: Configuration) -> None:
        """It is this daemon from now on, which was started with that ``configuration``: what the standby
        took up while it was is taken up once more, before anything that comes later."""
        self.daemon = daemon
        # It has the lock at once, or next after what the standby is about to take up.
        async with self._one_at_a_time:
            if standby.configuration == configuration:
                return
            try:
                await daemon.apply_config(standby.configuration)
            except ReconfigurationError as error:
                log.error(
                    "a configuration that came amid the takeover cannot be used", error=str(error)
                )


class Standby:
    """A replica that shares its journal with the leader, until it leads itself."""

    def __init__(self, parts: ReplicaParts, follower: JournalFollower) -> None:
        self.configuration = parts.configuration
        """What it will decide by."""
        self._parts = parts
        self._follower = follower
        self._claiming = ""
        """Why this process, which leads, cannot take the journal over yet."""
        self._room = BufferedChanges()
        load = parts.registry.load
        self._watch = cluster_watch(parts.configuration, parts.client, self._room, load)

    @property
    def resources(self) -> frozenset[WatchedResource]:
        """All that it watches."""
        return frozenset(reflector.resource for reflector in self._watch.reflectors)

    def trouble(self, name: str) -> str:
        """What is wrong with its caches, or with the journal that it follows."""
        if name == "journal" and self._claiming:
            return f"the journal cannot be taken over: {self._claiming}"
        if name == "journal" and self._follower.trouble:
            return f"the journal cannot be read: {self._follower.trouble}"
        missing = self._room.missing(self.resources) if name == "caches" else ()
        listed = ", ".join(sorted(resource.label for resource in missing))
        return f"not listed yet: {listed}" if listed else ""

    async def apply_config(self, new: Configuration) -> ConfigApplied:
        """Decide by another configuration once it leads. Raises ReconfigurationError where a leader would
        (:meth:`Reconfigurer.apply_config`), which would end it at the takeover, and where it has to watch
        something else for that."""
        load = self._parts.registry.load
        kept = restart_settings(self._parts.configuration, new)
        check_valid(new)
        check_buildable(profiles_record(new), self._follower.fold.state, load)
        if not self._watches_all(new):
            raise ReconfigurationError("it needs something else watched: restart this standby")
        try:
            async with open_extenders(new.scheduler.extenders):
                pass  # their certificates can be used
        except KubeConfigError as error:
            raise ReconfigurationError(str(error)) from None
        changed = new != self.configuration
        self.configuration = new
        return ConfigApplied(changed, kept)

    def _watches_all(self, new: Configuration) -> bool:
        load, profiles = self._parts.registry.load, new.profiles
        return (
            frozenset(watched_resources(profiles, new.sessions, load)) == self.resources
            and annotations_of(profiles, load) == self._watch.annotations
            and bool(new.sessions) == self._watch.finished_pods
        )

    async def watch(self) -> None:
        """Until cancelled, also when it leads."""
        await watch_when_reachable(self._parts.client, self._watch)

    async def until_leading(self, warm: anyio.Event) -> StartState:
        """Keep close behind the leader, take the journal over once this process leads, and say
        where it goes on. Only a standby that is warm, and can read the journal, tries to lead.

        Raises a :class:`~asched.journal.errors.JournalError` where the journal cannot be gone on with.
        """
        parts, follower = self._parts, self._follower
        await follower.catch_up()
        async with anyio.create_task_group() as following:
            following.start_soon(follower.run)
            await self._room.until_listed(self.resources)
            warm.set()
            await parts.leadership.win(parts.client, self._watch, lambda: not follower.trouble)
            following.cancel_scope.cancel()
        # The claim comes last: what is to be folded after it is what came in the last half second.
        before = follower.seq
        epoch = await self._claim()
        log.info("journal taken over", epoch=epoch, records=follower.seq - before)
        held = BufferedWatch(self._watch, self._room)
        return StartState(follower.fold, follower.seq + 1, follower.kept_seq, epoch, held)

    async def _claim(self) -> int:
        """Claim the journal and fold it to its end; the epoch. Tried for as long as this process
        leads: the connection for writing was idle since the start, and may have broken long ago."""
        parts, clock = self._parts, self._parts.machine.clock
        backoff = Backoff(_TAKEOVER_RETRY, parts.client.random)
        while True:
            try:
                epoch = await parts.journal.claim(
                    parts.machine.instance, claimed_at_ns=clock.time_ns()
                )
                await self._follower.catch_up()
            except (JournalBusyError, JournalIOError) as error:
                self._claiming = str(error)
                log.warning("the journal cannot be taken over yet", error=str(error))
                await clock.sleep(backoff.next_s())
            else:
                return epoch


@asynccontextmanager
async def running_replica(parts: ReplicaParts, *, shared: bool) -> AsyncIterator[Replica]:
    """Take part, until the block ends, as one of several. ``shared``: whether the others write to
    the same journal.

    At the end of the block what is under way is finished, and leadership released. Raises as
    :func:`~asched.daemon.daemon.running_daemon`.
    """
    replica = Replica(parts.leadership)
    if not shared:
        async with running_daemon(
            parts.configuration, parts.registry, parts.client, parts.journal, parts.metrics,
            parts.machine, leadership=parts.leadership,
        ) as daemon:  # fmt: skip
            replica.daemon = daemon
            replica.warm = daemon.engine.synced
            yield replica
        return
    async with anyio.create_task_group() as tasks:
        term = ReplicaLifecycle(parts, replica)
        tasks.start_soon(term.run)
        yield replica
        term.stop()


class ReplicaLifecycle:
    """The life of a replica that shares its journal: as a standby, and as the leader."""

    def __init__(self, parts: ReplicaParts, replica: Replica) -> None:
        self._parts = parts
        self._replica = replica
        self._stop = anyio.Event()
        self._waiting = anyio.CancelScope()
        self._beginning = anyio.CancelScope()

    def stop(self) -> None:
        """A standby ends at once, a leader when what is under way has ended."""
        self._stop.set()
        self._waiting.cancel()
        self._beginning.cancel()

    async def run(self) -> None:
        try:
            await self._take_part()
        except Exception:
            # Nothing was sent yet, so that nobody need wait until the lease runs out.
            if self._replica.daemon is None:
                await self._parts.leadership.release()
            raise

    async def _take_part(self) -> None:
        parts = self._parts
        start: StartState | None = None
        async with anyio.create_task_group() as tasks:
            with self._waiting:
                follower = await JournalFollower.open(
                    parts.journal, parts.registry.load, parts.client.clock
                )
                standby = self._replica.standby = Standby(parts, follower)
                tasks.start_soon(standby.watch)
                start = await standby.until_leading(self._replica.warm)
            if start is not None:
                await self._lead(start, standby)
            tasks.cancel_scope.cancel()

    async def _lead(self, start: StartState, standby: Standby) -> None:
        parts, configuration = self._parts, standby.configuration
        async with running_daemon(
            configuration, parts.registry, parts.client, parts.journal, parts.metrics,
            parts.machine, leadership=parts.leadership, start=start,
        ) as daemon:  # fmt: skip
            with self._beginning:
                await self._replica.lead(daemon, standby, configuration)
            await self._stop.wait()
