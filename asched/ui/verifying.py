"""Verifications of a followed journal: each continues where the last one ended."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import datetime

import msgspec
import structlog

from asched.audit.timeline import time_of
from asched.journal.errors import JournalCorruptError
from asched.journal.statistics import RecordCounts, statistics
from asched.journal.store import JournalStore
from asched.journal.verification import VerificationResult, VerifiedPosition, verify_journal
from asched.ui.index_file import DAMAGE, IndexFile
from asched.ui.journal_progress import VerificationReport

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


class VerifiedForm(msgspec.Struct, array_like=True):
    """What is kept between starts, next to the index."""

    position: VerifiedPosition
    """It has the hash of the batch: it fits no other journal."""
    full_at: datetime
    counts: RecordCounts


class JournalVerifier:
    """Verifies and measures one open journal."""

    def __init__(
        self, store: JournalStore, progress: Callable[[int], None], *, verify_all: bool
    ) -> None:
        """``verify_all``: the first verification reads all records, whatever is kept."""
        self.report: VerificationReport | None = None
        self._store = store
        self._progress = progress
        self._verify_all = verify_all
        self._last: VerifiedForm | None = None
        self._file: IndexFile | None = None

    def use(self, file: IndexFile) -> None:
        """Continue what this file keeps, and keep the end of each verification there."""
        if self._file is file:
            return
        self._file = file
        if self._last is not None or self._verify_all:
            return
        try:
            kept = file.history.verified()
            if kept is not None:
                self._last = msgspec.msgpack.decode(kept, type=VerifiedForm)
        except DAMAGE as error:
            log.warning("verification restarted", reason=str(error))

    async def verify(self) -> None:
        """Verify and measure what is new, and keep the result.

        Raises :class:`JournalError` if the journal cannot be read.
        """
        at, last = time_of(time.time_ns()), self._last
        try:
            found = await verify_journal(
                self._store,
                skip_archive=True,
                after=None if last is None else last.position,
                progress=self._progress,
            )
        except JournalCorruptError as error:
            self._last = None
            self.report = VerificationReport(at, problem=str(error))
            return
        resumed = bool(found.resumed_seq) and last is not None
        counts = last.counts if last is not None and resumed else RecordCounts()
        measured = await statistics(self._store, self._progress, counts)
        full_at = last.full_at if last is not None and resumed else at
        self._last = VerifiedForm(found.position, full_at, counts)
        self._keep(self._last)
        self.report = _report(at, full_at, found, measured.records)
        self.report = msgspec.structs.replace(self.report, statistics=measured)

    def _keep(self, form: VerifiedForm) -> None:
        if self._file is None:
            return
        try:
            self._file.history.save_verified(msgspec.msgpack.encode(form))
        except DAMAGE as error:
            log.warning("verified position not saved", reason=str(error))


def _report(
    at: datetime, full_at: datetime, found: VerificationResult, records: int
) -> VerificationReport:
    return VerificationReport(
        verified_at=at,
        seq=found.head.seq,
        head=str(found.head),
        records=records if found.resumed_seq else found.records,
        archived_seq=found.archived_seq,
        signed_seq=found.signed_seq,
        trusted=found.trusted,
        resumed_seq=found.resumed_seq,
        full_at=full_at,
    )
