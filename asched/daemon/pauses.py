"""Waiting between tries, for no longer than the daemon runs."""

from __future__ import annotations

import anyio

from asched.kube.timing import Clock


class Pauses:
    """All pauses of effects that will be tried again. A daemon that stops ends them at once: what
    was not done by then is in the journal, and the next start takes it up."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._scopes: set[anyio.CancelScope] = set()
        self._over = False

    async def pause(self, delay_s: float) -> bool:
        """Sleep ``delay_s``. False where there is no more time: do not try again."""
        if self._over:
            return False
        with anyio.CancelScope() as scope:
            self._scopes.add(scope)
            try:
                await self._clock.sleep(delay_s)
            finally:
                self._scopes.discard(scope)
        return not scope.cancelled_caught

    def end(self) -> None:
        """End the present pauses, and let none begin."""
        self._over = True
        for scope in tuple(self._scopes):
            scope.cancel()
