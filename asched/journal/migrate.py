"""Brings a journal's tables to this asched's revision, by alembic."""

from __future__ import annotations

from functools import cache
from importlib import resources
from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.script import ScriptDirectory
from sqlalchemy import Connection

from asched.journal.errors import JournalAbsentError, JournalSchemaError
from asched.journal.revision import current


def script_location() -> Path:
    """The folder of migrations: inside the installed package, or beside it in a checkout.

    Raises :class:`JournalSchemaError` if the installation lacks it.
    """
    package = Path(str(resources.files("asched")))
    for folder in (package / "_migrations", package.parent / "migrations"):
        if (folder / "env.py").is_file():
            return folder
    raise JournalSchemaError(f"asched is not installed whole: {package} has no _migrations")


@cache
def _scripts() -> ScriptDirectory:
    return ScriptDirectory(str(script_location()))


def newest() -> str:
    """The revision that this asched's code is written for."""
    head = _scripts().get_current_head()
    assert head is not None, "there is at least one migration"
    return head


def refuse(connection: Connection) -> None:
    """Say why tables of a revision that is not the newest cannot be read.

    Raises :class:`JournalSchemaError` saying both revisions and what to do,
    :class:`JournalAbsentError` where there are no tables.
    """
    found = current(connection)
    if found is None:
        raise JournalAbsentError("this database holds no journal")
    _refuse_newer(found)
    raise JournalSchemaError(
        f"the journal has schema {found}, this asched reads {newest()}: open it once for"
        " writing (asched run) to upgrade it"
    )


def upgrade(connection: Connection) -> None:
    """Create or upgrade the tables, within the caller's transaction.

    Raises :class:`JournalSchemaError` for tables of a newer asched, left as they are.
    """
    found = current(connection)
    if found is not None:
        _refuse_newer(found)
    config = Config()
    config.set_main_option("script_location", str(script_location()).replace("%", "%%"))
    config.attributes["connection"] = connection
    command.upgrade(config, "head")


def _refuse_newer(found: str) -> None:
    known = {script.revision for script in _scripts().walk_revisions()}
    if found not in known:
        raise JournalSchemaError(
            f"the journal has schema {found}, newer than this asched's {newest()}: upgrade asched"
        )
