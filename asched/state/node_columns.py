"""Numbers for how full nodes are, so that what is said of one is known of all that are alike.

Which container images are on which nodes.

Labels and taints of nodes, as numbers by row.

Which host ports are taken where.

Sums over pods that stay within 64 bits.

A column holds the exact sum, cut off at what 64 bits hold. It moves with each pod that comes or
goes; only a sum that is or was cut off has to be added up afresh.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from asched.framework.nodes import Int32Column, Int64Column, Vocabulary
from asched.framework.pod_info import ANY_IP, HostPort, PodInfo
from asched.model.node import ContainerImage, Taint
from asched.model.quantity import MAX_INT64, saturated

_MOST_NUMBERS = 1 << 16


class FullnessNumbers:
    """A number for each tuple of amounts, unique for the life of the process. Memory, not state."""

    __slots__ = ("_last", "_numbers")

    def __init__(self) -> None:
        self._numbers: dict[tuple[int, ...], int] = {}
        self._last = 0

    def of(self, amounts: tuple[int, ...]) -> int:
        """The same for the same amounts, unless so many others came between that it was forgotten."""
        number = self._numbers.get(amounts)
        if number is None:
            if len(self._numbers) >= _MOST_NUMBERS:
                self._numbers.clear()
            self._last = number = self._last + 1
            self._numbers[amounts] = number
        return number


class ImageIndex:
    """For each image name, its size on every row that has it.

    Nodes may report different sizes of one image. As in kube-scheduler's cache one report stands
    for all of them: here that of the lowest row.
    """

    __slots__ = ("_columns", "_names", "sizes")

    def __init__(self) -> None:
        self.sizes: dict[str, dict[int, int]] = {}
        """By image, by row: as how many bytes it is reported."""
        self._names: dict[int, tuple[str, ...]] = {}
        self._columns: dict[str, Int64Column] = {}

    def __bool__(self) -> bool:
        """Whether any node has an image."""
        return bool(self.sizes)

    def set_row(self, row: int, images: Sequence[ContainerImage]) -> bool:
        """The images of a row are now these. Returns whether anything changed."""
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
    """For each label that a node ever had, its value on every row."""

    __slots__ = ("columns", "vocabulary")

    def __init__(self) -> None:
        self.columns: dict[str, Int32Column] = {}
        """By label: numbers of the vocabulary, -1 where the label is absent."""
        self.vocabulary = Vocabulary()

    def set_row(
        self, row: int, labels: Mapping[str, str], old: Mapping[str, str], capacity: int
    ) -> None:
        """The labels of a row are now these. ``capacity``: how many rows a new column is for."""
        for key in old:
            if key not in labels:
                self.columns[key][row] = -1
        for key, text in labels.items():
            ids = self.columns.get(key)
            if ids is None:
                ids = self.columns[key] = np.full(capacity, -1, np.int32)
            ids[row] = self.vocabulary.intern(text)

    def grow(self, extra: int) -> None:
        """Each column gets so many more rows."""
        for key, ids in self.columns.items():
            self.columns[key] = np.concatenate([ids, np.full(extra, -1, np.int32)])


class TaintNumbers:
    """A number for each distinct list of taints, for good; 0 for none."""

    __slots__ = ("_numbers", "sets")

    def __init__(self) -> None:
        self.sets: list[tuple[Taint, ...]] = [()]
        """By number."""
        self._numbers: dict[tuple[Taint, ...], int] = {(): 0}

    def of(self, taints: tuple[Taint, ...]) -> int:
        number = self._numbers.get(taints)
        if number is None:
            number = self._numbers[taints] = len(self.sets)
            self.sets.append(taints)
        return number


def ports_collide(wanted: HostPort, taken: HostPort) -> bool:
    """Same protocol and port, and the same address or one of them the wildcard 0.0.0.0."""
    return (
        wanted.port == taken.port
        and wanted.protocol == taken.protocol
        and (wanted.ip == taken.ip or ANY_IP in (wanted.ip, taken.ip))
    )


class PortIndex:
    """For each (protocol, port), the rows where it is taken and on which addresses."""

    __slots__ = ("taken",)

    def __init__(self) -> None:
        self.taken: dict[tuple[str, int], dict[int, Counter[str]]] = {}
        """By protocol and port, by row: how often it is taken on each address."""

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
        """Rows where any of ``ports`` cannot be had, in no particular order, possibly repeated."""
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
    """Add to one row. False, and nothing is done, where the sum is or was cut off."""
    held = column.item(row)
    total = held + difference
    if -MAX_INT64 < held < MAX_INT64 and -MAX_INT64 < total < MAX_INT64:
        column[row] = total
        return True
    return False


def requests_of(pods: Iterable[PodInfo], resource: str) -> int:
    """What the pods request of a resource together."""
    return saturated(sum(pod.shape.requests.get(resource, 0) for pod in pods))


def scoring_cpu_of(pods: Iterable[PodInfo]) -> int:
    """The pods' cpu with the defaults that scoring assumes, in thousandths."""
    return saturated(sum(pod.shape.scoring_cpu_milli for pod in pods))


def scoring_memory_of(pods: Iterable[PodInfo]) -> int:
    """The pods' memory with the defaults that scoring assumes, in bytes."""
    return saturated(sum(pod.shape.scoring_memory_bytes for pod in pods))
