"""Answers about one pod: why it is or is not running, its decisions and its timeline."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Final

import msgspec

from asched.audit import entries
from asched.audit.entries import Entry, PodTimeline
from asched.audit.explain import (
    Explanation,
    InSessionsError,
    NodeExplanation,
    NodeRejection,
    ReasonCount,
    RecordedDecision,
    explain,
)
from asched.audit.explain_job import JobExplanation, explain_job
from asched.audit.history import timelines, timelines_until
from asched.audit.lookup import AuditError, PodName, find_pod
from asched.audit.pod_state import pod_state
from asched.audit.timeline import queue_of, time_of
from asched.audit.unblock import NodeUnblocking
from asched.framework.pod_groups import group_of
from asched.journal.errors import ArchivedError
from asched.journal.store import StoredRecord
from asched.state.cluster import ClusterState, PlacementState, PodEntry
from asched.ui.index import LikePods
from asched.ui.journal_view import JournalReader, Moment
from asched.ui.past import PastStates


class PodPlace(msgspec.Struct, frozen=True, rename="camel"):
    """Where a pod is at a moment."""

    uid: str
    state: str
    """``bound``, ``assumed``, ``deleted``, ``inFlight``, ``active``, ``backoff``, ``unschedulable``
    or ``gated``."""
    node: str = ""
    queue: str = ""
    place_in_queue: int = 0
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


class PodSummary(msgspec.Struct, frozen=True, rename="camel"):
    """Why a pod is or is not running. Fields of an explanation are those of ``asched explain``."""

    namespace: str
    name: str
    seq: int
    """The answer holds after this record."""
    at: datetime
    sentence: str
    place: PodPlace
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
    job: JobExplanation | None = None
    """For a pod that batch sessions place."""
    evicted: int = 0
    """How often a pod of this name was evicted."""
    evicted_for: int = 0
    """How many pods were evicted for it."""


class StoredDecision(msgspec.Struct, frozen=True, rename="camel"):
    """The record of a decision as the journal holds it."""

    seq: int
    at: datetime
    kind: str
    record: dict[str, Any]


class DecisionMatrix(msgspec.Struct, frozen=True, rename="camel"):
    """One decision: every plugin on every node."""

    explanation: Explanation
    """As ``asched explain -o json``."""
    winner: str
    """The node of the decision; empty if it is a rejection."""
    runner_up: str
    """The best other node; empty if there is none."""
    margin: int | None
    """The winner's total minus the runner-up's; None without a runner-up."""
    ties: tuple[str, ...]
    """All nodes with the best total."""
    score_plugins: tuple[str, ...]
    filter_plugins: tuple[str, ...]
    """The plugins that reject a node."""
    differing: tuple[str, ...]
    """The score plugins that do not give all nodes the same score."""
    stored: StoredDecision | None
    """None for a pod without attempts."""


class DecisionList(msgspec.Struct, frozen=True, rename="camel"):
    """The attempts for the newest pod of a name, oldest first."""

    namespace: str
    name: str
    uid: str
    decisions: tuple[
        entries.AssignmentEntry | entries.RejectionEntry | entries.AttemptFailureEntry, ...
    ]


class TimelineSpan(msgspec.Struct, frozen=True, rename="camel"):
    """A period in the life of a pod."""

    kind: str
    """A queue, ``permit``, ``binding`` or ``running``."""
    begin: datetime
    end: datetime | None
    """None if it lasts."""
    begin_seq: int
    end_seq: int = 0
    cause: str = ""
    """Why it began."""
    node: str = ""


class TimelineAnswer(msgspec.Struct, frozen=True, rename="camel"):
    """All pods that had a name, and the spans of the newest one."""

    pods: tuple[PodTimeline, ...]
    """As ``asched history -o json``."""
    spans: tuple[TimelineSpan, ...]


async def pod_summary(reader: JournalReader, pod: PodName, moment: Moment) -> PodSummary:
    """Raises AuditError for an unknown pod, JournalError, ProfileError."""
    key, seq = await find_pod(reader.store, pod), await reader.seq_of(moment)
    standing = await reader.at(seq, _standing, key)
    place, at = standing.place, standing.at
    explained = await reader.call(_explained, pod, seq, place is None)
    found, job, notes = explained.pod, explained.job, explained.notes
    place = place or PodPlace(found.uid if found is not None else "", "deleted")
    evicted, evicted_for = reader.logs.evictions.about(key, seq)
    summary = PodSummary(
        namespace=pod.namespace,
        name=pod.name,
        seq=seq,
        at=at,
        sentence=sentence_of(place, found, job, standing.rejection),
        place=place,
        like_pods=reader.index.like_pods(key),
        notes=notes,
        job=job,
        evicted=evicted,
        evicted_for=evicted_for,
    )
    if found is None:
        return summary
    shared = {field: getattr(found, field) for field in _OF_EXPLANATION}
    return msgspec.structs.replace(summary, **shared)


class PodStanding(msgspec.Struct, frozen=True):
    """A pod in a state."""

    place: PodPlace | None
    """None for a pod that does not exist."""
    at: datetime
    rejection: str


def _standing(state: ClusterState, _: int, key: str) -> PodStanding:
    entry = state.pods.get(key)
    place = None if entry is None else _place(state, entry)
    return PodStanding(place, time_of(state.date_ns), "" if entry is None else entry.rejection)


_OF_EXPLANATION: Final = (
    "decision", "attempts", "reproduced", "outcome", "message", "nodes_total", "feasible",
    "pre_filter", "reasons", "notes", "unblocking",
)  # fmt: skip


class Explained(msgspec.Struct, frozen=True):
    """The explanation of a pod or of its job, or why there is none."""

    pod: Explanation | None = None
    """Without nodes: a summary shows none."""
    job: JobExplanation | None = None
    notes: tuple[str, ...] = ()


async def _explained(journal: PastStates, pod: PodName, seq: int, gone: bool) -> Explained:
    """Raises AuditError for a pod that is gone and was never tried."""
    try:
        return await _explained_if_known(journal, pod, seq)
    except AuditError as error:
        if gone:
            raise AuditError(f"pod {pod} does not exist at record {seq}: {error}") from None
        return Explained(notes=(str(error),))


async def _explained_if_known(journal: PastStates, pod: PodName, seq: int) -> Explained:
    """Raises AuditError."""
    store, load = journal.store, journal.load
    try:
        found = await explain(store, pod, load, last_seq=seq)
        return Explained(msgspec.structs.replace(found, nodes=()))
    except InSessionsError as placed:
        session = placed.session or None
        return Explained(job=await explain_job(store, pod, load, session=session, last_seq=seq))
    except ArchivedError as error:
        return Explained(notes=(str(error),))


def _place(state: ClusterState, entry: PodEntry) -> PodPlace:
    info, key = entry.info, entry.info.key
    owner, gang = info.pod.metadata.controller, group_of(info.pod)
    queue = queue_of(state.queue, key)
    waiting = state.waiting.get(key)
    return PodPlace(
        uid=info.uid,
        state=pod_state(state, key),
        node=entry.node,
        queue=queue,
        place_in_queue=state.queue.place_in_active(key),
        queue_length=len(getattr(state.queue, queue)) if queue else 0,
        owner="" if owner is None else f"{owner.kind}/{owner.name}",
        gang="" if gang is None else gang.key,
        scheduler_name=info.pod.spec.scheduler_name,
        priority=info.priority,
        nominated_node=state.nominator.node_of(key),
        waits_for=() if waiting is None else tuple(waiting.pending_until_ns),
    )


def sentence_of(
    place: PodPlace, found: Explanation | None, job: JobExplanation | None, rejection: str
) -> str:
    """Why the pod is or is not running, in one sentence."""
    if place.state == PlacementState.BOUND.value:
        return f"The pod is bound to {place.node}{_chosen(found)}."
    if place.state == PlacementState.ASSUMED.value:
        waits = ", ".join(place.waits_for)
        until = f"it waits on Permit for {waits}" if waits else "its binding is not confirmed yet"
        return f"The pod is assigned to {place.node}{_chosen(found)}; {until}."
    if place.state == "deleted":
        return f"The pod was deleted or has finished{_last_decision(found)}."
    if job is not None and job.reasons:
        return f"The pod is pending: {_without_stop('; '.join(job.reasons))}."
    reason = _without_stop(rejection or (found.message if found is not None else ""))
    because = f": {reason}" if reason else ""
    match place.state:
        case "awaitsSession":
            return f"The pod waits for the next batch session{because}."
        case "active":
            number = f"{place.place_in_queue} of {place.queue_length}"
            return f"The pod waits for its next attempt, at place {number} in the active queue."
        case "backoff":
            return f"The pod waits for the end of its backoff{because}."
        case "gated":
            return f"The pod is gated{because}."
        case "unschedulable":
            return f"The pod is unschedulable{because}."
    return f"The pod is pending{because}."


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


async def decision_list(reader: JournalReader, pod: PodName, moment: Moment) -> DecisionList:
    """Raises as :func:`pod_summary`."""
    newest = (await _timelines(reader, pod, moment))[-1]
    kinds = entries.AssignmentEntry | entries.RejectionEntry | entries.AttemptFailureEntry
    made = tuple(entry for entry in newest.entries if isinstance(entry, kinds))
    return DecisionList(newest.namespace, newest.name, newest.uid, made)


async def decision_matrix(
    reader: JournalReader, pod: PodName, attempt: int | None, moment: Moment
) -> DecisionMatrix:
    """Raises as :func:`pod_summary`, and AuditError for an unknown attempt."""
    seq = await reader.seq_of(moment)
    found = await reader.call(_explanation, pod, attempt, seq)
    feasible = [node for node in found.nodes if node.feasible]
    winner = found.decision.node
    totals = {node.name: node.total or 0 for node in feasible}
    runner_up = next((node.name for node in feasible if node.name != winner), "")
    best = max(totals.values(), default=0)
    return DecisionMatrix(
        explanation=found,
        winner=winner,
        runner_up=runner_up if winner else "",
        margin=totals[winner] - totals[runner_up] if winner in totals and runner_up else None,
        ties=tuple(name for name, total in totals.items() if total == best),
        score_plugins=tuple(score.plugin for score in feasible[0].scores) if feasible else (),
        filter_plugins=_filter_plugins(found.nodes),
        differing=_differing(feasible),
        stored=await _stored(reader, found.decision.seq),
    )


async def _explanation(
    journal: PastStates, pod: PodName, attempt: int | None, seq: int
) -> Explanation:
    store, load = journal.store, journal.load
    return await explain(store, pod, load, attempt=attempt, last_seq=seq)


def _filter_plugins(nodes: tuple[NodeExplanation, ...]) -> tuple[str, ...]:
    return tuple(
        dict.fromkeys(rejection.plugin for node in nodes for rejection in node.rejected_by)
    )


def _differing(feasible: list[NodeExplanation]) -> tuple[str, ...]:
    scores: dict[str, set[int]] = {}
    for node in feasible:
        for score in node.scores:
            scores.setdefault(score.plugin, set()).add(score.weighted)
    return tuple(plugin for plugin, different in scores.items() if len(different) > 1)


async def _stored(reader: JournalReader, seq: int) -> StoredDecision | None:
    async for stored in reader.store.read(seq - 1, seq) if seq else _nothing():
        fields = msgspec.to_builtins(stored.record, str_keys=True)
        kind = type(stored.record).__name__
        return StoredDecision(seq, time_of(stored.written_at_ns), kind, fields)
    return None


async def _nothing() -> Any:
    for stored in tuple[StoredRecord, ...]():
        yield stored


async def pod_timeline(reader: JournalReader, pod: PodName, moment: Moment) -> TimelineAnswer:
    """Raises as :func:`pod_summary`."""
    found = await _timelines(reader, pod, moment)
    return TimelineAnswer(found, tuple(spans_of(found[-1].entries)))


async def _timelines(
    reader: JournalReader, pod: PodName, moment: Moment
) -> tuple[PodTimeline, ...]:
    """The timelines up to the moment. At least one."""
    key, seq = await find_pod(reader.store, pod), await reader.seq_of(moment)
    mentions = reader.index.mentions(key) if seq <= reader.indexed_seq else None
    found = []
    for timeline in await reader.call(_all_timelines, key, seq, mentions):
        until = [entry for entry in timeline.entries if entry.seq <= seq]
        if until:
            found.append(msgspec.structs.replace(timeline, entries=until))
    if not found:
        raise AuditError(f"pod {pod} does not exist at record {seq}")
    return tuple(found)


async def _all_timelines(
    journal: PastStates, key: str, seq: int, mentions: tuple[int, ...] | None
) -> list[PodTimeline]:
    """The timelines up to a record or longer. ``mentions``: None if they are not indexed yet."""
    if mentions is None:
        return await timelines(journal.store, PodName.parse(key), journal.load)
    return await timelines_until(journal.store, key, journal.load, seq, mentions)


def spans_of(timeline: list[Entry]) -> list[TimelineSpan]:
    """The periods between the entries that change where a pod is."""
    spans: list[TimelineSpan] = []
    for entry in timeline:
        begun = _begun(entry)
        if begun is None and not isinstance(entry, entries.DeletionEntry):
            continue
        if spans and spans[-1].end is None:
            spans[-1] = msgspec.structs.replace(spans[-1], end=entry.at, end_seq=entry.seq)
        if begun is not None:
            spans.append(begun)
    return spans


def _begun(entry: Entry) -> TimelineSpan | None:
    """The period that an entry begins."""
    at, seq = entry.at, entry.seq
    match entry:
        case entries.QueueMoveEntry():
            return TimelineSpan(entry.queue, at, None, seq, cause=entry.cause)
        case entries.AssignmentEntry():
            waits = ", ".join(entry.permit_waits)
            kind, cause = ("permit", f"waits for {waits}") if waits else ("binding", "assigned")
            return TimelineSpan(kind, at, None, seq, cause=cause, node=entry.node)
        case entries.BindingEntry():
            return TimelineSpan("running", at, None, seq, cause="bound", node=entry.node)
        case entries.ObservedEntry() if entry.node:
            return TimelineSpan("running", at, None, seq, cause="observed", node=entry.node)
        case entries.PermitEntry(allowed=True):
            return TimelineSpan("binding", at, None, seq, cause=f"{entry.plugin} allowed it")
    return None
