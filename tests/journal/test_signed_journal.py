"""Statements and signatures in each kind of database: archive, restore, forged rows, commands."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import anyio
import anyio.lowlevel
import anyio.to_thread
import pytest
import structlog
from sqlalchemy import text
from sqlalchemy.ext.asyncio import create_async_engine
from structlog.testing import capture_logs
from typer.testing import CliRunner

from asched.cli.main import app
from asched.daemon.signing.signer import HeadSigner, head_metrics
from asched.daemon.signing.start import check_against
from asched.journal import open_journal
from asched.journal.archive import archive, restore
from asched.journal.chain import Writer, next_writer, seal
from asched.journal.chain_reader import ChainReader
from asched.journal.checkpoints import checkpoint_before, write_checkpoints
from asched.journal.codec import CODEC
from asched.journal.errors import ArchivedError, JournalCorruptError, JournalError
from asched.journal.sealing import BEGINNING, checkpoint_digest
from asched.journal.signatures import (
    AnchoredHead,
    check_history,
    introduce_key,
    sign_existing,
    sign_head,
)
from asched.journal.store import JournalStore
from asched.journal.verification import verify_journal
from asched.kube.timing import SystemClock
from asched.proof.heads import SignedHead
from asched.proof.keys import NO_KEYS, JournalKeys, SigningKey
from asched.proof.statements import Position, next_statement
from asched.state.records import EngineStarted
from tests.audit.recording import REGISTRY
from tests.journal import forging
from tests.journal.samples import turn
from tests.journal.test_archive import fill, move
from tests.journal.test_verification import engine_url, tamper

KEY, OTHER = SigningKey.generate(), SigningKey.generate()
KEYS = JournalKeys(KEY)
TRUSTED = JournalKeys(None, (KEY.public_key,))


async def end_of(store: JournalStore) -> Position:
    reader = ChainReader.from_beginning(store)
    async for _ in reader.ranges():
        pass
    return reader.position


async def signed(store: JournalStore) -> SignedHead:
    """Sign the present head."""
    return await sign_head(store, KEY, await end_of(store), 1)


async def fault(url: str, archived: Path | None = None) -> str:
    async with open_journal(url, read_only=True, keys=TRUSTED) as store:
        with pytest.raises(JournalCorruptError) as raised:
            await verify_journal(store, archive=archived)
    return str(raised.value)


async def test_signed_journal_is_archived_and_restored(database_url: str, tmp_path: Path) -> None:
    folder, whole = tmp_path / "archive", tmp_path / "whole.db"
    async with open_journal(database_url, keys=KEYS) as store:
        await introduce_key(store, KEY, 1)
        await fill(store, 7, 16)
        await signed(store)
        before = await verify_journal(store)
        await move(store, folder, before_ns=1000)
        with pytest.raises(JournalError, match="give its directory with --archive DIR"):
            await verify_journal(store)
        both = await verify_journal(store, archive=folder)
        assert (both.head, both.keys, both.signed_seq) == (before.head, (KEY.id,), 24)
        rest = await verify_journal(store, skip_archive=True)
        assert (rest.head, rest.archived_seq, rest.signed_seq) == (before.head, 15, 24)
        # A process continues from the statement about the segment.
        checked = await check_history(store)
        assert checked is not None
        assert (checked.head.seq, checked.signed_seq) == (24, 24)
        with pytest.raises(ArchivedError):
            _ = [record async for record in ChainReader.from_beginning(store).read()]
        async with open_journal(str(whole), keys=TRUSTED) as target:
            await restore(store, folder, target)
            restored = await verify_journal(target)
    assert (restored.head, restored.trusted, restored.signed_seq) == (before.head, True, 24)


async def test_archive_needs_the_key(database_url: str, tmp_path: Path) -> None:
    async with open_journal(database_url, keys=KEYS) as store:
        await introduce_key(store, KEY, 1)
        await fill(store, 7)
        await signed(store)
    for keys in (JournalKeys(), JournalKeys(OTHER)):
        async with open_journal(database_url, keys=keys) as store:
            with pytest.raises(JournalError, match=f"the journal is signed by key {KEY.id}"):
                await move(store, tmp_path, before_ns=1000)
            with pytest.raises(JournalError, match=f"the journal is signed by key {KEY.id}"):
                await store.save_checkpoint(24, b"")
            assert not await store.segments()


@pytest.mark.parametrize(
    ("statements", "message"),
    [
        (
            ["UPDATE journal_checkpoint SET blob = CAST('other' AS {blob}) WHERE seq = 16"],
            "the checkpoint at record 16 was altered",
        ),
        (["UPDATE journal_statement SET signatures = ''"], "statement 1 is not signed by key"),
        (["DELETE FROM journal_statement WHERE number = 3"], "statements up to 3"),
        (["DELETE FROM journal_statement"], "the journal is not signed"),
        (["DELETE FROM journal_signed_head"], "its signed head was deleted"),
        (["UPDATE journal_signed_head SET line = '{{}}'"], "the signed head is not readable"),
        (
            [r"""UPDATE journal_signed_head SET line = replace(line, '"seq"\:24', '"seq"\:21')"""],
            "the signature of the head at record 21 by key",
        ),
        (
            ["UPDATE journal_statement SET body = 'x' WHERE number = 2"],
            "statement 2 is not readable",
        ),
        (
            ["UPDATE journal_writer SET writer = 'x' WHERE epoch = 2"],
            "the writer of epoch 2 was altered",
        ),
    ],
)
async def test_forged_rows_are_named(
    database_url: str, statements: list[str], message: str
) -> None:
    async with open_journal(database_url, keys=KEYS) as store:
        await introduce_key(store, KEY, 1)
        await fill(store, 7, 16)
        await signed(store)
    kind = "BLOB" if "://" not in database_url else "BYTEA"
    await tamper(database_url, *(statement.format(blob=kind) for statement in statements))
    assert message in await fault(database_url)


async def test_checkpoint_is_loaded_only_with_its_statement(database_url: str) -> None:
    async with open_journal(database_url, keys=KEYS) as store:
        await introduce_key(store, KEY, 1)
        await fill(store, 7, 16)
        await signed(store)
    kind = "BLOB" if "://" not in database_url else "BYTEA"
    await tamper(
        database_url,
        f"UPDATE journal_checkpoint SET blob = CAST('other' AS {kind}) WHERE seq = 16",
    )
    async with open_journal(database_url, keys=TRUSTED) as store:
        found = await store.load_checkpoint()
        assert found is not None
        assert (found.seq, found.blob) == (7, b"state")
    await tamper(database_url, "DELETE FROM journal_statement WHERE number = 2")
    async with open_journal(database_url) as store:
        with pytest.raises(JournalCorruptError, match="statement 2 is missing"):
            await store.load_checkpoint()
    async with open_journal(database_url, keys=JournalKeys(None, (OTHER.public_key,))) as store:
        await tamper(database_url, "DELETE FROM journal_statement")
        with pytest.raises(JournalCorruptError, match="the journal is not signed"):
            await store.load_checkpoint()
    async with open_journal(database_url) as store:
        assert await store.load_checkpoint() is None


async def test_statement_is_appended_only(database_url: str) -> None:
    async with open_journal(database_url) as store:
        await fill(store, 7)
    engine = create_async_engine(engine_url(database_url))
    for statement, reason in (
        ("UPDATE journal_statement SET body = ''", "append-only"),
        ("DELETE FROM journal_statement", "append-only"),
        ("INSERT INTO journal_statement VALUES (3, '', '')", "out of sequence"),
        ("INSERT INTO journal_statement VALUES (1, '', '')", "out of sequence"),
    ):
        with pytest.raises(Exception, match=reason):
            async with engine.begin() as connection:
                await connection.execute(text(statement))
    await engine.dispose()


async def test_key_is_introduced_once(database_url: str) -> None:
    """After an unknown outcome the attempt is repeated."""
    async with open_journal(database_url, keys=KEYS) as store:
        for _ in range(2):
            await introduce_key(store, KEY, 1)
        assert len(await store.statements()) == 1


async def test_shorter_head_is_not_stored(database_url: str) -> None:
    async with open_journal(database_url, keys=KEYS) as store:
        await introduce_key(store, KEY, 1)
        await fill(store)
        await signed(store)
        with pytest.raises(JournalError, match="a head of 8 batches is signed already"):
            await sign_head(store, KEY, BEGINNING, 2)


async def test_anchored_head_of_another_journal_is_rejected(tmp_path: Path) -> None:
    heads: list[SignedHead] = []
    for name in ("a", "b"):
        async with open_journal(str(tmp_path / name), keys=KEYS) as store:
            await introduce_key(store, KEY, 1)
            await store.claim(name, claimed_at_ns=1)
            await store.append(turn(len(name) + len(heads)), written_at_ns=1)
            await signed(store)
            head = await store.signed_head()
            assert head is not None
            heads.append(head)
            own = AnchoredHead("the anchor", heads[0])
            if name == "a":
                assert (await verify_journal(store, anchored=[own])).anchors == 1
            else:
                with pytest.raises(JournalCorruptError, match=r"the head of .* in the anchor"):
                    await verify_journal(store, anchored=[own])


async def test_key_of_an_existing_journal(database_url: str, tmp_path: Path) -> None:
    """Its statements before the first key are not signed, but the key signs their hash."""
    async with open_journal(database_url) as store:
        await fill(store, 7, 16)
        await archive(store, tmp_path, before_ns=30, archived_at_ns=1)
    async with open_journal(database_url, keys=KEYS) as store:
        with pytest.raises(JournalError, match="without a signature, and a key is configured"):
            await check_history(store)
        head = await sign_existing(store, KEY, 5)
        assert (head.seq, head.size) == (24, 8)
        assert await check_history(store) is not None
        assert (await verify_journal(store, archive=tmp_path)).trusted
    await tamper(
        database_url,
        r"""UPDATE journal_statement SET body = replace(body, '"seq"\:7', '"seq"\:8')"""
        " WHERE number = 1",
    )
    assert "statement 2 is not chained to statement 1" in await fault(database_url, tmp_path)


async def test_metrics_are_an_anchor(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    async with open_journal(str(path)) as store:
        await store.claim("test", claimed_at_ns=1)
        signer = HeadSigner(store, BEGINNING, SystemClock())
        for number in range(3):
            signer.appended(await store.append(turn(number), written_at_ns=number))
        found = {metric.name: metric.samples for metric in head_metrics(signer)}
        parts = [f"{int(sample.value):012x}" for sample in found["asched_journal_head_hash"]]
        head = f"{int(found['asched_journal_head_record'][0].value)}:{''.join(parts)}"
        assert found["asched_journal_signing"][0].value == 0
        for number in range(3, 5):
            await store.append(turn(number), written_at_ns=number)

    def verify() -> tuple[int, str]:
        command = ["journal", "verify", "--journal", str(path), "--head", head]
        result = CliRunner().invoke(app, command, prog_name="asched")
        structlog.reset_defaults()
        return result.exit_code, result.stderr

    assert (await anyio.to_thread.run_sync(verify))[0] == 0
    await tamper(
        str(path),
        "DELETE FROM journal_record WHERE batch > 2",
        "DELETE FROM journal_batch WHERE batch > 2",
    )
    code, error = await anyio.to_thread.run_sync(verify)
    assert (code, error.count("\n")) == (1, 1)
    assert "it once had record 9" in error


# -- restore an earlier signed head, and invent records after a stop that is anchored -------------


async def test_records_after_an_anchored_stop_are_detected(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    async with open_journal(str(path), keys=KEYS) as store:
        await introduce_key(store, KEY, 1)
        epoch = await store.claim("a", claimed_at_ns=1)
        await store.append(turn(1), written_at_ns=1)
        position = await end_of(store)
        periodic = await sign_head(store, KEY, position, 2)
        stop = AnchoredHead("the anchor", await sign_head(store, KEY, position, 3, final=True))
        sealed = seal(await store.head(), list(map(CODEC.encode, turn(2))), epoch, 4)
    forging.restore_head(path, periodic.line, periodic.head.size)
    forging.append(path, sealed)
    message = "records 4 to 6 were inserted: the writer had stopped at record 3"
    async with open_journal(str(path), keys=KEYS) as store:
        await verify_journal(store)  # without the anchor, it is a crash
        for check in (verify_journal(store, anchored=[stop]), check_history(store, [stop])):
            with pytest.raises(JournalCorruptError, match=message):
                await check


async def test_next_writer_continues_after_an_anchored_stop(database_url: str) -> None:
    async with open_journal(database_url, keys=KEYS) as store:
        await introduce_key(store, KEY, 1)
        await store.claim("a", claimed_at_ns=1)
        await store.append(turn(1), written_at_ns=1)
        position = await end_of(store)
        stop = AnchoredHead("the anchor", await sign_head(store, KEY, position, 2, final=True))
        await store.claim("b", claimed_at_ns=3)
        await sign_head(store, KEY, position, 3)
        await store.append(turn(2), written_at_ns=4)
        assert (await verify_journal(store, anchored=[stop])).head.seq == 6
        assert await check_history(store, [stop]) is not None


# -- change a record while a command signs a checkpoint -------------------------------------------


async def write_two_signed_starts(store: JournalStore) -> None:
    await introduce_key(store, KEY, 1)
    await store.claim("a", claimed_at_ns=1)
    for seed in (5, 6):
        await store.append([EngineStarted("1", seed)], written_at_ns=seed)
    await signed(store)


@pytest.mark.parametrize("every", [None, 1])
async def test_checkpoint_of_altered_records_is_not_signed(
    tmp_path: Path, every: int | None
) -> None:
    """The altered record is before the newest statement, so that only a fold reads it."""
    path = tmp_path / "journal.db"
    async with open_journal(str(path), keys=KEYS) as store:
        await write_two_signed_starts(store)
        await write_checkpoints(store, REGISTRY.load)
    with forging.without_triggers(path) as connection:
        connection.execute("UPDATE journal_record SET payload = replace(payload, '5', '7')")
        connection.execute("DELETE FROM journal_checkpoint")
    async with open_journal(str(path), keys=KEYS) as store:
        assert await check_history(store) is not None
        before = len(await store.statements())
        with pytest.raises(JournalCorruptError, match=r"batch 1 .* was altered"):
            await write_checkpoints(store, REGISTRY.load, every=every)
        assert len(await store.statements()) == before


async def test_checkpoint_of_another_history_is_not_signed(tmp_path: Path) -> None:
    """All hashes fit, but not the signed head, which follows the checkpoint."""
    path = tmp_path / "journal.db"
    async with open_journal(str(path), keys=KEYS) as store:
        await write_two_signed_starts(store)
    with forging.without_triggers(path) as connection:
        connection.execute("UPDATE journal_record SET payload = replace(payload, '5', '7')")
        forging.rehash(connection)
    async with open_journal(str(path), keys=KEYS) as store:
        before = len(await store.statements())
        for write in (
            checkpoint_before(store, REGISTRY.load, 6),
            write_checkpoints(store, REGISTRY.load, every=1),
        ):
            with pytest.raises(JournalCorruptError, match="was altered"):
                await write
        assert len(await store.statements()) == before


# -- plant a checkpoint in an empty journal -------------------------------------------------------


def plant(path: Path) -> None:
    digest = checkpoint_digest(0, b"state")
    with closing(sqlite3.connect(path)) as connection:
        statement = next_statement(None, BEGINNING, digest, [])
        connection.execute("INSERT INTO journal_statement VALUES (?, ?, ?)", statement)
        values = (BEGINNING.hash, b"state")
        connection.execute("INSERT INTO journal_checkpoint VALUES (0, 0, ?, ?)", values)
        connection.commit()


@pytest.mark.parametrize(
    ("table", "what"),
    [("journal_checkpoint", "statements"), ("journal_statement", "checkpoints")],
)
async def test_key_is_not_introduced_to_a_planted_checkpoint(
    tmp_path: Path, table: str, what: str
) -> None:
    path = tmp_path / "journal.db"
    async with open_journal(str(path)):
        pass
    plant(path)
    forging.delete_proofs(path, [table])
    async with open_journal(str(path), keys=KEYS) as store:
        with pytest.raises(JournalCorruptError, match=f"the journal has no records, but {what}"):
            await check_history(store)


async def test_planted_checkpoint_is_not_loaded_and_detected(tmp_path: Path) -> None:
    """In a signed journal."""
    path = tmp_path / "journal.db"
    async with open_journal(str(path)):
        pass
    plant(path)
    async with open_journal(str(path), keys=KEYS) as store:
        await introduce_key(store, KEY, 1)
        await store.claim("a", claimed_at_ns=1)
        await store.append(turn(1), written_at_ns=1)
        await signed(store)
        assert await store.load_checkpoint() is None
    assert await fault(str(path)) == "the checkpoint at record 0 was inserted: it is of no batch"


async def test_checkpoint_of_a_record_of_another_batch_is_not_continued(tmp_path: Path) -> None:
    """Its key signed it, but the records between it and the batch would be left out."""
    path = tmp_path / "journal.db"
    async with open_journal(str(path)) as store:
        await fill(store, 7)
    with forging.without_triggers(path) as connection:
        body = connection.execute("SELECT body FROM journal_statement").fetchone()[0]
        forged = body.replace('"checkpoint","seq":7', '"checkpoint","seq":2')
        assert forged != body
        connection.execute("UPDATE journal_statement SET body = ?", (forged,))
        connection.execute("UPDATE journal_checkpoint SET seq = 2")
    async with open_journal(str(path)) as store:
        with pytest.raises(JournalCorruptError, match="record 2 is not of batch 3"):
            await ChainReader.after_checkpoint(store, 2)


# -- change writers or statements while the daemon signs ------------------------------------------


def rename_writer(path: Path, writers: Sequence[Writer], name: str) -> None:
    """Rename the first writer, and compute all hashes of writers again."""
    before: Writer | None = None
    with forging.without_triggers(path) as connection:
        for epoch, _, at_ns, _ in writers:
            before = next_writer(before, name if epoch == 1 else "b", at_ns)
            connection.execute(
                "UPDATE journal_writer SET writer = ?, hash = ? WHERE epoch = ?",
                (before.writer, before.hash, epoch),
            )


async def test_renamed_writer_is_not_signed(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    async with open_journal(str(path), keys=KEYS) as store:
        await introduce_key(store, KEY, 1)
        for name in ("a", "b"):
            await store.claim(name, claimed_at_ns=1)
            await store.append(turn(1), written_at_ns=1)
        anchor = AnchoredHead("the anchor", await signed(store))
        checked = await check_history(store)
        assert checked is not None
        position = await end_of(store)
        signer = HeadSigner(store, position, SystemClock(), checked.tips)
        rename_writer(path, await store.writers(), "innocent")
        signer.appended(await store.append(turn(2), written_at_ns=3))
        await signer.sign()
        head = await store.signed_head()
        assert head is not None
        assert head.head.seq == 9
        assert head.head.writer_hash == checked.tips.writer_hash
        message = "the writer of epoch 2 differs from the one of the signed head at record 9"
        for check in (verify_journal(store), check_history(store)):
            with pytest.raises(JournalCorruptError, match=message):
                await check
        # A head that was signed with the forged writers does not hide those of an anchored one.
        await sign_head(store, KEY, await end_of(store), 4)
        await verify_journal(store)
        with pytest.raises(JournalCorruptError, match=r"signed head at record 6"):
            await verify_journal(store, anchored=[anchor])


async def test_removed_statement_is_not_signed(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    async with open_journal(str(path), keys=KEYS) as store:
        await introduce_key(store, KEY, 1)
        await store.claim("a", claimed_at_ns=1)
        signer = HeadSigner(store, BEGINNING, SystemClock())
        signer.appended(await store.append(turn(1), written_at_ns=1))
        await signer.sign()
        await store.save_checkpoint(3, b"state")
        await signer.sign()  # a new statement of the same key
        head = await store.signed_head()
        assert head is not None
        assert head.head.statements == 2
        with forging.without_triggers(path) as connection:
            connection.execute("DELETE FROM journal_statement WHERE number = 2")
            connection.execute("DELETE FROM journal_checkpoint")
        signer.appended(await store.append(turn(2), written_at_ns=2))
        with capture_logs() as logs:
            await signer.sign()
        assert [entry["error"] for entry in logs] == [
            "statements up to 2 were altered or deleted by another program"
        ]
        assert await store.signed_head() == head


# -- an anchor that does not answer ---------------------------------------------------------------


class ScriptedAnchor:
    """Keeps heads, or never answers."""

    def __init__(self, name: str, *, hangs: bool = False) -> None:
        self.name = name
        self.hangs = hangs
        self.heads: list[SignedHead] = []
        self.asked = anyio.Event()

    async def publish(self, head: SignedHead) -> None:
        self.heads.append(head)
        self.asked.set()
        if self.hangs:
            await anyio.sleep_forever()

    async def newest(self) -> SignedHead | None:
        if self.hangs:
            await anyio.sleep_forever()
        return self.heads[-1] if self.heads else None

    async def is_missing(self) -> bool:
        raise NotImplementedError

    async def create(self) -> None:
        raise NotImplementedError


async def test_start_does_not_wait_for_a_hanging_anchor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("asched.daemon.signing.start.START_TIMEOUT_S", 0)
    anchor = ScriptedAnchor("anchor file /mnt/heads", hangs=True)
    async with open_journal(str(tmp_path / "journal.db"), keys=KEYS) as store:
        message = "^anchor file /mnt/heads does not answer within 0 s$"
        with anyio.fail_after(30), pytest.raises(JournalError, match=message):
            await check_against(store, [anchor])


async def test_hanging_anchor_does_not_stop_signatures(tmp_path: Path) -> None:
    anchor = ScriptedAnchor("anchor file /mnt/heads", hangs=True)
    async with open_journal(str(tmp_path / "journal.db"), keys=KEYS) as store:
        await introduce_key(store, KEY, 1)
        await store.claim("a", claimed_at_ns=1)
        signer = HeadSigner(store, BEGINNING, SystemClock())
        signer.publish_to(anchor, 0.0)
        signer.appended(await store.append(turn(1), written_at_ns=1))
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(signer.run)
            await anchor.asked.wait()
            asked = len(anchor.heads)
            signer.appended(await store.append(turn(2), written_at_ns=2))
            with anyio.fail_after(30):
                await signer.sign()  # as for a checkpoint
            tasks.cancel_scope.cancel()
        assert signer.signed_seq == 6
        assert len(anchor.heads) == asked


async def test_anchor_without_answer_is_a_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other anchors get the newest head."""
    monkeypatch.setattr("asched.daemon.signing.signer.PUBLISH_TIMEOUT_S", 0)
    hanging, other = ScriptedAnchor("file /mnt/heads", hangs=True), ScriptedAnchor("lease a/b")
    async with open_journal(str(tmp_path / "journal.db"), keys=KEYS) as store:
        await introduce_key(store, KEY, 1)
        await store.claim("a", claimed_at_ns=1)
        signer = HeadSigner(store, BEGINNING, SystemClock())
        for anchor in (hanging, other):
            signer.publish_to(anchor, 0.0)
        with capture_logs() as logs:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(signer.run)
                for number in (1, 2):
                    appended = await store.append(turn(number), written_at_ns=number)
                    signer.appended(appended)
                    await signer.sign()
                    with anyio.fail_after(30):
                        while not other.heads or other.heads[-1].head.seq < appended.last_seq:
                            other.asked = anyio.Event()
                            await other.asked.wait()
                await signer.finish(all_committed=True)
                tasks.cancel_scope.cancel()
    assert other.heads[-1].head.final
    assert len(set(other.heads)) == len(other.heads)
    found = {metric.name: metric.samples for metric in head_metrics(signer)}
    failures = {s.labels["anchor"]: s.value for s in found["asched_journal_anchor_failures"]}
    assert failures["lease"] == 0
    assert 0 < failures["file"] <= len(hanging.heads)
    assert [(entry["event"], entry["error"]) for entry in logs] == [
        ("anchor not written", "no answer within 0 s")
    ]


class JumpingClock(SystemClock):
    """A sleep ends at once, and the clock shows its end."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def monotonic_s(self) -> float:
        return self.now_s

    async def sleep(self, delay_s: float) -> None:
        until_s = self.now_s + delay_s
        await anyio.lowlevel.checkpoint()
        self.now_s = max(self.now_s, until_s)


async def test_last_head_before_a_pause_is_anchored(tmp_path: Path) -> None:
    """An anchor that has a head each minute gets the last one although no record follows."""
    anchor, clock = ScriptedAnchor("anchor file /mnt/heads"), JumpingClock()
    async with open_journal(str(tmp_path / "journal.db"), keys=KEYS) as store:
        await introduce_key(store, KEY, 1)
        await store.claim("a", claimed_at_ns=1)
        signer = HeadSigner(store, BEGINNING, clock)
        signer.publish_to(anchor, 60.0)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(signer.run)
            for number in (1, 2):
                appended = await store.append(turn(number), written_at_ns=number)
                signer.appended(appended)
                with anyio.fail_after(10):
                    while not anchor.heads or anchor.heads[-1].head.seq < appended.last_seq:
                        anchor.asked = anyio.Event()
                        await anchor.asked.wait()
            tasks.cancel_scope.cancel()
    assert clock.now_s >= 60


@pytest.mark.parametrize("command", ["stats", "gate", "history"])
@pytest.mark.parametrize("signs", [True, False])
async def test_reading_commands_trust_only_the_named_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str, signs: bool
) -> None:
    url = str(tmp_path / "journal.db")
    async with open_journal(url, keys=KEYS if signs else NO_KEYS) as store:
        if signs:
            await introduce_key(store, KEY, 1)
        await fill(store, 2, 16)
    OTHER.save(tmp_path / "other")
    config = tmp_path / "candidate.yaml"
    config.write_text(
        "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n"
    )
    arguments = {
        "stats": ["journal", "stats"],
        "gate": ["gate", "--candidate", str(config)],
        "history": ["history", "web"],
    }
    monkeypatch.setenv("ASCHED_TRUSTED_KEY", str(tmp_path / "other.pub"))
    given = [*arguments[command], "--journal", url]
    ran = await anyio.to_thread.run_sync(CliRunner().invoke, app, given)
    found = f"signed by key {KEY.id}, not by key {OTHER.id}" if signs else "not signed"
    assert (ran.exit_code, ran.stdout) == (2, "")
    assert ran.stderr == f"asched: the journal is {found} (ASCHED_TRUSTED_KEY)\n"
