"""Kill the leader of two again and again under load: ``make takeover``.

    python -m tests.replicas --kills 20 --lease 15

Prints how long each takeover took, and ends with 1 where one took too long, a pod was bound twice
or never, or a node was overfull.
"""

from __future__ import annotations

import argparse
import random
import signal
import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from time import monotonic
from typing import NamedTuple

import anyio

from tests.daemon.world import World, world
from tests.journal.postgres_server import running_server
from tests.replicas.pair import TAKEOVER_S, Journals, Pair, pair

NODES = 50
PODS = 1500
"""Pods at a time; each requests a few hundredths of a node."""
CHURN_EVERY_S = 0.1


class Takeover(NamedTuple):
    """Times since the kill, in seconds."""

    led_s: float
    """Until the other replica held the lease."""
    bound_s: float
    """Until it bound the first pod."""


class Churn:
    """Create and delete pods continuously, whether or not they are scheduled."""

    def __init__(self, w: World, chance: random.Random, per_second: int) -> None:
        self._world = w
        self._chance = chance
        self._each = max(1, round(per_second * CHURN_EVERY_S))
        self._number = 0
        self.made = 0

    async def run(self) -> None:
        while True:
            self._turn()
            await anyio.sleep(CHURN_EVERY_S)

    def _turn(self) -> None:
        cluster = self._world.cluster
        for _ in range(self._each):
            self._number += 1
            self._world.add_pod(f"churn-{self._number}", f"{self._chance.randint(10, 60)}m")
        self.made = self._number
        bound = cluster.list("pods", fields="spec.nodeName!=")
        for pod in self._chance.sample(bound, max(0, len(bound) - PODS)):
            cluster.delete("pods", pod["metadata"]["name"], namespace="default", grace_period_s=0)


async def take_over(p: Pair, chance: random.Random) -> Takeover:
    """Kill the leader at a random moment, and restart it as a standby."""
    await anyio.sleep(chance.uniform(0.5, 2.5))
    leader = p.leader
    assert leader is not None
    leader.process.send(signal.SIGKILL)
    killed_at_s = monotonic()
    await leader.ended()
    await p.world.until(lambda: p.leader not in (None, leader))
    led_s = monotonic() - killed_at_s
    holder = p.ledger.holder
    await p.world.until(lambda: holder in p.ledger.first_bound_s)
    took = Takeover(led_s, p.ledger.first_bound_s[holder] - killed_at_s)
    await p.start(leader)
    return took


async def campaign(
    kind: str, journals: Journals, folder: Path, kills: int, lease_s: int, per_second: int
) -> list[str]:
    """What went wrong, a line each."""
    chance = random.Random(f"{kind} {kills} {lease_s}")
    election = (
        f"{{leaseDuration: {lease_s}s, renewDeadline: {lease_s * 2 / 3:.3f}s,"
        f" retryPeriod: {lease_s * 2 / 15:.3f}s}}"
    )
    took: list[Takeover] = []
    async with (
        world(folder, nodes=NODES, cpu="8", pods="250") as w,
        pair(w, folder, journals, election=election) as p,
    ):
        for replica in p.replicas:
            await p.start(replica)
        await w.until(lambda: p.leader is not None)
        churn = Churn(w, chance, per_second)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(churn.run)
            for number in range(1, kills + 1):
                took.append(await take_over(p, chance))
                print(
                    f"{kind}: takeover {number:2}: lease after {took[-1].led_s:5.2f} s, first"
                    f" binding after {took[-1].bound_s:5.2f} s",
                    flush=True,
                )  # fmt: skip
            tasks.cancel_scope.cancel()
        await w.until(lambda: not w.unbound())
        return report(kind, p, churn, took, lease_s)


def report(kind: str, p: Pair, churn: Churn, took: Sequence[Takeover], lease_s: int) -> list[str]:
    bound_s = sorted(t.bound_s for t in took)
    twice = sum(count > 1 for count in p.ledger.bindings.values())
    print(
        f"{kind}: {len(took)} kills, {churn.made} pods, {len(p.ledger.bindings)} bound, {twice} of"
        f" them twice, {len(p.world.unbound())} not; first binding after a kill: median"
        f" {statistics.median(bound_s):.2f} s, worst {bound_s[-1]:.2f} s (lease {lease_s} s)",
        flush=True,
    )  # fmt: skip
    faults = list(p.world.placements.violations)
    if twice:
        faults.append(f"{twice} pods were bound twice")
    if len(p.ledger.bindings) != churn.made or p.world.unbound():
        faults.append(f"{churn.made - len(p.ledger.bindings)} pods were never bound")
    late = [t for t in took if t.bound_s >= lease_s + TAKEOVER_S]
    if late:
        faults.append(f"{len(late)} takeovers took longer than {lease_s + TAKEOVER_S} s")
    return [f"{kind}: {fault}" for fault in faults]


async def run(arguments: argparse.Namespace) -> list[str]:
    faults: list[str] = []
    numbers = (arguments.kills, arguments.lease, arguments.pods_per_second)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        for kind in arguments.journals:
            own = folder / kind
            own.mkdir()
            if kind == "own":
                journals = Journals(str(own / "a.db"), str(own / "b.db"))
                faults += await campaign(kind, journals, own, *numbers)
                continue
            with running_server(folder / "postgres") as server:
                url = await server.new_database("takeover")
                faults += await campaign(kind, Journals(url, url), own, *numbers)
    return faults


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.replicas")
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--lease", type=int, default=15, help="seconds; the other times in scale")
    parser.add_argument("--pods-per-second", type=int, default=50)
    parser.add_argument(
        "--journals", nargs="+", choices=["own", "shared"], default=["own", "shared"]
    )
    faults = anyio.run(run, parser.parse_args())
    for fault in faults:
        print(fault)
    sys.exit(1 if faults else 0)


if __name__ == "__main__":
    main()
