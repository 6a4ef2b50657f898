"""The index is kept between starts, extended, and discarded where it does not fit."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import structlog

from asched.journal.opening import open_journal
from asched.ui.app import Listen, make_app, serving
from asched.ui.follower import FollowerSettings
from asched.ui.index_file import IndexFile, open_index
from asched.ui.index_tables import VERSION
from asched.ui.indexes import Indexes
from asched.ui.journal_view import JournalView, open_view
from tests.audit.recording import REGISTRY, Recording, node, pod, woken_pod
from tests.ui.serving import NO_TOKEN, Client

QUESTIONS: tuple[tuple[str, dict[str, object]], ...] = (
    ("/search", {"q": ""}),
    ("/overview", {}),
    ("/cluster", {}),
    ("/cluster", {"seq": 9}),
    ("/pods/default/web", {}),
    ("/pods/default/web/timeline", {}),
    ("/plugins", {}),
)


@asynccontextmanager
async def _ui(journal: Path, index_dir: Path | None) -> AsyncIterator[Client]:
    async with (
        open_view(str(journal), FollowerSettings(REGISTRY, index_dir)) as view,
        serving(make_app(view, NO_TOKEN), Listen("127.0.0.1", 0)) as address,
        aiohttp.ClientSession(address) as session,
    ):
        client = Client(address, view, session, str(journal))
        await client.caught_up()
        yield client


async def _answers(journal: Path, index_dir: Path | None) -> list[Any]:
    async with _ui(journal, index_dir) as client:
        return [await client.get(path, **query) for path, query in QUESTIONS]


async def _stored(path: Path, recording: Recording) -> Path:
    async with open_journal(str(path)) as store:
        await recording.store_in(store)
    return path


@pytest.fixture
async def journal(tmp_path: Path) -> Path:
    return await _stored(tmp_path / "journal.db", woken_pod())


def _file(index_dir: Path) -> Path:
    (found,) = index_dir.glob("*.index")
    return found


async def test_answers_with_a_kept_index_are_those_without(journal: Path, tmp_path: Path) -> None:
    fresh = await _answers(journal, None)
    assert await _answers(journal, tmp_path / "kept") == fresh
    assert await _answers(journal, tmp_path / "kept") == fresh
    assert _file(tmp_path / "kept").stat().st_mode & 0o077 == 0


async def test_state_and_index_are_restored_after_a_long_catch_up(
    journal: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fresh, loaded = await _answers(journal, None), list[IndexFile]()

    def counted(file: IndexFile) -> tuple[Indexes, int]:
        loaded.append(file)
        return load(file)

    load = IndexFile.load
    monkeypatch.setattr(IndexFile, "load", counted)
    monkeypatch.setattr("asched.ui.follower._LONG_RECORDS", 1)
    assert await _answers(journal, tmp_path / "kept") == fresh
    assert len(loaded) == 1


async def test_index_that_was_damaged_during_a_long_catch_up_is_built_again(
    journal: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fresh, cleared, load = await _answers(journal, None), list[IndexFile](), IndexFile.load

    def damaged(file: IndexFile) -> tuple[Indexes, int]:
        if len(cleared) < 2:  # the empty one at the start, and the damaged one
            raise ValueError("rows are missing")
        return load(file)

    def clear(file: IndexFile) -> None:
        cleared.append(file)
        empty(file)

    empty = IndexFile.clear
    monkeypatch.setattr(IndexFile, "load", damaged)
    monkeypatch.setattr(IndexFile, "clear", clear)
    monkeypatch.setattr("asched.ui.follower._LONG_RECORDS", 1)
    assert await _answers(journal, tmp_path / "kept") == fresh
    assert len(cleared) == 2


async def test_kept_index_is_not_built_again(
    journal: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fresh = await _answers(journal, tmp_path)
    monkeypatch.setattr("asched.ui.index.JournalIndex.apply", None)
    monkeypatch.setattr("asched.ui.index.JournalIndex.begin", None)
    assert await _answers(journal, tmp_path) == fresh


async def test_kept_index_is_extended(journal: Path, tmp_path: Path) -> None:
    await _answers(journal, tmp_path)
    async with open_journal(str(journal)) as store:
        recording = woken_pod()
        before = len(recording.records)
        recording.turn(20.0)
        recording.see(node("later", "4", zone="z"), pod("later", "1"))
        recording.bind(recording.decide())
        await store.claim("later", claimed_at_ns=recording.state.date_ns)
        await store.append(recording.records[before:], written_at_ns=recording.state.date_ns)
    assert await _answers(journal, tmp_path) == await _answers(journal, None)


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        ("PRAGMA user_version = 99", f"it has version 99, this asched uses {VERSION}"),
        ("UPDATE mark SET form = x'00'", "Expected `array`, got `int`"),
        ("DROP TABLE pod", "rows are missing"),
        ("UPDATE pod SET form = x'00'", "Expected `array`, got `int`"),
        ("UPDATE chunk SET form = x'00'", "Expected `array`, got `int`"),
    ],
)
async def test_unusable_index_is_replaced_or_not_used(
    journal: Path, tmp_path: Path, damage: str, reason: str
) -> None:
    fresh = await _answers(journal, tmp_path)
    with sqlite3.connect(_file(tmp_path)) as connection:
        connection.execute(damage)
    connection.close()
    with structlog.testing.capture_logs() as logs:
        assert await _answers(journal, tmp_path) == fresh
    assert {line["reason"] for line in logs} == {reason}
    assert await _answers(journal, tmp_path) == fresh


async def test_file_that_is_no_database_is_replaced(journal: Path, tmp_path: Path) -> None:
    fresh = await _answers(journal, tmp_path)
    _file(tmp_path).write_bytes(b"no database" * 1000)
    assert await _answers(journal, tmp_path) == fresh


async def test_index_of_other_records_is_replaced(journal: Path, tmp_path: Path) -> None:
    """A journal with the same first writer and other records, as after a restore."""
    index_dir = tmp_path / "kept"
    await _answers(journal, index_dir)
    other = woken_pod()
    other.turn(30.0)
    other.see(node("other", "2"))
    shorter = Recording()
    shorter.see(node("small", "1"), pod("web", "1"))
    shorter.decide()
    for number, recording in enumerate((other, shorter)):
        changed = await _stored(tmp_path / f"other{number}.db", recording)
        assert await _answers_or_missing(changed, index_dir) == await _answers_or_missing(
            changed, None
        )


async def _answers_or_missing(journal: Path, index_dir: Path | None) -> list[Any]:
    async with _ui(journal, index_dir) as client:
        return [await client.get("/search", q=""), await client.get("/cluster")]


async def test_second_process_works_on_a_copy(journal: Path, tmp_path: Path) -> None:
    async with _ui(journal, tmp_path) as first:
        expected = await first.get("/search", q="")
        async with _ui(journal, tmp_path) as second:
            assert await second.get("/search", q="") == expected
    before = _file(tmp_path).read_bytes()
    assert before


async def test_second_process_starts_with_what_is_kept(journal: Path, tmp_path: Path) -> None:
    await _answers(journal, tmp_path)
    name = _file(tmp_path).stem
    first, second = open_index(tmp_path, name), open_index(tmp_path, name)
    try:
        assert first.shared
        assert not second.shared
        assert second.mark() == first.mark() != (0, 0, "")
    finally:
        first.close()
        second.close()


async def test_folder_that_cannot_be_used_is_no_error(journal: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert await _answers(journal, tmp_path / "file") == await _answers(journal, None)


async def test_first_page_needs_no_index(journal: Path, tmp_path: Path) -> None:
    view: JournalView
    async with (
        open_view(str(journal), FollowerSettings(REGISTRY, tmp_path)) as view,
        serving(make_app(view, NO_TOKEN), Listen("127.0.0.1", 0)) as address,
        aiohttp.ClientSession(address) as session,
        session.get("/") as response,
    ):
        assert response.status == 200


GROUP_QUESTIONS: tuple[tuple[str, dict[str, object]], ...] = (
    ("/evictions", {}),
    ("/queues/history", {}),
    ("/namespaces", {}),
    ("/search", {"q": ""}),
    ("/gangs", {}),
)


async def test_evictions_queues_and_groups_are_kept(
    recorded_groups: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def answers(index_dir: Path | None) -> list[Any]:
        async with _ui(recorded_groups, index_dir) as client:
            found = [await client.get(path, **query) for path, query in GROUP_QUESTIONS]
            gangs = [(gang["namespace"], gang["name"]) for gang in found[-1]["gangs"]]
            assert len(gangs) > 1
            for namespace, name in gangs:
                found.append(await client.get(f"/gangs/{namespace}/{name}/timeline"))
            return found

    fresh = await answers(None)
    assert fresh[0]["total"] > 10
    assert await answers(tmp_path / "kept") == fresh
    monkeypatch.setattr("asched.ui.logs.FollowedLogs.apply", None)
    assert await answers(tmp_path / "kept") == fresh
