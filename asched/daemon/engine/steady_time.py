"""The engine's time, and dates, when the wall clock is set.

Decisions depend on the *turn time*: it never runs backwards and follows the monotonic clock, so
backoffs and timeouts take as long as they should, whatever happens to the wall clock. Differences
of the wall clock below :data:`STEP_S` are approached slowly, as adjtime(3) does.

*Dates* are turn times plus an offset. A larger difference is a step of the wall clock. It is
reported at once, and followed after it has lasted for :data:`HOLD_S`, by changing the offset: a
short mistake leaves no wrong date in the journal, a longer one ends when the clock is right again.
The journal records each offset (``ClockStepped``).
"""

from __future__ import annotations

from typing import Final, Protocol

import structlog

from asched.kube.timing import Clock
from asched.model.quantity import NS_PER_S

STEP_S: Final = 1.0
"""A difference of at least this much is a step."""
HOLD_S: Final = 300.0
"""How long a step must last before dates follow it."""
_SLEW: Final = 1000
"""Turn time differs from the monotonic clock by at most one part in this many."""

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


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
                "clock step detected, dates keep the old clock",
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
