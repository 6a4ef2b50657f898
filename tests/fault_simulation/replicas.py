"""The running daemons: one, two while one fences the other, or two with an elected leader."""

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
    """Restarts daemons that end, and injects process faults."""

    def __init__(
        self, around: Sequence[Surroundings], key: str, tasks: TaskGroup, mix: Mix
    ) -> None:
        """``around``: one per permanent replica."""
        self.lives = 0
        self._around = around
        self._key = key
        self._tasks = tasks
        self._mix = mix
        self._chance = Random(f"{key}/replicas")
        self._running: list[Process] = []
        self._newest: dict[int, Process] = {}
        """The newest process of each replica; an older one is ending."""
        self._healthy = False
        self._stopping = False
        self._all_over = anyio.Event()

    def start(self) -> None:
        """Start each replica."""
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
        """Crash one process at a random later callback."""
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
            self._around[0].trace(process.name, "resumes")

    async def fence(self) -> None:
        """Start another daemon, which claims the journal."""
        self._start(self._chance.randrange(len(self._around)))

    async def jump_clock(self) -> None:
        process = self._one()
        if process is not None:
            jump_s = self._chance.choice((-3600.0, -30.0, -1.0, 1.0, 30.0, 3600.0))
            self._around[0].trace(process.name, f"wall clock jumps {jump_s:+} s")
            process.clock.ahead_s += jump_s

    async def reload(self) -> None:
        """Change the configuration and reload all processes."""
        self._around[0].trace("configuration", "changed")
        self._around[0].configured.now = drawn_configuration(self._chance, self._mix)
        for process in self._running:
            process.reload()

    def heal(self) -> None:
        """End all process faults."""
        self._healthy = True
        for process in self._running:
            process.ports.thaw()

    async def stop(self) -> None:
        """Stop all processes. Raises BreachError if one does not stop in time."""
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
