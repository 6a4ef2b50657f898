"""Affinity terms of existing pods that select an incoming pod, added up by topology key.

The sums take one column for each topology key of the nodes, however many terms the pods have.
"""

from __future__ import annotations

from collections.abc import Mapping

from asched.framework.caching import RowCounts
from asched.framework.cluster import Cluster
from asched.framework.pod_info import LabelSet
from asched.framework.pod_queries import TermHolders, TermKind


class ExistingTerms:
    """The terms of one kind that select pods with some labels."""

    __slots__ = ("_cursor", "_labels", "_nodes_version", "_omitted", "by_key", "kind")

    def __init__(self, kind: TermKind, labels: LabelSet) -> None:
        self.by_key: dict[str, RowCounts] = {}
        """By topology key: the pods with such terms, each with the weight of its term, by row."""
        self.kind = kind
        self._labels = labels
        self._cursor = -1
        self._nodes_version = -1
        self._omitted = False
        """Whether there is a term whose topology key no node has."""

    def update(self, cluster: Cluster, namespace_labels: Mapping[str, str]) -> None:
        """``namespace_labels`` are those of the incoming pod's namespace."""
        moves, nodes = cluster.term_moves(self.kind), cluster.nodes
        if self._cursor == moves.cursor and self._nodes_version == nodes.version:
            return
        changes = moves.since(self._cursor)
        if changes is None or (self._omitted and self._nodes_version != nodes.version):
            self.by_key = {}
            self._omitted = False
            changes = [
                (holders, row, number)
                for holders in cluster.term_holders(self.kind)
                if self._selects(holders, namespace_labels)
                for row, number in holders.rows.items()
            ]
        else:
            changes = [each for each in changes if self._selects(each[0], namespace_labels)]
        for by_row in self.by_key.values():
            by_row.resize(nodes.size)
        for holders, row, difference in changes:
            counts = self._counts_of(holders.term.topology_key, cluster)
            if counts is not None:
                counts.move(row, difference * holders.weight)
        self._cursor, self._nodes_version = moves.cursor, nodes.version

    def _selects(self, holders: TermHolders, namespace_labels: Mapping[str, str]) -> bool:
        return holders.term.matches(self._labels, namespace_labels)

    def _counts_of(self, key: str, cluster: Cluster) -> RowCounts | None:
        """None if no node has the label."""
        counts = self.by_key.get(key)
        if counts is None:
            if not cluster.nodes.label(key).present.any():
                self._omitted = True
                return None
            counts = self.by_key[key] = RowCounts()
            counts.resize(cluster.nodes.size)
        return counts
