"""Decide for one pod: a pure function of the state."""
