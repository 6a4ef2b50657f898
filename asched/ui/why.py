"""Why a pod is or is not running: where it is, and the explanation of its last attempt."""

from __future__ import annotations

from datetime import datetime
from typing import Final

import msgspec

from asched.audit.explain import (
    InSessionsError,
    PreparedExplanation,
    explanation_of,
    prepare_explanation,
)
from asched.audit.explain_job import JobExplanation, explain_job
from asched.audit.explanation import Explanation, NodeRejection, ReasonCount, RecordedDecision
from asched.audit.lookup import AuditError, PodName, find_pod
from asched.audit.pod_group.forms import PodGroupExplanation
from asched.audit.pod_state import pending_since_ns, pod_owner, pod_state
from asched.audit.timeline import queue_of, time_of
from asched.audit.unblock import NodeUnblocking
from asched.framework.pod_groups import group_of
from asched.journal.checkpoints import apply_stored
from asched.journal.errors import ArchivedError
from asched.model.quantity import NS_PER_S
from asched.state.cluster import ClusterState, PlacementState, PodEntry
from asched.ui.errors import BusyError
from asched.ui.fork_host import Branch
from asched.ui.index import LikePods
from asched.ui.journal_progress import Moment
from asched.ui.journal_reader import JournalReader
from asched.ui.past import PastStates

_FAR_RECORDS: Final = 15_000
"""Restoring a checkpoint takes as long as folding that many records."""


class SchedulingStatus(msgspec.Struct, frozen=True, rename="camel"):
    """The state, node and queue of a pod at a moment."""

    uid: str
    state: str
    """``bound``, ``assumed``, ``deleted``, ``inFlight``, ``active``, ``backoff``, ``unschedulable``
    or ``gated``."""
    node: str = ""
    queue: str = ""
    queue_position: int = 0
    """From 1, in the active queue; 0 elsewhere."""
    queue_length: int = 0
    owner: str = ""
    """``Kind/name`` of its controller."""
    gang: str = ""
    """``namespace/name`` of its PodGroup."""
    scheduler_name: str = ""
    priority: int = 0
    nominated_node: str = ""
    waits_for: tuple[str, ...] = ()
    """Permit plugins that delay its binding."""
    pending_since: datetime | None = None
    """When it was first observed pending; None for a pod with a node."""
    waited_s: float | None = None


class PodSummary(msgspec.Struct, frozen=True, rename="camel"):
    """Why a pod is or is not running. Fields of an explanation are those of ``asched explain``."""

    namespace: str
    name: str
    seq: int
    """The answer holds after this record."""
    at: datetime
    sentence: str
    status: SchedulingStatus
    like_pods: LikePods | None = None
    """As of the newest record."""
    decision: RecordedDecision | None = None
    """The last decision; None if there is no explanation."""
    attempts: tuple[int, ...] = ()
    reproduced: bool | None = None
    outcome: str = ""
    message: str = ""
    nodes_total: int = 0
    feasible: int = 0
    pre_filter: tuple[NodeRejection, ...] = ()
    reasons: tuple[ReasonCount, ...] = ()
    notes: tuple[str, ...] = ()
    unblocking: tuple[NodeUnblocking, ...] | None = None
    group: PodGroupExplanation | None = None
    job: JobExplanation | None = None
    """For a pod that batch sessions place."""
    evicted: int = 0
    """How often a pod of this name was evicted."""
    evicted_for: int = 0
    """How many pods were evicted for it."""


async def pod_summary(reader: JournalReader, pod: PodName, moment: Moment) -> PodSummary:
    """Raises AuditError for an unknown pod, JournalError, ProfileError."""
    key, seq = await find_pod(reader.store, pod), await reader.seq_of(moment)
    live = reader.live
    if live is not None and live.seq == seq:
        standing = _standing(live.fold.state, key)
        until = _last_relevant(reader, live.fold.state, key, seq)
        explained = await reader.call(_explained_now, pod, until, standing.status is None)
    else:
        standing, explained = await reader.call(_explained_then, pod, key, seq)
    found, job = explained.pod, explained.job
    status = standing.status or SchedulingStatus(found.uid if found is not None else "", "deleted")
    evicted, evicted_for = reader.logs.evictions.about(key, seq)
    summary = PodSummary(
        namespace=pod.namespace,
        name=pod.name,
        seq=seq,
        at=standing.at,
        sentence=sentence_of(status, found, job, standing.rejection),
        status=status,
        like_pods=reader.index.like_pods(key),
        notes=explained.notes,
        job=job,
        evicted=evicted,
        evicted_for=evicted_for,
    )
    if found is None:
        return summary
    shared = {field: getattr(found, field) for field in _OF_EXPLANATION}
    return msgspec.structs.replace(summary, **shared)


_OF_EXPLANATION: Final = (
    "decision", "attempts", "reproduced", "outcome", "message", "nodes_total", "feasible",
    "pre_filter", "reasons", "notes", "unblocking", "group",
)  # fmt: skip


class PodStanding(msgspec.Struct, frozen=True):
    """A pod in a state."""

    status: SchedulingStatus | None
    """None for a pod that does not exist."""
    at: datetime
    rejection: str


def _last_relevant(reader: JournalReader, state: ClusterState, key: str, seq: int) -> int:
    """The last record that the explanation of a pod depends on, so that later ones do not make it
    another question."""
    entry, known = state.pods.get(key), reader.index.pods.get(key)
    if known is None or (entry is not None and not _was_tried(state, entry)):
        return seq
    return min(seq, known.last_seq)


def _was_tried(state: ClusterState, entry: PodEntry) -> bool:
    """Whether records explain the pod. Another one is evaluated on the newest state."""
    in_sessions = entry.info.pod.spec.scheduler_name in state.sessions
    return bool(entry.node or entry.rejection) and not in_sessions


def _standing(state: ClusterState, key: str) -> PodStanding:
    entry = state.pods.get(key)
    status = None if entry is None else _status(state, entry)
    return PodStanding(status, time_of(state.date_ns), "" if entry is None else entry.rejection)


class Explained(msgspec.Struct, frozen=True):
    """The explanation of a pod or of its job, or why there is none."""

    pod: Explanation | None = None
    """Without nodes: a summary shows none."""
    job: JobExplanation | None = None
    notes: tuple[str, ...] = ()
    session: int | None = None
    """The batch session that placed the pod, 0 if it is pending; None for a pod of a profile."""
    unknown: bool = False
    """Whether the records cannot explain it."""


def _explained(prepared: PreparedExplanation) -> Explained:
    """Changes the prepared state."""
    try:
        found = explanation_of(prepared, scores=False)
    except InSessionsError as placed:
        return Explained(session=placed.session)
    except AuditError as error:
        return Explained(notes=(str(error),), unknown=True)
    return Explained(msgspec.structs.replace(found, nodes=()))


async def _explained_now(journal: PastStates, pod: PodName, seq: int, gone: bool) -> Explained:
    """Raises AuditError for a pod that is gone and was never tried."""
    prepared = await _prepared(journal, pod, seq)
    found = prepared if isinstance(prepared, Explained) else _explained(prepared)
    return await _completed(journal, pod, seq, found, gone)


async def _explained_then(
    journal: PastStates, pod: PodName, key: str, seq: int
) -> tuple[PodStanding, Explained]:
    """Where the pod was, too. Raises as :func:`_explained_now`."""
    prepared = await _prepared(journal, pod, seq)
    if isinstance(prepared, Explained):
        standing, found = await _standing_at(journal, key, seq), prepared
    elif prepared.seq == seq:
        standing = _standing(prepared.fold.state, key)
        found = _explained(prepared)
    elif seq - prepared.seq > _FAR_RECORDS:
        found = _explained(prepared)
        standing = await _standing_at(journal, key, seq)
    else:
        standing, found = await _explained_on_both(journal, prepared, seq)
    return standing, await _completed(journal, pod, seq, found, standing.status is None)


async def _standing_at(journal: PastStates, key: str, seq: int) -> PodStanding:
    return await journal.on_state(seq, lambda state: _standing(state, key))


async def _explained_on_both(
    journal: PastStates, prepared: PreparedExplanation, seq: int
) -> tuple[PodStanding, Explained]:
    """The state before the attempt is needed twice: a copy folds on. An explanation changes more
    than a few records do."""
    later = [stored async for stored in journal.store.read(prepared.seq, seq)]

    def later_standing() -> bytes:
        for stored in later:
            apply_stored(prepared.fold, stored)
        return msgspec.msgpack.encode(_standing(prepared.fold.state, prepared.key))

    branch = Branch(later_standing)
    found = _explained(prepared)
    try:
        return msgspec.msgpack.decode(branch.result(), type=PodStanding), found
    except BusyError:
        return await _standing_at(journal, prepared.key, seq), found  # or its error


async def _prepared(journal: PastStates, pod: PodName, seq: int) -> PreparedExplanation | Explained:
    try:
        return await prepare_explanation(
            journal.store, pod, journal.load, end=seq, until=" up to that time"
        )
    except AuditError as error:
        return Explained(notes=(str(error),), unknown=True)
    except ArchivedError as error:
        return Explained(notes=(str(error),))


async def _completed(
    journal: PastStates, pod: PodName, seq: int, found: Explained, gone: bool
) -> Explained:
    """With the explanation of the job. Raises as :func:`_explained_now`."""
    if found.session is not None:
        session = found.session or None
        try:
            job = await explain_job(journal.store, pod, journal.load, session=session, last_seq=seq)
            return Explained(job=job)
        except ArchivedError as error:
            return Explained(notes=(str(error),))
        except AuditError as error:
            found = Explained(notes=(str(error),), unknown=True)
    if gone and found.unknown:
        raise AuditError(f"pod {pod} does not exist at record {seq}: {found.notes[0]}")
    return found


def _status(state: ClusterState, entry: PodEntry) -> SchedulingStatus:
    info, key = entry.info, entry.info.key
    gang = group_of(info.pod)
    queue = queue_of(state.queue, key)
    since_ns = 0 if entry.node else pending_since_ns(state, entry)
    waiting = state.waiting.get(key)
    return SchedulingStatus(
        uid=info.uid,
        state=pod_state(state, key),
        node=entry.node,
        queue=queue,
        queue_position=state.queue.position_in_active(key),
        queue_length=len(getattr(state.queue, queue)) if queue else 0,
        owner=pod_owner(info.pod),
        gang="" if gang is None else gang.key,
        scheduler_name=info.pod.spec.scheduler_name,
        priority=info.priority,
        nominated_node=state.nominator.node_of(key),
        waits_for=() if waiting is None else tuple(waiting.pending_until_ns),
        pending_since=time_of(since_ns) if since_ns else None,
        waited_s=(state.date_ns - since_ns) / NS_PER_S if since_ns else None,
    )


def sentence_of(
    status: SchedulingStatus, found: Explanation | None, job: JobExplanation | None, rejection: str
) -> str:
    """Why the pod is or is not running, in one sentence."""
    if status.state == PlacementState.BOUND.value:
        return f"The pod is bound to {status.node}{_chosen(found)}."
    if status.state == PlacementState.ASSUMED.value:
        waits = ", ".join(status.waits_for)
        until = f"it waits on Permit for {waits}" if waits else "its binding is not confirmed yet"
        return f"The pod is assigned to {status.node}{_chosen(found)}; {until}."
    if status.state == "deleted":
        return f"The pod was deleted or has finished{_last_decision(found)}."
    if job is not None and job.reasons:
        return f"The pod is pending: {_without_stop('; '.join(job.reasons))}."
    group = None if found is None else found.group
    if group is not None:
        return (
            f"The pod waits for its PodGroup {group.namespace}/{group.name}:"
            f" {_without_stop(group.sentence)}."
        )
    message = rejection or (found.message if found is not None else "")
    # What follows the first sentence is about preemption; the page also has the whole message.
    reason = _without_stop(message.split(". ")[0])
    detail = f": {reason}" if reason else ""
    match status.state:
        case "awaitsSession":
            return f"The pod waits for the next batch session{detail}."
        case "active":
            number = f"{status.queue_position} of {status.queue_length}"
            return f"The pod waits for its next attempt, at position {number} in the active queue."
        case "backoff":
            return f"The pod waits for the end of its backoff{detail}."
        case "gated":
            return f"The pod is gated{detail}."
        case "unschedulable":
            return f"The pod is unschedulable{detail}."
    return f"The pod is pending{detail}."


def _chosen(found: Explanation | None) -> str:
    decision = None if found is None else found.decision
    if decision is None or decision.kind != "assigned":
        return ""
    if decision.feasible == 1:
        return f": attempt {decision.attempt} found it as the only feasible node"
    ties = f", one of {decision.ties} with that score" if decision.ties > 1 else ""
    return (
        f": attempt {decision.attempt} selected it from {decision.feasible} feasible nodes"
        f" with score {decision.score}{ties}"
    )


def _last_decision(found: Explanation | None) -> str:
    decision = None if found is None else found.decision
    if decision is None or decision.kind == "none":
        return ""
    if decision.kind == "assigned":
        return f"; attempt {decision.attempt} had assigned it to {decision.node}"
    return f"; attempt {decision.attempt} had {decision.kind}: {_without_stop(decision.message)}"


def _without_stop(text: str) -> str:
    return " ".join(text.split()).rstrip(".")
