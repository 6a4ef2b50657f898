"""Deterministic simulation of the daemon: the real one, on a virtual clock, through drawn faults.

``python -m tests.fault_simulation --seeds 100``; ``docs/simulation-testing.md`` says what it does.
"""
