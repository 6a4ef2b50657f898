"""One daemon per journal file, which notices when the file is no longer its own."""

from __future__ import annotations

import os
import re
import shutil
import signal
import sqlite3
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, closing
from pathlib import Path

import anyio
import pytest

from asched.journal import open_journal
from tests.daemon.processes import Command, Commands, commands, running
from tests.daemon.test_run_command import arguments, stopped, until_logged
from tests.daemon.world import TIMEOUT_S, World, world

SOON_S = 10.0
"""Limit for noticing; the journal is checked every 2 s."""


async def test_second_daemon_is_refused_and_first_continues(tmp_path: Path) -> None:
    async with (
        world(tmp_path, nodes=1) as w,
        commands(tmp_path) as runner,
        other_commands(tmp_path) as other,
        running(runner, *arguments(w)) as first,
    ):
        await until_logged(first, "caches synced")
        second = await other.start(*arguments(w))
        assert await other.ended(second) == 1
        line = second.lines[-1]
        assert line.startswith(f"asched: another daemon uses {w.journal}: process {first.pid} on")
        assert f"on host {os.uname().nodename} since 2" in line
        assert "Traceback" not in second.output
        w.add_pod("p")
        await w.until(lambda: w.node_of("p") == "n0")
        assert await stopped(runner, first) == 0
    assert await writers(w) == 1


async def test_lock_ends_with_killed_daemon(tmp_path: Path) -> None:
    async with world(tmp_path, nodes=1) as w, commands(tmp_path) as runner:
        async with running(runner, *arguments(w)) as first:
            await until_logged(first, "caches synced")
            first.send(signal.SIGKILL)
            assert await runner.ended(first) == -signal.SIGKILL
        w.add_pod("p")
        async with running(runner, *arguments(w)) as second:
            await w.until(lambda: w.node_of("p") == "n0")
            assert await stopped(runner, second) == 0


async def test_second_daemon_behind_symbolic_link_is_refused(tmp_path: Path) -> None:
    async with (
        world(tmp_path, nodes=1) as w,
        commands(tmp_path) as runner,
        other_commands(tmp_path) as other,
        running(runner, *arguments(w)) as first,
    ):
        await until_logged(first, "caches synced")
        w.journal = tmp_path / "link.db"
        w.journal.symlink_to(tmp_path / "journal.db")
        second = await other.start(*arguments(w))
        assert await other.ended(second) == 1
        assert f"process {first.pid} on host" in second.lines[-1]


def remove(journal: Path) -> None:
    journal.unlink()


def move(journal: Path) -> None:
    journal.rename(journal.with_name("moved.db"))


def move_all(journal: Path) -> None:
    (journal.parent / "moved").mkdir()
    for path in journal.parent.glob("journal.db*"):
        path.rename(journal.parent / "moved" / path.name)


def replace(journal: Path) -> None:
    copy = journal.with_name("copy.db")
    shutil.copy(journal, copy)
    copy.replace(journal)


def remove_log(journal: Path) -> None:
    journal.with_name("journal.db-wal").unlink()


@pytest.mark.parametrize("change", [remove, move, move_all, replace, remove_log])
async def test_idle_daemon_ends_when_its_file_is_gone(
    tmp_path: Path, change: Callable[[Path], None]
) -> None:
    async with world(tmp_path, nodes=1) as w, commands(tmp_path) as runner:
        async with running(runner, *arguments(w)) as daemon:
            await until_logged(daemon, "caches synced")
            change(w.journal)
            assert await ended_soon(runner, daemon) == 1
        path = f"{w.journal}-wal" if change is remove_log else w.journal
        what = "replaced" if change is replace else "removed or moved"
        assert daemon.lines[-1].startswith(f"asched: {path} was {what} while it was in use")
        assert "Traceback" not in daemon.output


async def test_daemon_without_its_file_binds_nothing(tmp_path: Path) -> None:
    async with world(tmp_path, nodes=1) as w, commands(tmp_path) as runner:
        async with running(runner, *arguments(w)) as daemon:
            await until_logged(daemon, "caches synced")
            w.journal.unlink()
            w.add_pod("p")
            assert await ended_soon(runner, daemon) == 1
        assert not w.placements.order
        async with running(runner, *arguments(w)) as daemon:
            await w.until(lambda: w.node_of("p") == "n0")
            assert await stopped(runner, daemon) == 0


async def test_successor_of_moved_journal_is_the_only_scheduler(tmp_path: Path) -> None:
    async with (
        world(tmp_path, nodes=1) as w,
        commands(tmp_path) as runner,
        other_commands(tmp_path) as other,
        running(runner, *arguments(w)) as first,
    ):
        w.add_pod("before")
        await w.until(lambda: w.node_of("before") == "n0")
        moved = tmp_path / "moved.db"
        w.journal.rename(moved)
        assert await ended_soon(runner, first) == 1
        async with running(other, *arguments(w)) as second:
            w.add_pod("after")
            await w.until(lambda: w.node_of("after") == "n0")
            assert await stopped(other, second) == 0
    for journal in (moved, w.journal):
        with closing(sqlite3.connect(journal)) as connection:
            assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    assert "pod/default/before" in await subjects(moved, "pod")
    assert "pod/default/after" not in await subjects(moved, "pod")


async def test_log_of_missing_journal_is_kept(tmp_path: Path) -> None:
    """SQLite would delete it, and with it the records that the moved file lacks."""
    async with world(tmp_path, nodes=1) as w, commands(tmp_path) as runner:
        async with running(runner, *arguments(w)) as daemon:
            await until_logged(daemon, "caches synced")
            with anyio.fail_after(TIMEOUT_S):
                while "node/n0" not in await subjects(w.journal, "node"):
                    await anyio.lowlevel.checkpoint()
            daemon.send(signal.SIGKILL)
            await runner.ended(daemon)
        moved, log = tmp_path / "moved.db", tmp_path / "journal.db-wal"
        w.journal.rename(moved)
        async with running(runner, *arguments(w)) as daemon:
            assert await runner.ended(daemon) == 2
            assert f"cannot create {w.journal}: {log} holds records" in daemon.lines[-1]
        log.rename(tmp_path / "moved.db-wal")
    assert "node/n0" in await subjects(moved, "node")


async def test_idle_daemon_ends_when_another_claims(tmp_path: Path) -> None:
    """A claim without the daemon's lock, as after the lock file was removed."""
    async with world(tmp_path, nodes=1) as w, commands(tmp_path) as runner:
        async with running(runner, *arguments(w)) as daemon:
            await until_logged(daemon, "caches synced")
            async with open_journal(str(w.journal)) as store:
                await store.claim("another", claimed_at_ns=1)
            assert await ended_soon(runner, daemon) == 1
        # Noticed by the periodic check, or by an append that happened to be due.
        assert re.search("another process (has )?claimed (this|the) journal", daemon.lines[-1])


async def test_shadow_refuses_journal_of_running_shadow(tmp_path: Path) -> None:
    async with (
        world(tmp_path, nodes=1) as w,
        commands(tmp_path) as runner,
        other_commands(tmp_path) as other,
        running(runner, *arguments(w), "--mode", "shadow") as first,
    ):
        await until_logged(first, "caches synced")
        second = await other.start(*arguments(w), "--mode", "shadow")
        assert await other.ended(second) == 1
        assert f"another daemon uses {w.journal}: process {first.pid}" in second.lines[-1]


# -- helpers --------------------------------------------------------------------------------------


def other_commands(folder: Path) -> AbstractAsyncContextManager[Commands]:
    """Commands that run at the same time as those of another runner."""
    (folder / "other").mkdir()
    return commands(folder / "other")


async def ended_soon(runner: Commands, command: Command) -> int:
    with anyio.fail_after(min(SOON_S, TIMEOUT_S)):
        return await runner.ended(command)


async def writers(w: World) -> int:
    async with open_journal(str(w.journal), read_only=True) as store:
        return len(await store.writers())


async def subjects(journal: Path, kind: str) -> list[str]:
    async with open_journal(str(journal), read_only=True) as store:
        return list(await store.subjects(kind))
