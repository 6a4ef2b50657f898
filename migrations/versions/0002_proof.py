"""Statements about checkpoints, segments and keys, and the newest signed head.

Statements are append-only. The signed head is replaced by the next one: its root covers all batches
of the one before.
"""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

KEY = sa.BigInteger().with_variant(sa.Integer(), "sqlite")

NOT_NEXT = "NEW.number <> (SELECT coalesce(max(number), 0) + 1 FROM journal_statement)"
MESSAGE = "out of sequence: not the next statement"


def upgrade() -> None:
    op.create_table(
        "journal_statement",
        sa.Column("number", KEY, primary_key=True, autoincrement=False),
        sa.Column("body", sa.Text(), nullable=False),
        sa.Column("signatures", sa.Text(), nullable=False),
    )
    op.create_table(
        "journal_signed_head",
        sa.Column("size", KEY, primary_key=True, autoincrement=False),
        sa.Column("line", sa.Text(), nullable=False),
    )
    if op.get_context().dialect.name == "sqlite":
        create_sqlite_triggers()
    else:
        create_postgresql_triggers()


def create_sqlite_triggers() -> None:
    for verb in ("UPDATE", "DELETE"):
        op.execute(
            f"CREATE TRIGGER journal_statement_no_{verb.lower()} BEFORE {verb}"
            " ON journal_statement BEGIN SELECT"
            f" RAISE(ABORT, 'append-only: {verb} on journal_statement is refused'); END"
        )
    op.execute(
        "CREATE TRIGGER journal_statement_next BEFORE INSERT ON journal_statement"
        f" WHEN {NOT_NEXT} BEGIN SELECT RAISE(ABORT, '{MESSAGE}'); END"
    )


def create_postgresql_triggers() -> None:
    for verb, each in (("UPDATE", "ROW"), ("DELETE", "ROW"), ("TRUNCATE", "STATEMENT")):
        op.execute(
            f"CREATE TRIGGER journal_statement_no_{verb.lower()} BEFORE {verb}"
            f" ON journal_statement FOR EACH {each} EXECUTE FUNCTION journal_refuse_change()"
        )
    op.execute(
        "CREATE FUNCTION journal_statement_next() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
        " PERFORM pg_advisory_xact_lock(1634952040, hashtext(current_schema()));"
        f" IF {NOT_NEXT} THEN RAISE EXCEPTION '{MESSAGE}'; END IF; RETURN NEW; END $$"
    )
    op.execute(
        "CREATE TRIGGER journal_statement_next BEFORE INSERT ON journal_statement"
        " FOR EACH ROW EXECUTE FUNCTION journal_statement_next()"
    )
