"""Signed heads: what a key states about a whole journal."""

from __future__ import annotations

from typing import Final

import msgspec

from asched.proof import ProofError
from asched.proof.keys import PublicKey, SigningKey

_PREFIX: Final = b"asched-head-1\n"


class TreeHead(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """The end of a journal, and the Merkle root of all its batches (RFC 6962)."""

    size: int
    """Number of batches."""
    root: str
    seq: int
    """The last record."""
    hash: str
    """Hash of the last batch."""
    epoch: int
    """The newest writer."""
    writer_hash: str
    statements: int
    statements_hash: str
    """Hash of the last of the statements."""
    final: bool
    """Whether the writer stopped in order after it: only a newer writer appends records."""
    signed_at_ns: int
    """The signer's clock, nanoseconds since the Unix epoch."""


class SignedHead(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    head: TreeHead
    key: str
    """Fingerprint of the key."""
    signature: str

    @classmethod
    def sign(cls, head: TreeHead, key: SigningKey) -> SignedHead:
        return cls(head, key.id, key.sign(_text_of(head)))

    @classmethod
    def parse(cls, line: str | bytes) -> SignedHead:
        """The head with this :attr:`line`. Raises :class:`ProofError`."""
        try:
            return _decode(line)
        except msgspec.DecodeError as error:
            raise ProofError(f"this is not a signed head: {error}") from None

    @property
    def line(self) -> str:
        """Its stored form, a line of JSON."""
        return _encode(self).decode()

    def check(self, key: PublicKey) -> TreeHead:
        """The head. Raises :class:`ProofError` unless ``key`` signed it."""
        if self.key != key.id:
            raise ProofError(
                f"the head at record {self.head.seq} is signed by key {self.key}, not by {key.id}"
            )
        if not key.verifies(_text_of(self.head), self.signature):
            raise ProofError(
                f"the signature of the head at record {self.head.seq} by key {key.id} is wrong"
            )
        return self.head


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(SignedHead).decode


def _text_of(head: TreeHead) -> bytes:
    return _PREFIX + _encode(head)
