"""Wrong requests and unusable journals: one line that says what is wrong and what to do."""

from __future__ import annotations

import html
import re
import shutil
import sqlite3
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path

import anyio
import pytest
import pytest_asyncio
from aiohttp import web

from asched.journal import archive as archiving
from asched.journal.checkpoints import checkpoint_before
from asched.journal.errors import VERIFY_ADVICE
from asched.journal.opening import open_journal
from asched.model.quantity import NS_PER_S
from asched.state.cluster import ClusterState
from asched.state.records import AnyRecord
from asched.ui import api
from asched.ui.indexes import Indexes
from tests.audit.recording import BEGIN_NS, REGISTRY, woken_pod
from tests.journal.conftest import NewDatabase
from tests.journal.test_verification import tamper
from tests.ui.serving import Client, run_command, ui_on

POD = "/pods/default/web"


@pytest.fixture
async def journal(tmp_path: Path) -> str:
    """``web`` is rejected, bound after 1.25 s and deleted after 9 s."""
    url = str(tmp_path / "journal.db")
    await record(url)
    return url


async def record(url: str) -> None:
    async with open_journal(url) as store:
        await woken_pod().store_in(store)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def reader(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Client]:
    """One server for all requests that only read."""
    folder = tmp_path_factory.mktemp("reader")
    url = str(folder / "journal.db")
    await record(url)
    async with ui_on(url, index_dir=folder / "index") as client:
        await client.caught_up()
        yield client


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize(
    ("path", "query", "status", "error"),
    [
        ("/pods/default/wbe", {}, 404, "pod default/wbe is not in the journal; did you mean"),
        ("/pods/default/wbe/timeline", {}, 404, "pod default/wbe is not in the journal"),
        (f"{POD}/decisions/9", {}, 404, "no attempt 9: attempts 1 to 2 exist"),
        (f"{POD}/decisions/x", {}, 400, "attempt: 'x' is not a number from 1 on"),
        (f"{POD}/decisions/1", {"nodes": "all"}, 400, "nodes: 'all' is not devices"),
        (POD, {"at": "2025-12-31T00:00:00Z"}, 404, "the journal begins at 2026-01-01T00:00:00Z"),
        (POD, {"at": "yesterday"}, 400, '"yesterday" is not a time; write 2026-01-31T12:00:00Z'),
        (POD, {"seq": "0"}, 400, "seq: '0' is not a number from 1 on"),
        (POD, {"seq": "1" * 40}, 400, "seq: "),
        (POD, {"seq": "99"}, 404, "there is no record 99: the journal ends at record "),
        (POD, {"seq": "1"}, 404, "pod default/web does not exist at record 1: "),
        (POD, {"seq": "2", "at": "1h"}, 400, "give at or seq, not both"),
        (POD, {"format": "xml"}, 400, "format: 'xml' is neither json nor csv"),
        (POD, {"format": "csv"}, 400, "format: this answer is not a table; use json"),
        ("/cluster/nodes/smal", {}, 404, "no node 'smal' at record "),
        ("/cluster/difference", {}, 400, "from: missing; give from or fromSeq"),
        ("/overview", {"from": "1h", "to": "2h"}, 400, "to: before from"),
        ("/search", {"q": "x" * 400}, 400, "q: longer than 300 characters"),
        ("/search", {"limit": "-3"}, 400, "limit: '-3' is not a number from 1 on"),
        ("/nothing", {}, 404, "there is no such page"),
    ],
)  # fmt: skip
async def test_bad_request(
    reader: Client, path: str, query: dict[str, str], status: int, error: str
) -> None:
    found, text, _ = await reader.fails(path, **query)
    assert found == status
    assert text.startswith(error)


@pytest.mark.asyncio(loop_scope="module")
async def test_moments_of_one_pod(reader: Client) -> None:
    """Its states over time; the answer names the record that it holds for."""
    states = []
    for at in ("2026-01-01T00:00:00Z", "2026-01-01T00:00:02Z", "2026-01-01T01:00:00Z"):
        found = await reader.get(POD, at=at)
        again = await reader.get(POD, seq=found["seq"])
        assert found == again
        states.append(found["status"]["state"])
    without_zone = await reader.get(POD, at="2026-01-01T00:00:02+00:00")
    assert states == ["unschedulable", "bound", "deleted"]
    assert without_zone["status"]["state"] == "bound"
    assert found["sentence"] == (
        "The pod was deleted or has finished; attempt 2 had assigned it to large."
    )


@pytest.mark.asyncio(loop_scope="module")
async def test_only_get_is_allowed(reader: Client) -> None:
    for method in ("POST", "PUT", "DELETE", "PATCH"):
        async with reader.session.request(method, api.PREFIX + POD) as response:
            found = await response.json()
        assert (response.status, found["status"]) == (405, 405)
        assert "GET" in response.headers["Allow"]


async def test_archived_journal(journal: str, tmp_path: Path) -> None:
    async with open_journal(journal) as store:
        before_ns = BEGIN_NS + 5 * NS_PER_S
        await checkpoint_before(store, REGISTRY.load, before_ns)
        moved = await archiving.archive(
            store, tmp_path / "archive", before_ns=before_ns, archived_at_ns=before_ns
        )
    last = moved[-1].last_seq
    async with ui_on(journal) as client:
        await client.caught_up()
        status, error, advice = await client.fails(POD, at="2026-01-01T00:00:00.75Z")
        other = await client.fails(POD, seq=2)
        gone = await client.get(POD)
        report = await client.typed("journal", "/journal")
        found = await client.get("/cluster")
    assert (status, error) == other[:2]
    assert status == 404
    assert error == (
        f"the journal begins at 2026-01-01T00:00:01Z with record {last + 1};"
        f" records 1 to {last} are in the archive"
    )
    assert advice == "choose a later time"
    assert gone["status"]["state"] == "deleted"
    assert (report.archived_seq, report.archive[-1].last_seq) == (last, last)
    assert [node["name"] for node in found["nodes"]] == ["large", "small", "tainted"]


async def test_archived_journal_without_checkpoints(journal: str, tmp_path: Path) -> None:
    async with open_journal(journal) as store:
        before_ns = BEGIN_NS + 5 * NS_PER_S
        await checkpoint_before(store, REGISTRY.load, before_ns)
        await archiving.archive(
            store, tmp_path / "archive", before_ns=before_ns, archived_at_ns=before_ns
        )
    await tamper(journal, "DELETE FROM journal_checkpoint")
    async with ui_on(journal) as client:
        await problem(client)
        status, error, _ = await client.fails("/cluster")
    assert status == 410
    assert "are archived: restore them with `asched journal restore" in error


async def problem(client: Client) -> str:
    """The problem of the journal, once it is known."""
    while not client.view.progress.problem:
        await client.view.changed()
    return client.view.progress.problem


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("payload = '{\"'", "cannot be decoded"),
        ("payload = CAST(payload AS BLOB)", "has a column of a wrong type"),
        ("payload = replace(payload, 'large', 'other')", "contradicts the records before it"),
    ],
)
async def test_corrupt_record(journal: str, change: str, message: str) -> None:
    seq = 11
    await tamper(journal, f"UPDATE journal_record SET {change} WHERE kind = 'Assigned'")
    async with ui_on(journal) as client:
        shown = await problem(client)
        status, error, _ = await client.fails("/cluster")
        past = await client.get("/cluster", seq=4)
        report = await client.typed("journal", "/journal")
        found = await client.get("/search", q="web")
        async with client.session.get("/journal") as response:
            page = await response.text()
    assert "The journal is not verified" in page
    assert (status, error) == (500, shown)
    assert error.startswith("record ")
    assert message in error
    assert VERIFY_ADVICE in error
    assert past["seq"] == 4
    assert report.progress.problem == error
    assert report.progress.indexed_seq < seq
    assert found["results"][0]["state"] == "active"


PAGES = (
    "/search?q=web", "/pods/default/web", "/pods/default/web/decisions/1",
    "/pods/default/web/timeline", "/cluster", "/queues", "/gangs", "/evictions", "/shadow",
    "/plugins", "/journal", "/", "/namespaces",
)  # fmt: skip
ADVICE = {
    "UPDATE journal_record SET payload = '{\"' WHERE kind = 'Assigned'": (
        "cannot be decoded",
        "Run: asched journal verify --journal URL.",
    ),
    "UPDATE journal_record SET version = 99 WHERE kind = 'Assigned'": (
        "has version 99",
        "Use the version of asched that writes the journal.",
    ),
    "UPDATE journal_schema SET version_num = '9999'": (
        "9999",
        "Use the version of asched that writes the journal.",
    ),
}


@pytest.mark.parametrize("change", ADVICE)
async def test_every_page_says_what_is_wrong_and_what_to_do(journal: str, change: str) -> None:
    error, advice = ADVICE[change]
    failed = set()
    await tamper(journal, change)
    async with ui_on(journal) as client:
        await problem(client)
        for path in PAGES:
            async with client.session.get(path) as response:
                page = await response.text()
            assert "Traceback" not in page
            if response.status == 200:
                continue  # what does not depend on the damage
            failed.add(path)
            assert response.status in (500, 503), path
            text = html.unescape(page)
            assert error in text, path
            assert advice in text, path
            assert ("Try again" in text) is (response.status == 503)
    # The overview and the cluster load their answers later, and show the same line.
    assert {"/queues", "/gangs", "/plugins"} <= failed


@pytest.mark.asyncio(loop_scope="module")
async def test_tables_are_available_as_csv(reader: Client) -> None:
    found = set()
    for path in PAGES:
        async with reader.session.get(path) as response:
            page = html.unescape(await response.text())
        link = re.search(r'href="([^"]+format=csv)"', page)
        if link is not None:
            async with reader.session.get(link[1]) as response:
                assert (response.status, response.content_type) == (200, "text/csv"), path
            found.add(path)
    assert {
        "/",
        "/search?q=web",
        "/cluster",
        "/queues",
        "/gangs",
        "/evictions",
        "/plugins",
    } <= found


async def test_journal_of_another_version(journal: str) -> None:
    with closing(sqlite3.connect(journal)) as connection:
        connection.execute("UPDATE journal_schema SET version_num = '9999'")
        connection.commit()
    async with ui_on(journal) as client:
        shown = await problem(client)
        status, error, advice = await client.fails(POD)
    assert (status, error) == (503, shown)
    assert advice == "use the version of asched that writes the journal"


async def test_damage_before_any_record(journal: str) -> None:
    """Nothing is indexed: an empty list of pods or an empty overview would be wrong."""
    await tamper(journal, "UPDATE journal_record SET payload = '{\"' WHERE seq = 1")
    async with ui_on(journal) as client:
        shown = await problem(client)
        for path, query in (("/search", {"q": "web"}), ("/overview", {}), ("/namespaces", {})):
            status, error, advice = await client.fails(path, **query)
            assert (status, error) == (500, shown)
            assert advice == "run: asched journal verify --journal URL"


async def test_journal_without_records(tmp_path: Path) -> None:
    url = str(tmp_path / "journal.db")
    async with open_journal(url):
        pass
    async with ui_on(url) as client:
        await client.caught_up()
        for path in PAGES:
            async with client.session.get(path) as response:
                page = await response.text()
            assert response.status == (404 if path.startswith("/pods/") else 200), path
            assert "1970" not in page, path
            assert "seq=0" not in page, path


async def test_empty_file_becomes_a_journal(tmp_path: Path) -> None:
    """A daemon that starts later creates the tables."""
    path = tmp_path / "journal.db"
    path.touch()
    async with ui_on(str(path)) as client:
        assert "holds no journal" in await problem(client)
        status, _, advice = await client.fails(POD)
        assert status == 503
        assert advice.startswith("check --journal, or start asched run with it")
        await record(str(path))
        while client.view.progress.problem:
            await client.view.changed()
        await client.caught_up()
        assert (await client.get(POD))["status"]["state"] == "deleted"


async def test_file_that_is_no_journal(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    path.write_text("This is not a database, but it is long enough to be read as one." * 40)
    async with ui_on(str(path)) as client:
        await problem(client)
        status, error, _ = await client.fails(POD)
    assert status == 500
    assert "is not an asched journal" in error


async def test_file_that_is_moved_away_and_back(journal: str, tmp_path: Path) -> None:
    away = tmp_path / "away.db"
    async with ui_on(journal) as client:
        await client.caught_up()
        shutil.move(journal, away)
        assert "the file was removed or moved" in await problem(client)
        status, error, advice = await client.fails(POD)
        assert (status, advice) == (503, "the page works again when the journal can be read")
        assert journal in error
        shutil.move(away, journal)
        while client.view.progress.problem:
            await client.view.changed()
        await client.caught_up()
        assert (await client.get(POD))["status"]["state"] == "deleted"


async def test_database_that_goes_away_and_returns(new_postgres_database: NewDatabase) -> None:
    import asyncpg
    from sqlalchemy import make_url

    url = await new_postgres_database()
    await record(url)
    parsed = make_url(url)
    admin = await asyncpg.connect(
        host=parsed.query["host"], user=parsed.username, database="postgres"
    )
    async with ui_on(url) as client:
        await client.caught_up()
        assert (await client.get(POD))["status"]["state"] == "deleted"
        await admin.execute(f'ALTER DATABASE "{parsed.database}" ALLOW_CONNECTIONS false')
        await admin.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = $1",
            parsed.database,
        )
        await problem(client)
        status, _, _ = await client.fails(POD, seq=4)
        assert status == 503
        assert parsed.database is not None
        await admin.execute(f'ALTER DATABASE "{parsed.database}" ALLOW_CONNECTIONS true')
        while client.view.progress.problem:
            await client.view.changed()
        assert (await client.get(POD))["status"]["state"] == "deleted"
    await admin.close()


async def test_bug_shows_no_traceback(journal: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def broken(request: web.Request) -> web.Response:
        raise KeyError("secret detail")

    monkeypatch.setattr(api, "answer", lambda name, request: broken(request))
    async with ui_on(journal) as client:
        status, error, advice = await client.fails(POD)
    assert (status, error) == (500, "internal error")
    assert advice == "the log of asched ui has the details"


async def test_bug_while_following(journal: str, monkeypatch: pytest.MonkeyPatch) -> None:
    followed = Indexes.after

    def broken(indexes: Indexes, seq: int, record: AnyRecord, state: ClusterState) -> None:
        if seq == 11:
            raise KeyError("secret detail")
        followed(indexes, seq, record, state)

    monkeypatch.setattr(Indexes, "after", broken)
    async with ui_on(journal) as client:
        shown = await problem(client)
        status, error, advice = await client.fails("/cluster")
        past = await client.get("/cluster", seq=4)
    assert (status, error) == (500, shown)
    assert error == "internal error while following the journal"
    assert advice == "the log of asched ui has the details"
    assert past["seq"] == 4


@pytest.fixture
def token_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("token").write_text("0123456789abcdef0123\n")
    Path("short").write_text("abc")


@pytest.mark.usefixtures("token_files")
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--journal", "absent.db"), "asched: cannot open absent.db: no such file\n"),
        (("--journal", "ftp://x"), "asched: cannot keep a journal in ftp://x: expected"),
        (("--listen", "8080"), "asched: --listen 8080: not HOST:PORT, such as 127.0.0.1:8080\n"),
        (
            ("--listen", "0.0.0.0:0"),
            "asched: --listen 0.0.0.0:0: beyond loopback give --token-file FILE or",
        ),
        (
            ("--listen", "0.0.0.0:0", "--token-file", "token"),
            "asched: --listen 0.0.0.0:0: beyond loopback give --tls-certificate and --tls-key, or",
        ),
        (("--token-file", "short"), "asched: short: the token has 3 characters; at least 16 are"),
        (("--token-file", "none"), "asched: none: cannot be read: No such file or directory\n"),
        (("--tls-key", "token"), "asched: --tls-certificate and --tls-key go together\n"),
        (
            ("--tls-certificate", "token", "--tls-key", "token"),
            "asched: token, token: not a certificate and its key: ",
        ),
    ],
)
async def test_wrong_options(arguments: tuple[str, ...], message: str) -> None:
    code, out, err = await run_command("ui", *arguments)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith(message)


async def test_address_in_use(journal: str) -> None:
    async with ui_on(journal) as client:
        address = client.url.removeprefix("http://")
        with anyio.fail_after(60):
            code, _, err = await run_command("ui", "--journal", journal, "--listen", address)
    assert code == 2
    assert err.startswith(f"asched: cannot listen on {address}: ")
    assert err.count("\n") == 1
