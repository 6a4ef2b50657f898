"""Extenders that are open while the daemon runs, and their change with the configuration."""

from __future__ import annotations

from collections.abc import Sequence

import anyio
from anyio.abc import TaskGroup, TaskStatus

from asched.config.kube_scheduler import Extender
from asched.kube.extenders import HttpExtender, open_extenders
from asched.kube.timing import Clock

_LOOK_EVERY_S = 1.0
"""How often extenders that were replaced are looked at, whether they still have something to
answer."""


class ExtenderPool:
    """Opens the extenders of one configuration after the other. Those before stay open as long as
    one of their answers, to a binding, say, is awaited."""

    def __init__(self, tasks: TaskGroup, clock: Clock) -> None:
        """All are closed when ``tasks`` is cancelled."""
        self._tasks = tasks
        self._clock = clock
        self._in_use = anyio.Event()
        """Set when what is in use now is to be closed."""
        self.open = 0
        """Configurations of which extenders are open."""

    async def replacement(self, configured: Sequence[Extender]) -> ExtenderReplacement:
        """Open the extenders that are to follow those in use.

        Raises :class:`~asched.kube.errors.KubeConfigError` for certificates that cannot be used.
        """
        superseded = anyio.Event()
        extenders: Sequence[HttpExtender] = await self._tasks.start(
            self._hold, tuple(configured), superseded
        )
        return ExtenderReplacement(self, extenders, superseded)

    def put_in_use(self, superseded: anyio.Event) -> None:
        """For :class:`ExtenderReplacement`: these are used now, and those before them are not."""
        self._in_use.set()
        self._in_use = superseded

    async def _hold(
        self,
        configured: Sequence[Extender],
        superseded: anyio.Event,
        *,
        task_status: TaskStatus[Sequence[HttpExtender]],
    ) -> None:
        async with open_extenders(configured) as extenders:
            self.open += 1
            try:
                task_status.started(extenders)
                await superseded.wait()
                while any(extender.busy for extender in extenders):
                    await self._clock.sleep(_LOOK_EVERY_S)
            finally:
                self.open -= 1


class ExtenderReplacement:
    """Extenders that are open and not yet used."""

    def __init__(
        self, pool: ExtenderPool, extenders: Sequence[HttpExtender], superseded: anyio.Event
    ) -> None:
        self.extenders = extenders
        self._pool = pool
        self._superseded = superseded

    def use(self) -> None:
        """Close those before."""
        self._pool.put_in_use(self._superseded)
