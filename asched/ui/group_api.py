"""Questions about gangs, owners, queues, evictions and pending pods."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from functools import cache
from typing import Final, TypeVar

from asched.audit.evictions import EvictionKind, EvictionReports
from asched.audit.gangs import GangPhase, GangsReport, gang_states
from asched.audit.groups import GANG, GroupExplanation, GroupName
from asched.audit.history import Period
from asched.audit.pod_group.forms import PodGroupExplanation
from asched.audit.pod_state import PendingPods, longest_pending
from asched.audit.queue_log import QueueHistory
from asched.audit.queues import QueuesReport, queue_states
from asched.audit.visibility import AnswerScope
from asched.batch.registry import SessionRegistry
from asched.state.cluster import ClusterState
from asched.ui.errors import RequestError
from asched.ui.groups import (
    EvictionFilter,
    GroupTimeline,
    chosen_evictions,
    chosen_gangs,
    group_explanation,
    group_timeline,
    group_why,
)
from asched.ui.journal_reader import JournalReader
from asched.ui.questions import MOMENT, ApiRoute, Parameter, Question

EnumT = TypeVar("EnumT", bound=Enum)

MAX_PENDING: Final = 1000
MAX_SESSIONS: Final = 500
_registry = cache(SessionRegistry.discover)


def _choice(question: Question, name: str, kind: type[EnumT]) -> EnumT | None:
    """A parameter with one of the values of ``kind``. Raises :class:`RequestError`."""
    text = question.text(name)
    if not text:
        return None
    try:
        return kind(text)
    except ValueError:
        known = ", ".join(str(each.value) for each in kind)
        raise RequestError(f"{name}: {text[:40]!r} is not one of {known}") from None


def _period(question: Question) -> Period:
    """Raises :class:`RequestError`."""
    since_ns, until_ns = question.time_ns("from"), question.time_ns("to")
    if until_ns is not None and until_ns < (since_ns or 0):
        raise RequestError("to: before from")
    return Period(since_ns or 0, until_ns)


def _group(question: Question) -> GroupName:
    path = question.path
    return GroupName(path.get("kind", GANG), path["namespace"], path["name"])


async def _pending(reader: JournalReader, question: Question) -> PendingPods:
    limit = question.number("limit", most=MAX_PENDING) or 20
    seq = await reader.seq_of(question.moment())
    return await reader.at(seq, longest_pending, limit)


async def _evictions(reader: JournalReader, question: Question) -> EvictionReports:
    wanted = EvictionFilter(
        question.text("q"), _choice(question, "kind", EvictionKind), question.number("limit")
    )
    seq = await reader.seq_of(question.moment())
    return chosen_evictions(reader, seq, _period(question), wanted)


async def _queues(reader: JournalReader, question: Question) -> QueuesReport:
    seq = await reader.seq_of(question.moment())
    return await reader.at(seq, _queue_states)


def _queue_states(state: ClusterState, seq: int) -> QueuesReport:
    return queue_states(state, seq, _registry())


async def _queue_history(reader: JournalReader, question: Question) -> QueueHistory:
    seq = await reader.seq_of(question.moment())
    limit = question.number("limit", most=MAX_SESSIONS) or 50
    return reader.logs.queues.history(seq, _period(question), limit)


async def _gangs(reader: JournalReader, question: Question) -> GangsReport:
    phase = _choice(question, "phase", GangPhase)
    seq = await reader.seq_of(question.moment())
    found = await reader.at(seq, gang_states)
    return chosen_gangs(found, question.text("q"), phase)


async def _explanation(reader: JournalReader, question: Question) -> GroupExplanation:
    return await group_explanation(reader, _group(question), question.moment())


async def _why(reader: JournalReader, question: Question) -> PodGroupExplanation:
    seq = await reader.seq_of(question.moment())
    return await reader.call(group_why, _group(question).key, seq)


async def _timeline(reader: JournalReader, question: Question) -> GroupTimeline:
    return await group_timeline(reader, _group(question), question.moment())


_GANG: Final = "/gangs/{namespace}/{name}"
_OWNER: Final = "/owners/{namespace}/{kind}/{name}"
_PERIOD: Final = (Parameter("from", "The beginning."), Parameter("to", "The end."))


def _limit(most: str) -> Parameter:
    return Parameter("limit", f"{most} at most.", "integer")


GROUP_ROUTES: Final[Mapping[str, ApiRoute]] = {
    "pending": ApiRoute(
        "/pending",
        "The pods that have waited longest for a node.",
        PendingPods,
        _pending,
        parameters=(_limit("Pods"), *MOMENT),
        rows=lambda found: found.pods,
        scope=AnswerScope.CLUSTER,
    ),
    "evictions": ApiRoute(
        "/evictions",
        "Evicted pods: for which pod, by which rule, and whether that pod started. Newest first.",
        EvictionReports,
        _evictions,
        parameters=(
            Parameter("q", "A text in a name, gang, owner, queue, node or rule."),
            Parameter("kind", f"One of {', '.join(kind.value for kind in EvictionKind)}."),
            _limit("Evictions"),
            *_PERIOD,
            *MOMENT,
        ),
        rows=lambda found: found.evictions,
        scope=AnswerScope.CLUSTER,
    ),
    "queues": ApiRoute(
        "/queues",
        "The queues of batch sessions: shares, and which job goes first and why.",
        QueuesReport,
        _queues,
        parameters=MOMENT,
        rows=lambda found: [*found.rows()],
        scope=AnswerScope.CLUSTER,
    ),
    "queue_history": ApiRoute(
        "/queues/history",
        "Shares of queues over time, and what recent batch sessions decided, in order.",
        QueueHistory,
        _queue_history,
        parameters=(_limit("Sessions"), *_PERIOD, *MOMENT),
        rows=lambda found: found.points,
        scope=AnswerScope.CLUSTER,
    ),
    "gangs": ApiRoute(
        "/gangs",
        "Gangs: how many of their pods have a node, since when, and which comes first.",
        GangsReport,
        _gangs,
        parameters=(
            Parameter("q", "A text in the name or queue."),
            Parameter("phase", f"One of {', '.join(phase.value for phase in GangPhase)}."),
            *MOMENT,
        ),
        rows=lambda found: found.gangs,
        scope=AnswerScope.CLUSTER,
    ),
    "gang": ApiRoute(
        _GANG,
        "A gang: its pods by state, and the reason that holds most of them.",
        GroupExplanation,
        _explanation,
        parameters=MOMENT,
        rows=lambda found: found.members,
        scope=AnswerScope.NAMESPACE,
    ),
    "gang_why": ApiRoute(
        f"{_GANG}/why",
        "The dominant reason of a PodGroup, what its topology domains lack, and what admits it.",
        PodGroupExplanation,
        _why,
        parameters=MOMENT,
        rows=lambda found: found.domains,
        scope=AnswerScope.NAMESPACE,
    ),
    "gang_timeline": ApiRoute(
        f"{_GANG}/timeline",
        "What happened to the pods of a gang, and what caused what.",
        GroupTimeline,
        _timeline,
        parameters=MOMENT,
        rows=lambda found: found.causes,
        scope=AnswerScope.NAMESPACE,
    ),
    "owner": ApiRoute(
        _OWNER,
        "The pods of an owner by state, and the reason that holds most of them.",
        GroupExplanation,
        _explanation,
        parameters=MOMENT,
        rows=lambda found: found.members,
        scope=AnswerScope.NAMESPACE,
    ),
    "owner_timeline": ApiRoute(
        f"{_OWNER}/timeline",
        "What happened to the pods of an owner, and what caused what.",
        GroupTimeline,
        _timeline,
        parameters=MOMENT,
        rows=lambda found: found.causes,
        scope=AnswerScope.NAMESPACE,
    ),
}
