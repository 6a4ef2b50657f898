"""priority and conformance: the order of jobs and tasks, and the protection from eviction.

``priority`` permits preemption of jobs of lower priority. ``conformance`` protects system pods.
"""

from __future__ import annotations

from typing import ClassVar

from asched.framework.session_objects import Job, Task
from asched.framework.session_plugins import (
    JobOrderPlugin,
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
        return _LessImportant(self.session, preemptor)

    def may_lose_to_preemptor(self, job: Job, preemptor: Task) -> bool:
        return job.priority < self.session.jobs[preemptor.job].priority


class _LessImportant:
    def __init__(self, session: Session, preemptor: Task) -> None:
        self._jobs = session.jobs
        self._priority = session.jobs[preemptor.job].priority

    def allows(self, candidate: Task) -> bool:
        return self._jobs[candidate.job].priority < self._priority

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
        return _Unprotected()

    def reclaimable(self, reclaimer: Task) -> VictimFilter:
        return _Unprotected()


class _Unprotected:
    def allows(self, candidate: Task) -> bool:
        return not is_protected(candidate)

    def take(self, candidate: Task) -> None:
        """Earlier victims do not matter."""
