"""The upgrade gate: a recorded period decided by a candidate, with a verdict (``docs/gate.md``)."""
