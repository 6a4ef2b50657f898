"""Explains a scheduling attempt: recomputes it from the journal by node and plugin."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

import msgspec

from asched.audit.decision_costs import costs_of_explained
from asched.audit.devices import allocated_devices, released_claim, request_explanation
from asched.audit.explanation import (
    Explanation,
    NodeExplanation,
    NodeRejection,
    NodeScore,
    ReasonCount,
    RecordedDecision,
)
from asched.audit.group_cycles import cycle_of, decisions_on, lost_reservation
from asched.audit.hypotheticals import HypotheticalState
from asched.audit.lookup import (
    AuditError,
    PodName,
    RecordedAttempt,
    attempts_of,
    choose_attempt,
    find_pod,
    fold_before,
)
from asched.audit.pod_group.examine import group_of_pod
from asched.audit.preemption import explain_preemption
from asched.audit.timeline import time_of
from asched.audit.unblock import NodeUnblocking, unblocking_changes
from asched.cycle.inspect import AttemptOutcome, Inspection, inspect
from asched.dra.diagnosis import NodeDiagnosis
from asched.framework.pod_info import PodInfo
from asched.framework.runtime.profile import PluginLoader, Profile
from asched.framework.status import Status
from asched.journal.statistics import last_seq_at
from asched.journal.store import JournalStore
from asched.plugins.dynamic_resources import DynamicResources
from asched.pricing.prices import Prices
from asched.state.cluster import ClusterState, PodEntry
from asched.state.fold import Fold
from asched.state.records import Assigned, AttemptFailed, Rejected


class InSessionsError(AuditError):
    """Batch sessions place the pod; use :func:`asched.audit.explain_job.explain_job`."""

    def __init__(self, key: str, session: int) -> None:
        """``session`` is the number of the session that placed the pod, or 0."""
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
    last_seq: int | None = None,
    unblock: bool = True,
    prices: Prices | None = None,
) -> Explanation:
    """Explains the last attempt, or attempt number ``attempt``, for the newest pod of that name.

    ``at_ns``, nanoseconds since the epoch, ignores later records, and so does ``last_seq``, which
    has precedence. A pod without an attempt is evaluated on the state at that time. ``unblock``
    computes :attr:`Explanation.unblocking`, ``prices`` :attr:`Explanation.costs`.

    Raises :class:`AuditError`, :class:`InSessionsError` for a pod that batch sessions serve,
    :class:`~asched.journal.errors.JournalError`, ProfileError.
    """
    end = (await journal.head()).seq if at_ns is None else await last_seq_at(journal, at_ns)
    end = end if last_seq is None else last_seq
    until = "" if at_ns is None and last_seq is None else " up to that time"
    prepared = await prepare_explanation(journal, pod, load, attempt=attempt, end=end, until=until)
    return explanation_of(prepared, unblock=unblock, prices=prices)


class PreparedExplanation(NamedTuple):
    """What an explanation reads from the journal."""

    fold: Fold
    """Of the records before the attempt; without one, of all records until the end. A private copy:
    Permit plugins may add answers to the state."""
    seq: int
    """The last record of the fold."""
    key: str
    load: PluginLoader
    until: str
    attempt: RecordedAttempt | None
    attempts: tuple[int, ...]
    cycle: str = ""
    """The group cycle of the attempt in one line; empty without one."""
    cycle_fold: Fold | None = None
    """Of the records before the cycle."""
    begin_seq: int = 0
    """The last record before the attempt or the cycle."""
    lost_reservation: bool = False
    """Whether the pod lost what the attempt reserved for it."""


async def prepare_explanation(
    journal: JournalStore,
    pod: PodName,
    load: PluginLoader,
    *,
    attempt: int | None = None,
    end: int,
    until: str = "",
) -> PreparedExplanation:
    """Reads and folds what :func:`explanation_of` needs. ``end`` is the last record that counts,
    ``until`` a phrase about it for errors. Raises as :func:`explain`."""
    key = await find_pod(journal, pod)
    newest = (await attempts_of(journal, key, end)).for_newest()
    if not newest:
        if attempt is not None:
            raise AuditError(f"no attempt {attempt}: pod {key} has no attempts{until}")
        fold = await fold_before(journal, load, end + 1)
        return PreparedExplanation(
            fold=fold,
            seq=end,
            key=key,
            load=load,
            until=until,
            attempt=None,
            attempts=(),
            begin_seq=end,
        )
    chosen = choose_attempt(newest, attempt)
    fold = await fold_before(journal, load, chosen.seq)
    numbers = tuple(dict.fromkeys(made.record.attempt for made in newest))
    assigned = isinstance(chosen.record, Assigned)
    prepared = PreparedExplanation(
        fold=fold,
        seq=chosen.seq - 1,
        key=key,
        load=load,
        until=until,
        attempt=chosen,
        attempts=numbers,
        begin_seq=chosen.seq - 1,
        lost_reservation=assigned and await lost_reservation(journal, key, chosen.seq, end),
    )
    entry = fold.state.pods[chosen.record.key]
    cycle = await cycle_of(journal, entry.info.pod, chosen.seq)
    if not chosen.record.grouped or cycle is None:
        return prepared
    # The members before it are assumed in ``fold``: the whole cycle is repeated.
    before = await fold_before(journal, load, cycle.begin_seq)
    return prepared._replace(cycle=cycle.summary, cycle_fold=before, begin_seq=cycle.begin_seq - 1)


def explanation_of(
    prepared: PreparedExplanation,
    *,
    unblock: bool = True,
    scores: bool = True,
    prices: Prices | None = None,
) -> Explanation:
    """The explanation, which changes the prepared states. Without ``scores``, feasible nodes have
    none, and ``prices`` has no effect. Raises :class:`AuditError`, :class:`InSessionsError`."""
    state, chosen, before = prepared.fold.state, prepared.attempt, prepared.cycle_fold
    if chosen is None:
        found = _without_attempts(state, prepared.key, prepared.until, scores=scores)
    elif before is not None:
        same = chosen.record in decisions_on(before.state)
        found = _recomputed(state, chosen, prepared.attempts, same, scores=scores)
        found = msgspec.structs.replace(found, notes=(*found.notes, prepared.cycle))
    else:
        same = decisions_on(state)[:1] == (chosen.record,)
        found = _recomputed(state, chosen, prepared.attempts, same, scores=scores)
    if prices is not None and scores:
        costs = costs_of_explained(found, state, prices)
        found = msgspec.structs.replace(found, costs=costs)
    if found.decision.kind != "assigned" or prepared.lost_reservation:
        start = state if before is None else before.state
        group = group_of_pod(start, prepared.load, prepared.begin_seq, prepared.key)
        found = msgspec.structs.replace(found, group=group)
    if not unblock or found.outcome not in _PENDING_OUTCOMES:
        return found
    unblocking = _unblocking(state, prepared.load, prepared.key, found)
    return msgspec.structs.replace(found, unblocking=unblocking)


def explain_pending(
    state: ClusterState, load: PluginLoader, key: str, *, unblock: bool = True
) -> Explanation:
    """Explains what an attempt for a pod of the state would decide now. ``unblock`` as for
    :func:`explain`.

    The state must be a private copy. Raises :class:`AuditError`, :class:`InSessionsError`.
    """
    found = _without_attempts(state, key, "")
    if not unblock or found.outcome not in _PENDING_OUTCOMES:
        return found
    return msgspec.structs.replace(found, unblocking=_unblocking(state, load, key, found))


_PENDING_OUTCOMES = (AttemptOutcome.UNSCHEDULABLE.value, AttemptOutcome.GATED.value)


def _unblocking(
    state: ClusterState, load: PluginLoader, key: str, found: Explanation
) -> tuple[NodeUnblocking, ...]:
    rejected_by = {
        node.name: tuple(dict.fromkeys(rejection.plugin for rejection in node.rejected_by))
        for node in found.nodes
    }
    findings = {
        node.name: _device_findings(node)
        for node in found.nodes
        if node.requests or node.device_problems
    }
    return unblocking_changes(HypotheticalState(state, load, key), rejected_by, findings)


def _device_findings(node: NodeExplanation) -> bytes:
    """Equal for nodes that are rejected for the same reasons, with equal numbers of devices."""
    requests = [msgspec.structs.replace(request, users=()) for request in node.requests]
    return msgspec.json.encode((node.rejected_by, requests, node.device_problems))


def _without_attempts(
    state: ClusterState, key: str, until: str, *, scores: bool = True
) -> Explanation:
    entry = state.pods.get(key)
    if entry is None:
        gone = "did not exist" if until else "is gone"
        raise AuditError(f"pod {key} has no attempts{until} and {gone}")
    if entry.node:
        raise AuditError(
            f"pod {key} has no attempts{until}: another scheduler bound it to {entry.node}"
        )
    return _explanation(state, entry, RecordedDecision("none"), None, (), scores=scores)


def _recomputed(
    state: ClusterState,
    attempt: RecordedAttempt,
    numbers: tuple[int, ...],
    same: bool,
    *,
    scores: bool,
) -> Explanation:
    record, recorded = attempt.record, _recorded(attempt, state)
    entry = state.pods[record.key]
    found = _explanation(state, entry, recorded, same, numbers, scores=scores)
    if not isinstance(record, Rejected) or not record.nominated_node:
        return found
    profile = state.profiles[found.profile]
    preemption = explain_preemption(state, profile, entry.info, record.nominated_node)
    return msgspec.structs.replace(found, preemption=preemption)


def _recorded(attempt: RecordedAttempt, state: ClusterState) -> RecordedDecision:
    record = attempt.record
    match record:
        case Assigned():
            decision = RecordedDecision(
                "assigned",
                node=record.node,
                score=record.score,
                feasible=record.feasible_nodes,
                ties=record.ties,
                devices=allocated_devices(record),
            )
        case Rejected():
            released = released_claim(record)
            decision = RecordedDecision("rejected", message=record.message, released_claim=released)
        case AttemptFailed():
            decision = RecordedDecision("failed", message=record.message)
    return msgspec.structs.replace(
        decision, seq=attempt.seq, at=time_of(state.date_ns), attempt=record.attempt
    )


def _explanation(
    state: ClusterState,
    entry: PodEntry,
    decision: RecordedDecision,
    reproduced: bool | None,
    numbers: tuple[int, ...],
    *,
    scores: bool,
) -> Explanation:
    info = entry.info
    scheduler_name = info.pod.spec.scheduler_name
    profile = state.profiles.get(scheduler_name)
    if profile is None and scheduler_name in state.sessions:
        placed = decision.kind == "assigned"
        raise InSessionsError(info.key, decision.attempt if placed else 0)
    if profile is None:
        raise AuditError(f"pod {info.key} names scheduler {scheduler_name}, which has no profile")
    if profile.missing:
        raise AuditError(f"the recorded profile cannot run here: {profile.missing}")
    found = inspect(state, profile, info)
    pre_filter = found.pre_filter
    nodes = _with_requests(profile, info, _nodes(found, scores=scores))
    rejections = [*found.pre_enqueue.values()]
    if pre_filter is not None and pre_filter.status is not None:
        rejections.append(pre_filter.status)
    if found.refused is not None:
        rejections.append(found.refused)
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
        pre_filter=tuple(map(_rejection, rejections)),
        only_nodes=None if pre_filter is None else pre_filter.node_names,
        skipped_filters=() if pre_filter is None else pre_filter.skipped,
        skipped_scores=found.score_skipped,
        reasons=_reasons(nodes),
        nodes=nodes,
        notes=_notes(profile.spec.percentage_of_nodes_to_score, found),
    )


def _notes(percentage: int, found: Inspection) -> tuple[str, ...]:
    notes = [f"plugin {name} was skipped: its circuit was open" for name in found.left_out]
    if percentage:
        notes.append(
            f"the profile examines only {percentage} % of the nodes; this explanation covers all"
        )
    if found.awaits_extender:
        notes.append("an extender had not answered yet; its answer is not included")
    if found.nominated_node_used:
        notes.append("the pod's nominated node passed, so no other node was considered")
    return tuple(notes)


def _rejection(status: Status) -> NodeRejection:
    return NodeRejection(status.plugin, status.code.title, status.reasons)


def _reasons(nodes: tuple[NodeExplanation, ...]) -> tuple[ReasonCount, ...]:
    """Counts only the decisive rejection of each node."""
    counts = Counter(
        (node.rejected_by[0].plugin, reason)
        for node in nodes
        if node.rejected_by
        for reason in node.rejected_by[0].reasons
    )
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return tuple(ReasonCount(number, plugin, reason) for (plugin, reason), number in ordered)


def _nodes(found: Inspection, *, scores: bool) -> tuple[NodeExplanation, ...]:
    if found.filter is None:
        return ()
    feasible = _feasible(found) if scores else [NodeExplanation(n, True) for n in found.feasible]
    passing = frozenset(found.feasible)
    rejected = [
        NodeExplanation(name, False, _rejections(found, name))
        for name in found.nodes
        if name not in passing
    ]
    rejected.sort(key=lambda node: (len(node.rejected_by), node.name))
    return (*feasible, *rejected)


def _feasible(found: Inspection) -> list[NodeExplanation]:
    """The feasible nodes, the best first."""
    ranks = _ranks(found.total)
    nodes = [
        NodeExplanation(name, True, (), _scores(found, index), found.total[index], ranks[index])
        for index, name in enumerate(found.feasible)
    ]
    return sorted(nodes, key=lambda node: (node.rank or 0, node.name))


def _with_requests(
    profile: Profile, info: PodInfo, nodes: tuple[NodeExplanation, ...]
) -> tuple[NodeExplanation, ...]:
    """The nodes with what requests find there, if devices are a reason of the rejection."""
    plugin = profile.plugins.get(DynamicResources.name)
    if not isinstance(plugin, DynamicResources) or not any(map(_lacks_devices, nodes)):
        return nodes
    diagnosis = plugin.diagnoses(info)
    return tuple(
        _with_diagnosis(node, diagnosis(node.name)) if _lacks_devices(node) else node
        for node in nodes
    )


def _lacks_devices(node: NodeExplanation) -> bool:
    return any(rejection.plugin == DynamicResources.name for rejection in node.rejected_by)


def _with_diagnosis(node: NodeExplanation, found: NodeDiagnosis | None) -> NodeExplanation:
    if found is None:
        return node
    pools = (f"pool {each.pool}: {each.problem}" for each in found.pools if each.problem)
    return msgspec.structs.replace(
        node,
        requests=tuple(map(request_explanation, found.requests)),
        device_problems=(*pools, *found.problems),
    )


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


def _rejections(found: Inspection, node: str) -> tuple[NodeRejection, ...]:
    assert found.filter is not None, "only called after the filters ran"
    decisive = found.filter.nodes.get(node)
    rejections = [] if decisive is None else [_rejection(decisive)]
    for plugin, statuses in found.filter.plugins.items():
        if node in statuses and (decisive is None or plugin != decisive.plugin):
            rejections.append(_rejection(statuses[node]))
    pre_filter = found.pre_filter
    allowed = None if pre_filter is None else pre_filter.node_names
    if pre_filter is not None and allowed is not None and node not in allowed:
        by = ", ".join(pre_filter.restricted_by)
        reason = f"node(s) didn't satisfy plugin(s) [{by}]"
        rejections.insert(0, NodeRejection(by, "UnschedulableAndUnresolvable", (reason,)))
    return tuple(rejections)
