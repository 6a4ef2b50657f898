"""The archive: moves old batches from the database into compressed files, and restores them.

A segment's file is gzipped JSON lines: first ``{"format": "asched-segment-1"}``, then one line per
batch, ``[batch, rows]``, with the fields in the order of :class:`~asched.journal.chain.Batch` and
:class:`~asched.journal.chain.JournalRow`. Batches keep their hashes, so the chain continues from
the segments into the database, which stores each file's name and SHA-256.

An interruption is harmless. A file is complete, durable and read back before the database stores
its segment, and only then are the rows deleted. The next run removes leftovers. Only one run is
possible at a time.
"""

from __future__ import annotations

import gzip
import hashlib
import os
import tempfile
import zlib
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import anyio.lowlevel
import msgspec
from anyio import to_thread

from asched.journal.chain import (
    GENESIS,
    Batch,
    BatchRange,
    Head,
    JournalRow,
    SealedBatch,
    Segment,
    verify,
)
from asched.journal.codec import CODEC
from asched.journal.errors import (
    ConflictError,
    JournalBusyError,
    JournalCorruptError,
    JournalError,
    JournalFullError,
    JournalIOError,
)
from asched.journal.sql import SqlStore
from asched.journal.sqlite_files import held_exclusively
from asched.journal.statistics import last_seq_at
from asched.journal.store import JournalStore
from asched.state.records import AnyRecord

FORMAT = "asched-segment-1"
LINE_LIMIT_BYTES = 512 * 1024 * 1024
"""Limit for a line, which holds the batch of one turn: some MiB at most."""


class _Header(msgspec.Struct, frozen=True):
    format: str


_encode = msgspec.json.Encoder().encode
_decode_header = msgspec.json.Decoder(_Header).decode
_decode_batch = msgspec.json.Decoder(tuple[Batch, list[JournalRow]]).decode


def write_segment(
    folder: Path, number: int, before: Head, batches: Sequence[SealedBatch], archived_at_ns: int
) -> Segment:
    """Verify ``batches`` and write them durably to a new file in ``folder``, which is read back.

    The caller holds the directory's lock. Raises :class:`JournalCorruptError` if a batch or the
    written file fails verification, :class:`JournalError` if another file has the name,
    :class:`JournalFullError` and :class:`JournalIOError` if the file cannot be written.
    """
    first, last = batches[0].batch, batches[-1].batch
    path = folder / f"segment-{number:06d}-records-{first.first_seq}-{last.last_seq}.jsonl.gz"
    head = before
    for sealed in batches:
        head = verify(sealed, head)
    try:
        digest = _write(path, batches)
    except OSError as error:
        kind = JournalFullError if error.errno in _DISK_FULL else JournalIOError
        raise kind(f"cannot write {path}: {error.strerror}") from None
    segment = Segment(
        segment=number,
        first_batch=first.batch,
        last_batch=last.batch,
        first_seq=first.first_seq,
        last_seq=last.last_seq,
        previous_hash=before.hash,
        hash=head.hash,
        file=path.name,
        file_sha256=digest,
        archived_at_ns=archived_at_ns,
    )
    try:
        _read_back(folder, segment, before)
    except JournalCorruptError:
        with suppress(OSError):
            path.unlink()
        raise
    return segment


def _write(path: Path, batches: Sequence[SealedBatch]) -> str:
    """Write the file durably and return its SHA-256."""
    path.parent.mkdir(parents=True, exist_ok=True)
    # mkstemp creates a file that is readable by its owner only, like the journal.
    descriptor, name = tempfile.mkstemp(_PARTIAL, f"{path.name}.", path.parent)
    partial = Path(name)
    try:
        with open(descriptor, "wb") as file:
            # Without name and time in the header, the same batches result in the same file.
            with gzip.GzipFile("", "wb", 6, file, mtime=0) as compressed:
                compressed.write(_encode(_Header(FORMAT)) + b"\n")
                for sealed in batches:
                    compressed.write(_encode(sealed) + b"\n")
            file.flush()
            os.fsync(file.fileno())
        digest = _sha256(partial)
        _check_replaceable(path, batches)
        partial.rename(path)
        _sync_folder(path.parent)
    except BaseException:
        with suppress(OSError):
            partial.unlink()
        raise
    return digest


def _check_replaceable(path: Path, batches: Sequence[SealedBatch]) -> None:
    """A file of an interrupted run can be replaced, but not one of another journal."""
    if not path.exists():
        return
    try:
        same = [left.batch for left in _batches_in(path)] == [sealed.batch for sealed in batches]
    except JournalCorruptError:
        same = False
    if not same:
        raise JournalError(
            f"{path} already exists with other content: use another directory for this journal"
        )


def _read_back(folder: Path, segment: Segment, before: Head) -> None:
    """Verify the file, which will be the only copy of its rows."""
    head = before
    for sealed in read_segment(folder, segment):
        head = verify(sealed, head)
    if head != segment.head:
        raise JournalCorruptError(f"{folder / segment.file} differs from what was written")


def remove_partial_files(folder: Path) -> None:
    """Delete incomplete files of interrupted runs. The caller holds the directory's lock.

    Raises :class:`JournalIOError`.
    """
    try:
        for partial in folder.glob(f"segment-*{_PARTIAL}"):
            partial.unlink()
    except OSError as error:
        raise JournalIOError(f"cannot write {folder}: {error.strerror}") from None


_PARTIAL = ".partial"


_DISK_FULL = frozenset({28, 122})
"""ENOSPC and EDQUOT."""


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def read_segment(folder: Path, segment: Segment) -> Iterator[SealedBatch]:
    """The batches of a segment's file. Only the file's SHA-256 is verified.

    Raises :class:`JournalCorruptError` if the file is missing, altered, or no segment.
    """
    path = folder / segment.file
    try:
        if _sha256(path) != segment.file_sha256:
            raise JournalCorruptError(f"{path} was altered: its SHA-256 does not match")
    except FileNotFoundError:
        raise JournalCorruptError(
            f"{path} is missing: it holds records {segment.first_seq} to {segment.last_seq}"
        ) from None
    except OSError as error:
        raise JournalCorruptError(f"{path} cannot be read: {error}") from None
    yield from _batches_in(path)


def _batches_in(path: Path) -> Iterator[SealedBatch]:
    try:
        with gzip.open(path, "rb") as lines:
            if _decode_header(lines.readline(LINE_LIMIT_BYTES)).format != FORMAT:
                raise JournalCorruptError(f"{path} has an unknown format")
            while line := lines.readline(LINE_LIMIT_BYTES):
                if not line.endswith(b"\n"):
                    raise JournalCorruptError(f"{path} holds a line that is too long")
                yield SealedBatch(*_decode_batch(line))
    except (OSError, EOFError, zlib.error, msgspec.DecodeError) as error:
        raise JournalCorruptError(f"{path} cannot be read: {error}") from None


def read_archive(folder: Path, segments: Sequence[Segment]) -> Iterator[SealedBatch]:
    """All batches of the archive, with each segment compared to its row in the database.

    The caller verifies the batches. Raises :class:`JournalCorruptError` naming the wrong file or
    segment.
    """
    head = GENESIS
    for number, segment in enumerate(segments, 1):
        begin = (segment.segment, segment.first_batch, segment.first_seq, segment.previous_hash)
        if begin != (number, head.batch + 1, head.seq + 1, head.hash):
            raise JournalCorruptError(f"segment {number} is missing or was altered")
        for sealed in read_segment(folder, segment):
            head = sealed.head
            yield sealed
        if head != segment.head:
            raise JournalCorruptError(
                f"{folder / segment.file} ends at record {head.seq}, which is not the end of"
                f" segment {number} in the database"
            )


SEGMENT_RECORDS = 100_000
"""Minimum number of records of a segment, held in memory until it is written."""

Progress = Callable[[int], None]


async def archive(
    store: JournalStore,
    folder: Path,
    *,
    before_ns: int,
    archived_at_ns: int,
    progress: Progress | None = None,
) -> list[Segment]:
    """Move batches that were written before ``before_ns`` into files in ``folder``.

    The first remaining batch holds a checkpoint, without which the rest could not be folded. So
    fewer batches may be moved, or none. The writer can continue. An interrupted run is completed
    first.

    Raises :class:`JournalError` without a checkpoint or for a journal in memory,
    :class:`JournalBusyError` while another run archives this journal or uses ``folder``, and if a
    daemon deletes the checkpoint meanwhile.
    """
    if not isinstance(store, SqlStore):
        raise JournalError("a journal in memory cannot be archived")
    await to_thread.run_sync(_create, folder)
    with held_exclusively(folder, f"another process is archiving into {folder}"):
        async with store.archiving():
            await to_thread.run_sync(remove_partial_files, folder)
            return await _archive(store, folder, before_ns, archived_at_ns, progress)


def _create(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise JournalIOError(f"cannot write {folder}: {error.strerror}") from None


async def _archive(
    store: SqlStore, folder: Path, before_ns: int, archived_at_ns: int, progress: Progress | None
) -> list[Segment]:
    await store.delete_archived()
    last_batch = await _last_to_archive(store, before_ns)
    head = await store.archived()
    number = len(await store.segments())
    segments: list[Segment] = []
    async for batches in _in_segments(store, last_batch):
        number += 1
        segment = await to_thread.run_sync(
            write_segment, folder, number, head, batches, archived_at_ns
        )
        await _record(store, folder, segment, last_batch + 1)
        await store.delete_archived()
        head = segment.head
        segments.append(segment)
        if progress is not None:
            progress(head.seq)
    return segments


async def _record(store: SqlStore, folder: Path, segment: Segment, checkpoint_batch: int) -> None:
    try:
        await store.record_segment(segment, checkpoint_batch)
    except JournalBusyError:
        with suppress(OSError):
            (folder / segment.file).unlink()  # a repetition may move other batches
        raise


async def _last_to_archive(store: SqlStore, before_ns: int) -> int:
    """The last batch before the newest checkpoint that only old batches precede; 0 if none."""
    marks = await store.checkpoint_marks()
    if not marks:
        raise JournalError(
            "cannot archive: the journal has no checkpoint, without which the remaining records"
            " could not be read; create one with `asched checkpoint`"
        )
    last_batch = 0
    old = 0
    # A wrong date in between does not end the old batches.
    old_seq = await last_seq_at(store, before_ns - 1)
    starts = {mark.batch for mark in marks}
    async for sealed in store.batches():
        if sealed.batch.batch in starts:
            last_batch = old
        if sealed.batch.last_seq > old_seq:
            break
        old = sealed.batch.batch
    return last_batch


async def _in_segments(store: SqlStore, last_batch: int) -> AsyncIterator[list[SealedBatch]]:
    gathered: list[SealedBatch] = []
    records = 0
    async for sealed in store.batches():
        if sealed.batch.batch > last_batch:
            break
        gathered.append(sealed)
        records += len(sealed.rows)
        if records >= SEGMENT_RECORDS:
            yield gathered
            gathered, records = [], 0
    if gathered:
        yield gathered


async def all_batches(store: JournalStore, folder: Path | None) -> AsyncIterator[SealedBatch]:
    """All batches: those of the archive in ``folder``, if given, then those of the database."""
    if folder is not None:
        for sealed in read_archive(folder, await store.segments()):
            await anyio.lowlevel.checkpoint()
            yield sealed
    async for sealed in store.batches():
        yield sealed


async def all_batch_ranges(store: JournalStore, folder: Path | None) -> AsyncIterator[BatchRange]:
    """As :func:`all_batches`, in ranges."""
    if folder is not None:
        for sealed in read_archive(folder, await store.segments()):
            await anyio.lowlevel.checkpoint()
            yield BatchRange.of(sealed)
    async for batches in store.batch_ranges():
        yield batches


async def archived_records(store: JournalStore, folder: Path) -> AsyncIterator[AnyRecord]:
    """The records of the archive in ``folder``, upcast to their current form.

    Raises :class:`JournalCorruptError` if a file or batch fails verification, and RecordError.
    """
    head = GENESIS
    for sealed in read_archive(folder, await store.segments()):
        await anyio.lowlevel.checkpoint()
        head = verify(sealed, head)
        for row in sealed.rows:
            yield CODEC.decode(row.seq, row.kind, row.version, row.subject, row.payload)


async def restore(store: JournalStore, folder: Path, target: JournalStore) -> Head:
    """Copy the archive in ``folder`` and the batches of ``store`` into ``target``.

    Raises :class:`ConflictError` if ``target`` is not empty, :class:`JournalCorruptError` if a
    batch fails verification.
    """
    if not isinstance(target, SqlStore):
        raise JournalError("cannot restore into a journal in memory")
    if await target.writers():
        raise ConflictError("the target journal is not empty")
    return await target.restore(
        all_batches(store, folder),
        await store.writers(),
        await store.statements(),
        await store.signed_head(),
    )
