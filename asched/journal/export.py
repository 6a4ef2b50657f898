"""Copies of a journal: exports as JSON lines or Parquet, and backups of SQLite files.

A backup can be taken while a daemon writes. Copying the file itself would miss the write-ahead log
or take half of it. SQLite's backup API reads in one transaction, so the copy is consistent.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import AsyncIterator
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, BinaryIO, Final, Protocol

import msgspec

from asched.journal.chain import SealedBatch
from asched.journal.errors import JournalError, JournalIOError, JournalOpenError
from asched.journal.sqlite_files import check_still_immutable, must_be_immutable
from asched.model.quantity import NS_PER_S

_GROUP_ROWS: Final = 50_000
"""Rows of a Parquet row group, held in memory until it is written."""


class ExportedRecord(msgspec.Struct, frozen=True, rename="camel"):
    """A line of JSON lines, or a row of Parquet with the record as text."""

    seq: int
    written_at: datetime
    batch: int
    epoch: int
    kind: str
    version: int
    subject: str
    record: msgspec.Raw


class ExportSink(Protocol):
    def write(self, sealed: SealedBatch) -> None: ...

    def close(self) -> None: ...


def open_sink(path: Path) -> ExportSink:
    """Create the file ``path`` in the format of its suffix, ``.jsonl`` or ``.parquet``.

    Raises :class:`JournalError` for another suffix or without pyarrow, :class:`JournalIOError` if
    the path cannot be written.
    """
    if path.suffix not in (".jsonl", ".parquet"):
        raise JournalError(
            f"{path} has no known format: expected a name that ends with .jsonl or .parquet"
        )
    try:
        return _JsonLines(path) if path.suffix == ".jsonl" else _Parquet(path)
    except OSError as error:
        raise JournalIOError(f"cannot write {path}: {error.strerror}") from None


async def export(batches: AsyncIterator[SealedBatch], sink: ExportSink) -> int:
    """Write all records of ``batches`` and close ``sink``. Returns their number."""
    records = 0
    try:
        async for sealed in batches:
            sink.write(sealed)
            records += len(sealed.rows)
    finally:
        sink.close()
    return records


def _exported(sealed: SealedBatch) -> list[ExportedRecord]:
    batch = sealed.batch
    seconds, ns = divmod(batch.written_at_ns, NS_PER_S)
    written_at = datetime.fromtimestamp(seconds, UTC).replace(microsecond=ns // 1000)
    return [
        ExportedRecord(
            seq=seq,
            written_at=written_at,
            batch=batch.batch,
            epoch=batch.epoch,
            kind=kind,
            version=version,
            subject=subject,
            record=msgspec.Raw(payload),
        )
        for seq, _, kind, version, subject, payload in sealed.rows
    ]


class _JsonLines:
    def __init__(self, path: Path) -> None:
        self._file: BinaryIO = path.open("xb")
        self._encoder = msgspec.json.Encoder()

    def write(self, sealed: SealedBatch) -> None:
        self._file.write(self._encoder.encode_lines(_exported(sealed)))

    def close(self) -> None:
        self._file.close()


class _Parquet:
    def __init__(self, path: Path) -> None:
        try:
            import pyarrow as pa
            import pyarrow.parquet as pq
        except ModuleNotFoundError as error:
            if error.name != "pyarrow":
                raise
            raise JournalError(
                "writing Parquet needs pyarrow: pip install 'asched[parquet]', or export .jsonl"
            ) from None
        self._arrow: Any = pa
        self._schema = pa.schema(
            [
                ("seq", pa.int64()),
                ("writtenAt", pa.timestamp("us", tz="UTC")),
                ("batch", pa.int64()),
                ("epoch", pa.int64()),
                ("kind", pa.string()),
                ("version", pa.int16()),
                ("subject", pa.string()),
                ("record", pa.string()),
            ]
        )
        self._file: BinaryIO = path.open("xb")
        self._writer = pq.ParquetWriter(self._file, self._schema, compression="zstd")
        self._rows: list[ExportedRecord] = []

    def write(self, sealed: SealedBatch) -> None:
        self._rows += _exported(sealed)
        if len(self._rows) >= _GROUP_ROWS:
            self._flush()

    def _flush(self) -> None:
        columns: list[Any] = list(zip(*map(msgspec.structs.astuple, self._rows), strict=True))
        columns[-1] = [bytes(record).decode() for record in columns[-1]]
        arrays = [
            self._arrow.array(column, type=field.type)
            for column, field in zip(columns, self._schema, strict=True)
        ]
        self._writer.write_table(self._arrow.Table.from_arrays(arrays, schema=self._schema))
        self._rows.clear()

    def close(self) -> None:
        if self._rows:
            self._flush()
        self._writer.close()
        self._file.close()


_BUSY_TIMEOUT_S = 30.0


def back_up(source: Path, target: Path) -> None:
    """Copy the journal in ``source`` to the new file ``target``, durable on return.

    A writer is not blocked. Raises :class:`JournalOpenError` if ``source`` is not a file or
    ``target`` exists, and :class:`JournalIOError` if the copy fails.
    """
    if not source.is_file():
        raise JournalOpenError(f"cannot open {source}: there is no such file")
    if target.exists():
        raise JournalOpenError(f"{target} already exists; choose another name")
    partial = target.with_name(f"{target.name}.partial")
    try:
        # Readable by its owner only, as the journal.
        os.close(os.open(partial, os.O_CREAT | os.O_WRONLY | os.O_TRUNC | os.O_CLOEXEC, 0o600))
        _copy(source, partial)
        _sync(partial)
        partial.rename(target)
        _sync(target.parent)
    except (OSError, sqlite3.Error) as error:
        raise _failure(source, target, error) from error
    finally:
        partial.unlink(missing_ok=True)


def _copy(source: Path, target: Path) -> None:
    immutable = "&immutable=1" if must_be_immutable(source) else ""
    read_only = f"{source.absolute().as_uri()}?mode=ro{immutable}"
    with (
        closing(sqlite3.connect(read_only, uri=True, timeout=_BUSY_TIMEOUT_S)) as journal,
        closing(sqlite3.connect(target)) as copy,
    ):
        # In one step: a copy in several steps restarts whenever a batch is written.
        journal.backup(copy)
        # A single file without a write-ahead log.
        copy.execute("PRAGMA journal_mode = DELETE")
    if immutable:
        check_still_immutable(source)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _failure(source: Path, target: Path, error: Exception) -> JournalError:
    what = (error.strerror or str(error)) if isinstance(error, OSError) else str(error)
    return JournalIOError(f"cannot copy {source} to {target}: {what}")
