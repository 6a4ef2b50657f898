"""Chance that a replay repeats: a number drawn by a hash in place of a random one."""

from __future__ import annotations

from hashlib import blake2b


def draw(seed: int, words: str, below: int) -> int:
    """A number from 0 to ``below - 1``, the same for the same recorded seed and words."""
    digest = blake2b(f"{seed}/{words}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") % below
