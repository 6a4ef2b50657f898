"""What a session leaves behind: statuses of PodGroups, conditions of pods, Events."""

from __future__ import annotations

from collections.abc import Iterator

from asched.batch.corrections import Correction
from asched.batch.open_session import OpenSession
from asched.framework.resource_vector import ResourceVector
from asched.framework.session_objects import Job, TaskStatus
from asched.framework.session_plugins import Invalid
from asched.framework.sessions import (
    PodGroupOutcome,
    PodGroupPhase,
    SessionBind,
    SessionEvent,
    SessionEventType,
    SessionPodGroupCondition,
    UnschedulablePod,
)
from asched.model.groups import CustomPodGroup, PodGroup

UNSCHEDULABLE = "Unschedulable"
FAILED_SCHEDULING = "FailedScheduling"
EVICT = "Evict"
NO_NODES = "0 nodes are available"


class SessionClosing:
    """A :class:`asched.framework.session_plugins.Closing`: gathers what there is to be said."""

    def __init__(
        self,
        session: OpenSession,
        transition_id: str,
        groups: dict[str, PodGroup | CustomPodGroup],
        invalid: dict[str, tuple[Job, Invalid]],
    ) -> None:
        """``groups``: the real PodGroups by job. ``invalid``: jobs that were left out, and why."""
        self._session = session
        self._transition_id = transition_id
        self._groups = groups
        self._invalid = invalid
        self._conditions: dict[str, dict[str, SessionPodGroupCondition]] = {}
        for job, found in invalid.values():
            self.set_condition(job, UNSCHEDULABLE, found.reason, found.message)

    def set_condition(self, job: Job, condition_type: str, reason: str, message: str) -> None:
        condition = SessionPodGroupCondition(
            condition_type, "True", reason, message, self._transition_id
        )
        self._conditions.setdefault(job.id, {})[condition_type] = condition

    def fit_message(self, job: Job) -> str:
        waiting = job.waiting_count
        if waiting and job.pipelined and self._session.corrects(Correction.NODES_IN_MESSAGES):
            return f"room is being released for {waiting} of its pods."
        said = self._session.fit_messages.get(job.id)
        if said is not None:
            return said
        deltas = self._session.fit_deltas.get(job.id)
        return _lacking(deltas) if deltas else NO_NODES

    # -- what to write ------------------------------------------------------------------------

    def _jobs(self) -> Iterator[Job]:
        yield from self._session.jobs.values()
        for job, _ in self._invalid.values():
            yield job

    def group_outcomes(self) -> tuple[PodGroupOutcome, ...]:
        return tuple(self.outcome_of(job) for job in self._jobs() if job.id in self._groups)

    def outcome_of(self, job: Job) -> PodGroupOutcome:
        """The status of the job's PodGroup, real or shadow."""
        group = self._groups.get(job.id)
        before = [
            SessionPodGroupCondition(old.type, old.status, old.reason, old.message)
            for old in (group.status.conditions if group is not None else ())
        ]
        fresh = self._conditions.get(job.id, {})
        kept = [fresh.get(old.type, old) for old in before]
        known = {old.type for old in before}
        conditions = (*kept, *(new for kind, new in fresh.items() if kind not in known))
        return PodGroupOutcome(
            job.group,
            self._phase(job),
            job.count(TaskStatus.RUNNING),
            job.count(TaskStatus.SUCCEEDED),
            job.count(TaskStatus.FAILED),
            conditions,
            native=isinstance(group, PodGroup),
        )

    def _phase(self, job: Job) -> PodGroupPhase:
        unschedulable = UNSCHEDULABLE in self._conditions.get(job.id, {})
        if unschedulable and job.count(TaskStatus.RUNNING):
            return PodGroupPhase.UNKNOWN
        running = job.allocated_count >= job.min_member
        return PodGroupPhase.RUNNING if running else PodGroupPhase.PENDING

    def unschedulable_pods(self) -> tuple[UnschedulablePod, ...]:
        return tuple(
            UnschedulablePod(task.key, task.uid, self._pod_message(job))
            for job in self._jobs()
            for status in (TaskStatus.ALLOCATED, TaskStatus.PENDING)
            for task in job.with_status(status)
        )

    def _pod_message(self, job: Job) -> str:
        invalid = self._invalid.get(job.id)
        return self.fit_message(job) if invalid is None else invalid[1].message

    def pipelined(self) -> tuple[SessionBind, ...]:
        return tuple(
            SessionBind(task.key, task.uid, task.node)
            for job in self._session.jobs.values()
            for task in job.with_status(TaskStatus.PIPELINED)
        )

    def events(self) -> tuple[SessionEvent, ...]:
        return (*self._eviction_events(), *self._group_events(), *self._pod_events())

    def _eviction_events(self) -> Iterator[SessionEvent]:
        jobs = {task.uid: job for job in self._session.jobs.values() for task in job.tasks.values()}
        for eviction in self._session.books.evictions:
            job = jobs[eviction.uid]
            if job.group:
                yield SessionEvent(
                    "PodGroup", job.group, SessionEventType.NORMAL, EVICT, eviction.reason.value
                )

    def _group_events(self) -> Iterator[SessionEvent]:
        for job in self._jobs():
            if job.id not in self._groups or self._phase(job) is PodGroupPhase.RUNNING:
                continue
            message = (
                f"{job.count(TaskStatus.PENDING)}/{len(job.tasks)} tasks in gang unschedulable:"
                f" {self._pod_message(job)}"
            )
            yield SessionEvent(
                "PodGroup", job.group, SessionEventType.WARNING, UNSCHEDULABLE, message
            )

    def _pod_events(self) -> Iterator[SessionEvent]:
        for pod in self.unschedulable_pods():
            yield SessionEvent(
                "Pod", pod.pod, SessionEventType.WARNING, FAILED_SCHEDULING, pod.message, pod.uid
            )


def _lacking(deltas: dict[str, ResourceVector]) -> str:
    """kube-batch's words for what nodes lack: how many lack each resource, sorted as text."""
    counts: dict[str, int] = {}
    for delta in deltas.values():
        for name, number in delta.amounts().items():
            if number < 0:
                counts[name] = counts.get(name, 0) + 1
    reasons = sorted(f"{count} insufficient {name}" for name, count in counts.items())
    return f"0/{len(deltas)} nodes are available, {', '.join(reasons)}."
