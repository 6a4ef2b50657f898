"""Decide for a session: what jobs of many pods get, all at once."""
