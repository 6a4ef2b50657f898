"""How a session came to its decisions, noted only for whoever asks."""

from __future__ import annotations


class Trace:
    """Notes of one session."""
