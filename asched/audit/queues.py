"""Queues of batch sessions at a moment: shares, and which job goes first and why."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from typing import Final

import msgspec

from asched.audit.lookup import state_at
from asched.audit.timeline import time_of
from asched.batch.inspect import OrderedJob, QueueUsage, SessionInspection, inspect_opening
from asched.batch.registry import SessionRegistry
from asched.batch.tiers import CREATION
from asched.framework.runtime.profile import PluginLoader
from asched.journal.store import JournalStore
from asched.state.cluster import ClusterState
from asched.state.sessions import SessionProfile

ACTIVE_PODS: Final = 20
"""Pods of the active queue that a report lists."""


class JobInOrder(msgspec.Struct, frozen=True, rename="camel"):
    """A job with pending pods, in the order of its queue."""

    position: int
    """From 1 in its queue."""
    job: str
    queue: str
    group: str
    """``namespace/name`` of its PodGroup; empty for a job without one."""
    namespace: str
    owner: str
    """``Kind/name`` of the controller of its first pod."""
    min_available: int
    ready: int
    pending: int
    priority: int
    order_reason: str
    """Why it is after the job before it; empty for the first."""


class QueueState(msgspec.Struct, frozen=True, rename="camel"):
    """A queue in the next session."""

    usage: QueueUsage
    jobs: int
    """With and without pending pods."""
    pending_jobs: int
    pending_pods: int


class SessionQueues(msgspec.Struct, frozen=True, rename="camel"):
    """The queues of one scheduler name, as its next session opens with them."""

    scheduler_name: str
    session: int
    """The number of the last session; 0 before the first."""
    last_at: datetime | None
    actions: tuple[str, ...]
    queues: tuple[QueueState, ...]
    """In the order in which they are served first; it changes as a queue gets its share."""
    jobs: tuple[JobInOrder, ...]
    ignored: dict[str, str]
    """Jobs that the session ignores, with the reason."""
    problem: str = ""
    """Why the session cannot be opened, such as a plugin that is not installed."""


class ActivePod(msgspec.Struct, frozen=True, rename="camel"):
    """A pod in the active queue."""

    position: int
    namespace: str
    name: str
    priority: int
    attempts: int


class QueuesReport(msgspec.Struct, frozen=True, rename="camel"):
    """All queues at a moment, which is also the JSON form (see ``docs/how-to/show.md``)."""

    seq: int
    at: datetime
    sessions: tuple[SessionQueues, ...]
    """Empty if no batch sessions are configured."""
    scheduling: dict[str, int]
    """Pods that are scheduled one by one and have no node, by queue."""
    active: tuple[ActivePod, ...]
    """The first pods of the active queue, the next one first."""

    def rows(self) -> Iterator[QueueRow]:
        """As a table."""
        for session in self.sessions:
            for queue in session.queues:
                usage = queue.usage
                for one in usage.resources:
                    yield QueueRow(
                        session.scheduler_name,
                        usage.name,
                        usage.weight,
                        resource=one.resource,
                        deserved=one.deserved,
                        allocated=one.allocated,
                        requested=one.requested,
                        share=usage.share,
                    )


class QueueRow(msgspec.Struct, frozen=True, rename="camel"):
    """One resource of a queue: cpu in millicores, memory in bytes, others in thousandths."""

    scheduler_name: str
    queue: str
    weight: int
    resource: str
    deserved: float
    allocated: float
    requested: float
    share: float


def queue_states(state: ClusterState, seq: int, registry: SessionRegistry) -> QueuesReport:
    """The queues after record ``seq``."""
    return QueuesReport(
        seq=seq,
        at=time_of(state.date_ns),
        sessions=tuple(_queues_of(state, profile, registry) for profile in state.sessions),
        scheduling={
            name: len(getattr(state.queue, name))
            for name in ("active", "backoff", "unschedulable", "gated")
        },
        active=tuple(_active(state)),
    )


def _active(state: ClusterState) -> Iterator[ActivePod]:
    for position, queued in enumerate(state.queue.first_active(ACTIVE_PODS), 1):
        info = queued.info
        yield ActivePod(position, info.namespace, info.name, info.priority, queued.attempts)


def opening(
    state: ClusterState, profile: SessionProfile, registry: SessionRegistry
) -> SessionInspection:
    """The next session of the profile as it opens. Raises what its plugins raise."""
    return inspect_opening(state, profile.spec, registry, profile.number + 1)


def _queues_of(
    state: ClusterState, profile: SessionProfile, registry: SessionRegistry
) -> SessionQueues:
    empty = SessionQueues(
        scheduler_name=profile.spec.scheduler_name,
        session=profile.number,
        last_at=time_of(profile.last_run_ns) if profile.number else None,
        actions=profile.spec.actions,
        queues=(),
        jobs=(),
        ignored={},
    )
    try:
        found = opening(state, profile, registry)
    except Exception as error:  # noqa: BLE001  a plugin of a third party, as in a session
        return msgspec.structs.replace(empty, problem=" ".join(str(error).split()))
    jobs = Counter(found.job_queues.values())
    pending_jobs = Counter(job.queue for job in found.jobs)
    pods: Counter[str] = Counter()
    for job in found.jobs:
        pods[job.queue] += job.pending
    queues = tuple(
        QueueState(usage, jobs[usage.name], pending_jobs[usage.name], pods[usage.name])
        for usage in found.queues
    )
    return msgspec.structs.replace(
        empty, queues=queues, jobs=tuple(in_order(found.jobs)), ignored={**found.ignored}
    )


def in_order(jobs: Sequence[OrderedJob]) -> Iterator[JobInOrder]:
    """The jobs with their positions, and why each one is after the one before it."""
    position, before = 0, None
    for job in jobs:
        same = before is not None and before.queue == job.queue
        position = position + 1 if same else 1
        yield JobInOrder(
            position=position,
            job=job.job,
            queue=job.queue,
            group=job.group,
            namespace=job.namespace,
            owner=job.owner,
            min_available=job.min_available,
            ready=job.ready,
            pending=job.pending,
            priority=job.priority,
            order_reason=(
                _order_reason(before.order, job.order) if same and before is not None else ""
            ),
        )
        before = job


def _order_reason(
    first: Iterable[tuple[str, float | str]], second: Iterable[tuple[str, float | str]]
) -> str:
    """Why a job is after another one: the first part of their order that differs."""
    for (plugin, own), (_, other) in zip(first, second, strict=True):
        if own == other:
            continue
        if isinstance(own, str) or isinstance(other, str):
            return f"{plugin}: {other} after {own}"
        match plugin:
            case "priority":
                return f"priority {0 - other:g} below {0 - own:g}"
            case "gang":
                return "its gang can start already; the other one cannot yet"
            case "drf":
                return f"dominant share {other:.0%} above {own:.0%}"
            case str() if plugin == CREATION:
                return f"created {_seconds(other - own)} later"
            case _:
                return f"{plugin}: {other:g} above {own:g}"
    return ""


def _seconds(length_s: float) -> str:
    return f"{length_s:g} s" if length_s < 3600 else f"{length_s / 3600:.1f} h"


async def queues_at(
    journal: JournalStore, load: PluginLoader, at_ns: int | None = None
) -> QueuesReport:
    """The queues at a time; None for the journal's end.

    Raises :class:`AuditError` before the first record,
    :class:`~asched.journal.errors.JournalError`, ProfileError.
    """
    state, seq = await state_at(journal, load, at_ns)
    return queue_states(state, seq, SessionRegistry.discover())
