"""Results that hold for a time: bounded, and one load at a time for each key."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, NamedTuple, TypeVar

from asched.ui.errors import BusyError

KeyT = TypeVar("KeyT", bound=Hashable)
ValueT = TypeVar("ValueT")


class Lifetimes(NamedTuple):
    """How long and how many results are kept."""

    positive_s: float
    negative_s: float
    most: int
    """Positive ones, and as many negative ones: these never displace positive ones."""
    most_loading: int
    """Results that are loaded at a time; more are an error."""


class ReviewCache(Generic[KeyT, ValueT]):
    """Remembers results; those that are false (``None``, ``False``) for another time."""

    def __init__(self, lifetimes: Lifetimes, monotonic_s: Callable[[], float]) -> None:
        self._lifetimes = lifetimes
        self._now_s = monotonic_s
        self._kept: dict[bool, OrderedDict[KeyT, tuple[float, ValueT]]] = {
            True: OrderedDict(),
            False: OrderedDict(),
        }
        self._loading: dict[KeyT, asyncio.Task[ValueT]] = {}

    async def get(self, key: KeyT, load: Callable[[], Awaitable[ValueT]]) -> ValueT:
        """The result that is kept, or that of ``load``. Errors of ``load`` are not kept.

        Raises :class:`~asched.ui.errors.BusyError`.
        """
        for kept in self._kept.values():
            found = kept.get(key)
            if found is not None:
                if self._now_s() < found[0]:
                    kept.move_to_end(key)
                    return found[1]
                del kept[key]
        task = self._loading.get(key)
        if task is None:
            if len(self._loading) >= self._lifetimes.most_loading:
                raise BusyError(f"{len(self._loading)} reviews are in progress")
            task = self._loading[key] = asyncio.ensure_future(self._load(key, load))
            task.add_done_callback(lambda done: done.cancelled() or done.exception())
        # Others may wait for it, too.
        return await asyncio.shield(task)

    async def _load(self, key: KeyT, load: Callable[[], Awaitable[ValueT]]) -> ValueT:
        try:
            # The result is at least as old as the question.
            asked_s = self._now_s()
            value = await load()
        finally:
            del self._loading[key]
        positive = bool(value)
        lifetime_s = self._lifetimes.positive_s if positive else self._lifetimes.negative_s
        kept = self._kept[positive]
        kept[key] = (asked_s + lifetime_s, value)
        while len(kept) > self._lifetimes.most:
            kept.popitem(last=False)
        return value

    def __len__(self) -> int:
        return sum(map(len, self._kept.values()))
