"""The journal: writers, batches, records, checkpoints.

Writers, batches and records are append-only, and it is the database that says so: triggers refuse
UPDATE and DELETE, refuse a batch of a writer that is not the newest, and refuse whatever is not the
next in sequence. (The last also stops INSERT OR REPLACE, which deletes without firing a trigger.)

On PostgreSQL, where transactions run side by side, the trigger first takes a lock until the end of the
transaction: so the newest writer and the last batch are those that are committed, and sequence numbers
are gapless in the order of commits.
"""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

KEY = sa.BigInteger().with_variant(sa.Integer(), "sqlite")

APPEND_ONLY = ("journal_writer", "journal_batch", "journal_record")

NEXT_WRITER = "NEW.epoch <> (SELECT coalesce(max(epoch), 0) + 1 FROM journal_writer)"
FENCED = "coalesce(NEW.epoch <> (SELECT max(epoch) FROM journal_writer), true)"
NEXT_BATCH = f"""
    NEW.last_seq < NEW.first_seq
    OR NEW.batch <> (SELECT coalesce(max(batch), 0) + 1 FROM journal_batch)
    OR NEW.first_seq <> 1 + coalesce(
        (SELECT last_seq FROM journal_batch WHERE batch = NEW.batch - 1), 0)
    OR NEW.previous_hash <> coalesce(
        (SELECT hash FROM journal_batch WHERE batch = NEW.batch - 1), '{"0" * 64}')
"""
NEXT_RECORD = "NEW.seq <> (SELECT coalesce(max(seq), 0) + 1 FROM journal_record)"

# Per table, when an INSERT is refused and why. The first that holds is told: a deposed writer is
# out of sequence too, but must learn that it was deposed. (One trigger each, because SQLite does not
# say in which order it fires several.)
INSERT_RULES = {
    "journal_writer": ((NEXT_WRITER, "out of sequence: not the next epoch"),),
    "journal_batch": (
        (FENCED, "fenced: not the newest writer"),
        (NEXT_BATCH, "out of sequence: not the next batch"),
    ),
    "journal_record": ((NEXT_RECORD, "out of sequence: not the next record"),),
}


# The same lock as in asched.journal.postgres; the first number is "asch" in ASCII.
LOCK = "PERFORM pg_advisory_xact_lock(1634952040, hashtext(current_schema()));"
LOCKING = ("journal_writer", "journal_batch")


def upgrade() -> None:
    create_tables()
    if op.get_bind().dialect.name == "sqlite":
        create_sqlite_triggers()
    else:
        create_postgresql_triggers()


def create_tables() -> None:
    op.create_table(
        "journal_writer",
        sa.Column("epoch", KEY, primary_key=True, autoincrement=False),
        sa.Column("writer", sa.Text(), nullable=False),
        sa.Column("claimed_at_ns", sa.BigInteger(), nullable=False),
    )
    op.create_table(
        "journal_batch",
        sa.Column("batch", KEY, primary_key=True, autoincrement=False),
        sa.Column("first_seq", sa.BigInteger(), nullable=False, unique=True),
        sa.Column("last_seq", sa.BigInteger(), nullable=False),
        sa.Column("epoch", sa.BigInteger(), sa.ForeignKey("journal_writer.epoch"), nullable=False),
        sa.Column("written_at_ns", sa.BigInteger(), nullable=False),
        sa.Column("previous_hash", sa.Text(), nullable=False),
        sa.Column("hash", sa.Text(), nullable=False),
    )
    op.create_table(
        "journal_record",
        sa.Column("seq", KEY, primary_key=True, autoincrement=False),
        # No foreign key: it would need an index of its own, or each deletion of an archived batch
        # would look at all records.
        sa.Column("batch", sa.BigInteger(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("version", sa.SmallInteger(), nullable=False),
        sa.Column("subject", sa.Text(), nullable=False),
        sa.Column("payload", sa.Text(), nullable=False),
    )
    op.create_index("journal_record_subject", "journal_record", ["subject", "seq"])
    op.create_table(
        "journal_checkpoint",
        sa.Column("seq", KEY, primary_key=True, autoincrement=False),
        sa.Column("batch", sa.BigInteger(), sa.ForeignKey("journal_batch.batch"), nullable=False),
        sa.Column("batch_hash", sa.Text(), nullable=False),
        sa.Column("blob", sa.LargeBinary(), nullable=False),
    )


def create_sqlite_triggers() -> None:
    for table in APPEND_ONLY:
        for verb in ("UPDATE", "DELETE"):
            op.execute(
                f"CREATE TRIGGER {table}_no_{verb.lower()} BEFORE {verb} ON {table}"
                f" BEGIN SELECT RAISE(ABORT, 'append-only: {verb} on {table} is refused'); END"
            )
    for table, rules in INSERT_RULES.items():
        refused_when = " OR ".join(f"({condition})" for condition, _ in rules)
        reasons = " ".join(
            f"WHEN {condition} THEN RAISE(ABORT, '{reason}')" for condition, reason in rules
        )
        op.execute(
            f"CREATE TRIGGER {table}_next BEFORE INSERT ON {table} WHEN {refused_when}"
            f" BEGIN SELECT CASE {reasons} END; END"
        )


def create_postgresql_triggers() -> None:
    op.execute(
        "CREATE FUNCTION journal_refuse_change() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
        " RAISE EXCEPTION 'append-only: % on % is refused', TG_OP, TG_TABLE_NAME; END $$"
    )
    for table in APPEND_ONLY:
        for verb, each in (("UPDATE", "ROW"), ("DELETE", "ROW"), ("TRUNCATE", "STATEMENT")):
            op.execute(
                f"CREATE TRIGGER {table}_no_{verb.lower()} BEFORE {verb} ON {table}"
                f" FOR EACH {each} EXECUTE FUNCTION journal_refuse_change()"
            )
    for table, rules in INSERT_RULES.items():
        lock = LOCK if table in LOCKING else ""
        checks = " ".join(
            f"IF {condition} THEN RAISE EXCEPTION '{reason}'; END IF;"
            for condition, reason in rules
        )
        op.execute(
            f"CREATE FUNCTION {table}_next() RETURNS trigger LANGUAGE plpgsql AS $$"
            f" BEGIN {lock} {checks} RETURN NEW; END $$"
        )
        op.execute(
            f"CREATE TRIGGER {table}_next BEFORE INSERT ON {table}"
            f" FOR EACH ROW EXECUTE FUNCTION {table}_next()"
        )
