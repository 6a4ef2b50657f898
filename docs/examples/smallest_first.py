"""An example of a session plugin and an action: see docs/how-to/batch-plugins.md."""

from typing import ClassVar

import numpy as np

from asched.framework import Action, Job, JobOrderPlugin, Session, TaskStatus


class SmallestFirst(JobOrderPlugin):
    """Jobs with fewer pods go first. Jobs with more than ``limit`` pods count as equal."""

    name: ClassVar[str] = "smallestfirst"

    def job_order(self, job: Job) -> int:
        limit = int(self.arguments.get("limit", "100"))
        return min(job.min_available, limit)


class Spread(Action):
    """Allocates one task of each job, on the feasible node with the most idle cpu."""

    name: ClassVar[str] = "spread"

    def execute(self, session: Session) -> None:
        for job in sorted(session.jobs.values(), key=session.job_order):
            for task in sorted(job.with_status(TaskStatus.PENDING), key=session.task_order)[:1]:
                rows = np.flatnonzero(session.feasible(task)).tolist()
                fitting = [row for row in rows if task.init_request.less_equal(session.idle(row))]
                if fitting:
                    statement = session.statement()
                    statement.allocate(task, max(fitting, key=lambda r: session.idle(r).milli_cpu))
                    statement.commit()
