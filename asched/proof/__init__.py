"""What others can check about a journal: Merkle trees, signatures, inclusion proofs, anchors.

Nothing here reads a journal. A proof can be verified with this package and a public key alone.
"""

from __future__ import annotations


class ProofError(Exception):
    """A signature, a statement or a proof does not hold; the message names it."""


class KeyFileError(Exception):
    """A key file cannot be read or written, or is no Ed25519 key."""
