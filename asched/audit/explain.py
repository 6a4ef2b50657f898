"""Why an attempt ended as it did: recomputed from the journal, plugin by plugin, node by node."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime, timedelta

import msgspec

from asched.audit.pods import AuditError, PodName, find_pod
from asched.audit.supposition import Hypotheticals
from asched.audit.travel import (
    AttemptRecord,
    attempts_of,
    choose_attempt,
    state_before,
)
from asched.audit.unblock import Prospect, prospects
from asched.cycle.decide import Decider
from asched.cycle.inspect import AttemptOutcome, Inspection, inspect
from asched.framework.runtime.profile import PluginLoader
from asched.framework.status import Status
from asched.journal.statistics import last_seq_at
from asched.journal.store import JournalStore
from asched.state.cluster import ClusterState, PodEntry
from asched.state.records import Assigned, AttemptFailed, Rejected

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class NodeRejection(msgspec.Struct, frozen=True, rename="camel"):
    """A plugin that refuses a node."""

    plugin: str
    code: str
    reasons: tuple[str, ...]


class NodeScore(msgspec.Struct, frozen=True, rename="camel"):
    plugin: str
    raw: int
    normalized: int
    weight: int
    weighted: int


class NodeExplanation(msgspec.Struct, frozen=True, rename="camel"):
    """What was found of one node."""

    name: str
    feasible: bool
    refused_by: tuple[NodeRejection, ...] = ()
    """Every plugin that refuses the node; the one whose word counted comes first."""
    scores: tuple[NodeScore, ...] = ()
    total: int | None = None
    rank: int | None = None
    """By total, from 1; equal totals share one."""


class ReasonCount(msgspec.Struct, frozen=True, rename="camel"):
    """A reason that counted, and for how many nodes."""

    nodes: int
    plugin: str
    reason: str


class RecordedDecision(msgspec.Struct, frozen=True, rename="camel"):
    """What was decided then."""

    kind: str
    """``assigned``, ``rejected`` or ``failed``; ``none`` for a pod that was never tried."""
    seq: int = 0
    at: datetime | None = None
    attempt: int = 0
    node: str = ""
    score: int = 0
    feasible: int = 0
    ties: int = 0
    message: str = ""


class Explanation(msgspec.Struct, frozen=True, rename="camel"):
    """One attempt explained. This is the JSON form (see ``docs/explain.md``)."""

    namespace: str
    name: str
    uid: str
    profile: str
    attempts: tuple[int, ...]
    """The numbers of all attempts for this pod."""
    decision: RecordedDecision
    reproduced: bool | None
    """Whether deciding once more from the journal gave the very decision that was recorded. None
    where there is none."""
    outcome: str
    message: str
    nodes_total: int
    feasible: int
    pre_filter: tuple[NodeRejection, ...]
    """PreFilter's rejection of the pod as a whole; or what else turned it away before any node was
    looked at."""
    only_nodes: tuple[str, ...] | None
    """The nodes that PreFilter left to look at; None for all."""
    skipped_filters: tuple[str, ...]
    skipped_scores: tuple[str, ...]
    reasons: tuple[ReasonCount, ...]
    """The most frequent first."""
    nodes: tuple[NodeExplanation, ...]
    """Feasible ones by rank, then the others by the number of plugins that refuse them."""
    notes: tuple[str, ...] = ()
    unblocking: tuple[Prospect, ...] | None = None
    """For a pod that fits nowhere: the nearest nodes, and what would make each feasible. None where
    that was not looked for."""


class InSessionsError(AuditError):
    """The pod is placed by batch sessions: :func:`asched.audit.explain_job.explain_job` knows why."""

    def __init__(self, key: str, session: int) -> None:
        """``session`` is the number of the one that placed it; 0 where none has."""
        self.key = key
        self.session = session
        super().__init__(f"pod {key} is placed by batch sessions")


async def explain(
    journal: JournalStore,
    pod: PodName,
    load: PluginLoader,
    *,
    attempt: int | None = None,
    at_ns: int | None = None,
    unblock: bool = True,
) -> Explanation:
    """Explain an attempt for the newest pod of that name: the last one, or that of the number.

    With ``at_ns``, nanoseconds since the epoch, only the journal up to then is looked at: the last
    attempt until then, or what one would have found then. ``unblock`` looks for what would help a
    pod that fits nowhere.

    Raises :class:`AuditError`, :class:`InSessionsError` for a pod that no profile tries,
    :class:`~asched.journal.errors.JournalError`, ProfileError and FoldError.
    """
    key = await find_pod(journal, pod)
    end = (await journal.head()).seq if at_ns is None else await last_seq_at(journal, at_ns)
    newest = (await attempts_of(journal, key, end)).for_newest()
    if not newest:
        when = "" if at_ns is None else " until then"
        if attempt is not None:
            raise AuditError(f"no attempt {attempt}: pod {key} was never tried{when}")
        state = await state_before(journal, load, end + 1)
        found = _untried(state, key, when)
    else:
        chosen = choose_attempt(newest, attempt)
        state = await state_before(journal, load, chosen.seq)
        numbers = tuple(dict.fromkeys(tried.record.attempt for tried in newest))
        found = _explained(state, chosen.seq, chosen.record, numbers)
    if not unblock or found.outcome not in _STUCK:
        return found
    return msgspec.structs.replace(found, unblocking=_unblocking(state, load, key, found))


_STUCK = (AttemptOutcome.UNSCHEDULABLE.value, AttemptOutcome.GATED.value)


def _unblocking(
    state: ClusterState, load: PluginLoader, key: str, found: Explanation
) -> tuple[Prospect, ...]:
    refusals = {
        node.name: tuple(dict.fromkeys(refusal.plugin for refusal in node.refused_by))
        for node in found.nodes
    }
    return prospects(Hypotheticals(state, load, key), refusals)


def _untried(state: ClusterState, key: str, when: str) -> Explanation:
    entry = state.pods.get(key)
    if entry is None:
        gone = "and is gone" if not when else "and was not there"
        raise AuditError(f"pod {key} was never tried{when}, {gone}")
    if entry.node:
        raise AuditError(
            f"pod {key} was never tried{when}: it was bound to {entry.node} by another"
        )
    return _explanation(state, entry, RecordedDecision("none"), None, ())


def _explained(
    state: ClusterState, seq: int, record: AttemptRecord, numbers: tuple[int, ...]
) -> Explanation:
    entry = state.pods[record.key]
    # The state is ours alone, so deciding once more harms nobody.
    again = Decider(state).next()
    return _explanation(
        state, entry, _recorded(seq, record, state), again[:1] == (record,), numbers
    )


def _recorded(seq: int, record: AttemptRecord, state: ClusterState) -> RecordedDecision:
    at = _EPOCH + timedelta(microseconds=state.now_ns // 1000)
    match record:
        case Assigned():
            return RecordedDecision(
                "assigned", seq, at, record.attempt, record.node, record.score, record.feasible,
                record.ties,
            )  # fmt: skip
        case Rejected():
            return RecordedDecision("rejected", seq, at, record.attempt, message=record.message)
        case AttemptFailed():
            return RecordedDecision("failed", seq, at, record.attempt, message=record.message)


def _explanation(
    state: ClusterState,
    entry: PodEntry,
    decision: RecordedDecision,
    reproduced: bool | None,
    numbers: tuple[int, ...],
) -> Explanation:
    info = entry.info
    scheduler_name = info.pod.spec.scheduler_name
    profile = state.profiles.get(scheduler_name)
    if profile is None and scheduler_name in state.sessions:
        placed = decision.kind == "assigned"
        raise InSessionsError(info.key, decision.attempt if placed else 0)
    if profile is None:
        raise AuditError(f"pod {info.key} is for {scheduler_name}, which is no profile of ours")
    if profile.missing:
        raise AuditError(f"what decided cannot be asked here: {profile.missing}")
    found = inspect(state, profile, info)
    pre_filter, nodes = found.pre_filter, _nodes(found)
    held = [*found.pre_enqueue.values()]
    if pre_filter is not None and pre_filter.status is not None:
        held.append(pre_filter.status)
    if found.left_alone is not None:
        held.append(found.left_alone)
    return Explanation(
        namespace=info.namespace,
        name=info.name,
        uid=info.uid,
        profile=scheduler_name,
        attempts=numbers,
        decision=decision,
        reproduced=reproduced,
        outcome=found.outcome.value,
        message=found.message,
        nodes_total=len(found.nodes),
        feasible=len(found.feasible),
        pre_filter=tuple(map(_refusal, held)),
        only_nodes=None if pre_filter is None else pre_filter.node_names,
        skipped_filters=() if pre_filter is None else pre_filter.skipped,
        skipped_scores=found.score_skipped,
        reasons=_reasons(nodes),
        nodes=nodes,
        notes=_notes(profile.spec.percentage_of_nodes_to_score, found),
    )


def _notes(percentage: int, found: Inspection) -> tuple[str, ...]:
    notes = [f"plugin {name} was left out: its circuit was open" for name in found.left_out]
    if percentage:
        notes.append(
            f"the profile looks for {percentage} % of the nodes only; here all were looked at"
        )
    if found.awaits_extender:
        notes.append("an extender had not answered yet; what is here is without its word")
    if found.nominated_node_used:
        notes.append("the pod's nominated node passed, so no other was considered")
    return tuple(notes)


def _refusal(status: Status) -> NodeRejection:
    return NodeRejection(status.plugin, status.code.title, status.reasons)


def _reasons(nodes: tuple[NodeExplanation, ...]) -> tuple[ReasonCount, ...]:
    """Of each refused node only the plugin counts whose word came first."""
    counts = Counter(
        (node.refused_by[0].plugin, reason)
        for node in nodes
        if node.refused_by
        for reason in node.refused_by[0].reasons
    )
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return tuple(ReasonCount(number, plugin, reason) for (plugin, reason), number in ordered)


def _nodes(found: Inspection) -> tuple[NodeExplanation, ...]:
    if found.filter is None:
        return ()
    ranks = _ranks(found.total)
    feasible = [
        NodeExplanation(name, True, (), _scores(found, index), found.total[index], ranks[index])
        for index, name in enumerate(found.feasible)
    ]
    feasible.sort(key=lambda node: (node.rank or 0, node.name))
    passing = frozenset(found.feasible)
    refused = [
        NodeExplanation(name, False, _refusals(found, name))
        for name in found.nodes
        if name not in passing
    ]
    refused.sort(key=lambda node: (len(node.refused_by), node.name))
    return (*feasible, *refused)


def _ranks(totals: tuple[int, ...]) -> list[int]:
    first: dict[int, int] = {}
    for place, total in enumerate(sorted(totals, reverse=True), 1):
        first.setdefault(total, place)
    return [first[total] for total in totals]


def _scores(found: Inspection, index: int) -> tuple[NodeScore, ...]:
    return tuple(
        NodeScore(
            plugin,
            scores.raw[index],
            scores.normalized[index],
            scores.weight,
            scores.normalized[index] * scores.weight,
        )
        for plugin, scores in found.scores.items()
    )


def _refusals(found: Inspection, node: str) -> tuple[NodeRejection, ...]:
    assert found.filter is not None, "only called after the filters ran"
    counted = found.filter.nodes.get(node)
    refusals = [] if counted is None else [_refusal(counted)]
    for plugin, statuses in found.filter.plugins.items():
        if node in statuses and (counted is None or plugin != counted.plugin):
            refusals.append(_refusal(statuses[node]))
    only = found.pre_filter.node_names if found.pre_filter is not None else None
    if only is not None and node not in only and found.pre_filter is not None:
        by = ", ".join(found.pre_filter.restricted_by)
        reason = f"node(s) didn't satisfy plugin(s) [{by}]"
        refusals.insert(0, NodeRejection(by, "UnschedulableAndUnresolvable", (reason,)))
    return tuple(refusals)
