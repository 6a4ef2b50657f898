"""Contents of a journal are data: names that are markup, paths or formulas change nothing."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from asched.journal.opening import open_journal
from asched.ui.api import PREFIX
from asched.ui.security import HEADERS
from tests.audit.recording import Recording, node, pod
from tests.ui.serving import Client, pod_path, ui_on

NAMES = (
    "<img src=x onerror=alert(1)>",
    "</script><script>alert(1)</script>",
    "{{7*7}}{% raw %}",
    '=HYPERLINK("http://evil")',
    "../../etc/passwd",
    "a/b?seq=1#c%2F%00",
    "two\nlines\r\nX-Header: 1",
    "\u202egnp.exe",
)
NAMESPACE = "<b>ns</b>"
PATHS = ("", "/decisions", "/decisions/1", "/timeline")


pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def client(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Client]:
    """One server for all tests: they only read."""
    journal = await hostile_journal(tmp_path_factory.mktemp("hostile"))
    async with ui_on(journal) as served:
        await served.caught_up()
        yield served


async def hostile_journal(folder: Path) -> str:
    recording = Recording()
    recording.see(node("n<1>", "8", **{"<script>": "<img onerror>"}), node("full", "1"))
    recording.see(
        *(pod(name, "1", namespace=NAMESPACE, uid=f"u{i}") for i, name in enumerate(NAMES))
    )
    recording.see(pod("too-big", "99", namespace=NAMESPACE))
    recording.bind(recording.decide())
    recording.turn(1.0)
    url = str(folder / "journal.db")
    async with open_journal(url) as store:
        await recording.store_in(store)
    return url


@pytest.mark.parametrize("name", NAMES)
async def test_hostile_name_is_answered_as_it_is(client: Client, name: str) -> None:
    for rest in PATHS:
        await _is_data(client.session, pod_path(NAMESPACE, name, rest))
    summary = await client.get(pod_path(NAMESPACE, name))
    found = await client.get("/search", q=name)
    assert (summary["namespace"], summary["name"]) == (NAMESPACE, name)
    assert summary["status"]["state"] == "bound"
    assert [(hit["namespace"], hit["name"]) for hit in found["results"]] == [(NAMESPACE, name)]


async def _is_data(session: object, path: str) -> None:
    async with session.get(PREFIX + path) as response:  # type: ignore[attr-defined]
        assert response.status == 200, await response.text()
        assert response.content_type == "application/json"
        assert "X-Header" not in response.headers
        assert {name: response.headers[name] for name in HEADERS} == HEADERS


@pytest.mark.parametrize("name", NAMES)
async def test_error_about_hostile_name_is_json(client: Client, name: str) -> None:
    status, error, _ = await client.fails(pod_path("absent", name))
    async with client.session.get(f"{PREFIX}{pod_path('absent', name)}") as response:
        assert response.content_type == "application/json"
        assert response.headers["X-Content-Type-Options"] == "nosniff"
    assert status == 404
    assert error.startswith("pod absent/")


async def test_table_has_no_formulas(client: Client) -> None:
    url = f"{PREFIX}/search?q=&limit=100&format=csv"
    async with client.session.get(url) as response:
        rows = [*csv.DictReader(io.StringIO(await response.text()))]
        assert response.headers["Content-Disposition"].startswith("attachment")
    names = [row["name"] for row in rows]
    assert f"'{NAMES[3]}" in names
    assert not any(name.startswith(("=", "+", "-", "@")) for name in names)


async def test_text_error_is_not_markup(client: Client) -> None:
    async with client.session.get("/<img src=x onerror=alert(1)>") as response:
        text = await response.text()
    assert response.status == 404
    assert "<img" not in text
    assert json.dumps(HEADERS["Content-Security-Policy"]) == json.dumps(
        response.headers["Content-Security-Policy"]
    )
