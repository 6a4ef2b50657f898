"""The HTTP application: routes, limits, errors and live events.

``asched.ui.pages`` adds the pages for browsers, and renders errors and the login.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from datetime import datetime
from functools import cache
from typing import Any, Final, NamedTuple

import msgspec
import structlog
from aiohttp import web
from yarl import URL

from asched.audit.visibility import (
    EVERYTHING,
    AnswerScope,
    NamespacesUnknownError,
    Redaction,
    Visible,
)
from asched.ui import api, caching, pages
from asched.ui.errors import BusyError, ErrorAnswer, RequestError, error_answer
from asched.ui.journal_progress import JournalProgress
from asched.ui.journal_view import JournalView
from asched.ui.lab import views
from asched.ui.lab.runs import LabSettings
from asched.ui.openapi import describe, openapi
from asched.ui.questions import VISIBLE
from asched.ui.security import HEADERS, AccessControl, Handler

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

MAX_BODY_BYTES: Final = 4096
MAX_STREAMS: Final = 100
EVENT_INTERVAL_S: Final = 0.25
KEEP_ALIVE_S: Final = 15.0
_STOP_S: Final = 2.0
HEALTH: Final = "/healthz"
SCOPES: Final[Mapping[str, AnswerScope]] = {
    HEALTH: AnswerScope.PUBLIC,
    "/login": AnswerScope.PUBLIC,
    pages.STATIC: AnswerScope.PUBLIC,
    f"{api.PREFIX}/openapi.json": AnswerScope.PUBLIC,
    f"{api.PREFIX}/events": AnswerScope.VISIBLE,
    **{api.PREFIX + route.path: route.scope for route in api.ROUTES.values() if route.scope},
    **pages.SCOPES,
    **views.SCOPES,
}
"""The scope of each path, for readers who may not see everything. Others get no answer."""
_OPEN_PATHS: Final = ("/login", "/static/", HEALTH)
"""Paths that need no token."""

ACCESS: Final = web.AppKey("access", AccessControl)
NOTE_HEADER: Final = "Asched-Visible"
"""The response header that says what is left out."""
_STREAMS: Final = web.AppKey("streams", set[asyncio.Task[None]])


class LiveEvent(msgspec.Struct, frozen=True, rename="camel"):
    """What the server-sent event ``head`` holds."""

    seq: int
    """The newest indexed record."""
    at: datetime | None
    """Time of its turn."""
    counts: dict[str, int]
    """What happened since the start of the index."""
    rates: dict[str, float]
    """Counts in a second of the journal's time since the event before."""
    queues: dict[str, int]
    verified_at: datetime | None
    """When the last verification began; None before the first one ended."""
    problem: str


def make_app(
    view: JournalView, access: AccessControl, lab: LabSettings | None = None
) -> web.Application:
    """The application; ``view`` must outlive it. Raises OSError if ``lab`` cannot store results."""
    app = web.Application(
        middlewares=[_secured, _with_errors, _authenticated, _authorized],
        client_max_size=MAX_BODY_BYTES,
    )
    app[api.VIEW] = view
    app[ACCESS] = access
    app[pages.LOGIN_HINT] = access.login_hint
    app[_STREAMS] = set()
    app.on_shutdown.append(_end_streams)
    api.add_routes(app)
    app.router.add_get(f"{api.PREFIX}/openapi.json", _constant(_document()))
    app.router.add_get(f"{api.PREFIX}/events", _events, allow_head=False)
    app.router.add_get(HEALTH, _health)
    app.router.add_get("/login", _show_login)
    app.router.add_post("/login", _log_in)
    pages.register(app, view)
    views.register(app, view, lab)
    return app


@cache
def _document() -> dict[str, Any]:
    """The OpenAPI document, which must not be changed. Generating it takes 0.2 s."""
    document = openapi()
    describe(document, views.OPERATIONS)
    return document


def _constant(document: Any) -> Handler:
    async def respond(_: web.Request) -> web.Response:
        return api.json_response(document)

    return respond


# -- every request ------------------------------------------------------------------------------


@web.middleware
async def _secured(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Add the security headers, also to streams, and how long the answer took."""
    begun_s = time.perf_counter()
    try:
        response = await handler(request)
    except web.HTTPRedirection as redirection:
        redirection.headers.update(HEADERS)
        raise
    if not response.prepared:
        spent_ms = (time.perf_counter() - begun_s) * 1000
        response.headers["Server-Timing"] = f"total;dur={spent_ms:.1f}"
        if request.path.startswith(f"{pages.STATIC}/") and response.status == 200:
            response.headers["Cache-Control"] = caching.FOREVER
        for name, value in HEADERS.items():
            response.headers.setdefault(name, value)
    return response


@web.middleware
async def _with_errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Errors as pages or as JSON, without a traceback."""
    try:
        return await handler(request)
    except web.HTTPRedirection:
        raise
    except web.HTTPException as error:
        found = ErrorAnswer(error.status, _REASONS.get(error.status, error.reason))
        allowed = error.headers.get("Allow")
        return _error_response(request, found, {"Allow": allowed} if allowed else {})
    except (ConnectionError, asyncio.CancelledError):
        raise
    except Exception as error:
        known = error_answer(error)
        if known is None:
            log.error("request failed", path=request.path, exc_info=error)
            known = ErrorAnswer(500, "internal error", "the log of asched ui has the details")
        known = _redacted(request, known)
        return _error_response(request, known, {})


def _redacted(request: web.Request, found: ErrorAnswer) -> ErrorAnswer:
    """The error without names that its reader may not see."""
    visible = request.get(VISIBLE)
    if visible is None or visible.everywhere:
        return found  # nothing of the journal is read for a request without a reader
    redaction = Redaction(visible, request.app[api.VIEW].namespaces or frozenset())
    return msgspec.structs.replace(found, error=redaction.text(found.error))


_REASONS: Final = {
    404: "there is no such page",
    405: "this method is not allowed here; questions are asked with GET",
    413: f"the request is larger than {MAX_BODY_BYTES} bytes",
}


def _error_response(
    request: web.Request, found: ErrorAnswer, headers: Mapping[str, str]
) -> web.Response:
    if found.status == 503:
        headers = {**headers, "Retry-After": "2"}
    if request.path.startswith("/api/"):
        response = api.json_response(found, found.status)
    else:
        response = request.app[api.HTML_PAGES].error(request, found)
    response.headers.update(headers)
    return response


@web.middleware
async def _authenticated(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Check host and token."""
    access = request.app[ACCESS]
    if not access.check_host(request):
        found = ErrorAnswer(
            421, "this host name is not served", "use the address that asched ui printed"
        )
        return _error_response(request, found, {})
    if request.path.startswith(_OPEN_PATHS):
        return await handler(request)
    viewer = await access.viewer(request)
    if viewer is not None:
        namespaces = request.app[api.VIEW].namespaces or frozenset()
        request[VISIBLE] = await viewer.visible(namespaces)
        return await handler(request)
    if request.path.startswith("/api/"):
        found = ErrorAnswer(401, "a token is needed", "send it as Authorization: Bearer TOKEN")
        return _error_response(request, found, {"WWW-Authenticate": "Bearer"})
    raise web.HTTPSeeOther(URL("/login").with_query(next=request.path_qs))


@web.middleware
async def _authorized(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Check the scope of the path, and say what is left out."""
    visible = request.get(VISIBLE)
    if visible is None or visible == EVERYTHING:
        return await handler(request)
    resource = request.match_info.route.resource
    if resource is not None:
        scope = SCOPES.get(resource.canonical)
        visible.check(scope, request.match_info.get("namespace"))
        if scope is not AnswerScope.PUBLIC and request.app[api.VIEW].namespaces is None:
            raise NamespacesUnknownError("the namespaces of the journal are being read")
    response = await handler(request)
    if visible.note and not response.prepared:
        # Names of namespaces are ASCII, unless the journal is not from an API server.
        shown = (c if c.isascii() and c.isprintable() else "?" for c in visible.note)
        response.headers[NOTE_HEADER] = "".join(shown)
    return response


# -- login --------------------------------------------------------------------------------------


async def _show_login(request: web.Request) -> web.Response:
    return _login_page(request, "", 200)


def _login_page(request: web.Request, message: str, status: int) -> web.Response:
    return request.app[api.HTML_PAGES].login(request, message, status)


async def _log_in(request: web.Request) -> web.Response:
    # Files of a multipart body would be stored before the token is known.
    if request.content_type != "application/x-www-form-urlencoded":
        raise RequestError("Content-Type: expected application/x-www-form-urlencoded")
    try:
        form = await request.post()
    except (LookupError, ValueError):  # an unknown charset, or another one
        raise RequestError("the body is not a form") from None
    access, sent = request.app[ACCESS], form.get("token", "")
    wanted = str(form.get("next", "/"))
    # Only a path of this server: neither another host nor another scheme. Browsers skip tabs.
    own = wanted.startswith("/") and wanted[1:2] not in ("/", "\\") and wanted.isprintable()
    target = wanted if own else "/"
    response = web.Response(status=303, headers={"Location": target})
    if not isinstance(sent, str) or not await access.log_in(sent.strip(), response):
        return _login_page(request, "This token is not valid: check that it is complete.", 403)
    return response


async def _health(_: web.Request) -> web.Response:
    """The server responds. The journal may still be unreadable: pages say so."""
    return web.Response(text="ok")


# -- live ---------------------------------------------------------------------------------------


async def _events(request: web.Request) -> web.StreamResponse:
    """Server-sent events: the progress at once, and then at most four a second."""
    view, streams = request.app[api.VIEW], request.app[_STREAMS]
    if len(streams) >= MAX_STREAMS:
        raise BusyError(f"{MAX_STREAMS} event streams are open")
    response = web.StreamResponse(headers={**HEADERS, "Content-Type": "text/event-stream"})
    await response.prepare(request)
    visible = request[VISIBLE]
    sending = asyncio.ensure_future(_send_events(view, response, visible))
    streams.add(sending)
    try:
        with suppress(ConnectionError, asyncio.CancelledError, TimeoutError):
            # The browser connects again, and its reader is checked again.
            async with asyncio.timeout(request.app[ACCESS].stream_s):
                await sending
    finally:
        sending.cancel()
        streams.discard(sending)
    return response


async def _send_events(view: JournalView, response: web.StreamResponse, visible: Visible) -> None:
    before = view.progress
    while True:
        progress = view.progress
        data = msgspec.json.encode(_live_event(before, progress, visible))
        await response.write(b"event: head\ndata: " + data + b"\n\n")
        before = progress
        await asyncio.sleep(EVENT_INTERVAL_S)
        while view.progress is before:
            try:
                await asyncio.wait_for(view.changed(), KEEP_ALIVE_S)
            except TimeoutError:
                await response.write(b": no change\n\n")


def _live_event(before: JournalProgress, now: JournalProgress, visible: Visible) -> LiveEvent:
    """Counts of the whole cluster are for readers who may see all pods."""
    if not visible.everywhere:
        return LiveEvent(
            seq=now.indexed_seq,
            at=now.at,
            counts={},
            rates={},
            queues={},
            verified_at=None,
            problem="",
        )
    return LiveEvent(
        seq=now.indexed_seq,
        at=now.at,
        counts=now.counts,
        rates=_rates(before, now),
        queues=now.queues,
        verified_at=now.verified_at,
        problem=now.problem,
    )


def _rates(before: JournalProgress, now: JournalProgress) -> dict[str, float]:
    if before.at is None or now.at is None or now.at <= before.at:
        return {}
    elapsed_s = (now.at - before.at).total_seconds()
    return {
        name: round((count - before.counts.get(name, 0)) / elapsed_s, 2)
        for name, count in now.counts.items()
    }


async def _end_streams(app: web.Application) -> None:
    for stream in [*app[_STREAMS]]:
        stream.cancel()


# -- serving ------------------------------------------------------------------------------------


class Listen(NamedTuple):
    """Where to serve."""

    host: str
    port: int
    tls: ssl.SSLContext | None = None


class ListenError(Exception):
    """The address is not available. Its text is one line for the user."""


@asynccontextmanager
async def serving(app: web.Application, listen: Listen) -> AsyncIterator[str]:
    """Serve during the block, which receives the URL. Raises :class:`ListenError`."""
    runner = web.AppRunner(
        app, access_log=None, handle_signals=False, shutdown_timeout=_STOP_S, keepalive_timeout=30
    )
    await runner.setup()
    try:
        site = web.TCPSite(runner, listen.host, listen.port, ssl_context=listen.tls)
        try:
            await site.start()
        except OSError as error:
            where = f"{listen.host}:{listen.port}"
            raise ListenError(f"cannot listen on {where}: {error.strerror or error}") from None
        host, port = runner.addresses[0][:2]
        scheme = "http" if listen.tls is None else "https"
        yield f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}"
    finally:
        await runner.cleanup()
