"""Whether a manifest would run: where, when, which pods it would evict (``docs/how-to/fit.md``).

Objects of a manifest become pods as their controllers would create them, and the scheduler core
decides these pods on a private copy of a recorded state.
"""
