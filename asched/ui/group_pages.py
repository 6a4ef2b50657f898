"""The pages of gangs, owners, queues and evictions.

Each gives a template and its values; :mod:`asched.ui.pages` renders them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from http import HTTPStatus
from typing import Any, Final, NamedTuple
from urllib.parse import quote, urlencode

from aiohttp import web

from asched.audit.evictions import EvictionKind, EvictionReports
from asched.audit.gangs import GangPhase, GangsReport
from asched.audit.groups import GANG, GroupExplanation
from asched.audit.pod_group.forms import PodGroupExplanation
from asched.audit.queues import QueuesReport
from asched.ui.api import PREFIX, answer
from asched.ui.errors import AnsweredError

_SHOWN_EVICTIONS: Final = 500
_SHOWN_GANGS: Final = 500
_SHOWN_MEMBERS: Final = 500
_SHOWN_JOBS: Final = 50
FOLLOW: Final = "follow.js"
"""Keeps the regions of a page with ``data-live`` up to date."""


class PageContent(NamedTuple):
    """What a page shows."""

    template: str
    values: Mapping[str, Any]


ContentOf = Callable[[web.Request], Awaitable[PageContent]]


def amount_text(amount: float, resource: str) -> str:
    """The amount of a queue: cpu in millicores, memory in bytes, others in thousandths."""
    if resource == "cpu":
        return f"{amount / 1000:g}"
    if resource == "memory":
        return f"{amount / (1 << 30):.4g}Gi" if amount else "0"
    return f"{amount / 1000:g}"


def group_path(kind: str, namespace: str, name: str, rest: str = "") -> str:
    """The page of a gang or owner."""
    own = "/".join(quote(part, safe="") for part in (namespace, name))
    if kind == GANG:
        return f"/gangs/{own}{rest}"
    parts = (quote(part, safe="") for part in (namespace, kind, name))
    return f"/owners/{'/'.join(parts)}{rest}"


def gang_path(key: str) -> str:
    """The page of the gang ``namespace/name``."""
    namespace, _, name = key.partition("/")
    return group_path(GANG, namespace, name)


def owner_path(namespace: str, owner: str) -> str:
    """The page of the owner ``Kind/name``."""
    kind, _, name = owner.partition("/")
    return group_path(kind, namespace, name)


def api_with(request: web.Request, **more: object) -> str:
    """The address of the page's answer in the API, with its parameters."""
    query = {**request.query, **more}
    text = f"?{urlencode(query)}" if query else ""
    return f"{PREFIX}{request.rel_url.raw_path}{text}"


def _asked(request: web.Request, *names: str) -> dict[str, str]:
    """The parameters of the page's form, and its time."""
    return {name: request.query.get(name, "") for name in (*names, "at", "seq")}


async def _evictions(request: web.Request) -> PageContent:
    found: EvictionReports = await answer("evictions", request)
    values = {
        "api": api_with(request),
        "csv": api_with(request, format="csv"),
        "script": FOLLOW,
        "found": found,
        "shown": found.evictions[:_SHOWN_EVICTIONS],
        "kinds": [kind.value for kind in EvictionKind],
        "asked": _asked(request, "q", "kind", "from", "to"),
    }
    return PageContent("evictions.html", values)


async def _queues(request: web.Request) -> PageContent:
    found: QueuesReport = await answer("queues", request)
    history = await answer("queue_history", request)
    values = {
        "api": api_with(request),
        "csv": api_with(request, format="csv"),
        "script": "queues.js" if found.sessions else FOLLOW,
        "found": found,
        "history": history,
        "jobs_shown": _SHOWN_JOBS,
    }
    return PageContent("queues.html", values)


async def _gangs(request: web.Request) -> PageContent:
    found: GangsReport = await answer("gangs", request)
    values = {
        "api": api_with(request),
        "csv": api_with(request, format="csv"),
        "script": FOLLOW,
        "found": found,
        "shown": found.gangs[:_SHOWN_GANGS],
        "phases": [phase.value for phase in GangPhase],
        "asked": _asked(request, "q", "phase"),
    }
    return PageContent("gangs.html", values)


def _group(name: str) -> ContentOf:
    async def content(request: web.Request) -> PageContent:
        found: GroupExplanation = await answer(name, request)
        values = {
            **_names(request, "pods"),
            "csv": api_with(request, format="csv"),
            "script": FOLLOW,
            "group": found,
            "members": found.members[:_SHOWN_MEMBERS],
            "why": await _why(request) if name == "gang" else None,
        }
        return PageContent("group.html", values)

    return content


async def _why(request: web.Request) -> PodGroupExplanation | None:
    """None for a PodGroup that is gone with all its pods."""
    try:
        found: PodGroupExplanation = await answer("gang_why", request)
    except AnsweredError as error:
        if error.answer.status != HTTPStatus.NOT_FOUND:
            raise
        return None
    return found


def _timeline(name: str) -> ContentOf:
    async def content(request: web.Request) -> PageContent:
        values = {
            **_names(request, "timeline"),
            "script": "group_timeline.js",
            "found": await answer(name, request),
            "data": {"source": PREFIX + request.rel_url.raw_path},
        }
        return PageContent("group_timeline.html", values)

    return content


def _names(request: web.Request, view: str) -> dict[str, Any]:
    path = request.match_info
    return {
        "view": view,
        "kind": path.get("kind", GANG),
        "namespace": path["namespace"],
        "name": path["name"],
        "api": api_with(request),
    }


GROUP_NAVIGATION: Final = (
    ("/queues", "Queues"),
    ("/gangs", "Gangs"),
    ("/evictions", "Evictions"),
)

GROUP_GLOBALS: Final = {
    "gang_path": gang_path,
    "group_path": group_path,
    "owner_path": owner_path,
}
"""Functions of the templates."""

GROUP_PAGES: Final[Mapping[str, ContentOf]] = {
    "/evictions": _evictions,
    "/queues": _queues,
    "/gangs": _gangs,
    "/gangs/{namespace}/{name}": _group("gang"),
    "/gangs/{namespace}/{name}/timeline": _timeline("gang_timeline"),
    "/owners/{namespace}/{kind}/{name}": _group("owner"),
    "/owners/{namespace}/{kind}/{name}/timeline": _timeline("owner_timeline"),
}
