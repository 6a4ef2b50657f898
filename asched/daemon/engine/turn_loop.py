"""The loop that the engine and shadow mode share: turn after turn until a stop."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable

import anyio
import anyio.lowlevel
import structlog

from asched.core.inputs import sync_problem
from asched.core.scheduler import SchedulerCore
from asched.daemon.engine.inbox import Inbox
from asched.daemon.engine.journaling import JournalAppender
from asched.daemon.engine.steady_time import ClockMetrics, SteadyTime
from asched.daemon.telemetry.health import Check
from asched.journal.errors import JournalError
from asched.kube.timing import Clock
from asched.model.quantity import NS_PER_S
from asched.model.resources import WatchedResource
from asched.state.records import AnyRecord

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


class TurnLoop(ABC):
    """Base of the loops that drive a core."""

    def __init__(
        self,
        core: SchedulerCore,
        appender: JournalAppender,
        inbox: Inbox,
        clock: Clock,
        metrics: ClockMetrics | None = None,
    ) -> None:
        self.synced = anyio.Event()
        """Set once everything was listed and decisions may begin."""
        self._core = core
        self._appender = appender
        self._inbox = inbox
        self._clock = clock
        self._time = SteadyTime(
            clock, core.state.now_ns, core.state.engine.clock_offset_ns, metrics
        )
        self._min_turn_s = 0.0
        """Minimum time between the starts of two turns."""
        self._stopping = False
        self._failure: JournalError | None = None

    async def run(self) -> None:
        """Turn after turn, until :meth:`stop` and the end of all effects in flight.

        Raises a :class:`~asched.journal.errors.JournalError` if the journal is fenced by a newer
        writer or corrupt, and AssertionError if the state contradicts itself.
        """
        while not self.drained:
            began_ns = self._clock.monotonic_ns()
            await self.turn()
            await self._wait()
            if self._failure is not None:
                raise self._failure
            early_s = self._min_turn_s - (self._clock.monotonic_ns() - began_ns) / NS_PER_S
            if early_s > 0 and not self._stopping:
                await anyio.sleep(early_s)

    @abstractmethod
    async def turn(self) -> None:
        """Process what arrived, and commit the records."""

    def stop(self) -> None:
        """Stop deciding; end when nothing is in flight."""
        self._stopping = True
        self._inbox.wake()

    def fail(self, error: JournalError) -> None:
        """End :meth:`run` with this error: nothing can be committed any longer."""
        self._failure = error
        self._inbox.wake()

    @property
    def drained(self) -> bool:
        """Whether it was stopped and nothing is in flight."""
        return self._stopping

    def record_start(self, *records: AnyRecord) -> None:
        """Fold the records of a start (version, profiles); the first turn commits them."""
        self._begin_turn()
        for record in records:
            self._core.apply(record)

    def check_clock(self) -> None:
        """Notice a step of the wall clock while the loop is idle."""
        self._time.now_ns()

    def _begin_turn(self) -> None:
        now_ns = self._time.now_ns()
        self._core.begin_turn(now_ns)
        self._core.step_clock(self._time.offset_ns)

    def checks(self) -> list[Check]:
        """Conditions of readiness: caches listed, journal writable."""
        return [
            Check("caches", lambda: sync_problem(self._unsynced())),
            Check("journal", self._appender.unwritable),
        ]

    @abstractmethod
    def _unsynced(self) -> Iterable[WatchedResource]:
        """Resources that are not listed yet."""

    def _mark_synced(self) -> None:
        state = self._core.state
        log.info(
            "caches synced",
            nodes=state.nodes.cluster_size,
            pods=len(state.pods),
            pending=len(state.queue),
        )
        self.synced.set()

    async def _wait(self) -> None:
        """Return when there is something to do. Other tasks run first in any case."""
        await anyio.lowlevel.checkpoint()
        if self._failure is not None or len(self._inbox) or self.drained or self._has_work():
            return
        due_ns = None if self._stopping else self._next_due_ns()
        if due_ns is None:
            await self._inbox.wait()
            return
        with anyio.move_on_after(max(0.0, (due_ns - self._time.now_ns()) / NS_PER_S)):
            await self._inbox.wait()

    def _has_work(self) -> bool:
        """Whether there is something to do without a new arrival."""
        return False

    @abstractmethod
    def _next_due_ns(self) -> int | None:
        """When there is something to do without a new arrival."""
