"""Why a job was not admitted: its last batch session, held once more from the journal."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import NamedTuple

import msgspec

from asched.audit.pods import AuditError, PodName
from asched.audit.timeline import time_of
from asched.audit.travel import state_before
from asched.batch.decide import decisions_of
from asched.batch.inspect import JobInspection, QueueStanding, inspect_job, jobs_of
from asched.batch.registry import SessionRegistry
from asched.framework.runtime.profile import PluginLoader
from asched.framework.runtime.strict import nearest
from asched.framework.session_objects import Job, TaskStatus
from asched.journal.codec import CODEC, session_subject
from asched.journal.statistics import last_seq_at
from asched.journal.store import JournalStore
from asched.state.cluster import ClusterState
from asched.state.session_records import SessionHeld
from asched.state.sessions import SessionProfile


class QueueResource(msgspec.Struct, frozen=True, rename="camel"):
    """Units: cpu in millicores, memory in bytes, others in thousandths."""

    resource: str
    allocated: float
    deserved: float
    requested: float


class QueueExplanation(msgspec.Struct, frozen=True, rename="camel"):
    name: str
    weight: int
    overused: bool
    share: float
    """The largest part that it has of what it deserves of any resource."""
    resources: tuple[QueueResource, ...]


class RefusedPods(msgspec.Struct, frozen=True, rename="camel"):
    message: str
    pods: tuple[str, ...]


class ActionSteps(msgspec.Struct, frozen=True, rename="camel"):
    action: str
    lines: tuple[str, ...]


class JobExplanation(msgspec.Struct, frozen=True, rename="camel"):
    """A job in a session. This is the JSON form (see ``docs/batch.md``)."""

    job: str
    scheduler_name: str
    session: int
    """The number of the session; of the next one where none was held so far."""
    seq: int
    """The record of the session; 0 where none was held so far."""
    at: datetime
    reproduced: bool | None
    """Whether the session, held once more, came to what is recorded. None where there is none."""
    admitted: bool
    """Whether enough of its pods have places for it to run."""
    reasons: tuple[str, ...]
    """Why it was not, the weightiest first; empty where it was."""
    queue: str = ""
    priority: int = 0
    min_available: int = 0
    phase: str = ""
    pods_before: dict[str, int] = {}
    """Pods by status when the session opened."""
    pods_after: dict[str, int] = {}
    ahead: tuple[str, ...] = ()
    """Jobs of its queue with pending pods that went before it."""
    queue_standing: QueueExplanation | None = None
    refused: tuple[RefusedPods, ...] = ()
    steps: tuple[ActionSteps, ...] = ()


class _Held(NamedTuple):
    """A recorded session, and the state that it was held on."""

    seq: int
    record: SessionHeld
    state: ClusterState


async def explain_job(
    journal: JournalStore,
    name: PodName,
    load: PluginLoader,
    registry: SessionRegistry | None = None,
    *,
    session: int | None = None,
    at_ns: int | None = None,
) -> JobExplanation:
    """Explain the last session, or that of the number, or with ``at_ns`` (nanoseconds since the epoch)
    the last one until then. ``name`` is that of a PodGroup, of a pod of the job, or a job's id.

    Raises :class:`AuditError`, :class:`~asched.journal.errors.JournalError`, ProfileError and
    FoldError.
    """
    registry = registry or SessionRegistry.discover()
    end = (await journal.head()).seq if at_ns is None else await last_seq_at(journal, at_ns)
    now = await state_before(journal, load, end + 1)
    if not now.sessions:
        raise AuditError("no batch sessions are held: no scheduler name is served by them")
    profile, job = _find(now, name)
    held = await _last_session(journal, load, profile.spec.scheduler_name, end, session)
    if held is None and session is not None:
        raise AuditError(f"no session {session} of {profile.spec.scheduler_name} until then")
    if held is not None:
        try:
            return await _explained(journal, held, registry, job)
        except KeyError:
            pass  # it came only after the last session
    found = inspect_job(now, profile.spec, registry, profile.number + 1, job)
    scheduler, number = profile.spec.scheduler_name, profile.number + 1
    return _explanation(job, scheduler, number, 0, now.now_ns, None, found)


def _find(state: ClusterState, name: PodName) -> tuple[SessionProfile, str]:
    """The job that is meant, and the profile whose sessions it enters."""
    known: dict[str, tuple[SessionProfile, str]] = {}
    for profile in state.sessions:
        for job, pods in jobs_of(state, profile.spec).items():
            # Jobs of Kubernetes' own PodGroups have their API group in front.
            for key in (job, job.removeprefix("scheduling.k8s.io/"), *pods):
                known.setdefault(key, (profile, job))
    wanted = [key for key in known if name.matches(key) or key == str(name)]
    jobs = {known[key][1] for key in wanted}
    if len(jobs) == 1:
        return known[wanted[0]]
    if jobs:
        raise AuditError(f"more than one job of that name: {', '.join(sorted(jobs))}")
    guess = nearest(str(name), known)
    hint = f"; did you mean {guess}?" if guess else ""
    raise AuditError(f"no job {name} at that time{hint}")


async def _last_session(
    journal: JournalStore,
    load: PluginLoader,
    scheduler_name: str,
    end: int,
    number: int | None,
) -> _Held | None:
    last: tuple[int, SessionHeld] | None = None
    async for stored in journal.read(subject=session_subject(scheduler_name)):
        if stored.seq > end:
            break
        if isinstance(stored.record, SessionHeld) and number in (None, stored.record.number):
            last = stored.seq, stored.record
    if last is None:
        return None
    return _Held(*last, await state_before(journal, load, last[0]))


async def _explained(
    journal: JournalStore, held: _Held, registry: SessionRegistry, job: str
) -> JobExplanation:
    name, number = held.record.scheduler_name, held.record.number
    profile = held.state.sessions.get(name)
    if profile is None:
        raise AuditError(f"session {number} of {name}, which is not served by sessions")
    found = inspect_job(held.state, profile.spec, registry, number, job)
    again = [*decisions_of(held.state, name, found.outcome, found.reservations)]
    last = held.seq + len(again) - 1
    recorded = [stored.record async for stored in journal.read(held.seq - 1, last)]
    same = [*map(CODEC.encode, again)] == [*map(CODEC.encode, recorded)]
    return _explanation(job, name, number, held.seq, held.state.now_ns, same, found)


def _explanation(
    job: str,
    scheduler_name: str,
    number: int,
    seq: int,
    now_ns: int,
    reproduced: bool | None,
    found: JobInspection,
) -> JobExplanation:
    head = (job, scheduler_name, number, seq, time_of(now_ns), reproduced)
    if found.job is None:
        return JobExplanation(*head, False, (found.ignored,))
    admitted = found.job.ready and not found.invalid
    standing = found.queue
    return JobExplanation(
        *head,
        admitted,
        () if admitted else tuple(_reasons(found, found.job)),
        found.job.queue,
        found.job.priority,
        found.job.min_available,
        found.phase,
        {**found.before},
        {**found.after},
        found.ahead,
        None if standing is None else _queue(standing),
        tuple(RefusedPods(refusal.message, refusal.pods) for refusal in found.refusals),
        tuple(ActionSteps(action, lines) for action, lines in found.steps.items() if lines),
    )


def _queue(standing: QueueStanding) -> QueueExplanation:
    resources = tuple(QueueResource(*resource) for resource in standing.resources)
    return QueueExplanation(
        standing.name, standing.weight, standing.overused, standing.share, resources
    )


def _reasons(found: JobInspection, job: Job) -> Iterator[str]:
    if found.invalid:
        yield f"left out as invalid: {found.invalid}"
        return
    short = job.min_available - job.ready_count
    yield (
        f"gang short by {short}: {job.ready_count} of the {job.min_available} pods it needs have"
        f" places, {job.count(TaskStatus.PENDING)} are pending"
    )
    if job.waiting_count:
        yield f"{job.waiting_count} of its pods wait for room that is being released"
    standing = found.queue
    if standing is not None and standing.overused:
        yield (
            f"queue {standing.name} is overused: it has {standing.share:.0%} of what it deserves"
            f" ({_shares(standing)})"
        )
    if found.ahead:
        yield f"{len(found.ahead)} jobs of its queue went before it: {_few(found.ahead)}"
    for refusal in found.refusals:
        yield f"{len(refusal.pods)} pods: {refusal.message}"


def _shares(standing: QueueStanding) -> str:
    return ", ".join(
        f"{r.resource} {r.allocated:.0f} of {r.deserved:.0f}"
        for r in standing.resources
        if r.deserved or r.allocated
    )


def _few(names: tuple[str, ...]) -> str:
    shown = ", ".join(names[:3])
    return f"{shown} ..." if len(names) > 3 else shown
