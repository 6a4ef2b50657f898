"""The loop of shadow mode: what arrives is compared, folded and appended. Nothing else follows.

It is given no writer and no client, so there is nothing here that could change the cluster.
"""

from __future__ import annotations

from collections.abc import Callable

import anyio
import anyio.lowlevel
import structlog

from asched.daemon.engine.clock import EngineClock, SteadyTime
from asched.daemon.engine.commits import Commits
from asched.daemon.engine.inbox import Inbox
from asched.daemon.shadow.follower import ShadowFollower
from asched.daemon.shadow.report import Difference
from asched.daemon.telemetry.health import Check, troubles
from asched.model.quantity import NS_PER_S
from asched.state.records import AnyRecord, ShadowCompared, TurnStarted

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

SLICE_S = 0.05
"""How long a turn may go on comparing before it commits."""

Listener = Callable[[ShadowCompared | Difference], None]
"""Told of each comparison when it is durable, and of each difference once it is looked into."""


class ShadowEngine:
    """Owns the loop. One per process."""

    def __init__(
        self,
        follower: ShadowFollower,
        commits: Commits,
        inbox: Inbox,
        clock: EngineClock,
        listener: Listener,
    ) -> None:
        self.synced = anyio.Event()
        """Set once everything was listed and comparisons begin."""
        self._follower = follower
        self._commits = commits
        self._inbox = inbox
        self._clock = clock
        self._time = SteadyTime(clock, follower.state.now_ns)
        self._listener = listener
        self._batch: list[AnyRecord] = []
        self._explained: list[Difference] = []
        self._now_ns = follower.state.now_ns
        self._turn_begun = False
        self._stopping = False

    async def run(self) -> None:
        """Turn after turn until :meth:`stop`; then what is open is explained as far as possible.

        Raises a :class:`~asched.journal.errors.JournalError` where the journal cannot be gone on
        with.
        """
        while not self._stopping:
            await self.turn()
            await self._wait()
        self._look_at_the_clock()
        for record in self._follower.explained_at_the_end():
            self._apply(record)
        await self._commit()

    def stop(self) -> None:
        self._stopping = True
        self._inbox.wake()

    def checks(self) -> list[Check]:
        """What has to be so for it to compare."""
        return [Check("caches", self._unlisted), Check("journal", self._commits.unwritable)]

    def troubles(self) -> list[str]:
        """What keeps it from comparing, a line each."""
        return troubles(self.checks())

    def _unlisted(self) -> str:
        missing = ", ".join(sorted(resource.plural for resource in self._follower.awaited))
        return f"not listed yet: {missing}" if missing else ""

    def record_start(self, *records: AnyRecord) -> None:
        """Fold what a start adds to the journal; committed with the first turn."""
        self._look_at_the_clock()
        for record in records:
            self._apply(record)

    async def turn(self) -> None:
        """Compare and fold what has arrived, commit, and tell."""
        self._look_at_the_clock()
        ends_ns = self._clock.monotonic_ns() + round(SLICE_S * NS_PER_S)
        while (change := self._inbox.next_change()) is not None:
            for record in self._follower.observe(change, self._begin):
                self._apply(record)
            if self._clock.monotonic_ns() >= ends_ns:
                break
        due_ns = self._follower.due_ns()
        if due_ns is not None and due_ns <= self._now_ns:
            self._begin()
        for explained in self._follower.explained():
            self._apply(explained)
        await self._commit()
        if not self._follower.awaited and not self.synced.is_set():
            log.info("caches synced", nodes=self._follower.state.nodes.cluster_size)
            self.synced.set()

    async def _commit(self) -> None:
        if not self._batch:
            return
        batch, self._batch = self._batch, []
        await self._commits.append(batch, self._now_ns)
        for record in batch:
            if isinstance(record, ShadowCompared):
                self._listener(record)
        explained, self._explained = self._explained, []
        for difference in explained:
            self._listener(difference)

    def _look_at_the_clock(self) -> None:
        self._now_ns = self._time.now_ns()
        self._turn_begun = False

    def _begin(self) -> None:
        """The clock goes into the journal before the first record that depends on it."""
        if not self._turn_begun:
            self._turn_begun = True
            self._apply(TurnStarted(self._now_ns))

    def _apply(self, record: AnyRecord) -> None:
        if not self._turn_begun:
            self._begin()
        difference = self._follower.apply(record)
        self._batch.append(record)
        if difference is not None:
            self._explained.append(difference)

    async def _wait(self) -> None:
        """Until something arrives, or the time of an explanation has come."""
        await anyio.lowlevel.checkpoint()
        if len(self._inbox) or self._stopping:
            return
        due_ns = self._follower.due_ns()
        if due_ns is None:
            await self._inbox.wait()
            return
        with anyio.move_on_after(max(0.0, (due_ns - self._time.now_ns()) / NS_PER_S)):
            await self._inbox.wait()
