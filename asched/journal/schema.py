"""The journal's tables as queries see them, and their revision.

``migrations/`` creates and changes the tables; a test compares both. alembic takes a tenth of a
second to import and is imported only to upgrade tables. The tables of a new SQLite journal come
from ``migrations/newest_sqlite.sql``, which is what all migrations result in.
"""

from __future__ import annotations

from importlib import resources
from pathlib import Path
from typing import Any, Final

from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
    ForeignKeyConstraint,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    SmallInteger,
    Table,
    Text,
    UniqueConstraint,
    inspect,
    text,
)
from sqlalchemy.schema import SchemaItem

from asched.journal.errors import JournalAbsentError, JournalSchemaError

VERSION_TABLE: Final = "journal_schema"
NEWEST: Final = "0002"
"""The last revision in ``migrations/``."""
NEWEST_SQLITE: Final = "newest_sqlite.sql"
"""The statements that create a SQLite journal of this revision; a test derives them."""

METADATA = MetaData()


def _table(name: str, key: str, columns: dict[str, type[Any]], *parts: SchemaItem) -> Table:
    """A table with a numeric primary key, and other columns that are not nullable."""
    # "INTEGER PRIMARY KEY" is SQLite's row number; BIGINT would need a separate index.
    number = BigInteger().with_variant(Integer(), "sqlite")
    primary = Column(key, number, primary_key=True, autoincrement=False)
    others = [Column(column, kind, nullable=False) for column, kind in columns.items()]
    return Table(name, METADATA, primary, *others, *parts)


JOURNAL_WRITER = _table(
    "journal_writer", "epoch", {"writer": Text, "claimed_at_ns": BigInteger, "hash": Text}
)

JOURNAL_BATCH = _table(
    "journal_batch",
    "batch",
    {
        "first_seq": BigInteger,
        "last_seq": BigInteger,
        "epoch": BigInteger,
        "written_at_ns": BigInteger,
        "previous_hash": Text,
        "hash": Text,
    },
    UniqueConstraint("first_seq"),
    ForeignKeyConstraint(["epoch"], ["journal_writer.epoch"]),
)

JOURNAL_RECORD = _table(
    "journal_record",
    "seq",
    {"batch": BigInteger, "kind": Text, "version": SmallInteger, "subject": Text, "payload": Text},
    Index("journal_record_subject", "subject", "seq"),
)

JOURNAL_CHECKPOINT = _table(
    "journal_checkpoint",
    "seq",
    {"batch": BigInteger, "batch_hash": Text, "blob": LargeBinary},
    ForeignKeyConstraint(["batch"], ["journal_batch.batch"]),
)

JOURNAL_SEGMENT = _table(
    "journal_segment",
    "segment",
    {
        "first_batch": BigInteger,
        "last_batch": BigInteger,
        "first_seq": BigInteger,
        "last_seq": BigInteger,
        "previous_hash": Text,
        "hash": Text,
        "file": Text,
        "file_sha256": Text,
        "archived_at_ns": BigInteger,
    },
)

JOURNAL_STATEMENT = _table("journal_statement", "number", {"body": Text, "signatures": Text})

JOURNAL_SIGNED_HEAD = _table("journal_signed_head", "size", {"line": Text})


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
    elif connection.dialect.name == "sqlite":
        for statement in sqlite_statements():
            connection.exec_driver_sql(statement)
        return
    migrate(connection)


def sqlite_statements() -> list[str]:
    """The statements that create a new SQLite journal."""
    return (migrations_path() / NEWEST_SQLITE).read_text().split("\n\n")


def migrate(connection: Connection) -> None:
    """Run the migrations that the tables lack, within the caller's transaction."""
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
