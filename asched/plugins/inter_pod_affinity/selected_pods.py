"""Existing pods that terms of an incoming pod select, added up over the terms."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from asched.framework.caching import RowCounts
from asched.framework.cluster import Cluster
from asched.framework.pod_queries import PodQuery

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
