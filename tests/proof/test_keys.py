"""Key files, statements, anchors and their errors."""

from __future__ import annotations

import base64
import os
import stat
import subprocess
from pathlib import Path

import msgspec
import pytest

from asched.proof import KeyFileError, ProofError
from asched.proof.anchors import AnchorError, AnchorFile, read_anchors
from asched.proof.heads import SignedHead, TreeHead
from asched.proof.keys import PublicKey, SigningKey, expanded
from asched.proof.merkle import Frontier
from asched.proof.statements import (
    CheckpointDigest,
    KeyChange,
    Position,
    StatementLog,
    StatementRow,
    next_statement,
)

KEY, NEW, OTHER = (SigningKey.generate() for _ in range(3))
START = Position.of(0, "0" * 64, Frontier())


def test_key_files(tmp_path: Path) -> None:
    path = tmp_path / "key.pem"
    public = KEY.save(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert SigningKey.load(path).id == KEY.id == PublicKey.load(public).id
    assert PublicKey.load(path) == KEY.public_key
    assert PublicKey.parse(KEY.public_key.text) == KEY.public_key
    assert KEY.public_key.verifies(b"text", SigningKey.load(path).sign(b"text"))
    assert not KEY.public_key.verifies(b"other", KEY.sign(b"text"))
    assert not KEY.public_key.verifies(b"text", "no signature")
    with pytest.raises(KeyFileError, match="cannot write the key: File exists"):
        NEW.save(path)


def test_unusable_key_files_are_named(tmp_path: Path) -> None:
    path = tmp_path / "key.pem"
    with pytest.raises(KeyFileError, match=f"^{path}: cannot read the key: No such file"):
        SigningKey.load(path)
    for content in (b"", b"-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n", b"x"):
        path.write_bytes(content)
        with pytest.raises(KeyFileError, match="expected an Ed25519 private key"):
            SigningKey.load(path)
        with pytest.raises(KeyFileError, match="expected an Ed25519"):
            PublicKey.load(path)
    public = KEY.save(tmp_path / "own.pem")
    with pytest.raises(KeyFileError, match="expected an Ed25519 private key"):
        SigningKey.load(public)


def test_path_may_contain_the_credentials_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(tmp_path))
    assert expanded("$CREDENTIALS_DIRECTORY/key") == tmp_path / "key"
    monkeypatch.delenv("CREDENTIALS_DIRECTORY")
    with pytest.raises(KeyFileError, match="variable in this path is not set"):
        expanded("$CREDENTIALS_DIRECTORY/key")


def test_signature_is_the_standard_one(tmp_path: Path) -> None:
    """OpenSSL verifies it with the public key."""
    public = KEY.save(tmp_path / "key.pem")
    (tmp_path / "text").write_bytes(b"text")
    (tmp_path / "signature").write_bytes(base64.b64decode(KEY.sign(b"text")))
    found = subprocess.run(
        ["openssl", "pkeyutl", "-verify", "-pubin", "-inkey", str(public), "-rawin",
         "-in", str(tmp_path / "text"), "-sigfile", str(tmp_path / "signature")],
        capture_output=True, check=False,
    )  # fmt: skip
    assert found.returncode == 0, found.stderr


# -- statements -----------------------------------------------------------------------------------


def signed_log() -> list[StatementRow]:
    """A checkpoint without a key, a key, a checkpoint, another key, a checkpoint."""
    rows: list[StatementRow] = []

    def add(about: CheckpointDigest | KeyChange, *keys: SigningKey) -> None:
        rows.append(next_statement(rows[-1] if rows else None, START, about, keys))

    add(CheckpointDigest(1, "a" * 64))
    add(KeyChange(KEY.public_key.text, "", 1), KEY)
    add(CheckpointDigest(2, "b" * 64), KEY)
    add(KeyChange(NEW.public_key.text, KEY.id, 2), KEY, NEW)
    add(CheckpointDigest(3, "c" * 64), NEW)
    return rows


@pytest.mark.parametrize("trusted", [KEY, NEW])
def test_either_key_of_a_rotation_leads_to_the_other(trusted: SigningKey) -> None:
    log = StatementLog(signed_log())
    log.check_all()
    log.check_trusted([trusted.public_key])
    assert [key.id for key in log.keys] == [KEY.id, NEW.id]
    with pytest.raises(ProofError, match=f"not by key {OTHER.id}"):
        log.check_trusted([OTHER.public_key])


def changed(
    rows: list[StatementRow], number: int, body: str | None = None, signatures: str | None = None
) -> list[StatementRow]:
    row = rows[number - 1]
    new = StatementRow(
        number,
        row.body if body is None else body,
        row.signatures if signatures is None else signatures,
    )
    return [*rows[: number - 1], new, *rows[number:]]


def test_every_change_of_a_statement_is_detected() -> None:
    rows = signed_log()
    for number in range(1, 6):
        forged = changed(rows, number, body=rows[number - 1].body.replace('"seq":0', '"seq":9'))
        with pytest.raises(ProofError, match=r"statement \d .*(chained|wrong)|signature"):
            StatementLog(forged).check_all()
        without = [row for row in rows if row.number != number]
        if number < 5:  # the end is what a signed head covers
            with pytest.raises(ProofError, match=f"statement {number} is missing"):
                StatementLog(without)
    for number in (2, 3, 4, 5):
        for signatures in ("", rows[0].signatures, rows[2].signatures if number != 3 else ""):
            with pytest.raises(ProofError, match="sign"):
                StatementLog(changed(rows, number, signatures=signatures)).check_all()


def test_key_is_replaced_only_with_both_signatures() -> None:
    rows = signed_log()[:3]
    change = KeyChange(OTHER.public_key.text, KEY.id, 2)
    for signers in ((OTHER,), (KEY,), ()):
        forged = [*rows, next_statement(rows[-1], START, change, signers)]
        with pytest.raises(ProofError, match="statement 4 is not signed by key"):
            StatementLog(forged)
    forged = [
        *rows,
        next_statement(rows[-1], START, KeyChange(OTHER.public_key.text, "", 2), (OTHER,)),
    ]
    with pytest.raises(ProofError, match="does not replace"):
        StatementLog(forged)
    old = [*signed_log(), next_statement(signed_log()[-1], START, CheckpointDigest(9, ""), (KEY,))]
    with pytest.raises(ProofError):
        StatementLog(old).check_all()


# -- anchors --------------------------------------------------------------------------------------


def head(seq: int) -> SignedHead:
    tree = TreeHead(seq, "ab" * 32, seq, "cd" * 32, 1, "ef" * 32, 0, "0" * 64, False, 5)
    return SignedHead.sign(tree, KEY)


def test_anchor_file_keeps_all_heads(tmp_path: Path) -> None:
    file = AnchorFile(tmp_path / "heads")
    assert file.last() is None
    for seq in (1, 2):
        file.append(head(seq))
        assert file.last() == head(seq)
    assert read_anchors(file.path) == [head(1), head(2)]


def test_interrupted_write_is_ignored(tmp_path: Path) -> None:
    file = AnchorFile(tmp_path / "heads")
    file.append(head(1))
    with file.path.open("a") as torn:
        torn.write(head(2).line[:50])
    assert file.last() == head(1)
    file.append(head(3))
    assert file.last() == head(3)
    assert read_anchors(file.path) == [head(1), head(3)]


def test_head_that_is_written_in_part_is_not_published(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a full disk."""
    file, write = AnchorFile(tmp_path / "heads"), os.write
    file.append(head(1))
    with monkeypatch.context() as full:
        full.setattr(os, "write", lambda descriptor, line: write(descriptor, line[:50]))
        with pytest.raises(AnchorError, match="the head was written in part only"):
            file.append(head(2))
    assert read_anchors(file.path) == [head(1)]
    file.append(head(3))
    assert read_anchors(file.path) == [head(1), head(3)]


def test_unreadable_anchors_are_named(tmp_path: Path) -> None:
    path = tmp_path / "heads"
    with pytest.raises(AnchorError, match="cannot read heads: No such file"):
        read_anchors(path)
    path.write_text("")
    with pytest.raises(AnchorError, match="contains no signed head"):
        read_anchors(path)
    path.write_text(head(1).line + "\nsomething\n")
    with pytest.raises(AnchorError, match=f"^{path}:2: this is not a signed head"):
        read_anchors(path)
    for text in ("[" * 20_000, '{"kind": "Lease", "a": ' + "[" * 20_000, '{"head"' + "[" * 20_000):
        path.write_text(text)
        with pytest.raises(AnchorError, match=f"^{path}(:1)?: "):
            read_anchors(path)
    with pytest.raises(AnchorError, match="cannot write the head"):
        AnchorFile(tmp_path).append(head(1))
    path.write_text("something\n")
    with pytest.raises(AnchorError, match="last lines are not signed heads"):
        AnchorFile(path).last()


def test_lease_is_read_as_an_anchor(tmp_path: Path) -> None:
    path = tmp_path / "lease.json"
    lease = {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {
            "name": "asched",
            "annotations": {"asched.dev/journal-head": head(7).line, "other": "x"},
        },
        "spec": {"holderIdentity": "a"},
    }
    path.write_bytes(msgspec.json.format(msgspec.json.encode(lease)))
    assert read_anchors(path) == [head(7)]
    lease["metadata"] = {"annotations": {"asched.dev/journal-head": "x"}}
    path.write_bytes(msgspec.json.encode(lease))
    with pytest.raises(AnchorError, match=r"annotation asched.dev/journal-head: this is not"):
        read_anchors(path)
    lease["metadata"] = {}
    path.write_bytes(msgspec.json.encode(lease))
    with pytest.raises(AnchorError, match="contains no signed head"):
        read_anchors(path)


def test_head_is_signed_in_whole() -> None:
    signed = head(3)
    assert SignedHead.parse(signed.line).check(KEY.public_key) == signed.head
    for field in TreeHead.__struct_fields__:
        value = getattr(signed.head, field)
        other = value + 1 if isinstance(value, int) and not isinstance(value, bool) else (
            not value if isinstance(value, bool) else value[::-1] + "0"
        )  # fmt: skip
        forged = msgspec.structs.replace(
            signed, head=msgspec.structs.replace(signed.head, **{field: other})
        )
        with pytest.raises(ProofError, match=r"signature .* is wrong"):
            forged.check(KEY.public_key)
    with pytest.raises(ProofError, match=f"not by {NEW.id}"):
        signed.check(NEW.public_key)
