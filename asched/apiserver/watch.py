"""Watch requests: a streamed response with one JSON line per event."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

from aiohttp import web

from asched.apiserver.api import ObjectApi
from asched.apiserver.errors import StatusError, bad_request
from asched.apiserver.faults import Faults
from asched.apiserver.handlers import negotiate_serializer, selection_predicate
from asched.apiserver.listing import parse_revision
from asched.apiserver.requests import RequestInfo
from asched.apiserver.resources import ServedResource
from asched.apiserver.serializers import Serializer
from asched.apiserver.storage import ServedWatchEvent, Watcher, encode, watch_line

DEFAULT_TIMEOUT_S = 1800.0
"""Length of a watch without timeoutSeconds (kube-apiserver: 30 to 60 minutes)."""
_MAX_CHUNK_EVENTS = 512
_MALFORMED_LINE = b'{"type":"MODIFIED","object":{"kind":\n'


class WatchStreams:
    """Serves the watches of one API server."""

    def __init__(self, api: ObjectApi, faults: Faults, bookmark_interval_s: float) -> None:
        self.api = api
        self.faults = faults
        self._bookmark_interval_s = bookmark_interval_s
        self._open: set[Watcher] = set()

    def end_all(self) -> None:
        """Close every watch stream, as a server does when it shuts down."""
        for watcher in tuple(self._open):
            watcher.close()

    async def serve(self, request: web.BaseRequest, info: RequestInfo) -> web.StreamResponse:
        """Raises StatusError before the stream begins; a 410 is an event of the stream."""
        initial, bookmarks = info.flag("sendInitialEvents"), info.flag("allowWatchBookmarks")
        revision = parse_revision(info.query.get("resourceVersion", ""))
        timeout_s = _timeout_s(info.query.get("timeoutSeconds", ""))
        predicate = selection_predicate(info)
        watcher = self.api.watcher(info.resource, info.namespace, predicate)
        serializer = negotiate_serializer(self.api, info, request.headers.get("Accept", ""))
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
                stream = _Stream(self, watcher, response, info.resource, serializer)
                if initial:
                    await stream.send_initial_events(bookmark=bookmarks)
                await stream.run(timeout_s, self._bookmark_interval_s if bookmarks else None)
            except ConnectionError:
                # The client disconnected, which is how most watches end.
                pass
            finally:
                self._open.discard(watcher)
        return response


def _timeout_s(text: str) -> float:
    """Raises StatusError 400 unless ``text`` is whole seconds; zero selects the default."""
    if text and not (text.isascii() and text.isdecimal()):
        message = f'Invalid value: "{text}": strconv.ParseInt: parsing "{text}": invalid syntax'
        raise bad_request(f"timeoutSeconds: {message}")
    return float(text or 0) or DEFAULT_TIMEOUT_S


@dataclass(slots=True)
class _Stream:
    """One open watch."""

    server: WatchStreams
    watcher: Watcher
    response: web.StreamResponse
    resource: ServedResource
    serializer: Serializer
    sent: int = 0

    async def send_initial_events(self, *, bookmark: bool) -> None:
        """Send the existing objects, then the bookmark that ends them (KEP-3157)."""
        # The bookmark bears the revision of the drained events; writes may follow while sending.
        events, revision = self.watcher.drain(), self.server.api.revisions.current
        await self._send(events)
        if bookmark:
            await self._send_bookmark(revision, {"k8s.io/initial-events-end": "true"})

    async def run(self, timeout_s: float, bookmark_interval_s: float | None) -> None:
        """Send events until the timeout, the end of the watcher or an injected fault."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        while True:
            left_s = deadline - loop.time()
            limit = self.server.faults.watch_closes_after_events
            if left_s <= 0 or (limit is not None and self.sent >= limit):
                return
            wait_s = left_s if bookmark_interval_s is None else min(left_s, bookmark_interval_s)
            events = await self.watcher.next_batch(wait_s)
            if events:
                await self._send(events)
            elif self.watcher.closed:
                return  # a bookmark would cover writes that this watch does not show
            elif bookmark_interval_s is not None and wait_s < left_s:
                await self._send_bookmark(self.server.api.revisions.current, {})

    async def _send(self, events: list[ServedWatchEvent]) -> None:
        limit = self.server.faults.watch_closes_after_events
        if limit is not None:
            events = events[: max(0, limit - self.sent)]
        for start in range(0, len(events), _MAX_CHUNK_EVENTS):
            lines = []
            for event in events[start : start + _MAX_CHUNK_EVENTS]:
                if self.server.faults.take_malformed_line():
                    lines.append(_MALFORMED_LINE)
                lines.append(self.serializer.event(event))
            await self.response.write(b"".join(lines))
        self.sent += len(events)

    async def _send_bookmark(self, revision: int, annotations: dict[str, str]) -> None:
        metadata: dict[str, Any] = {"resourceVersion": str(revision)}
        if annotations:
            metadata["annotations"] = annotations
        head = {"kind": self.resource.kind, "apiVersion": self.resource.group_version}
        bookmark = {**head, "metadata": metadata}
        await self.response.write(watch_line("BOOKMARK", encode(bookmark)))
