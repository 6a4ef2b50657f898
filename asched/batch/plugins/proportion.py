"""proportion: queues get the cluster by their weights."""

from __future__ import annotations

from typing import ClassVar

from asched.batch.corrections import Correction, corrections_of
from asched.batch.deserved import (
    Claim,
    capability_of,
    deserved_as_kube_batch,
    deserved_by_resource,
)
from asched.framework.resource_vector import EXACT, TOLERANT, ResourceVector, Tolerance, share
from asched.framework.session_objects import ALLOCATED_STATUSES, Job, Queue, Task, TaskStatus
from asched.framework.session_plugins import (
    AllocatablePlugin,
    EventHandlerPlugin,
    OverusedPlugin,
    QueueOrderPlugin,
    ReclaimablePlugin,
    Session,
    VictimTest,
)


class QueueAccount:
    """What a queue with jobs asks, deserves and has."""

    __slots__ = ("allocated", "deserved", "request", "share")

    def __init__(self) -> None:
        self.allocated = ResourceVector()
        self.request = ResourceVector()
        self.deserved = ResourceVector()
        self.share = 0.0
        """The largest part that it has of what it deserves of any resource."""

    def update_share(self) -> None:
        deserved, allocated = self.deserved, self.allocated
        self.share = max(share(allocated.get(n), deserved.get(n)) for n in deserved.names())


class Proportion(
    QueueOrderPlugin, OverusedPlugin, AllocatablePlugin, ReclaimablePlugin, EventHandlerPlugin
):
    """The queue with the smaller share goes first. A queue that has all it deserves gets nothing
    more, and one that has more may lose that to others."""

    name: ClassVar[str] = "proportion"

    def on_open(self, session: Session) -> None:
        super().on_open(session)
        corrections = corrections_of(session.compatibility)
        self._tolerance: Tolerance = EXACT if Correction.EXACT_FIT in corrections else TOLERANT
        self._limits = Correction.HONOUR_CAPABILITY in corrections
        self._reclaims_within_deserved = Correction.RECLAIM_FOR_GANGS in corrections
        self._accounts: dict[str, QueueAccount] = {}
        for job in session.jobs.values():
            account = self._accounts.setdefault(job.queue, QueueAccount())
            for task in job.tasks.values():
                if task.status in ALLOCATED_STATUSES:
                    account.allocated.add(task.request)
                    account.request.add(task.request)
                elif task.status is TaskStatus.PENDING:
                    account.request.add(task.request)
        claims = [
            Claim(name, session.queues[name].weight, account.request, self._capability(name))
            for name, account in self._accounts.items()
        ]
        by_resource = Correction.DESERVED_BY_RESOURCE in corrections
        divide = deserved_by_resource if by_resource else deserved_as_kube_batch
        for name, deserved in divide(session.total, claims).items():
            account = self._accounts[name]
            account.deserved = deserved
            account.update_share()

    def _capability(self, queue: str) -> ResourceVector | None:
        return self.session.queues[queue].capability if self._limits else None

    @property
    def accounts(self) -> dict[str, QueueAccount]:
        """By queue, of queues with jobs. Not to be changed."""
        return self._accounts

    def queue_order(self, queue: Queue) -> float:
        account = self._accounts.get(queue.name)
        return account.share if account is not None else 0.0

    def overused(self, queue: Queue) -> bool:
        """A queue without jobs is not."""
        account = self._accounts.get(queue.name)
        return account is not None and account.deserved.less_equal(
            account.allocated, self._tolerance
        )

    def why_overused(self, queue: Queue) -> str:
        account = self._accounts[queue.name]
        parts = [
            f"{account.allocated.get(name):.0f} of {deserved:.0f} {name}"
            for name, deserved in account.deserved.amounts().items()
            if deserved
        ]
        return f"queue {queue.name} has all it deserves: {', '.join(parts) or 'nothing'}."

    def allocatable(self, queue: Queue, task: Task, *, reclaiming: bool) -> bool:
        account = self._accounts[queue.name]
        if reclaiming and self._reclaims_within_deserved:
            within = account.deserved
            for name, number in task.request.amounts().items():
                if number and account.allocated.get(name) + number > within.get(name):
                    return False
        capability = self._capability(queue.name)
        if capability is None:
            return True
        for name, number in task.request.amounts().items():
            limit = capability_of(capability, name)
            if limit is not None and number and account.allocated.get(name) + number > limit:
                return False
        return True

    def on_allocate(self, task: Task) -> None:
        account = self._account_of(task)
        account.allocated.add(task.request)
        account.update_share()

    def on_deallocate(self, task: Task) -> None:
        account = self._account_of(task)
        account.allocated.sub(task.request)
        account.update_share()

    def _account_of(self, task: Task) -> QueueAccount:
        return self._accounts[self.session.jobs[task.job].queue]

    def reclaimable(self, reclaimer: Task) -> VictimTest:
        if self._tolerance is TOLERANT:
            return _MoreThanDeserved(self, self.session)
        return _KeepsItsShare(self, self.session)

    def may_lose_to_reclaimer(self, job: Job, reclaimer: Task) -> bool:
        account = self._accounts[job.queue]
        return any(
            number > account.deserved.get(name)
            for name, number in account.allocated.amounts().items()
        )


class _QueueTest:
    """Keeps count of what queues would have left."""

    def __init__(self, proportion: Proportion, session: Session) -> None:
        self._accounts = proportion.accounts
        self._jobs = session.jobs
        self._left: dict[str, ResourceVector] = {}

    def _account_of(self, candidate: Task) -> tuple[QueueAccount, ResourceVector]:
        """The account of the candidate's queue, and what the queue has without those taken."""
        queue = self._jobs[candidate.job].queue
        account = self._accounts[queue]
        left = self._left.get(queue)
        if left is None:
            left = self._left[queue] = account.allocated.copy()
        return account, left


class _MoreThanDeserved(_QueueTest):
    """kube-batch's: without the victim the queue has what it deserves of every resource."""

    def consents(self, candidate: Task) -> bool:
        account, left = self._account_of(candidate)
        if left.less(candidate.request):
            return False
        return account.deserved.less_equal(left.copy().sub(candidate.request))

    def take(self, candidate: Task) -> None:
        _, left = self._account_of(candidate)
        if not left.less(candidate.request):
            left.sub(candidate.request)


class _KeepsItsShare(_QueueTest):
    """Without the victim the queue still has what it deserves of some resource that the victim uses:
    its share does not fall below 1."""

    def consents(self, candidate: Task) -> bool:
        account, left = self._account_of(candidate)
        deserved = account.deserved
        return any(
            number > 0 and left.get(name) - number >= deserved.get(name)
            for name, number in candidate.request.amounts().items()
        )

    def take(self, candidate: Task) -> None:
        self._account_of(candidate)[1].sub(candidate.request)
