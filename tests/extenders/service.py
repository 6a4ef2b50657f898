"""An extender for tests: a real HTTP server on loopback that answers as it is told."""

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
    """The nodes of a question, whichever way it names them."""
    if question["NodeNames"] is not None:
        return list(question["NodeNames"])
    return [item["metadata"]["name"] for item in question["Nodes"]["items"]]


class Service:
    """What answers by verb, and what was asked. A verb without an answer is a 404."""

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
        """As :meth:`answer`; but every question waits until the event that comes back is set."""
        release = anyio.Event()

        async def answered(question: Json) -> Json:
            await release.wait()
            return handler(question)

        self.answers[verb] = answered
        return release

    def pass_only(self, *names: str, reason: str = "refused by the extender") -> None:
        """Filter: these nodes pass, where they are in question."""

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
        """A configuration with this as its only extender, asked for node names."""
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
