"""Prices of nodes and of waiting, and what a run costs (``docs/how-to/costs.md``)."""
