"""Alembic's environment: runs on the connection that asched hands over, within its transaction."""

from alembic import context

connection = context.config.attributes.get("connection")
if connection is None:
    raise SystemExit("the journal is upgraded by asched when it opens it, not by alembic's command")

context.configure(
    connection=connection,
    # Not alembic's default name: a PostgreSQL schema may hold another program's tables too.
    version_table="journal_schema",
    transactional_ddl=True,
)
with context.begin_transaction():
    context.run_migrations()
