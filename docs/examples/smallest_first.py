"""A session plugin and an action of one's own: see docs/batch-plugins.md."""

from typing import ClassVar

import numpy as np

from asched.framework.session_objects import Job, TaskStatus
from asched.framework.session_plugins import Action, JobOrderPlugin, Session


class SmallestFirst(JobOrderPlugin):
    """Jobs that need fewer pods go first. Argument ``limit``: jobs of more pods count as equal."""

    name: ClassVar[str] = "smallestfirst"

    def job_order(self, job: Job) -> int:
        limit = int(self.arguments.get("limit", "100"))
        return min(job.min_available, limit)


class Spread(Action):
    """Gives each job one pod, on the emptiest node that it may go to."""

    name: ClassVar[str] = "spread"

    def execute(self, session: Session) -> None:
        for job in sorted(session.jobs.values(), key=session.job_order):
            for task in sorted(job.with_status(TaskStatus.PENDING), key=session.task_order)[:1]:
                rows = np.flatnonzero(session.feasible(task)).tolist()
                roomy = [row for row in rows if task.init_request.less_equal(session.idle(row))]
                if roomy:
                    statement = session.statement()
                    statement.allocate(task, max(roomy, key=lambda r: session.idle(r).milli_cpu))
                    statement.commit()
