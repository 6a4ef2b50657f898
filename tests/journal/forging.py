"""Forges journals as a program does that can write the database."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

from asched.journal.chain import GENESIS, Batch, JournalRow, SealedBatch, batch_hash

PROOF_TABLES = ("journal_statement", "journal_signed_head", "journal_checkpoint")


@contextmanager
def without_triggers(path: Path) -> Iterator[sqlite3.Connection]:
    """Change the database, and restore its triggers afterwards."""
    with closing(sqlite3.connect(path)) as connection:
        triggers = connection.execute("SELECT name, sql FROM sqlite_schema WHERE type = 'trigger'")
        found = triggers.fetchall()
        for name, _ in found:
            connection.execute(f"DROP TRIGGER {name}")
        yield connection
        for _, statement in found:
            connection.execute(statement)
        connection.commit()


def rename(path: Path, old: str, new: str) -> None:
    """Rename a pod throughout, and compute all hashes of batches again."""
    with without_triggers(path) as connection:
        for column in ("subject", "payload"):
            connection.execute(
                f"UPDATE journal_record SET {column} = replace({column}, ?, ?)", (old, new)
            )
        rehash(connection)


def rehash(connection: sqlite3.Connection) -> None:
    """Make the chain of batches consistent, and let checkpoints fit to it."""
    head = GENESIS
    batches = connection.execute("SELECT * FROM journal_batch ORDER BY batch").fetchall()
    for row in batches:
        batch = Batch(*row)
        if batch.batch == head.batch + 1:
            batch = batch._replace(previous_hash=head.hash)
        rows = connection.execute(
            "SELECT * FROM journal_record WHERE seq BETWEEN ? AND ? ORDER BY seq",
            (batch.first_seq, batch.last_seq),
        )
        records = [JournalRow(*record) for record in rows]
        batch = batch._replace(hash=batch_hash(batch, records))
        connection.execute(
            "UPDATE journal_batch SET previous_hash = ?, hash = ? WHERE batch = ?",
            (batch.previous_hash, batch.hash, batch.batch),
        )
        connection.execute(
            "UPDATE journal_checkpoint SET batch_hash = ? WHERE batch = ?",
            (batch.hash, batch.batch),
        )
        head = head._replace(seq=batch.last_seq, batch=batch.batch, hash=batch.hash)


def delete_proofs(path: Path, tables: Sequence[str] = PROOF_TABLES) -> None:
    """Delete checkpoints, statements and the signed head."""
    with without_triggers(path) as connection:
        for table in tables:
            connection.execute(f"DELETE FROM {table}")


def cut(path: Path, batch: int, *, with_proofs: bool) -> None:
    """Delete everything from ``batch`` on; ``with_proofs``: also later checkpoints, statements
    about them, and the signed head."""
    with without_triggers(path) as connection:
        for table in ("journal_batch", "journal_record", "journal_checkpoint"):
            connection.execute(f"DELETE FROM {table} WHERE batch >= ?", (batch,))
        if with_proofs:
            connection.execute("DELETE FROM journal_signed_head")
            kept = connection.execute("SELECT number, body FROM journal_statement")
            for number, body in kept.fetchall():
                found = re.search(r'"batch":(\d+)', body)
                assert found is not None
                if int(found[1]) >= batch:
                    connection.execute("DELETE FROM journal_statement WHERE number = ?", (number,))


def restore_head(path: Path, line: str, size: int) -> None:
    """Store an earlier signed head, which the forger had copied."""
    with without_triggers(path) as connection:
        connection.execute("DELETE FROM journal_signed_head")
        connection.execute("INSERT INTO journal_signed_head VALUES (?, ?)", (size, line))


def append(path: Path, sealed: SealedBatch) -> None:
    """With all triggers in place: append a batch as its writer would."""
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("INSERT INTO journal_batch VALUES (?, ?, ?, ?, ?, ?, ?)", sealed.batch)
        rows = map(tuple, sealed.rows)
        connection.executemany("INSERT INTO journal_record VALUES (?, ?, ?, ?, ?, ?)", rows)
        connection.commit()


def stored_head(path: Path) -> tuple[int, str]:
    with closing(sqlite3.connect(path)) as connection:
        size, line = connection.execute("SELECT size, line FROM journal_signed_head").fetchone()
    return size, line


def invent_segment(path: Path, last_batch: int) -> None:
    """With all triggers in place: insert a segment of an archive that never was, and delete the
    records within it."""
    with closing(sqlite3.connect(path)) as connection:
        last_seq, last_hash = connection.execute(
            "SELECT last_seq, hash FROM journal_batch WHERE batch = ?", (last_batch,)
        ).fetchone()
        connection.execute(
            "INSERT INTO journal_segment VALUES (1, 1, ?, 1, ?, ?, ?, 'segment', ?, 1)",
            (last_batch, last_seq, GENESIS.hash, last_hash, "ab" * 32),
        )
        connection.execute("DELETE FROM journal_checkpoint WHERE batch <= ?", (last_batch,))
        connection.execute("DELETE FROM journal_record WHERE batch <= ?", (last_batch,))
        connection.execute("DELETE FROM journal_batch WHERE batch <= ?", (last_batch,))
        connection.commit()
