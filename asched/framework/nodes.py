"""Nodes as plugins see them: all at once in columns, or one at a time.

Columns are numpy arrays with one entry per row, read-only for plugins. A row may be empty (its
node was removed): the columns hold zeros there, the framework never considers it, and a plugin
need not care.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from asched.framework.pod_info import HostPort, PodInfo
from asched.framework.status import Status
from asched.model.node import Node, Taint

Int64Column: TypeAlias = NDArray[np.int64]
"""Amounts, counts and scores by row."""
Int32Column: TypeAlias = NDArray[np.int32]
"""Small numbers by row."""
BoolColumn: TypeAlias = NDArray[np.bool_]
"""A yes or no by row."""
RowArray: TypeAlias = NDArray[np.intp]
"""Numbers of rows."""
TieBreakColumn: TypeAlias = NDArray[np.uint64]

S = TypeVar("S", bound=np.generic)

MAX_NODE_SCORE = 100
"""The best score, once normalised."""
MIN_NODE_SCORE = 0
"""The worst score."""


class Vocabulary:
    """Numbers for words: each distinct text gets the next number, for good."""

    __slots__ = ("_ids", "words")

    def __init__(self) -> None:
        self.words: list[str] = []
        self._ids: dict[str, int] = {}

    def intern(self, word: str) -> int:
        number = self._ids.get(word)
        if number is None:
            number = self._ids[word] = len(self.words)
            self.words.append(word)
        return number

    def find(self, word: str) -> int:
        """The number of a word, or -2, which no row holds, where it was never seen."""
        return self._ids.get(word, -2)


class LabelColumn:
    """One label's value on every node, as numbers: ``ids[row]`` is -1 where the label is absent."""

    __slots__ = ("_vocabulary", "ids")

    def __init__(self, ids: Int32Column, vocabulary: Vocabulary) -> None:
        self.ids = ids
        self._vocabulary = vocabulary

    @property
    def present(self) -> BoolColumn:
        return self.ids >= 0

    def is_in(self, values: Sequence[str]) -> BoolColumn:
        """Where the label's value is one of ``values``."""
        if not values:
            return np.zeros(len(self.ids), np.bool_)
        hit: BoolColumn = self.ids == self._vocabulary.find(values[0])
        for text in values[1:]:
            hit = hit | (self.ids == self._vocabulary.find(text))
        return hit

    def take(self, rows: RowArray) -> LabelColumn:
        return LabelColumn(self.ids[rows], self._vocabulary)

    def values(self) -> list[str | None]:
        """The texts, row by row: for small columns and reports, not for hot paths."""
        words = self._vocabulary.words
        return [words[i] if i >= 0 else None for i in self.ids.tolist()]

    def word(self, number: int) -> str:
        return self._vocabulary.words[number]

    def number(self, word: str) -> int:
        """The number that stands for ``word`` in ``ids``, or -2 where no node ever had it."""
        return self._vocabulary.find(word)


class TaintColumn:
    """The taints of every node: ``ids[row]`` indexes ``sets``, the distinct lists of taints."""

    __slots__ = ("ids", "sets")

    def __init__(self, ids: Int32Column, sets: Sequence[tuple[Taint, ...]]) -> None:
        self.ids = ids
        self.sets = sets


class Nodes(ABC):
    """The nodes of one question, in columns of :attr:`size` entries each."""

    size: int
    """Number of rows."""
    names: Sequence[str]
    """Node name by row; empty text for an empty row."""

    @property
    @abstractmethod
    def alive(self) -> BoolColumn:
        """False for an empty row."""

    @property
    @abstractmethod
    def cluster_size(self) -> int:
        """How many nodes the cluster has, whatever choice of rows this is."""

    @property
    @abstractmethod
    def version(self) -> int:
        """Changes whenever a node of the cluster comes or goes, or its labels or taints change."""

    @abstractmethod
    def align(self, column: NDArray[S]) -> NDArray[S]:
        """A column by row of :attr:`asched.framework.cluster.Cluster.nodes`, for these rows. Not to be written to."""

    @abstractmethod
    def row_of(self, name: str) -> int | None:
        """The row of a node, or None."""

    @abstractmethod
    def allocatable(self, resource: str) -> Int64Column:
        """What nodes offer, in the units of :mod:`asched.model.requests`; zeros if none does."""

    def capacity(self, resource: str) -> Int64Column:
        """As :meth:`allocatable`, for arithmetic with whole columns: one entry may stand for all rows
        where they are alike, as in a cluster with machines of one size."""
        return self.allocatable(resource)

    @abstractmethod
    def requested(self, resource: str) -> Int64Column:
        """What the pods on each node request together, assumed pods included."""

    @property
    @abstractmethod
    def scoring_cpu_milli(self) -> Int64Column:
        """Requested cpu, with the defaults that scoring assumes (``NonZeroRequested``)."""

    @property
    @abstractmethod
    def scoring_memory_bytes(self) -> Int64Column: ...

    @property
    @abstractmethod
    def pod_count(self) -> Int64Column: ...

    @property
    @abstractmethod
    def allowed_pods(self) -> Int64Column:
        """Allocatable ``pods``."""

    @property
    @abstractmethod
    def unschedulable(self) -> BoolColumn:
        """``spec.unschedulable``: cordoned."""

    @abstractmethod
    def label(self, key: str) -> LabelColumn: ...

    @property
    @abstractmethod
    def taints(self) -> TaintColumn: ...

    @abstractmethod
    def port_conflicts(self, ports: Sequence[HostPort]) -> BoolColumn:
        """Where any of ``ports`` is already taken. The address 0.0.0.0 collides with every one."""

    @abstractmethod
    def image_size_bytes(self, image: str) -> tuple[Int64Column, int]:
        """(size where a node has it, else 0; number of nodes in the cluster that have it).

        Nodes may report different sizes of one image; one report stands for all of them."""

    @abstractmethod
    def node(self, row: int) -> Node:
        """The API object of a row."""

    @abstractmethod
    def pods(self, row: int) -> Iterable[PodInfo]:
        """The pods on a row's node, assumed ones included, in the order they arrived."""

    @abstractmethod
    def take(self, rows: RowArray) -> Nodes:
        """The same columns for a choice of rows. Columns are gathered when first asked for."""

    @property
    def modified_rows(self) -> Collection[int]:
        """Rows on which pods are supposed to be, or to be away, otherwise than they are."""
        return ()

    def info(self, row: int) -> NodeInfo:
        """One node, for plugins written for one."""
        return NodeInfo(self, row)

    def infos(self) -> Sequence[NodeInfo]:
        """Every row as :meth:`info` has it, empty ones too, for one plugin to be asked about them
        all. Good until the cluster changes."""
        return [NodeInfo(self, row) for row in range(self.size)]

    # One node's share of a column: for plugins written for one node, which would otherwise spend
    # their time on columns.

    def allocatable_on(self, row: int, resource: str) -> int:
        return int(self.allocatable(resource)[row])

    def requested_on(self, row: int, resource: str) -> int:
        return int(self.requested(resource)[row])


class HypotheticalNodes(Nodes):
    """Nodes of a hypothesis: the columns say what they would, were pods there that are not, or away
    that are there. The cluster itself does not change. Rows of it cannot be taken again."""

    @abstractmethod
    def add_pods(self, placed: Iterable[tuple[int, PodInfo]]) -> None:
        """As if each pod were on the node of its row as well. Raises ValueError if one is."""

    @abstractmethod
    def remove_pods(self, placed: Iterable[tuple[int, PodInfo]]) -> None:
        """As if none of the pods were there. Raises KeyError if one is not."""

    def add_pod(self, row: int, pod: PodInfo) -> None:
        """As if ``pod`` were on the node of ``row`` as well. Raises ValueError if it is."""
        self.add_pods([(row, pod)])

    def remove_pod(self, row: int, pod: PodInfo) -> None:
        """As if ``pod`` were not there. Raises KeyError if it is not."""
        self.remove_pods([(row, pod)])


class NodeInfo:
    """One node, as a per-node plugin sees it. Valid during the call it is passed to."""

    __slots__ = ("_nodes", "_row")

    def __init__(self, nodes: Nodes, row: int) -> None:
        self._nodes = nodes
        self._row = row

    @property
    def name(self) -> str:
        return self._nodes.names[self._row]

    @property
    def node(self) -> Node:
        return self._nodes.node(self._row)

    @property
    def labels(self) -> Mapping[str, str]:
        return self.node.metadata.labels

    @property
    def taints(self) -> tuple[Taint, ...]:
        column = self._nodes.taints
        return column.sets[int(column.ids[self._row])]

    @property
    def unschedulable(self) -> bool:
        return bool(self._nodes.unschedulable[self._row])

    @property
    def pods(self) -> Iterable[PodInfo]:
        return self._nodes.pods(self._row)

    @property
    def pod_count(self) -> int:
        return int(self._nodes.pod_count[self._row])

    @property
    def allowed_pods(self) -> int:
        return int(self._nodes.allowed_pods[self._row])

    def allocatable(self, resource: str) -> int:
        """In the units of :mod:`asched.model.requests`: cpu in thousandths, else whole units."""
        return self._nodes.allocatable_on(self._row, resource)

    def requested(self, resource: str) -> int:
        """What the pods on the node request together, in the same units."""
        return self._nodes.requested_on(self._row, resource)

    @property
    def scoring_cpu_milli(self) -> int:
        """Requested cpu, with the defaults that scoring assumes."""
        return int(self._nodes.scoring_cpu_milli[self._row])

    @property
    def scoring_memory_bytes(self) -> int:
        return int(self._nodes.scoring_memory_bytes[self._row])

    def free(self, resource: str) -> int:
        return self.allocatable(resource) - self.requested(resource)

    def __repr__(self) -> str:
        return f"NodeInfo({self.name})"


class FilterResult:
    """What a filter says of every node: ``codes[row]`` is 0 for yes, else ``statuses[code - 1]``.

    Few distinct statuses stand for thousands of nodes, so no object is made per node.
    """

    __slots__ = ("codes", "statuses")

    def __init__(self, codes: NDArray[np.int16], statuses: Sequence[Status]) -> None:
        self.codes = codes
        self.statuses = statuses

    @classmethod
    def passing(cls, size: int) -> FilterResult:
        """Every node passes."""
        return cls(np.zeros(size, np.int16), ())

    @classmethod
    def reject(cls, where: BoolColumn, status: Status) -> FilterResult:
        """``status`` where the mask is true, a pass elsewhere."""
        return cls(where.astype(np.int16), (status,))

    def status(self, row: int) -> Status | None:
        """The status of one row, None for a pass."""
        code = int(self.codes[row])
        return self.statuses[code - 1] if code else None
