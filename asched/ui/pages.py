"""The pages of the browser interface: HTML around the answers of the API.

A page renders the first answer on the server. Modules in ``static/`` draw charts, the decision
matrix, the timeline and the heat map from the API. Texts of the journal are always escaped.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import quote, urlencode

import msgspec
from aiohttp import web
from jinja2 import Environment, PackageLoader, StrictUndefined

from asched.audit.entries import AssignmentEntry, AttemptFailureEntry, RejectionEntry
from asched.audit.entry_text import describe
from asched.audit.shadow import RecordedShadow
from asched.audit.visibility import EVERYTHING, AnswerScope, Visible
from asched.ui.api import HTML_PAGES, PREFIX, ROUTES, VIEW, HtmlPages, answer, pattern
from asched.ui.caching import digest_of
from asched.ui.errors import ErrorAnswer
from asched.ui.group_pages import (
    FOLLOW,
    GROUP_GLOBALS,
    GROUP_NAVIGATION,
    GROUP_PAGES,
    ContentOf,
    amount_text,
)
from asched.ui.index import NamespaceList, SearchResults
from asched.ui.journal_progress import JournalProgress
from asched.ui.journal_view import JournalView
from asched.ui.pods import DecisionMatrix, TimelineAnswer
from asched.ui.questions import VISIBLE
from asched.ui.shadow import EXAMPLES, ShadowDifference
from asched.ui.why import PodSummary

_FOLDER: Final = Path(__file__).parent / "static"
STATIC: Final = f"/static/{digest_of(_FOLDER)}"
_NAVIGATION: Final = (
    ("/", "Overview"),
    ("/search", "Search"),
    ("/cluster", "Cluster"),
    *GROUP_NAVIGATION,
    ("/lab", "What if"),
    ("/shadow", "Shadow"),
    ("/journal", "Journal"),
    ("/plugins", "Plugins"),
)
_KIB: Final = 1024
_DEVICE_NODES: Final = 50
"""Nodes with devices to list on the page of a decision."""
_TIMELINE_ENTRIES: Final = "500"
"""The newest ones to show: a pod that is tried for days has thousands."""
_MUCH: Final = 10_000
"""Records that are not indexed and worth a notice."""
LOGIN_HINT: Final = web.AppKey("login_hint", str)
"""What the login form asks for."""
_JOURNAL_NAME: Final = web.AppKey("journal_name", str)

Page = Callable[[web.Request], Awaitable[web.Response]]


def _iso(at: datetime) -> str:
    """In UTC with milliseconds or microseconds, as in the API."""
    return at.astimezone(UTC).isoformat().replace("+00:00", "Z")


def _state_class(state: str) -> str:
    """The style of a pod's state; unknown ones are neutral."""
    return _STATE_CLASSES.get(state, "")


_INNER_CAPITAL: Final = re.compile("(?<=[a-z])(?=[A-Z])")
_STATE_CLASSES: Final = {
    "bound": "good",
    "assumed": "good",
    "active": "wait",
    "inFlight": "wait",
    "backoff": "wait",
    "gated": "wait",
    "unschedulable": "bad",
    "awaitsSession": "wait",
    "complete": "good",
    "waiting": "wait",
    "pending": "bad",
    "tooFewPods": "wait",
    "noPodGroup": "wait",
    "started": "good",
    "failed": "bad",
    "open": "bad",
    "trial": "wait",
    "closed": "good",
}


def _duration(seconds: float | None) -> str:
    """With two significant units at most."""
    if seconds is None:
        return "–"
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    units = [("d", 86400), ("h", 3600), ("min", 60), ("s", 1)]
    first = next(index for index, (_, size) in enumerate(units) if seconds >= size)
    unit, size = units[first]
    text = f"{seconds // size:.0f} {unit}"
    if first + 1 < len(units):
        smaller, smaller_size = units[first + 1]
        rest = int(seconds % size // smaller_size)
        text += f" {rest} {smaller}" if rest else ""
    return text


def _size(size_bytes: int) -> str:
    amount = float(size_bytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if amount < _KIB:
            return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= _KIB
    return f"{amount:.1f} TiB"


def _pod_path(namespace: str, name: str, rest: str = "") -> str:
    return f"/pods/{quote(namespace, safe='')}/{quote(name, safe='')}{rest}"


def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("asched.ui"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(
        iso=_iso,
        state_class=_state_class,
        duration=_duration,
        size=_size,
        amount=amount_text,
        event_text=describe,
        words=lambda name: _INNER_CAPITAL.sub(" ", name).lower(),
        pretty=lambda value: msgspec.json.format(msgspec.json.encode(value), indent=2).decode(),
    )
    environment.globals.update(
        static=STATIC, navigation=_NAVIGATION, pod_path=_pod_path, **GROUP_GLOBALS
    )
    return environment


_TEMPLATES: Final = _environment()


def _moment(request: web.Request) -> str:
    """``?at=`` or ``?seq=`` of the page, which its links keep; empty without one."""
    kept = {name: request.query[name] for name in ("at", "seq") if name in request.query}
    return f"?{urlencode(kept)}" if kept else ""


def _text(request: web.Request, template: str, values: Mapping[str, Any]) -> str:
    """The page. ``data`` becomes attributes of ``main`` for the modules."""
    defaults: dict[str, Any] = {
        "active": request.path,
        "script": "",
        "api": "",
        "tabular": _is_tabular(request),
        "csv": "",
        "data": {},
        "query": "",
        "moment": _moment(request),
        "journal_name": "",
        "behind": None,
        "note": _visible(request).note,
    }
    return _TEMPLATES.get_template(template).render({**defaults, **values})


def _is_tabular(request: web.Request) -> bool:
    """Whether the answer of the page is also available as CSV."""
    resource = request.match_info.route.resource
    path = "" if resource is None else resource.canonical
    return ("/overview" if path == "/" else path) in _TABULAR


_TABULAR: Final = frozenset(route.path for route in ROUTES.values() if route.rows is not None)


def _visible(request: web.Request) -> Visible:
    """What the reader may see; pages without a reader, such as the login, hold no answers."""
    visible: Visible = request.get(VISIBLE, EVERYTHING)
    return visible


def _page(request: web.Request, template: str, values: Mapping[str, Any]) -> web.Response:
    progress = request.app[VIEW].progress
    common = {"journal_name": request.app[_JOURNAL_NAME], "behind": _behind(progress)}
    return _response(_text(request, template, {**common, **values}))


def _behind(progress: JournalProgress) -> JournalProgress | None:
    """The progress if much of the journal is not indexed yet."""
    missing = progress.head.seq - progress.indexed_seq
    return progress if missing > _MUCH and not progress.problem else None


def _error(request: web.Request, found: ErrorAnswer) -> web.Response:
    """The page of a request that failed. Whoever is not admitted may see it."""
    try:
        title = HTTPStatus(found.status).phrase
    except ValueError:
        title = "Error"
    values = {"title": title, "found": found, "active": ""}
    return _response(_text(request, "error.html", values), found.status)


def _login(request: web.Request, message: str, status: int) -> web.Response:
    hint, wanted = request.app[LOGIN_HINT], request.query.get("next", "/")
    values = {"message": message, "next": wanted, "active": "", "hint": hint}
    return _response(_text(request, "login.html", values), status)


def _response(text: str, status: int = HTTPStatus.OK) -> web.Response:
    return web.Response(text=text, content_type="text/html", status=status)


def _same_api(request: web.Request) -> str:
    """The address of the page's answer in the API."""
    return PREFIX + request.rel_url.raw_path + (_moment(request))


async def _overview(request: web.Request) -> web.Response:
    if not _visible(request).everywhere:
        return await _namespaces(request)
    progress = request.app[VIEW].progress
    data = {
        "from": request.query.get("from", ""),
        "to": request.query.get("to", ""),
        "until": _iso(progress.at) if progress.at else "",
    }
    values = {"script": "overview.js", "api": f"{PREFIX}/overview", "data": data}
    return _page(request, "overview.html", values)


async def _namespaces(request: web.Request) -> web.Response:
    found: NamespaceList = await answer("namespaces", request)
    return _page(request, "namespaces.html", {"api": f"{PREFIX}/namespaces", "found": found})


async def _search(request: web.Request) -> web.Response:
    text = request.query.get("q", "")
    found: SearchResults = await answer("search", request)
    values = {
        "api": f"{PREFIX}/search?{urlencode({'q': text})}",
        "query": text,
        "found": found,
    }
    return _page(request, "search.html", values)


async def _why(request: web.Request) -> web.Response:
    found: PodSummary = await answer("pod", request)
    values = {**_pod_values(request, "why"), "pod": found, "attempts": found.attempts}
    values.update(changes=_changes(found), script=FOLLOW)
    return _page(request, "why.html", values)


class _ChangeOnNodes(NamedTuple):
    """A change that unblocks a pod, and the nodes that it makes feasible."""

    kind: str
    summary: str
    rejected_by: tuple[str, ...]
    nodes: list[str]


def _changes(pod: PodSummary) -> list[_ChangeOnNodes]:
    """Equal changes of several nodes as one."""
    found: dict[tuple[str, tuple[str, ...]], _ChangeOnNodes] = {}
    for one in pod.unblocking or ():
        for change in one.changes:
            new = _ChangeOnNodes(change.kind.value, change.summary, one.rejected_by, [])
            same = found.setdefault((change.summary, one.rejected_by), new)
            if one.node:
                alike = f" and {one.alike} alike" if one.alike else ""
                same.nodes.append(f"{one.node}{alike}")
    return list(found.values())


async def _decision(request: web.Request) -> web.Response:
    # The matrix loads the others.
    found: DecisionMatrix = await answer("decision", request, nodes="devices")
    explanation = found.explanation
    with_devices = explanation.nodes
    values = {
        **_pod_values(request, "decision"),
        "script": "decision.js",
        "found": found,
        "attempts": explanation.attempts,
        "shown_attempts": some_attempts(explanation.attempts, explanation.decision.attempt),
        "device_nodes": with_devices[:_DEVICE_NODES],
        "omitted_nodes": max(0, len(with_devices) - _DEVICE_NODES),
        "data": {"source": PREFIX + request.rel_url.raw_path},
    }
    return _page(request, "decision.html", values)


def some_attempts(attempts: tuple[int, ...], shown: int) -> list[int]:
    """The first and last attempts and those next to the shown one. 0 marks omitted ones."""
    place = attempts.index(shown) if shown in attempts else len(attempts) - 1
    near = {0, *range(place - 2, place + 3), len(attempts) - 1}
    found: list[int] = []
    for index in sorted(near & {*range(len(attempts))}):
        if found and attempts[index - 1] != found[-1]:
            found.append(0)
        found.append(attempts[index])
    return found


async def _timeline(request: web.Request) -> web.Response:
    limit = {"limit": _TIMELINE_ENTRIES}
    found: TimelineAnswer = await answer("timeline", request, **limit)
    progress = request.app[VIEW].progress
    until = progress.at if not _moment(request) else found.pods[-1].entries[-1].at
    values = {
        **_pod_values(request, "timeline"),
        "script": "timeline.js",
        "attempts": _attempts(found),
        "found": found,
        "data": {
            "source": f"{PREFIX}{request.rel_url.raw_path}?{urlencode(limit)}",
            "until": _iso(until) if until else "",
        },
    }
    return _page(request, "timeline.html", values)


def _attempts(found: TimelineAnswer) -> tuple[int, ...]:
    """The numbers of the attempts for the newest pod."""
    kinds = AssignmentEntry | RejectionEntry | AttemptFailureEntry
    made = (entry.attempt for entry in found.pods[-1].entries if isinstance(entry, kinds))
    return tuple(dict.fromkeys(made))


def _pod_values(request: web.Request, view: str) -> dict[str, Any]:
    """What the pages of a pod have in common. ``attempts`` is replaced where they are known."""
    return {
        "active": "",
        "view": view,
        "namespace": request.match_info["namespace"],
        "name": request.match_info["name"],
        "api": _same_api(request),
        "attempts": (),
    }


async def _cluster(request: web.Request) -> web.Response:
    progress = request.app[VIEW].progress
    data = {
        "first": _iso(progress.first_at) if progress.first_at else "",
        "last": _iso(progress.at) if progress.at else "",
    }
    values = {"script": "cluster.js", "api": _same_api(request), "data": data}
    return _page(request, "cluster.html", values)


async def _journal(request: web.Request) -> web.Response:
    found = await answer("journal", request)
    values = {"script": FOLLOW, "api": _same_api(request), "found": found}
    return _page(request, "journal.html", values)


async def _plugins(request: web.Request) -> web.Response:
    found = await answer("plugins", request)
    values = {"script": "plugins.js", "api": _same_api(request), "found": found}
    return _page(request, "plugins.html", values)


def _scopes_of(path: str) -> tuple[AnswerScope, ...]:
    """The declared scope of the API's answer with the path of a page; empty without one."""
    return tuple(r.scope for r in ROUTES.values() if r.path == path and r.scope is not None)


def _rendered(content_of: ContentOf) -> Page:
    async def respond(request: web.Request) -> web.Response:
        content = await content_of(request)
        return _page(request, content.template, content.values)

    return respond


async def _shadow(request: web.Request) -> web.Response:
    found: RecordedShadow = await answer("shadow", request)
    filters = {name: request.query.get(name, "") for name in ("cause", "pod")}
    given = {name: value for name, value in filters.items() if value}
    moment = _moment(request)
    api = _same_api(request)
    api += f"{'&' if moment else '?'}{urlencode(given)}" if given else ""
    values = {"api": api, "found": found, "shown": EXAMPLES, **filters}
    return _page(request, "shadow.html", values)


async def _shadow_difference(request: web.Request) -> web.Response:
    found: ShadowDifference = await answer("shadowDifference", request)
    namespace, _, name = found.difference.pod.partition("/")
    values = {
        "active": "/shadow",
        "api": _same_api(request),
        "found": found,
        "namespace": namespace,
        "name": name,
    }
    return _page(request, "shadow-difference.html", values)


_PAGES: Final[Mapping[str, Page]] = {
    "/": _overview,
    "/namespaces": _namespaces,
    "/search": _search,
    "/pods/{namespace}/{name}": _why,
    "/pods/{namespace}/{name}/decisions/{attempt}": _decision,
    "/pods/{namespace}/{name}/timeline": _timeline,
    "/cluster": _cluster,
    "/journal": _journal,
    "/plugins": _plugins,
    **{path: _rendered(content_of) for path, content_of in GROUP_PAGES.items()},
    "/shadow": _shadow,
    "/shadow/{record}": _shadow_difference,
}


SCOPES: Final[Mapping[str, AnswerScope]] = {
    **{path: scope for path in _PAGES for scope in _scopes_of(path)},
    "/": AnswerScope.VISIBLE,
}
"""The scope of each page: that of its answer in the API."""


def register(app: web.Application, view: JournalView) -> None:
    """Serve all pages and their static files. The application has :data:`~asched.ui.api.VIEW`."""
    app[_JOURNAL_NAME] = view.name
    app[HTML_PAGES] = HtmlPages(_error, _login, _page)
    for path, page in _PAGES.items():
        app.router.add_get(pattern(path), page)
    app.router.add_static(STATIC, _FOLDER)
