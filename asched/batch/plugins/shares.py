"""proportion and drf: fair shares of queues, and of jobs.

``proportion`` divides the cluster among queues by weight: a queue's *deserved* amounts are its
part, and its *share* is the largest ratio of allocated to deserved over all resources. ``drf``
orders jobs by their dominant share (Dominant Resource Fairness, Ghodsi et al. 2011).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple

from asched.batch.corrections import Correction, corrections_of
from asched.framework.resource_vector import (
    CPU,
    EXACT,
    MEMORY,
    TOLERANT,
    ResourceVector,
    Tolerance,
    share,
)
from asched.framework.session_objects import ALLOCATED_STATUSES, Job, Queue, Task, TaskStatus
from asched.framework.session_plugins import (
    AllocatablePlugin,
    EventHandlerPlugin,
    JobOrderPlugin,
    OverusedPlugin,
    PreemptablePlugin,
    QueueOrderPlugin,
    ReclaimablePlugin,
    Session,
    VictimFilter,
)


class Claim(NamedTuple):
    """A queue's input to the division."""

    queue: str
    weight: int
    request: ResourceVector
    capability: ResourceVector | None


def deserved_as_kube_batch(
    total: ResourceVector, claims: Sequence[Claim]
) -> dict[str, ResourceVector]:
    """kube-batch's division: limits a queue to its request only if it requests less of *every*
    resource, and ignores capabilities."""
    deserved = {claim.queue: ResourceVector() for claim in claims}
    remaining = total.copy()
    unmet = list(claims)
    while weights := sum(claim.weight for claim in unmet):
        increased, decreased = ResourceVector(), ResourceVector()
        still_unmet = []
        for claim in unmet:
            old = deserved[claim.queue]
            new = old.copy().add(remaining.multiplied(claim.weight / weights))
            if claim.request.less(new):
                new = new.minimum(claim.request)
            else:
                still_unmet.append(claim)
            deserved[claim.queue] = new
            more, less = _difference(new, old)
            increased.add(more)
            decreased.add(less)
        unmet = still_unmet
        remaining.sub(increased).add(decreased)
        if remaining.is_empty():
            break
    return deserved


def _difference(new: ResourceVector, old: ResourceVector) -> tuple[ResourceVector, ResourceVector]:
    """(increases, decreases), for the scalars of ``new``."""
    more: dict[str, float] = {}
    less: dict[str, float] = {}
    for name in new.names():
        change = new.get(name) - old.get(name)
        (more if change > 0 else less)[name] = abs(change)
    return ResourceVector.of(more), ResourceVector.of(less)


def deserved_by_resource(
    total: ResourceVector, claims: Sequence[Claim]
) -> dict[str, ResourceVector]:
    """Divides each resource separately by weight, up to each queue's request and capability. Queues
    share what others leave."""
    parts = {name: _divided(total.get(name), _demands(name, claims)) for name in total.names()}
    return {
        claim.queue: ResourceVector.of({name: part[claim.queue] for name, part in parts.items()})
        for claim in claims
    }


def _demands(name: str, claims: Sequence[Claim]) -> Mapping[str, tuple[int, float]]:
    """By queue: its weight and its maximum of the resource."""
    demands = {}
    for claim in claims:
        most = claim.request.get(name)
        limit = capability_of(claim.capability, name)
        if limit is not None:
            most = min(most, limit)
        demands[claim.queue] = (claim.weight, most)
    return demands


def capability_of(capability: ResourceVector | None, name: str) -> float | None:
    """The limit of one resource, or None. Zero cpu or memory means no limit, because it is also the
    value of a capability without that resource."""
    if capability is None:
        return None
    limit = capability.get(name)
    if name in (CPU, MEMORY):
        return limit or None
    return limit if name in (capability.scalars or {}) else None


def _divided(amount: float, demands: Mapping[str, tuple[int, float]]) -> dict[str, float]:
    """Divides ``amount`` by weight (max-min fair), up to each queue's maximum."""
    parts = dict.fromkeys(demands, 0.0)
    open_ = {queue: demand for queue, demand in demands.items() if demand[0] > 0 and demand[1] > 0}
    while open_ and amount > 0:
        per_weight = amount / sum(weight for weight, _ in open_.values())
        satisfied = {q: most for q, (weight, most) in open_.items() if most <= per_weight * weight}
        if not satisfied:
            for queue, (weight, _) in open_.items():
                parts[queue] = per_weight * weight
            break
        for queue, most in satisfied.items():
            parts[queue] = most
            amount -= most
            del open_[queue]
    return parts


@dataclass(slots=True)
class QueueAccount:
    """The requested, deserved and allocated amounts of a queue with jobs."""

    allocated: ResourceVector = field(default_factory=ResourceVector)
    request: ResourceVector = field(default_factory=ResourceVector)
    deserved: ResourceVector = field(default_factory=ResourceVector)
    share: float = 0.0
    """The largest ratio of allocated to deserved over all resources."""

    def update_share(self) -> None:
        self.share = self.share_of(self.allocated)

    def share_of(self, amounts: ResourceVector) -> float:
        """The queue's share if these amounts were allocated to it."""
        deserved = self.deserved
        return max(share(amounts.get(n), deserved.get(n)) for n in deserved.names())


class Proportion(
    QueueOrderPlugin, OverusedPlugin, AllocatablePlugin, ReclaimablePlugin, EventHandlerPlugin
):
    """The queue with the smaller share goes first. A queue gets at most what it deserves, and may
    lose the excess to other queues."""

    name: ClassVar[str] = "proportion"

    def on_open(self, session: Session) -> None:
        super().on_open(session)
        corrections = corrections_of(session.compatibility)
        self._tolerance: Tolerance = EXACT if Correction.EXACT_FIT in corrections else TOLERANT
        self._limits = Correction.HONOUR_CAPABILITY in corrections
        self._reclaims_within_deserved = Correction.RECLAIM_FOR_GANGS in corrections
        self.accounts: dict[str, QueueAccount] = {}
        """By queue with jobs."""
        for job in session.jobs.values():
            account = self.accounts.setdefault(job.queue, QueueAccount())
            for task in job.tasks.values():
                if task.status in ALLOCATED_STATUSES:
                    account.allocated.add(task.request)
                    account.request.add(task.request)
                elif task.status is TaskStatus.PENDING:
                    account.request.add(task.request)
        claims = [
            Claim(name, session.queues[name].weight, account.request, self._capability(name))
            for name, account in self.accounts.items()
        ]
        by_resource = Correction.DESERVED_BY_RESOURCE in corrections
        divide = deserved_by_resource if by_resource else deserved_as_kube_batch
        for name, deserved in divide(session.total, claims).items():
            account = self.accounts[name]
            account.deserved = deserved
            account.update_share()

    def _capability(self, queue: str) -> ResourceVector | None:
        return self.session.queues[queue].capability if self._limits else None

    def queue_order(self, queue: Queue) -> float:
        account = self.accounts.get(queue.name)
        return account.share if account is not None else 0.0

    def overused(self, queue: Queue) -> bool:
        """False for a queue without jobs."""
        account = self.accounts.get(queue.name)
        return account is not None and account.deserved.less_equal(
            account.allocated, self._tolerance
        )

    def why_overused(self, queue: Queue) -> str:
        account = self.accounts[queue.name]
        parts = [
            f"{account.allocated.get(name):.0f} of {deserved:.0f} {name}"
            for name, deserved in account.deserved.amounts().items()
            if deserved
        ]
        return f"queue {queue.name} has its deserved share: {', '.join(parts) or 'nothing'}."

    def allocatable(self, queue: Queue, task: Task, *, reclaiming: bool) -> bool:
        account, capability = self.accounts[queue.name], self._capability(queue.name)
        within_deserved = reclaiming and self._reclaims_within_deserved
        for name, number in task.request.amounts().items():
            after = account.allocated.get(name) + number
            limit = capability_of(capability, name)
            if number and limit is not None and after > limit:
                return False
            if number and within_deserved and after > account.deserved.get(name):
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
        return self.accounts[self.session.jobs[task.job].queue]

    def reclaimable(self, reclaimer: Task) -> VictimFilter:
        if self._tolerance is TOLERANT:
            return _MoreThanDeserved(self, self.session)
        queue = self.session.queues[self.session.jobs[reclaimer.job].queue]
        return _KeepsItsShare(self, self.session, queue)

    def may_lose_to_reclaimer(self, job: Job, reclaimer: Task) -> bool:
        account = self.accounts[job.queue]
        return any(
            number > account.deserved.get(name)
            for name, number in account.allocated.amounts().items()
        )


class _QueueTest:
    """Tracks what the victims leave to their queues."""

    def __init__(self, proportion: Proportion, session: Session) -> None:
        self._accounts = proportion.accounts
        self._jobs = session.jobs
        self._left: dict[str, ResourceVector] = {}

    def _account_of(self, candidate: Task) -> tuple[QueueAccount, ResourceVector]:
        """The account of the candidate's queue, and what earlier victims leave to the queue."""
        queue = self._jobs[candidate.job].queue
        account = self._accounts[queue]
        left = self._left.get(queue)
        if left is None:
            left = self._left[queue] = account.allocated.copy()
        return account, left


class _MoreThanDeserved(_QueueTest):
    """kube-batch's rule: without the victim the queue has what it deserves of every resource."""

    def allows(self, candidate: Task) -> bool:
        account, left = self._account_of(candidate)
        if left.less(candidate.request):
            return False
        return account.deserved.less_equal(left.copy().sub(candidate.request))

    def take(self, candidate: Task) -> None:
        _, left = self._account_of(candidate)
        if not left.less(candidate.request):
            left.sub(candidate.request)


class _KeepsItsShare(_QueueTest):
    """Without the victim the queue still has what it deserves of some resource that the victim
    uses, and the reclaimer's queue precedes it. Otherwise the next session would return the
    resources to the victim's queue."""

    def __init__(self, proportion: Proportion, session: Session, reclaimer: Queue) -> None:
        super().__init__(proportion, session)
        self._queues = session.queues
        share = proportion.accounts[reclaimer.name].share
        self._reclaimer_order = (share, reclaimer.created_s, reclaimer.name)

    def allows(self, candidate: Task) -> bool:
        account, left = self._account_of(candidate)
        deserved = account.deserved
        has_its_part = any(
            number > 0 and left.get(name) - number >= deserved.get(name)
            for name, number in candidate.request.amounts().items()
        )
        if not has_its_part:
            return False
        queue = self._queues[self._jobs[candidate.job].queue]
        share = account.share_of(left.copy().sub(candidate.request))
        return self._reclaimer_order < (share, queue.created_s, queue.name)

    def take(self, candidate: Task) -> None:
        self._account_of(candidate)[1].sub(candidate.request)


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
        self.holdings: dict[str, Holding] = {}
        """By job."""
        for job in session.jobs.values():
            allocated = ResourceVector()
            for status in ALLOCATED_STATUSES:
                for task in job.by_status.get(status, {}).values():
                    allocated.add(task.request)
            self.holdings[job.id] = Holding(allocated, self.share_of(allocated))

    def share_of(self, allocated: ResourceVector) -> float:
        """The largest share of any resource of the cluster."""
        total = self._total
        return max(share(allocated.get(name), total.get(name)) for name in total.names())

    def job_order(self, job: Job) -> float:
        return self.holdings[job.id].share

    def on_allocate(self, task: Task) -> None:
        allocated = self.holdings[task.job].allocated.add(task.request)
        self.holdings[task.job] = Holding(allocated, self.share_of(allocated))

    def on_deallocate(self, task: Task) -> None:
        allocated = self.holdings[task.job].allocated.sub(task.request)
        self.holdings[task.job] = Holding(allocated, self.share_of(allocated))

    def preemptable(self, preemptor: Task) -> VictimFilter:
        return _RicherJob(self, preemptor)

    def may_lose_to_preemptor(self, job: Job, preemptor: Task) -> bool:
        after = self.holdings[preemptor.job].allocated.copy().add(preemptor.request)
        return self.share_of(after) <= self.holdings[job.id].share + SHARE_DELTA


class _RicherJob:
    def __init__(self, drf: Drf, preemptor: Task) -> None:
        self._drf = drf
        after = drf.holdings[preemptor.job].allocated.copy().add(preemptor.request)
        self._share = drf.share_of(after)
        self._left: dict[str, ResourceVector] = {}

    def _left_of(self, candidate: Task) -> ResourceVector:
        left = self._left.get(candidate.job)
        if left is None:
            left = self._left[candidate.job] = self._drf.holdings[candidate.job].allocated.copy()
        return left

    def allows(self, candidate: Task) -> bool:
        left = self._left_of(candidate).copy().sub(candidate.request)
        theirs = self._drf.share_of(left)
        return self._share < theirs or abs(self._share - theirs) <= SHARE_DELTA

    def take(self, candidate: Task) -> None:
        self._left_of(candidate).sub(candidate.request)
