"""The hashed forms of records and batches.

A row's leaf hash (RFC 6962) is that of this text in UTF-8: a line ``seq version K S P``, then kind,
subject and payload and a newline. K, S and P are the lengths of these three in code points, so
different rows have different texts.

A batch's hash is the SHA-256 of three lines: the hash of the previous batch (64 hex digits; zeros
for the first), ``asched-batch-2 batch first_seq last_seq epoch written_at_ns``, and the Merkle root
of its rows (64 hex digits). So one record of a batch can be proven without the others.
"""

from __future__ import annotations

from hashlib import sha256
from typing import NamedTuple


class BatchHeader(NamedTuple):
    """A batch without its hash and rows."""

    batch: int
    first_seq: int
    last_seq: int
    epoch: int
    written_at_ns: int
    previous_hash: str


def row_leaf(seq: int, version: int, kind: str, subject: str, payload: str) -> bytes:
    """The leaf hash of a record."""
    # "\0" is the prefix of leaves.
    text = (
        f"\0{seq} {version} {len(kind)} {len(subject)} {len(payload)}\n{kind}{subject}{payload}\n"
    )
    return sha256(text.encode()).digest()


def header_hash(header: BatchHeader, rows_root: bytes) -> str:
    """The hash of a batch, in hex digits."""
    number, first_seq, last_seq, epoch, written_at_ns, previous_hash = header
    return sha256(
        f"{previous_hash}\nasched-batch-2 {number} {first_seq} {last_seq} {epoch} {written_at_ns}\n"
        f"{rows_root.hex()}\n".encode()
    ).hexdigest()
