"""Which revision a journal's tables have.

Nearly always it is the newest, and then nothing has to be done: alembic, which takes a quarter of a
second to import, is only asked where it is not.
"""

from __future__ import annotations

from typing import Final

from sqlalchemy import Connection, inspect, text

VERSION_TABLE: Final = "journal_schema"
NEWEST: Final = "0002"
"""The revision that this asched's code is written for: the last one in ``migrations/``."""


def current(connection: Connection) -> str | None:
    """The revision of the tables, None where there are none yet."""
    if not inspect(connection).has_table(VERSION_TABLE):
        return None
    found = connection.execute(text(f"SELECT version_num FROM {VERSION_TABLE}")).scalar()
    return None if found is None else str(found)


def check(connection: Connection) -> None:
    """Refuse tables of any revision but the newest.

    Raises :class:`~asched.journal.errors.JournalSchemaError` saying both revisions and what to do.
    """
    if current(connection) != NEWEST:
        from asched.journal import migrate

        migrate.refuse(connection)


def upgrade(connection: Connection) -> None:
    """Create or upgrade the tables, within the caller's transaction.

    Raises :class:`~asched.journal.errors.JournalSchemaError` for tables of a newer asched, left as
    they are.
    """
    if current(connection) != NEWEST:
        from asched.journal import migrate

        migrate.upgrade(connection)
