"""A journal's records for analysis elsewhere: JSON lines or Parquet.

A copy of a journal in SQLite, taken while a daemon writes to it.

Copying the file itself would miss what is still in its write-ahead log, or take half of it. SQLite's own
backup reads in one transaction: the copy is the journal as it was at one moment between two batches.
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
from asched.model.quantity import NS_PER_S

_GROUP_ROWS: Final = 50_000
"""Rows of a Parquet row group: what is held in memory at once."""


class ExportedRecord(msgspec.Struct, frozen=True, rename="camel"):
    """A line of JSON lines; in Parquet a row, with the record as text and these names."""

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
    """A new file for ``path``'s ending, ``.jsonl`` or ``.parquet``.

    Raises :class:`JournalError` for another ending, or where Parquet's library is not installed,
    :class:`JournalIOError` for a path that cannot be written.
    """
    if path.suffix not in (".jsonl", ".parquet"):
        raise JournalError(f"{path} does not say its format: expected a name in .jsonl or .parquet")
    try:
        return _JsonLines(path) if path.suffix == ".jsonl" else _Parquet(path)
    except OSError as error:
        raise JournalIOError(f"cannot write {path}: {error.strerror}") from None


async def export(batches: AsyncIterator[SealedBatch], sink: ExportSink) -> int:
    """Write all records of ``batches`` and close ``sink``. Returns how many there were."""
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
            seq, written_at, batch.batch, batch.epoch, kind, version, subject, msgspec.Raw(payload)
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
                "writing Parquet needs pyarrow: pip install 'asched[parquet]' (JSON lines need"
                " nothing more)"
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

    Nobody is kept from writing meanwhile. Raises :class:`JournalOpenError` where ``source`` is no
    file or ``target`` is there already, and :class:`JournalIOError` where the copy cannot be made.
    """
    if not source.is_file():
        raise JournalOpenError(f"cannot open {source}: there is no such file")
    if target.exists():
        raise JournalOpenError(f"{target} is there already; a copy is made under a new name")
    partial = target.with_name(f"{target.name}.partial")
    try:
        # Readable by its owner alone, as the journal is, from its first byte on.
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
    read_only = f"{source.absolute().as_uri()}?mode=ro"
    with (
        closing(sqlite3.connect(read_only, uri=True, timeout=_BUSY_TIMEOUT_S)) as journal,
        closing(sqlite3.connect(target)) as copy,
    ):
        # All in one step: a copy in several begins anew whenever a batch is written.
        journal.backup(copy)
        # One file, with no log beside it, until somebody opens it for writing.
        copy.execute("PRAGMA journal_mode = DELETE")


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _failure(source: Path, target: Path, error: Exception) -> JournalError:
    what = (error.strerror or str(error)) if isinstance(error, OSError) else str(error)
    return JournalIOError(f"cannot copy {source} to {target}: {what}")
