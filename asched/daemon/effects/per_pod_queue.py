"""Ordered work per pod.

Effects on one pod run in order: a condition "Unschedulable" must not be written after a binding
that was decided later. Effects on different pods run concurrently.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple

from anyio.abc import TaskGroup

from asched.core.inputs import Outcome
from asched.daemon.plugin_host.external_plugins import ExternalPlugins
from asched.daemon.telemetry.metrics import Metrics
from asched.daemon.telemetry.stopwatch import CycleStopwatch
from asched.kube.client import ApiClient
from asched.kube.events import EventRecorder
from asched.kube.extenders import HttpExtender
from asched.kube.timing import Backoff, Clock, StoppableSleep
from asched.state.cluster import ClusterState

Job = Callable[[], Awaitable[None]]

MAX_IDLE_WORKERS = 512
REVIEW_INTERVAL = 1024
"""Pods after which surplus idle workers end."""


class PerPodQueue:
    """Runs jobs in a task group: in order for one UID, concurrently for different ones.

    A UID with jobs has a worker task. Starting a task costs more than most jobs, so idle workers
    are kept until :meth:`close`, or until they were not needed for a while.
    """

    def __init__(self, tasks: TaskGroup, finished: Callable[[], None]) -> None:
        """``finished`` is called whenever the last job of a UID has ended."""
        self._tasks = tasks
        self._finished = finished
        self._jobs: dict[str, deque[tuple[str, Job]]] = {}
        """By UID: kind and job."""
        self._ready: deque[str] = deque()
        """UIDs without a worker. For each, a worker was started or woken."""
        self._idle: list[asyncio.Future[None]] = []
        self._min_idle = 0
        """Least number of idle workers since the last review: these are surplus."""
        self._until_review = REVIEW_INTERVAL
        self._surplus = 0
        """Workers that end when they find no job."""
        self._closed = False

    def __len__(self) -> int:
        """Number of UIDs with jobs."""
        return len(self._jobs)

    def submit(self, uid: str, kind: str, job: Job) -> None:
        """Run ``job`` after the jobs of the same UID. It replaces the last job if that is of the
        same kind and has not started, so a job must look up what to do when it starts."""
        jobs = self._jobs.get(uid)
        if jobs is not None:
            if jobs and jobs[-1][0] == kind:
                jobs.pop()
            jobs.append((kind, job))
            return
        self._jobs[uid] = deque([(kind, job)])
        self._ready.append(uid)
        if self._idle:
            _wake(self._idle.pop())
        else:
            self._tasks.start_soon(self._work)
        self._min_idle = min(self._min_idle, len(self._idle))
        self._until_review -= 1
        if not self._until_review:
            self._end_surplus_workers()

    def close(self) -> None:
        """End idle workers, and others after their jobs. Later jobs still run."""
        self._closed = True
        for worker in self._idle:
            _wake(worker)
        self._idle.clear()

    def _end_surplus_workers(self) -> None:
        surplus = self._min_idle // 2
        for worker in self._idle[:surplus]:
            _wake(worker)
        del self._idle[:surplus]
        self._surplus += surplus
        self._min_idle, self._until_review = len(self._idle), REVIEW_INTERVAL

    async def _work(self) -> None:
        # An anyio event would look up the running loop each time, which costs a system call.
        loop = asyncio.get_running_loop()
        while True:
            while self._ready:
                uid = self._ready.popleft()
                jobs = self._jobs[uid]
                try:
                    while jobs:
                        await jobs.popleft()[1]()
                finally:
                    del self._jobs[uid]
                    self._finished()
            if self._closed or len(self._idle) >= MAX_IDLE_WORKERS:
                return
            if self._surplus:
                self._surplus -= 1
                return
            idle = loop.create_future()
            self._idle.append(idle)
            await idle


def _wake(worker: asyncio.Future[None]) -> None:
    if not worker.done():  # its task may have been cancelled
        worker.set_result(None)


class EffectServices(NamedTuple):
    """What effects use in addition to the state and the inbox."""

    client: ApiClient
    """Used for every write."""
    events: EventRecorder | None
    """None posts no Events."""
    tasks: TaskGroup
    backoff: Callable[[], Backoff]
    """Delays of one effect's retries."""
    metrics: Metrics
    plugins: ExternalPlugins
    """Evaluates plugins that are not called as part of a decision."""
    check_writer: Callable[[], Awaitable[None]]
    """``JournalStore.check_writer`` of the daemon's journal."""
    extenders: Sequence[HttpExtender] = ()
    """Extenders of the recorded configuration, in its order."""
    stopwatch: CycleStopwatch | None = None
    """Times some of the binding cycles."""


class EffectContext(NamedTuple):
    """What all effect handlers of a daemon share."""

    cluster: ClusterState
    queue: PerPodQueue
    sleep: StoppableSleep
    """Delays between retries."""
    report: Callable[[Outcome], None]
    """Takes the outcome of an effect."""
    services: EffectServices

    @property
    def clock(self) -> Clock:
        return self.services.client.clock
