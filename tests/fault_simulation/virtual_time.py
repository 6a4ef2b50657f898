"""Virtual time: an event loop that jumps over the time in which nothing happens.

All of a simulation runs in one thread on one :class:`VirtualLoop`. Where a real loop would wait for the
next timer, this one moves its clock there. Nothing in it waits for anything real, so with the same
callbacks it does the same each time, however busy the machine is.
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
_FOR_EVER_S = 86_400.0
"""asyncio asks for no longer wait at once. Nothing in a daemon waits for a day."""
_MOST_ROUNDS_AT_ONCE = 50_000
"""Rounds of the loop in which time stands still. What needs more spins."""


class StuckError(Exception):
    """Nothing will ever happen again, or time has stopped passing."""


class _NoSelector(selectors.BaseSelector):
    """There is nothing to wait for outside: to wait is to let virtual time pass."""

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
    """A task whose place in a set does not depend on its address in memory."""

    numbers = itertools.count()

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._number = next(self.numbers)
        super().__init__(*args, **kwargs)

    def __hash__(self) -> int:
        return self._number


@contextmanager
def ordered_scopes() -> Iterator[None]:
    """Let sets of anyio's cancel scopes keep their order: it cancels in the order of such sets, which
    otherwise follows the addresses of the scopes. The sets are small, so one hash for all will do."""
    scope_type = type(anyio.CancelScope())
    before = scope_type.__hash__
    scope_type.__hash__ = lambda self: 0  # type: ignore[method-assign]
    try:
        yield
    finally:
        scope_type.__hash__ = before  # type: ignore[method-assign]


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop with a clock of its own, which counts what it runs."""

    def __init__(self) -> None:
        selector = _NoSelector()
        selector.pass_time = self._pass_time
        self._now_s = 0.0
        self._rounds_at_once = 0
        self.steps = 0
        """Callbacks scheduled up to now: a point in the run, the same each time."""
        self._due_step = -1
        self._due: Callable[[], None] = lambda: None
        self.on_stuck: Callable[[StuckError], None] | None = None
        """Told of a :class:`StuckError` in place of its being raised; should end what is stuck."""
        super().__init__(selector)
        _OrderedTask.numbers = itertools.count()
        self.set_task_factory(lambda loop, coro, **kw: _OrderedTask(coro, loop=loop, **kw))

    def time(self) -> float:
        return self._now_s

    def advance(self, seconds: float) -> None:
        """Let time pass though something is running: that is what computing takes."""
        self._now_s += seconds

    def at_step(self, step: int, call: Callable[[], None]) -> None:
        """Call ``call`` when :attr:`steps` gets there, in the midst of whatever happens then. There is
        one such call at a time."""
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
        if timeout_s is None or timeout_s >= _FOR_EVER_S:
            self._stuck(StuckError("everybody waits, and for nothing within a day"))
            return
        if timeout_s > 0:
            self._now_s += timeout_s
            self._rounds_at_once = 0
            return
        self._rounds_at_once += 1
        if self._rounds_at_once > _MOST_ROUNDS_AT_ONCE:
            self._rounds_at_once = 0
            self._stuck(StuckError(f"time stands still at {self._now_s:.3f} s: something spins"))

    def _stuck(self, error: StuckError) -> None:
        """Tell, once; where nobody is to be told, or it does not help, it ends the loop."""
        tell, self.on_stuck = self.on_stuck, None
        if tell is None:
            raise error
        tell(error)


class VirtualClock:
    """One machine's clock: the daemon's ``Clock`` and the client's ``Clock`` in one."""

    def __init__(self, loop: VirtualLoop, thinking_s: Callable[[], float]) -> None:
        """``thinking_s`` is how long went by since the engine looked last, beside what it waited."""
        self.ahead_s = 0.0
        """How much the wall clock is ahead; a change of it is a jump."""
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
