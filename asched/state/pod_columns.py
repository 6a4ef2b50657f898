"""The pods on nodes as columns, to count the matches of a query without a loop over pods.

A selector is evaluated once per distinct label set, on numbers of values. So a query costs a few
numpy operations, and a pod with a hundred affinity terms is decided in milliseconds, however many
pods the cluster has.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterable, Sequence
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from asched.framework.nodes import BoolColumn, Int64Column, RowArray
from asched.framework.pod_info import LabelSet, PodInfo
from asched.framework.pod_queries import PodQuery
from asched.model.selectors import LabelSelector, LabelSelectorRequirement, parse_int64

_ABSENT = -1
_MAX_KEYS = 256
_MAX_STALE_VALUES = 4096
"""A column with more values than this plus twice the label sets is rebuilt."""
_FIRST_SIZE = 64

_Numbers = NDArray[np.int32]
T = TypeVar("T", bound=np.generic)


class _ValueColumn:
    """The values of one label, by label set."""

    __slots__ = ("_column", "_integers", "_is_integer", "_numbers")

    def __init__(self) -> None:
        self._column: _Numbers = np.full(_FIRST_SIZE, _ABSENT, np.int32)
        self._numbers: dict[str, int] = {}
        self._integers: Int64Column | None = None
        self._is_integer: BoolColumn = np.zeros(0, np.bool_)

    def __len__(self) -> int:
        """Number of distinct values, also those that no label set has any longer."""
        return len(self._numbers)

    def put(self, index: int, value: str | None) -> None:
        self._column = _grown(self._column, index, _ABSENT)
        number = _ABSENT
        if value is not None:
            number = self._numbers.setdefault(value, len(self._numbers))
        self._column[index] = number

    def present(self, size: int) -> BoolColumn:
        self._column = _grown(self._column, size, _ABSENT)
        present: BoolColumn = self._column[:size] >= 0
        return present

    def is_in(self, values: Sequence[str], size: int) -> BoolColumn:
        self._column = _grown(self._column, size, _ABSENT)
        wanted = [self._numbers[value] for value in values if value in self._numbers]
        column = self._column[:size]
        found: BoolColumn = column == wanted[0] if len(wanted) == 1 else np.isin(column, wanted)
        return found

    def integers(self, size: int) -> tuple[Int64Column, BoolColumn]:
        """The values as 64-bit integers, and where a value is one."""
        self._column = _grown(self._column, size, _ABSENT)
        known = self._integers
        if known is None or len(known) != len(self._numbers) + 1:
            parsed = [parse_int64(value) for value in self._numbers]
            # The last entry is for label sets without the label.
            self._is_integer = np.array([n is not None for n in parsed] + [False], np.bool_)
            known = self._integers = np.array([n or 0 for n in parsed] + [0], np.int64)
        column = self._column[:size]
        return known[column], self._is_integer[column]


class _LabelSets:
    """The label sets in use, by index, and their values by key."""

    def __init__(self) -> None:
        self.size = 0
        """One more than the highest index."""
        self._index: dict[int, int] = {}
        self._sets: list[LabelSet | None] = []
        self._uses: list[int] = []
        self._free: list[int] = []
        self._keys: Counter[str] = Counter()
        self._namespaces = _ValueColumn()
        self._columns: OrderedDict[str, _ValueColumn] = OrderedDict()

    def acquire(self, labels: LabelSet) -> int:
        index = self._index.get(labels.number)
        if index is not None:
            self._uses[index] += 1
            return index
        if self._free:
            index = self._free.pop()
            self._sets[index], self._uses[index] = labels, 1
        else:
            index = self.size
            self.size += 1
            self._sets.append(labels)
            self._uses.append(1)
        self._index[labels.number] = index
        self._keys.update(labels.labels.keys())
        self._namespaces.put(index, labels.namespace)
        for key, column in self._columns.items():
            column.put(index, labels.labels.get(key))
        return index

    def release(self, index: int) -> None:
        self._uses[index] -= 1
        labels = self._sets[index]
        if self._uses[index] or labels is None:
            return
        del self._index[labels.number]
        self._sets[index] = None
        self._free.append(index)
        for key in labels.labels:
            self._keys[key] -= 1
            if not self._keys[key]:
                del self._keys[key]
                self._columns.pop(key, None)

    def matching(self, query: PodQuery) -> BoolColumn:
        """By index, whether the query selects the label set."""
        found: BoolColumn = np.ones(self.size, np.bool_)
        if query.namespaces is not None:
            found = self._namespaces.is_in([*query.namespaces], self.size)
        for selector in query.selectors:
            label_selector = selector.label_selector
            if label_selector is None:
                return np.zeros(self.size, np.bool_)
            found &= self._matching(label_selector)
        return found

    def _matching(self, selector: LabelSelector) -> BoolColumn:
        found: BoolColumn = np.ones(self.size, np.bool_)
        for key, value in selector.match_labels.items():
            found &= self._is_in(key, (value,))
        for requirement in selector.match_expressions:
            found &= self._satisfying(requirement)
        return found

    def _satisfying(self, requirement: LabelSelectorRequirement) -> BoolColumn:
        """As :func:`~asched.model.selectors.operator_matches`, for all label sets."""
        key, values = requirement.key, requirement.values
        nothing: BoolColumn = np.zeros(self.size, np.bool_)
        match requirement.operator:
            case "In":
                return self._is_in(key, values)
            case "NotIn":
                return ~self._is_in(key, values) if values else nothing
            case "Exists" | "DoesNotExist":
                if values:
                    return nothing
                column = self._column(key)
                present = nothing if column is None else column.present(self.size)
                return present if requirement.operator == "Exists" else ~present
            case "Gt" | "Lt":
                bound = parse_int64(values[0]) if len(values) == 1 else None
                column = self._column(key)
                if bound is None or column is None:
                    return nothing
                integers, valid = column.integers(self.size)
                compared = integers > bound if requirement.operator == "Gt" else integers < bound
                return valid & compared
            case _:
                return nothing

    def _is_in(self, key: str, values: Sequence[str]) -> BoolColumn:
        column = self._column(key)
        if column is None:
            return np.zeros(self.size, np.bool_)
        return column.is_in(values, self.size)

    def _column(self, key: str) -> _ValueColumn | None:
        """None if no label set has the label."""
        if key not in self._keys:
            return None
        column = self._columns.get(key)
        if column is not None and len(column) > _MAX_STALE_VALUES + 2 * self.size:
            column = None
        if column is None:
            column = self._columns[key] = _ValueColumn()
            for index, labels in enumerate(self._sets):
                if labels is not None and key in labels.labels:
                    column.put(index, labels.labels[key])
            if len(self._columns) > _MAX_KEYS:
                self._columns.popitem(last=False)
        else:
            self._columns.move_to_end(key)
        return column


class PodColumns:
    """The row, label set and deletion of each pod on a node."""

    def __init__(self) -> None:
        self._sets = _LabelSets()
        self._slots: dict[str, int] = {}
        self._free: list[int] = []
        self._used = 0
        # By slot; free slots have row -1.
        self._rows: RowArray = np.full(_FIRST_SIZE, -1, np.intp)
        self._set_of: RowArray = np.zeros(_FIRST_SIZE, np.intp)
        self._terminating: BoolColumn = np.zeros(_FIRST_SIZE, np.bool_)

    def apply(self, changes: Iterable[tuple[int, PodInfo, int]]) -> None:
        """Rows and pods that were added (1) or removed (-1), in order."""
        for row, pod, sign in changes:
            if sign > 0:
                self._add(row, pod)
            else:
                self._remove(pod)

    def count(self, query: PodQuery, size: int) -> Int64Column:
        """Matching pods by row, for ``size`` rows."""
        rows = self._rows[: self._used]
        matching = self._sets.matching(query)
        if not matching.any():
            return np.zeros(size, np.int64)
        hits = matching[self._set_of[: self._used]] & (rows >= 0)
        if not query.count_terminating:
            hits &= ~self._terminating[: self._used]
        return np.bincount(rows[hits], minlength=size).astype(np.int64, copy=False)

    def _add(self, row: int, pod: PodInfo) -> None:
        if self._free:
            slot = self._free.pop()
        else:
            slot = self._used
            self._used += 1
            if slot == len(self._rows):
                self._rows = _grown(self._rows, slot, -1)
                self._set_of = _grown(self._set_of, slot, 0)
                self._terminating = _grown(self._terminating, slot, 0)
        self._slots[pod.uid] = slot
        self._rows[slot] = row
        self._set_of[slot] = self._sets.acquire(pod.label_set)
        self._terminating[slot] = pod.pod.terminating

    def _remove(self, pod: PodInfo) -> None:
        slot = self._slots.pop(pod.uid)
        self._rows[slot] = -1
        self._sets.release(int(self._set_of[slot]))
        self._free.append(slot)


def _grown(column: NDArray[T], size: int, fill: int) -> NDArray[T]:
    """The column with room for an index of ``size``."""
    if size < len(column):
        return column
    longer = np.full(max(2 * len(column), size + 1), fill, column.dtype)
    longer[: len(column)] = column
    return longer
