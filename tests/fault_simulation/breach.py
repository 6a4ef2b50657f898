"""What must never be."""

from __future__ import annotations

import anyio


class BreachError(Exception):
    """An invariant does not hold; the text says which, in a line."""


def demand(holds: bool, what: str) -> None:
    """Raises :class:`BreachError`."""
    if not holds:
        raise BreachError(what)


class Referee:
    """Keeps the first breach. Whoever finds one tells it here as well as raising it, because the code
    in whose midst it was found may take the exception for a plugin's."""

    def __init__(self) -> None:
        self.first: BreachError | None = None
        self.called = anyio.Event()

    def call(self, breach: BreachError) -> None:
        if self.first is None:
            self.first = breach
            self.called.set()

    def check(self) -> None:
        """Raises the first BreachError."""
        if self.first is not None:
            raise self.first
