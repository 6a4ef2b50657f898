"""Violations of invariants."""

from __future__ import annotations

import anyio


class BreachError(Exception):
    """A violated invariant, described in one line."""


def demand(holds: bool, what: str) -> None:
    """Raises :class:`BreachError`."""
    if not holds:
        raise BreachError(what)


class BreachReporter:
    """Keeps the first breach.

    A check reports a breach here and also raises it, because the calling code may attribute the
    exception to a plugin.
    """

    def __init__(self) -> None:
        self.first: BreachError | None = None
        self.reported = anyio.Event()

    def report(self, breach: BreachError) -> None:
        if self.first is None:
            self.first = breach
            self.reported.set()

    def check(self) -> None:
        """Raises the first BreachError."""
        if self.first is not None:
            raise self.first
