"""Time travel: the state as it was at a record of the journal."""

from __future__ import annotations

from typing import NamedTuple

from asched.audit.pods import AuditError
from asched.framework.runtime.profile import PluginLoader
from asched.journal.checkpoints import nearest
from asched.journal.codec import object_subject
from asched.journal.store import JournalStore
from asched.state.cluster import ClusterState
from asched.state.fold import Fold
from asched.state.records import Assigned, AttemptFailed, ObjectSeen, PodSeen, Rejected

AttemptRecord = Assigned | Rejected | AttemptFailed
"""The decisions that end an attempt."""


class RecordedAttempt(NamedTuple):
    """One attempt, as it was decided."""

    seq: int
    record: AttemptRecord


class Attempts(NamedTuple):
    """What was tried for the pods of one key, one after the other."""

    made: list[RecordedAttempt]
    """Oldest first."""
    newest_uid: str
    """Of the pod that came last, tried or not; empty where no record tells."""

    def for_newest(self) -> list[RecordedAttempt]:
        return [attempt for attempt in self.made if attempt.record.uid == self.newest_uid]


async def state_before(journal: JournalStore, load: PluginLoader, seq: int) -> ClusterState:
    """The state that all records before ``seq`` make: what the decision at ``seq`` was made from.

    Raises as :func:`fold_before`.
    """
    return (await fold_before(journal, load, seq)).state


async def fold_before(journal: JournalStore, load: PluginLoader, seq: int) -> Fold:
    """A fold of all records before ``seq``, ready to go on.

    It begins at the nearest checkpoint, and streams the journal from there. Raises
    :class:`~asched.journal.errors.JournalError`, ProfileError where a recorded plugin is not
    installed, and FoldError for a journal that contradicts itself.
    """
    fold, kept_seq = await nearest(journal, load, seq - 1)
    if seq > kept_seq + 1:
        async for stored in journal.read(kept_seq, seq - 1):
            fold.apply(stored.record)
    return fold


async def attempts_of(journal: JournalStore, key: str, end: int) -> Attempts:
    """What was tried for pods of that key in the records up to ``end``, but for what is in the
    archive."""
    archived = await journal.archived()
    made: list[RecordedAttempt] = []
    newest_uid = ""
    async for stored in journal.read(archived.seq, subject=object_subject("Pod", key)):
        if stored.seq > end:
            break
        match stored.record:
            case ObjectSeen(object=seen):
                newest_uid = seen.metadata.uid
            case PodSeen(uid=uid):
                newest_uid = uid
            case Assigned() | Rejected() | AttemptFailed() as record:
                # Where that pod was seen may be in the archive.
                newest_uid = record.uid
                made.append(RecordedAttempt(stored.seq, record))
    return Attempts(made, newest_uid)


def choose_attempt(attempts: list[RecordedAttempt], number: int | None) -> RecordedAttempt:
    """The last attempt with that number, or the last of all.

    Raises :class:`AuditError` where there is none of that number.
    """
    for attempt in reversed(attempts):
        if number in (None, attempt.record.attempt):
            return attempt
    numbers = sorted({attempt.record.attempt for attempt in attempts})
    there = (
        f"there were attempts {numbers[0]} to {numbers[-1]}" if numbers else "it was never tried"
    )
    raise AuditError(f"no attempt {number}: {there}")
