"""Affinity terms of the pods on nodes, as columns.

Which terms select an incoming pod follows from postings by label, as in a search engine. So tens of
thousands of terms are searched in about the time of one, and one pod with many terms does not slow
down others.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from asched.framework.caching import ChangeLog, LruCache
from asched.framework.nodes import BoolColumn, Int64Column, RowArray
from asched.framework.pod_info import LabelSet
from asched.framework.pod_queries import WeightedTerm
from asched.model.selectors import LabelSelector, LabelSelectorRequirement, parse_int64

_MAX_MOVES = 4096
_MAX_NAMESPACES = 256
_MIN_STALE = 1024
"""Unused terms, and entries that cancel out, are kept up to this number."""
_NEVER = 1 << 40
"""More conditions than labels can fulfil."""
_OTHER = "\0"
"""Represents all values of a label that no condition names; it is no valid value."""
_NO_SLOTS: RowArray = np.zeros(0, np.intp)


class TermMove(NamedTuple):
    """A change of the number of pods with a term on a row."""

    slot: int
    row: int
    difference: int


class _Values:
    """A list of integers that is also read as an array."""

    def __init__(self) -> None:
        self.values: list[int] = []
        self._array: Int64Column = np.zeros(0, np.int64)

    @property
    def array(self) -> Int64Column:
        if len(self._array) != len(self.values):
            self._array = np.array(self.values, np.int64)
        return self._array


class _Postings:
    """Slots by key."""

    def __init__(self) -> None:
        self._slots: dict[Hashable, _Values] = {}

    def __contains__(self, key: Hashable) -> bool:
        return key in self._slots

    def add(self, key: Hashable, slot: int) -> None:
        slots = self._slots.get(key)
        if slots is None:
            slots = self._slots[key] = _Values()
        slots.values.append(slot)

    def of(self, key: Hashable) -> RowArray:
        slots = self._slots.get(key)
        return _NO_SLOTS if slots is None else slots.array


class _Conditions:
    """The label conditions of terms. A term selects the label sets that fulfil all its positive
    conditions and none of its negative ones."""

    def __init__(self) -> None:
        self._needed = _Values()
        """By slot, the number of positive conditions."""
        self._keys: set[str] = set()
        self._with_value, self._with_key = _Postings(), _Postings()
        self._without_value, self._without_key = _Postings(), _Postings()
        self._compared: dict[str, list[tuple[int, str, int]]] = {}

    def add(self, selector: LabelSelector | None) -> None:
        """Append a slot. The rules are those of :func:`~asched.model.selectors.operator_matches`;
        invalid requirements select nothing."""
        slot = len(self._needed.values)
        needed = 0
        if selector is None:
            needed = _NEVER
        else:
            for pair in selector.match_labels.items():
                self._with_value.add(pair, slot)
                self._keys.add(pair[0])
            needed = len(selector.match_labels)
            for requirement in selector.match_expressions:
                needed += self._add(requirement, slot)
        self._needed.values.append(needed)

    def _add(self, requirement: LabelSelectorRequirement, slot: int) -> int:
        """Returns the number of positive conditions."""
        key, values = requirement.key, requirement.values
        self._keys.add(key)
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
                compared = self._compared.setdefault(key, [])
                compared.append((bound, requirement.operator, slot))
                return 1
        return _NEVER

    def distinguished(self, labels: Mapping[str, str]) -> Iterator[tuple[str, str]]:
        """The labels that conditions read. A value that no condition names becomes
        :data:`_OTHER`."""
        for key, value in labels.items():
            if key in self._keys:
                pair = (key, value)
                named = key in self._compared or pair in self._with_value
                yield pair if named or pair in self._without_value else (key, _OTHER)

    def fulfilled(self, labels: Mapping[str, str]) -> BoolColumn:
        """By slot."""
        needed = self._needed.array
        hits = np.zeros(len(needed), np.int64)
        excluded = np.zeros(len(needed), np.bool_)
        for key, value in labels.items():
            np.add.at(hits, self._with_value.of((key, value)), 1)
            np.add.at(hits, self._with_key.of(key), 1)
            excluded[self._without_value.of((key, value))] = True
            excluded[self._without_key.of(key)] = True
            if key in self._compared and (number := parse_int64(value)) is not None:
                np.add.at(hits, self._satisfied(key, number), 1)
        found: BoolColumn = (hits == needed) & ~excluded
        return found

    def _satisfied(self, key: str, number: int) -> list[int]:
        return [
            slot
            for bound, operator, slot in self._compared[key]
            if (number > bound if operator == "Gt" else number < bound)
        ]


class _Scope:
    """Which terms reach one namespace."""

    def __init__(self, namespace: str, labels: Mapping[str, str]) -> None:
        self.labels = labels
        self._namespace = namespace
        self._reached = _Values()

    def column(self, terms: list[WeightedTerm]) -> BoolColumn:
        values = self._reached.values
        for weighted in terms[len(values) :]:
            values.append(weighted.term.reaches(self._namespace, self.labels))
        return self._reached.array > 0


class TermTable:
    """The terms of one kind, and the number of pods with each term by row. Only its owner changes
    it."""

    def __init__(self) -> None:
        self.moves: ChangeLog[TermMove] = ChangeLog(_MAX_MOVES)
        self.generation = 0
        """Changes when slots get other terms."""
        self._clear()

    def _clear(self) -> None:
        self._terms: list[WeightedTerm] = []
        self._slots: dict[WeightedTerm, int] = {}
        self._conditions = _Conditions()
        self._keys: dict[str, int] = {}
        self._key_of = _Values()
        self._weights = _Values()
        self._pods: list[int] = []
        self._used = 0
        # Slot, row and difference of each move since the last compaction; their sum is the count.
        self._compacted: NDArray[np.int64] = np.zeros((3, 0), np.int64)
        self._appended: list[TermMove] = []
        self._scopes: LruCache[str, list[_Scope]] = LruCache(_MAX_NAMESPACES)

    def __len__(self) -> int:
        """The number of distinct terms."""
        return self._used

    @property
    def size(self) -> int:
        """The number of slots. A term keeps its slot within a generation."""
        return len(self._terms)

    def term(self, slot: int) -> WeightedTerm:
        return self._terms[slot]

    # -- changes ------------------------------------------------------------------------------

    def clear(self) -> None:
        """Remove all pods."""
        self._clear()
        self.generation += 1
        self.moves.forget()

    def move(self, weighted: WeightedTerm, row: int, difference: int) -> None:
        """Add pods with the term on a row (negative: remove)."""
        slot = self._slots.get(weighted)
        if slot is None:
            slot = self._add(weighted)
        before = self._pods[slot]
        self._pods[slot] = before + difference
        self._used += bool(before + difference) - bool(before)
        move = TermMove(slot, row, difference)
        self._appended.append(move)
        self.moves.append(move)
        if len(self._appended) > max(_MIN_STALE, self._compacted.shape[1]):
            self._compact()

    def _add(self, weighted: WeightedTerm) -> int:
        slot = self._slots[weighted] = len(self._terms)
        self._terms.append(weighted)
        self._pods.append(0)
        self._conditions.add(weighted.term.selector.label_selector)
        key = self._keys.setdefault(weighted.term.topology_key, len(self._keys))
        self._key_of.values.append(key)
        self._weights.values.append(weighted.weight)
        return slot

    def _entries(self) -> NDArray[np.int64]:
        """Slots, rows and differences as three rows of one array."""
        if self._appended:
            appended = np.array(self._appended, np.int64).T
            self._compacted = np.concatenate([self._compacted, appended], axis=1)
            self._appended = []
        return self._compacted

    def _compact(self) -> None:
        """Add up the entries, and drop unused terms if they are many."""
        slots, rows, differences = self._entries()
        if len(self._terms) - self._used > max(_MIN_STALE, self._used):
            self._rebuild(slots, rows, differences)
            return
        size = int(rows.max(initial=0)) + 1
        places, where = np.unique(slots * size + rows, return_inverse=True)
        sums = np.bincount(where, weights=differences, minlength=1).astype(np.int64)
        places, sums = places[sums != 0], sums[sums != 0]
        self._compacted = np.array([places // size, places % size, sums])

    def _rebuild(self, slots: Int64Column, rows: Int64Column, differences: Int64Column) -> None:
        terms, pods = self._terms, self._pods
        self.clear()
        for slot, row, difference in zip(
            slots.tolist(), rows.tolist(), differences.tolist(), strict=True
        ):
            if pods[slot]:
                self.move(terms[slot], row, difference)
        self.moves.forget()

    # -- queries ------------------------------------------------------------------------------

    def distinguished(self, labels: LabelSet) -> tuple[tuple[str, str], ...]:
        """The labels on which the selecting terms depend. Pods of one namespace with equal results
        are selected by the same terms. A new term can change the result."""
        return tuple(sorted(self._conditions.distinguished(labels.labels)))

    def selecting(self, labels: LabelSet, namespace_labels: Mapping[str, str]) -> BoolColumn:
        """By slot, whether the term selects a pod with these labels in a namespace with those."""
        found = self._conditions.fulfilled(labels.labels)
        if found.any():
            found &= self._scope(labels.namespace, namespace_labels)
        return found

    def _scope(self, namespace: str, labels: Mapping[str, str]) -> BoolColumn:
        holder = self._scopes.get(namespace, lambda: [_Scope(namespace, labels)])
        if holder[0].labels != labels:
            holder[0] = _Scope(namespace, labels)
        return holder[0].column(self._terms)

    def sums(self, selected: BoolColumn, size: int) -> Mapping[str, Int64Column]:
        """For each topology key of the selected terms the pods with these terms by row, each with
        the weight of its term. ``size`` is the number of rows."""
        if not selected.any():
            return {}
        slots, rows, differences = self._entries()
        key_of, weights = self._key_of.array[: len(selected)], self._weights.array
        if len(selected) < len(self._terms):
            older = slots < len(selected)
            slots, rows, differences = slots[older], rows[older], differences[older]
        found: dict[str, Int64Column] = {}
        keys = [*self._keys]
        for number in np.unique(key_of[selected]).tolist():
            chosen = (selected & (key_of == number))[slots]
            amounts = differences[chosen] * weights[slots[chosen]]
            sums = np.bincount(rows[chosen], weights=amounts, minlength=size)
            found[keys[number]] = sums.astype(np.int64)
        return found
