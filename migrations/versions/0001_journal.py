"""The journal: writers, batches, records, checkpoints, and segments of the archive.

Triggers make writers, batches, records and segments append-only. They reject UPDATE, reject a batch
of a writer that is not the newest, and reject whatever is not next in sequence. The last rule also
stops INSERT OR REPLACE, which deletes without firing a trigger. Batches and records can be deleted
only once a segment contains them. A segment never contains the newest batch, which the next append
follows.

PostgreSQL runs transactions concurrently, so its triggers first take a lock until the end of the
transaction. The newest writer and the last batch are then committed, and sequence numbers are
gapless in the order of commits.
"""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

KEY = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
GENESIS_HASH = "0" * 64

APPEND_ONLY = ("journal_writer", "journal_batch", "journal_record", "journal_segment")
ARCHIVED = ("journal_batch", "journal_record")
NOT_ARCHIVED = "OLD.batch > (SELECT coalesce(max(last_batch), 0) FROM journal_segment)"

NEXT_WRITER = "NEW.epoch <> (SELECT coalesce(max(epoch), 0) + 1 FROM journal_writer)"
FENCED = "coalesce(NEW.epoch <> (SELECT max(epoch) FROM journal_writer), true)"
NEXT_BATCH = f"""
    NEW.last_seq < NEW.first_seq
    OR NEW.batch <> (SELECT coalesce(max(batch), 0) + 1 FROM journal_batch)
    OR NEW.first_seq <> 1 + coalesce(
        (SELECT last_seq FROM journal_batch WHERE batch = NEW.batch - 1), 0)
    OR NEW.previous_hash <> coalesce(
        (SELECT hash FROM journal_batch WHERE batch = NEW.batch - 1), '{GENESIS_HASH}')
"""
NEXT_RECORD = "NEW.seq <> (SELECT coalesce(max(seq), 0) + 1 FROM journal_record)"
NEXT_SEGMENT = f"""
    NEW.segment <> (SELECT coalesce(max(segment), 0) + 1 FROM journal_segment)
    OR NEW.first_batch <> (SELECT coalesce(max(last_batch), 0) + 1 FROM journal_segment)
    OR NEW.first_seq <> (SELECT coalesce(max(last_seq), 0) + 1 FROM journal_segment)
    OR NEW.previous_hash <> coalesce(
        (SELECT hash FROM journal_segment WHERE segment = NEW.segment - 1), '{GENESIS_HASH}')
"""
NOT_STORED = """
    NOT EXISTS (SELECT 1 FROM journal_batch
        WHERE batch = NEW.last_batch AND last_seq = NEW.last_seq AND hash = NEW.hash)
    OR NEW.last_batch < NEW.first_batch
"""
CONTAINS_NEWEST = "NEW.last_batch >= (SELECT max(batch) FROM journal_batch)"

# Per table, the conditions to reject an INSERT, and the messages. The first that holds is reported:
# a fenced writer is also out of sequence, but must learn that it is fenced. One trigger per
# table, because SQLite does not define the order of several.
INSERT_RULES = {
    "journal_writer": ((NEXT_WRITER, "out of sequence: not the next epoch"),),
    "journal_batch": (
        (FENCED, "fenced: not the newest writer"),
        (NEXT_BATCH, "out of sequence: not the next batch"),
    ),
    "journal_record": ((NEXT_RECORD, "out of sequence: not the next record"),),
    "journal_segment": (
        (NEXT_SEGMENT, "out of sequence: not the next segment"),
        (NOT_STORED, "out of sequence: not the stored batches"),
        (CONTAINS_NEWEST, "append-only: the newest batch is never archived"),
    ),
}

# The lock of asched.journal.postgres; the first number is "asch" in ASCII.
LOCK = "PERFORM pg_advisory_xact_lock(1634952040, hashtext(current_schema()));"
LOCKING = ("journal_writer", "journal_batch")


def upgrade() -> None:
    create_tables()
    if op.get_context().dialect.name == "sqlite":
        create_sqlite_triggers()
    else:
        create_postgresql_triggers()


def create_tables() -> None:
    op.create_table(
        "journal_writer",
        sa.Column("epoch", KEY, primary_key=True, autoincrement=False),
        sa.Column("writer", sa.Text(), nullable=False),
        sa.Column("claimed_at_ns", sa.BigInteger(), nullable=False),
        sa.Column("hash", sa.Text(), nullable=False),
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
        # No foreign key: without another index, each deletion of an archived batch would scan all
        # records.
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
    op.create_table(
        "journal_segment",
        sa.Column("segment", KEY, primary_key=True, autoincrement=False),
        sa.Column("first_batch", sa.BigInteger(), nullable=False),
        sa.Column("last_batch", sa.BigInteger(), nullable=False),
        sa.Column("first_seq", sa.BigInteger(), nullable=False),
        sa.Column("last_seq", sa.BigInteger(), nullable=False),
        sa.Column("previous_hash", sa.Text(), nullable=False),
        sa.Column("hash", sa.Text(), nullable=False),
        sa.Column("file", sa.Text(), nullable=False),
        sa.Column("file_sha256", sa.Text(), nullable=False),
        sa.Column("archived_at_ns", sa.BigInteger(), nullable=False),
    )


def create_sqlite_triggers() -> None:
    for table in APPEND_ONLY:
        for verb in ("UPDATE", "DELETE"):
            when = f"WHEN {NOT_ARCHIVED}" if verb == "DELETE" and table in ARCHIVED else ""
            op.execute(
                f"CREATE TRIGGER {table}_no_{verb.lower()} BEFORE {verb} ON {table} {when}"
                f" BEGIN SELECT RAISE(ABORT, 'append-only: {verb} on {table} is refused'); END"
            )
    for table, rules in INSERT_RULES.items():
        rejected_when = " OR ".join(f"({condition})" for condition, _ in rules)
        messages = " ".join(
            f"WHEN {condition} THEN RAISE(ABORT, '{message}')" for condition, message in rules
        )
        op.execute(
            f"CREATE TRIGGER {table}_next BEFORE INSERT ON {table} WHEN {rejected_when}"
            f" BEGIN SELECT CASE {messages} END; END"
        )


def create_postgresql_triggers() -> None:
    reject = "RAISE EXCEPTION 'append-only: % on % is refused', TG_OP, TG_TABLE_NAME;"
    create_function("journal_refuse_change", reject)
    # The condition of a trigger must not hold a query, so the function checks it.
    create_function(
        "journal_refuse_deletion", f"IF {NOT_ARCHIVED} THEN {reject} END IF; RETURN OLD;"
    )
    for table in APPEND_ONLY:
        for verb, each in (("UPDATE", "ROW"), ("DELETE", "ROW"), ("TRUNCATE", "STATEMENT")):
            deletion = verb == "DELETE" and table in ARCHIVED
            function = "journal_refuse_deletion" if deletion else "journal_refuse_change"
            op.execute(
                f"CREATE TRIGGER {table}_no_{verb.lower()} BEFORE {verb} ON {table}"
                f" FOR EACH {each} EXECUTE FUNCTION {function}()"
            )
    for table, rules in INSERT_RULES.items():
        lock = LOCK if table in LOCKING else ""
        checks = " ".join(
            f"IF {condition} THEN RAISE EXCEPTION '{message}'; END IF;"
            for condition, message in rules
        )
        create_function(f"{table}_next", f"{lock} {checks} RETURN NEW;")
        op.execute(
            f"CREATE TRIGGER {table}_next BEFORE INSERT ON {table}"
            f" FOR EACH ROW EXECUTE FUNCTION {table}_next()"
        )


def create_function(name: str, body: str) -> None:
    op.execute(
        f"CREATE FUNCTION {name}() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN {body} END $$"
    )
