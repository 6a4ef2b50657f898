"""The simulation of one seed."""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from random import Random
from typing import Any, NamedTuple

import anyio
import structlog

from asched.apiserver.cluster import EmbeddedCluster
from asched.apiserver.group_forms import KubernetesVersion
from asched.comparer.cluster import DIFFERS as DIFFERS_FROM_CLUSTER
from asched.comparer.journal import DIFFERS as DIFFERS_FROM_JOURNAL
from asched.model.quantity import NS_PER_S
from tests.batch_world.manifests import definitions
from tests.fault_simulation.auditor import Auditor
from tests.fault_simulation.breach import BreachError, BreachReporter, demand
from tests.fault_simulation.churn import Churn
from tests.fault_simulation.configurations import drawn_configuration, installed
from tests.fault_simulation.device_use import DeviceUse, pending_allocations
from tests.fault_simulation.devices import Devices
from tests.fault_simulation.final import check_end
from tests.fault_simulation.forgotten_pods import (
    differing_objects,
    forgotten_groups,
    forgotten_pods,
)
from tests.fault_simulation.mixes import CLASSES, Election, Mix
from tests.fault_simulation.network import Network
from tests.fault_simulation.placements import Placements
from tests.fault_simulation.plugins import Shaky
from tests.fault_simulation.processes import ConfigFile, Surroundings
from tests.fault_simulation.replicas import Replicas
from tests.fault_simulation.stores import Disk
from tests.fault_simulation.trace import Trace
from tests.fault_simulation.tree_attempts import TreeAttempt
from tests.fault_simulation.virtual_time import BEGIN, VirtualLoop, ordered_scopes

SHORT_S, LONG_S = (20.0, 70.0), (100.0, 300.0)
"""Ranges of the time with faults. Most seeds are short, which finds more in less time."""
_LONG_SHARE = 0.05
_TICK_S = 1.5
_SETTLE_LIMIT_S = 1_500.0
"""After the last fault. A silent watch is detected after at most 630 s; the queue is flushed after
300 s."""
_CHECK_INTERVAL_S = 10.0
_MAX_STEPS = 3_000_000


class Outcome(NamedTuple):
    """The result of a seed."""

    seed: int
    name: str
    breach: str
    """Empty if there is none."""
    step: int
    """Step of the first breach or of the end."""
    churn_s: float
    """Virtual time with faults and churn."""
    virtual_s: float
    records: int
    decisions: int
    bound: int
    lives: int
    differences: int
    """Differences between the state and its sources that the comparer reported."""
    digest: str
    """Hash of the trace."""


def simulate(seed: int, name: str, show: Callable[[str], None] | None = None) -> Outcome:
    """Run a seed of the class ``name``. ``show`` receives each line of the trace."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        loop = runner.get_loop()
        assert isinstance(loop, VirtualLoop)
        simulation = Simulation(seed, name, loop, show)
        with _logs_to(simulation.trace, simulation.on_log):
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
        self.reporter = BreachReporter()
        self.cluster = EmbeddedCluster(
            clock=lambda: BEGIN.timestamp() + loop.time(),
            seed=self._chance("cluster").getrandbits(64),
            version=self._served_version(),
        )
        self.network = Network(loop, self.cluster, self._chance("network"), self.mix)
        registry = installed()
        Shaky.begin(self._chance("plugins"), lambda: self.network.mix.plugins)
        if self.mix.workload.sessions:
            for definition in _queues_and_groups():
                self.cluster.create("customresourcedefinitions", definition)
        around = Surroundings(
            loop,
            self.network,
            Disk(self._chance("disk"), self.mix.journal),
            Auditor(registry.load),
            self.trace,
            ConfigFile(drawn_configuration(self._chance("configuration"), self.mix)),
            registry,
            self.reporter,
            self.mix.election,
        )
        self.around = [around]
        """One per permanent replica."""
        if self.mix.election is Election.SHARED:
            self.around.append(around)
        elif self.mix.election is Election.OWN:
            disk = Disk(self._chance("other disk"), self.mix.journal)
            self.around.append(around._replace(disk=disk, auditor=Auditor(registry.load)))
        self.placements = Placements(self.cluster, self.reporter)
        devices: Devices | None = None
        if self.mix.workload.claims:
            devices = Devices(self.cluster, self._chance("devices"), self.trace)
        self.churn = Churn(
            loop,
            self.cluster,
            self._chance("churn"),
            self.mix.workload,
            self.trace,
            devices=devices,
            shaky=self.mix.plugins.enabled,
        )
        self.device_use: DeviceUse | None = None
        if devices is not None:
            self.device_use = DeviceUse(
                self.cluster, devices, self.churn.foreign_pods, self.reporter
            )
        self.placements.shared_nodes = self.churn.foreign_nodes
        self._churn_s = 0.0
        self._lives = 0
        self._differences = 0

    def _served_version(self) -> KubernetesVersion:
        """Trees of groups exist only in newer versions."""
        newer = self.mix.workload.trees and self._chance("version").random() < 0.7
        return KubernetesVersion.V1_37 if newer else KubernetesVersion.V1_36

    def _chance(self, of: str) -> Random:
        """A generator per part: an additional draw in one part does not affect others."""
        return Random(f"{self.key}/{of}")

    async def run(self) -> Outcome:
        breach = ""
        try:
            self.loop.on_stuck = lambda error: self.reporter.report(BreachError(str(error)))
            with ordered_scopes():
                await self._run()
            self.reporter.check()
        except Exception as error:  # noqa: BLE001  any exception fails the seed
            breach = self._described(error)
        step, now_s = self.loop.steps, self.loop.time()
        auditors = {id(around.auditor): around.auditor for around in self.around}.values()
        return Outcome(
            self.seed,
            self.name,
            breach,
            step,
            self._churn_s,
            now_s,
            sum(auditor.records for auditor in auditors),
            sum(auditor.decisions for auditor in auditors),
            self.placements.bound,
            self._lives,
            self._differences,
            self.trace.digest(),
        )

    def _described(self, error: BaseException) -> str:
        """The first breach in one line; its traceback goes to the trace."""
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        found = self.reporter.first or error
        for line in traceback.format_exception(found.__cause__ or found):
            self.trace.aside("breach", line.rstrip())
        if isinstance(found, BreachError):
            return str(found)
        return f"{type(found).__name__}: {found}"

    def on_log(self, event: str, keys: Mapping[str, Any]) -> None:
        """Check a line of a daemon's log."""
        if event in (DIFFERS_FROM_CLUSTER, DIFFERS_FROM_JOURNAL):
            self._differences += 1
            if event == DIFFERS_FROM_JOURNAL or not self.mix.watch.lost:
                self.reporter.report(BreachError(f"the comparer is wrong: {event}, {keys}"))

    async def _run(self) -> None:
        self.churn.begin()
        async with anyio.create_task_group() as tasks:
            replicas = Replicas(self.around, self.key, tasks, self.mix)
            tasks.start_soon(self._watch_reporter, tasks.cancel_scope)
            replicas.start()
            tasks.start_soon(self._controllers)
            await self._run_faults(replicas)
            self._end_faults(replicas)
            await self._settle()
            await self._release_devices()
            await replicas.stop()
            self._lives = replicas.lives
            self.reporter.check()
            for around in {id(around.disk): around for around in self.around}.values():
                await check_end(around)
            tasks.cancel_scope.cancel()

    async def _watch_reporter(self, everything: anyio.CancelScope) -> None:
        await self.reporter.reported.wait()
        everything.cancel()

    async def _controllers(self) -> None:
        while True:
            await anyio.sleep(_TICK_S)
            self.churn.tick()
            demand(self.loop.steps < _MAX_STEPS, "too many steps: a busy loop")

    # -- faults ---------------------------------------------------------------------------------

    async def _run_faults(self, replicas: Replicas) -> None:
        """Run churn and faults for a drawn time."""
        mix, chance = self.mix, self._chance("faults")
        until_s = self.loop.time() + chance.uniform(
            *(LONG_S if chance.random() < _LONG_SHARE else SHORT_S)
        )
        load, api, journal, processes = mix.workload, mix.api, mix.journal, mix.processes
        things: list[tuple[float, Callable[[], Awaitable[None]]]] = [
            (3600 / load.mean_gap_s, self._disturb),
            (api.outages_per_hour, self._outage),
            (api.upgrades_per_hour, self._upgrade),
            (journal.outages_per_hour, self._full_disk),
            (processes.crashes_per_hour, replicas.crash_one),
            (processes.stops_per_hour, replicas.restart_one),
            (processes.freezes_per_hour, replicas.freeze_one),
            (processes.fencings_per_hour, replicas.fence),
            (processes.jumps_per_hour, replicas.jump_clock),
            (processes.reloads_per_hour, replicas.reload),
        ]
        async with anyio.create_task_group() as tasks:
            for number, (per_hour, happen) in enumerate(things):
                if per_hour:
                    of_it = self._chance(f"when {number}")
                    tasks.start_soon(self._repeat, of_it, per_hour, happen)
            await anyio.sleep(until_s - self.loop.time())
            tasks.cancel_scope.cancel()
        self._churn_s = self.loop.time()

    async def _repeat(
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

    async def _upgrade(self) -> None:
        """The API server restarts in another version; sometimes it is away for a while."""
        if self.network.chance.random() < 0.5:
            self.network.begin_outage()
            await anyio.sleep(self.network.chance.uniform(0.5, 20.0))
            self.network.end_outage()
        self.trace("server", f"now serves Kubernetes {self.network.upgrade().value}")

    async def _full_disk(self) -> None:
        self.trace("disk", "is full")
        disk = self.around[0].disk
        disk.failing = True
        await anyio.sleep(disk.chance.uniform(0.5, 60.0))
        disk.failing = False

    # -- the end ------------------------------------------------------------------------------

    def _end_faults(self, replicas: Replicas) -> None:
        self.trace("simulation", "end of faults")
        healthy = Mix(workload=self.mix.workload)
        self.network.heal()
        for around in self.around:
            around.disk.failing, around.disk.faults = False, healthy.journal
        replicas.heal()
        self.churn.settle()

    async def _settle(self) -> None:
        """Wait until no pending pod could be scheduled; fails after a limit."""
        until_s = self.loop.time() + _SETTLE_LIMIT_S
        while True:
            await anyio.sleep(_CHECK_INTERVAL_S)
            pending = self.cluster.list("pods", fields="spec.nodeName=")
            forgotten = self._forgotten_pods() if pending else []
            forgotten += self._forgotten_groups()
            forgotten += self._unrepaired_objects()
            if not forgotten:
                self.trace("simulation", f"settled, {len(pending)} pods pending")
                return
            demand(
                self.loop.time() < until_s,
                f"forgotten: {', '.join(forgotten)} could have been scheduled or written",
            )

    async def _release_devices(self) -> None:
        """Check that no device is in use once all pods are gone."""
        if self.device_use is None:
            return
        self.churn.drop_everything()
        until_s = self.loop.time() + _SETTLE_LIMIT_S
        while left := self._devices_left(self.device_use):
            demand(self.loop.time() < until_s, left)
            await anyio.sleep(_CHECK_INTERVAL_S)

    def _devices_left(self, device_use: DeviceUse) -> str:
        """What still uses devices; a late request may have created a claim, and a binding that
        fails holds its devices until the watch shows its claims."""
        auditors = [around.auditor for around in self.around]
        if any(auditor.state.pods for auditor in auditors):
            return "the daemon does not notice that pods are gone"
        left = device_use.in_use()
        for auditor in auditors:
            left = left or pending_allocations(auditor.state, "the journal")
            live = auditor.live()
            if live is not None:
                left = left or pending_allocations(live, "the daemon")
        return left

    def _forgotten_groups(self) -> list[str]:
        if not CLASSES[self.name].api.upgrades_per_hour:
            return []
        state = self.around[0].auditor.live() or self.around[0].auditor.state
        return forgotten_groups(self.cluster, state)

    def _unrepaired_objects(self) -> list[str]:
        """Objects that a daemon with lost events does not know as they are."""
        around = self.around[0]
        live = around.auditor.live()
        if not self.mix.watch.lost or live is None:
            return []
        return differing_objects(self.cluster, around.configured.now, live)

    def _forgotten_pods(self) -> list[str]:
        around = self.around[0]
        now_ns = int(BEGIN.timestamp() + self.loop.time()) * NS_PER_S
        attempts: dict[str, TreeAttempt] = {}
        for auditor in {id(one.auditor): one.auditor for one in self.around}.values():
            for uid, attempt in auditor.trees.by_uid.items():
                known = attempts.get(uid)
                if known is None or known.at_ns < attempt.at_ns:
                    attempts[uid] = attempt
        return forgotten_pods(
            self.cluster, around.configured.now, around.registry, now_ns, attempts
        )


@contextmanager
def _logs_to(trace: Trace, check: Callable[[str, Mapping[str, Any]], None]) -> Iterator[None]:
    """Write the daemon's logs to the trace, and pass event and keys of each to ``check``."""
    before = structlog.get_config()

    def drop(logger: Any, method: str, event: structlog.typing.EventDict) -> str:
        said = dict(event)
        what = said.pop("event", "")
        trace.aside("log", f"{method} {what} {said}")
        check(what, said)
        raise structlog.DropEvent

    structlog.configure(processors=[drop], cache_logger_on_first_use=False)
    try:
        yield
    finally:
        structlog.configure(**before)
