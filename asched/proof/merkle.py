"""Merkle trees as in certificate transparency (RFC 6962, section 2.1), and what they hash.

A row's leaf hash is that of this text in UTF-8: a line ``seq version K S P``, then kind, subject
and payload and a newline. K, S and P are the lengths of these three in code points, so different
rows have different texts.

A batch's hash is the SHA-256 of three lines: the hash of the previous batch (64 hex digits; zeros
for the first), ``asched-batch-2 batch first_seq last_seq epoch written_at_ns``, and the Merkle root
of its rows (64 hex digits). So one record of a batch can be proven without the others.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from hashlib import sha256
from typing import NamedTuple

from asched.proof import ProofError

EMPTY_ROOT = sha256(b"").digest()


def leaf_hash(data: bytes) -> bytes:
    return sha256(b"\0" + data).digest()


def node_hash(left: bytes, right: bytes) -> bytes:
    return sha256(b"\1" + left + right).digest()


def root_of(leaves: Sequence[bytes]) -> bytes:
    """The root of a tree with these leaf hashes."""
    level = leaves
    while len(level) > 1:
        above = [
            sha256(b"\1" + left + right).digest()
            for left, right in zip(level[::2], level[1::2], strict=False)
        ]
        if len(level) % 2:
            above.append(level[-1])
        level = above
    return level[0] if level else EMPTY_ROOT


class Frontier:
    """A growing tree. Only the roots of its perfect subtrees are kept: log n hashes."""

    def __init__(self, size: int = 0, peaks: Iterable[bytes] = ()) -> None:
        """``peaks``: the roots of the perfect subtrees of the first ``size`` leaves, largest first.

        Raises :class:`ProofError` for a wrong number of them.
        """
        self.size = size
        self._peaks = list(peaks)
        if size < 0 or len(self._peaks) != size.bit_count():
            raise ProofError(
                f"a Merkle tree of {size} leaves does not have {len(self._peaks)} peaks"
            )

    @property
    def peaks(self) -> tuple[bytes, ...]:
        return tuple(self._peaks)

    @property
    def root(self) -> bytes:
        if not self._peaks:
            return EMPTY_ROOT
        root = self._peaks[-1]
        for peak in reversed(self._peaks[:-1]):
            root = node_hash(peak, root)
        return root

    def append(self, leaf: bytes) -> None:
        """Add a leaf hash."""
        node, size = leaf, self.size
        while size % 2:
            node = node_hash(self._peaks.pop(), node)
            size //= 2
        self._peaks.append(node)
        self.size += 1

    def copy(self) -> Frontier:
        return Frontier(self.size, self._peaks)


def inclusion_path(
    index: int, leaves: Sequence[bytes], before: Frontier | None = None
) -> tuple[bytes, ...]:
    """The hashes that lead from the leaf with that number (from 0) to the root.

    The tree has the leaves of ``before``, a frontier, and ``leaves``.
    Raises IndexError for a leaf that is not one of ``leaves``.
    """
    before = before or Frontier()
    size = before.size + len(leaves)
    if not before.size <= index < size:
        raise IndexError(f"leaf {index} is not one of {before.size} to {size - 1}")
    peaks = _by_level(before)
    level = dict(enumerate(leaves, before.size))
    path: list[bytes] = []
    height = 0
    while size > 1:
        level.update(peaks.get(height, {}))
        if index ^ 1 < size:
            path.append(level[index ^ 1])
        level = _level_above(level, size)
        index, size, height = index // 2, (size + 1) // 2, height + 1
    return tuple(path)


def _by_level(frontier: Frontier) -> dict[int, dict[int, bytes]]:
    """The peaks by height and position."""
    found: dict[int, dict[int, bytes]] = {}
    begin = 0
    peaks = iter(frontier.peaks)
    for height in reversed(range(frontier.size.bit_length())):
        if frontier.size >> height & 1:
            found[height] = {begin >> height: next(peaks)}
            begin += 1 << height
    return found


def _level_above(level: dict[int, bytes], size: int) -> dict[int, bytes]:
    """The parents of known pairs, and the last node if it has no sibling."""
    above = {
        position // 2: node_hash(level[position - 1], right)
        for position, right in level.items()
        if position % 2 and position - 1 in level
    }
    if size % 2 and size - 1 in level:
        above[size // 2] = level[size - 1]
    return above


def root_by_path(leaf: bytes, index: int, size: int, path: Sequence[bytes]) -> bytes:
    """The root of a tree of ``size`` leaves in which ``path`` leads from ``leaf`` to the root.

    Raises :class:`ProofError` if the path does not have the length for that position.
    """
    if not 0 <= index < size:
        raise ProofError(f"a Merkle tree of {size} leaves has no leaf {index}")
    node, left = leaf, iter(path)
    try:
        while size > 1:
            if index % 2:
                node = node_hash(next(left), node)
            elif index + 1 < size:
                node = node_hash(node, next(left))
            index, size = index // 2, (size + 1) // 2
    except StopIteration:
        raise ProofError("the path to the Merkle root is too short") from None
    if next(left, None) is not None:
        raise ProofError("the path to the Merkle root is too long")
    return node


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
