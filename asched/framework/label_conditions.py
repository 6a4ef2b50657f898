"""Label conditions of many selectors as postings by label, as in a search engine.

Which of tens of thousands of selectors select a pod is found in about the time of one.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence

import numpy as np

from asched.framework.nodes import BoolColumn, Int64Column, RowArray
from asched.model.selectors import LabelSelector, LabelSelectorRequirement, parse_int64

_NEVER = 1 << 40
"""More conditions than labels can fulfil."""
_OTHER = "\0"
"""Represents all values of a label that no condition names; it is no valid value."""
_NO_SLOTS: RowArray = np.zeros(0, np.intp)
_FIRST_SIZE = 2
_MAX_INDISTINCT = 8192


class Integers:
    """A growing array of integers."""

    __slots__ = ("_buffer", "_size")

    def __init__(self) -> None:
        self._buffer: Int64Column | None = None
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def append(self, value: int) -> None:
        buffer, size = self._buffer, self._size
        if buffer is None or size == len(buffer):
            longer = np.zeros(max(_FIRST_SIZE, 2 * size), np.int64)
            if buffer is not None:
                longer[:size] = buffer
            self._buffer = buffer = longer
        buffer[size] = value
        self._size = size + 1

    @property
    def array(self) -> Int64Column:
        """Read-only. Not changed by later additions."""
        return _NO_SLOTS if self._buffer is None else self._buffer[: self._size]


class _Postings:
    """Slots by key."""

    def __init__(self) -> None:
        self._slots: dict[Hashable, Integers] = {}

    def __contains__(self, key: Hashable) -> bool:
        return key in self._slots

    def add(self, key: Hashable, slot: int) -> None:
        slots = self._slots.get(key)
        if slots is None:
            slots = self._slots[key] = Integers()
        slots.append(slot)

    def of(self, key: Hashable, since: int) -> RowArray:
        """The slots from ``since`` on, counted from there."""
        slots = self._slots.get(key)
        if slots is None:
            return _NO_SLOTS
        found = slots.array
        return found[found.searchsorted(since) :] - since if since else found


class LabelConditions:
    """The label conditions of terms. A term selects the label sets that fulfil all its positive
    conditions and none of its negative ones."""

    def __init__(self) -> None:
        self._needed = Integers()
        """By slot, the number of positive conditions."""
        self._keys: set[str] = set()
        self._with_value, self._with_key = _Postings(), _Postings()
        self._without_value, self._without_key = _Postings(), _Postings()
        self._compared: dict[str, list[tuple[int, str, int]]] = {}
        self.distinctions = 0
        """Changes when :meth:`distinguished` may return another result than before."""
        self._indistinct: set[str | tuple[str, str]] = set()
        """Keys and labels that :meth:`distinguished` omitted or replaced."""

    def add(self, *selectors: LabelSelector | None) -> None:
        """Append a slot that all selectors have to match. The rules are those of
        :func:`~asched.model.selectors.operator_matches`; None and invalid requirements select
        nothing."""
        slot = len(self._needed)
        needed = 0
        for selector in selectors:
            if selector is None:
                needed += _NEVER
                continue
            for pair in selector.match_labels.items():
                self._with_value.add(pair, slot)
                self._read(pair[0], (pair[1],))
            needed += len(selector.match_labels)
            for requirement in selector.match_expressions:
                needed += self._add(requirement, slot)
        self._needed.append(needed)

    def _add(self, requirement: LabelSelectorRequirement, slot: int) -> int:
        """Returns the number of positive conditions."""
        key, values = requirement.key, requirement.values
        self._read(key, values)
        match requirement.operator:
            case "In" if values:
                for value in set(values):
                    self._with_value.add((key, value), slot)
                return 1
            case "NotIn" if values:
                for value in values:
                    self._without_value.add((key, value), slot)
                return 0
            case "Exists" if not values:
                self._with_key.add(key, slot)
                return 1
            case "DoesNotExist" if not values:
                self._without_key.add(key, slot)
                return 0
            case "Gt" | "Lt" if len(values) == 1 and (bound := parse_int64(values[0])) is not None:
                if key not in self._compared:
                    self._compared[key] = []
                    self.distinctions += 1
                self._compared[key].append((bound, requirement.operator, slot))
                return 1
        return _NEVER

    def _read(self, key: str, values: Iterable[str]) -> None:
        """A new condition reads labels with the key, and distinguishes these values."""
        self._keys.add(key)
        known = self._indistinct
        if known and (key in known or any((key, value) in known for value in values)):
            self.distinctions += 1
            known.clear()

    def distinguished(self, labels: Mapping[str, str]) -> Sequence[tuple[str, str]]:
        """The labels that conditions read. A value that no condition names becomes
        :data:`_OTHER`."""
        found: list[tuple[str, str]] = []
        if len(self._indistinct) > _MAX_INDISTINCT:
            self.distinctions += 1
            self._indistinct.clear()
        for pair in labels.items():
            key = pair[0]
            if key not in self._keys:
                self._indistinct.add(key)
            elif key in self._compared or pair in self._with_value or pair in self._without_value:
                found.append(pair)
            else:
                self._indistinct.add(pair)
                found.append((key, _OTHER))
        return found

    def fulfilled(self, labels: Mapping[str, str], since: int = 0) -> BoolColumn:
        """By slot, from the slot ``since`` on."""
        needed = self._needed.array[since:]
        hits = np.zeros(len(needed), np.int64)
        excluded = np.zeros(len(needed), np.bool_)
        for key, value in labels.items():
            np.add.at(hits, self._with_value.of((key, value), since), 1)
            np.add.at(hits, self._with_key.of(key, since), 1)
            excluded[self._without_value.of((key, value), since)] = True
            excluded[self._without_key.of(key, since)] = True
            if key in self._compared and (number := parse_int64(value)) is not None:
                np.add.at(hits, self._satisfied(key, number, since), 1)
        found: BoolColumn = (hits == needed) & ~excluded
        return found

    def _satisfied(self, key: str, number: int, since: int) -> list[int]:
        return [
            slot - since
            for bound, operator, slot in self._compared[key]
            if slot >= since and (number > bound if operator == "Gt" else number < bound)
        ]
