"""One seed, from its first node to its last check."""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import cache
from random import Random
from typing import Any, NamedTuple

import anyio
import structlog

from asched.apiserver.cluster import EmbeddedCluster
from asched.model.quantity import NS_PER_S
from tests.batch_world.manifests import definitions
from tests.fault_simulation.auditor import Auditor
from tests.fault_simulation.breach import BreachError, Referee, demand
from tests.fault_simulation.churn import Churn
from tests.fault_simulation.configurations import drawn_configuration, installed
from tests.fault_simulation.final import check_end
from tests.fault_simulation.fresh_eyes import overlooked
from tests.fault_simulation.mixes import CLASSES, Election, Mix
from tests.fault_simulation.network import Network
from tests.fault_simulation.placements import Placements
from tests.fault_simulation.plugins import Shaky
from tests.fault_simulation.processes import Configured, Surroundings
from tests.fault_simulation.replicas import Replicas
from tests.fault_simulation.stores import Disk
from tests.fault_simulation.trace import Trace
from tests.fault_simulation.virtual_time import BEGIN, VirtualLoop, ordered_scopes

SHORT_S, LONG_S = (20.0, 70.0), (100.0, 300.0)
"""How long the cluster is disturbed, from and to: most seeds are short, and so find more in less time."""
_LONG_SHARE = 0.05
_TICK_S = 1.5
_SETTLE_LIMIT_S = 1_500.0
"""After the last fault. A silent watch is noticed after 630 s at the latest, a pod of nobody's concern
tried again after 300 s."""
_LOOK_EVERY_S = 10.0
_MOST_STEPS = 3_000_000


class Outcome(NamedTuple):
    """What came of a seed."""

    seed: int
    name: str
    breach: str
    """Empty where all was well."""
    step: int
    """Of the first breach, or of the end."""
    churn_s: float
    """Virtual time with faults and churn."""
    virtual_s: float
    records: int
    decisions: int
    bound: int
    lives: int
    digest: str
    """Of all that happened."""


def simulate(seed: int, name: str, show: Callable[[str], None] | None = None) -> Outcome:
    """Run a seed of that class. ``show`` gets each line of the trace."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        loop = runner.get_loop()
        assert isinstance(loop, VirtualLoop)
        simulation = Simulation(seed, name, loop, show)
        with _logs_to(simulation.trace):
            return runner.run(simulation.run())


@cache
def _queues_and_groups() -> tuple[dict[str, Any], ...]:
    """Custom resources of batch sessions."""
    return tuple(definitions("scheduling.incubator.k8s.io"))


class Simulation:
    """All parts of one seed."""

    def __init__(
        self, seed: int, name: str, loop: VirtualLoop, show: Callable[[str], None] | None
    ) -> None:
        self.seed, self.name, self.loop = seed, name, loop
        self.key = f"{seed}/{name}"
        self.mix = CLASSES[name]
        self.trace = Trace(loop, show)
        self.referee = Referee()
        self.cluster = EmbeddedCluster(
            clock=lambda: BEGIN.timestamp() + loop.time(),
            seed=self._chance("cluster").getrandbits(64),
        )
        self.network = Network(loop, self.cluster, self._chance("network"), self.mix)
        registry = installed()
        Shaky.begin(self._chance("plugins"), lambda: self.network.mix.plugins)
        if self.mix.workload.sessions:
            for definition in _queues_and_groups():
                self.cluster.create("customresourcedefinitions", definition)
        around = Surroundings(
            loop, self.network, Disk(self._chance("disk"), self.mix.journal),
            Auditor(registry.load), self.trace,
            Configured(drawn_configuration(self._chance("configuration"), self.mix)), registry, self.referee,
            self.mix.election,
        )  # fmt: skip
        self.around = [around]
        """One for each place in which a daemon runs."""
        if self.mix.election is Election.SHARED:
            self.around.append(around)
        elif self.mix.election is Election.OWN:
            disk = Disk(self._chance("other disk"), self.mix.journal)
            self.around.append(around._replace(disk=disk, auditor=Auditor(registry.load)))
        self.placements = Placements(self.cluster, self.referee)
        self.churn = Churn(
            loop, self.cluster, self._chance("churn"), self.mix.workload, self.trace,
            shaky=self.mix.plugins.enabled,
        )  # fmt: skip
        self.placements.lawless = self.churn.foreign_nodes
        self._churn_s = 0.0
        self._lives = 0

    def _chance(self, of: str) -> Random:
        """Each part draws from a source of its own, so that one more draw here moves none there."""
        return Random(f"{self.key}/{of}")

    async def run(self) -> Outcome:
        breach = ""
        try:
            self.loop.on_stuck = lambda error: self.referee.call(BreachError(str(error)))
            with ordered_scopes():
                await self._run()
            self.referee.check()
        except Exception as error:  # noqa: BLE001  whatever it is, the seed has failed
            breach = self._described(error)
        step, now_s = self.loop.steps, self.loop.time()
        auditors = {id(around.auditor): around.auditor for around in self.around}.values()
        return Outcome(
            self.seed, self.name, breach, step, self._churn_s, now_s, sum(auditor.records for auditor in auditors),
            sum(auditor.decisions for auditor in auditors), self.placements.bound, self._lives, self.trace.digest(),
        )  # fmt: skip

    def _described(self, error: BaseException) -> str:
        """What went wrong first, in a line; where nobody expected it, how it came about is for who
        reads the trace."""
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        found = self.referee.first or error
        for line in traceback.format_exception(found.__cause__ or found):
            self.trace.aside("breach", line.rstrip())
        if isinstance(found, BreachError):
            return str(found)
        return f"{type(found).__name__}: {found}"

    async def _run(self) -> None:
        self.churn.begin()
        async with anyio.create_task_group() as tasks:
            replicas = Replicas(self.around, self.key, tasks, self.mix)
            tasks.start_soon(self._watch_referee, tasks.cancel_scope)
            replicas.start()
            tasks.start_soon(self._controllers)
            await self._live_through(replicas)
            self._end_faults(replicas)
            await self._settle()
            await replicas.stop()
            self._lives = replicas.lives
            self.referee.check()
            for around in {id(around.disk): around for around in self.around}.values():
                await check_end(around)
            tasks.cancel_scope.cancel()

    async def _watch_referee(self, everything: anyio.CancelScope) -> None:
        await self.referee.called.wait()
        everything.cancel()

    async def _controllers(self) -> None:
        while True:
            await anyio.sleep(_TICK_S)
            self.churn.tick()
            demand(self.loop.steps < _MOST_STEPS, "far too many steps: something is busy in vain")

    # -- trouble ------------------------------------------------------------------------------

    async def _live_through(self, replicas: Replicas) -> None:
        """Churn and faults, for a while."""
        mix, chance = self.mix, self._chance("faults")
        until_s = self.loop.time() + chance.uniform(
            *(LONG_S if chance.random() < _LONG_SHARE else SHORT_S)
        )
        load, api, journal, processes = mix.workload, mix.api, mix.journal, mix.processes
        things: list[tuple[float, Callable[[], Awaitable[None]]]] = [
            (3600 / load.mean_gap_s, self._disturb),
            (api.outages_per_hour, self._outage),
            (journal.troubles_per_hour, self._full_disk),
            (processes.crashes_per_hour, replicas.crash_one),
            (processes.stops_per_hour, replicas.restart_one),
            (processes.freezes_per_hour, replicas.freeze_one),
            (processes.depositions_per_hour, replicas.depose),
            (processes.jumps_per_hour, replicas.jump_clock),
            (processes.reloads_per_hour, replicas.reload),
        ]
        async with anyio.create_task_group() as tasks:
            for number, (per_hour, happen) in enumerate(things):
                if per_hour:
                    of_it = self._chance(f"when {number}")
                    tasks.start_soon(self._again_and_again, of_it, per_hour, happen)
            await anyio.sleep(until_s - self.loop.time())
            tasks.cancel_scope.cancel()
        self._churn_s = self.loop.time()

    async def _again_and_again(
        self, chance: Random, per_hour: float, happen: Callable[[], Awaitable[None]]
    ) -> None:
        while True:
            await anyio.sleep(chance.expovariate(per_hour / 3600))
            await happen()

    async def _disturb(self) -> None:
        self.churn.disturb()

    async def _outage(self) -> None:
        self.trace("network", "is down")
        self.network.begin_outage()
        await anyio.sleep(self.network.chance.uniform(0.5, 60.0))
        self.network.end_outage()
        self.trace("network", "is up")

    async def _full_disk(self) -> None:
        self.trace("disk", "is full")
        disk = self.around[0].disk
        disk.failing = True
        await anyio.sleep(disk.chance.uniform(0.5, 60.0))
        disk.failing = False

    # -- the end ------------------------------------------------------------------------------

    def _end_faults(self, replicas: Replicas) -> None:
        self.trace("simulation", "no more faults")
        healthy = Mix(workload=self.mix.workload)
        self.network.heal()
        for around in self.around:
            around.disk.failing, around.disk.faults = False, healthy.journal
        replicas.heal()
        self.churn.settle()

    async def _settle(self) -> None:
        """Until nobody waits who could be served; that must not take for ever."""
        until_s = self.loop.time() + _SETTLE_LIMIT_S
        while True:
            await anyio.sleep(_LOOK_EVERY_S)
            pending = self.cluster.list("pods", fields="spec.nodeName=")
            forgotten = self._overlooked() if pending else []
            if not forgotten:
                self.trace("simulation", f"settled, {len(pending)} pods pending")
                return
            demand(
                self.loop.time() < until_s,
                f"forgotten: {', '.join(forgotten)} could have been scheduled",
            )

    def _overlooked(self) -> list[str]:
        around = self.around[0]
        now_ns = int(BEGIN.timestamp() + self.loop.time()) * NS_PER_S
        return overlooked(self.cluster, around.configured.now, around.registry, now_ns)


@contextmanager
def _logs_to(trace: Trace) -> Iterator[None]:
    """What the daemon logs goes to who reads the trace."""
    before = structlog.get_config()

    def drop(logger: Any, method: str, event: structlog.typing.EventDict) -> str:
        said = dict(event)
        what = said.pop("event", "")
        trace.aside("log", f"{method} {what} {said}")
        raise structlog.DropEvent

    structlog.configure(processors=[drop], cache_logger_on_first_use=False)
    try:
        yield
    finally:
        structlog.configure(**before)
