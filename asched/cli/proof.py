"""``asched journal keygen``, ``sign``, ``rotate-key`` and ``prove``: signatures and proofs."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from asched.cli.errors import BadInput, CommandError
from asched.cli.journal import ArchiveOption, app
from asched.cli.options import (
    DEFAULT_JOURNAL,
    JournalOption,
    SigningKeyOption,
    TrustedKeyOption,
    journal_keys,
    query_journal,
)
from asched.cli.output import print_json, print_text

if TYPE_CHECKING:
    from asched.journal.store import JournalStore
    from asched.journal.verification import VerificationResult
    from asched.proof.heads import TreeHead
    from asched.proof.keys import PublicKey


@app.command()
def keygen(
    to: Annotated[Path, typer.Option(metavar="FILE", help="The private key, a new file.")],
) -> None:
    """Create a key that signs a journal: FILE, and FILE.pub for those who verify it."""
    from asched.proof.keys import SigningKey

    key = SigningKey.generate()
    public = key.save(to)
    typer.echo(f"{to}: the private key, for journal.signingKey")
    typer.echo(f"{public}: the public key")
    typer.echo(f"key {key.id}")


@app.command()
def sign(
    journal: JournalOption = DEFAULT_JOURNAL,
    signing_key: SigningKeyOption = None,
    archive: ArchiveOption = None,
) -> None:
    """Verify an unsigned journal, and sign it from now on.

    A daemon signs a new journal itself. Stop the daemon first: this command claims the journal.
    """
    from asched.journal.signatures import sign_existing
    from asched.journal.verification import verify_journal

    keys = journal_keys(signing_key)
    key = keys.signing
    if key is None:
        raise BadInput("give the key with --signing-key (asched journal keygen)")

    async def introduce(store: JournalStore) -> TreeHead:
        await verify_journal(store, archive=archive)
        await store.claim("asched journal sign", claimed_at_ns=time.time_ns())
        return await sign_existing(store, key, time.time_ns())

    head = query_journal(journal, introduce, read_only=False, must_exist=True, keys=keys)
    typer.echo(f"signed records 1 to {head.seq} with key {key.id}")


@app.command("rotate-key")
def rotate(
    new_key: Annotated[Path, typer.Option(metavar="FILE", help="The key that signs from now on.")],
    journal: JournalOption = DEFAULT_JOURNAL,
    signing_key: SigningKeyOption = None,
) -> None:
    """Replace the key that signs a journal.

    Both keys sign the change, so whoever trusts one of them can verify the whole journal. Stop the
    daemon first: this command claims the journal.
    """
    from asched.journal.signatures import replace_key

    keys = journal_keys(signing_key)
    old, new = keys.signing, journal_keys(new_key).signing
    if old is None or new is None:
        raise BadInput("give the present key with --signing-key")

    async def change(store: JournalStore) -> TreeHead:
        await store.claim("asched journal rotate-key", claimed_at_ns=time.time_ns())
        return await replace_key(store, old, new, time.time_ns())

    head = query_journal(journal, change, read_only=False, must_exist=True, keys=keys)
    typer.echo(f"key {new.id} replaces key {old.id} after record {head.seq}")


@app.command()
def prove(
    pod: Annotated[str, typer.Argument(help="NAME or NAMESPACE/NAME of a pod.")],
    to: Annotated[Path, typer.Option(metavar="FILE", help="The proof, a new file.")],
    journal: JournalOption = DEFAULT_JOURNAL,
    record: Annotated[
        int | None, typer.Option(help="Number of the record. Default: the pod's last decision.")
    ] = None,
    archive: ArchiveOption = None,
    trusted_key: TrustedKeyOption = None,
) -> None:
    """Write a proof that the signed journal holds a record about a pod.

    asched journal verify --proof FILE verifies it without the journal.
    """
    from asched.audit.lookup import PodName
    from asched.audit.proving import prove_pod

    name = PodName.parse(pod)
    keys = journal_keys(trusted=trusted_key or ())
    proof = query_journal(
        journal, lambda store: prove_pod(store, name, record, archive), must_exist=True, keys=keys
    )
    try:
        with to.open("xb") as file:
            file.write(proof.encode())
    except OSError as error:
        raise CommandError(f"cannot write {to}: {error.strerror}") from None
    proven = proof.records[0].record
    typer.echo(f"{to}: record {proven.seq} ({proven.kind}), {to.stat().st_size} bytes")


def verify_proof(path: Path, trusted: Sequence[PublicKey]) -> None:
    """Verify a proof and print its records. Raises CommandError."""
    from asched.proof import ProofError
    from asched.proof.inclusion import InclusionProof, readable

    if not trusted:
        raise BadInput("give the public key of the journal with --trusted-key")
    try:
        content = path.read_bytes()
    except OSError as error:
        raise BadInput(f"cannot read {path}: {error.strerror}") from None
    try:
        proof = InclusionProof.decode(content)
    except ProofError as error:
        raise BadInput(f"{path}: {error}") from None
    try:
        head = proof.check(trusted)
    except ProofError as error:
        raise CommandError(f"{path}: {error}") from None
    for proven in proof.records:
        print_json(readable(proven.record))
    print_text(f"verified: in the journal with head {head.seq}:{head.hash}, key {proof.head.key}")


def print_signatures(verified: VerificationResult, *, head_given: bool) -> None:
    """What the signatures of a journal cover. ``head_given``: it matches a stored head."""
    if not verified.keys:
        print_text("not signed: whoever can write the database can change all of it")
        return
    unsigned = verified.head.seq - verified.signed_seq
    rest = f", {unsigned} later records are not signed yet" if unsigned else ""
    print_text(f"signed up to record {verified.signed_seq}{rest}")
    trust = "trusted" if verified.trusted else "compare it with yours, or give --trusted-key"
    print_text(f"key {verified.keys[-1]} ({trust})")
    if verified.anchors:
        later = verified.head.seq - verified.anchored_seq
        rest = f", {later} later records are not anchored" if later else ""
        heads = "head" if verified.anchors == 1 else "heads"
        up_to = f"up to record {verified.anchored_seq}{rest}"
        print_text(f"matches {verified.anchors} anchored {heads}, {up_to}")
    elif not head_given:
        print_text(
            "not anchored: an earlier copy of this journal, or one that was continued from it,"
            " verifies as well; compare it with --anchors or --head"
        )
