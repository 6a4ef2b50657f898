"""How far the browser interface has read a journal, and points of its history."""

from __future__ import annotations

from datetime import datetime
from typing import Final, NamedTuple

import msgspec

from asched.journal.statistics import JournalStatistics


class Moment(NamedTuple):
    """A point of the history: a record, a time, or the newest record."""

    seq: int | None = None
    at_ns: int | None = None


NOW: Final = Moment()


class JournalHead(msgspec.Struct, frozen=True, rename="camel"):
    """The end of the journal."""

    seq: int = 0
    """The newest record."""
    batch: int = 0
    hash: str = ""


class JournalProgress(msgspec.Struct, frozen=True, rename="camel"):
    """How far the journal is followed."""

    head: JournalHead = JournalHead()
    indexed_seq: int = 0
    at: datetime | None = None
    """Time of the last indexed turn."""
    first_seq: int = 1
    """The first record that is not archived."""
    first_at: datetime | None = None
    counts: dict[str, int] = {}
    """What happened since the start of the index: bound, rejected ..."""
    queues: dict[str, int] = {}
    verified_at: datetime | None = None
    """When the last verification began; None before the first one ended."""
    problem: str = ""
    """Why the journal cannot be followed, in one line; empty if it can."""


class VerificationReport(msgspec.Struct, frozen=True, rename="camel"):
    """The last verification by this process."""

    verified_at: datetime
    seq: int = 0
    """Everything up to this record is verified; 0 if the verification failed."""
    head: str = ""
    records: int = 0
    archived_seq: int = 0
    """Records up to this one are in the archive and were not verified."""
    signed_seq: int = 0
    trusted: bool = False
    problem: str = ""
    """Why it failed; empty if it did not."""
    statistics: JournalStatistics | None = None
    resumed_seq: int = 0
    """Records up to this one were verified by an earlier verification; 0 if all were read."""
    full_at: datetime | None = None
    """When all records were read for the last time."""


def one_line(error: Exception | None) -> str:
    return "" if error is None else " ".join(str(error).split())
