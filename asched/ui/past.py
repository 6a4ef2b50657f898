"""States of the past: folds from the nearest checkpoint."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from asched.audit.lookup import fold_before
from asched.config.registry import PluginRegistry
from asched.journal.store import JournalStore
from asched.state.cluster import ClusterState

T = TypeVar("T")


class PastStates:
    """States of an open journal."""

    def __init__(self, store: JournalStore, registry: PluginRegistry) -> None:
        self.store = store
        self.registry = registry
        self.load = registry.load

    async def on_state(self, seq: int, compute: Callable[[ClusterState], T]) -> T:
        """The result of ``compute`` on the state after a record.

        ``compute`` must not change or keep the state. Raises :class:`JournalError`, ProfileError.
        """
        return compute((await fold_before(self.store, self.load, seq + 1)).state)


async def state_at(
    journal: PastStates, seq: int, function: Callable[..., Any], arguments: tuple[Any, ...]
) -> Any:
    """``function(state, seq, *arguments)`` on the state after a record, for a worker process."""
    return await journal.on_state(seq, lambda state: function(state, seq, *arguments))
