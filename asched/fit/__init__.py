"""Whether a manifest would run: where, when, and which pods it would evict (``docs/fit.md``).

Objects of a manifest become pods as their controllers would create them, and the scheduler core
decides these pods on a private copy of a recorded state.
"""
