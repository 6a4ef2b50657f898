"""Merkle trees against the definitions of RFC 6962, section 2.1."""

from __future__ import annotations

from contextlib import suppress
from hashlib import sha256

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asched.proof import ProofError
from asched.proof.merkle import (
    EMPTY_ROOT,
    Frontier,
    inclusion_path,
    leaf_hash,
    node_hash,
    root_by_path,
    root_of,
)

SIZES = st.integers(0, 200)


def leaves_of(size: int) -> list[bytes]:
    return [leaf_hash(str(number).encode()) for number in range(size)]


def defined_root(leaves: list[bytes]) -> bytes:
    """MTH of the RFC, on leaf hashes."""
    if not leaves:
        return sha256(b"").digest()
    if len(leaves) == 1:
        return leaves[0]
    split = 1
    while split * 2 < len(leaves):
        split *= 2
    return node_hash(defined_root(leaves[:split]), defined_root(leaves[split:]))


def defined_path(index: int, leaves: list[bytes]) -> list[bytes]:
    """PATH of the RFC."""
    if len(leaves) <= 1:
        return []
    split = 1
    while split * 2 < len(leaves):
        split *= 2
    if index < split:
        return [*defined_path(index, leaves[:split]), defined_root(leaves[split:])]
    return [*defined_path(index - split, leaves[split:]), defined_root(leaves[:split])]


def frontier_of(leaves: list[bytes]) -> Frontier:
    tree = Frontier()
    for leaf in leaves:
        tree.append(leaf)
    return tree


def test_known_roots() -> None:
    """Test vectors of certificate-transparency implementations: inputs '', 0x00, 0x10."""
    assert EMPTY_ROOT.hex().startswith("e3b0c44298fc1c149afbf4c8996fb924")
    assert leaf_hash(b"").hex().startswith("6e340b9cffb37a989ca544e6bb780a2c")
    two = root_of([leaf_hash(b""), leaf_hash(b"\0")])
    assert two.hex() == "fac54203e7cc696cf0dfcb42c92a1d9dbaf70ad9e621f4bd8d98662f00e3c125"
    three = root_of([leaf_hash(b""), leaf_hash(b"\0"), leaf_hash(b"\x10")])
    assert three.hex() == "aeb6bcfe274b70a14fb067a5e5578264db0fa9b51af5e0ba159158f329e06e77"


@given(SIZES)
def test_roots_are_those_of_the_rfc(size: int) -> None:
    leaves = leaves_of(size)
    assert root_of(leaves) == frontier_of(leaves).root == defined_root(leaves)


@given(SIZES, st.integers(0, 200))
def test_trees_of_a_growing_journal_are_consistent(size: int, more: int) -> None:
    """A frontier, stored and continued, has the root of all leaves; log n hashes are stored."""
    leaves = leaves_of(size + more)
    before = frontier_of(leaves[:size])
    assert len(before.peaks) == size.bit_count()
    after = Frontier(before.size, before.peaks)
    for leaf in leaves[size:]:
        after.append(leaf)
    assert after.root == defined_root(leaves)
    assert before.root == defined_root(leaves[:size])


@given(st.integers(1, 200), st.data())
def test_paths_are_those_of_the_rfc(size: int, data: st.DataObject) -> None:
    leaves = leaves_of(size)
    index = data.draw(st.integers(0, size - 1))
    known = data.draw(st.integers(0, index))
    path = inclusion_path(index, leaves[known:], frontier_of(leaves[:known]))
    assert list(path) == defined_path(index, leaves)
    assert root_by_path(leaves[index], index, size, path) == defined_root(leaves)


@given(st.integers(2, 100), st.data())
def test_path_proves_one_leaf_at_one_place(size: int, data: st.DataObject) -> None:
    leaves = leaves_of(size)
    index, other = (data.draw(st.integers(0, size - 1)) for _ in range(2))
    path = list(inclusion_path(index, leaves))
    root = defined_root(leaves)
    if other != index:
        assert root_by_path(leaves[other], index, size, path) != root
        with suppress(ProofError):  # if paths of that place have another length
            assert root_by_path(leaves[index], other, size, path) != root
    changed = data.draw(st.integers(0, len(path) - 1))
    path[changed] = leaf_hash(b"other")
    assert root_by_path(leaves[index], index, size, path) != root


def test_malformed_paths_and_frontiers_are_rejected() -> None:
    leaves = leaves_of(5)
    path = inclusion_path(1, leaves)
    with pytest.raises(ProofError, match="too short"):
        root_by_path(leaves[1], 1, 5, path[:-1])
    with pytest.raises(ProofError, match="too long"):
        root_by_path(leaves[1], 1, 5, (*path, leaves[0]))
    with pytest.raises(ProofError, match="no leaf 5"):
        root_by_path(leaves[1], 5, 5, path)
    with pytest.raises(ProofError, match="does not have 1 peaks"):
        Frontier(3, leaves[:1])
    with pytest.raises(IndexError):
        inclusion_path(5, leaves)
    with pytest.raises(IndexError):
        inclusion_path(1, leaves[2:], frontier_of(leaves[:2]))
