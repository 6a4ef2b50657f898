"""A writer killed at any moment leaves complete batches, including all acknowledged ones."""

from __future__ import annotations

import os
import random
import signal
import sys
from pathlib import Path

import anyio
import anyio.lowlevel

from asched.journal import open_journal
from tests.journal.samples import turn, verified_head

ROOT = Path(__file__).resolve().parents[2]
KILLS = 4


def wal_bytes(url: str) -> int:
    return os.stat(f"{url}-wal").st_size


async def run_until_killed(url: str, batches: int, more_bytes: int) -> int:
    """Let a writer append ``batches`` and more, kill it; the last number that it reported.

    ``more_bytes`` of the write-ahead log are waited for in between, so that it dies while it
    writes.
    """
    command = [sys.executable, "-m", "tests.journal.endless_writer", url]
    async with await anyio.open_process(command, cwd=ROOT, stderr=None) as process:
        assert process.stdout is not None
        reported = b""
        async for chunk in process.stdout:
            reported += chunk
            if reported.count(b"\n") >= batches:
                break
        # Wait for a size that the next append reaches while it writes.
        start_bytes = wal_bytes(url)
        while process.returncode is None:
            await anyio.lowlevel.checkpoint()
            if not start_bytes <= wal_bytes(url) < start_bytes + more_bytes:
                break  # far enough, or the WAL was restarted
        process.send_signal(signal.SIGKILL)
        async for chunk in process.stdout:
            reported += chunk
        assert await process.wait() == -signal.SIGKILL
    complete = reported[: reported.rindex(b"\n")]
    return int(complete.splitlines()[-1])


async def test_sigkill_of_writer(tmp_path: Path) -> None:
    chance = random.Random(2)
    url = os.fspath(tmp_path / "journal.db")
    for kill in range(1, KILLS + 1):
        reported = await run_until_killed(url, chance.randint(1, 30), chance.randint(0, 60_000))
        async with open_journal(url) as store:
            head = await store.head()
            assert head.seq >= reported
            assert await verified_head(store) == head
            expected = [r for n in range(1, head.batch + 1) for r in turn(n, n % 50)]
            assert [s.record async for s in store.read()] == expected
            assert await store.claim("after", claimed_at_ns=1) == 2 * kill
            number = head.batch + 1
            await store.append(turn(number, number % 50), written_at_ns=number)
