"""Finds pods, their attempts, and past cluster states in a journal."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from asched.framework.runtime.profile import PluginLoader
from asched.framework.runtime.strict import nearest as nearest_name
from asched.journal.checkpoints import apply_stored
from asched.journal.checkpoints import nearest as nearest_checkpoint
from asched.journal.codec import object_subject
from asched.journal.statistics import last_seq_at
from asched.journal.store import JournalStore
from asched.state.cluster import ClusterState
from asched.state.fold import Fold
from asched.state.records import Assigned, AttemptFailed, ObjectObserved, PodObserved, Rejected


class AuditError(Exception):
    """A query that the journal cannot answer. Its text is one line for the user."""


class PodName(NamedTuple):
    """``NAME`` or ``NAMESPACE/NAME``."""

    namespace: str
    """Empty if the user gave none."""
    name: str

    @classmethod
    def parse(cls, text: str) -> PodName:
        """Raises :class:`AuditError` if the text is not a pod name."""
        namespace, slash, name = text.rpartition("/")
        if not name or "/" in namespace or (slash and not namespace):
            raise AuditError(f"{text!r} is not a pod name; expected NAME or NAMESPACE/NAME")
        return cls(namespace, name)

    def matches(self, key: str) -> bool:
        namespace, _, name = key.partition("/")
        return name == self.name and self.namespace in ("", namespace)

    def choose(self, keys: Iterable[str], *, archived_seq: int = 0) -> str:
        """The only one of ``keys`` that matches. Records up to ``archived_seq`` are archived and
        were not searched.

        Raises :class:`AuditError` if no key matches, with the nearest one, or if several do.
        """
        known = dict.fromkeys(keys)
        found = [key for key in known if self.matches(key)]
        if len(found) == 1:
            return found[0]
        if found:
            raise AuditError(f"several pods have that name: {', '.join(sorted(found))}")
        wanted = f"{self.namespace or 'default'}/{self.name}"
        of_name = {key.partition("/")[2]: key for key in known}
        guess = nearest_name(wanted, known) or of_name.get(nearest_name(self.name, of_name) or "")
        hint = f"; did you mean {guess}?" if guess else ""
        archive = f"records 1 to {archived_seq} are in the archive (asched journal restore)"
        archived = f", but {archive}" if archived_seq else ""
        raise AuditError(f"pod {self} is not in the journal{archived}{hint}")

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}" if self.namespace else self.name


async def find_pod(journal: JournalStore, pod: PodName) -> str:
    """The key of the pod, which must occur in a record outside the archive.

    Lists all pods, possibly millions, only if the name alone does not suffice. Raises
    :class:`AuditError` (see :meth:`PodName.choose`) and
    :class:`~asched.journal.errors.JournalError`.
    """
    archived = await journal.archived()
    if pod.namespace:
        async for _ in journal.read(archived.seq, subject=object_subject("Pod", str(pod))):
            return str(pod)
    prefix = object_subject("Pod", "")
    subjects = await journal.subjects(prefix.rstrip("/"))
    keys = (subject.removeprefix(prefix) for subject in subjects)
    return pod.choose(keys, archived_seq=archived.seq)


AttemptRecord = Assigned | Rejected | AttemptFailed
"""The decisions that end an attempt."""


class RecordedAttempt(NamedTuple):
    """A recorded scheduling attempt."""

    seq: int
    record: AttemptRecord


class Attempts(NamedTuple):
    """The attempts for all pods that had one key."""

    made: list[RecordedAttempt]
    """Oldest first."""
    newest_uid: str
    """The uid of the newest pod, with or without attempts; empty if unknown."""

    def for_newest(self) -> list[RecordedAttempt]:
        return [attempt for attempt in self.made if attempt.record.uid == self.newest_uid]


async def fold_before(journal: JournalStore, load: PluginLoader, seq: int) -> Fold:
    """A fold of all records before ``seq``, from the nearest checkpoint on.

    Raises :class:`~asched.journal.errors.JournalError`, and ProfileError if a recorded plugin is
    not installed.
    """
    fold, checkpoint_seq = await nearest_checkpoint(journal, load, seq - 1)
    if seq > checkpoint_seq + 1:
        async for stored in journal.read(checkpoint_seq, seq - 1):
            apply_stored(fold, stored)
    return fold


async def state_at(
    journal: JournalStore, load: PluginLoader, at_ns: int | None
) -> tuple[ClusterState, int]:
    """The state at a time, and its last record; None for the journal's end.

    Raises :class:`AuditError` before the first record, and as :func:`fold_before`.
    """
    seq = (await journal.head()).seq if at_ns is None else await last_seq_at(journal, at_ns)
    if not seq:
        raise AuditError("the journal has no records up to that time")
    return (await fold_before(journal, load, seq + 1)).state, seq


async def attempts_of(journal: JournalStore, key: str, end: int) -> Attempts:
    """The attempts for pods with that key in the unarchived records up to ``end``."""
    archived = await journal.archived()
    made: list[RecordedAttempt] = []
    newest_uid = ""
    async for stored in journal.read(archived.seq, subject=object_subject("Pod", key)):
        if stored.seq > end:
            break
        match stored.record:
            case ObjectObserved(object=seen):
                newest_uid = seen.metadata.uid
            case PodObserved(uid=uid):
                newest_uid = uid
            case Assigned() | Rejected() | AttemptFailed() as record:
                # The record that introduced the pod may be archived.
                newest_uid = record.uid
                made.append(RecordedAttempt(stored.seq, record))
    return Attempts(made, newest_uid)


def choose_attempt(attempts: list[RecordedAttempt], number: int | None) -> RecordedAttempt:
    """The last attempt with that number, or the last of all.

    Raises :class:`AuditError` if there is none.
    """
    for attempt in reversed(attempts):
        if number in (None, attempt.record.attempt):
            return attempt
    numbers = sorted({attempt.record.attempt for attempt in attempts})
    known = f"attempts {numbers[0]} to {numbers[-1]} exist" if numbers else "no attempt was made"
    raise AuditError(f"no attempt {number}: {known}")
