"""What /livez and /readyz ask, by name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple


class Check(NamedTuple):
    """One thing that has to be so."""

    name: str
    """As Kubernetes names its own: words in lower case, with hyphens between."""
    trouble: Callable[[], str]
    """Says what is wrong now, in one line; empty while all is well. Must be quick."""


PING = Check("ping", lambda: "")
"""That somebody answers at all: an event loop that hangs would not."""


def troubles(checks: Sequence[Check]) -> list[str]:
    """What is wrong now, a line each."""
    return [trouble for check in checks if (trouble := check.trouble())]
