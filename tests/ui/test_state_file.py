"""Checkpoints of the index: kept next to it, used by workers, and never for other records."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import aiohttp
import pytest

from asched.audit.lookup import fold_before
from asched.journal.opening import open_journal
from asched.state.checkpoint import checkpoint_of
from asched.ui import follower, state_file
from asched.ui.app import Listen, make_app, serving
from asched.ui.follower import FollowerSettings
from asched.ui.journal_view import open_view
from asched.ui.state_file import StateFile, with_states
from tests.audit.recording import REGISTRY, woken_pod
from tests.ui.serving import NO_TOKEN, Client

PATHS = ("/pods/default/web", "/pods/default/web/decisions/1", "/pods/default/web/timeline")


@pytest.fixture
async def journal(tmp_path: Path) -> Path:
    path = tmp_path / "journal.db"
    async with open_journal(str(path)) as store:
        await woken_pod().store_in(store)
    return path


async def _answers(journal: Path, index_dir: Path | None) -> list[Any]:
    async with (
        open_view(str(journal), FollowerSettings(REGISTRY, index_dir)) as view,
        serving(make_app(view, NO_TOKEN), Listen("127.0.0.1", 0)) as address,
        aiohttp.ClientSession(address) as session,
    ):
        client = Client(address, view, session, str(journal))
        await client.caught_up()
        last = await client.head()
        return [await client.get(path, seq=seq) for path in PATHS for seq in (last - 2, last)]


async def test_answers_from_states_are_those_of_a_fold(
    journal: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fresh = await _answers(journal, None)
    monkeypatch.setattr(follower, "EVERY_RECORDS", 2)
    kept = tmp_path / "kept"
    assert await _answers(journal, kept) == fresh
    (file,) = kept.glob("*.states")
    assert file.stat().st_mode & 0o077 == 0
    async with open_journal(str(journal), read_only=True) as store:
        marks = [mark.seq for mark in await with_states(store, file).checkpoint_marks()]
        assert len(marks) > len(await store.checkpoint_marks()) + 2
    assert await _answers(journal, kept) == fresh


async def test_nearest_of_journal_and_file(journal: Path, tmp_path: Path) -> None:
    states = StateFile(tmp_path / "states")
    async with open_journal(str(journal), read_only=True) as store:
        for seq in (3, 6, 9):
            fold = await fold_before(store, REGISTRY.load, seq + 1)
            states.add(seq, checkpoint_of(fold.state))
        both = with_states(store, states.path)
        found = [await both.load_checkpoint(seq) for seq in (2, 3, 8, None)]
        assert [None if one is None else one.seq for one in found] == [None, 3, 6, 9]
        states.drop_after(5)
        assert [mark.seq for mark in await both.checkpoint_marks()] == [3]
    states.close()


async def test_number_of_states_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_file, "MAX_BYTES", 100)
    states = StateFile(tmp_path / "states")
    for seq in range(1, 50):
        states.add(seq, b"x" * 10)
    states.close()
    again = StateFile(tmp_path / "states")
    assert again.last_seq == 49
    again.close()
    assert (tmp_path / "states").stat().st_size < 50_000


async def test_missing_or_damaged_file_is_no_error(journal: Path, tmp_path: Path) -> None:
    async with open_journal(str(journal), read_only=True) as store:
        (tmp_path / "damaged").write_bytes(b"no database" * 1000)
        for name in ("absent", "damaged"):
            both = with_states(store, tmp_path / name)
            assert await both.checkpoint_marks() == await store.checkpoint_marks()
            assert await both.load_checkpoint() == await store.load_checkpoint()
