"""Follows a cluster with a fold, and records what happens in a journal of its own.

The journal has the form of any other: observations, and the plans that were decided on the state
before them. Only the writer of a journal may append to it, so it is not that of a daemon.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection
from typing import Final

import anyio
import msgspec

from asched import __version__
from asched.config.file import Configuration
from asched.consolidation.plan import ConsolidationPlan, plan_consolidation
from asched.consolidation.search import ProgressListener
from asched.core.inputs import Batch, Change, sync_problem
from asched.core.scheduler import SchedulerCore
from asched.framework.runtime.profile import PluginLoader, evaluate_in_process
from asched.journal.checkpoints import apply_stored, nearest
from asched.journal.store import JournalStore
from asched.kube.timing import Clock
from asched.model.node import Node
from asched.model.resources import WatchedResource
from asched.pricing.prices import Prices
from asched.state.cluster import ClusterState
from asched.state.consolidation_records import ConsolidationDecided, ConsolidationSettings
from asched.state.fold import Fold
from asched.state.records import AnyRecord, EngineStarted, LeadershipGained, ProfilesLoaded

MAX_WAITING: Final = 10_000
"""Batches that wait to be folded before watches wait."""


class FollowedCluster:
    """The state of a cluster, from its watches. A sink for :class:`ClusterWatch`."""

    def __init__(
        self,
        fold: Fold,
        clock: Clock,
        resources: Collection[WatchedResource],
        journal: JournalStore | None = None,
        next_seq: int = 1,
    ) -> None:
        """``journal``: claimed by this process; None to record nothing."""
        self.load: PluginLoader = fold.load
        self.clock = clock
        self._core = SchedulerCore(fold, unsynced=resources)
        self._journal = journal
        self._next_seq = next_seq
        self._changes: deque[Change] = deque()
        self._arrived = anyio.Event()
        self._folded = anyio.Event()
        self._appending = anyio.Lock()

    @classmethod
    async def begin(
        cls,
        configuration: Configuration,
        load: PluginLoader,
        clock: Clock,
        resources: Collection[WatchedResource],
        journal: JournalStore | None = None,
        instance: str = "",
    ) -> FollowedCluster:
        """Claims the journal and continues it. Raises
        :class:`~asched.journal.errors.JournalError`, ProfileError."""
        fold, next_seq = Fold(ClusterState(), load), 1
        claimed: tuple[AnyRecord, ...] = ()
        if journal is not None:
            claimed = (
                LeadershipGained(await journal.claim(instance, claimed_at_ns=clock.time_ns())),
            )
            fold, seq = await nearest(journal, load)
            async for stored in journal.read(seq):
                apply_stored(fold, stored)
                seq = stored.seq
            next_seq = seq + 1
        cluster = cls(fold, clock, resources, journal, next_seq)
        seed = configuration.settings.engine.seed
        await cluster.record(
            EngineStarted(__version__, seed, shadow=True),
            *claimed,
            ProfilesLoaded(
                evaluate_in_process(configuration.profiles),
                feature_gates=configuration.feature_gates,
            ),
        )
        return cluster

    @property
    def state(self) -> ClusterState:
        """Read-only."""
        return self._core.state

    # -- the sink of the watches ----------------------------------------------------------------

    def put_changes(self, batch: Batch) -> None:
        self._changes.extend(batch)
        self._arrived.set()

    async def wait_for_capacity(self) -> None:
        while len(self._changes) > MAX_WAITING:
            await self._folded.wait()

    async def run(self) -> None:
        """Fold what arrives until cancelled. Raises
        :class:`~asched.journal.errors.JournalError`."""
        while True:
            await self._arrived.wait()
            self._arrived = anyio.Event()
            self._begin_turn()
            while self._changes:
                self._core.observe(self._changes.popleft())
                while self._core.listing:
                    self._core.continue_list()
            await self._commit()

    # -- what a plan needs ----------------------------------------------------------------------

    async def until(self, holds: Callable[[], bool], timeout_s: float) -> bool:
        """Wait until the state fulfils a condition. False after the timeout."""
        with anyio.move_on_after(timeout_s):
            while not holds():
                await self._folded.wait()
            return True
        return False

    async def synced(self, timeout_s: float) -> str:
        """Wait for all lists. Returns what is missing after the timeout; empty if nothing is."""
        await self.until(lambda: not self._core.unsynced, timeout_s)
        return sync_problem(self._core.unsynced)

    async def decide(
        self, settings: ConsolidationSettings, progress: ProgressListener | None = None
    ) -> ConsolidationPlan:
        """Plan on the present state, and record the plan. Raises ConsolidationError,
        :class:`~asched.journal.errors.JournalError`."""
        self._begin_turn()
        self._core.record_turn()  # the plan depends on the time of its turn
        plan = plan_consolidation(self.state, self.load, settings, progress)
        self._core.apply(ConsolidationDecided(settings, plan.freed))
        await self._commit()
        return plan

    async def record(self, *records: AnyRecord) -> None:
        """Fold records, and return when they are durable."""
        self._begin_turn()
        for record in records:
            self._core.apply(record)
        await self._commit()

    def _begin_turn(self) -> None:
        self._core.begin_turn(max(self._core.now_ns, self.clock.time_ns()))

    async def _commit(self) -> None:
        async with self._appending:
            records = self._core.take_records()
            if records and self._journal is not None:
                stored = await self._journal.append(
                    records, written_at_ns=self._core.date_ns, first_seq=self._next_seq
                )
                self._next_seq = stored.last_seq + 1
        self._folded.set()
        self._folded = anyio.Event()


def with_prices(
    settings: ConsolidationSettings, state: ClusterState, prices: Prices | None
) -> ConsolidationSettings:
    """The settings with the prices of the nodes in a state."""
    if prices is None:
        return settings
    by_name = {node.name: prices.node_per_hour(node) for node in state.objects(Node).values()}
    return msgspec.structs.replace(settings, prices=by_name)
