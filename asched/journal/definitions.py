"""Compares tables, indexes and triggers of a database with those that the migrations create.

A writer of the database can change them without a change of a record: a partial index hides records
from queries that use it, a missing trigger no longer rejects changes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final

from sqlalchemy import Connection, Dialect, TextClause, text

from asched.journal import schema
from asched.journal.errors import JournalCorruptError

_CREATE: Final = re.compile(r"CREATE (TABLE|INDEX|TRIGGER|FUNCTION) (\w+)")
_SHOWN_CHARACTERS: Final = 200

Definitions = Mapping[str, str]
"""The statement that creates it, by kind and name, such as ``trigger journal_batch_next``."""


def check_definitions(connection: Connection) -> None:
    """Raise :class:`JournalCorruptError` for an object that is missing, altered or added."""
    expected = _expected(connection.dialect)
    tables = [name.removeprefix("table ") for name in expected if name.startswith("table ")]
    if connection.dialect.name == "sqlite":
        _compare(expected, _on_sqlite(connection, tables), _one_spaced)
    else:
        _compare(expected, _on_postgresql(connection, tables), _comparable)


def check_indexes(connection: Connection) -> None:
    """Raise :class:`JournalCorruptError` if an index does not contain the rows of its table.

    Reads the whole database.
    """
    if connection.dialect.name == "sqlite":
        found = connection.execute(text("PRAGMA integrity_check(1)")).scalar()
        if found != "ok":
            raise JournalCorruptError(f"the database is damaged: {found}")
        return
    indexed = _count(connection, _COUNT_INDEXED, avoided=_SCANS[:1])
    rows = _count(connection, _COUNT_ROWS, avoided=_SCANS[1:])
    if indexed != rows:
        raise JournalCorruptError(
            f"index journal_record_subject has {indexed} entries for {rows} records:"
            " REINDEX INDEX journal_record_subject"
        )


def _expected(dialect: Dialect) -> Definitions:
    """What the migrations create. SQLite needs neither alembic nor the dialect of PostgreSQL, which
    take a tenth of a second to import at each start."""
    if dialect.name == "sqlite":
        return dict(_definitions(schema.sqlite_statements()))
    from alembic.operations import Operations
    from alembic.runtime.migration import MigrationContext
    from alembic.script import ScriptDirectory
    from sqlalchemy.dialects import postgresql

    output = _Statements()
    # asyncpg's numbered parameters do not double the percent signs of a text.
    named = postgresql.dialect(paramstyle="named")  # type: ignore[no-untyped-call]
    options = {"as_sql": True, "output_buffer": output}
    context = MigrationContext.configure(dialect=named, opts=options)
    scripts = ScriptDirectory(str(schema.migrations_path()))
    with Operations.context(context):
        for script in reversed([*scripts.walk_revisions()]):
            script.module.upgrade()
    # Functions last: one that is missing here is missing with its triggers.
    created = _definitions(output.written)
    return dict(sorted(created, key=lambda item: item[0].startswith("function")))


class _Statements:
    """The output of migrations that are printed instead of executed."""

    def __init__(self) -> None:
        self.written: list[str] = []

    def write(self, statement: str) -> None:
        self.written.append(statement)

    def flush(self) -> None:
        pass


def _definitions(statements: Iterable[str]) -> Iterator[tuple[str, str]]:
    for statement in statements:
        created = _CREATE.match(statement)
        if created:
            kind, name = created.groups()
            yield f"{kind.lower()} {name}", statement.strip().removesuffix(";")


def _compare(expected: Definitions, found: Definitions, form: Callable[[str], str]) -> None:
    for name, statement in expected.items():
        if name not in found:
            raise JournalCorruptError(f"{name} was deleted by another program{_shown(statement)}")
        if form(found[name]) != form(statement):
            raise JournalCorruptError(f"{name} was altered by another program{_shown(statement)}")
    added = next((name for name in found if name not in expected), None)
    if added is not None:
        raise JournalCorruptError(f"{added} was added by another program: drop it")


def _shown(statement: str) -> str:
    line = " ".join(statement.split())
    return f": expected {line}" if len(line) <= _SHOWN_CHARACTERS else ""


def _one_spaced(statement: str) -> str:
    """The statement with runs of white space as one space. All else counts: SQLite takes a name in
    double quotes that it does not know for a string, so quotes turn a condition into a constant."""
    return re.sub(r"[ \t\r\n]+", " ", statement)


def _comparable(statement: str) -> str:
    """The statement as PostgreSQL's catalog has it, without spaces and capitals, and the columns
    and constraints of a table sorted. The body of a function is not changed."""
    statement, quote, function = statement.partition("$$")
    plain = re.sub(r'[\s"]', "", statement).lower()
    if not plain.startswith("createtable"):
        return f"{plain}{quote}{function.rstrip()}"
    head, _, body = plain.partition("(")
    parts = re.split(r",(?![^(]*\))", body.removesuffix(")"))
    return f"{head}({','.join(sorted(parts))})"


# -- SQLite ----------------------------------------------------------------------------------------


def _on_sqlite(connection: Connection, tables: Sequence[str]) -> Definitions:
    """Tables of the journal, all triggers and all indexes. Indexes of constraints have no statement
    of their own."""
    rows = connection.execute(text("SELECT type, name, sql FROM sqlite_schema WHERE sql <> ''"))
    return {
        f"{kind} {name}": statement
        for kind, name, statement in rows
        if kind in ("trigger", "index") or (kind == "table" and name in tables)
    }


# -- PostgreSQL ------------------------------------------------------------------------------------

# Names are resolved as in queries, so that a table of an earlier schema is found.
_TABLES: Final = "(SELECT unnest(CAST(:tables AS text[])) AS name) t"
_OF_TABLE: Final = "to_regclass(t.name)"

_COLUMNS: Final = text(f"""
    SELECT t.name, a.attname || ' ' || format_type(a.atttypid, a.atttypmod)
        || CASE WHEN a.attnotnull THEN ' NOT NULL' ELSE '' END
        || CASE WHEN a.atthasdef OR a.attidentity <> '' THEN ' DEFAULT' ELSE '' END
    FROM {_TABLES} JOIN pg_attribute a ON a.attrelid = {_OF_TABLE}
    WHERE a.attnum > 0 AND NOT a.attisdropped
    UNION ALL
    SELECT t.name, pg_get_constraintdef(c.oid)
    FROM {_TABLES} JOIN pg_constraint c ON c.conrelid = {_OF_TABLE}
    WHERE c.contype IN ('p', 'u', 'f', 'c', 'x')
    UNION ALL
    SELECT t.name, 'changed by ' || found.change FROM {_TABLES}
    JOIN pg_class c ON c.oid = {_OF_TABLE}
    CROSS JOIN LATERAL (VALUES
        (c.relkind <> 'r', 'its kind'),
        (c.relpersistence <> 'p', 'its persistence'),
        (c.relrowsecurity, 'row security'),
        (EXISTS (SELECT FROM pg_rewrite WHERE ev_class = c.oid), 'a rule'),
        (EXISTS (SELECT FROM pg_inherits WHERE inhparent = c.oid), 'a child table')
    ) found (is_so, change) WHERE found.is_so
""")

_OTHERS: Final = text(f"""
    SELECT 'index ' || c.relname, pg_get_indexdef(i.indexrelid, 0, true)
        || CASE WHEN i.indisvalid AND i.indisready THEN '' ELSE ' INVALID' END
    FROM {_TABLES} JOIN pg_index i ON i.indrelid = {_OF_TABLE}
    JOIN pg_class c ON c.oid = i.indexrelid
    WHERE i.indpred IS NOT NULL OR NOT EXISTS (
        SELECT FROM pg_constraint WHERE conindid = i.indexrelid AND contype IN ('p', 'u', 'x'))
    UNION ALL
    SELECT 'trigger ' || g.tgname, pg_get_triggerdef(g.oid, true)
        || CASE WHEN g.tgenabled IN ('O', 'A') THEN '' ELSE ' DISABLED' END
    FROM {_TABLES} JOIN pg_trigger g ON g.tgrelid = {_OF_TABLE}
    WHERE NOT g.tgisinternal
    UNION ALL
    SELECT DISTINCT 'function ' || p.proname, pg_get_functiondef(p.oid)
    FROM {_TABLES} JOIN pg_trigger g ON g.tgrelid = {_OF_TABLE} JOIN pg_proc p ON p.oid = g.tgfoid
    WHERE NOT g.tgisinternal
""")


def _on_postgresql(connection: Connection, tables: Sequence[str]) -> Definitions:
    """What belongs to the tables of the journal. The schema may contain those of other programs."""
    of_journal = {"tables": tables}
    parts: dict[str, list[str]] = {}
    for name, part in connection.execute(_COLUMNS, of_journal):
        parts.setdefault(name, []).append(part)
    found = {
        f"table {name}": f"CREATE TABLE {name} ({', '.join(of_table)})"
        for name, of_table in parts.items()
    }
    for name, statement in connection.execute(_OTHERS, of_journal):
        found[name] = _as_written(statement)
    return found


def _as_written(statement: str) -> str:
    """A statement of the catalog without what PostgreSQL adds."""
    plain = statement.replace(" USING btree", "").replace("$function$", "$$")
    return re.sub(r"^CREATE OR REPLACE FUNCTION (\w+|\"[^\"]+\")\.", "CREATE FUNCTION ", plain)


# Two texts, because the driver plans a statement once.
_COUNT_INDEXED: Final = text("SELECT count(*) FROM journal_record WHERE subject >= ''")
_COUNT_ROWS: Final = text("SELECT count(*) AS rows FROM journal_record WHERE subject >= ''")
_PLAN: Final = text("SELECT set_config('enable_' || :scan, :value, true)")
_SCANS: Final = ("seqscan", "indexscan", "indexonlyscan", "bitmapscan")


def _count(connection: Connection, query: TextClause, *, avoided: Sequence[str]) -> int:
    """What a query counts with a plan that does not use these kinds of scans."""
    for scan in _SCANS:
        value = "off" if scan in avoided else "on"
        connection.execute(_PLAN, {"scan": scan, "value": value})
    counted: int = connection.execute(query).scalar_one()
    return counted
