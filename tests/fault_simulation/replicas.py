"""Who runs: one daemon, two while one deposes the other, or two of which one leads."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import anyio
from anyio.abc import TaskGroup

from tests.fault_simulation.breach import demand
from tests.fault_simulation.configurations import drawn_configuration
from tests.fault_simulation.mixes import Mix
from tests.fault_simulation.processes import Process, Surroundings

_STOP_LIMIT_S = 60.0


class Replicas:
    """Starts daemons anew when they end, and has things befall them."""

    def __init__(
        self, around: Sequence[Surroundings], key: str, tasks: TaskGroup, mix: Mix
    ) -> None:
        """``around``: one for each that is to run all the time."""
        self.lives = 0
        self._around = around
        self._key = key
        self._tasks = tasks
        self._mix = mix
        self._chance = Random(f"{key}/replicas")
        self._running: list[Process] = []
        self._newest: dict[int, Process] = {}
        """By place: the one started last. An older one that still runs is on its way out."""
        self._healthy = False
        self._stopping = False
        self._all_over = anyio.Event()

    def start(self) -> None:
        """One in each place."""
        for place in range(len(self._around)):
            self._start(place)

    def _start(self, place: int) -> None:
        self.lives += 1
        process = Process(f"asched-{self.lives}", self._around[place], self._key)
        self._newest[place] = process
        self._running.append(process)
        self._tasks.start_soon(self._life, place, process)

    async def _life(self, place: int, process: Process) -> None:
        await process.run()
        self._running.remove(process)
        if self._stopping and not self._running:
            self._all_over.set()
        if process is self._newest[place] and not self._stopping:
            pause_s = 0.1 if self._healthy else self._chance.uniform(0.05, 15.0)
            await anyio.sleep(pause_s)
            if process is self._newest[place] and not self._stopping:
                self._start(place)

    def _one(self) -> Process | None:
        return self._chance.choice(self._running) if self._running else None

    async def crash_one(self) -> None:
        """At some callback from here on: in the midst of a start, a turn, a binding."""
        process = self._one()
        if process is not None:
            loop = self._around[0].loop
            loop.at_step(loop.steps + self._chance.randint(1, 300), process.crash)

    async def restart_one(self) -> None:
        process = self._one()
        if process is not None:
            process.stop()

    async def freeze_one(self) -> None:
        process = self._one()
        if process is not None:
            self._around[0].trace(process.name, "is frozen")
            process.ports.freeze()
            await anyio.sleep(self._chance.uniform(1.0, 40.0))
            process.ports.thaw()
            self._around[0].trace(process.name, "goes on")

    async def depose(self) -> None:
        """Another one takes the journal."""
        self._start(self._chance.randrange(len(self._around)))

    async def jump_clock(self) -> None:
        process = self._one()
        if process is not None:
            jump_s = self._chance.choice((-3600.0, -30.0, -1.0, 1.0, 30.0, 3600.0))
            self._around[0].trace(process.name, f"wall clock jumps {jump_s:+} s")
            process.clock.ahead_s += jump_s

    async def reload(self) -> None:
        """The configuration is another, and all that run are told to take it up."""
        self._around[0].trace("configuration", "is another")
        self._around[0].configured.now = drawn_configuration(self._chance, self._mix)
        for process in self._running:
            process.reload()

    def heal(self) -> None:
        """No misfortunes from now on."""
        self._healthy = True
        for process in self._running:
            process.ports.thaw()

    async def stop(self) -> None:
        """An orderly end of all. Raises BreachError where one does not end."""
        self._stopping = True
        running = [*self._running]
        if not running:
            return
        for process in running:
            process.stop()
        with anyio.move_on_after(_STOP_LIMIT_S):
            await self._all_over.wait()
        names = ", ".join(process.name for process in self._running)
        demand(not self._running, f"{names} did not stop within {_STOP_LIMIT_S:g} s")
