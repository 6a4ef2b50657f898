"""Statements: a second chain, which binds checkpoints, archive segments and keys to the journal.

A statement is compact JSON. It holds the SHA-256 of the statement before it, the position in the
journal that it was made at (the last batch and the Merkle tree up to it), and its subject:

- ``checkpoint``: the SHA-256 of a checkpoint's bytes;
- ``segment``: the SHA-256 of a segment's row, which holds that of its file;
- ``key``: from here on every statement and head is signed with this key.

A signature is one of ``asched-statement-1``, a newline and the statement. That of a key is made
with this key, and with the one that it replaces.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256
from typing import Final, NamedTuple

import msgspec

from asched.proof import ProofError
from asched.proof.keys import PublicKey, SigningKey
from asched.proof.merkle import Frontier

FIRST_HASH: Final = "0" * 64
"""The previous hash of the first statement."""
_PREFIX: Final = b"asched-statement-1\n"


class Position(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """The end of a batch, and the Merkle tree of all batches up to it."""

    seq: int
    """The last record of the batch."""
    batch: int
    """Number of the batch, which is the size of the tree."""
    hash: str
    """The batch's hash."""
    peaks: tuple[str, ...]
    """Roots of the tree's perfect subtrees, largest first, in hex digits."""

    @classmethod
    def of(cls, seq: int, batch_hash: str, tree: Frontier) -> Position:
        return cls(seq, tree.size, batch_hash, tuple(peak.hex() for peak in tree.peaks))

    @property
    def tree(self) -> Frontier:
        """Raises :class:`ProofError`."""
        try:
            return Frontier(self.batch, map(bytes.fromhex, self.peaks))
        except ValueError:
            raise ProofError("a Merkle hash is not in hex digits") from None


class _Subject(
    msgspec.Struct, frozen=True, rename="camel", tag_field="kind", forbid_unknown_fields=True
):
    """What a statement is about."""


class CheckpointDigest(_Subject, frozen=True, tag="checkpoint"):
    seq: int
    sha256: str


class SegmentDigest(_Subject, frozen=True, tag="segment"):
    segment: int
    sha256: str


class KeyChange(_Subject, frozen=True, tag="key"):
    public_key: str
    replaces: str
    """The fingerprint of the key before; empty for the first."""
    at_ns: int
    """The clock of the process that made the change, nanoseconds since the Unix epoch."""


Subject = CheckpointDigest | SegmentDigest | KeyChange


class JournalStatement(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    number: int
    previous_hash: str
    position: Position
    about: Subject


class StatementRow(NamedTuple):
    """A stored statement. The fields are the columns, in order."""

    number: int
    body: str
    """The statement's JSON."""
    signatures: str
    """``FINGERPRINT:SIGNATURE``, separated by spaces; empty without a key."""

    @property
    def hash(self) -> str:
        return sha256(self.body.encode()).hexdigest()


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(JournalStatement).decode


def next_statement(
    before: StatementRow | None, position: Position, about: Subject, keys: Sequence[SigningKey]
) -> StatementRow:
    """The statement that follows ``before``, signed with ``keys``."""
    number, previous_hash = (1, FIRST_HASH) if before is None else (before.number + 1, before.hash)
    body = _encode(JournalStatement(number, previous_hash, position, about))
    signatures = " ".join(f"{key.id}:{key.sign(_PREFIX + body)}" for key in keys)
    return StatementRow(number, body.decode(), signatures)


class StatementLog:
    """All statements of a journal, with their chain verified. Signatures are verified on request,
    because that takes 0.2 ms each."""

    def __init__(self, rows: Sequence[StatementRow]) -> None:
        """Raises :class:`ProofError` naming the first wrong statement."""
        self._rows = rows
        self.statements = _chained(rows)
        self._key_changes = [s for s in self.statements if isinstance(s.about, KeyChange)]
        self.keys = self._checked_keys()
        """The keys that signed the journal, in their order."""

    @property
    def key(self) -> PublicKey | None:
        """The key that signs now; None for a journal without signatures."""
        return self.keys[-1] if self.keys else None

    @property
    def tip(self) -> StatementRow | None:
        return self._rows[-1] if self._rows else None

    def hash_of(self, number: int) -> str | None:
        """The hash of a statement; :data:`FIRST_HASH` for 0, None if it does not exist."""
        if number == 0:
            return FIRST_HASH
        return self._rows[number - 1].hash if number <= len(self._rows) else None

    def key_at(self, batches: int) -> PublicKey | None:
        """The key for a head of a tree of that size: the newest that was introduced before."""
        keys = [
            key
            for change, key in zip(self._key_changes, self.keys, strict=True)
            if change.position.batch <= batches
        ]
        return keys[-1] if keys else None

    def rows_with_keys(self) -> tuple[StatementRow, ...]:
        """All statements up to the last change of the key."""
        return tuple(self._rows[: self._key_changes[-1].number]) if self._key_changes else ()

    def check(self, statement: JournalStatement) -> JournalStatement:
        """Verify the signature of a statement. Raises :class:`ProofError`.

        Statements before the first key have none.
        """
        key = self._key_of(statement.number)
        if key is not None:
            _check_signature(self._rows[statement.number - 1], key)
        return statement

    def check_all(self) -> None:
        """Verify all signatures. Raises :class:`ProofError` naming the first wrong statement."""
        for statement in self.statements:
            self.check(statement)

    def checkpoint(self, seq: int) -> JournalStatement | None:
        """The newest statement about the checkpoint at a record."""
        return self._newest(CheckpointDigest, "seq", seq)

    def segment(self, number: int) -> JournalStatement | None:
        """The newest statement about a segment of the archive."""
        return self._newest(SegmentDigest, "segment", number)

    def check_trusted(self, trusted: Sequence[PublicKey]) -> None:
        """Raises :class:`ProofError` unless a trusted key signed, or its successor did.

        A key signs the hash of all statements before it, and introduces the next key.
        """
        if not self.keys:
            raise ProofError("the journal is not signed")
        if not set(trusted) & set(self.keys):
            found = ", ".join(key.id for key in self.keys)
            wanted = " or ".join(key.id for key in trusted)
            raise ProofError(f"the journal is signed by key {found}, not by key {wanted}")

    def _newest(self, kind: type[Subject], field: str, value: int) -> JournalStatement | None:
        for statement in reversed(self.statements):
            if isinstance(statement.about, kind) and getattr(statement.about, field) == value:
                return statement
        return None

    def _key_of(self, number: int) -> PublicKey | None:
        found = None
        for change, key in zip(self._key_changes, self.keys, strict=True):
            if change.number <= number:
                found = key
        return found

    def _checked_keys(self) -> list[PublicKey]:
        keys: list[PublicKey] = []
        for change in self._key_changes:
            assert isinstance(change.about, KeyChange)
            row = self._rows[change.number - 1]
            key = PublicKey.parse(change.about.public_key)
            if change.about.replaces != (keys[-1].id if keys else ""):
                raise ProofError(f"statement {change.number} does not replace the key before it")
            for signer in (*keys[-1:], key):
                _check_signature(row, signer)
            keys.append(key)
        return keys


def _chained(rows: Sequence[StatementRow]) -> list[JournalStatement]:
    before, found = FIRST_HASH, []
    for number, row in enumerate(rows, 1):
        try:
            statement = _decode(row.body)
        except (msgspec.DecodeError, UnicodeEncodeError) as error:
            raise ProofError(f"statement {row.number} is not readable: {error}") from None
        if (row.number, statement.number) != (number, number):
            raise ProofError(f"statement {number} is missing or out of place")
        if statement.previous_hash != before:
            raise ProofError(f"statement {number} is not chained to statement {number - 1}")
        before = row.hash
        found.append(statement)
    return found


def _check_signature(row: StatementRow, key: PublicKey) -> None:
    for part in row.signatures.split(" "):
        signer, _, signature = part.partition(":")
        if signer == key.id:
            if key.verifies(_PREFIX + row.body.encode(), signature):
                return
            raise ProofError(f"the signature of statement {row.number} by key {key.id} is wrong")
    raise ProofError(f"statement {row.number} is not signed by key {key.id}")
