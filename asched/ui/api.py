"""The HTTP API: questions and answers at ``/api/v1``, all with GET and without side effects.

:func:`answer` gives the same answer to a page as to a program.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import msgspec
from aiohttp import web

from asched.audit.plugin_times import PluginTimes
from asched.audit.shadow import RecordedShadow
from asched.audit.visibility import AnswerScope
from asched.model.quantity import NS_PER_S
from asched.ui.caching import tagged
from asched.ui.cluster import (
    ClusterDifference,
    ClusterPicture,
    NodeDetail,
    difference,
    node_detail,
    picture,
    snapshot,
)
from asched.ui.errors import ErrorAnswer, RequestError
from asched.ui.group_api import GROUP_ROUTES
from asched.ui.index import MAX_RESULTS, NamespaceList, SearchQuery, SearchResults
from asched.ui.journal_progress import NOW
from asched.ui.journal_reader import JournalReader
from asched.ui.journal_view import JournalView
from asched.ui.pods import (
    DecisionList,
    DecisionMatrix,
    TimelineAnswer,
    decision_list,
    decision_matrix,
    pod_timeline,
)
from asched.ui.questions import MOMENT, ApiRoute, Parameter, Question
from asched.ui.reports import (
    JournalReport,
    PluginReport,
    journal_report,
    measured_plugins,
    past_plugins,
    plugin_report,
)
from asched.ui.series import Overview
from asched.ui.shadow import ShadowDifference, shadow_difference, shadow_report
from asched.ui.tables import csv_of
from asched.ui.why import PodSummary, pod_summary

T = TypeVar("T")


@dataclass(frozen=True)
class HtmlPages:
    """What renders pages that the application itself needs."""

    error: Callable[[web.Request, ErrorAnswer], web.Response]
    login: Callable[[web.Request, str, int], web.Response]
    """A form that posts ``token`` and ``next`` to ``/login``, with a message and HTTP status."""
    page: Callable[[web.Request, str, Mapping[str, Any]], web.Response]
    """The page of a template with these values."""


VIEW: Final = web.AppKey("view", JournalView)
HTML_PAGES: Final = web.AppKey("html_pages", HtmlPages)
PREFIX: Final = "/api/v1"
_NO_END_S: Final = 1 << 40


async def _search(reader: JournalReader, question: Question) -> SearchResults:
    text, limit = question.text("q"), question.number("limit", most=MAX_RESULTS) or 50
    live = await reader.newest()
    wanted = SearchQuery(text, limit, question.visible)
    return reader.index.search(wanted, live.seq, live.fold.state)


async def _namespaces(reader: JournalReader, question: Question) -> NamespaceList:
    live = await reader.newest()
    uses = reader.index.namespace_uses(question.visible, live.fold.state)
    return NamespaceList(live.seq, uses)


async def _pod(reader: JournalReader, question: Question) -> PodSummary:
    return await pod_summary(reader, question.pod, question.moment())


async def _decisions(reader: JournalReader, question: Question) -> DecisionList:
    return await decision_list(reader, question.pod, question.moment())


async def _decision(reader: JournalReader, question: Question) -> DecisionMatrix:
    attempt, nodes = question.number("attempt"), question.text("nodes")
    if nodes not in ("", "devices"):
        raise RequestError(f"nodes: {nodes[:40]!r} is not devices")
    return await decision_matrix(
        reader, question.pod, attempt, question.moment(), only_devices=bool(nodes)
    )


async def _timeline(reader: JournalReader, question: Question) -> TimelineAnswer:
    return await pod_timeline(reader, question.pod, question.moment(), question.number("limit"))


async def _cluster(reader: JournalReader, question: Question) -> ClusterPicture:
    seq = await reader.seq_of(question.moment())
    indexed = reader.picture(seq)
    return await reader.at(seq, picture) if indexed is None else indexed


async def _node(reader: JournalReader, question: Question) -> NodeDetail:
    seq = await reader.seq_of(question.moment())
    name = question.path["node"]
    indexed = reader.node(seq, name)
    return await reader.at(seq, node_detail, name) if indexed is None else indexed


async def _difference(reader: JournalReader, question: Question) -> ClusterDifference:
    before, after = question.moment("from", "fromSeq"), question.moment("to", "toSeq")
    if before == NOW:
        raise RequestError("from: missing; give from or fromSeq")
    seqs = await reader.seq_of(before), await reader.seq_of(after)
    return difference(*await asyncio.gather(*(reader.at(seq, snapshot) for seq in seqs)))


async def _overview(reader: JournalReader, question: Question) -> Overview:
    since_ns, until_ns = question.time_ns("from"), question.time_ns("to")
    live = reader.live
    since_s = (since_ns or 0) // NS_PER_S
    until_s = _NO_END_S if until_ns is None else until_ns // NS_PER_S
    if until_s < since_s:
        raise RequestError("to: before from")
    reader.check_indexed()
    state = None if live is None else live.fold.state
    return reader.index.series.overview(state, reader.indexed_seq, since_s, until_s)


async def _journal(reader: JournalReader, question: Question) -> JournalReport:
    return await journal_report(reader)


async def _plugins(reader: JournalReader, question: Question) -> PluginReport:
    registry, failures = reader.registry, reader.index.plugin_failures
    seq = await reader.seq_of(question.moment())
    indexed = reader.plugins(seq)
    if indexed is not None:
        return plugin_report(*indexed, seq, registry, failures)
    return await reader.call(past_plugins, seq, tuple(sorted(failures.items())))


async def _plugin_times(reader: JournalReader, question: Question) -> PluginTimes:
    seq = await reader.seq_of(question.moment())
    return await reader.call(measured_plugins, seq)


async def _shadow(reader: JournalReader, question: Question) -> RecordedShadow:
    cause, pod = question.text("cause"), question.text("pod")
    return await shadow_report(reader, question.moment(), cause, pod)


async def _shadow_difference(reader: JournalReader, question: Question) -> ShadowDifference:
    return await shadow_difference(reader, question.number("record") or 0)


_SEQ: Final = ("seq",)
_POD: Final = "/pods/{namespace}/{name}"

ROUTES: Final[Mapping[str, ApiRoute]] = {
    "search": ApiRoute(
        "/search",
        "Pods, owners, gangs and nodes with a text in their name.",
        SearchResults,
        _search,
        parameters=(Parameter("q", "The text."), Parameter("limit", "Results at most.", "integer")),
        rows=lambda found: found.results,
        scope=AnswerScope.VISIBLE,
    ),
    "namespaces": ApiRoute(
        "/namespaces",
        "The namespaces that the reader may see.",
        NamespaceList,
        _namespaces,
        rows=lambda found: found.namespaces,
        scope=AnswerScope.VISIBLE,
    ),
    "pod": ApiRoute(
        _POD,
        "Why a pod is or is not running.",
        PodSummary,
        _pod,
        parameters=MOMENT,
        scope=AnswerScope.NAMESPACE,
    ),
    "decisions": ApiRoute(
        f"{_POD}/decisions",
        "The attempts for a pod.",
        DecisionList,
        _decisions,
        parameters=MOMENT,
        rows=lambda found: found.decisions,
        scope=AnswerScope.NAMESPACE,
        fixed_by=_SEQ,
    ),
    "decision": ApiRoute(
        f"{_POD}/decisions/{{attempt}}",
        "One decision: every plugin on every node.",
        DecisionMatrix,
        _decision,
        parameters=(
            Parameter("nodes", "`devices`: only nodes with findings about devices."),
            *MOMENT,
        ),
        rows=lambda found: found.explanation.nodes,
        scope=AnswerScope.NAMESPACE,
        fixed_by=_SEQ,
    ),
    "timeline": ApiRoute(
        f"{_POD}/timeline",
        "What happened to a pod.",
        TimelineAnswer,
        _timeline,
        parameters=(Parameter("limit", "The newest entries of each pod.", "integer"), *MOMENT),
        rows=lambda found: [entry for pod in found.pods for entry in pod.entries],
        scope=AnswerScope.NAMESPACE,
        fixed_by=_SEQ,
    ),
    "cluster": ApiRoute(
        "/cluster",
        "All nodes.",
        ClusterPicture,
        _cluster,
        parameters=MOMENT,
        rows=lambda found: found.nodes,
        scope=AnswerScope.NODES,
        fixed_by=_SEQ,
    ),
    "node": ApiRoute(
        "/cluster/nodes/{node}",
        "A node with its pods.",
        NodeDetail,
        _node,
        parameters=MOMENT,
        rows=lambda found: found.pods,
        scope=AnswerScope.NODES,
        fixed_by=_SEQ,
    ),
    "difference": ApiRoute(
        "/cluster/difference",
        "What differs between two moments.",
        ClusterDifference,
        _difference,
        parameters=(
            Parameter("from", "The first time."),
            Parameter("fromSeq", "The first record, instead of from.", "integer"),
            Parameter("to", "The second time. Default: now."),
            Parameter("toSeq", "The second record, instead of to.", "integer"),
        ),
        rows=lambda found: found.placements,
        scope=AnswerScope.NODES,
        fixed_by=("fromSeq", "toSeq"),
    ),
    "overview": ApiRoute(
        "/overview",
        "Counts, waits and queues over time.",
        Overview,
        _overview,
        parameters=(
            Parameter("from", "The beginning. Default: that of the journal."),
            Parameter("to", "The end. Default: that of the journal."),
        ),
        rows=lambda found: found.points,
        scope=AnswerScope.CLUSTER,
    ),
    "journal": ApiRoute(
        "/journal",
        "Head, verification, sizes and archive.",
        JournalReport,
        _journal,
        scope=AnswerScope.CLUSTER,
    ),
    "plugins": ApiRoute(
        "/plugins",
        "The plugins of all profiles.",
        PluginReport,
        _plugins,
        parameters=MOMENT,
        rows=lambda found: found.plugins,
        scope=AnswerScope.CLUSTER,
    ),
    "plugin_times": ApiRoute(
        "/plugins/times",
        "How long calls of plugins take when the last attempts are decided again.",
        PluginTimes,
        _plugin_times,
        parameters=MOMENT,
        rows=lambda found: found.times,
        scope=AnswerScope.CLUSTER,
        fixed_by=_SEQ,
    ),
    "shadow": ApiRoute(
        "/shadow",
        "How often another scheduler agrees, and why it does not.",
        RecordedShadow,
        _shadow,
        parameters=(
            *MOMENT,
            Parameter("cause", "Only disagreements with this cause; `open` for none yet."),
            Parameter("pod", "Only disagreements about pods with this text in their name."),
        ),
        rows=lambda found: found.differences,
        scope=AnswerScope.CLUSTER,
    ),
    "shadowDifference": ApiRoute(
        "/shadow/{record}",
        "One disagreement: both choices with their scores.",
        ShadowDifference,
        _shadow_difference,
        rows=lambda found: found.difference.nodes,
        scope=AnswerScope.CLUSTER,
    ),
    **GROUP_ROUTES,
}
"""By name, for :func:`answer`."""


async def answer(name: str, request: web.Request, **fixed: str) -> Any:
    """The answer to the question of that name, with the parameters of the request and without what
    its reader may not see. ``fixed`` are parameters of a page.

    Raises what :func:`asched.ui.errors.error_answer` knows.
    """
    question, route = Question.of(request), ROUTES[name]
    question = question._replace(query={**question.query, **fixed})
    visible = question.visible
    visible.check(route.scope, question.path.get("namespace"))
    sealed = await request.app[VIEW].ask(lambda reader: route.handler(reader, question))
    return sealed.release(visible)


def add_routes(app: web.Application) -> None:
    """Serve all questions below :data:`PREFIX`."""
    for name, route in ROUTES.items():
        app.router.add_get(PREFIX + pattern(route.path), _responder(name, route))


def pattern(path: str) -> str:
    """The path with parameters that match every character except a slash: names may have braces."""
    return re.sub(r"{(\w+)}", r"{\1:[^/]+}", path)


def _responder(name: str, route: ApiRoute) -> Callable[[web.Request], Awaitable[web.Response]]:
    async def respond(request: web.Request) -> web.Response:
        fixed = bool(route.fixed_by) and all(name in request.query for name in route.fixed_by)
        return await tagged(request, fixed, lambda: found(request))

    async def found(request: web.Request) -> web.Response:
        wanted = request.query.get("format", "json")
        if wanted not in ("json", "csv"):
            raise RequestError(f"format: {wanted[:40]!r} is neither json nor csv")
        if wanted == "csv" and route.rows is None:
            raise RequestError("format: this answer is not a table; use json")
        answered = await answer(name, request)
        if wanted == "csv" and route.rows is not None:
            disposition = {"Content-Disposition": f'attachment; filename="asched-{name}.csv"'}
            text = csv_of(route.rows(answered))
            return web.Response(text=text, content_type="text/csv", headers=disposition)
        return json_response(answered)

    return respond


def json_response(found: object, status: int = 200) -> web.Response:
    return web.Response(
        body=msgspec.json.encode(found), content_type="application/json", status=status
    )
