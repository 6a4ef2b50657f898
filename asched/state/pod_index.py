"""Where pods are, by question: kept up to date from the log of pods that came and went.

Each distinct question has a column of counts by row. It is computed from all pods when first asked
and afterwards moved on by the table's pod log, so it costs as much as what happened since. Like all
caches this is memory, not state: dropping it changes no answer.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence

import numpy as np

from asched.framework.nodes import Int64Column
from asched.framework.pod_info import PodInfo
from asched.framework.pod_queries import PodQuery, TermHolders, TermKind, WeightedTerm, terms_of
from asched.state.node_table import NodeTable

_MOST_QUESTIONS = 1024


class _Counts:
    """Matching pods by row, for one question."""

    __slots__ = ("_known", "_query", "column", "cursor")

    def __init__(self, query: PodQuery) -> None:
        self._query = query
        self._known: dict[int, bool] = {}
        self.column: Int64Column = np.zeros(0, np.int64)
        self.cursor = -1

    def count(self, row: int, pod: PodInfo, sign: int) -> None:
        if pod.pod.terminating and not self._query.count_terminating:
            return
        labels = pod.label_set
        hit = self._known.get(labels.number)
        if hit is None:
            hit = self._known[labels.number] = self._query.matches(labels)
        if hit:
            self.column[row] += sign


class PodIndex:
    """Answers :class:`PodQuery` and who holds which affinity terms."""

    def __init__(self, table: NodeTable) -> None:
        self._table = table
        self._counts: OrderedDict[PodQuery, _Counts] = OrderedDict()
        self._holders: dict[TermKind, dict[WeightedTerm, Int64Column]] = {k: {} for k in TermKind}
        self._holders_cursor = -1

    def count_pods(self, query: PodQuery) -> Int64Column:
        """How many matching pods each row's node has. Read-only; valid until the next change."""
        counts = self._counts.get(query)
        if counts is None:
            counts = self._counts[query] = _Counts(query)
            if len(self._counts) > _MOST_QUESTIONS:
                self._counts.popitem(last=False)
        else:
            self._counts.move_to_end(query)
        size = self._table.size
        changes = self._table.pods_changed_since(counts.cursor)
        if changes is None:
            counts.column = np.zeros(size, np.int64)
            for row, pod in self._all_pods():
                counts.count(row, pod, 1)
        else:
            counts.column = _fit(counts.column, size)
            for row, pod, sign in changes:
                counts.count(row, pod, sign)
        counts.cursor = self._table.pods_cursor
        return counts.column

    def term_holders(self, kind: TermKind) -> Sequence[TermHolders]:
        """Every distinct term of that kind which pods on nodes have, in order of appearance."""
        size = self._table.size
        changes = self._table.pods_changed_since(self._holders_cursor)
        if changes is None:
            for held in self._holders.values():
                held.clear()
            for row, pod in self._all_pods():
                self._hold(row, pod, 1)
        else:
            for row, pod, sign in changes:
                self._hold(row, pod, sign)
        self._holders_cursor = self._table.pods_cursor
        terms = self._holders[kind]
        answer = []
        for weighted, column in list(terms.items()):
            if not column.any():
                del terms[weighted]
                continue
            fitted = terms[weighted] = _fit(column, size)
            answer.append(TermHolders(weighted.term, weighted.weight, fitted))
        return answer

    def _hold(self, row: int, pod: PodInfo, sign: int) -> None:
        affinity = pod.pod.spec.affinity
        if affinity is None or (
            affinity.pod_affinity is None and affinity.pod_anti_affinity is None
        ):
            return
        for kind, held in self._holders.items():
            for weighted in terms_of(pod.pod, kind):
                column = held.get(weighted)
                if column is None:
                    column = held[weighted] = np.zeros(self._table.size, np.int64)
                elif row >= len(column):
                    column = held[weighted] = _fit(column, self._table.size)
                column[row] += sign

    def _all_pods(self) -> Iterable[tuple[int, PodInfo]]:
        table = self._table
        for row in np.flatnonzero(table.alive).tolist():
            for pod in table.pods(row):
                yield row, pod


def _fit(column: Int64Column, size: int) -> Int64Column:
    """The column, lengthened with zeros if rows were added."""
    if len(column) == size:
        return column
    longer = np.zeros(size, np.int64)
    longer[: len(column)] = column
    return longer
