"""Who may read: hosts, tokens, cookies and headers; limits; live journals; the command."""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import anyio
import pytest

from asched.cli.ui import index_folder
from asched.journal.opening import open_journal
from asched.state.records import AnyRecord, ObjectObserved, TurnStarted
from asched.ui import app, journal_view
from asched.ui.api import PREFIX
from asched.ui.security import COOKIE, HEADERS, Access
from tests.audit.recording import BEGIN_NS, pod, woken_pod
from tests.ui.serving import ui_on

TOKEN = "0123456789abcdef-secret"
ROOT = Path(__file__).parents[2]


@pytest.fixture
async def journal(tmp_path: Path) -> str:
    url = str(tmp_path / "journal.db")
    async with open_journal(url) as store:
        await woken_pod().store_in(store)
    return url


@pytest.mark.parametrize("path", ["/", "/search?q=web", f"{PREFIX}/journal", "/absent", "/login"])
async def test_every_answer_has_the_headers(journal: str, path: str) -> None:
    async with ui_on(journal) as client:
        await client.caught_up()
        async with client.session.get(path) as response:
            assert {name: response.headers[name] for name in HEADERS} == HEADERS
    policy = HEADERS["Content-Security-Policy"]
    assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self';")
    assert "unsafe" not in policy


async def test_foreign_host_name_is_rejected(journal: str) -> None:
    async with ui_on(journal) as client:
        for host, status in (("evil.example", 421), ("localhost:1", 200), ("[::1]:80", 200)):
            url = f"{PREFIX}/openapi.json"
            async with client.session.get(url, headers={"Host": host}) as response:
                assert response.status == status


async def test_token_is_needed(journal: str) -> None:
    async with ui_on(journal, Access(TOKEN)) as client:
        await client.caught_up()
        for header in ("", f"Bearer {TOKEN}x", f"Basic {TOKEN}", "Bearer "):
            headers = {"Authorization": header} if header else {}
            async with client.session.get(f"{PREFIX}/journal", headers=headers) as response:
                assert response.status == 401
                assert response.headers["WWW-Authenticate"] == "Bearer"
        headers = {"Authorization": f"Bearer {TOKEN}"}
        async with client.session.get(f"{PREFIX}/journal", headers=headers) as response:
            assert response.status == 200
        async with client.session.get("/cluster?seq=3", allow_redirects=False) as response:
            assert response.status == 303
            assert response.headers["Location"] == "/login?next=/cluster?seq%3D3"
            assert {name: response.headers[name] for name in HEADERS} == HEADERS


@pytest.mark.parametrize(
    ("wanted", "location"),
    [
        ("/cluster", "/cluster"),
        ("//evil.example", "/"),
        ("https://evil", "/"),
        ("/\\evil", "/"),
        ("/\t/evil.example", "/"),
        ("/\r\nSet-Cookie: a=b", "/"),
    ],
)
async def test_login_gives_a_cookie(journal: str, wanted: str, location: str) -> None:
    async with ui_on(journal, Access(TOKEN, secure=True)) as client:
        form = {"token": "wrong", "next": wanted}
        async with client.session.post("/login", data=form) as response:
            assert (response.status, COOKIE in response.cookies) == (403, False)
        form["token"] = TOKEN
        async with client.session.post("/login", data=form, allow_redirects=False) as response:
            assert (response.status, response.headers["Location"]) == (303, location)
            cookie = response.cookies[COOKIE]
        assert (cookie["httponly"], cookie["secure"], cookie["samesite"]) == (True, True, "Strict")
        assert TOKEN not in cookie.value
        expires, _, signature = cookie.value.partition(".")
        for value, status in (
            (cookie.value, 200),
            (f"{int(expires) + 1}.{signature}", 401),
            (f"x.{signature}", 401),
            ("", 401),
        ):
            headers = {"Cookie": f"{COOKIE}={value}"}
            async with client.session.get(f"{PREFIX}/openapi.json", headers=headers) as response:
                assert response.status == status


@pytest.mark.parametrize(
    ("access", "head", "status"),
    [
        (Access(TOKEN), b"Authorization: Bearer \xff\xfe", 401),
        (Access(TOKEN), b"Cookie: asched_session=9.\xff", 401),
        (Access(), b"Host: [", 421),
        (Access(), b"Host: [::1", 421),
    ],
)
async def test_malformed_header_is_no_bug(
    journal: str, access: Access, head: bytes, status: int
) -> None:
    host = b"" if head.startswith(b"Host") else b"Host: localhost\r\n"
    async with ui_on(journal, access) as client:
        address = urlsplit(client.url)
        stream = await anyio.connect_tcp(address.hostname or "", address.port or 0)
        async with stream:
            await stream.send(b"GET /api/v1/openapi.json HTTP/1.1\r\n" + host + head + b"\r\n\r\n")
            answer = await stream.receive()
    assert answer.startswith(b"HTTP/1.1 %d " % status)


@pytest.mark.parametrize(
    "kind", ["multipart/form-data; boundary=x", "application/x-www-form-urlencoded; charset=x"]
)
async def test_login_takes_only_a_form(journal: str, kind: str) -> None:
    async with ui_on(journal, Access(TOKEN)) as client:
        sent = client.session.post("/login", data=b"--x\r\n", headers={"Content-Type": kind})
        async with sent as response:
            assert response.status == 400


async def test_queries_and_streams_are_limited(
    journal: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal_view, "MAX_QUERIES", 0)
    monkeypatch.setattr(app, "MAX_STREAMS", 0)
    async with ui_on(journal) as client:
        assert (await client.fails("/journal"))[0] == 503
        async with client.session.get(f"{PREFIX}/events") as response:
            assert (response.status, response.headers["Retry-After"]) == (503, "2")


async def test_growing_journal_is_followed(journal: str) -> None:
    async with ui_on(journal) as client:
        await client.caught_up()
        async with (
            client.session.get(f"{PREFIX}/events") as events,
            open_journal(journal) as store,
        ):
            assert events.content_type == "text/event-stream"
            before = await _next_event(events.content)
            await store.claim("other", claimed_at_ns=BEGIN_NS)
            now_ns = BEGIN_NS + 20 * 10**9
            new: list[AnyRecord] = [TurnStarted(now_ns), ObjectObserved(pod("late", "64"))]
            appended = await store.append(new, written_at_ns=now_ns)
            after = before
            while after["seq"] == before["seq"]:  # an event may report a verification only
                after = await _next_event(events.content)
        found = await client.get("/pods/default/late")
        hits = await client.get("/search", q="late")
        old = await client.get("/search", q="web")
    assert before["seq"] == appended.first_seq - 1
    assert after["seq"] == found["seq"] == appended.last_seq
    assert after["counts"]["observed"] == before["counts"]["observed"] + 1
    assert found["status"] | {"state": "active", "queuePosition": 1} == found["status"]
    assert [hit["name"] for hit in hits["results"]] == ["late"]
    assert [hit["state"] for hit in old["results"]] == ["deleted"]


async def _next_event(stream: aiohttp.StreamReader) -> Any:
    while True:
        line = await stream.readline()
        if line.startswith(b"data: "):
            return json.loads(line.removeprefix(b"data: "))


async def test_command_serves_until_a_signal(journal: str) -> None:
    command = [sys.executable, "-m", "asched", "ui", "--journal", journal, "--listen", "[::1]:0"]
    environment = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT)}
    async with await anyio.open_process(command, env=environment) as process:
        assert process.stdout is not None
        line = (await process.stdout.receive()).decode()
        assert line.startswith(f"serving {journal} at http://[::1]:")
        process.send_signal(signal.SIGTERM)
        assert await process.wait() == 0


def test_index_is_kept_in_the_cache_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert index_folder(None) == tmp_path / "asched"
    assert index_folder(tmp_path / "own") == tmp_path / "own"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert index_folder(None) == tmp_path / ".cache" / "asched"
