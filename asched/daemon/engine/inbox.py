"""Changes and outcomes that wait for the engine's next turn."""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import NamedTuple

import anyio

from asched.core.inputs import Batch, Change, Listed, Outcome, Upserted
from asched.model.pod import Pod
from asched.model.quantity import NS_PER_S
from asched.model.resources import WatchedResource
from asched.state.records import Bound, LeadershipGained, ProfilesLoaded
from asched.state.session_records import SessionsLoaded


class Reconfiguration(NamedTuple):
    """A new configuration, applied between two decisions."""

    records: tuple[ProfilesLoaded | SessionsLoaded, ...]
    unsynced: Mapping[WatchedResource, int]
    """Resources to be listed before the next decision, with the least
    :attr:`~asched.core.inputs.Listed.relist_count` of that list."""
    applied: Callable[[], None]
    """Called when the records are folded, before the next decision."""


MAX_CHANGES = 20_000
MAX_PARTS = 2
"""Incomplete lists that may wait: each has thousands of objects."""
MAX_DEFERRED_CHANGES = 100
"""Changes that can wait cause a turn once there are so many of them."""
DEFERRAL_S = 0.1
"""How long deferred items wait at most. A decision never does without them: each turn takes
everything that arrived."""


def can_wait(change: Change) -> bool:
    """Whether the change needs no turn of its own: it shows a running pod that has a node. Such
    changes follow every binding, and make at most an unschedulable pod schedulable."""
    if not isinstance(change, Upserted) or not isinstance(change.object, Pod):
        return False
    pod = change.object
    return bool(pod.node_name) and not pod.terminating and not pod.terminal


class Inbox:
    """Changes from the watches and outcomes of effects, in order of arrival.

    Watches are delayed while more than ``max_changes`` wait, or several parts of lists. Outcomes
    are never delayed, because there is at most one for each effect in flight. They precede waiting
    changes, except ``LeadershipGained``: a new leader must fold first what its watches delivered
    before.

    What follows a binding is *deferred*: it needs no turn of its own, so a pod costs one commit
    instead of two or three.
    """

    def __init__(
        self,
        max_changes: int = MAX_CHANGES,
        monotonic_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._max_changes = max_changes
        self._monotonic_ns = monotonic_ns
        self._arrivals: deque[tuple[int, int]] = deque()
        """For each batch with changes left: number of changes up to its end, and its arrival."""
        self._received = self._taken = 0
        self._parts = 0
        """Number of waiting parts that do not end their list."""
        self._changes: deque[Change] = deque()
        self._outcomes: deque[Outcome | Reconfiguration] = deque()
        self._gained: tuple[LeadershipGained, int] | None = None
        """``LeadershipGained``, and the number of changes that precede it."""
        self.urgent = False
        """Whether something waits that should not be deferred."""
        self.deferred = False
        """Whether something deferred waits."""
        self._waiting: asyncio.Future[bool] | None = None
        """The current :meth:`wait`; true if time ends it."""
        self._woken = False
        """Whether the next :meth:`wait` ends at once."""
        self._timers: list[asyncio.TimerHandle] = []
        """Those that end the current :meth:`wait`."""
        self._drained = anyio.Event()

    def __len__(self) -> int:
        return len(self._changes) + self.outcomes

    def put_changes(self, batch: Batch) -> None:
        """As :class:`~asched.core.inputs.ChangeSink`."""
        self._changes.extend(batch)
        if batch:
            self._received += len(batch)
            self._arrivals.append((self._received, self._monotonic_ns()))
            self._parts += _is_part(batch[0])
        self._note(
            urgent=len(self._changes) > MAX_DEFERRED_CHANGES or not all(map(can_wait, batch))
        )

    async def wait_for_capacity(self) -> None:
        """As :class:`~asched.core.inputs.ChangeSink`."""
        while len(self._changes) > self._max_changes or self._parts >= MAX_PARTS:
            await self._drained.wait()

    @property
    def received(self) -> int:
        """Number of changes that ever arrived."""
        return self._received

    @property
    def taken(self) -> int:
        """Number of changes that :meth:`next_change` ever returned."""
        return self._taken

    @property
    def oldest_age_s(self) -> float:
        """Age of the oldest change; 0 if there is none."""
        if not self._arrivals:
            return 0.0
        return (self._monotonic_ns() - self._arrivals[0][1]) / NS_PER_S

    @property
    def outcomes(self) -> int:
        """Number of outcomes."""
        return len(self._outcomes) + (self._gained is not None)

    def put_outcome(self, outcome: Outcome | Reconfiguration) -> None:
        if isinstance(outcome, LeadershipGained):
            self._gained = outcome, self._received
        else:
            self._outcomes.append(outcome)
        self._note(urgent=not isinstance(outcome, Bound))

    def _note(self, *, urgent: bool) -> None:
        """Note an arrival. An urgent one ends the wait, a deferred one after a while."""
        if urgent:
            self.urgent = True
            self.wake()
        elif not self.deferred:
            self.deferred = True
            if self._waiting is not None:
                self._end_wait_at(self._waiting.get_loop().time() + DEFERRAL_S)

    def turn_taken(self, *, deferred: bool = False) -> None:
        """A turn took what it has time for. What it left is urgent; ``deferred``: it keeps
        something that belongs to a later turn."""
        self.urgent, self.deferred = len(self) > 0, deferred

    def next_outcome(self, *, listing: bool = False) -> Outcome | Reconfiguration | None:
        """Remove and return the next outcome. ``listing``: the change that was taken last is a list
        that is not folded completely."""
        if self._outcomes:
            return self._outcomes.popleft()
        if self._gained is not None:
            gained, received_before = self._gained
            folded = self._taken - 1 if listing else self._taken
            if folded >= received_before:
                self._gained = None
                return gained
        return None

    def next_change(self) -> Change | None:
        """Remove and return the next change."""
        if not self._changes:
            return None
        change = self._changes.popleft()
        self._taken += 1
        if self._arrivals[0][0] <= self._taken:
            self._arrivals.popleft()
        part = _is_part(change)
        self._parts -= part
        if part or len(self._changes) == self._max_changes // 2:
            self._drained.set()
            self._drained = anyio.Event()
        return change

    def wake(self) -> None:
        """End the current or next :meth:`wait`."""
        self._woken = True
        _end(self._waiting, by_time=False)

    async def wait(self, until_s: float = math.inf) -> bool:
        """Return after an urgent arrival, :meth:`wake`, or :data:`DEFERRAL_S` after a deferred
        arrival, and at ``until_s`` by the clock of the event loop. Returns whether time ended it.

        A future instead of an event and a cancel scope, which cost a tenth of a turn.
        """
        loop = asyncio.get_running_loop()
        waiting: asyncio.Future[bool] = loop.create_future()
        self._waiting = waiting
        if self._woken:
            waiting.set_result(False)
        elif self.deferred:
            until_s = min(until_s, loop.time() + DEFERRAL_S)
        if until_s < math.inf:
            self._end_wait_at(until_s)
        try:
            return await waiting
        finally:
            self._waiting, self._woken = None, False
            for timer in self._timers:
                timer.cancel()
            self._timers.clear()

    def _end_wait_at(self, time_s: float) -> None:
        assert self._waiting is not None
        loop = self._waiting.get_loop()
        self._timers.append(loop.call_at(time_s, _end, self._waiting))


def _end(waiting: asyncio.Future[bool] | None, *, by_time: bool = True) -> None:
    if waiting is not None and not waiting.done():
        waiting.set_result(by_time)


def _is_part(change: Change) -> bool:
    """Whether it is a part of a list that more parts follow. It is alone in its batch."""
    return isinstance(change, Listed) and not change.ends
