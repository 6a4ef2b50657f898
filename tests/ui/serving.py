"""Serves journals over HTTP, in the process of the test."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import aiohttp
import anyio
import msgspec
import structlog
from typer.testing import CliRunner

from asched.cli.main import app as command
from asched.journal.opening import open_journal
from asched.pricing.prices import Prices
from asched.ui.api import PREFIX, ROUTES
from asched.ui.app import Listen, make_app, serving
from asched.ui.follower import FollowerSettings
from asched.ui.journal_view import JournalView, open_view
from asched.ui.lab.runs import LabSettings
from asched.ui.security import Access, AccessControl
from tests.audit.recording import REGISTRY

NO_TOKEN = Access()


class Client(NamedTuple):
    """A running server and a session with it."""

    url: str
    view: JournalView
    session: aiohttp.ClientSession
    journal: str

    async def get(self, path: str, **query: object) -> Any:
        """A successful answer as JSON."""
        async with self.session.get(PREFIX + path, params=_texts(query)) as response:
            body = await response.read()
            assert response.status == 200, body
            assert response.content_type == "application/json"
            return json.loads(body)

    async def typed(self, name: str, path: str, **query: object) -> Any:
        """A successful answer as the struct that the route declares."""
        async with self.session.get(PREFIX + path, params=_texts(query)) as response:
            body = await response.read()
            assert response.status == 200, body
            decoded = msgspec.json.decode(body, type=ROUTES[name].answers)
            assert json.loads(msgspec.json.encode(decoded)) == json.loads(body)
            return decoded

    async def fails(self, path: str, **query: object) -> tuple[int, str, str]:
        """Status, error and advice."""
        async with self.session.get(PREFIX + path, params=_texts(query)) as response:
            found = await response.json()
            assert found["status"] == response.status
            assert "Traceback" not in found["error"]
            assert "\n" not in found["error"]
            return response.status, found["error"], found["advice"]

    async def caught_up(self) -> None:
        """Wait until everything that is in the journal now is indexed."""
        await self.view.indexed(await self.head())

    async def head(self) -> int:
        """The newest record of the journal."""
        async with open_journal(self.journal, read_only=True) as store:
            return (await store.head()).seq


def _texts(query: dict[str, object]) -> dict[str, str]:
    return {name.removesuffix("_"): str(value) for name, value in query.items()}


@asynccontextmanager
async def ui_on(
    url: str,
    access: AccessControl = NO_TOKEN,
    lab: LabSettings | None = None,
    index_dir: Path | None = None,
    prices: Prices | None = None,
) -> AsyncIterator[Client]:
    """The browser interface on the journal at ``url``."""
    async with (
        open_view(url, FollowerSettings(REGISTRY, index_dir, prices=prices)) as view,
        serving(make_app(view, access, lab), Listen("127.0.0.1", 0)) as address,
        aiohttp.ClientSession(address) as session,
    ):
        yield Client(address, view, session, url)


def pod_path(namespace: str, name: str, rest: str = "") -> str:
    return f"/pods/{quote(namespace, safe='')}/{quote(name, safe='')}{rest}"


async def cli(*arguments: str) -> Any:
    """What a command prints with ``-o json``."""
    code, out, err = await run_command(*arguments, "-o", "json")
    assert code == 0, err
    return json.loads(out)


async def run_command(*arguments: str) -> tuple[int, str, str]:
    """Exit code, output and errors of a command, which has an event loop of its own."""

    return await anyio.to_thread.run_sync(lambda: invoke(*arguments))


def invoke(*arguments: str) -> tuple[int, str, str]:
    """As :func:`run_command`, for a test without an event loop."""
    result = CliRunner().invoke(command, [*arguments], prog_name="asched")
    structlog.reset_defaults()
    return result.exit_code, result.stdout, result.stderr
