"""Inclusion proofs: that a journal holds a record, without the journal.

A proof is a JSON document. It holds the record as it is stored, the header of its batch, and two
paths of hashes: from the record to the batch, and from the batch to the root of a signed head.
Other records occur in it as hashes only.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import msgspec

from asched.proof import ProofError
from asched.proof.heads import SignedHead, TreeHead
from asched.proof.keys import PublicKey
from asched.proof.merkle import BatchHeader, header_hash, leaf_hash, root_by_path, row_leaf
from asched.proof.statements import StatementLog, StatementRow

FORMAT: Final = "asched-proof-1"


class ProvenRow(NamedTuple):
    """A record as the journal stores it."""

    seq: int
    kind: str
    version: int
    subject: str
    payload: str


class RecordProof(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """Where a record is, and the hashes that lead to it."""

    record: ProvenRow
    batch: BatchHeader
    row_path: tuple[str, ...]
    """From the record to the Merkle root of its batch's rows."""
    batch_path: tuple[str, ...]
    """From the batch to the Merkle root of the head."""


class InclusionProof(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """The whole document."""

    head: SignedHead
    records: tuple[RecordProof, ...]
    key_changes: tuple[StatementRow, ...] = ()
    """All statements up to the last change of the key, if it was ever changed."""
    format: str = FORMAT

    def encode(self) -> bytes:
        return msgspec.json.format(msgspec.json.encode(self)) + b"\n"

    @classmethod
    def decode(cls, content: bytes) -> InclusionProof:
        """Raises :class:`ProofError`."""
        try:
            proof = msgspec.json.decode(content, type=cls)
        except msgspec.DecodeError as error:
            raise ProofError(f"this is not a proof of asched: {error}") from None
        if proof.format != FORMAT:
            raise ProofError(f"the proof has format {proof.format!r}, expected {FORMAT!r}")
        return proof

    def check(self, trusted: Sequence[PublicKey]) -> TreeHead:
        """The head that holds the records.

        Raises :class:`ProofError` unless a trusted key signed it, or a successor of one did.
        """
        head = self.head.check(self._signer(trusted))
        if not self.records:
            raise ProofError("the proof contains no record")
        for proof in self.records:
            _check_record(proof, head)
        return head

    def _signer(self, trusted: Sequence[PublicKey]) -> PublicKey:
        for key in trusted:
            if key.id == self.head.key:
                return key
        if not self.key_changes:
            wanted = " or ".join(key.id for key in trusted)
            raise ProofError(f"the proof is signed by key {self.head.key}, not by key {wanted}")
        log = StatementLog(self.key_changes)
        log.check_trusted(trusted)
        return log.keys[-1]  # there is one: a trusted key is among them


def _check_record(proof: RecordProof, head: TreeHead) -> None:
    seq, kind, version, subject, payload = proof.record
    batch = proof.batch
    rows = batch.last_seq - batch.first_seq + 1
    leaf = row_leaf(seq, version, kind, subject, payload)
    rows_root = root_by_path(leaf, seq - batch.first_seq, rows, _hashes(proof.row_path))
    batch_leaf = leaf_hash(bytes.fromhex(header_hash(batch, rows_root)))
    root = root_by_path(batch_leaf, batch.batch - 1, head.size, _hashes(proof.batch_path))
    if root.hex() != head.root:
        raise ProofError(
            f"record {seq} ({kind}) is not in the journal of this head: the Merkle root differs"
        )


def _hashes(path: Sequence[str]) -> list[bytes]:
    try:
        return [bytes.fromhex(text) for text in path]
    except ValueError:
        raise ProofError("a hash of the proof is not in hex digits") from None


def readable(record: ProvenRow) -> dict[str, Any]:
    """The record's fields, for people; the payload's structure is not verified."""
    try:
        payload = msgspec.json.decode(record.payload)
    except msgspec.DecodeError:
        payload = record.payload
    return {**record._asdict(), "payload": payload}
