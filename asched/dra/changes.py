"""Which pools changed, for caches that follow an inventory."""

from __future__ import annotations

from typing import Final, NamedTuple

from asched.dra.devices import PoolID

_KEPT: Final = 10_000


class PoolChange(NamedTuple):
    """The pool, and the node whose slice changed; empty if the slice is not for one node."""

    pool_id: PoolID
    node_name: str = ""


class ChangeLog:
    """The latest changes in order. Positions count all changes ever made."""

    def __init__(self) -> None:
        self._first = 0
        self._changes: list[PoolChange] = []

    @property
    def position(self) -> int:
        """The position after the latest change."""
        return self._first + len(self._changes)

    def add(self, change: PoolChange) -> None:
        self._changes.append(change)
        if len(self._changes) > 2 * _KEPT:
            del self._changes[:_KEPT]
            self._first += _KEPT

    def since(self, position: int) -> set[PoolChange] | None:
        """The changes after a position; None if they are no longer known."""
        if position < self._first:
            return None
        return set(self._changes[position - self._first :])
