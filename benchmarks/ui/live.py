"""How far the browser interface is behind a journal that grows.

    python -m benchmarks.ui.live JOURNAL --per-s 500 --seconds 20

appends in real time, and prints a line with the time and the last record after each append.
"""

from __future__ import annotations

import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Annotated, Final

import aiohttp
import anyio
import msgspec
import typer
from anyio.streams.buffered import BufferedByteReceiveStream

from asched.journal.opening import open_journal
from benchmarks.measurement import Percentiles
from benchmarks.ui.figures import LiveFigures
from benchmarks.ui.record import Recorder
from benchmarks.ui.server import Server, serving

PODS_PER_S: Final = 500
SECONDS: Final = 20
NODES: Final = 5_000
_TURN_S: Final = 0.05
_PODS_AT_ONCE: Final = 5_000


async def write(journal: Path, per_s: int, seconds: float) -> None:
    """Append in real time."""
    recorder = Recorder(NODES, _PODS_AT_ONCE, round(per_s * _TURN_S))
    async with open_journal(str(journal)) as store:
        await store.claim("benchmark", claimed_at_ns=time.time_ns())
        begun_s = anyio.current_time()
        for number, records in enumerate(recorder.turns()):
            await anyio.sleep_until(begun_s + number * _TURN_S)
            if anyio.current_time() - begun_s > seconds:
                return
            appended = await store.append(records, written_at_ns=time.time_ns())
            print(time.monotonic(), appended.last_seq, number, flush=True)


async def follow(index_dir: Path) -> LiveFigures:
    """Follow a journal that another process extends."""
    journal = index_dir / "live.db"
    async with open_journal(str(journal)):
        pass
    appended: list[tuple[float, int]] = []
    seen: list[tuple[float, int]] = []
    command = [sys.executable, "-m", "benchmarks.ui.live", str(journal)]
    async with (
        serving(journal, index_dir) as server,
        aiohttp.ClientSession() as session,
        anyio.create_task_group() as tasks,
    ):
        tasks.start_soon(_watch, server, session, seen)
        async with await anyio.open_process(command, stderr=sys.stderr.fileno()) as process:
            assert process.stdout is not None, "it is a pipe"
            lines = BufferedByteReceiveStream(process.stdout)
            with anyio.move_on_after(SECONDS * 4):
                while True:
                    try:
                        line = await lines.receive_until(b"\n", 200)
                    except (anyio.EndOfStream, anyio.IncompleteRead):
                        break
                    at_s, seq, _ = line.split()
                    appended.append((float(at_s), int(seq)))
        await anyio.sleep(2)
        tasks.cancel_scope.cancel()
    return _lag(appended, seen)


async def _watch(
    server: Server, session: aiohttp.ClientSession, seen: list[tuple[float, int]]
) -> None:
    async for line in _lines(server, session):
        if line.startswith(b"data: "):
            seq = msgspec.json.decode(line[6:])["seq"]
            seen.append((time.monotonic(), seq))


async def _lines(server: Server, session: aiohttp.ClientSession) -> AsyncIterator[bytes]:
    timeout = aiohttp.ClientTimeout(total=None)
    async with session.get(f"{server.url}/api/v1/events", timeout=timeout) as response:
        async for line in response.content:
            yield line


def _lag(appended: list[tuple[float, int]], seen: list[tuple[float, int]]) -> LiveFigures:
    """How long after each append an event has its last record."""
    lags, place = [], 0
    # The nodes come with the first append.
    measured = appended[1:]
    for at_s, seq in measured:
        while place < len(seen) and seen[place][1] < seq:
            place += 1
        if place < len(seen):
            lags.append(max(0.0, seen[place][0] - at_s))
    found = Percentiles.of(lags)
    assert found is not None, "the events reach the end of the journal"
    spent_s = measured[-1][0] - measured[0][0]
    pods_per_s = len(measured) * PODS_PER_S * _TURN_S / spent_s
    return LiveFigures(round(pods_per_s), found.perc50, found.perc95)


def main(
    journal: Annotated[Path, typer.Argument(help="An empty journal.")],
    per_s: Annotated[int, typer.Option(help="Pods per second.")] = PODS_PER_S,
    seconds: Annotated[float, typer.Option(help="How long.")] = SECONDS,
) -> None:
    """Append to a journal in real time."""
    anyio.run(write, journal, per_s, seconds)


if __name__ == "__main__":
    typer.run(main)
