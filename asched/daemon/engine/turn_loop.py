"""The loop that the engine and shadow mode share: turn after turn until a stop; and its time.

An append notices that the journal is no longer the daemon's own. An idle daemon appends nothing, so
:func:`watch_journal` checks it; or it would appear healthy next to the daemon that replaced it.

Decisions depend on the *turn time*: it never runs backwards and follows the monotonic clock, so
backoffs and timeouts take as long as they should, whatever happens to the wall clock. Differences
of the wall clock below :data:`STEP_S` are approached slowly, as adjtime(3) does.

*Dates* are turn times plus an offset. A larger difference is a step of the wall clock. It is
reported at once, and followed after it has lasted for :data:`HOLD_S`, by changing the offset: a
short mistake leaves no wrong date in the journal, a longer one ends when the clock is right again.
The journal records each offset (``ClockStepped``).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Final, Protocol

import anyio
import anyio.lowlevel
import structlog

from asched.core.inputs import sync_problem
from asched.core.scheduler import SchedulerCore
from asched.daemon.engine.inbox import Inbox
from asched.daemon.engine.journaling import JournalAppender
from asched.daemon.engine.turn_interval import ArrivalRate, turn_interval_s
from asched.daemon.telemetry.health import Check
from asched.journal.errors import TRANSIENT_ERRORS, JournalError
from asched.journal.store import JournalStore
from asched.kube.timing import Clock
from asched.model.quantity import NS_PER_S
from asched.model.resources import WatchedResource
from asched.state.records import AnyRecord

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

STEP_S: Final = 1.0
"""A difference of at least this much is a step."""
HOLD_S: Final = 300.0
"""How long a step must last before dates follow it."""
_MIN_SLEEP_S: Final = 0.002
"""The thread does not sleep for less."""
_ROUNDS: Final = 3
"""Rounds of the event loop from a response or decision to what follows: a poll wakes the task that
waits for it, which wakes another one."""
_SLEW: Final = 1000
"""Turn time differs from the monotonic clock by at most one part in this many."""


class ClockMetrics(Protocol):
    def clock_stepped(self) -> None:
        """A step was detected."""

    def clock_held(self, step_s: float) -> None:
        """Dates differ by this much from the wall clock."""


class _NoMetrics:
    def clock_stepped(self) -> None:
        pass

    def clock_held(self, step_s: float) -> None:
        pass


class SteadyTime:
    """Turn time and the offset of dates from it."""

    def __init__(
        self,
        clock: Clock,
        not_before_ns: int,
        offset_ns: int = 0,
        metrics: ClockMetrics | None = None,
    ) -> None:
        """``not_before_ns``: time of the last turn in the journal; ``offset_ns``: the last recorded
        offset.

        The time since that turn is unknown, so it is that of the wall clock. If that clock was set
        back meanwhile, dates follow it at once.
        """
        self.offset_ns = offset_ns
        """A date is :meth:`now_ns` plus this."""
        self._clock = clock
        self._metrics = metrics or _NoMetrics()
        self._monotonic_ns = clock.monotonic_ns()
        self._step_ns: int | None = None
        """The step that is not followed yet."""
        self._stepped_at_ns = 0
        passed_ns = clock.time_ns() - not_before_ns - offset_ns
        self._now_ns = not_before_ns + max(0, passed_ns)
        if passed_ns <= -_STEP_NS:
            log.warning("clock was set back since the last start", step_s=passed_ns / NS_PER_S)
            self._metrics.clock_stepped()
            self.offset_ns += passed_ns

    def now_ns(self) -> int:
        """Turn time: nanoseconds, near those since the epoch; never less than before."""
        monotonic_ns = self._clock.monotonic_ns()
        passed_ns = monotonic_ns - self._monotonic_ns
        self._monotonic_ns = monotonic_ns
        self._now_ns += passed_ns
        difference_ns = self._clock.time_ns() - self._now_ns - self.offset_ns
        if abs(difference_ns) >= _STEP_NS:
            self._hold(difference_ns)
        else:
            if self._step_ns is not None:
                self._release("clock step was undone")
            limit_ns = passed_ns // _SLEW
            self._now_ns += max(-limit_ns, min(difference_ns, limit_ns))
        return self._now_ns

    def _hold(self, step_ns: int) -> None:
        if self._step_ns is None or abs(step_ns - self._step_ns) >= _STEP_NS:
            self._step_ns, self._stepped_at_ns = step_ns, self._monotonic_ns
            log.warning(
                "clock step detected, old clock kept",
                step_s=step_ns / NS_PER_S,
                hold_s=HOLD_S,
            )
            self._metrics.clock_stepped()
            self._metrics.clock_held(step_ns / NS_PER_S)
        elif self._monotonic_ns - self._stepped_at_ns >= HOLD_S * NS_PER_S:
            self.offset_ns += step_ns
            self._release("clock step followed")

    def _release(self, event: str) -> None:
        log.warning(event, offset_s=self.offset_ns / NS_PER_S)
        self._step_ns = None
        self._metrics.clock_held(0.0)


_STEP_NS: Final = round(STEP_S * NS_PER_S)


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
        self._rate = ArrivalRate(clock.monotonic_ns())
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
            await self._sleep_under_load(began_ns)
            await self._wait()
            if self._failure is not None:
                raise self._failure

    async def _sleep_under_load(self, began_ns: int) -> None:
        """Let arrivals gather until the next turn is due, see
        :mod:`asched.daemon.engine.turn_interval`."""
        interval_s = turn_interval_s(self._rate.update(self._inbox.received, began_ns))
        if self._stopping or interval_s - self._since_s(began_ns) < _MIN_SLEEP_S:
            return
        await _run_other_tasks()  # they send the requests of this turn
        sleep_s = interval_s - self._since_s(began_ns)
        if sleep_s > 0:
            self._clock.block(sleep_s)
        await _run_other_tasks()  # they read what arrived meanwhile

    def _since_s(self, began_ns: int) -> float:
        return (self._clock.monotonic_ns() - began_ns) / NS_PER_S

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
        """Return when a turn is due. Other tasks run first in any case."""
        if self._is_due():
            await anyio.lowlevel.checkpoint()
            return
        while not await self._inbox.wait(self._timer_s()):
            if self._is_due():
                return

    def _timer_s(self) -> float:
        """When a turn is due without an arrival, by the clock of the event loop."""
        due_ns = None if self._stopping else self._next_due_ns()
        if due_ns is None:
            return math.inf
        return anyio.current_time() + (due_ns - self._time.now_ns()) / NS_PER_S

    def _is_due(self) -> bool:
        """Whether there is something to do now."""
        inbox = self._inbox
        return (
            self._failure is not None
            or inbox.urgent
            or (self._stopping and inbox.deferred)
            or self.drained
            or self._has_work()
        )

    def _has_work(self) -> bool:
        """Whether there is something to do without a new arrival."""
        return False

    @abstractmethod
    def _next_due_ns(self) -> int | None:
        """When there is something to do without a new arrival."""


async def _run_other_tasks() -> None:
    for _ in range(_ROUNDS):
        await anyio.lowlevel.checkpoint()


_CHECK_INTERVAL_S: Final = 2.0


async def watch_journal(journal: JournalStore, clock: Clock, loop: TurnLoop) -> None:
    """Check journal and clock periodically. Ends ``loop`` if the journal was claimed by another
    process, removed or replaced. Appends report an unavailable journal."""
    while True:
        await clock.sleep(_CHECK_INTERVAL_S)
        loop.check_clock()
        try:
            await journal.check_writer()
        except TRANSIENT_ERRORS:
            continue
        except JournalError as error:
            loop.fail(error)
            return
