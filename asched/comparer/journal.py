"""Compares the state with a second fold of the journal.

The second fold starts at the first record, so it also covers what the daemon read from a
checkpoint; after an archive it starts at a checkpoint. It follows the journal from one comparison
to the next. Both states are compared at the same record, in the form of a checkpoint: that is
everything that a later decision may depend on.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final, Protocol, TypeVar

import structlog

from asched.comparer.comparer import ComparisonCounts
from asched.comparer.contents import StateDifference, content_differences
from asched.framework.runtime.profile import PluginLoader, ProfileError
from asched.journal.checkpoints import apply_stored, nearest
from asched.journal.errors import ArchivedError, JournalError
from asched.journal.store import JournalStore
from asched.kube.timing import Clock
from asched.state.checkpoint import encode
from asched.state.cluster import ClusterState
from asched.state.fold import Fold
from asched.state.stored_form import Steps

T = TypeVar("T")

DIFFERS: Final = "state differs from the journal"
"""The log event of a difference."""
_STEP_DELAY_S: Final = 0.002
"""Between two steps of an encoding, as for checkpoints."""
_FOLD_DELAY_S: Final = 0.02
"""Between two slices of records."""
_POLL_S: Final = 0.01

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


class CommittedState(Protocol):
    """Which record a live state is at."""

    @property
    def all_committed(self) -> bool:
        """Whether the journal holds every record that the state was folded from."""
        ...

    @property
    def committed_seq(self) -> int:
        """The last record that the journal holds."""
        ...


class ComparerRuntime(Protocol):
    """Time and threads."""

    @property
    def clock(self) -> Clock: ...

    async def run_in_thread(self, compute: Callable[[], T], /) -> T:
        """Run a long computation without blocking the event loop."""
        ...


class JournalComparer:
    """Compares the live state with a second fold."""

    def __init__(
        self,
        journal: JournalStore,
        load: PluginLoader,
        runtime: ComparerRuntime,
        state: ClusterState,
        committed: CommittedState,
        slice_records: int,
    ) -> None:
        self.counts = ComparisonCounts()
        self.differences: tuple[StateDifference, ...] = ()
        """Of the last comparison."""
        self._journal = journal
        self._load = load
        self._runtime = runtime
        self._clock = runtime.clock
        self._state = state
        self._committed = committed
        self._slice_records = slice_records
        self._fold: Fold | None = None
        self._seq = 0
        """The last record of the second fold."""

    async def compare(self) -> None:
        """Compare once. A difference is logged and counted; a restart repairs it."""
        self.differences = ()
        try:
            await self._compare()
        except (JournalError, ProfileError) as error:
            self.counts.failures += 1
            self._fold = None
            log.debug("journal not compared", error=str(error))
        else:
            self.counts.passes += 1

    async def _compare(self) -> None:
        # Most records are folded before the snapshot, which then is in memory for a short time.
        fold = await self._follow(self._committed.committed_seq)
        while not self._committed.all_committed:
            await self._clock.sleep(_POLL_S)
        seq, snapshot = self._committed.committed_seq, encode(self._state)
        live = await self._encoded(snapshot)
        await self._follow(seq)
        folded = await self._encoded(encode(fold.state))
        if live == folded:
            return
        compute = partial(content_differences, live, folded)
        self.differences = await self._runtime.run_in_thread(compute)
        self.counts.differences += len(self.differences)
        for difference in self.differences:
            log.error(
                DIFFERS,
                part=difference.part,
                object=difference.object,
                field=difference.field,
                record=seq,
                repair="restart asched: it then folds the journal",
            )

    async def _follow(self, up_to: int) -> Fold:
        """The second fold with the records up to ``up_to``."""
        if self._fold is None:
            self._fold, self._seq = await self._begin()
        fold, folded = self._fold, 0
        if self._seq >= up_to:
            return fold
        async for stored in self._journal.read(self._seq, up_to):
            apply_stored(fold, stored)
            self._seq = stored.seq
            self.counts.compared += 1
            folded += 1
            if folded % self._slice_records == 0:
                await self._clock.sleep(_FOLD_DELAY_S)
        return fold

    async def _begin(self) -> tuple[Fold, int]:
        try:
            async for _ in self._journal.read(0, 1):
                break
        except ArchivedError:
            return await nearest(self._journal, self._load)
        return Fold(ClusterState(), self._load), 0

    async def _encoded(self, steps: Steps[list[bytes]]) -> list[bytes]:
        while True:
            try:
                next(steps)
            except StopIteration as end:
                content: list[bytes] = end.value
                return content
            await self._clock.sleep(_STEP_DELAY_S)
