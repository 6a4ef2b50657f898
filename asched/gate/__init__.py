"""The upgrade gate: a candidate decides a recorded period (``docs/how-to/gate.md``)."""
