"""Existing pods that terms of an incoming pod select, and terms of existing pods that select it.

The sums of the latter take one column for each topology key, however many terms the pods have.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from asched.framework.caching import RowCounts
from asched.framework.cluster import Cluster
from asched.framework.nodes import BoolColumn, Nodes
from asched.framework.pod_info import LabelSet
from asched.framework.pod_queries import PodQuery
from asched.framework.term_table import TermTable
from asched.framework.topology import DomainCounts, DomainIndex

_UNKNOWN = -1
"""The cursor before the first count."""


class ExistingTerms:
    """Counts of existing pods with terms of one kind that select an incoming pod, by topology key.
    Incoming pods that the same terms select share them."""

    __slots__ = (
        "_by_row",
        "_cursor",
        "_labels",
        "_namespace_labels",
        "_nodes_version",
        "_omitted",
        "_selected",
        "counts",
        "size_bytes",
        "version",
    )

    def __init__(
        self, labels: LabelSet, namespace_labels: Mapping[str, str], size_bytes: int
    ) -> None:
        self.counts: dict[str, DomainCounts] = {}
        """By topology key: the pods with these terms, each with the weight of its term."""
        self.version = 0
        """Changes with the keys of :attr:`counts`."""
        self.size_bytes = size_bytes
        self._labels = labels
        self._namespace_labels = namespace_labels
        self._selected: BoolColumn | None = None
        """The terms, by slot; None before the first update."""
        self._by_row: dict[str, RowCounts] = {}
        self._cursor = _UNKNOWN
        self._nodes_version = -1
        self._omitted = False
        """Whether there is a term with a topology key that no node has."""

    def update(self, table: TermTable, nodes: Nodes, domains: DomainIndex) -> None:
        """``table`` must have the same generation in each call."""
        if self._cursor != table.moves.cursor or self._nodes_version != nodes.version:
            cursor, self._cursor = self._cursor, _UNKNOWN  # all are counted again if this fails
            self._follow(table, cursor, self._select(table), nodes)
            for key, by_row in self._by_row.items():
                counts = self.counts.get(key)
                if counts is None:
                    self.counts[key] = DomainCounts(domains.of(nodes, key), by_row)
                    self.version += 1
                else:
                    counts.follow(domains.of(nodes, key), by_row)
            self._cursor, self._nodes_version = table.moves.cursor, nodes.version

    def use(self, table: TermTable, nodes: Nodes, keys: Iterable[str]) -> bool:
        """Whether any pod has such a term with one of these topology keys, on any node. Depends on
        the present pods only, unlike the keys of :attr:`counts`."""
        known = [key for key in keys if key in table.topology_keys]
        pods = table.sums(self._select(table), nodes.size, known)
        return any(by_row.any() for by_row in pods.values())

    def _select(self, table: TermTable) -> BoolColumn:
        known = self._selected
        if known is None:
            known = table.selecting(self._labels, self._namespace_labels)
        elif len(known) < table.size:
            more = table.selecting(self._labels, self._namespace_labels, len(known))
            known = np.concatenate([known, more])
        self._selected = known
        return known

    def _follow(self, table: TermTable, cursor: int, selected: BoolColumn, nodes: Nodes) -> None:
        moves = None if cursor == _UNKNOWN else table.moves.since(cursor)
        if moves is None or (self._omitted and self._nodes_version != nodes.version):
            keys = table.keys(selected)
            # Each pod may have terms with 128 keys of its own.
            known = [key for key in keys if nodes.has_label(key)]
            sums = table.sums(selected, nodes.size, known)
            self._by_row = {key: RowCounts(column) for key, column in sums.items()}
            self._omitted = len(known) < len(keys)
            self.counts = {}
            self.version += 1
            return
        if self._nodes_version != nodes.version:
            for by_row in self._by_row.values():
                by_row.resize(nodes.size)
        changes: dict[tuple[str, int], int] = {}
        for slot, row, difference in moves:
            if selected.item(slot):
                term, weight = table.term(slot)
                place = (term.topology_key, row)
                changes[place] = changes.get(place, 0) + difference * weight
        for (key, row), difference in changes.items():
            if difference:
                self._move(key, row, difference, nodes)

    def _move(self, key: str, row: int, difference: int, nodes: Nodes) -> None:
        by_row = self._by_row.get(key)
        if by_row is None:
            if not nodes.has_label(key):
                self._omitted = True
                return
            by_row = self._by_row[key] = RowCounts(np.zeros(nodes.size, np.int64))
        by_row.move(row, difference)


WeightedQuery = tuple[PodQuery, int]


class SelectedPods:
    """The pods that queries select. A pod counts with the weight of each query that selects it.

    The sum takes one column, however many queries there are; the cluster may drop their counts.
    """

    __slots__ = ("_seen", "_sum", "queries")

    def __init__(self, queries: Sequence[WeightedQuery]) -> None:
        """A single query must have the weight 1."""
        self.queries = queries
        self._sum = RowCounts()
        self._seen: list[tuple[int, int]] = []
        """For each query, the number of its counts and the cursor of their log."""

    def by_row(self, cluster: Cluster) -> RowCounts:
        """The current number of pods."""
        if len(self.queries) == 1:
            return cluster.row_counts(self.queries[0][0])
        seen: list[tuple[int, int]] = []
        moves: list[tuple[int, int]] | None = []
        for index, (query, weight) in enumerate(self.queries):
            counts = cluster.row_counts(query)
            seen.append((counts.number, counts.moves.cursor))
            if moves is None or seen[index : index + 1] == self._seen[index : index + 1]:
                continue
            known = bool(self._seen) and self._seen[index][0] == counts.number
            recent = counts.moves.since(self._seen[index][1]) if known else None
            if recent is None:
                moves = None
            else:
                moves += [(row, difference * weight) for row, difference in recent]
        if moves is None:
            self._add_up(cluster)
        else:
            self._sum.resize(cluster.nodes.size)
            for row, difference in moves:
                self._sum.move(row, difference)
        self._seen = seen
        return self._sum

    def _add_up(self, cluster: Cluster) -> None:
        total = np.zeros(cluster.nodes.size, np.int64)
        for query, weight in self.queries:
            total += cluster.row_counts(query).column * np.int64(weight)
        self._sum.begin(0)
        self._sum.column = total
