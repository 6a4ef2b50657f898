CREATE TABLE journal_schema (
	version_num VARCHAR(32) NOT NULL,
	CONSTRAINT journal_schema_pkc PRIMARY KEY (version_num)
)

CREATE TABLE journal_writer (
	epoch INTEGER NOT NULL,
	writer TEXT NOT NULL,
	claimed_at_ns BIGINT NOT NULL,
	hash TEXT NOT NULL,
	PRIMARY KEY (epoch)
)

CREATE TABLE journal_batch (
	batch INTEGER NOT NULL,
	first_seq BIGINT NOT NULL,
	last_seq BIGINT NOT NULL,
	epoch BIGINT NOT NULL,
	written_at_ns BIGINT NOT NULL,
	previous_hash TEXT NOT NULL,
	hash TEXT NOT NULL,
	PRIMARY KEY (batch),
	UNIQUE (first_seq),
	FOREIGN KEY(epoch) REFERENCES journal_writer (epoch)
)

CREATE TABLE journal_record (
	seq INTEGER NOT NULL,
	batch BIGINT NOT NULL,
	kind TEXT NOT NULL,
	version SMALLINT NOT NULL,
	subject TEXT NOT NULL,
	payload TEXT NOT NULL,
	PRIMARY KEY (seq)
)

CREATE INDEX journal_record_subject ON journal_record (subject, seq)

CREATE TABLE journal_checkpoint (
	seq INTEGER NOT NULL,
	batch BIGINT NOT NULL,
	batch_hash TEXT NOT NULL,
	blob BLOB NOT NULL,
	PRIMARY KEY (seq),
	FOREIGN KEY(batch) REFERENCES journal_batch (batch)
)

CREATE TABLE journal_segment (
	segment INTEGER NOT NULL,
	first_batch BIGINT NOT NULL,
	last_batch BIGINT NOT NULL,
	first_seq BIGINT NOT NULL,
	last_seq BIGINT NOT NULL,
	previous_hash TEXT NOT NULL,
	hash TEXT NOT NULL,
	file TEXT NOT NULL,
	file_sha256 TEXT NOT NULL,
	archived_at_ns BIGINT NOT NULL,
	PRIMARY KEY (segment)
)

CREATE TRIGGER journal_writer_no_update BEFORE UPDATE ON journal_writer  BEGIN SELECT RAISE(ABORT, 'append-only: UPDATE on journal_writer is refused'); END

CREATE TRIGGER journal_writer_no_delete BEFORE DELETE ON journal_writer  BEGIN SELECT RAISE(ABORT, 'append-only: DELETE on journal_writer is refused'); END

CREATE TRIGGER journal_batch_no_update BEFORE UPDATE ON journal_batch  BEGIN SELECT RAISE(ABORT, 'append-only: UPDATE on journal_batch is refused'); END

CREATE TRIGGER journal_batch_no_delete BEFORE DELETE ON journal_batch WHEN OLD.batch > (SELECT coalesce(max(last_batch), 0) FROM journal_segment) BEGIN SELECT RAISE(ABORT, 'append-only: DELETE on journal_batch is refused'); END

CREATE TRIGGER journal_record_no_update BEFORE UPDATE ON journal_record  BEGIN SELECT RAISE(ABORT, 'append-only: UPDATE on journal_record is refused'); END

CREATE TRIGGER journal_record_no_delete BEFORE DELETE ON journal_record WHEN OLD.batch > (SELECT coalesce(max(last_batch), 0) FROM journal_segment) BEGIN SELECT RAISE(ABORT, 'append-only: DELETE on journal_record is refused'); END

CREATE TRIGGER journal_segment_no_update BEFORE UPDATE ON journal_segment  BEGIN SELECT RAISE(ABORT, 'append-only: UPDATE on journal_segment is refused'); END

CREATE TRIGGER journal_segment_no_delete BEFORE DELETE ON journal_segment  BEGIN SELECT RAISE(ABORT, 'append-only: DELETE on journal_segment is refused'); END

CREATE TRIGGER journal_writer_next BEFORE INSERT ON journal_writer WHEN (NEW.epoch <> (SELECT coalesce(max(epoch), 0) + 1 FROM journal_writer)) BEGIN SELECT CASE WHEN NEW.epoch <> (SELECT coalesce(max(epoch), 0) + 1 FROM journal_writer) THEN RAISE(ABORT, 'out of sequence: not the next epoch') END; END

CREATE TRIGGER journal_batch_next BEFORE INSERT ON journal_batch WHEN (coalesce(NEW.epoch <> (SELECT max(epoch) FROM journal_writer), true)) OR (
    NEW.last_seq < NEW.first_seq
    OR NEW.batch <> (SELECT coalesce(max(batch), 0) + 1 FROM journal_batch)
    OR NEW.first_seq <> 1 + coalesce(
        (SELECT last_seq FROM journal_batch WHERE batch = NEW.batch - 1), 0)
    OR NEW.previous_hash <> coalesce(
        (SELECT hash FROM journal_batch WHERE batch = NEW.batch - 1), '0000000000000000000000000000000000000000000000000000000000000000')
) BEGIN SELECT CASE WHEN coalesce(NEW.epoch <> (SELECT max(epoch) FROM journal_writer), true) THEN RAISE(ABORT, 'fenced: not the newest writer') WHEN
    NEW.last_seq < NEW.first_seq
    OR NEW.batch <> (SELECT coalesce(max(batch), 0) + 1 FROM journal_batch)
    OR NEW.first_seq <> 1 + coalesce(
        (SELECT last_seq FROM journal_batch WHERE batch = NEW.batch - 1), 0)
    OR NEW.previous_hash <> coalesce(
        (SELECT hash FROM journal_batch WHERE batch = NEW.batch - 1), '0000000000000000000000000000000000000000000000000000000000000000')
 THEN RAISE(ABORT, 'out of sequence: not the next batch') END; END

CREATE TRIGGER journal_record_next BEFORE INSERT ON journal_record WHEN (NEW.seq <> (SELECT coalesce(max(seq), 0) + 1 FROM journal_record)) BEGIN SELECT CASE WHEN NEW.seq <> (SELECT coalesce(max(seq), 0) + 1 FROM journal_record) THEN RAISE(ABORT, 'out of sequence: not the next record') END; END

CREATE TRIGGER journal_segment_next BEFORE INSERT ON journal_segment WHEN (
    NEW.segment <> (SELECT coalesce(max(segment), 0) + 1 FROM journal_segment)
    OR NEW.first_batch <> (SELECT coalesce(max(last_batch), 0) + 1 FROM journal_segment)
    OR NEW.first_seq <> (SELECT coalesce(max(last_seq), 0) + 1 FROM journal_segment)
    OR NEW.previous_hash <> coalesce(
        (SELECT hash FROM journal_segment WHERE segment = NEW.segment - 1), '0000000000000000000000000000000000000000000000000000000000000000')
) OR (
    NOT EXISTS (SELECT 1 FROM journal_batch
        WHERE batch = NEW.last_batch AND last_seq = NEW.last_seq AND hash = NEW.hash)
    OR NEW.last_batch < NEW.first_batch
) OR (NEW.last_batch >= (SELECT max(batch) FROM journal_batch)) BEGIN SELECT CASE WHEN
    NEW.segment <> (SELECT coalesce(max(segment), 0) + 1 FROM journal_segment)
    OR NEW.first_batch <> (SELECT coalesce(max(last_batch), 0) + 1 FROM journal_segment)
    OR NEW.first_seq <> (SELECT coalesce(max(last_seq), 0) + 1 FROM journal_segment)
    OR NEW.previous_hash <> coalesce(
        (SELECT hash FROM journal_segment WHERE segment = NEW.segment - 1), '0000000000000000000000000000000000000000000000000000000000000000')
 THEN RAISE(ABORT, 'out of sequence: not the next segment') WHEN
    NOT EXISTS (SELECT 1 FROM journal_batch
        WHERE batch = NEW.last_batch AND last_seq = NEW.last_seq AND hash = NEW.hash)
    OR NEW.last_batch < NEW.first_batch
 THEN RAISE(ABORT, 'out of sequence: not the stored batches') WHEN NEW.last_batch >= (SELECT max(batch) FROM journal_batch) THEN RAISE(ABORT, 'append-only: the newest batch is never archived') END; END

CREATE TABLE journal_statement (
	number INTEGER NOT NULL,
	body TEXT NOT NULL,
	signatures TEXT NOT NULL,
	PRIMARY KEY (number)
)

CREATE TABLE journal_signed_head (
	size INTEGER NOT NULL,
	line TEXT NOT NULL,
	PRIMARY KEY (size)
)

CREATE TRIGGER journal_statement_no_update BEFORE UPDATE ON journal_statement BEGIN SELECT RAISE(ABORT, 'append-only: UPDATE on journal_statement is refused'); END

CREATE TRIGGER journal_statement_no_delete BEFORE DELETE ON journal_statement BEGIN SELECT RAISE(ABORT, 'append-only: DELETE on journal_statement is refused'); END

CREATE TRIGGER journal_statement_next BEFORE INSERT ON journal_statement WHEN NEW.number <> (SELECT coalesce(max(number), 0) + 1 FROM journal_statement) BEGIN SELECT RAISE(ABORT, 'out of sequence: not the next statement'); END

INSERT INTO journal_schema VALUES ('0002')
