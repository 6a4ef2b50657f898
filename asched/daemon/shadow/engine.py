"""The engine loop of shadow mode: compare, fold, commit.

It has no writer and no client, so it cannot change the cluster.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from asched.core.scheduler import SchedulerCore
from asched.daemon.engine.commits import Commits
from asched.daemon.engine.inbox import Inbox
from asched.daemon.engine.turn_loop import TurnLoop
from asched.daemon.shadow.follower import ShadowFollower
from asched.daemon.shadow.report import Difference
from asched.daemon.telemetry.health import failed_checks
from asched.kube.timing import Clock
from asched.model.quantity import NS_PER_S
from asched.model.resources import WatchedResource
from asched.state.records import ShadowCompared

SLICE_S = 0.05
"""Time for comparing before a turn commits."""

Listener = Callable[[ShadowCompared | Difference], None]
"""Called with each comparison when it is durable, and with each difference once it is explained."""


class ShadowEngine(TurnLoop):
    """The loop of shadow mode. One per process."""

    def __init__(
        self,
        follower: ShadowFollower,
        commits: Commits,
        inbox: Inbox,
        clock: Clock,
        listener: Listener,
    ) -> None:
        super().__init__(SchedulerCore(follower), commits, inbox, clock)
        self._follower = follower
        self._listener = listener

    async def run(self) -> None:
        """Turn after turn until :meth:`stop`; then explain the remaining differences.

        Raises a :class:`~asched.journal.errors.JournalError` if the journal is unusable.
        """
        await super().run()
        self._core.begin_turn(self._time.now_ns())
        for record in self._follower.explained_at_the_end():
            self._core.apply(record)
        await self._commit()

    def failed_checks(self) -> list[str]:
        """The failed checks, a line each."""
        return failed_checks(self.checks())

    async def turn(self) -> None:
        """Compare and fold what arrived, then commit."""
        core, follower = self._core, self._follower
        core.begin_turn(self._time.now_ns())
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
            self._mark_synced()

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

    def _unsynced(self) -> Iterable[WatchedResource]:
        return self._follower.unsynced

    def _next_due_ns(self) -> int | None:
        return self._follower.due_ns()
