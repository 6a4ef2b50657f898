"""States of the past: folds from the nearest checkpoint."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from asched.audit.lookup import AttemptRecord, fold_before
from asched.config.registry import PluginRegistry
from asched.journal.codec import object_subject
from asched.journal.store import JournalStore
from asched.state.cluster import ClusterState
from asched.state.records import Assigned, AttemptFailed, ObjectObserved, PodObserved, Rejected

T = TypeVar("T")


async def last_record_about(
    journal: JournalStore, key: str, seq: int, attempt: int | None = None
) -> int:
    """The last record up to ``seq`` about a pod: the explanation of its newest attempt, or of
    attempt number ``attempt``, does not depend on later ones. ``seq`` without such an attempt."""
    last, exists, newest_uid = seq, False, ""
    archived = await journal.archived()
    async for stored in journal.read(archived.seq, seq, subject=object_subject("Pod", key)):
        last, record = stored.seq, stored.record
        match record:
            case ObjectObserved(object=seen):
                uid = seen.metadata.uid
            case PodObserved() | Assigned() | Rejected() | AttemptFailed():
                uid = record.uid
            case _:
                continue
        if uid != newest_uid:
            newest_uid, exists = uid, False
        exists = exists or (isinstance(record, AttemptRecord) and attempt in (None, record.attempt))
    return last if exists else seq


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
