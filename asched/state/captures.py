"""Contents of large collections at one moment, which are read later.

A checkpoint is encoded in steps while the fold changes the state. Copying a million pods first
would stop the event loop for a third of a second. So a capture refers to what the state contains,
and the fold has it keep an item before that item changes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Generic, TypeVar
from weakref import ref

ItemT = TypeVar("ItemT")


class Capture(Generic[ItemT]):
    """The items of a collection as they were when the capture was made."""

    def __init__(self, items: Sequence[ItemT], copy: Callable[[ItemT], ItemT]) -> None:
        self._items = items
        self._copy = copy
        self._before: dict[int, ItemT] = {}
        """Copies of items that changed since, by the id of the item."""

    def __len__(self) -> int:
        return len(self._items)

    def keep(self, item: ItemT) -> None:
        """The item is about to change."""
        if id(item) not in self._before:
            self._before[id(item)] = self._copy(item)

    def part(self, begin: int, end: int) -> tuple[ItemT, ...]:
        """Items ``begin`` to ``end`` as they were."""
        before = self._before
        if not before:
            return tuple(self._items[begin:end])
        return tuple([before.get(id(item), item) for item in self._items[begin:end]])


class Captures(Generic[ItemT]):
    """The captures of one collection that are still in use."""

    def __init__(self, copy: Callable[[ItemT], ItemT]) -> None:
        self._copy = copy
        self.used: list[ref[Capture[ItemT]]] = []
        """A plain list, because the fold tests for each change whether it is empty."""

    def begin(self, items: Sequence[ItemT]) -> Capture[ItemT]:
        """A capture of the items, in use as long as it is referred to. ``items`` must not change,
        only the items themselves."""
        capture = Capture(items, self._copy)
        self.used.append(ref(capture, self.used.remove))
        return capture

    def keep(self, item: ItemT) -> None:
        """An item is about to change."""
        # A capture that is no longer used leaves the list, also during this iteration.
        for reference in tuple(self.used):
            capture = reference()
            if capture is not None:
                capture.keep(item)
