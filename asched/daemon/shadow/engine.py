"""The engine loop of shadow mode: compare, fold, commit.

It has no writer and no client, so it cannot change the cluster.
"""

from __future__ import annotations

from collections.abc import Callable

import anyio
import anyio.lowlevel
import structlog

from asched.core.inputs import sync_problem
from asched.core.scheduler import SchedulerCore
from asched.daemon.engine.commits import Commits
from asched.daemon.engine.inbox import Inbox
from asched.daemon.engine.runtime import SteadyTime
from asched.daemon.shadow.follower import ShadowFollower
from asched.daemon.shadow.report import Difference
from asched.daemon.telemetry.health import Check, failed_checks
from asched.kube.timing import Clock
from asched.model.quantity import NS_PER_S
from asched.state.records import AnyRecord, ShadowCompared

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

SLICE_S = 0.05
"""Time for comparing before a turn commits."""

Listener = Callable[[ShadowCompared | Difference], None]
"""Called with each comparison when it is durable, and with each difference once it is explained."""


class ShadowEngine:
    """The loop of shadow mode. One per process."""

    def __init__(
        self,
        follower: ShadowFollower,
        commits: Commits,
        inbox: Inbox,
        clock: Clock,
        listener: Listener,
    ) -> None:
        self.synced = anyio.Event()
        """Set once everything was listed and comparisons begin."""
        self._follower = follower
        self._core = SchedulerCore(follower)
        self._commits = commits
        self._inbox = inbox
        self._clock = clock
        self._time = SteadyTime(clock, follower.state.now_ns)
        self._listener = listener
        self._stopping = False

    async def run(self) -> None:
        """Turn after turn until :meth:`stop`; then explain the remaining differences.

        Raises a :class:`~asched.journal.errors.JournalError` if the journal is unusable.
        """
        while not self._stopping:
            await self.turn()
            await self._wait()
        self._begin_turn()
        for record in self._follower.explained_at_the_end():
            self._core.apply(record)
        await self._commit()

    def stop(self) -> None:
        self._stopping = True
        self._inbox.wake()

    def checks(self) -> list[Check]:
        """Conditions of readiness: caches listed, journal writable."""
        return [Check("caches", self._unlisted), Check("journal", self._commits.unwritable)]

    def failed_checks(self) -> list[str]:
        """The failed checks, a line each."""
        return failed_checks(self.checks())

    def _unlisted(self) -> str:
        return sync_problem(self._follower.unsynced)

    def record_start(self, *records: AnyRecord) -> None:
        """Fold the records of a start; the first turn commits them."""
        self._begin_turn()
        for record in records:
            self._core.apply(record)

    async def turn(self) -> None:
        """Compare and fold what arrived, then commit."""
        core, follower = self._core, self._follower
        self._begin_turn()
        ends_ns = self._clock.monotonic_ns() + round(SLICE_S * NS_PER_S)
        while (change := self._inbox.next_change()) is not None:
            for record in follower.observe(change, core.record_turn):
                core.apply(record)
            if self._clock.monotonic_ns() >= ends_ns:
                break
        due_ns = follower.due_ns()
        if due_ns is not None and due_ns <= core.now_ns:
            core.record_turn()
        for explained in follower.explained():
            core.apply(explained)
        await self._commit()
        if not follower.unsynced and not self.synced.is_set():
            log.info("caches synced", nodes=core.state.nodes.cluster_size)
            self.synced.set()

    def _begin_turn(self) -> None:
        self._core.begin_turn(self._time.now_ns())

    async def _commit(self) -> None:
        if not self._core.has_records:
            return
        batch = self._core.take_records()
        await self._commits.append(batch, self._core.now_ns)
        for record in batch:
            if isinstance(record, ShadowCompared):
                self._listener(record)
        for difference in self._follower.take_differences():
            self._listener(difference)

    async def _wait(self) -> None:
        """Return when something arrives or an explanation is due."""
        await anyio.lowlevel.checkpoint()
        if len(self._inbox) or self._stopping:
            return
        due_ns = self._follower.due_ns()
        if due_ns is None:
            await self._inbox.wait()
            return
        with anyio.move_on_after(max(0.0, (due_ns - self._time.now_ns()) / NS_PER_S)):
            await self._inbox.wait()
