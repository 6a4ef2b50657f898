"""drf: dominant resource fairness among jobs."""

from __future__ import annotations

from typing import ClassVar, NamedTuple

from asched.framework.resource_vector import ResourceVector, share
from asched.framework.session_objects import ALLOCATED_STATUSES, Job, Task
from asched.framework.session_plugins import (
    EventHandlerPlugin,
    JobOrderPlugin,
    PreemptablePlugin,
    Session,
    VictimFilter,
)

SHARE_DELTA = 0.000001
"""Shares with a smaller difference are equal."""


class Holding(NamedTuple):
    """A job's allocated resources and its dominant share of the cluster."""

    allocated: ResourceVector
    share: float


class Drf(JobOrderPlugin, PreemptablePlugin, EventHandlerPlugin):
    """The job with the smaller dominant share goes first. It may evict as long as its share does
    not exceed that of the victim's job afterwards."""

    name: ClassVar[str] = "drf"

    def on_open(self, session: Session) -> None:
        super().on_open(session)
        self._total = session.total
        self._holdings: dict[str, Holding] = {}
        for job in session.jobs.values():
            allocated = ResourceVector()
            for status in ALLOCATED_STATUSES:
                for task in job.by_status.get(status, {}).values():
                    allocated.add(task.request)
            self._holdings[job.id] = Holding(allocated, self.share_of(allocated))

    def share_of(self, allocated: ResourceVector) -> float:
        """The largest share of any resource of the cluster."""
        total = self._total
        return max(share(allocated.get(name), total.get(name)) for name in total.names())

    def holding(self, job_id: str) -> Holding:
        """The present resources of a job in the session; read-only."""
        return self._holdings[job_id]

    def job_order(self, job: Job) -> float:
        return self._holdings[job.id].share

    def on_allocate(self, task: Task) -> None:
        allocated = self._holdings[task.job].allocated.add(task.request)
        self._holdings[task.job] = Holding(allocated, self.share_of(allocated))

    def on_deallocate(self, task: Task) -> None:
        allocated = self._holdings[task.job].allocated.sub(task.request)
        self._holdings[task.job] = Holding(allocated, self.share_of(allocated))

    def preemptable(self, preemptor: Task) -> VictimFilter:
        return _RicherJob(self, preemptor)

    def may_lose_to_preemptor(self, job: Job, preemptor: Task) -> bool:
        after = self.holding(preemptor.job).allocated.copy().add(preemptor.request)
        return self.share_of(after) <= self._holdings[job.id].share + SHARE_DELTA


class _RicherJob:
    def __init__(self, drf: Drf, preemptor: Task) -> None:
        self._drf = drf
        after = drf.holding(preemptor.job).allocated.copy().add(preemptor.request)
        self._share = drf.share_of(after)
        self._left: dict[str, ResourceVector] = {}

    def _left_of(self, candidate: Task) -> ResourceVector:
        left = self._left.get(candidate.job)
        if left is None:
            left = self._left[candidate.job] = self._drf.holding(candidate.job).allocated.copy()
        return left

    def allows(self, candidate: Task) -> bool:
        left = self._left_of(candidate).copy().sub(candidate.request)
        theirs = self._drf.share_of(left)
        return self._share < theirs or abs(self._share - theirs) <= SHARE_DELTA

    def take(self, candidate: Task) -> None:
        self._left_of(candidate).sub(candidate.request)
