"""Explains why a job is not admitted: runs its last batch session again from the journal."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import NamedTuple

import msgspec

from asched.audit.lookup import AuditError, PodName, fold_before
from asched.audit.timeline import time_of
from asched.batch.decide import decisions_of
from asched.batch.inspect import (
    ActionSteps,
    JobInspection,
    QueueUsage,
    UnplacedPods,
    inspect_job,
    jobs_of,
)
from asched.batch.registry import SessionRegistry
from asched.framework.runtime.profile import PluginLoader
from asched.framework.runtime.strict import nearest
from asched.framework.session_objects import Job, TaskStatus
from asched.journal.codec import CODEC, session_subject
from asched.journal.statistics import last_seq_at
from asched.journal.store import JournalStore
from asched.state.cluster import ClusterState
from asched.state.session_records import SessionExecuted
from asched.state.sessions import SessionProfile


class JobExplanation(msgspec.Struct, frozen=True, rename="camel"):
    """A job's result in a session, which is also its JSON form (see ``docs/how-to/batch.md``)."""

    job: str
    scheduler_name: str
    session: int
    """The number of the session, or of the next one if none included the job."""
    seq: int
    """The record of the session; 0 if no session included the job."""
    at: datetime
    reproduced: bool | None
    """Whether the repeated session gives the recorded decisions. None if none is recorded."""
    admitted: bool
    """Whether enough pods have nodes for the job to run."""
    reasons: tuple[str, ...]
    """Why it is not admitted, most important first."""
    queue: str = ""
    priority: int = 0
    min_available: int = 0
    phase: str = ""
    pods_before: dict[str, int] = {}
    """Pods by status when the session opened."""
    pods_after: dict[str, int] = {}
    ahead: tuple[str, ...] = ()
    """Jobs of its queue with pending pods and a higher order."""
    queue_usage: QueueUsage | None = None
    unplaced: tuple[UnplacedPods, ...] = ()
    steps: tuple[ActionSteps, ...] = ()


class _RecordedSession(NamedTuple):
    """A recorded session and the state before it."""

    seq: int
    record: SessionExecuted
    state: ClusterState


async def explain_job(
    journal: JournalStore,
    name: PodName,
    load: PluginLoader,
    registry: SessionRegistry | None = None,
    *,
    session: int | None = None,
    at_ns: int | None = None,
    last_seq: int | None = None,
) -> JobExplanation:
    """Explains the job's result in the last session, or in session number ``session``.

    ``at_ns``, nanoseconds since the epoch, ignores later sessions, and so does ``last_seq``, which
    has precedence. ``name`` is the name of a PodGroup, of one of the job's pods, or a job id.

    Raises :class:`AuditError`, :class:`~asched.journal.errors.JournalError`, ProfileError.
    """
    registry = registry or SessionRegistry.discover()
    end = (await journal.head()).seq if at_ns is None else await last_seq_at(journal, at_ns)
    end = end if last_seq is None else last_seq
    now = (await fold_before(journal, load, end + 1)).state
    if not now.sessions:
        raise AuditError("no batch sessions are configured")
    profile, job = _find(now, name)
    recorded = await _last_session(journal, load, profile.spec.scheduler_name, end, session)
    if recorded is None and session is not None:
        raise AuditError(f"no session {session} of {profile.spec.scheduler_name} up to that time")
    if recorded is not None:
        try:
            return await _repeated(journal, recorded, registry, job)
        except KeyError:
            pass  # the job was created after the last session
    found = inspect_job(now, profile.spec, registry, profile.number + 1, job)
    held = SessionExecuted(profile.spec.scheduler_name, profile.number + 1)
    return _explanation(job, _RecordedSession(0, held, now), None, found)


def _find(state: ClusterState, name: PodName) -> tuple[SessionProfile, str]:
    """The profile and id of the job."""
    known: dict[str, tuple[SessionProfile, str]] = {}
    for profile in state.sessions:
        for job, pods in jobs_of(state, profile.spec).items():
            # The job id of a scheduling.k8s.io PodGroup begins with the API group.
            for key in (job, job.removeprefix("scheduling.k8s.io/"), *pods):
                known.setdefault(key, (profile, job))
    wanted = [key for key in known if name.matches(key) or key == str(name)]
    jobs = {known[key][1] for key in wanted}
    if len(jobs) == 1:
        return known[wanted[0]]
    if jobs:
        raise AuditError(f"several jobs have that name: {', '.join(sorted(jobs))}")
    guess = nearest(str(name), known)
    hint = f"; did you mean {guess}?" if guess else ""
    raise AuditError(f"no job {name} at that time{hint}")


async def _last_session(
    journal: JournalStore,
    load: PluginLoader,
    scheduler_name: str,
    end: int,
    number: int | None,
) -> _RecordedSession | None:
    last: tuple[int, SessionExecuted] | None = None
    async for stored in journal.read(subject=session_subject(scheduler_name)):
        if stored.seq > end:
            break
        if isinstance(stored.record, SessionExecuted) and number in (None, stored.record.number):
            last = stored.seq, stored.record
    if last is None:
        return None
    return _RecordedSession(*last, (await fold_before(journal, load, last[0])).state)


async def _repeated(
    journal: JournalStore, session: _RecordedSession, registry: SessionRegistry, job: str
) -> JobExplanation:
    name, number = session.record.scheduler_name, session.record.number
    profile = session.state.sessions.get(name)
    if profile is None:
        raise AuditError(f"session {number} of {name} has no configuration in the journal")
    found = inspect_job(session.state, profile.spec, registry, number, job)
    decided = [*decisions_of(session.state, name, found.outcome, found.reservations)]
    last = session.seq + len(decided) - 1
    recorded = [stored.record async for stored in journal.read(session.seq - 1, last)]
    same = [*map(CODEC.encode, decided)] == [*map(CODEC.encode, recorded)]
    return _explanation(job, session, same, found)


def _explanation(
    job: str, session: _RecordedSession, reproduced: bool | None, found: JobInspection
) -> JobExplanation:
    explanation = JobExplanation(
        job=job,
        scheduler_name=session.record.scheduler_name,
        session=session.record.number,
        seq=session.seq,
        at=time_of(session.state.date_ns),
        reproduced=reproduced,
        admitted=False,
        reasons=(found.ignored,),
    )
    if found.job is None:
        return explanation
    admitted = found.job.ready and not found.invalid
    return msgspec.structs.replace(
        explanation,
        admitted=admitted,
        reasons=() if admitted else tuple(_reasons(found, found.job)),
        queue=found.job.queue,
        priority=found.job.priority,
        min_available=found.job.min_available,
        phase=found.phase,
        pods_before={**found.before},
        pods_after={**found.after},
        ahead=found.ahead,
        queue_usage=found.queue,
        unplaced=found.unplaced,
        steps=found.steps,
    )


def _reasons(found: JobInspection, job: Job) -> Iterator[str]:
    if found.invalid:
        yield f"invalid job: {found.invalid}"
        return
    short = job.min_available - job.ready_count
    yield (
        f"gang short by {short}: {job.ready_count} of {job.min_available} required pods have"
        f" nodes, {job.count(TaskStatus.PENDING)} are pending"
    )
    if job.waiting_count:
        yield f"{job.waiting_count} of its pods wait for resources that are being released"
    usage = found.queue
    if usage is not None and usage.overused:
        shares = [
            f"{r.resource} {r.allocated:.0f} of {r.deserved:.0f}"
            for r in usage.resources
            if r.deserved or r.allocated
        ]
        yield (
            f"queue {usage.name} is overused: it has {usage.share:.0%} of its deserved share"
            f" ({', '.join(shares)})"
        )
    if found.ahead:
        more = " ..." if len(found.ahead) > 3 else ""
        first = ", ".join(found.ahead[:3])
        yield f"{len(found.ahead)} jobs of its queue are ahead of it: {first}{more}"
    for group in found.unplaced:
        yield f"{len(group.pods)} pods: {group.message}"
