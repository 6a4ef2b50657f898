"""Nodes as plugins see them: as columns, or one at a time.

Columns are read-only numpy arrays with one entry per row. The row of a removed node is empty: its
columns are zero, and the framework ignores answers for it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from asched.framework.pod_info import HostPort, PodInfo
from asched.framework.status import Status
from asched.model.node import Node, Taint
from asched.model.selectors import parse_int64

Int64Column: TypeAlias = NDArray[np.int64]
"""Amounts, counts and scores by row."""
Int32Column: TypeAlias = NDArray[np.int32]
"""Numbers of labels and taints by row."""
BoolColumn: TypeAlias = NDArray[np.bool_]
"""A condition by row."""
RowArray: TypeAlias = NDArray[np.intp]
"""Row numbers."""
TieBreakColumn: TypeAlias = NDArray[np.uint64]

S = TypeVar("S", bound=np.generic)

MAX_NODE_SCORE = 100
"""The highest normalized score."""
MIN_NODE_SCORE = 0
"""The lowest normalized score."""


class Vocabulary:
    """Assigns consecutive numbers to distinct strings."""

    __slots__ = ("_ids", "_integers", "_is_integer", "words")

    def __init__(self) -> None:
        self.words: list[str] = []
        self._ids: dict[str, int] = {}
        self._integers: Int64Column = np.zeros(0, np.int64)
        self._is_integer: BoolColumn = np.zeros(0, np.bool_)

    def intern(self, word: str) -> int:
        number = self._ids.get(word)
        if number is None:
            number = self._ids[word] = len(self.words)
            self.words.append(word)
        return number

    def find(self, word: str) -> int:
        """The number of a word; -2, which no row contains, for an unknown word."""
        return self._ids.get(word, -2)

    def integers(self) -> tuple[Int64Column, BoolColumn]:
        """The words as 64-bit integers, and which words are integers. Each word is parsed once."""
        known = len(self._integers)
        if known < len(self.words):
            parsed = [parse_int64(word) for word in self.words[known:]]
            more = np.array([number or 0 for number in parsed], np.int64)
            self._integers = np.concatenate([self._integers, more])
            valid = np.array([number is not None for number in parsed], np.bool_)
            self._is_integer = np.concatenate([self._is_integer, valid])
        return self._integers, self._is_integer


class LabelColumn:
    """The values of one label as numbers. ``ids[row]`` is -1 for a node without the label."""

    __slots__ = ("_vocabulary", "ids")

    def __init__(self, ids: Int32Column, vocabulary: Vocabulary) -> None:
        self.ids = ids
        self._vocabulary = vocabulary

    @property
    def present(self) -> BoolColumn:
        return self.ids >= 0

    def is_in(self, values: Sequence[str]) -> BoolColumn:
        """Where the value is one of ``values``."""
        if not values:
            return np.zeros(len(self.ids), np.bool_)
        hit: BoolColumn = self.ids == self._vocabulary.find(values[0])
        for text in values[1:]:
            hit = hit | (self.ids == self._vocabulary.find(text))
        return hit

    def compares(self, bound: int, *, greater: bool) -> BoolColumn:
        """Where the value is an integer above ``bound``, or below it."""
        integers, is_integer = self._vocabulary.integers()
        if not len(integers):
            return np.zeros(len(self.ids), np.bool_)
        numbers = integers[self.ids]
        beyond: BoolColumn = numbers > bound if greater else numbers < bound
        return beyond & is_integer[self.ids] & self.present

    def take(self, rows: RowArray) -> LabelColumn:
        return LabelColumn(self.ids[rows], self._vocabulary)

    def values(self) -> list[str | None]:
        """The values by row. Slow: not for hot paths."""
        words = self._vocabulary.words
        return [words[i] if i >= 0 else None for i in self.ids.tolist()]

    def word(self, number: int) -> str:
        return self._vocabulary.words[number]

    def number(self, word: str) -> int:
        """The number of ``word`` in ``ids``; -2 for an unknown value, which no node has."""
        return self._vocabulary.find(word)


class TaintColumn:
    """The taints of every node. ``ids[row]`` indexes ``sets``, the distinct lists of taints."""

    __slots__ = ("ids", "sets")

    def __init__(self, ids: Int32Column, sets: Sequence[tuple[Taint, ...]]) -> None:
        self.ids = ids
        self.sets = sets


class Nodes(ABC):
    """A selection of nodes, as columns of :attr:`size` entries."""

    size: int
    """Number of rows."""
    names: Sequence[str]
    """Node names by row; an empty string for an empty row."""

    @property
    @abstractmethod
    def alive(self) -> BoolColumn:
        """False for an empty row."""

    @property
    @abstractmethod
    def cluster_size(self) -> int:
        """Number of nodes of the whole cluster."""

    @property
    @abstractmethod
    def version(self) -> int:
        """Changes when a node is added or removed, or its labels or taints change."""

    @abstractmethod
    def align(self, column: NDArray[S]) -> NDArray[S]:
        """These rows of a column of :attr:`asched.framework.cluster.Cluster.nodes`; read-only."""

    @abstractmethod
    def row_of(self, name: str) -> int | None:
        """The row of a node; None if it is not selected."""

    @abstractmethod
    def allocatable(self, resource: str) -> Int64Column:
        """Allocatable amounts, in the units of :mod:`asched.model.requests`."""

    def capacity(self, resource: str) -> Int64Column:
        """:meth:`allocatable` for column arithmetic: one entry if all rows are equal."""
        return self.allocatable(resource)

    @abstractmethod
    def requested(self, resource: str) -> Int64Column:
        """The sum of the requests of the pods on each node, including assumed pods."""

    @property
    @abstractmethod
    def scoring_cpu_milli(self) -> Int64Column:
        """Requested cpu with the defaults of scoring (``NonZeroRequested``)."""

    @property
    @abstractmethod
    def scoring_memory_bytes(self) -> Int64Column:
        """Requested memory with the defaults of scoring (``NonZeroRequested``)."""

    @property
    @abstractmethod
    def pod_count(self) -> Int64Column:
        """Number of pods on each node, including assumed pods."""

    @property
    @abstractmethod
    def allowed_pods(self) -> Int64Column:
        """Allocatable ``pods``."""

    @property
    @abstractmethod
    def unschedulable(self) -> BoolColumn:
        """``spec.unschedulable``: cordoned."""

    @abstractmethod
    def label(self, key: str) -> LabelColumn:
        """The value of one label of each node."""

    def has_label(self, key: str) -> bool:
        """Whether any node has the label."""
        return bool(self.label(key).present.any())

    @property
    @abstractmethod
    def taints(self) -> TaintColumn:
        """The taints of each node."""

    @abstractmethod
    def port_conflicts(self, ports: Sequence[HostPort]) -> BoolColumn:
        """Where any of ``ports`` is in use. The address 0.0.0.0 conflicts with every address."""

    @abstractmethod
    def image_size_bytes(self, image: str) -> tuple[Int64Column, int]:
        """(image size on nodes that have it, else 0; number of nodes in the cluster that have it).

        If nodes report different sizes, one of them is used for all.
        """

    @abstractmethod
    def node(self, row: int) -> Node:
        """The API object of a row."""

    @abstractmethod
    def pods(self, row: int) -> Iterable[PodInfo]:
        """The pods on a node, including assumed pods, in order of arrival."""

    @abstractmethod
    def take(self, rows: RowArray) -> Nodes:
        """The same columns for a selection of rows. Columns are gathered on first use."""

    @property
    def modified_rows(self) -> Collection[int]:
        """Rows on which pods were hypothetically added or removed."""
        return ()

    def info(self, row: int) -> NodeInfo:
        """One node, for plugins that take single nodes."""
        return NodeInfo(self, row)

    def infos(self) -> Sequence[NodeInfo]:
        """:meth:`info` of every row, including empty rows. Valid until the cluster changes."""
        return [NodeInfo(self, row) for row in range(self.size)]

    # Single entries of columns: much faster than gathering a column for one node.

    def allocatable_on(self, row: int, resource: str) -> int:
        """One entry of :meth:`allocatable`."""
        return int(self.allocatable(resource)[row])

    def requested_on(self, row: int, resource: str) -> int:
        """One entry of :meth:`requested`."""
        return int(self.requested(resource)[row])


class HypotheticalNodes(Nodes):
    """Nodes on which pods can be added and removed without changing the cluster.

    :meth:`take` is not supported.
    """

    @abstractmethod
    def add_pods(self, placed: Iterable[tuple[int, PodInfo]]) -> None:
        """Add each pod to the node of its row. Raises ValueError if it is there."""

    @abstractmethod
    def remove_pods(self, placed: Iterable[tuple[int, PodInfo]]) -> None:
        """Remove the pods. Raises KeyError if one is not there."""

    def add_pod(self, row: int, pod: PodInfo) -> None:
        """:meth:`add_pods` for one pod."""
        self.add_pods([(row, pod)])

    def remove_pod(self, row: int, pod: PodInfo) -> None:
        """:meth:`remove_pods` for one pod."""
        self.remove_pods([(row, pod)])


class ReducedNodes(Nodes):
    """Nodes without some of their pods, numbered from 0. Each can be put back and removed
    again. For plugins that read amounts only (:attr:`Scope.RESOURCES`)."""

    @abstractmethod
    def put_back(self, pods: RowArray) -> None:
        """Put pods of these numbers back on their nodes."""

    @abstractmethod
    def remove(self, pods: RowArray) -> None:
        """Remove pods of these numbers again."""

    @property
    @abstractmethod
    def removed(self) -> BoolColumn:
        """By number of the pod, whether it is removed."""

    @property
    @abstractmethod
    def first(self) -> RowArray:
        """By row, the number of its first pod."""


class NodeInfo:
    """One node. Valid only during the call to which it is passed."""

    __slots__ = ("_nodes", "_row")

    def __init__(self, nodes: Nodes, row: int) -> None:
        self._nodes = nodes
        self._row = row

    @property
    def name(self) -> str:
        """The node's name."""
        return self._nodes.names[self._row]

    @property
    def node(self) -> Node:
        """The API object."""
        return self._nodes.node(self._row)

    @property
    def labels(self) -> Mapping[str, str]:
        """``metadata.labels``."""
        return self.node.metadata.labels

    @property
    def taints(self) -> tuple[Taint, ...]:
        """``spec.taints``."""
        column = self._nodes.taints
        return column.sets[int(column.ids[self._row])]

    @property
    def unschedulable(self) -> bool:
        """``spec.unschedulable``: cordoned."""
        return bool(self._nodes.unschedulable[self._row])

    @property
    def pods(self) -> Iterable[PodInfo]:
        """The pods on the node, including assumed pods, in order of arrival."""
        return self._nodes.pods(self._row)

    @property
    def pod_count(self) -> int:
        """Number of :attr:`pods`."""
        return int(self._nodes.pod_count[self._row])

    @property
    def allowed_pods(self) -> int:
        """Allocatable ``pods``."""
        return int(self._nodes.allowed_pods[self._row])

    def allocatable(self, resource: str) -> int:
        """``status.allocatable``: cpu in thousandths, other resources in whole units."""
        return self._nodes.allocatable_on(self._row, resource)

    def requested(self, resource: str) -> int:
        """The sum of the requests of the pods on the node, in the same units."""
        return self._nodes.requested_on(self._row, resource)

    @property
    def scoring_cpu_milli(self) -> int:
        """Requested cpu with the defaults of scoring."""
        return int(self._nodes.scoring_cpu_milli[self._row])

    @property
    def scoring_memory_bytes(self) -> int:
        """Requested memory with the defaults of scoring."""
        return int(self._nodes.scoring_memory_bytes[self._row])

    def free(self, resource: str) -> int:
        """:meth:`allocatable` less :meth:`requested`; negative on an overcommitted node."""
        return self.allocatable(resource) - self.requested(resource)

    def __repr__(self) -> str:
        return f"NodeInfo({self.name})"


class FilterResult:
    """One filter's result by row: 0 in ``codes`` is a pass, other codes index ``statuses`` from 1.

    Few distinct statuses cover thousands of nodes, so no object is created per node.
    """

    __slots__ = ("codes", "statuses")

    def __init__(self, codes: NDArray[np.integer[Any]], statuses: Sequence[Status]) -> None:
        self.codes = codes
        self.statuses = statuses

    @classmethod
    def passing(cls, size: int) -> FilterResult:
        """Every node passes."""
        return cls(np.zeros(size, np.int16), ())

    @classmethod
    def reject(cls, where: BoolColumn, status: Status) -> FilterResult:
        """Reject the rows in ``where`` with ``status``; all others pass."""
        return cls(where.astype(np.int16), (status,))

    def status(self, row: int) -> Status | None:
        """The status of one row; None for a pass."""
        code = int(self.codes[row])
        return self.statuses[code - 1] if code else None
