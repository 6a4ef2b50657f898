"""Watch requests: an endless answer of one JSON line an event."""

from __future__ import annotations

import asyncio
from typing import Any

from aiohttp import web

from asched.apiserver.api import ObjectApi
from asched.apiserver.errors import StatusError, bad_request
from asched.apiserver.faults import Faults
from asched.apiserver.handlers import negotiate_serializer, selection_predicate
from asched.apiserver.listing import parse_revision
from asched.apiserver.rendering import Serializer
from asched.apiserver.requests import RequestInfo
from asched.apiserver.store import encode, watch_line
from asched.apiserver.watch import ServedWatchEvent, Watcher

DEFAULT_TIMEOUT_S = 1800.0
"""How long a watch lasts that names no timeoutSeconds (the real server: 30 to 60 minutes)."""
_MAX_CHUNK_EVENTS = 512
_MALFORMED_LINE = b'{"type":"MODIFIED","object":{"kind":\n'


class WatchStreams:
    """Serves the watches of one API server and can end them all."""

    def __init__(self, api: ObjectApi, faults: Faults, bookmark_interval_s: float) -> None:
        self._api = api
        self._faults = faults
        self._bookmark_interval_s = bookmark_interval_s
        self._open: set[Watcher] = set()

    def end_all(self) -> None:
        """Close every watch stream, as a server that shuts down does."""
        for watcher in tuple(self._open):
            watcher.close()

    async def serve(self, request: web.BaseRequest, info: RequestInfo) -> web.StreamResponse:
        """Raises StatusError before the stream begins; a 410 arrives inside it."""
        initial = info.flag("sendInitialEvents")
        version = info.query.get("resourceVersion", "")
        revision = parse_revision(version)
        timeout_s = _timeout_s(info.query.get("timeoutSeconds", ""))
        watcher = self._api.watcher(info.resource, info.namespace, selection_predicate(info))
        rendering = negotiate_serializer(self._api, info, request.headers.get("Accept", ""))
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        response.enable_chunked_encoding()
        with watcher:
            try:
                if initial or revision == 0:
                    watcher.begin_with_state()
                else:
                    watcher.begin_from(revision)
            except StatusError as error:
                await response.prepare(request)
                await response.write(watch_line("ERROR", encode(error.status())))
                return response
            self._open.add(watcher)
            try:
                await response.prepare(request)
                stream = _Stream(self._api, self._faults, info, rendering, watcher, response)
                if initial:
                    await stream.initial_state(bookmark=info.flag("allowWatchBookmarks"))
                interval_s = self._bookmark_interval_s if info.flag("allowWatchBookmarks") else None
                await stream.pump(timeout_s, interval_s)
            except ConnectionError:
                # The client went away: that is how most watches end.
                pass
            finally:
                self._open.discard(watcher)
        return response


def _timeout_s(text: str) -> float:
    """Raises StatusError 400 for anything but whole seconds; zero means the default."""
    if text and not (text.isascii() and text.isdecimal()):
        raise bad_request(
            f'timeoutSeconds: Invalid value: "{text}": strconv.ParseInt: parsing "{text}": '
            "invalid syntax"
        )
    return float(text or 0) or DEFAULT_TIMEOUT_S


class _Stream:
    """One watch under way."""

    def __init__(
        self,
        api: ObjectApi,
        faults: Faults,
        info: RequestInfo,
        rendering: Serializer,
        watcher: Watcher,
        response: web.StreamResponse,
    ) -> None:
        self._api = api
        self._faults = faults
        self._info = info
        self._rendering = rendering
        self._watcher = watcher
        self._response = response
        self._sent = 0

    async def initial_state(self, *, bookmark: bool) -> None:
        """What exists, then the bookmark that says it was all (KEP-3157)."""
        events, revision = self._watcher.drain(), self._api.revisions.current
        await self._send(events)
        if bookmark:
            # Of the revision that was drained: more may have happened while it was sent.
            await self._bookmark(revision, {"k8s.io/initial-events-end": "true"})

    async def pump(self, timeout_s: float, bookmark_interval_s: float | None) -> None:
        """Send events until the time-out, the watcher's end or a fault."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        while not self._watcher.closed:
            left_s = deadline - loop.time()
            if left_s <= 0 or self._exhausted():
                return
            wait_s = left_s if bookmark_interval_s is None else min(left_s, bookmark_interval_s)
            events = await self._watcher.next_batch(wait_s)
            if events:
                await self._send(events)
            elif bookmark_interval_s is not None and wait_s < left_s:
                await self._bookmark(self._api.revisions.current, {})

    def _exhausted(self) -> bool:
        limit = self._faults.watch_closes_after_events
        return limit is not None and self._sent >= limit

    async def _send(self, events: list[ServedWatchEvent]) -> None:
        limit = self._faults.watch_closes_after_events
        if limit is not None:
            events = events[: max(0, limit - self._sent)]
        for start in range(0, len(events), _MAX_CHUNK_EVENTS):
            lines = []
            for event in events[start : start + _MAX_CHUNK_EVENTS]:
                if self._faults.take_malformed_line():
                    lines.append(_MALFORMED_LINE)
                lines.append(self._rendering.event(event))
            await self._response.write(b"".join(lines))
        self._sent += len(events)

    async def _bookmark(self, revision: int, annotations: dict[str, str]) -> None:
        metadata: dict[str, Any] = {"resourceVersion": str(revision)}
        if annotations:
            metadata["annotations"] = annotations
        bookmark = {
            "kind": self._info.resource.kind,
            "apiVersion": self._info.resource.group_version,
            "metadata": metadata,
        }
        await self._response.write(watch_line("BOOKMARK", encode(bookmark)))
