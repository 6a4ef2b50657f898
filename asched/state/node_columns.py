"""The parts of the node table: numeric columns, and indexes of labels, taints, images and host
ports."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from copy import copy
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from asched.framework.nodes import Int32Column, Int64Column, RowArray, Vocabulary
from asched.framework.pod_info import ANY_IP, HostPort, PodInfo
from asched.model.node import ContainerImage, Taint
from asched.model.quantity import MAX_INT64, saturated
from asched.state.unoffered_requests import ELSEWHERE, UnofferedRequests

S = TypeVar("S", bound=np.generic)

_FIRST_CAPACITY = 64
_MAX_NUMBERS = 1 << 16
_LEAST_WORDS = 1 << 12
"""Label values below this number are never dropped."""
_LEAST_TAINT_SETS = 1 << 8


class NodeColumns:
    """Numeric columns of the node table. A new row is all zeros."""

    def __init__(self) -> None:
        self.size = 0
        self.capacity = _FIRST_CAPACITY
        self.alive = self._zeros(np.bool_)
        self.unschedulable = self._zeros(np.bool_)
        self.tie_break_keys = self._zeros(np.uint64)
        self.pod_count = self._zeros(np.int64)
        self.allowed_pods = self._zeros(np.int64)
        self.scoring_cpu_milli = self._zeros(np.int64)
        self.scoring_memory_bytes = self._zeros(np.int64)
        self.taint_ids = self._zeros(np.int32)
        self.stamps = self._zeros(np.int64)
        self.allocatable: dict[str, Int64Column] = {}
        """By resource, for those that a node offers."""
        self.requested: dict[str, Int64Column] = {}
        """By resource, for those that a node offers and a pod requested."""
        self.unoffered = UnofferedRequests()
        self._offers: Counter[str] = Counter()
        self._sorted_rows: RowArray | None = None
        self._views: dict[Hashable, NDArray[Any]] = {}
        # The amounts that decide whether two rows have the same utilization ID.
        self._amounts: list[Int64Column] = []

    def view(self, name: Hashable, column: NDArray[S]) -> NDArray[S]:
        """The rows in use, read-only; cached until :meth:`append_rows`."""
        view = self._views.get(name)
        if view is None:
            view = self._views[name] = column[: self.size]
            view.flags.writeable = False
        return view

    def set_alive(self, rows: int | list[int], alive: bool) -> None:
        self.alive[rows] = alive
        self._sorted_rows = None

    def by_tie_break_key(self) -> RowArray:
        """The rows of nodes, sorted."""
        if self._sorted_rows is None:
            rows = np.flatnonzero(self.alive)
            self._sorted_rows = rows[np.argsort(self.tie_break_keys[rows], kind="stable")]
        return self._sorted_rows

    def append_rows(self, number: int = 1) -> None:
        while self.size + number > self.capacity:
            self._grow()
        self.size += number
        self._views.clear()

    def resource(self, columns: dict[str, Int64Column], name: str) -> Int64Column:
        """The resource's column of ``allocatable`` or ``requested``, created if needed."""
        column = columns.get(name)
        if column is None:
            column = columns[name] = self._zeros(np.int64)
            self._amounts.clear()
        return column

    def offer(self, name: str, nodes: int = 1) -> Int64Column:
        """The allocatable column of a resource that one more node offers, or so many."""
        self._offers[name] += nodes
        column = self.resource(self.allocatable, name)
        if name in self.unoffered:
            requested = self.resource(self.requested, name)
            for row, total in self.unoffered.take(name).items():
                if row != ELSEWHERE:
                    requested[row] = saturated(total)
        return column

    def withdraw(self, name: str, row: int) -> bool:
        """The node of a row no longer offers a resource. Returns whether it was the last one: then
        the columns are gone, and the caller adds what pods request to :attr:`unoffered`."""
        self.allocatable[name][row] = 0
        self._offers[name] -= 1
        if self._offers[name]:
            return False
        del self._offers[name], self.allocatable[name]
        self.requested.pop(name, None)
        self._amounts.clear()
        self._views.pop(("allocatable", name), None)
        self._views.pop(("requested", name), None)
        return True

    def forget_views(self, names: Iterable[Hashable]) -> None:
        """These columns were replaced or removed."""
        for name in names:
            self._views.pop(name, None)

    def amounts_on(self, row: int) -> tuple[object, ...]:
        """All amounts of a row."""
        columns = self._amounts
        if not columns:
            columns += [*self.allocatable.values(), *self.requested.values(), self.pod_count]
            columns += [self.allowed_pods, self.scoring_cpu_milli, self.scoring_memory_bytes]
        amounts = tuple([column.item(row) for column in columns])
        return (*amounts, self.unoffered.on_row(row)) if self.unoffered else amounts

    def _grow(self) -> None:
        extra = self.capacity
        self.capacity *= 2
        self._amounts.clear()
        for name, column in vars(self).items():
            if isinstance(column, np.ndarray) and name != "_sorted_rows":
                setattr(self, name, longer(column, extra, 0))
        for columns in (self.allocatable, self.requested):
            for name, column in columns.items():
                columns[name] = longer(column, extra, 0)

    def fork(self) -> NodeColumns:
        """A copy that can be changed on its own."""
        copied = copy(self)
        vars(copied).update(
            {name: c.copy() for name, c in vars(self).items() if isinstance(c, np.ndarray)},
            allocatable={name: column.copy() for name, column in self.allocatable.items()},
            requested={name: column.copy() for name, column in self.requested.items()},
            unoffered=self.unoffered.copy(),
            _offers=self._offers.copy(),
            _views={},
            _amounts=[],
        )
        return copied

    def _zeros(self, dtype: type[S]) -> NDArray[S]:
        return np.zeros(self.capacity, dtype)


def longer(column: NDArray[S], extra: int, value: int) -> NDArray[S]:
    """The column with ``extra`` more rows of ``value``."""
    return np.concatenate([column, np.full(extra, value, column.dtype)])


class UtilizationIds:
    """A number for each row, equal for rows with the same amounts. Memory, not state.

    Numbers of equal amounts differ only after so many others that the first was forgotten.
    """

    def __init__(self, size: int = 0) -> None:
        self.by_row: list[int | None] = [None] * size
        """None for a row that changed."""
        self._numbers: dict[tuple[object, ...], int] = {}
        self._last = 0

    def forget(self) -> None:
        """The meaning of amounts changes: no later number equals an earlier one."""
        self._numbers.clear()

    def set_row(self, row: int, amounts: tuple[object, ...]) -> int:
        """Store and return the number of a row with these amounts."""
        number = self._numbers.get(amounts)
        if number is None:
            if len(self._numbers) >= _MAX_NUMBERS:
                self._numbers.clear()
            self._last = number = self._last + 1
            self._numbers[amounts] = number
        self.by_row[row] = number
        return number


class ImageIndex:
    """For each image name, its size on every row that has it.

    Nodes may report different sizes of one image. As in kube-scheduler's cache one report is used
    for all of them: here that of the lowest row.
    """

    def __init__(self) -> None:
        self.sizes: dict[str, dict[int, int]] = {}
        """By image and row, in bytes."""
        self._names: dict[int, tuple[str, ...]] = {}
        self._columns: dict[str, Int64Column] = {}

    def __bool__(self) -> bool:
        """Whether any node has an image."""
        return bool(self.sizes)

    def set_row(self, row: int, images: Sequence[ContainerImage]) -> bool:
        """Replace the images of a row. Returns whether anything changed."""
        sizes: dict[str, int] = {}
        for image in images:
            for name in image.names:
                sizes.setdefault(name, image.size_bytes)
        before = self._names.get(row, ())
        if tuple(sizes) == before and all(self.sizes[n][row] == s for n, s in sizes.items()):
            return False
        for name in before:
            holders = self.sizes[name]
            del holders[row]
            if not holders:
                del self.sizes[name]
        for name, size_bytes in sizes.items():
            self.sizes.setdefault(name, {})[row] = size_bytes
        if sizes:
            self._names[row] = tuple(sizes)
        else:
            self._names.pop(row, None)
        self._columns.clear()
        return True

    def column(self, image: str, size: int) -> tuple[Int64Column, int]:
        """(bytes by row, 0 where absent; number of rows that have it)."""
        holders = self.sizes.get(image)
        if not holders:
            return np.zeros(size, np.int64), 0
        column = self._columns.get(image)
        if column is None or len(column) != size:
            column = np.zeros(size, np.int64)
            column[list(holders)] = holders[min(holders)]
            self._columns[image] = column
        return column, len(holders)


class LabelIndex:
    """The value of each label on every row."""

    def __init__(self) -> None:
        self.columns: dict[str, Int32Column] = {}
        """By label: numbers of the vocabulary, -1 if the label is absent."""
        self.vocabulary = Vocabulary()
        self._holders: Counter[str] = Counter()
        self._next_check = _LEAST_WORDS

    def set_row(
        self, row: int, labels: Mapping[str, str], old: Mapping[str, str], capacity: int
    ) -> list[str]:
        """Replace the labels of a row. ``capacity``: length of a new column.

        Returns the labels with removed or replaced columns."""
        gone: list[str] = []
        for key in old:
            if key not in labels:
                self._holders[key] -= 1
                if self._holders[key]:
                    self.columns[key][row] = -1
                else:
                    del self._holders[key], self.columns[key]
                    gone.append(key)
        for key, text in labels.items():
            ids = self.columns.get(key)
            if ids is None:
                ids = self.columns[key] = np.full(capacity, -1, np.int32)
            if key not in old:
                self._holders[key] += 1
            ids[row] = self.vocabulary.intern(text)
        if len(self.vocabulary.words) >= self._next_check:
            gone += self._drop_unused_words()
        return gone

    def fill(self, rows: Sequence[tuple[int, Mapping[str, str]]], capacity: int) -> None:
        """The labels of all rows of a table that had none."""
        intern = self.vocabulary.intern
        # Most nodes have the same labels with different texts.
        alike: dict[tuple[str, ...], tuple[list[int], list[tuple[str, ...]]]] = {}
        for row, labels in rows:
            holders, texts = alike.setdefault(tuple(labels), ([], []))
            holders.append(row)
            texts.append(tuple(labels.values()))
        for keys, (holders, texts) in alike.items():
            for key, of_key in zip(keys, zip(*texts, strict=True), strict=True):
                column = self.columns.get(key)
                if column is None:
                    column = self.columns[key] = np.full(capacity, -1, np.int32)
                column[holders] = [*map(intern, of_key)]
                self._holders[key] += len(holders)
        self._next_check = max(_LEAST_WORDS, 2 * len(self.vocabulary.words))

    def _drop_unused_words(self) -> list[str]:
        """Number the words again if most are in no column. Returns the labels of new columns."""
        used = np.unique(np.concatenate([[-1], *map(np.unique, self.columns.values())]))[1:]
        words = self.vocabulary.words
        replaced: list[str] = []
        if 2 * len(used) <= len(words):
            self.vocabulary = Vocabulary()
            # The last entry is that of -1, an absent label.
            numbers = np.full(len(words) + 1, -1, np.int32)
            for number in used.tolist():
                numbers[number] = self.vocabulary.intern(words[number])
            for key, ids in self.columns.items():
                self.columns[key] = numbers[ids]
            replaced = [*self.columns]
        self._next_check = max(_LEAST_WORDS, 2 * len(self.vocabulary.words))
        return replaced

    def grow(self, extra: int) -> None:
        """Append rows to each column."""
        for key, ids in self.columns.items():
            self.columns[key] = longer(ids, extra, -1)


class TaintNumbers:
    """A number for each distinct list of taints; 0 for no taints."""

    def __init__(self) -> None:
        self.sets: list[tuple[Taint, ...]] = [()]
        """By number."""
        self._numbers: dict[tuple[Taint, ...], int] = {(): 0}
        self._next_check = _LEAST_TAINT_SETS

    def of(self, taints: tuple[Taint, ...]) -> int:
        number = self._numbers.get(taints)
        if number is None:
            number = self._numbers[taints] = len(self.sets)
            self.sets.append(taints)
        return number

    def drop_unused(self, ids: Int32Column) -> Int32Column:
        """The numbers by row after most lists are in no row any longer; ``ids`` if few are. Then
        :attr:`sets` is another list object."""
        if len(self.sets) < self._next_check:
            return ids
        used = sorted({0, *np.unique(ids).tolist()})
        if 2 * len(used) <= len(self.sets):
            numbers = np.zeros(len(self.sets), np.int32)
            numbers[used] = np.arange(len(used), dtype=np.int32)
            self.sets = [self.sets[number] for number in used]
            self._numbers = {taints: number for number, taints in enumerate(self.sets)}
            ids = numbers[ids]
        self._next_check = max(_LEAST_TAINT_SETS, 2 * len(self.sets))
        return ids


def ports_collide(wanted: HostPort, taken: HostPort) -> bool:
    """Same protocol and port, and the same address or one of them the wildcard 0.0.0.0."""
    return (
        wanted.port == taken.port
        and wanted.protocol == taken.protocol
        and (wanted.ip == taken.ip or ANY_IP in (wanted.ip, taken.ip))
    )


class PortIndex:
    """For each (protocol, port), the rows where it is in use and on which addresses."""

    def __init__(self) -> None:
        self.taken: dict[tuple[str, int], dict[int, Counter[str]]] = {}
        """By protocol and port, by row: how often it is used on each address."""

    def add(self, row: int, ports: Iterable[HostPort]) -> None:
        for port in ports:
            rows = self.taken.setdefault((port.protocol, port.port), {})
            rows.setdefault(row, Counter())[port.ip] += 1

    def remove(self, row: int, ports: Iterable[HostPort]) -> None:
        for port in ports:
            key = (port.protocol, port.port)
            rows = self.taken[key]
            addresses = rows[row]
            addresses[port.ip] -= 1
            if not addresses[port.ip]:
                del addresses[port.ip]
            if not addresses:
                del rows[row]
            if not rows:
                del self.taken[key]

    def conflicting_rows(self, ports: Sequence[HostPort]) -> list[int]:
        """Rows where any of ``ports`` is not free, in no particular order, possibly repeated."""
        found: list[int] = []
        for wanted in ports:
            rows = self.taken.get((wanted.protocol, wanted.port))
            if not rows:
                continue
            if wanted.ip == ANY_IP:
                found.extend(rows)
            else:
                found.extend(
                    row
                    for row, addresses in rows.items()
                    if wanted.ip in addresses or ANY_IP in addresses
                )
        return found


def shift(column: Int64Column, row: int, difference: int) -> bool:
    """Add to one row. Returns False without a change if the sum is or was saturated.

    A column holds exact sums, saturated at 64 bits. A saturated sum has to be computed again.
    """
    held = column.item(row)
    total = held + difference
    if -MAX_INT64 < held < MAX_INT64 and -MAX_INT64 < total < MAX_INT64:
        column[row] = total
        return True
    return False


def requests_of(pods: Iterable[PodInfo], resource: str) -> int:
    """The sum of the pods' requests of a resource."""
    return saturated(sum(pod.shape.requests.get(resource, 0) for pod in pods))


def scoring_cpu_of(pods: Iterable[PodInfo]) -> int:
    """The sum of the pods' cpu requests with scoring defaults, in thousandths."""
    return saturated(sum(pod.shape.scoring_cpu_milli for pod in pods))


def scoring_memory_of(pods: Iterable[PodInfo]) -> int:
    """The sum of the pods' memory requests with scoring defaults, in bytes."""
    return saturated(sum(pod.shape.scoring_memory_bytes for pod in pods))
