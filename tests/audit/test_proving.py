"""Inclusion proofs of ``asched journal prove``, verified without the journal."""

from __future__ import annotations

from pathlib import Path

import anyio
import msgspec
import pytest
import structlog
from typer.testing import CliRunner

from asched.audit.lookup import AuditError, PodName
from asched.audit.proving import prove_pod, prove_record
from asched.cli.main import app
from asched.journal import open_journal
from asched.journal.archive import archive
from asched.journal.chain import Head
from asched.journal.errors import JournalError
from asched.journal.signatures import introduce_key, replace_key, sign_head
from asched.journal.store import JournalStore
from asched.proof import ProofError
from asched.proof.inclusion import InclusionProof
from asched.proof.keys import JournalKeys, PublicKey, SigningKey
from asched.proof.merkle import Frontier, leaf_hash
from asched.proof.statements import Position
from tests.journal.samples import turn

KEY, NEW, OTHER = (SigningKey.generate() for _ in range(3))
KEYS = JournalKeys(KEY)
POD = PodName("default", "web-1")
BATCHES = 11


async def write(store: JournalStore) -> Position:
    """Batches of 1 to 11 pods; a checkpoint in the fifth."""
    await introduce_key(store, KEY, 1)
    await store.claim("test", claimed_at_ns=1)
    tree, head = Frontier(), Head(0, 0, "")
    for number in range(1, BATCHES + 1):
        appended = await store.append(turn(number, number), written_at_ns=number)
        head = appended.head
        tree.append(leaf_hash(bytes.fromhex(appended.hash)))
        if number == 5:
            await store.save_checkpoint(head.seq, b"state")
    position = Position.of(head.seq, head.hash, tree)
    await sign_head(store, KEY, position, 2)
    return position


async def test_every_record_is_proven_alone(tmp_path: Path) -> None:
    async with open_journal(str(tmp_path / "journal.db"), keys=KEYS) as store:
        position = await write(store)
        for seq in range(1, position.seq + 1):
            proof = await prove_record(store, seq, None)
            again = InclusionProof.decode(proof.encode())
            assert again == proof
            head = again.check([KEY.public_key])
            assert (head.seq, head.hash) == (position.seq, position.hash)
            assert again.records[0].record.seq == seq
            assert len(again.encode()) < 4000
            others = {f"default/web-{pod}" for pod in range(12)}
            assert sum(name.encode() in again.encode() for name in others) <= 2
        with pytest.raises(JournalError, match=f"the signed head is at {position.seq}"):
            await prove_record(store, position.seq + 1, None)


async def test_every_change_of_a_proof_is_detected(tmp_path: Path) -> None:
    async with open_journal(str(tmp_path / "journal.db"), keys=KEYS) as store:
        await write(store)
        proof = await prove_pod(store, POD, None, None)
    record = proof.records[0]
    stored = record.record
    assert (stored.kind, stored.subject) == ("Assigned", "pod/default/web-1")
    forged = [
        msgspec.structs.replace(record, record=other)
        for other in (
            stored._replace(seq=stored.seq + 1),
            stored._replace(kind="Bound"),
            stored._replace(version=2),
            stored._replace(subject="pod/default/web-2"),
            stored._replace(payload=stored.payload.replace("node-11", "node-12")),
        )
    ]
    forged += [
        msgspec.structs.replace(record, batch=other)
        for other in (
            record.batch._replace(batch=1),
            record.batch._replace(first_seq=record.batch.first_seq - 1),
            record.batch._replace(last_seq=record.batch.last_seq + 1),
            record.batch._replace(epoch=9),
            record.batch._replace(written_at_ns=9),
            record.batch._replace(previous_hash="ab" * 32),
        )
    ]
    forged.append(msgspec.structs.replace(record, row_path=record.row_path[::-1]))
    forged.append(msgspec.structs.replace(record, batch_path=(*record.batch_path, "ab" * 32)))
    forged.append(msgspec.structs.replace(record, batch_path=("x",)))
    forged.append(msgspec.structs.replace(record, row_path=()))
    for wrong in forged:
        assert wrong != record
        with pytest.raises(ProofError):
            msgspec.structs.replace(proof, records=(wrong,)).check([KEY.public_key])
    with pytest.raises(ProofError, match=f"signed by key {KEY.id}, not by key {OTHER.id}"):
        proof.check([OTHER.public_key])
    with pytest.raises(ProofError, match="contains no record"):
        msgspec.structs.replace(proof, records=()).check([KEY.public_key])


async def test_only_records_of_the_pod_are_proven(tmp_path: Path) -> None:
    async with open_journal(str(tmp_path / "journal.db"), keys=KEYS) as store:
        await write(store)
        proof = await prove_pod(store, PodName("", "web-0"), 2, None)
        assert proof.records[0].record.seq == 2
        with pytest.raises(AuditError, match=r"record 1 \(TurnStarted\) is about the scheduler"):
            await prove_pod(store, POD, 1, None)
        with pytest.raises(AuditError, match="is not in the journal"):
            await prove_pod(store, PodName("default", "unknown"), None, None)


async def test_archived_records_are_proven_with_the_archive(tmp_path: Path) -> None:
    folder = tmp_path / "archive"
    async with open_journal(str(tmp_path / "journal.db"), keys=KEYS) as store:
        position = await write(store)
        before = {seq: await prove_record(store, seq, None) for seq in range(1, position.seq + 1)}
        await archive(store, folder, before_ns=5, archived_at_ns=9)
        archived = (await store.archived()).seq
        assert archived > 3
        for seq in range(1, position.seq + 1):
            if seq <= archived:
                with pytest.raises(JournalError, match="give its directory with --archive"):
                    await prove_record(store, seq, None)
                assert await prove_record(store, seq, folder) == before[seq]
            else:
                assert await prove_record(store, seq, None) == before[seq]


@pytest.mark.parametrize("trusted", [KEY, NEW])
async def test_proof_after_a_rotation_needs_one_of_the_keys(
    tmp_path: Path, trusted: SigningKey
) -> None:
    async with open_journal(str(tmp_path / "journal.db"), keys=KEYS) as store:
        await write(store)
        await replace_key(store, KEY, NEW, 3)
        proof = await prove_pod(store, POD, None, None)
    assert proof.head.key == NEW.id
    assert proof.check([trusted.public_key]).seq
    with pytest.raises(ProofError, match="not by key"):
        proof.check([OTHER.public_key])


async def test_unsigned_journal_proves_nothing(tmp_path: Path) -> None:
    async with open_journal(str(tmp_path / "journal.db")) as store:
        await store.claim("test", claimed_at_ns=1)
        await store.append(turn(1), written_at_ns=1)
        with pytest.raises(JournalError, match="the journal is not signed"):
            await prove_record(store, 2, None)


def test_commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    async def fill() -> None:
        async with open_journal("journal.db", keys=KEYS) as store:
            await write(store)

    def run(*arguments: str) -> tuple[int, str, str]:
        result = CliRunner().invoke(app, ["journal", *arguments], prog_name="asched")
        structlog.reset_defaults()
        return result.exit_code, result.stdout, result.stderr

    anyio.run(fill)
    KEY.save(Path("key.pem"))
    OTHER.save(Path("other.pem"))
    code, out, err = run("prove", "web-1", "--to", "proof.json", "--journal", "journal.db")
    assert (code, err) == (0, "")
    assert out.startswith("proof.json: record ")
    Path("journal.db").unlink()
    code, out, err = run("verify", "--proof", "proof.json", "--trusted-key", "key.pem.pub")
    assert (code, err) == (0, "")
    assert '"node": "node-11"' in out
    assert "verified: in the journal with head " in out
    assert run("verify", "--proof", "proof.json", "--trusted-key", "other.pem.pub") == (
        1,
        "",
        f"asched: proof.json: the proof is signed by key {KEY.id}, not by key {OTHER.id}\n",
    )
    assert run("verify", "--proof", "proof.json")[2].startswith("asched: give the public key")
    Path("wrong.json").write_text("{}")
    code, _, err = run("verify", "--proof", "wrong.json", "--trusted-key", "key.pem.pub")
    assert (code, err.count("\n")) == (2, 1)
    assert "wrong.json: this is not a proof of asched" in err
    code, _, err = run("verify", "--trusted-key", "absent.pub")
    assert (code, err.count("\n")) == (2, 1)
    assert run("keygen", "--to", "key.pem")[0] == 2
    code, out, _ = run("keygen", "--to", "new.pem")
    assert (code, out.split()[-1]) == (0, PublicKey.load(Path("new.pem.pub")).id)
