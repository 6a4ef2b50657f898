"""The journal's tables as queries see them, and their revision.

``migrations/`` creates and changes the tables; a test compares both. alembic takes a quarter of a
second to import and is imported only for tables that do not have the newest revision.
"""

from __future__ import annotations

from importlib import resources
from pathlib import Path
from typing import Final

from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    SmallInteger,
    Table,
    Text,
    inspect,
    text,
)

from asched.journal.errors import JournalAbsentError, JournalSchemaError

VERSION_TABLE: Final = "journal_schema"
NEWEST: Final = "0002"
"""The last revision in ``migrations/``."""

METADATA = MetaData()

# "INTEGER PRIMARY KEY" is SQLite's row number; BIGINT would need a separate index.

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

JOURNAL_STATEMENT = Table(
    "journal_statement",
    METADATA,
    Column("number", _Key, primary_key=True, autoincrement=False),
    Column("body", Text, nullable=False),
    Column("signatures", Text, nullable=False),
)

JOURNAL_SIGNED_HEAD = Table(
    "journal_signed_head",
    METADATA,
    Column("size", _Key, primary_key=True, autoincrement=False),
    Column("line", Text, nullable=False),
)


def migrations_path() -> Path:
    """The directory of migrations: in the installed package, or next to it in a checkout.

    Raises :class:`JournalSchemaError` if the installation lacks it.
    """
    package = Path(str(resources.files("asched")))
    for folder in (package / "_migrations", package.parent / "migrations"):
        if (folder / "env.py").is_file():
            return folder
    raise JournalSchemaError(f"the installation of asched is incomplete: {package}/_migrations")


def check(connection: Connection) -> None:
    """Reject tables that do not have the newest revision.

    Raises :class:`JournalSchemaError` naming both revisions and the remedy,
    :class:`JournalAbsentError` if there are no tables.
    """
    found = _revision(connection)
    if found == NEWEST:
        return
    if found is None:
        raise JournalAbsentError("this database holds no journal")
    _check_known(found)
    raise JournalSchemaError(
        f"the journal has schema {found}, this asched reads {NEWEST}: open it once for"
        " writing (asched run) to upgrade it"
    )


def upgrade(connection: Connection) -> None:
    """Create or upgrade the tables, within the caller's transaction.

    Raises :class:`JournalSchemaError` for tables of a newer asched, which stay unchanged.
    """
    found = _revision(connection)
    if found == NEWEST:
        return
    if found is not None:
        _check_known(found)
    from alembic import command
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(migrations_path()).replace("%", "%%"))
    config.attributes["connection"] = connection
    command.upgrade(config, NEWEST)


def _revision(connection: Connection) -> str | None:
    """The revision of the tables, None if there are none."""
    if not inspect(connection).has_table(VERSION_TABLE):
        return None
    found = connection.execute(text(f"SELECT version_num FROM {VERSION_TABLE}")).scalar()
    return None if found is None else str(found)


def _check_known(found: str) -> None:
    from alembic.script import ScriptDirectory

    scripts = ScriptDirectory(str(migrations_path()))
    if found not in {script.revision for script in scripts.walk_revisions()}:
        raise JournalSchemaError(
            f"the journal has schema {found}, newer than this asched's {NEWEST}: upgrade asched"
        )
