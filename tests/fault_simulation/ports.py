"""What joins a simulated process to the world, and can be cut."""

from __future__ import annotations

import anyio


class Ports:
    """Whatever a process asks of the world or hears from it goes through here.

    A process that crashed is one whose ports are cut: what it still computes while it is being taken
    down reaches nobody. One that is frozen goes on where it was, later.
    """

    def __init__(self) -> None:
        self.cut = False
        self._thawed: anyio.Event | None = None

    @property
    def frozen(self) -> bool:
        return self._thawed is not None

    def freeze(self) -> None:
        if self._thawed is None:
            self._thawed = anyio.Event()

    def thaw(self) -> None:
        if self._thawed is not None:
            self._thawed.set()
            self._thawed = None

    async def through(self) -> None:
        """Wait while the process is frozen; for ever once it has crashed."""
        while self._thawed is not None and not self.cut:
            await self._thawed.wait()
        if self.cut:
            await anyio.sleep_forever()
