"""The tools: arguments and answers as structs, and the queries behind them.

Every answer is one that a command gives with ``-o json``, without what exceeds a limit. Names and
messages in answers come from the cluster and are data.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Annotated, Any, Final, NamedTuple

import msgspec
from msgspec import Meta

from asched.audit.entries import PodTimeline
from asched.audit.explain import InSessionsError, explain
from asched.audit.explain_job import JobExplanation, explain_job
from asched.audit.explanation import Explanation, NodeExplanation
from asched.audit.history import NodeTimeline, Owner, Period, node_timeline, timelines
from asched.audit.history import timelines_of_owner as of_owner
from asched.audit.lookup import AuditError, PodName
from asched.audit.pod_group.explain import GroupQuestion, explain_pod_group, parse_group
from asched.audit.pod_group.forms import PodGroupExplanation
from asched.audit.times import TIMES, parse_time_ns
from asched.audit.visibility import AnswerScope
from asched.config.registry import PluginRegistry
from asched.fit.answer import FitQuery, fit
from asched.fit.forms import FitAnswer
from asched.fit.manifest import object_of
from asched.journal.statistics import last_seq_at
from asched.journal.store import JournalStore
from asched.mcp.what_if import WhatIfAnswer, WhatIfQuestion, what_if

MAX_NODES: Final = 100
MAX_ENTRIES: Final = 1000
_At = Annotated[str, Meta(description=f"The state at this time: {TIMES}. Default: now.")]
_Pod = Annotated[str, Meta(description="NAME or NAMESPACE/NAME.", max_length=600)]
_Nodes = Annotated[
    int, Meta(description="Nodes in the answer at most, the best first.", ge=0, le=MAX_NODES)
]
_Since = Annotated[str, Meta(description=f"Begin of the period: {TIMES}.")]
_Until = Annotated[str, Meta(description=f"End of the period: {TIMES}.")]


class ExplainQuestion(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    pod: _Pod = ""
    group: Annotated[str, Meta(description="Instead: NAMESPACE/NAME of a PodGroup.")] = ""
    attempt: Annotated[int, Meta(description="Number of the attempt.", ge=1)] | None = None
    at: _At = ""
    max_nodes: _Nodes = 10


class ExplainAnswer(msgspec.Struct, frozen=True, rename="camel"):
    """One of them."""

    explanation: Explanation | None = None
    """The attempt, for a pod of a profile."""
    job: JobExplanation | None = None
    """The job, for a pod that batch sessions place."""
    omitted_nodes: int = 0
    group: PodGroupExplanation | None = None
    """The PodGroup, if one was asked for."""


class DecisionQuestion(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    pod: _Pod
    nodes: Annotated[list[str], Meta(description="Nodes to compare.", min_length=1, max_length=20)]
    attempt: Annotated[int, Meta(description="Number of the attempt.", ge=1)] | None = None
    at: _At = ""


class DecisionAnswer(msgspec.Struct, frozen=True, rename="camel"):
    winner: str
    """The node of the decision; empty if it is a rejection."""
    reproduced: bool | None
    """Whether the recomputed decision equals the recorded one."""
    nodes: tuple[NodeExplanation, ...]
    """The winner, and the nodes of the question: what each plugin answers."""


class HistoryQuestion(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    pod: Annotated[str, Meta(description="NAME or NAMESPACE/NAME of a pod.")] = ""
    owner: Annotated[str, Meta(description="Instead: KIND/NAME of a controller.")] = ""
    node: Annotated[str, Meta(description="Instead: the name of a node.")] = ""
    since: _Since = ""
    until: _Until = ""
    max_entries: Annotated[
        int, Meta(description="Entries at most, the newest.", ge=1, le=MAX_ENTRIES)
    ] = 200


class HistoryAnswer(msgspec.Struct, frozen=True, rename="camel"):
    pods: tuple[PodTimeline, ...] = ()
    node: NodeTimeline | None = None
    omitted_entries: int = 0


class FitQuestion(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    manifest: Annotated[
        dict[str, Any],
        Meta(
            description="A Pod, a workload that creates pods (Deployment, StatefulSet, Job ...), or"
            " a v1 List of objects, as a JSON object."
        ),
    ]
    at: _At = ""
    max_nodes: _Nodes = 10


class ToolContext(NamedTuple):
    """What a query uses."""

    journal: JournalStore
    registry: PluginRegistry


class NeededRight(NamedTuple):
    """What a reader must be allowed to see for an answer."""

    scope: AnswerScope
    namespace: str | None = None
    """For :attr:`AnswerScope.NAMESPACE`; empty if the question does not name it."""


class JournalTool(NamedTuple):
    """A question that programs can ask."""

    description: str
    question: type[msgspec.Struct]
    answer: type[msgspec.Struct]
    query: Callable[[ToolContext, Any], Awaitable[msgspec.Struct]]
    needs: Callable[[Any], NeededRight]
    shortened: Callable[[Any, Any], msgspec.Struct] = lambda found, asked: found
    """The answer within the limits of the question, from what the reader may see."""


async def _explain(context: ToolContext, asked: ExplainQuestion) -> ExplainAnswer:
    journal, load, at_ns = context.journal, context.registry.load, time_ns(asked.at)
    if asked.group:
        key, about = parse_group(asked.group), GroupQuestion(asked.attempt, at_ns)
        return ExplainAnswer(group=await explain_pod_group(journal, load, key, about))
    name = PodName.parse(asked.pod)
    try:
        found = await explain(journal, name, load, attempt=asked.attempt, at_ns=at_ns)
    except InSessionsError as placed:
        session = asked.attempt or placed.session or None
        pod = PodName.parse(placed.key)
        return ExplainAnswer(
            job=await explain_job(journal, pod, load, session=session, at_ns=at_ns)
        )
    return ExplainAnswer(found)


def _shorter(found: ExplainAnswer, asked: ExplainQuestion) -> ExplainAnswer:
    if found.explanation is None:
        return found
    nodes = found.explanation.nodes
    kept = msgspec.structs.replace(found.explanation, nodes=nodes[: asked.max_nodes])
    return ExplainAnswer(kept, omitted_nodes=len(nodes) - len(kept.nodes))


def _explain_right(asked: ExplainQuestion) -> NeededRight:
    if bool(asked.pod) == bool(asked.group):
        raise AuditError("give one of pod and group")
    if asked.group:
        return NeededRight(AnswerScope.NAMESPACE, parse_group(asked.group).partition("/")[0])
    return NeededRight(AnswerScope.NAMESPACE, PodName.parse(asked.pod).namespace)


def _decision_right(asked: DecisionQuestion) -> NeededRight:
    return NeededRight(AnswerScope.NAMESPACE, PodName.parse(asked.pod).namespace)


async def _decision(context: ToolContext, asked: DecisionQuestion) -> DecisionAnswer:
    name, load = PodName.parse(asked.pod), context.registry.load
    found = await explain(
        context.journal,
        name,
        load,
        attempt=asked.attempt,
        at_ns=time_ns(asked.at),
        unblock=False,
    )
    known = {node.name: node for node in found.nodes}
    unknown = [node for node in asked.nodes if node not in known]
    if unknown:
        raise AuditError(f"no node {unknown[0]!r} in this attempt; it has {len(known)} nodes")
    wanted = dict.fromkeys([found.decision.node, *asked.nodes])
    nodes = tuple(known[node] for node in wanted if node in known)
    return DecisionAnswer(found.decision.node, found.reproduced, nodes)


async def _history(context: ToolContext, asked: HistoryQuestion) -> HistoryAnswer:
    since_ns, until_ns = time_ns(asked.since) or 0, time_ns(asked.until)
    if until_ns is not None and until_ns < since_ns:
        raise AuditError("until is before since")
    within, journal, load = Period(since_ns, until_ns), context.journal, context.registry.load
    if asked.node:
        node = await node_timeline(journal, asked.node, load, within)
        if node is None:
            raise AuditError(f"node {asked.node} is not in the journal")
        return HistoryAnswer(node=node)
    if asked.owner:
        pods = await of_owner(journal, Owner.parse(asked.owner), load, within)
    else:
        pods = await timelines(journal, PodName.parse(asked.pod), load, within)
    return HistoryAnswer(tuple(pods))


def _history_right(asked: HistoryQuestion) -> NeededRight:
    if bool(asked.pod) + bool(asked.owner) + bool(asked.node) != 1:
        raise AuditError("give one of pod, owner and node")
    if asked.node:
        return NeededRight(AnswerScope.NODES)
    if asked.owner:
        return NeededRight(AnswerScope.VISIBLE)
    return NeededRight(AnswerScope.NAMESPACE, PodName.parse(asked.pod).namespace)


def _newest(found: HistoryAnswer, asked: HistoryQuestion) -> HistoryAnswer:
    """The newest entries."""
    most = asked.max_entries
    if found.node is not None:
        kept = found.node.entries[-most:]
        omitted = len(found.node.entries) - len(kept)
        return HistoryAnswer((), msgspec.structs.replace(found.node, entries=kept), omitted)
    if asked.owner and not found.pods:
        owner = Owner.parse(asked.owner)
        raise AuditError(f"no pod of {owner.kind}/{owner.name} is in the journal")
    seqs = sorted((entry.seq for pod in found.pods for entry in pod.entries), reverse=True)
    first = seqs[min(most, len(seqs)) - 1] if seqs else 0
    pods = []
    for pod in found.pods:
        entries = [entry for entry in pod.entries if entry.seq >= first]
        if entries or not pod.entries:
            pods.append(msgspec.structs.replace(pod, entries=entries))
    return HistoryAnswer(tuple(pods), None, sum(seq < first for seq in seqs))


async def _fit(context: ToolContext, asked: FitQuestion) -> FitAnswer:
    query, load = FitQuery(object_of(asked.manifest, "manifest")), context.registry.load
    return await fit(context.journal, query, load, at_ns=time_ns(asked.at))


def _fit_right(asked: FitQuestion) -> NeededRight:
    objects = object_of(asked.manifest, "manifest")
    namespaces = {str(each.mapping("metadata").get("namespace") or "default") for each in objects}
    if len(namespaces) == 1:
        return NeededRight(AnswerScope.NAMESPACE, *namespaces)
    return NeededRight(AnswerScope.CLUSTER)


def _best(found: FitAnswer, asked: FitQuestion) -> FitAnswer:
    nodes = found.explanation.nodes[: asked.max_nodes]
    explanation = msgspec.structs.replace(found.explanation, nodes=nodes)
    return msgspec.structs.replace(found, explanation=explanation)


async def _what_if(context: ToolContext, asked: WhatIfQuestion) -> WhatIfAnswer:
    within = Period(time_ns(asked.since) or 0, time_ns(asked.until))
    first = await last_seq_at(context.journal, within.since_ns) if within.since_ns else 0
    last = (await context.journal.head()).seq
    if within.until_ns is not None:
        last = await last_seq_at(context.journal, within.until_ns)
    return await what_if(context.journal, context.registry, asked, (within, last - first))


def time_ns(text: str) -> int | None:
    """Raises TimeTextError."""
    return parse_time_ns(text) if text else None


TOOLS: Final[Mapping[str, JournalTool]] = {
    "explain": JournalTool(
        "Why a pod is or is not running: the decision of its last (or another) scheduling attempt,"
        " recomputed from the journal, with every plugin's answer on the nodes, the reasons of"
        " rejections, and verified changes that would unblock it. For a PodGroup: its dominant"
        " reason, what each topology domain lacks, and verified changes that admit it.",
        ExplainQuestion,
        ExplainAnswer,
        _explain,
        _explain_right,
        _shorter,
    ),
    "decision": JournalTool(
        "Why a pod got its node and not another: scores and rejections of all plugins on the node"
        " of the decision and on the nodes that are asked for.",
        DecisionQuestion,
        DecisionAnswer,
        _decision,
        _decision_right,
    ),
    "history": JournalTool(
        "What happened to a pod, to all pods of an owner, or on a node, with times and causes.",
        HistoryQuestion,
        HistoryAnswer,
        _history,
        _history_right,
        _newest,
    ),
    "fit": JournalTool(
        "Whether a pod or workload that does not exist would run now, or at a past time: on which"
        " nodes, which pods it would evict, or what blocks it. Nothing is created.",
        FitQuestion,
        FitAnswer,
        _fit,
        _fit_right,
        _best,
    ),
    "what_if": JournalTool(
        "What would have happened in a recorded period with other weights or plugins: the workload"
        " is simulated with the recorded and with the changed configuration, and compared.",
        WhatIfQuestion,
        WhatIfAnswer,
        _what_if,
        lambda _: NeededRight(AnswerScope.CLUSTER),
    ),
}
