"""Affinity terms of the pods on nodes, as columns.

Which terms select an incoming pod follows from postings by label, as in a search engine. So tens of
thousands of terms are searched in about the time of one, and one pod with many terms does not slow
down others.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from asched.framework.caching import ChangeLog, LruCache
from asched.framework.label_conditions import Integers, LabelConditions
from asched.framework.nodes import BoolColumn, Int64Column
from asched.framework.pod_info import LabelSet
from asched.framework.pod_queries import WeightedTerm

_MAX_MOVES = 4096
_MAX_NAMESPACES = 256
_MIN_STALE = 1024
"""Unused terms, and entries that cancel out, are kept up to this number."""


class TermMove(NamedTuple):
    """A change of the number of pods with a term on a row."""

    slot: int
    row: int
    difference: int


class _Scope:
    """Which terms reach one namespace."""

    def __init__(self, namespace: str, labels: Mapping[str, str]) -> None:
        self.labels = labels
        self._namespace = namespace
        self._reached = Integers()

    def column(self, terms: list[WeightedTerm]) -> BoolColumn:
        reached = self._reached
        for weighted in terms[len(reached) :]:
            reached.append(weighted.term.reaches(self._namespace, self.labels))
        return reached.array > 0


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
        self._conditions = LabelConditions()
        self._keys: dict[str, int] = {}
        self._key_of = Integers()
        self._weights = Integers()
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

    @property
    def distinctions(self) -> tuple[int, int]:
        """Changes when terms distinguish more labels, or others, and with the first term."""
        return self.generation, self._conditions.distinctions + bool(self._terms)

    @property
    def topology_keys(self) -> Collection[str]:
        """Those of all terms; may include some of terms that were removed."""
        return self._keys.keys()

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
        self._key_of.append(key)
        self._weights.append(weighted.weight)
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
        are selected by the same terms. The result is the same until :attr:`distinctions`
        changes."""
        return tuple(sorted(self._conditions.distinguished(labels.labels)))

    def selecting(
        self, labels: LabelSet, namespace_labels: Mapping[str, str], since: int = 0
    ) -> BoolColumn:
        """By slot from ``since`` on, whether the term selects a pod with these labels in a
        namespace with those."""
        found = self._conditions.fulfilled(labels.labels, since)
        if found.any():
            found &= self._scope(labels.namespace, namespace_labels)[since:]
        return found

    def _scope(self, namespace: str, labels: Mapping[str, str]) -> BoolColumn:
        holder = self._scopes.get(namespace, lambda: [_Scope(namespace, labels)])
        if holder[0].labels != labels:
            holder[0] = _Scope(namespace, labels)
        return holder[0].column(self._terms)

    def keys(self, selected: BoolColumn) -> list[str]:
        """The topology keys of the selected terms, at most one for each term."""
        keys = [*self._keys]
        numbers = np.unique(self._key_of.array[: len(selected)][selected])
        return [keys[number] for number in numbers.tolist()]

    def sums(
        self, selected: BoolColumn, size: int, keys: Iterable[str] | None = None
    ) -> Mapping[str, Int64Column]:
        """For each topology key of the selected terms, or for these, the pods with these terms by
        row, each with the weight of its term. ``size`` is the number of rows."""
        if not selected.any():
            return {}
        slots, rows, differences = self._entries()
        key_of, weights = self._key_of.array[: len(selected)], self._weights.array
        if len(selected) < len(self._terms):
            older = slots < len(selected)
            slots, rows, differences = slots[older], rows[older], differences[older]
        found: dict[str, Int64Column] = {}
        for key in self.keys(selected) if keys is None else keys:
            chosen = (selected & (key_of == self._keys[key]))[slots]
            amounts = differences[chosen] * weights[slots[chosen]]
            sums = np.bincount(rows[chosen], weights=amounts, minlength=size)
            found[key] = sums.astype(np.int64)
        return found
