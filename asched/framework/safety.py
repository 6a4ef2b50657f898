"""What a plugin declares of itself so that others are safe from it, and what it gets for that.

See ``docs/plugins/safety.md``.
"""

from __future__ import annotations

from enum import Enum
from typing import Protocol


class Isolation(Enum):
    """Where a plugin is asked while a decision is made."""

    LOOP = "loop"
    """In the daemon itself, as part of the decision: quick, and it has to be."""
    WORKER = "worker"
    """In a process of its own, which is ended where it takes too long. Its answers are recorded."""


class Permission(Enum):
    """What a plugin may ask of the API server: each value is a method of ``BindingClient``."""

    BIND = "bind"
    CLAIM_VOLUME = "claim_volume"
    SELECT_NODE = "select_node"
    READ_VOLUME = "read_volume"
    READ_CLAIM = "read_claim"
    ANNOTATE = "annotate"


class NotPermitted(Exception):  # noqa: N818  a state of things, as its neighbour Unavailable
    """A plugin asked for something that its ``needs`` do not name. The text says what."""


class BindingContext(Protocol):
    """How long a plugin of the binding cycle may take, and whether it still need."""

    @property
    def left_s(self) -> float:
        """Seconds until the plugin is cancelled; infinite where nothing limits it."""

    @property
    def ended(self) -> str:
        """Why the plugin is cancelled, empty while it is not: its time is up, the pod is gone, the
        scheduler stops or leads no more. What it awaits is cancelled in the same moment."""


class NoLimit:
    """The :class:`BindingContext` of work that nothing limits."""

    left_s = float("inf")
    ended = ""
