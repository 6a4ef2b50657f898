"""Users of the browser interface: which pages they open, and how long the server takes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from random import Random
from sqlite3 import connect
from typing import Final, NamedTuple
from urllib.parse import quote

import aiohttp
import anyio

from benchmarks.measurement import Percentiles
from benchmarks.ui.figures import PAGE_MS, SLIDER_MS, CostFigures, RouteFigures
from benchmarks.ui.server import Server

THINK_S: Final = (2.0, 6.0)
"""How long a user looks at a page."""
_API: Final = "/api/v1"
_PODS: Final = 2_000
"""So many that few questions are repeated: a repeated one costs nothing."""
_SLIDER_STEPS: Final = 100
_KINDS: Final = 21
"""Kinds of requests in :func:`visits`."""


class Visit(NamedTuple):
    """A page and the answers that its scripts load, by kind of request."""

    requests: tuple[tuple[str, str], ...]


class History(NamedTuple):
    """What the visits are chosen from."""

    pods: list[tuple[str, int]]
    """Key, and record of a decision."""
    owners: list[str]
    """Path of a controller's page below ``/owners``, for each of the pods."""
    last_seq: int
    nodes: int

    @classmethod
    def of(cls, journal: Path, random: Random) -> History:
        with closing(connect(f"{journal.absolute().as_uri()}?mode=ro", uri=True)) as database:
            (last_seq,) = database.execute("SELECT max(seq) FROM journal_record").fetchone()
            found = []
            for _ in range(_PODS):
                seq = random.randrange(last_seq // 20, last_seq)
                row = database.execute(
                    "SELECT subject, seq, payload FROM journal_record"
                    " WHERE seq >= ? AND kind IN ('Assigned', 'Rejected') LIMIT 1",
                    (seq,),
                ).fetchone()
                if row is not None:
                    found.append((row[0].removeprefix("pod/"), row[1]))
            (nodes,) = database.execute(
                "SELECT count(*) FROM journal_record"
                " WHERE kind = 'ObjectObserved' AND subject LIKE 'node/%'"
            ).fetchone()
        owners = []
        for key, _ in found:
            namespace, _, name = key.partition("/")
            owners.append(f"{quote(namespace)}/ReplicaSet/{quote(name.rpartition('-')[0])}")
        return cls(found, owners, last_seq, nodes)


def visits(history: History, random: Random) -> Iterator[Visit]:
    """Endless: what one user opens."""
    while True:
        key, seq = random.choice(history.pods)
        namespace, _, name = key.partition("/")
        pod = f"/pods/{quote(namespace)}/{quote(name)}"
        owner = f"/owners/{random.choice(history.owners)}"
        then = random.choice(("", f"?seq={min(history.last_seq, seq + 1)}"))
        past = random.randrange(history.last_seq // 20, history.last_seq)
        moment = random.choice(("", f"?seq={past}"))
        node = f"node-{random.randrange(history.nodes):04d}"
        yield random.choice(
            (
                _page("overview", "/", f"{_API}/overview"),
                _page("search", f"/search?q=app-{random.randrange(200)}"),
                _page("why", f"{pod}{then}"),
                _page("decision", f"{pod}/decisions/1{then}", f"{_API}{pod}/decisions/1{then}"),
                _page("timeline", f"{pod}/timeline{then}", f"{_API}{pod}/timeline{then}"),
                _page("cluster", f"/cluster{moment}", f"{_API}/cluster{moment}"),
                Visit((("node", f"{_API}/cluster/nodes/{node}{moment}"),)),
                _page("journal", "/journal"),
                _page("plugins", f"/plugins{moment}"),
                _page("owner", f"{owner}{moment}"),
                _page(
                    "owner's timeline",
                    f"{owner}/timeline{moment}",
                    f"{_API}{owner}/timeline{moment}",
                ),
                _page("queues", f"/queues{moment}", f"{_API}/queues/history{moment}"),
                _page("gangs", f"/gangs{moment}"),
                _page("evictions", f"/evictions{moment}"),
                Visit((("pending", f"{_API}/pending{moment}"),)),
            )
        )


def _page(name: str, path: str, *loaded: str) -> Visit:
    answers = ((f"{name} (answer)", one) for one in loaded)
    return Visit(((name, path), *answers))


class Times:
    """Server times by kind of request."""

    def __init__(self) -> None:
        self.by_route: dict[str, list[float]] = {}
        self.failed: dict[str, int] = {}

    async def get(
        self, server: Server, session: aiohttp.ClientSession, route: str, path: str
    ) -> None:
        answered = await server.get(session, path)
        if answered.status == 200:
            self.by_route.setdefault(route, []).append(answered.server_ms)
        else:
            self.failed[route] = self.failed.get(route, 0) + 1

    def figures(self, limit_ms: int) -> list[RouteFigures]:
        routes = sorted({*self.by_route, *self.failed})
        rows = (
            RouteFigures.of(
                route, self.by_route.get(route, []), limit_ms, self.failed.get(route, 0)
            )
            for route in routes
        )
        return [*rows]


async def browse(server: Server, journal: Path, clients: int, seconds: float) -> list[RouteFigures]:
    """Users who open pages at the same time."""
    history, times = History.of(journal, Random(1)), Times()

    async def user(number: int) -> None:
        random = Random(number)
        async with aiohttp.ClientSession() as session:
            await anyio.sleep(random.uniform(0, THINK_S[1]))
            for visit in visits(history, random):
                for route, path in visit.requests:
                    await times.get(server, session, route, path)
                await anyio.sleep(random.uniform(*THINK_S))

    with anyio.move_on_after(seconds):
        async with anyio.create_task_group() as users:
            for number in range(clients):
                users.start_soon(user, number)
    return times.figures(PAGE_MS)


async def slide(server: Server, last_seq: int) -> list[RouteFigures]:
    """One user who moves the slider of the cluster."""
    times, random = Times(), Random(2)
    steps = [last_seq * step // _SLIDER_STEPS for step in range(1, _SLIDER_STEPS + 1)]
    jumps = [random.randrange(1, last_seq) for _ in steps]
    async with aiohttp.ClientSession() as session:
        for name, seqs in (("forward", steps), ("backward", steps[::-1]), ("jumps", jumps)):
            for seq in seqs:
                await times.get(server, session, name, f"{_API}/cluster?seq={seq}")
    return times.figures(SLIDER_MS)


async def costs(server: Server, journal: Path, requests: int) -> list[CostFigures]:
    """CPU time of the server for each kind of request, one after another.

    On a machine that others use as well, this says more than the time that passes.
    """
    random = Random(3)
    history = History.of(journal, random)
    spent: dict[str, list[float]] = {}
    async with aiohttp.ClientSession() as session:
        for visit in visits(history, random):
            for route, path in visit.requests:
                begun_s = server.cpu_s()
                await server.get(session, path)
                spent.setdefault(route, []).append((server.cpu_s() - begun_s) * 1000)
            if len(spent) >= _KINDS and min(map(len, spent.values())) >= requests:
                break
    rows = ((route, Percentiles.of(spent[route])) for route in sorted(spent))
    return [
        CostFigures(route, len(spent[route]), found.perc50, found.perc95)
        for route, found in rows
        if found is not None
    ]
