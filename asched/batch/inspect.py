"""One job of one session under a magnifying glass: the session is held with all that there is to be
told about the job written down. It decides nothing that the session would not decide."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from asched.batch.closing import UNSCHEDULABLE
from asched.batch.decide import Reservations
from asched.batch.plugins.proportion import Proportion
from asched.batch.refusals import refusal_message
from asched.batch.registry import SessionRegistry
from asched.batch.session import SessionRun
from asched.batch.session_volumes import SessionVolumes
from asched.batch.snapshot import Cache, Snapshot
from asched.batch.trace import Trace
from asched.framework.session_objects import Job, TaskStatus
from asched.framework.sessions import Compatibility, SessionOutcome, SessionSpec
from asched.state.cluster import ClusterState


class ResourceStanding(NamedTuple):
    """How a queue stands with one resource: cpu in millicores, memory in bytes, others in
    thousandths."""

    resource: str
    allocated: float
    deserved: float
    requested: float


class QueueStanding(NamedTuple):
    """How the job's queue stands, when the session is over."""

    name: str
    weight: int
    overused: bool
    share: float
    """The largest part that it has of what it deserves of any resource: 1.25 is 25% too much."""
    resources: tuple[ResourceStanding, ...]


class TaskRefusal(NamedTuple):
    """What the nodes say to pending pods of the job, in the same words."""

    message: str
    pods: tuple[str, ...]


class JobInspection(NamedTuple):
    """What a session makes of one job."""

    outcome: SessionOutcome
    reservations: Reservations
    job: Job | None
    """As the session left it; None for one that did not enter."""
    ignored: str
    """Why it did not enter the session; empty where it did."""
    invalid: str
    """Why it was not worth trying; empty where it was tried."""
    phase: str
    before: Mapping[str, int]
    """Its pods by status when the session opened."""
    after: Mapping[str, int]
    ahead: tuple[str, ...]
    """Jobs of its queue that went before it."""
    queue: QueueStanding | None
    """None where no plugin shares the cluster among queues."""
    refusals: tuple[TaskRefusal, ...]
    steps: Mapping[str, tuple[str, ...]]
    """What each action did about it, by action."""


def inspect_job(
    cluster: ClusterState, spec: SessionSpec, registry: SessionRegistry, number: int, job_id: str
) -> JobInspection:
    """Hold the session and look at that job. Raises KeyError for a job that is not known at all."""
    snapshot = Cache(cluster, spec).snapshot(frozenset())
    job = snapshot.jobs.get(job_id)
    if job is None and job_id not in snapshot.ignored_jobs:
        raise KeyError(job_id)
    trace = Trace()
    volumes = SessionVolumes(cluster, spec.scheduler_name)
    run = SessionRun(cluster, spec, registry, number, snapshot, volumes, trace)
    session = run.session
    before = {} if job is None else _by_status(job)
    ahead = () if job is None or job_id not in session.jobs else _ahead(run, job)
    run.run_actions()
    closing = run.closing()
    outcome, reservations = run.outcome(closing), volumes.reservations
    volumes.undo()
    if job is None:
        ignored = snapshot.ignored_jobs[job_id]
        return JobInspection(
            outcome, reservations, None, ignored, "", "", before, {}, (), None, (), {}
        )
    said = closing.outcome_of(job)
    tried = job_id in session.jobs
    invalid = next((c.message for c in said.conditions if c.type == UNSCHEDULABLE), "")
    return JobInspection(
        outcome,
        reservations,
        job,
        "",
        "" if tried else invalid,
        said.phase.value,
        before,
        _by_status(job),
        ahead,
        _standing(run, snapshot, job.queue),
        tuple(_refusals(run, job, outcome)) if tried else (),
        {entry.action: tuple(_about(job, entry.lines)) for entry in trace.actions},
    )


def jobs_of(cluster: ClusterState, spec: SessionSpec) -> dict[str, tuple[str, ...]]:
    """The jobs that a session would know, with the keys of their pods."""
    cache = Cache(cluster, spec)
    snapshot = cache.snapshot(frozenset())
    known = {
        job.id: tuple(sorted(task.key for task in job.tasks.values()))
        for job in snapshot.jobs.values()
    }
    return {**dict.fromkeys(snapshot.ignored_jobs, ()), **known}


def _by_status(job: Job) -> dict[str, int]:
    return {status.value: count for status in TaskStatus if (count := job.count(status))}


def _ahead(run: SessionRun, job: Job) -> tuple[str, ...]:
    session = run.session
    rivals = [
        other
        for other in session.jobs.values()
        if other.queue == job.queue and other.count(TaskStatus.PENDING)
    ]
    own = session.job_order(job)
    first = sorted((other for other in rivals if other is not job), key=session.job_order)
    return tuple(other.id for other in first if session.job_order(other) < own)


def _standing(run: SessionRun, snapshot: Snapshot, queue: str) -> QueueStanding | None:
    shares = [p for p in run.session.tiers.plugins if isinstance(p, Proportion)]
    if not shares or queue not in shares[0].accounts:
        return None
    account, known = shares[0].accounts[queue], snapshot.queues[queue]
    allocated, requested = account.allocated, account.request
    return QueueStanding(
        queue,
        known.weight,
        run.session.overused(known),
        account.share,
        tuple(
            ResourceStanding(name, allocated.get(name), deserved, requested.get(name))
            for name, deserved in account.deserved.amounts().items()
        ),
    )


def _refusals(run: SessionRun, job: Job, outcome: SessionOutcome) -> Iterator[TaskRefusal]:
    """The most frequent first."""
    said = {pod.pod: pod.message for pod in outcome.unschedulable}
    # kube-batch's own words do not tell which nodes refuse for what.
    terse = run.session.compatibility is Compatibility.KUBE_BATCH
    pods: dict[str, list[str]] = {}
    for task in job.with_status(TaskStatus.PENDING):
        message = refusal_message(run.session, task) if terse else said[task.key]
        pods.setdefault(message, []).append(task.key)
    for message, keys in sorted(pods.items(), key=lambda item: -len(item[1])):
        yield TaskRefusal(message, tuple(keys))


def _about(job: Job, lines: list[str]) -> Iterator[str]:
    own = {job.id, *(task.key for task in job.tasks.values())}
    return (line for line in lines if own.intersection(line.split()))
