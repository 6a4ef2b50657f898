"""Time and patience: the clock that is injected, retries with jitter, the request budget."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from random import Random
from typing import Protocol

import anyio
import msgspec

MAX_RETRY_AFTER_S = 120.0
"""A Retry-After beyond this is taken for a mistake."""


class Clock(Protocol):
    """Where this package gets the time from. Tests drive one by hand."""

    def monotonic_s(self) -> float:
        """Seconds that never run backwards."""

    def utc(self) -> datetime:
        """The wall clock, with time zone UTC."""

    async def sleep(self, delay_s: float) -> None: ...


class SystemClock:
    """The machine's own clock."""

    def monotonic_s(self) -> float:
        return time.monotonic()

    def utc(self) -> datetime:
        return datetime.now(UTC)

    async def sleep(self, delay_s: float) -> None:
        await anyio.sleep(delay_s)


class RetryPolicy(msgspec.Struct, frozen=True):
    """How often something is tried and how long to pause in between."""

    attempts: int = 5
    """Tries in all; 1 means no retry."""
    initial_s: float = 0.1
    factor: float = 2.0
    max_s: float = 10.0

    def __post_init__(self) -> None:
        if self.attempts < 1 or self.initial_s <= 0 or self.factor < 1 or self.max_s <= 0:
            raise ValueError(f"not a retry policy: {self}")


class Backoff:
    """Pauses that grow exponentially, each shortened at random by up to half.

    The jitter keeps many clients from coming back at the same moment; never less than half the
    nominal pause, so nothing that uses it can spin.
    """

    def __init__(self, policy: RetryPolicy, random: Random) -> None:
        self._policy = policy
        self._random = random
        self._nominal_s = policy.initial_s

    def next_s(self, at_least_s: float | None = None) -> float:
        """The next pause; ``at_least_s`` is a server's Retry-After."""
        nominal_s = self._nominal_s
        self._nominal_s = min(nominal_s * self._policy.factor, self._policy.max_s)
        delay_s = nominal_s * self._random.uniform(0.5, 1.0)
        if at_least_s is None:
            return delay_s
        # Somewhat later than asked for, so that all who were told the same do not return at once.
        return max(delay_s, min(at_least_s, MAX_RETRY_AFTER_S) * self._random.uniform(1.0, 1.2))

    def reset(self) -> None:
        self._nominal_s = self._policy.initial_s


class RequestBudget:
    """Client-side rate limit: a token bucket, as ``clientConnection.qps`` and ``burst`` mean it."""

    def __init__(self, qps: float, burst: int, clock: Clock) -> None:
        if qps <= 0 or burst < 1:
            raise ValueError(f"qps must be positive and burst at least 1, not {qps} and {burst}")
        self._qps = qps
        self._burst = burst
        self._clock = clock
        self._tokens = float(burst)
        self._filled_at_s = clock.monotonic_s()

    async def take(self) -> None:
        """Wait until one more request is within the budget."""
        now_s = self._clock.monotonic_s()
        earned = (now_s - self._filled_at_s) * self._qps
        self._tokens = min(self._tokens + earned, float(self._burst)) - 1.0
        self._filled_at_s = now_s
        if self._tokens < 0:
            # The token is taken in advance, so those who come later wait in turn.
            await self._clock.sleep(-self._tokens / self._qps)
