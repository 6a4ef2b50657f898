"""Measures the browser interface on a large journal.

python -m benchmarks.ui.record /tmp/large.db
python -m benchmarks.ui.measure /tmp/large.db --runs 3
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from random import Random
from typing import Annotated, Final

import aiohttp
import anyio
import msgspec
import typer

from benchmarks.ui import load
from benchmarks.ui.figures import StartFigures, UiFigures
from benchmarks.ui.live import follow
from benchmarks.ui.server import Server, serving

_COST_REQUESTS: Final = 10


async def _start(name: str, server: Server) -> StartFigures:
    """How long a start takes."""
    async with aiohttp.ClientSession() as session:
        first_page_s = await _until_answered(server, session, "/")
        await _until_answered(server, session, "/api/v1/overview")
        first_answer_s = await _until_answered(server, session, "/api/v1/cluster")
        await server.wait_for_index(session)
    indexed_s = time.monotonic() - server.begun_s
    spent = first_page_s, first_answer_s, indexed_s, server.cpu_s(), server.peak_mib
    return StartFigures(name, *(round(number, 2) for number in spent))


async def _until_answered(server: Server, session: aiohttp.ClientSession, path: str) -> float:
    while True:
        if (await server.get(session, path)).status == 200:
            return time.monotonic() - server.begun_s
        await anyio.sleep(0.05)


async def run(journal: Path, index_dir: Path, clients: int, seconds: float) -> UiFigures:
    """One run: a start without an index, users and the slider right after it was built, a start
    with the index, and a live journal."""
    starts = []
    async with serving(journal, index_dir) as server:
        starts.append(await _start("without an index", server))
        routes = await load.browse(server, journal, clients, seconds)
        history = load.History.of(journal, Random(1))
        slider = await load.slide(server, history.last_seq)
        costs = await load.costs(server, journal, _COST_REQUESTS)
        peak_mib = server.peak_mib
    async with serving(journal, index_dir) as server:
        starts.append(await _start("with an index", server))
    return UiFigures(
        records=history.last_seq,
        nodes=history.nodes,
        clients=clients,
        starts=starts,
        routes=routes,
        slider=slider,
        costs=costs,
        peak_mib=round(peak_mib),
        live=await follow(index_dir),
    )


def main(
    journal: Annotated[Path, typer.Argument(help="A journal of benchmarks.ui.record.")],
    runs: Annotated[int, typer.Option(help="The figures are medians of these.", min=1)] = 3,
    clients: Annotated[int, typer.Option(help="Users at the same time.", min=1)] = 20,
    seconds: Annotated[float, typer.Option(help="How long they browse.", min=1)] = 240,
    json: Annotated[Path | None, typer.Option(help="Write the figures to this file.")] = None,
) -> None:
    """Measure ``asched ui``."""
    found = []
    for _ in range(runs):
        with tempfile.TemporaryDirectory() as folder:
            found.append(anyio.run(run, journal, Path(folder), clients, seconds))
        typer.echo(msgspec.json.format(msgspec.json.encode(found[-1])).decode())
    figures = UiFigures.median_of(found)
    text = msgspec.json.format(msgspec.json.encode(figures), indent=1)
    if json is not None:
        json.write_bytes(text + b"\n")
    typer.echo(text.decode())


if __name__ == "__main__":
    typer.run(main)
