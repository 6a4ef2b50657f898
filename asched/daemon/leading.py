"""How an engine becomes the leader's, and how it ceases to be."""

from __future__ import annotations

import anyio
import structlog

from asched.daemon.engine import Engine
from asched.daemon.inbox import Inbox
from asched.daemon.leadership import LAST_WORD_S, Leadership
from asched.kube.client import ApiClient
from asched.kube.reflector import ClusterWatch
from asched.state.records import LeadershipGained, LeadershipLost

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


class Office:
    """The engine of one process, and what makes it decide."""

    def __init__(
        self, leadership: Leadership, engine: Engine, inbox: Inbox, epoch: int, *, shared: bool
    ) -> None:
        """``epoch`` is that of the process's claim on its journal; ``shared``: whether the next leader
        has that journal."""
        self._leadership = leadership
        self._engine = engine
        self._inbox = inbox
        self._epoch = epoch
        self._shared = shared
        leadership.on_loss = self._lose

    async def take(self, client: ApiClient, watch: ClusterWatch) -> None:
        """For a standby with a journal of its own: let it decide once its caches are full and the
        lease is won, and it has folded what its watches brought until then. It is no candidate while
        its journal cannot be written."""
        await self._engine.synced.wait()
        await self._leadership.win(client, watch, lambda: not self._engine.journal_trouble)
        self._inbox.put_outcome(LeadershipGained(self._epoch))

    async def leave(self) -> None:
        """After the engine has stopped. Where nothing is under way any more the others are told, so
        that the next one need not wait until the lease runs out.

        A binding that may still arrive is under way, too, for a leader that does not know of it: it would
        give the room away. One that shares the journal binds that pod to the same node."""
        if not self._engine.drained:
            log.warning("leadership is left to run out: effects are under way")
            self._leadership.forfeit()
            return
        # Where the last commit failed, it may have been stored: nothing else can take its place.
        if self._engine.all_committed and self._engine.leading and self._leadership.leads():
            self._inbox.put_outcome(LeadershipLost(self._epoch))
            with anyio.move_on_after(LAST_WORD_S):
                await self._engine.turn()
        if self._engine.left_in_doubt and not self._shared:
            log.warning("leadership is left to run out: bindings are in doubt")
            self._leadership.forfeit()
            return
        await self._leadership.release()

    async def give_up(self) -> None:
        """The journal cannot be gone on with, and the process ends of that: what is under way is
        cancelled. Where nothing is, the others are told at once."""
        self._engine.depose()
        if self._engine.sending:
            log.warning("leadership is left to run out: effects are under way")
            self._leadership.forfeit()
        else:
            await self._leadership.release()

    async def _lose(self) -> None:
        self._engine.depose()
        if self._engine.leading:
            self._inbox.put_outcome(LeadershipLost(self._epoch))
            await self._engine.resigned.wait()
