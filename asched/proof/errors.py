"""Errors of proofs and keys; each message is one line that a user can act on."""

from __future__ import annotations


class ProofError(Exception):
    """A signature, a statement or a proof does not hold; the message names it."""


class KeyFileError(Exception):
    """A key file cannot be read or written, or is no Ed25519 key."""
