"""The connection of a simulated process to its surroundings."""

from __future__ import annotations

import anyio


class Ports:
    """All input and output of a process passes through its ports.

    A crash cuts them: later work of the process has no effect. A frozen process resumes later.
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

    async def wait(self) -> None:
        """Wait while the process is frozen; block forever after a crash."""
        while self._thawed is not None and not self.cut:
            await self._thawed.wait()
        if self.cut:
            await anyio.sleep_forever()
