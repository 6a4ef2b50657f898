"""The injected clock, retries with jitter, and the client-side rate limit."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from random import Random
from typing import Protocol

import anyio
import msgspec

from asched.model.quantity import NS_PER_S

MAX_RETRY_AFTER_S = 120.0
"""Upper bound for a server's Retry-After; larger values are treated as a mistake."""


class Clock(Protocol):
    """Source of time for the client and the engine; tests and simulations provide their own.
    Subclasses get :meth:`monotonic_s` and :meth:`utc` from the nanosecond clocks."""

    def time_ns(self) -> int:
        """Wall clock: nanoseconds since the Unix epoch."""
        ...

    def monotonic_ns(self) -> int:
        """Nanoseconds of a clock that never runs backwards."""
        ...

    async def sleep(self, delay_s: float) -> None: ...

    def block(self, delay_s: float) -> None:
        """Sleep without running other tasks: the thread stops."""
        ...

    def monotonic_s(self) -> float:
        """:meth:`monotonic_ns` in seconds."""
        return self.monotonic_ns() / NS_PER_S

    def utc(self) -> datetime:
        """The wall clock, with time zone UTC."""
        return datetime.fromtimestamp(self.time_ns() / NS_PER_S, UTC)


class SystemClock(Clock):
    """The clocks of the machine."""

    def time_ns(self) -> int:
        return time.time_ns()

    def monotonic_ns(self) -> int:
        return time.monotonic_ns()

    def monotonic_s(self) -> float:
        return time.monotonic()

    def utc(self) -> datetime:
        return datetime.now(UTC)

    async def sleep(self, delay_s: float) -> None:
        await anyio.sleep(delay_s)

    def block(self, delay_s: float) -> None:
        time.sleep(delay_s)


class StoppableSleep:
    """Delays that a stopping daemon ends."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._scopes: set[anyio.CancelScope] = set()
        self._stopped = False

    async def pause(self, delay_s: float) -> bool:
        """Sleep ``delay_s``. Returns False if the daemon stops."""
        if self._stopped:
            return False
        with anyio.CancelScope() as scope:
            self._scopes.add(scope)
            try:
                await self._clock.sleep(delay_s)
            finally:
                self._scopes.discard(scope)
        return not self._stopped

    def end(self) -> None:
        """End the current and all later delays."""
        self._stopped = True
        self.wake()

    def wake(self) -> None:
        """End the current delays."""
        for scope in tuple(self._scopes):
            scope.cancel()


class RetryPolicy(msgspec.Struct, frozen=True):
    """Number of attempts and the exponential backoff between them."""

    attempts: int = 5
    """Total attempts; 1 means no retry."""
    initial_s: float = 0.1
    factor: float = 2.0
    max_s: float = 10.0

    def __post_init__(self) -> None:
        if self.attempts < 1 or self.initial_s <= 0 or self.factor < 1 or self.max_s <= 0:
            raise ValueError(f"not a retry policy: {self}")


class Backoff:
    """Delays that grow exponentially, each shortened at random by up to half. The jitter spreads
    clients out. A delay is never less than half its nominal value, so a retry loop cannot spin."""

    def __init__(self, policy: RetryPolicy, random: Random) -> None:
        self._policy = policy
        self._random = random
        self._nominal_s = policy.initial_s

    def next_s(self, at_least_s: float | None = None) -> float:
        """The next delay; ``at_least_s`` is a server's Retry-After."""
        nominal_s = self._nominal_s
        self._nominal_s = min(nominal_s * self._policy.factor, self._policy.max_s)
        delay_s = nominal_s * self._random.uniform(0.5, 1.0)
        if at_least_s is None:
            return delay_s
        # Clients that got the same Retry-After must not return at the same moment.
        return max(delay_s, min(at_least_s, MAX_RETRY_AFTER_S) * self._random.uniform(1.0, 1.2))

    def reset(self) -> None:
        self._nominal_s = self._policy.initial_s


class RequestBudget:
    """Token bucket with the meaning of ``clientConnection.qps`` and ``burst``."""

    def __init__(self, qps: float, burst: int, clock: Clock) -> None:
        if qps <= 0 or burst < 1:
            raise ValueError(f"qps must be positive and burst at least 1, not {qps} and {burst}")
        self._qps = qps
        self._burst = burst
        self._clock = clock
        self._tokens = float(burst)
        self._filled_at_s = clock.monotonic_s()

    async def take(self) -> None:
        """Wait until the budget allows one more request."""
        now_s = self._clock.monotonic_s()
        earned = (now_s - self._filled_at_s) * self._qps
        self._tokens = min(self._tokens + earned, float(self._burst)) - 1.0
        self._filled_at_s = now_s
        if self._tokens < 0:
            # The token is taken in advance, so later callers wait in order.
            await self._clock.sleep(-self._tokens / self._qps)
