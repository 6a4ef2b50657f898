"""An idle writer learns that its journal is no longer its own."""

from __future__ import annotations

import re
from pathlib import Path

import anyio
import pytest

from asched.cli.errors import CommandError, as_command_error
from asched.journal import open_journal
from asched.journal.errors import FencedError, JournalHeldError, JournalReplacedError
from tests.daemon.world import world
from tests.journal.conftest import OpenStore
from tests.journal.samples import turn


async def test_deposed_writer_is_rejected_without_append(open_store: OpenStore) -> None:
    old, new = await open_store(), await open_store()
    await old.check_writer()  # never claimed
    await old.claim("old", claimed_at_ns=1)
    await old.check_writer()
    await new.claim("new", claimed_at_ns=2)
    await new.check_writer()
    with pytest.raises(FencedError, match="epoch 2 fenced epoch 1"):
        await old.check_writer()


async def test_writer_without_its_file_stores_nothing(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    async with open_journal(str(path)) as store:
        await store.claim("one", claimed_at_ns=1)
        await store.append(turn(1), written_at_ns=1)
        path.rename(tmp_path / "moved.db")
        with pytest.raises(JournalReplacedError, match="was removed or moved while it was in use"):
            await store.check_writer()
        with pytest.raises(JournalReplacedError):
            await store.append(turn(2), written_at_ns=2)
        with pytest.raises(JournalReplacedError):
            await store.save_checkpoint(3, b"state")
        with pytest.raises(JournalReplacedError):
            await store.claim("again", claimed_at_ns=2)
    async with open_journal(str(tmp_path / "moved.db"), read_only=True) as moved:
        assert [s.record async for s in moved.read()] == turn(1)


async def test_one_daemon_and_any_other_writers(tmp_path: Path) -> None:
    """``asched checkpoint`` and ``archive`` write next to a daemon."""
    url = str(tmp_path / "journal.db")
    async with open_journal(url, daemon=True) as store:
        await store.claim("daemon", claimed_at_ns=1)
        await store.append(turn(1), written_at_ns=1)
        with pytest.raises(
            JournalHeldError, match=r"another daemon uses .*: process [0-9]+ on host"
        ):
            async with open_journal(url, daemon=True):
                pass
        async with open_journal(url) as other:
            await other.save_checkpoint(3, b"state")
        await store.append(turn(2), written_at_ns=2)
    async with open_journal(url, daemon=True):
        pass


async def test_idle_daemon_ends_when_deposed(database_url: str, tmp_path: Path) -> None:
    (tmp_path / "world").mkdir()
    async with world(tmp_path / "world", nodes=1) as w, open_journal(database_url) as store:

        async def run() -> None:
            async with w.daemon_on(store) as daemon:
                await daemon.synced.wait()
                async with open_journal(database_url) as other:
                    await other.claim("another", claimed_at_ns=1)
                await anyio.sleep_forever()

        with pytest.raises(ExceptionGroup) as raised, anyio.fail_after(30):
            await run()
        error = as_command_error(raised.value)
        assert isinstance(error, CommandError)
        assert error.exit_code == 1
        # Noticed by the periodic check, or by a last append.
        assert re.search("another process (has )?claimed (this|the) journal", str(error))
