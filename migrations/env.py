"""Alembic's environment: uses the connection and transaction of asched."""

from alembic import context

connection = context.config.attributes.get("connection")
if connection is None:
    raise SystemExit("asched upgrades the journal when it opens it; do not use alembic's command")

context.configure(
    connection=connection,
    # Not alembic's default: a PostgreSQL schema may also hold the tables of another program.
    version_table="journal_schema",
    transactional_ddl=True,
)
with context.begin_transaction():
    context.run_migrations()
