"""Runs a session with a trace and reports one job's result. Its decisions are the session's."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import msgspec

from asched.batch.decide import Reservations
from asched.batch.plugins.shares import Proportion
from asched.batch.registry import SessionRegistry
from asched.batch.session import UNSCHEDULABLE, SessionRun
from asched.batch.session_volumes import SessionVolumes
from asched.batch.snapshot import Cache, Snapshot
from asched.batch.trace import Trace
from asched.framework.session_objects import Job, TaskStatus
from asched.framework.sessions import Compatibility, SessionOutcome, SessionSpec
from asched.state.cluster import ClusterState


class QueueResource(msgspec.Struct, frozen=True, rename="camel"):
    """Amounts of one resource: cpu in millicores, memory in bytes, others in thousandths."""

    resource: str
    allocated: float
    deserved: float
    requested: float


class QueueUsage(msgspec.Struct, frozen=True, rename="camel"):
    """What a queue uses at the end of the session."""

    name: str
    weight: int
    overused: bool
    share: float
    """The largest ratio of allocated to deserved over all resources."""
    resources: tuple[QueueResource, ...]


class UnplacedPods(msgspec.Struct, frozen=True, rename="camel"):
    """Pending pods of the job with the same message."""

    message: str
    pods: tuple[str, ...]


class ActionSteps(msgspec.Struct, frozen=True, rename="camel"):
    """The trace lines of an action about the job."""

    action: str
    lines: tuple[str, ...]


class JobInspection(NamedTuple):
    """The result of one job in a session."""

    outcome: SessionOutcome
    reservations: Reservations
    job: Job | None = None
    """The job at the end of the session; None if the session ignored it."""
    ignored: str = ""
    """Why the session ignored the job."""
    invalid: str = ""
    """Why the session dropped the job as invalid."""
    phase: str = ""
    before: Mapping[str, int] = {}
    """Its pods by status when the session opened."""
    after: Mapping[str, int] = {}
    ahead: tuple[str, ...] = ()
    """Jobs of its queue with pending pods and a higher order."""
    queue: QueueUsage | None = None
    """None if no plugin divides the cluster among queues."""
    unplaced: tuple[UnplacedPods, ...] = ()
    steps: tuple[ActionSteps, ...] = ()


def inspect_job(
    cluster: ClusterState, spec: SessionSpec, registry: SessionRegistry, number: int, job_id: str
) -> JobInspection:
    """Runs the session and reports on that job. Raises KeyError for an unknown job."""
    snapshot = Cache(cluster, spec).snapshot()
    job = snapshot.jobs.get(job_id)
    if job is None and job_id not in snapshot.ignored_jobs:
        raise KeyError(job_id)
    trace = Trace()
    volumes = SessionVolumes(cluster, spec.scheduler_name)
    run = SessionRun(
        cluster, spec, registry, number, snapshot=snapshot, volumes=volumes, trace=trace
    )
    session = run.session
    before = {} if job is None else _by_status(job)
    ahead = () if job is None or job_id not in session.jobs else _ahead(run, job)
    run.run_actions()
    closing = run.closing()
    outcome, reservations = run.outcome(closing), volumes.reservations
    volumes.undo()
    if job is None:
        return JobInspection(outcome, reservations, ignored=snapshot.ignored_jobs[job_id])
    group = closing.outcome_of(job)
    valid = job_id in session.jobs
    invalid = next((c.message for c in group.conditions if c.type == UNSCHEDULABLE), "")
    return JobInspection(
        outcome,
        reservations,
        job=job,
        invalid="" if valid else invalid,
        phase=group.phase.value,
        before=before,
        after=_by_status(job),
        ahead=ahead,
        queue=_queue_usage(run, snapshot, job.queue),
        unplaced=tuple(_unplaced(run, job, outcome)) if valid else (),
        steps=tuple(_steps(job, trace)),
    )


class OrderedJob(msgspec.Struct, frozen=True, rename="camel"):
    """A job with pending pods, where the session has it in the order of its queue."""

    job: str
    queue: str
    group: str
    """``namespace/name`` of its PodGroup; empty for a job without one."""
    namespace: str
    owner: str
    """``Kind/name`` of the controller of its first pod."""
    min_available: int
    ready: int
    """Pods that occupy resources or succeeded."""
    pending: int
    priority: int
    order: tuple[tuple[str, float | str], ...]
    """What the jobs of a queue are compared by, most important first: the plugin and its value. The
    smaller value is first."""


class SessionInspection(NamedTuple):
    """A session when it opens: nothing is decided yet."""

    queues: tuple[QueueUsage, ...]
    """In the order in which they are served."""
    jobs: tuple[OrderedJob, ...]
    """Those with pending pods, by queue and in the order of the queue."""
    ignored: Mapping[str, str]
    """Jobs that the session ignores or drops, with the reason."""
    job_queues: Mapping[str, str]
    """The queue of each job, with and without pending pods."""


def inspect_opening(
    cluster: ClusterState, spec: SessionSpec, registry: SessionRegistry, number: int
) -> SessionInspection:
    """Opens the session and reports shares and order, without running its actions."""
    snapshot = Cache(cluster, spec).snapshot()
    run = SessionRun(cluster, spec, registry, number, snapshot=snapshot)
    session = run.session
    queues = sorted(snapshot.queues.values(), key=session.queue_order)
    usages = [
        _queue_usage(run, snapshot, queue.name)
        or QueueUsage(queue.name, queue.weight, False, 0, ())
        for queue in queues
    ]
    places = {queue.name: index for index, queue in enumerate(queues)}
    pending = [job for job in session.jobs.values() if job.count(TaskStatus.PENDING)]
    pending.sort(key=lambda job: (places[job.queue], session.job_order(job)))
    dropped = {job.id: _invalid(run, job) for job in snapshot.jobs.values()}
    dropped = {job: reason for job, reason in dropped.items() if job not in session.jobs}
    return SessionInspection(
        tuple(usages),
        tuple(_ordered(run, job) for job in pending),
        {**snapshot.ignored_jobs, **dropped},
        {job.id: job.queue for job in snapshot.jobs.values()},
    )


def _ordered(run: SessionRun, job: Job) -> OrderedJob:
    first = next(iter(job.tasks.values())).info.pod
    controller = first.metadata.controller
    return OrderedJob(
        job=job.id,
        queue=job.queue,
        group=job.group,
        namespace=first.namespace,
        owner="" if controller is None else f"{controller.kind}/{controller.name}",
        min_available=job.min_available,
        ready=job.ready_count,
        pending=job.count(TaskStatus.PENDING),
        priority=job.priority,
        order=tuple(
            (plugin, float(value) if isinstance(value, int | float) else str(value))
            for plugin, value in run.session.tiers.job_order_parts(job)
        ),
    )


def _invalid(run: SessionRun, job: Job) -> str:
    invalid = run.session.tiers.job_valid(job)
    return "" if invalid is None else invalid.message


def jobs_of(cluster: ClusterState, spec: SessionSpec) -> dict[str, tuple[str, ...]]:
    """The jobs of a session, ignored ones included, with the keys of their pods."""
    snapshot = Cache(cluster, spec).snapshot()
    known = {
        job.id: tuple(sorted(task.key for task in job.tasks.values()))
        for job in snapshot.jobs.values()
    }
    return {**dict.fromkeys(snapshot.ignored_jobs, ()), **known}


def _by_status(job: Job) -> dict[str, int]:
    return {status.value: count for status in TaskStatus if (count := job.count(status))}


def _ahead(run: SessionRun, job: Job) -> tuple[str, ...]:
    session = run.session
    own = session.job_order(job)
    orders = [
        (session.job_order(other), other.id)
        for other in session.jobs.values()
        if other is not job and other.queue == job.queue and other.count(TaskStatus.PENDING)
    ]
    return tuple(job_id for order, job_id in sorted(orders) if order < own)


def _queue_usage(run: SessionRun, snapshot: Snapshot, name: str) -> QueueUsage | None:
    plugin = next((p for p in run.session.tiers.plugins if isinstance(p, Proportion)), None)
    if plugin is None or name not in plugin.accounts:
        return None
    account, queue = plugin.accounts[name], snapshot.queues[name]
    resources = tuple(
        QueueResource(
            resource, account.allocated.get(resource), deserved, account.request.get(resource)
        )
        for resource, deserved in account.deserved.amounts().items()
    )
    overused = run.session.overused(queue)
    return QueueUsage(name, queue.weight, overused, account.share, resources)


def _unplaced(run: SessionRun, job: Job, outcome: SessionOutcome) -> Iterator[UnplacedPods]:
    """Most frequent message first."""
    messages = {pod.pod: pod.message for pod in outcome.unschedulable}
    # kube-batch's message does not say which nodes fail for which reason.
    terse = run.session.compatibility is Compatibility.KUBE_BATCH
    pods: dict[str, list[str]] = {}
    for task in job.with_status(TaskStatus.PENDING):
        message = run.session.fit_error(task) if terse else messages[task.key]
        pods.setdefault(message, []).append(task.key)
    for message, keys in sorted(pods.items(), key=lambda item: -len(item[1])):
        yield UnplacedPods(message, tuple(keys))


def _steps(job: Job, trace: Trace) -> Iterator[ActionSteps]:
    own = {job.id, *(task.key for task in job.tasks.values())}
    for action in trace.actions:
        lines = tuple(line for line in action.lines if own.intersection(line.split()))
        if lines:
            yield ActionSteps(action.action, lines)
