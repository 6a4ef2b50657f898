"""The archive: segments of batches that were moved into files, and a chain of hashes over the writers.

A batch and its records can be deleted once a segment holds them; nothing else can. The database keeps
segments append-only and gapless, and never lets one reach the newest batch: what is appended next
must find its predecessor.
"""

import hashlib

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

KEY = sa.BigInteger().with_variant(sa.Integer(), "sqlite")

NEXT_SEGMENT = f"""
    NEW.segment <> (SELECT coalesce(max(segment), 0) + 1 FROM journal_segment)
    OR NEW.first_batch <> (SELECT coalesce(max(last_batch), 0) + 1 FROM journal_segment)
    OR NEW.first_seq <> (SELECT coalesce(max(last_seq), 0) + 1 FROM journal_segment)
    OR NEW.previous_hash <> coalesce(
        (SELECT hash FROM journal_segment WHERE segment = NEW.segment - 1), '{"0" * 64}')
"""
NOT_STORED = """
    NOT EXISTS (SELECT 1 FROM journal_batch
        WHERE batch = NEW.last_batch AND last_seq = NEW.last_seq AND hash = NEW.hash)
    OR NEW.last_batch < NEW.first_batch
"""
REACHES_THE_END = "NEW.last_batch >= (SELECT max(batch) FROM journal_batch)"
INSERT_RULES = (
    (NEXT_SEGMENT, "out of sequence: not the next segment"),
    (NOT_STORED, "out of sequence: not the batches that are stored"),
    (REACHES_THE_END, "append-only: the newest batch is never archived"),
)
NOT_ARCHIVED = "OLD.batch > (SELECT coalesce(max(last_batch), 0) FROM journal_segment)"
ARCHIVED = ("journal_batch", "journal_record")


def upgrade() -> None:
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
    op.add_column("journal_writer", sa.Column("hash", sa.Text(), nullable=False, server_default=""))
    if op.get_bind().dialect.name == "sqlite":
        upgrade_sqlite_triggers()
    else:
        upgrade_postgresql_triggers()


def chain_writers() -> None:
    """Give the writers that are there their hashes (see ``asched.journal.chain``)."""
    writers = sa.table(
        "journal_writer",
        *map(sa.column, ("epoch", "writer", "claimed_at_ns", "hash")),
    )
    connection = op.get_bind()
    stored = sa.select(writers.c.epoch, writers.c.writer, writers.c.claimed_at_ns)
    digest = "0" * 64
    for epoch, writer, claimed_at_ns in connection.execute(stored.order_by(writers.c.epoch)).all():
        form = f"{digest}\nasched-writer-1 {epoch} {claimed_at_ns} {len(writer)}\n{writer}"
        digest = hashlib.sha256(form.encode()).hexdigest()
        connection.execute(writers.update().where(writers.c.epoch == epoch).values(hash=digest))


def upgrade_sqlite_triggers() -> None:
    op.execute("DROP TRIGGER journal_writer_no_update")
    chain_writers()
    create_sqlite_refusal("journal_writer", "UPDATE")
    for verb in ("UPDATE", "DELETE"):
        create_sqlite_refusal("journal_segment", verb)
    for table in ARCHIVED:
        op.execute(f"DROP TRIGGER {table}_no_delete")
        create_sqlite_refusal(table, "DELETE", f"WHEN {NOT_ARCHIVED}")
    refused_when = " OR ".join(f"({condition})" for condition, _ in INSERT_RULES)
    reasons = " ".join(
        f"WHEN {condition} THEN RAISE(ABORT, '{reason}')" for condition, reason in INSERT_RULES
    )
    op.execute(
        f"CREATE TRIGGER journal_segment_next BEFORE INSERT ON journal_segment WHEN {refused_when}"
        f" BEGIN SELECT CASE {reasons} END; END"
    )


def create_sqlite_refusal(table: str, verb: str, when: str = "") -> None:
    op.execute(
        f"CREATE TRIGGER {table}_no_{verb.lower()} BEFORE {verb} ON {table} {when}"
        f" BEGIN SELECT RAISE(ABORT, 'append-only: {verb} on {table} is refused'); END"
    )


def upgrade_postgresql_triggers() -> None:
    op.execute("ALTER TABLE journal_writer DISABLE TRIGGER journal_writer_no_update")
    chain_writers()
    op.execute("ALTER TABLE journal_writer ENABLE TRIGGER journal_writer_no_update")
    for verb, each in (("UPDATE", "ROW"), ("DELETE", "ROW"), ("TRUNCATE", "STATEMENT")):
        op.execute(
            f"CREATE TRIGGER journal_segment_no_{verb.lower()} BEFORE {verb} ON journal_segment"
            f" FOR EACH {each} EXECUTE FUNCTION journal_refuse_change()"
        )
    # A condition of CREATE TRIGGER may hold no query, so the function decides.
    op.execute(
        "CREATE FUNCTION journal_refuse_deletion() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
        f" IF {NOT_ARCHIVED} THEN"
        " RAISE EXCEPTION 'append-only: % on % is refused', TG_OP, TG_TABLE_NAME; END IF;"
        " RETURN OLD; END $$"
    )
    for table in ARCHIVED:
        op.execute(f"DROP TRIGGER {table}_no_delete ON {table}")
        op.execute(
            f"CREATE TRIGGER {table}_no_delete BEFORE DELETE ON {table}"
            " FOR EACH ROW EXECUTE FUNCTION journal_refuse_deletion()"
        )
    checks = " ".join(
        f"IF {condition} THEN RAISE EXCEPTION '{reason}'; END IF;"
        for condition, reason in INSERT_RULES
    )
    op.execute(
        "CREATE FUNCTION journal_segment_next() RETURNS trigger LANGUAGE plpgsql AS $$"
        f" BEGIN {checks} RETURN NEW; END $$"
    )
    op.execute(
        "CREATE TRIGGER journal_segment_next BEFORE INSERT ON journal_segment"
        " FOR EACH ROW EXECUTE FUNCTION journal_segment_next()"
    )
