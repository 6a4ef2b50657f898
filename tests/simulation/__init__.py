"""Deterministic simulation of the daemon: the real one, on a virtual clock, through drawn faults.

``python -m tests.simulation --seeds 100``; ``docs/simulation-testing.md`` says what it does.
"""
