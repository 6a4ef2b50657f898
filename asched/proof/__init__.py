"""What others can check about a journal: Merkle trees, signatures, inclusion proofs, anchors.

Nothing here reads a journal. A proof can be verified with this package and a public key alone.
"""
