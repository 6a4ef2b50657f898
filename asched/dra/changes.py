"""What changed, for caches that follow an inventory."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Final, Generic, NamedTuple, TypeVar

from asched.dra.devices import PoolID

_KEPT: Final = 10_000


ChangeT = TypeVar("ChangeT", bound=Hashable)


class SliceChange(NamedTuple):
    """The pool of a slice, and its node; empty if the slice is not for one node."""

    pool_id: PoolID
    node_name: str


class ChangeLog(Generic[ChangeT]):
    """The latest changes in order. Positions count all changes ever made."""

    def __init__(self) -> None:
        self._first = 0
        self._changes: list[ChangeT] = []

    @property
    def position(self) -> int:
        """The position after the latest change."""
        return self._first + len(self._changes)

    def add(self, change: ChangeT) -> None:
        self._changes.append(change)
        if len(self._changes) > 2 * _KEPT:
            del self._changes[:_KEPT]
            self._first += _KEPT

    def since(self, position: int) -> set[ChangeT] | None:
        """The changes after a position; None if they are no longer known."""
        if position < self._first:
            return None
        return set(self._changes[position - self._first :])
