"""States of the past: folds from the nearest kept state or checkpoint."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Final, TypeVar

from asched.audit.lookup import fold_before
from asched.config.registry import PluginRegistry
from asched.journal.checkpoints import RestoredFold, apply_stored
from asched.journal.store import JournalStore
from asched.state.cluster import ClusterState

T = TypeVar("T")

_KEPT_FOLDS: Final = 1
"""States that are kept: one of 40,000 pods takes 80 MiB."""


class PastStates:
    """States of an open journal."""

    def __init__(self, store: JournalStore, registry: PluginRegistry) -> None:
        self.store = store
        self.registry = registry
        self.load = registry.load
        self._folds: OrderedDict[int, RestoredFold] = OrderedDict()

    async def on_state(self, seq: int, compute: Callable[[ClusterState], T]) -> T:
        """The result of ``compute`` on the state after a record.

        ``compute`` must not change or keep the state. Raises :class:`JournalError`, ProfileError.
        """
        fold, begin = await self._nearest(seq)
        if begin < seq:
            async for stored in self.store.read(begin, seq):
                apply_stored(fold, stored)
        result = compute(fold.state)
        self._folds[seq] = RestoredFold(fold, seq)
        while len(self._folds) > _KEPT_FOLDS:
            self._folds.popitem(last=False)
        return result

    def forget(self) -> None:
        """Drop the kept states, for a query that folds states of its own."""
        self._folds.clear()

    async def _nearest(self, seq: int) -> RestoredFold:
        """The nearest kept fold, which is removed, or that of a checkpoint."""
        kept = max((known for known in self._folds if known <= seq), default=-1)
        marks = await self.store.checkpoint_marks()
        if kept >= max((mark.seq for mark in marks if mark.seq <= seq), default=0):
            taken = self._folds.pop(kept, None)
            if taken is not None:
                return taken
        # Two states at a time would need twice the memory.
        while len(self._folds) >= _KEPT_FOLDS:
            self._folds.popitem(last=False)
        return RestoredFold(await fold_before(self.store, self.load, seq + 1), seq)


async def state_at(
    journal: PastStates, seq: int, function: Callable[..., Any], arguments: tuple[Any, ...]
) -> Any:
    """``function(state, seq, *arguments)`` on the state after a record, for a worker process."""
    return await journal.on_state(seq, lambda state: function(state, seq, *arguments))
