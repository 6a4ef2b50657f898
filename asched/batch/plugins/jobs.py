"""priority, conformance and gang: the order of jobs, and the protection from eviction.

``priority`` permits preemption of jobs of lower priority. ``conformance`` protects system pods.
``gang`` starts a job with ``minMember`` tasks or not at all, and keeps it above that.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import ClassVar, NamedTuple

from asched.batch.corrections import Correction, corrections_of
from asched.framework.session_objects import Job, Task
from asched.framework.session_plugins import (
    ClosingPlugin,
    ClosingSession,
    JobOrderPlugin,
    JobPipelinedPlugin,
    JobReadyPlugin,
    JobValidPlugin,
    PreemptablePlugin,
    ReclaimablePlugin,
    Session,
    TaskOrderPlugin,
    VictimFilter,
)


class Priority(JobOrderPlugin, TaskOrderPlugin, PreemptablePlugin):
    """Orders jobs by the priority class of their PodGroups, and tasks by the priority of pods."""

    name: ClassVar[str] = "priority"

    def job_order(self, job: Job) -> int:
        return -job.priority

    def task_order(self, task: Task) -> int:
        return -task.priority

    def preemptable(self, preemptor: Task) -> VictimFilter:
        jobs = self.session.jobs
        priority = jobs[preemptor.job].priority
        return _EachByItself(lambda candidate: jobs[candidate.job].priority < priority)

    def may_lose_to_preemptor(self, job: Job, preemptor: Task) -> bool:
        return job.priority < self.session.jobs[preemptor.job].priority


class _EachByItself:
    def __init__(self, allows: Callable[[Task], bool]) -> None:
        self.allows = allows

    def take(self, candidate: Task) -> None:
        """Earlier victims do not matter."""


SYSTEM_CLASSES = frozenset({"system-cluster-critical", "system-node-critical"})
SYSTEM_NAMESPACE = "kube-system"


def is_protected(task: Task) -> bool:
    """Whether the pod has a system priority class or is in ``kube-system``."""
    spec = task.info.pod.spec
    return spec.priority_class_name in SYSTEM_CLASSES or task.info.namespace == SYSTEM_NAMESPACE


class Conformance(PreemptablePlugin, ReclaimablePlugin):
    name: ClassVar[str] = "conformance"

    def preemptable(self, preemptor: Task) -> VictimFilter:
        return _EachByItself(lambda candidate: not is_protected(candidate))

    def reclaimable(self, reclaimer: Task) -> VictimFilter:
        return self.preemptable(reclaimer)


UNSCHEDULABLE = "Unschedulable"
NOT_ENOUGH_RESOURCES = "NotEnoughResources"
NOT_ENOUGH_TASKS = "NotEnoughTasks"


class TooFewTasks(NamedTuple):
    reason: str
    message: str


class GangSessionPlugin(
    JobOrderPlugin,
    JobReadyPlugin,
    JobPipelinedPlugin,
    JobValidPlugin,
    PreemptablePlugin,
    ReclaimablePlugin,
    ClosingPlugin,
):
    """Jobs that are not ready go first. A victim's gang must stay complete, unless its minimum is
    one task."""

    name: ClassVar[str] = "gang"

    def job_order(self, job: Job) -> bool:
        return job.ready

    def job_ready(self, job: Job) -> bool:
        return job.ready

    def job_pipelined(self, job: Job) -> bool:
        return job.pipelined

    def job_valid(self, job: Job) -> TooFewTasks | None:
        if job.valid_count >= job.min_available:
            return None
        return TooFewTasks(
            NOT_ENOUGH_TASKS,
            "Not enough valid tasks for gang-scheduling,"
            f" valid: {job.valid_count}, min: {job.min_available}",
        )

    def preemptable(self, preemptor: Task) -> VictimFilter:
        return _Spare(self.session)

    def reclaimable(self, reclaimer: Task) -> VictimFilter:
        return self.preemptable(reclaimer)

    def may_lose_to_preemptor(self, job: Job, preemptor: Task) -> bool:
        return _has_spare(job, 0)

    def may_lose_to_reclaimer(self, job: Job, reclaimer: Task) -> bool:
        return _has_spare(job, 0)

    def on_close(self, closing: ClosingSession) -> None:
        for job in self.session.jobs.values():
            if not job.ready:
                short = job.min_available - job.ready_count
                message = (
                    f"{short}/{len(job.tasks)} tasks in gang unschedulable:"
                    f" {closing.fit_message(job)}"
                )
                closing.set_condition(job, UNSCHEDULABLE, NOT_ENOUGH_RESOURCES, message)


class _Spare:
    def __init__(self, session: Session) -> None:
        self._jobs = session.jobs
        self._counts = Correction.SPARE_GANGS in corrections_of(session.compatibility)
        self._taken: Counter[str] = Counter()

    def allows(self, candidate: Task) -> bool:
        return _has_spare(self._jobs[candidate.job], self._taken[candidate.job])

    def take(self, candidate: Task) -> None:
        if self._counts:
            self._taken[candidate.job] += 1


def _has_spare(job: Job, taken: int) -> bool:
    """Whether the gang may lose a task after ``taken`` earlier ones."""
    return job.min_available <= job.ready_count - taken - 1 or job.min_available == 1
