"""What has arrived and waits for the engine's next turn."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import NamedTuple

import anyio

from asched.core.inputs import Batch, Change
from asched.model.quantity import NS_PER_S
from asched.model.resources import WatchedResource
from asched.core.inputs import Outcome
from asched.state.records import LeadershipGained, ProfilesLoaded
from asched.state.session_records import SessionsLoaded

class Reconfiguration(NamedTuple):
    """Another configuration for the engine, to be taken up between what it does."""

    records: tuple[ProfilesLoaded | SessionsLoaded, ...]
    awaited: Mapping[WatchedResource, int]
    """Resources that have to be listed before anything is decided under it, and of which generation
    (:attr:`~asched.core.inputs.Listed.generation`) that list has to be, or of a later one."""
    applied: Callable[[], None]
    """Called when the records are folded and nothing is decided yet."""


_MOST_CHANGES = 20_000


class Inbox:
    """Changes from the watches and outcomes of our own effects, in order of arrival.

    Watches are held back while more than ``most_changes`` wait: the engine is behind, and the API
    server may as well keep what comes next. Outcomes are never held back; there is at most one for
    each effect that is under way. They overtake changes, but for ``LeadershipGained``: a new leader has
    to know first what its watches brought.
    """

    def __init__(
        self,
        most_changes: int = _MOST_CHANGES,
        monotonic_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._most_changes = most_changes
        self._monotonic_ns = monotonic_ns
        self._arrivals: deque[tuple[int, int]] = deque()
        """How many changes had come, and when, after each batch that is not wholly taken out."""
        self._came = self._taken = 0
        self._changes: deque[Change] = deque()
        self._outcomes: deque[Outcome | Reconfiguration] = deque()
        self._gained: tuple[LeadershipGained, int] | None = None
        """Leadership that was gained, and how many changes had come before."""
        self._arrived = anyio.Event()
        self._drained = anyio.Event()

    def __len__(self) -> int:
        return len(self._changes) + self.outcomes

    def put_changes(self, batch: Batch) -> None:
        """As the :class:`~asched.core.inputs.ChangeSink` of the reflectors."""
        self._changes.extend(batch)
        if batch:
            self._came += len(batch)
            self._arrivals.append((self._came, self._monotonic_ns()))
        self._arrived.set()

    async def until_room(self) -> None:
        """Hold back whoever delivers while too much waits."""
        while len(self._changes) > self._most_changes:
            await self._drained.wait()

    @property
    def oldest_age_s(self) -> float:
        """How long the oldest change has waited; 0 where none does."""
        if not self._arrivals:
            return 0.0
        return (self._monotonic_ns() - self._arrivals[0][1]) / NS_PER_S

    @property
    def outcomes(self) -> int:
        """Outcomes that wait."""
        return len(self._outcomes) + (self._gained is not None)

    def put_outcome(self, outcome: Outcome | Reconfiguration) -> None:
        if isinstance(outcome, LeadershipGained):
            self._gained = outcome, self._came
        else:
            self._outcomes.append(outcome)
        self._arrived.set()

    def next_outcome(self, *, amid_list: bool = False) -> Outcome | Reconfiguration | None:
        """``amid_list``: of the change that was taken out last, a list, something is still to be
        folded."""
        if self._outcomes:
            return self._outcomes.popleft()
        if self._gained is not None:
            gained, came_before = self._gained
            folded = self._taken - 1 if amid_list else self._taken
            if folded >= came_before:
                self._gained = None
                return gained
        return None

    def next_change(self) -> Change | None:
        if not self._changes:
            return None
        change = self._changes.popleft()
        self._taken += 1
        if self._arrivals[0][0] <= self._taken:
            self._arrivals.popleft()
        if len(self._changes) == self._most_changes // 2:
            self._drained.set()
            self._drained = anyio.Event()
        return change

    def wake(self) -> None:
        """End a present :meth:`wait`, though nothing arrived."""
        self._arrived.set()

    async def wait(self) -> None:
        """Until something is there, or :meth:`wake`."""
        if not len(self):
            await self._arrived.wait()
        self._arrived = anyio.Event()
