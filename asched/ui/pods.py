"""Answers about one pod: its decisions and its timeline."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import msgspec

from asched.audit import entries
from asched.audit.entries import Entry, PodTimeline
from asched.audit.explain import explain
from asched.audit.explanation import (
    Explanation,
    NodeExplanation,
)
from asched.audit.history import timelines
from asched.audit.lookup import AuditError, PodName, find_pod
from asched.audit.pod_state import AWAITS_SESSION
from asched.audit.timeline import time_of
from asched.journal.store import JournalStore, StoredRecord
from asched.ui.journal_progress import Moment
from asched.ui.journal_reader import JournalReader
from asched.ui.past import PastStates, last_record_about


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
    """A queue, ``awaitsSession``, ``permit``, ``binding`` or ``running``."""
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
    omitted: int = 0
    """Older entries of the newest pod beyond the limit."""


async def decision_list(reader: JournalReader, pod: PodName, moment: Moment) -> DecisionList:
    """Raises as :func:`asched.ui.why.pod_summary`."""
    newest = (await _timelines(reader, pod, moment))[-1]
    kinds = entries.AssignmentEntry | entries.RejectionEntry | entries.AttemptFailureEntry
    made = tuple(entry for entry in newest.entries if isinstance(entry, kinds))
    return DecisionList(newest.namespace, newest.name, newest.uid, made)


async def decision_matrix(
    reader: JournalReader,
    pod: PodName,
    attempt: int | None,
    moment: Moment,
    *,
    only_devices: bool = False,
) -> DecisionMatrix:
    """``only_devices`` leaves out nodes without findings about devices. Raises as
    :func:`asched.ui.why.pod_summary`, and AuditError for an unknown attempt."""
    key, seq = await find_pod(reader.store, pod), await reader.seq_of(moment)
    # Later records do not change the answer.
    seq = await last_record_about(reader.store, key, seq, attempt)
    parts = await reader.call(_decision, pod, attempt, seq)
    if only_devices:
        return parts.matrix
    nodes = msgspec.msgpack.decode(parts.nodes, type=tuple[NodeExplanation, ...])
    explanation = msgspec.structs.replace(parts.matrix.explanation, nodes=nodes)
    return msgspec.structs.replace(parts.matrix, explanation=explanation)


class DecisionParts(msgspec.Struct, frozen=True):
    """A decision from a worker process. Thousands of nodes are decoded only if they are needed."""

    matrix: DecisionMatrix
    """With the nodes that have findings about devices."""
    nodes: msgspec.Raw
    """All nodes."""


async def _decision(
    journal: PastStates, pod: PodName, attempt: int | None, seq: int
) -> DecisionParts:
    """For a worker process."""
    found = await explain(journal.store, pod, journal.load, attempt=attempt, last_seq=seq)
    matrix = _matrix(found, await _stored(journal.store, found.decision.seq))
    with_devices = tuple(node for node in found.nodes if node.requests or node.device_problems)
    explanation = msgspec.structs.replace(found, nodes=with_devices)
    return DecisionParts(
        msgspec.structs.replace(matrix, explanation=explanation),
        msgspec.Raw(msgspec.msgpack.encode(found.nodes)),
    )


def _matrix(found: Explanation, stored: StoredDecision | None) -> DecisionMatrix:
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
        stored=stored,
    )


def _filter_plugins(nodes: tuple[NodeExplanation, ...]) -> tuple[str, ...]:
    return tuple(
        dict.fromkeys(rejection.plugin for node in nodes for rejection in node.rejected_by)
    )


def _differing(feasible: list[NodeExplanation]) -> tuple[str, ...]:
    """All nodes have the scores of the same plugins, in the same order."""
    first = feasible[0].scores if feasible else ()
    return tuple(
        score.plugin
        for place, score in enumerate(first)
        if any(node.scores[place].weighted != score.weighted for node in feasible)
    )


async def _stored(journal: JournalStore, seq: int) -> StoredDecision | None:
    async for stored in journal.read(seq - 1, seq) if seq else _nothing():
        fields = msgspec.to_builtins(stored.record, str_keys=True)
        kind = type(stored.record).__name__
        return StoredDecision(seq, time_of(stored.written_at_ns), kind, fields)
    return None


async def _nothing() -> Any:
    for stored in tuple[StoredRecord, ...]():
        yield stored


async def pod_timeline(
    reader: JournalReader, pod: PodName, moment: Moment, limit: int | None = None
) -> TimelineAnswer:
    """``limit``: the newest entries of each pod. Raises as :func:`asched.ui.why.pod_summary`."""
    found = await _timelines(reader, pod, moment)
    if limit is None:
        return TimelineAnswer(found, tuple(spans_of(found[-1].entries)))
    newest = tuple(
        msgspec.structs.replace(timeline, entries=timeline.entries[-limit:]) for timeline in found
    )
    omitted = len(found[-1].entries) - len(newest[-1].entries)
    return TimelineAnswer(newest, tuple(spans_of(newest[-1].entries)), omitted)


async def _timelines(
    reader: JournalReader, pod: PodName, moment: Moment
) -> tuple[PodTimeline, ...]:
    """The timelines up to the moment. At least one."""
    key, seq = await find_pod(reader.store, pod), await reader.seq_of(moment)
    indexed = reader.timelines(key, seq)
    if indexed:
        return tuple(indexed)
    found = []
    for timeline in await reader.call(_all_timelines, key, seq):
        until = [entry for entry in timeline.entries if entry.seq <= seq]
        if until:
            found.append(msgspec.structs.replace(timeline, entries=until))
    if not found:
        raise AuditError(f"pod {pod} does not exist at record {seq}")
    return tuple(found)


async def _all_timelines(journal: PastStates, key: str, seq: int) -> list[PodTimeline]:
    """The timelines up to a record or longer, of a pod that is not indexed."""
    return await timelines(journal.store, PodName.parse(key), journal.load, last_seq=seq)


def spans_of(timeline: list[Entry]) -> list[TimelineSpan]:
    """The periods between the entries that change where a pod is."""
    spans: list[TimelineSpan] = []
    in_sessions = _is_in_sessions(timeline)
    for entry in timeline:
        begun = _begun(entry, in_sessions=in_sessions)
        if begun is None and not isinstance(entry, entries.DeletionEntry):
            continue
        if spans and spans[-1].end is None:
            spans[-1] = msgspec.structs.replace(spans[-1], end=entry.at, end_seq=entry.seq)
        if begun is not None:
            spans.append(begun)
    return spans


def _is_in_sessions(timeline: list[Entry]) -> bool:
    """Whether batch sessions decide about the pod: it is in no queue."""
    kinds = {type(entry) for entry in timeline}
    decided = kinds & {entries.AssignmentEntry, entries.RejectionEntry}
    return bool(decided) and entries.QueueMoveEntry not in kinds


def _begun(entry: Entry, *, in_sessions: bool) -> TimelineSpan | None:
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
        case entries.ObservedEntry() if in_sessions:
            return TimelineSpan(AWAITS_SESSION, at, None, seq, cause="observed")
        case entries.PermitEntry(allowed=True):
            return TimelineSpan("binding", at, None, seq, cause=f"{entry.plugin} allowed it")
    return None
