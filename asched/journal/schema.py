"""The journal's tables as queries see them. They are made by ``migrations/`` alone; a test keeps
both equal."""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Column,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    SmallInteger,
    Table,
    Text,
)

METADATA = MetaData()

# INTEGER PRIMARY KEY is SQLite's own row number; BIGINT would be a second index beside it.
_Key = BigInteger().with_variant(Integer(), "sqlite")

JOURNAL_WRITER = Table(
    "journal_writer",
    METADATA,
    Column("epoch", _Key, primary_key=True, autoincrement=False),
    Column("writer", Text, nullable=False),
    Column("claimed_at_ns", BigInteger, nullable=False),
    Column("hash", Text, nullable=False),
)

JOURNAL_BATCH = Table(
    "journal_batch",
    METADATA,
    Column("batch", _Key, primary_key=True, autoincrement=False),
    Column("first_seq", BigInteger, nullable=False, unique=True),
    Column("last_seq", BigInteger, nullable=False),
    Column("epoch", BigInteger, ForeignKey("journal_writer.epoch"), nullable=False),
    Column("written_at_ns", BigInteger, nullable=False),
    Column("previous_hash", Text, nullable=False),
    Column("hash", Text, nullable=False),
)

JOURNAL_RECORD = Table(
    "journal_record",
    METADATA,
    Column("seq", _Key, primary_key=True, autoincrement=False),
    Column("batch", BigInteger, nullable=False),
    Column("kind", Text, nullable=False),
    Column("version", SmallInteger, nullable=False),
    Column("subject", Text, nullable=False),
    Column("payload", Text, nullable=False),
    Index("journal_record_subject", "subject", "seq"),
)

JOURNAL_CHECKPOINT = Table(
    "journal_checkpoint",
    METADATA,
    Column("seq", _Key, primary_key=True, autoincrement=False),
    Column("batch", BigInteger, ForeignKey("journal_batch.batch"), nullable=False),
    Column("batch_hash", Text, nullable=False),
    Column("blob", LargeBinary, nullable=False),
)

JOURNAL_SEGMENT = Table(
    "journal_segment",
    METADATA,
    Column("segment", _Key, primary_key=True, autoincrement=False),
    Column("first_batch", BigInteger, nullable=False),
    Column("last_batch", BigInteger, nullable=False),
    Column("first_seq", BigInteger, nullable=False),
    Column("last_seq", BigInteger, nullable=False),
    Column("previous_hash", Text, nullable=False),
    Column("hash", Text, nullable=False),
    Column("file", Text, nullable=False),
    Column("file_sha256", Text, nullable=False),
    Column("archived_at_ns", BigInteger, nullable=False),
)
