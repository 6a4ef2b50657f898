"""Virtual time: an event loop that skips idle time.

A simulation runs in one thread on one :class:`VirtualLoop`. Where a real loop waits for the next
timer, this one advances its clock. It never waits for real time or I/O, so a run is reproducible.
"""

from __future__ import annotations

import asyncio
import itertools
import selectors
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import Context
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVarTuple

import anyio

from asched.model.quantity import NS_PER_S

Ts = TypeVarTuple("Ts")

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
_BEGIN_NS = int(BEGIN.timestamp()) * NS_PER_S
_FOREVER_S = 86_400.0
"""asyncio's longest timeout of one wait. No wait in a daemon takes a day."""
_MAX_ROUNDS_AT_ONCE = 50_000
"""Limit of loop iterations without progress of time."""


class StuckError(Exception):
    """No callback is scheduled, or time does not advance."""


class _NoSelector(selectors.BaseSelector):
    """A selector without I/O: waiting advances virtual time."""

    def __init__(self) -> None:
        self._keys: dict[Any, selectors.SelectorKey] = {}
        self.pass_time: Callable[[float | None], None] = lambda timeout_s: None

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        number = fileobj if isinstance(fileobj, int) else fileobj.fileno()
        key = selectors.SelectorKey(fileobj, number, events, data)
        self._keys[fileobj] = key
        return key

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        return self._keys.pop(fileobj)

    def get_map(self) -> Mapping[Any, selectors.SelectorKey]:
        return self._keys

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        self.pass_time(timeout)
        return []


class _OrderedTask(asyncio.Task[Any]):
    """A task with a reproducible position in sets."""

    numbers = itertools.count()

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._number = next(self.numbers)
        super().__init__(*args, **kwargs)

    def __hash__(self) -> int:
        return self._number


@contextmanager
def ordered_scopes() -> Iterator[None]:
    """Give anyio's cancel scopes a reproducible order in sets.

    anyio cancels in the order of such sets, which otherwise depends on memory addresses. The sets
    are small, so a constant hash suffices.
    """
    scope_type = type(anyio.CancelScope())
    before = scope_type.__hash__
    scope_type.__hash__ = lambda self: 0  # type: ignore[method-assign]
    try:
        yield
    finally:
        scope_type.__hash__ = before  # type: ignore[method-assign]


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop with a virtual clock that counts its callbacks."""

    def __init__(self) -> None:
        selector = _NoSelector()
        selector.pass_time = self._pass_time
        self._now_s = 0.0
        self._rounds_at_once = 0
        self.steps = 0
        """Number of scheduled callbacks, which identifies a point of the run."""
        self._due_step = -1
        self._due: Callable[[], None] = lambda: None
        self.on_stuck: Callable[[StuckError], None] | None = None
        """Called instead of raising :class:`StuckError`; should cancel the run."""
        super().__init__(selector)
        _OrderedTask.numbers = itertools.count()
        self.set_task_factory(lambda loop, coro, **kw: _OrderedTask(coro, loop=loop, **kw))

    def time(self) -> float:
        return self._now_s

    def advance(self, seconds: float) -> None:
        """Advance the clock by the time of a computation."""
        self._now_s += seconds

    def at_step(self, step: int, call: Callable[[], None]) -> None:
        """Call ``call`` when :attr:`steps` reaches ``step``. Replaces an earlier such call."""
        self._due_step, self._due = step, call

    def call_soon(
        self,
        callback: Callable[[*Ts], object],
        *args: *Ts,
        context: Context | None = None,
    ) -> asyncio.Handle:
        self.steps += 1
        if self.steps == self._due_step:
            self._due_step = -1
            self._due()
        return super().call_soon(callback, *args, context=context)

    def _pass_time(self, timeout_s: float | None) -> None:
        if timeout_s is None or timeout_s >= _FOREVER_S:
            self._stuck(StuckError("nothing is scheduled within a day"))
            return
        if timeout_s > 0:
            self._now_s += timeout_s
            self._rounds_at_once = 0
            return
        self._rounds_at_once += 1
        if self._rounds_at_once > _MAX_ROUNDS_AT_ONCE:
            self._rounds_at_once = 0
            self._stuck(StuckError(f"time does not advance at {self._now_s:.3f} s: a busy loop"))

    def _stuck(self, error: StuckError) -> None:
        """Call :attr:`on_stuck` once; without it, or the second time, raise the error."""
        report, self.on_stuck = self.on_stuck, None
        if report is None:
            raise error
        report(error)


class VirtualClock:
    """The clock of one machine, for the daemon and the client."""

    def __init__(self, loop: VirtualLoop, thinking_s: Callable[[], float]) -> None:
        """``thinking_s`` returns the computing time since the engine's last look at the clock."""
        self.ahead_s = 0.0
        """Offset of the wall clock; a change is a jump."""
        self._loop = loop
        self._thinking_s = thinking_s

    def time_ns(self) -> int:
        return _BEGIN_NS + round((self._loop.time() + self.ahead_s) * NS_PER_S)

    def monotonic_ns(self) -> int:
        self._loop.advance(self._thinking_s())
        return round(self._loop.time() * NS_PER_S)

    def monotonic_s(self) -> float:
        return self._loop.time()

    def utc(self) -> datetime:
        return BEGIN + timedelta(seconds=self._loop.time() + self.ahead_s)

    async def sleep(self, delay_s: float) -> None:
        await anyio.sleep(delay_s)

    def block(self, delay_s: float) -> None:
        self._loop.advance(delay_s)
