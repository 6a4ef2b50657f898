"""Statements and signed heads in the database.

A checkpoint, or a segment, and the statement about it are stored in one transaction.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256

import msgspec
from sqlalchemy import delete, func, insert, select
from sqlalchemy.ext.asyncio import AsyncConnection

from asched.journal.chain import GENESIS_HASH, Batch, Segment
from asched.journal.database import SqlDatabase
from asched.journal.errors import (
    ConflictError,
    FencedError,
    JournalCorruptError,
    JournalError,
    fenced_message,
    longer_head_message,
)
from asched.journal.schema import (
    JOURNAL_BATCH,
    JOURNAL_SIGNED_HEAD,
    JOURNAL_STATEMENT,
    JOURNAL_WRITER,
)
from asched.journal.store import CheckpointMark
from asched.proof import ProofError
from asched.proof.heads import SignedHead
from asched.proof.keys import JournalKeys, SigningKey
from asched.proof.merkle import Frontier, leaf_hash
from asched.proof.statements import (
    CheckpointDigest,
    JournalStatement,
    KeyChange,
    Position,
    SegmentDigest,
    StatementLog,
    StatementRow,
    Subject,
    next_statement,
)

BEGINNING = Position.of(0, GENESIS_HASH, Frontier())
"""The position in an empty journal."""


def checkpoint_digest(seq: int, blob: bytes) -> CheckpointDigest:
    return CheckpointDigest(seq, sha256(blob).hexdigest())


def segment_digest(segment: Segment) -> SegmentDigest:
    """Covers all columns, including the SHA-256 of the file."""
    return SegmentDigest(segment.segment, sha256(msgspec.json.encode(segment)).hexdigest())


def batch_leaf(batch_hash: str) -> bytes:
    """The leaf of a batch in the journal's Merkle tree.

    Raises :class:`JournalCorruptError` for a hash that is not in hex digits.
    """
    try:
        return leaf_hash(bytes.fromhex(batch_hash))
    except ValueError:
        raise JournalCorruptError(f"{batch_hash[:80]!r} is not the hash of a batch") from None


def log_of(rows: Sequence[StatementRow]) -> StatementLog:
    """Raises :class:`JournalCorruptError` if the chain of statements is broken."""
    try:
        return StatementLog(rows)
    except ProofError as error:
        raise JournalCorruptError(str(error)) from None


def trusted_log(rows: Sequence[StatementRow], keys: JournalKeys) -> StatementLog:
    """As :func:`log_of`; if keys are trusted, one of them must have signed."""
    log = log_of(rows)
    if keys.all_trusted:
        try:
            log.check_trusted(keys.all_trusted)
        except ProofError as error:
            raise JournalCorruptError(str(error)) from None
    return log


def signers_for(log: StatementLog, keys: JournalKeys) -> list[SigningKey]:
    """The keys to sign the next statement with.

    Raises :class:`JournalError` if the journal is signed and its key is not given.
    """
    if log.key is None:
        return []
    if keys.signing is None:
        raise JournalError(
            f"the journal is signed by key {log.key.id}: give its file with --signing-key, or as"
            " journal.signingKey in the configuration"
        )
    if keys.signing.public_key != log.key:
        raise JournalError(
            f"the journal is signed by key {log.key.id}, the given key is {keys.signing.id}:"
            " change the key with `asched journal rotate-key`"
        )
    return [keys.signing]


def checked(log: StatementLog, statement: JournalStatement) -> JournalStatement:
    """The statement. Raises :class:`JournalCorruptError` if its signature is wrong."""
    try:
        return log.check(statement)
    except ProofError as error:
        raise JournalCorruptError(str(error)) from None


async def read_statements(connection: AsyncConnection) -> list[StatementRow]:
    found = await connection.execute(select(JOURNAL_STATEMENT).order_by(JOURNAL_STATEMENT.c.number))
    return [StatementRow(*row) for row in found.all()]


async def add_statement(
    connection: AsyncConnection, about: Subject, batch: Batch, keys: JournalKeys
) -> None:
    """Add a statement about something at the end of ``batch``."""
    log = log_of(await read_statements(connection))
    signers = signers_for(log, keys)
    position = await position_at(connection, log, batch)
    row = next_statement(log.tip, position, about, signers)
    await connection.execute(insert(JOURNAL_STATEMENT).values(row))


async def position_at(connection: AsyncConnection, log: StatementLog, batch: Batch) -> Position:
    """The end of ``batch`` with the Merkle tree, continued from the nearest statement before.

    Raises :class:`JournalCorruptError` if batches are missing.
    """
    tree = Frontier()
    for statement in reversed(log.statements):
        if statement.position.batch <= batch.batch:
            tree = checked(log, statement).position.tree
            break
    columns = JOURNAL_BATCH.c
    between = columns.batch.between(tree.size + 1, batch.batch)
    hashes = select(columns.hash).where(between).order_by(columns.batch)
    for (batch_hash,) in (await connection.execute(hashes)).all():
        tree.append(batch_leaf(batch_hash))
    if tree.size != batch.batch:
        raise JournalCorruptError(f"batches before batch {batch.batch} are missing")
    return Position.of(batch.last_seq, batch.hash, tree)


async def read_signed_head(connection: AsyncConnection) -> SignedHead | None:
    """Raises :class:`JournalCorruptError` if it is unreadable."""
    newest = select(JOURNAL_SIGNED_HEAD.c.line).order_by(JOURNAL_SIGNED_HEAD.c.size.desc()).limit(1)
    line = (await connection.execute(newest)).scalar()
    if line is None:
        return None
    try:
        return SignedHead.parse(line)
    except ProofError as error:
        raise JournalCorruptError(f"the signed head is not readable: {error}") from None


async def replace_signed_head(connection: AsyncConnection, signed: SignedHead) -> None:
    """Raises :class:`ConflictError` if a longer journal was signed before."""
    await connection.execute(
        delete(JOURNAL_SIGNED_HEAD).where(JOURNAL_SIGNED_HEAD.c.size <= signed.head.size)
    )
    longest = (await connection.execute(select(func.max(JOURNAL_SIGNED_HEAD.c.size)))).scalar()
    if longest is not None:
        raise ConflictError(longer_head_message(longest, signed.head.size))
    values = {"size": signed.head.size, "line": signed.line}
    await connection.execute(insert(JOURNAL_SIGNED_HEAD).values(values))


def checkpoint_fault(statements: StatementLog, mark: CheckpointMark, blob: bytes) -> str:
    """Why a stored checkpoint must not be used; empty if it may."""
    statement = statements.checkpoint(mark.seq)
    if statement is None:
        return "no statement is about it"
    try:
        statements.check(statement)
    except ProofError as error:
        return str(error)
    position = statement.position
    of_batch = (position.batch, position.hash) == (mark.batch, mark.batch_hash)
    if not (of_batch and 1 <= mark.seq <= position.seq):
        return f"it is not of the batch in statement {statement.number}"
    if statement.about != checkpoint_digest(mark.seq, blob):
        return f"its SHA-256 differs from that in statement {statement.number}"
    return ""


class SqlProofs:
    """The part of a SQL store that holds statements and the signed head."""

    def __init__(self, database: SqlDatabase, keys: JournalKeys) -> None:
        self.keys = keys
        self._database = database
        self._epoch = 0

    async def statements(self) -> Sequence[StatementRow]:
        async with self._database.read() as connection:
            return await read_statements(connection)

    async def statements_tip(self) -> StatementRow | None:
        newest = select(JOURNAL_STATEMENT).order_by(JOURNAL_STATEMENT.c.number.desc()).limit(1)
        async with self._database.read() as connection:
            row = (await connection.execute(newest)).one_or_none()
            return None if row is None else StatementRow(*row)

    async def change_key(self, change: KeyChange, signers: Sequence[SigningKey]) -> None:
        newest = select(JOURNAL_BATCH).order_by(JOURNAL_BATCH.c.batch.desc()).limit(1)
        async with self._database.write() as connection:
            row = (await connection.execute(newest)).one_or_none()
            statements = log_of(await read_statements(connection))
            position = BEGINNING
            if row is not None:
                position = await position_at(connection, statements, Batch(*row))
            statement = next_statement(statements.tip, position, change, signers)
            await connection.execute(insert(JOURNAL_STATEMENT).values(statement))
            await self._check_not_fenced(connection)

    async def signed_head(self) -> SignedHead | None:
        async with self._database.read() as connection:
            return await read_signed_head(connection)

    async def save_signed_head(self, signed: SignedHead) -> None:
        async with self._database.write() as connection:
            await replace_signed_head(connection, signed)
            await self._check_not_fenced(connection)

    async def restore_proofs(
        self, statements: Sequence[StatementRow], signed: SignedHead | None
    ) -> None:
        """Store those of another journal with the same batches."""
        async with self._database.write() as connection:
            for statement in statements:
                await connection.execute(insert(JOURNAL_STATEMENT).values(statement))
            if signed is not None:
                await replace_signed_head(connection, signed)

    async def _check_not_fenced(self, connection: AsyncConnection) -> None:
        """Must follow a write of the transaction, which blocks other claims until it ends."""
        newest = (await connection.execute(select(func.max(JOURNAL_WRITER.c.epoch)))).scalar() or 0
        if self._epoch not in (0, newest):
            raise FencedError(fenced_message(self._epoch, newest))
