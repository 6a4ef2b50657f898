"""The archive: whole batches moved out of the database into compressed files.

A segment's file is gzip over lines of JSON: first ``{"format": "asched-segment-1"}``, then one line a
batch, ``[batch, rows]``, with the fields in the order of :class:`~asched.journal.chain.Batch` and
:class:`~asched.journal.chain.JournalRow`. Batches keep their hashes, so the chain goes from the first
segment through the last into what stays; the database keeps each file's name and SHA-256.

The order of steps makes an interruption harmless: a file is whole, durable and read back before the
database learns of its segment, and only then are the rows deleted; the next run deletes what is left
over. One run at a time (see :mod:`asched.journal.archive`).

Moving the old part of a journal into the archive, and putting it back together.
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
    stretch_of,
    verify,
)
from asched.journal.codec import CODEC
from asched.journal.errors import (
    ConflictError,
    JournalCorruptError,
    JournalError,
    JournalFullError,
    JournalIOError,
)
from asched.journal.lock import folder_held
from asched.journal.sql import SqlStore
from asched.journal.store import JournalStore
from asched.state.records import AnyRecord

FORMAT = "asched-segment-1"
LINE_LIMIT_BYTES = 512 * 1024 * 1024
"""Of a line, which is a batch: what one turn of the engine recorded, some MiB at most."""


class _Header(msgspec.Struct, frozen=True):
    format: str


_encode = msgspec.json.Encoder().encode
_decode_header = msgspec.json.Decoder(_Header).decode
_decode_batch = msgspec.json.Decoder(tuple[Batch, list[JournalRow]]).decode


def write_segment(
    folder: Path, number: int, before: Head, batches: Sequence[SealedBatch], archived_at_ns: int
) -> Segment:
    """Write ``batches``, verified, to a new file in ``folder``, durable and read back on return.

    For a caller that keeps others out of the folder. Raises :class:`JournalCorruptError` for a batch
    that does not verify and for a file that does not hold what was written, :class:`JournalError` for
    a file of that name with other batches, :class:`JournalFullError` and :class:`JournalIOError` where
    the file cannot be written.
    """
    first, last = batches[0].batch, batches[-1].batch
    path = folder / f"segment-{number:06d}-records-{first.first_seq}-{last.last_seq}.jsonl.gz"
    head = before
    for sealed in batches:
        head = verify(sealed, head)
    try:
        digest = _write(path, batches)
    except OSError as error:
        kind = JournalFullError if error.errno in _NO_ROOM else JournalIOError
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
    """The SHA-256 of the file, which is whole and durable under its name."""
    path.parent.mkdir(parents=True, exist_ok=True)
    # A name that nobody else has, and for its owner's eyes alone, like the journal.
    descriptor, name = tempfile.mkstemp(_PARTIAL, f"{path.name}.", path.parent)
    partial = Path(name)
    try:
        with open(descriptor, "wb") as file:
            # No name and no time inside: the same batches make the same file.
            with gzip.GzipFile("", "wb", 6, file, mtime=0) as compressed:
                compressed.write(_encode(_Header(FORMAT)) + b"\n")
                for sealed in batches:
                    compressed.write(_encode(sealed) + b"\n")
            file.flush()
            os.fsync(file.fileno())
        digest = _sha256(partial)
        _refuse_another_archive(path, batches)
        partial.rename(path)
        _sync_folder(path.parent)
    except BaseException:
        with suppress(OSError):
            partial.unlink()
        raise
    return digest


def _refuse_another_archive(path: Path, batches: Sequence[SealedBatch]) -> None:
    """What an interrupted run left under the name may be replaced, but not what some other journal
    has there."""
    if not path.exists():
        return
    try:
        same = [left.batch for left in _batches_in(path)] == [sealed.batch for sealed in batches]
    except JournalCorruptError:
        same = False
    if not same:
        raise JournalError(
            f"{path} is there and holds something else: another journal's archive needs another folder"
        )


def _read_back(folder: Path, segment: Segment, before: Head) -> None:
    """Once the rows are deleted the file is all that there is of them."""
    head = before
    for sealed in read_segment(folder, segment):
        head = verify(sealed, head)
    if head != segment.head:
        raise JournalCorruptError(f"{folder / segment.file} does not hold what was written to it")


def sweep(folder: Path) -> None:
    """Delete what interrupted runs left half-written; for a caller that keeps others out of the folder.

    Raises :class:`JournalIOError`.
    """
    try:
        for partial in folder.glob(f"segment-*{_PARTIAL}"):
            partial.unlink()
    except OSError as error:
        raise JournalIOError(f"cannot write {folder}: {error.strerror}") from None


_PARTIAL = ".partial"


_NO_ROOM = frozenset({28, 122})
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
    """The batches of a segment's file, not verified but for the file as a whole.

    Raises :class:`JournalCorruptError` for a file that is missing, altered, or no segment.
    """
    path = folder / segment.file
    try:
        if _sha256(path) != segment.file_sha256:
            raise JournalCorruptError(f"{path} was altered: it is not the file that was archived")
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
                raise JournalCorruptError(f"{path} is of a format that this asched does not know")
            while line := lines.readline(LINE_LIMIT_BYTES):
                if not line.endswith(b"\n"):
                    raise JournalCorruptError(f"{path} holds a line that is longer than any batch")
                yield SealedBatch(*_decode_batch(line))
    except (OSError, EOFError, zlib.error, msgspec.DecodeError) as error:
        raise JournalCorruptError(f"{path} cannot be read: {error}") from None


def read_archive(folder: Path, segments: Sequence[Segment]) -> Iterator[SealedBatch]:
    """All batches of the archive, to be verified by the caller; here each segment is compared with
    what the database keeps of it.

    Raises :class:`JournalCorruptError` naming the file or segment that is wrong.
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
                f"{folder / segment.file} ends at record {head.seq}, not with the head of segment"
                f" {number} that the database holds"
            )


SEGMENT_RECORDS = 100_000
"""A segment ends with the batch that reaches so many records: what is held in memory at once."""

Progress = Callable[[int], None]


async def archive(
    store: JournalStore,
    folder: Path,
    *,
    before_ns: int,
    archived_at_ns: int,
    progress: Progress | None = None,
) -> list[Segment]:
    """Move batches that were all written before ``before_ns`` into files in ``folder``.

    What stays begins right before a checkpoint, because without one nobody could fold it: so it may
    be less than asked for, or nothing. The writer may go on meanwhile. What an interrupted run left
    undone is done first.

    Raises :class:`JournalError` where there is no checkpoint to begin from, or nothing but memory;
    :class:`JournalBusyError` while another run archives this journal, or anything into ``folder``.
    """
    if not isinstance(store, SqlStore):
        raise JournalError("a journal in memory has no archive")
    with folder_held(folder, f"another process is archiving into {folder}"):
        async with store.archiving():
            await to_thread.run_sync(sweep, folder)
            return await _archive(store, folder, before_ns, archived_at_ns, progress)


async def _archive(
    store: SqlStore, folder: Path, before_ns: int, archived_at_ns: int, progress: Progress | None
) -> list[Segment]:
    await store.delete_archived()
    last_batch = await _last_to_go(store, before_ns)
    head = await store.archived()
    number = len(await store.segments())
    segments: list[Segment] = []
    async for batches in _in_segments(store, last_batch):
        number += 1
        segment = await to_thread.run_sync(
            write_segment, folder, number, head, batches, archived_at_ns
        )
        await store.put_away(segment)
        await store.delete_archived()
        head = segment.head
        segments.append(segment)
        if progress is not None:
            progress(head.seq)
    return segments


async def _last_to_go(store: SqlStore, before_ns: int) -> int:
    """The last batch before the newest checkpoint that has only old batches before it; 0 if none."""
    marks = await store.checkpoint_marks()
    if not marks:
        raise JournalError(
            "nothing can be archived: the journal has no checkpoint, and what stays could not be"
            " read without one"
        )
    last_batch = 0
    old = 0
    starts = {mark.batch for mark in marks}
    async for sealed in store.batches():
        if sealed.batch.batch in starts:
            last_batch = old
        if sealed.batch.written_at_ns >= before_ns:
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


async def whole_journal(store: JournalStore, folder: Path | None) -> AsyncIterator[SealedBatch]:
    """All batches: those of the archive in ``folder``, if it is given, then those that stayed."""
    if folder is not None:
        for sealed in read_archive(folder, await store.segments()):
            await anyio.lowlevel.checkpoint()
            yield sealed
    async for sealed in store.batches():
        yield sealed


async def whole_chain(store: JournalStore, folder: Path | None) -> AsyncIterator[BatchRange]:
    """As :func:`whole_journal`, many batches at a time."""
    if folder is not None:
        for sealed in read_archive(folder, await store.segments()):
            await anyio.lowlevel.checkpoint()
            yield stretch_of(sealed)
    async for stretch in store.stretches():
        yield stretch


async def archived_records(store: JournalStore, folder: Path) -> AsyncIterator[AnyRecord]:
    """The records in the archive in ``folder``, brought up to their present form.

    Raises :class:`JournalCorruptError` where a file or batch does not verify, and RecordError.
    """
    head = GENESIS
    for sealed in read_archive(folder, await store.segments()):
        await anyio.lowlevel.checkpoint()
        head = verify(sealed, head)
        for row in sealed.rows:
            yield CODEC.decode(row.seq, row.kind, row.version, row.subject, row.payload)


async def restore(store: JournalStore, folder: Path, target: JournalStore) -> Head:
    """Put the archive in ``folder`` and what stayed in ``store`` together into ``target``.

    Raises :class:`ConflictError` if ``target`` holds anything, :class:`JournalCorruptError` where
    something does not verify.
    """
    if not isinstance(target, SqlStore):
        raise JournalError("a journal is put back together into a database, not into memory")
    if await target.writers():
        raise ConflictError("the journal to put it into is not empty")
    return await target.restore(whole_journal(store, folder), await store.writers())
