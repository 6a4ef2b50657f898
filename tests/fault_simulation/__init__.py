"""Deterministic simulation of the daemon on a virtual clock with injected faults.

``python -m tests.fault_simulation --seeds 100``; see ``docs/explanation/simulation-testing.md``.
"""
