"""An extender for tests: a scripted HTTP server on loopback."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
from aiohttp import web

from tests.daemon.world import KUBE

Json = Any
Handler = Callable[[Json], Awaitable[Json]]


def names_of(question: Json) -> list[str]:
    """The node names of a request in either form."""
    if question["NodeNames"] is not None:
        return list(question["NodeNames"])
    return [item["metadata"]["name"] for item in question["Nodes"]["items"]]


class Service:
    """Handlers by verb, and received requests. A verb without a handler returns 404."""

    def __init__(self) -> None:
        self.url = ""
        self.questions: list[tuple[str, Json]] = []
        self.answers: dict[str, Handler] = {}
        self.on_question: Callable[[], None] = lambda: None
        self._paths: list[str] = []

    def answer(self, verb: str, handler: Callable[[Json], Json]) -> None:
        """``handler`` gives the JSON of the answer; or bytes to be sent as they are, or a whole
        response."""

        async def answered(question: Json) -> Json:
            return handler(question)

        self.answers[verb] = answered

    def answer_when_released(self, verb: str, handler: Callable[[Json], Json]) -> anyio.Event:
        """As :meth:`answer`, but each request waits until the returned event is set."""
        release = anyio.Event()

        async def answered(question: Json) -> Json:
            await release.wait()
            return handler(question)

        self.answers[verb] = answered
        return release

    def pass_only(self, *names: str, reason: str = "refused by the extender") -> None:
        """Filter: these nodes pass if they are in the request."""

        def handler(question: Json) -> Json:
            asked = names_of(question)
            return {
                "NodeNames": [name for name in asked if name in names],
                "FailedNodes": {name: reason for name in asked if name not in names},
            }

        self.answer("filter", handler)

    def score(self, **scores: int) -> None:
        self.answer("prioritize", lambda _: [{"Host": h, "Score": s} for h, s in scores.items()])

    def asked(self, verb: str) -> list[Json]:
        return [question for asked, question in self.questions if asked == verb]

    def pods_asked(self, verb: str) -> list[str]:
        return [question["Pod"]["metadata"]["name"] for question in self.asked(verb)]

    async def handle(self, request: web.Request) -> web.StreamResponse:
        verb = request.match_info["verb"]
        question = await request.json()
        self.questions.append((verb, question))
        self.on_question()
        if verb not in self.answers:
            return web.Response(status=404)
        answer = await self.answers[verb](question)
        if isinstance(answer, web.StreamResponse):
            return answer
        if isinstance(answer, bytes):
            return web.Response(body=answer)
        return web.json_response(answer)

    def config(self, **fields: Json) -> str:
        """A configuration with this extender only, with node names."""
        return config_of({"urlPrefix": self.url, "nodeCacheCapable": True} | fields)


def config_of(*extenders: Json) -> str:
    import json

    return KUBE + f"extenders: {json.dumps(extenders)}\n"


@asynccontextmanager
async def serving(tls: ssl.SSLContext | None = None) -> AsyncIterator[Service]:
    service = Service()
    app = web.Application()
    app.router.add_post("/prefix/{verb}", service.handle)
    runner = web.AppRunner(app, shutdown_timeout=0.1, handler_cancellation=True)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls)
        await site.start()
        port = runner.addresses[0][1]
        service.url = f"{'https' if tls else 'http'}://127.0.0.1:{port}/prefix"
        yield service
    finally:
        await runner.cleanup()
