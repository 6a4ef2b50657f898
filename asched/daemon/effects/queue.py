"""Effects on one pod happen one after the other, on different pods at the same time.

A condition that says "unschedulable" must not arrive after the binding that was decided later.

What every kind of effect works with.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import NamedTuple

from anyio.abc import TaskGroup

from asched.core.inputs import Outcome
from asched.daemon.engine.runtime import StoppableSleep
from asched.kube.timing import Backoff, Clock
from asched.state.cluster import ClusterState

Job = Callable[[], Awaitable[None]]

MOST_IDLE = 512
"""Tasks that wait for a lane, at most."""
REVIEWED_AFTER = 1024
"""Lanes, after which tasks end that none of them needed."""


class PerPodQueue:
    """Runs jobs in a task group: in order within a lane, concurrently between lanes.

    Each lane with something to do has a task. To start one costs more than most jobs do, so a task
    whose lane has ended waits for another lane, until :meth:`close` or until it was not needed for a
    while.
    """

    def __init__(self, tasks: TaskGroup, lane_ended: Callable[[], None]) -> None:
        """``lane_ended`` is called whenever a lane has nothing left to do."""
        self._tasks = tasks
        self._lane_ended = lane_ended
        self._lanes: dict[str, deque[tuple[str, Job]]] = {}
        self._ready: deque[str] = deque()
        """Lanes that no task has taken up yet: as many as tasks were started or woken for them."""
        self._idle: list[asyncio.Future[None]] = []
        self._least_idle = 0
        """The fewest that were idle at a time since the last review: so many were never needed."""
        self._until_review = REVIEWED_AFTER
        self._retiring = 0
        """Tasks that are to end when they find nothing to do."""
        self._closed = False

    def __len__(self) -> int:
        """Lanes with something to do."""
        return len(self._lanes)

    def submit(self, lane: str, kind: str, job: Job) -> None:
        """Run ``job`` after what is in the lane already. One of the same kind that has not begun
        is replaced: only the newest word on a matter is worth saying. What only the earlier one would
        say is lost with it, so a job that may say less looks up what is to be said as it begins."""
        queue = self._lanes.get(lane)
        if queue is None:
            self._lanes[lane] = deque([(kind, job)])
            self._ready.append(lane)
            if self._idle:
                _call(self._idle.pop())
            else:
                self._tasks.start_soon(self._run)
            self._least_idle = min(self._least_idle, len(self._idle))
            self._until_review -= 1
            if not self._until_review:
                self._review()
            return
        if queue and queue[-1][0] == kind:
            queue.pop()
        queue.append((kind, job))

    def close(self) -> None:
        """Let tasks end with their lanes. What is submitted later is run all the same."""
        self._closed = True
        for called in self._idle:
            _call(called)
        self._idle.clear()

    def _review(self) -> None:
        """Let half of the tasks go that were idle all the time: a burst needed them."""
        spare = self._least_idle // 2
        for called in self._idle[:spare]:
            _call(called)
        del self._idle[:spare]
        self._retiring += spare
        self._least_idle, self._until_review = len(self._idle), REVIEWED_AFTER

    async def _run(self) -> None:
        # An event would look for the running loop each time, which asks the kernel who we are.
        loop = asyncio.get_running_loop()
        while True:
            while self._ready:
                await self._run_lane(self._ready.popleft())
            if self._closed or len(self._idle) >= MOST_IDLE:
                return
            if self._retiring:
                self._retiring -= 1
                return
            called = loop.create_future()
            self._idle.append(called)
            await called

    async def _run_lane(self, lane: str) -> None:
        queue = self._lanes[lane]
        try:
            while queue:
                _, job = queue.popleft()
                await job()
        finally:
            del self._lanes[lane]
            self._lane_ended()


def _call(idle: asyncio.Future[None]) -> None:
    if not idle.done():  # its task may have been cancelled
        idle.set_result(None)


class EffectContext(NamedTuple):
    """Of one daemon: all its effects share it."""

    cluster: ClusterState
    lanes: PerPodQueue
    """Where they wait for what was begun before on the same pod."""
    pauses: StoppableSleep
    """What they wait in before they try again."""
    backoff: Callable[[], Backoff]
    """Paces the retries of one effect."""
    report: Callable[[Outcome], None]
    """Takes what an effect came to."""
    clock: Clock
