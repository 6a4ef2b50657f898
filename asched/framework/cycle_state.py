"""The scratch pad of one scheduling attempt, shared by the plugins that take part in it."""

from __future__ import annotations

import copy
from typing import Any, Generic, Protocol, TypeVar, cast, runtime_checkable

T = TypeVar("T")


class StateKey(Generic[T]):
    """A typed key: what is written under it is read back with its type.

    A plugin makes one at module level, ``KEY: StateKey[MyData] = StateKey("MyPlugin/prefilter")``.
    Keys are compared by identity, so two plugins cannot collide by choosing the same text.
    """

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return f"StateKey({self.name!r})"


@runtime_checkable
class Cloneable(Protocol):
    """Data that changes after it is written (by AddPod and RemovePod) says how to copy itself."""

    def clone(self) -> Any: ...


class CycleState:
    """What plugins hand to their own later extension points during one attempt.

    Preemption tries pods on and off nodes on a :meth:`clone`, so data written here is either never
    changed, or has a ``clone`` method, or is a plain value that :func:`copy.copy` copies.
    """

    __slots__ = ("_values", "inapplicable", "skip_filter", "skip_score")

    def __init__(self) -> None:
        self._values: dict[StateKey[Any], Any] = {}
        self.skip_filter: set[str] = set()
        """Names of the plugins whose PreFilter answered Skip."""
        self.skip_score: set[str] = set()
        """Names of the plugins whose PreScore answered Skip."""
        self.inapplicable: set[str] = set()
        """Names of the plugins that the pod does not concern, of those that were asked so far."""

    @classmethod
    def following(cls, other: CycleState) -> CycleState:
        """One that holds what ``other`` does (the values themselves, not copies)."""
        state = cls.__new__(cls)
        state._values = other._values.copy()
        state.skip_filter = other.skip_filter.copy()
        state.skip_score = other.skip_score.copy()
        state.inapplicable = other.inapplicable.copy()
        return state

    def write(self, key: StateKey[T], value: T) -> None:
        self._values[key] = value

    def read(self, key: StateKey[T]) -> T:
        """What was written under ``key``. Raises :class:`KeyError` where nothing was."""
        return cast(T, self._values[key])

    def get(self, key: StateKey[T]) -> T | None:
        """What was written under ``key``, or None."""
        return cast("T | None", self._values.get(key))

    def delete(self, key: StateKey[Any]) -> None:
        self._values.pop(key, None)

    def absorb(self, other: CycleState) -> None:
        """Take over what ``other`` holds and this does not (the values themselves, not copies)."""
        self.skip_filter |= other.skip_filter
        self.skip_score |= other.skip_score
        for key, held in other._values.items():
            self._values.setdefault(key, held)

    def clone(self) -> CycleState:
        twin = CycleState()
        twin.skip_filter = set(self.skip_filter)
        twin.skip_score = set(self.skip_score)
        twin.inapplicable = set(self.inapplicable)
        for key, held in self._values.items():
            # What Cloneable asks for, without the cost of asking a protocol.
            clone = getattr(held, "clone", None)
            twin._values[key] = copy.copy(held) if clone is None else clone()
        return twin
