"""Data that plugins share during one scheduling attempt (``CycleState`` of kube-scheduler)."""

from __future__ import annotations

import copy
from collections.abc import ItemsView
from typing import Any, Generic, Protocol, TypeVar, cast, runtime_checkable

T = TypeVar("T")


class StateKey(Generic[T]):
    """A typed key of :class:`CycleState`.

    Make one at module level: ``KEY: StateKey[MyData] = StateKey("MyPlugin/prefilter")``. Keys are
    compared by identity, so keys with equal names do not collide.
    """

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name
        """For messages."""

    def __repr__(self) -> str:
        return f"StateKey({self.name!r})"


@runtime_checkable
class Cloneable(Protocol):
    """Data that AddPod and RemovePod change, and that must be cloned with the state."""

    def clone(self) -> Any: ...


class CycleState:
    """What plugins pass to their own later extension points during one attempt.

    Dry runs use a :meth:`clone`. A value must therefore be immutable, have a ``clone`` method, or
    be copyable with :func:`copy.copy`.
    """

    __slots__ = ("_values", "inapplicable", "skip_filter", "skip_score")

    def __init__(self, values: dict[StateKey[Any], Any] | None = None) -> None:
        self._values: dict[StateKey[Any], Any] = {} if values is None else values
        self.skip_filter: set[str] = set()
        """Plugins that returned Skip at PreFilter."""
        self.skip_score: set[str] = set()
        """Plugins that returned Skip at PreScore."""
        self.inapplicable: set[str] = set()
        """Plugins that do not apply to the pod, of those that were called so far."""

    def write(self, key: StateKey[T], value: T) -> None:
        """Set the value of ``key``."""
        self._values[key] = value

    def read(self, key: StateKey[T]) -> T:
        """The value of ``key``. Raises :class:`KeyError` if there is none."""
        return cast(T, self._values[key])

    def get(self, key: StateKey[T]) -> T | None:
        """The value of ``key``, or None."""
        return cast("T | None", self._values.get(key))

    def delete(self, key: StateKey[Any]) -> None:
        """Remove ``key``, if it has a value."""
        self._values.pop(key, None)

    def items(self) -> ItemsView[StateKey[Any], Any]:
        """All keys with their values."""
        return self._values.items()

    def shallow_copy(self) -> CycleState:
        """A state with the same values, not copies of them."""
        return self._copy(self._values.copy())

    def clone(self) -> CycleState:
        """A state with clones of the values."""
        values = {}
        for key, value in self._values.items():
            # getattr() is cheaper than isinstance() with the protocol Cloneable.
            clone = getattr(value, "clone", None)
            values[key] = copy.copy(value) if clone is None else clone()
        return self._copy(values)

    def _copy(self, values: dict[StateKey[Any], Any]) -> CycleState:
        copied = CycleState(values)
        copied.skip_filter = self.skip_filter.copy()
        copied.skip_score = self.skip_score.copy()
        copied.inapplicable = self.inapplicable.copy()
        return copied

    def add_missing(self, other: CycleState) -> None:
        """Add the skipped plugins of ``other``, and its values under keys without a value here."""
        self.skip_filter |= other.skip_filter
        self.skip_score |= other.skip_score
        for key, value in other.items():
            self._values.setdefault(key, value)
