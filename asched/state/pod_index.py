"""Where pods are, by question: kept up to date from the log of pods that came and went.

Each distinct question has a column of counts by row. It is computed from all pods when first asked
and afterwards moved on by the table's pod log, so it costs as much as what happened since. Like all
caches this is memory, not state: dropping it changes no answer.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterable, Sequence

import numpy as np

from asched.framework.change_log import RowCounts
from asched.framework.nodes import Int64Column
from asched.framework.pod_info import PodInfo
from asched.framework.pod_queries import (
    PodQuery,
    PodTerms,
    TermHolders,
    TermKind,
    WeightedTerm,
    terms_of,
)
from asched.state.node_table import NodeTable

Change = tuple[int, PodInfo, int]
"""A row, and a pod that came to it (1) or left it (-1)."""

_MOST_QUESTIONS = 1024
_MOST_SHAPES = 1024
_MOST_LABEL_SETS = 1024
"""That a question remembers its answer for: each rollout of a workload brings label sets of its own."""


class _Counts:
    """Matching pods by row, for one question."""

    __slots__ = ("_known", "_query", "by_row", "cursor")

    def __init__(self, query: PodQuery) -> None:
        self._query = query
        self._known: dict[int, bool] = {}
        self.by_row = RowCounts()
        self.cursor = -1

    def count_all(self, changes: Iterable[Change]) -> None:
        # A pod that changed leaves and comes again, which mostly makes no difference.
        net: dict[int, int] = {}
        for row, pod, sign in changes:
            if self._counts(pod):
                net[row] = net.get(row, 0) + sign
        for row, difference in net.items():
            if difference:
                self.by_row.move(row, difference)

    def _counts(self, pod: PodInfo) -> bool:
        if pod.pod.terminating and not self._query.count_terminating:
            return False
        labels = pod.label_set
        hit = self._known.get(labels.number)
        if hit is None:
            if len(self._known) >= _MOST_LABEL_SETS:
                self._known.clear()
            hit = self._known[labels.number] = self._query.matches(labels)
        return hit


class _Held:
    """The pods on nodes that have one term, by row and in all."""

    __slots__ = ("by_row", "kind", "term", "total")

    def __init__(self, kind: TermKind, term: WeightedTerm, size: int) -> None:
        self.kind = kind
        self.term = term
        self.by_row = RowCounts(np.zeros(size, np.int64))
        self.total = 0


class _Holders:
    """The terms of one kind that pods on nodes have."""

    __slots__ = ("_answer", "_held", "_kind", "_size", "version")

    def __init__(self, kind: TermKind) -> None:
        self.version = 0
        """Changes whenever the answer is another one."""
        self._kind = kind
        self._held: dict[WeightedTerm, _Held] = {}
        self._size = 0
        self._answer: tuple[TermHolders, ...] | None = None

    def __len__(self) -> int:
        return len(self._held)

    def of(self, term: WeightedTerm) -> _Held:
        """Who has the term: nobody, if it is new."""
        held = self._held.get(term)
        if held is None:
            held = self._held[term] = _Held(self._kind, term, self._size)
            self._changed()
        return held

    def drop(self, term: WeightedTerm) -> None:
        """Nobody has the term any more."""
        del self._held[term]
        self._changed()

    def resize(self, size: int) -> None:
        if size != self._size:
            for held in self._held.values():
                held.by_row.resize(size)
            self._size = size
            self._changed()

    def clear(self) -> None:
        self._held.clear()
        self._changed()

    def _changed(self) -> None:
        self._answer = None
        self.version += 1

    def answer(self) -> tuple[TermHolders, ...]:
        """The same object for as long as the terms are the same."""
        if self._answer is None:
            self._answer = tuple(
                TermHolders(weighted.term, weighted.weight, held.by_row)
                for weighted, held in self._held.items()
            )
        return self._answer


class PodIndex:
    """Answers :class:`PodQuery` and who holds which affinity terms."""

    def __init__(self, table: NodeTable) -> None:
        self._table = table
        self._counts: OrderedDict[PodQuery, _Counts] = OrderedDict()
        self._holders = {kind: _Holders(kind) for kind in TermKind}
        # By the terms of a pod, which like pods have as one object: it is held, so its id is its own.
        self._held_by: dict[int, tuple[PodTerms, tuple[_Held, ...]]] = {}
        self._holders_cursor = -1
        self._holders_size = 0
        self._terms_version = 0
        self._has_holders = False
        self._priorities: Counter[int] = Counter()
        self._priorities_cursor = -1

    def count_pods(self, query: PodQuery) -> Int64Column:
        """How many matching pods each row's node has. Read-only; valid until the next change."""
        return self.row_counts(query).column

    def row_counts(self, query: PodQuery) -> RowCounts:
        """As :meth:`count_pods`, with what moved lately."""
        counts = self._counts.get(query)
        if counts is None:
            counts = self._counts[query] = _Counts(query)
            if len(self._counts) > _MOST_QUESTIONS:
                self._counts.popitem(last=False)
        else:
            self._counts.move_to_end(query)
        size, cursor = self._table.size, self._table.pods_cursor
        by_row = counts.by_row
        if counts.cursor == cursor and len(by_row.column) == size:
            return by_row
        changes = self._table.pods_changed_since(counts.cursor)
        if changes is None:
            by_row.begin(size)
            counts.count_all((row, pod, 1) for row, pod in self._all_pods())
        else:
            by_row.resize(size)
            counts.count_all(changes)
        counts.cursor = cursor
        return by_row

    def term_holders(self, kind: TermKind) -> Sequence[TermHolders]:
        """Every distinct term of that kind which pods on nodes have, in order of appearance."""
        self._follow_holders()
        return self._holders[kind].answer()

    @property
    def terms_version(self) -> int:
        """Changes whenever :meth:`term_holders` of any kind has another answer."""
        self._follow_holders()
        return self._terms_version

    @property
    def has_term_holders(self) -> bool:
        """Whether any pod on a node has any term."""
        if self._holders_cursor != self._table.pods_cursor:
            self._follow_holders()
        return self._has_holders

    @property
    def lowest_priority(self) -> int | None:
        """The lowest priority of all pods on nodes; None where there is none."""
        changes = self._table.pods_changed_since(self._priorities_cursor)
        if changes is None:
            self._priorities.clear()
            changes = [(row, pod, 1) for row, pod in self._all_pods()]
        for _, pod, sign in changes:
            priority = pod.priority
            self._priorities[priority] += sign
            if not self._priorities[priority]:
                del self._priorities[priority]
        self._priorities_cursor = self._table.pods_cursor
        return min(self._priorities, default=None)

    def _follow_holders(self) -> None:
        table = self._table
        if self._holders_cursor == table.pods_cursor and self._holders_size == table.size:
            return
        changes = table.pods_changed_since(self._holders_cursor)
        if changes is None:
            for kind in self._holders.values():
                kind.clear()
            self._held_by.clear()
            self._move_holders((row, pod, 1) for row, pod in self._all_pods())
        else:
            holders = [change for change in changes if change[1].shape.names_pods]
            if holders or self._holders_size != table.size:
                self._move_holders(holders)
        self._holders_cursor = self._table.pods_cursor

    def _move_holders(self, changes: Iterable[Change]) -> None:
        if self._holders_size != self._table.size:
            self._holders_size = self._table.size
            for holders in self._holders.values():
                holders.resize(self._holders_size)
        # A pod that changed leaves and comes again, mostly with the same terms.
        net: dict[tuple[int, int], int] = {}
        by_id: dict[int, PodTerms] = {}
        for row, pod, sign in changes:
            if pod.shape.names_pods:
                terms = terms_of(pod.shape, pod.namespace)
                by_id[id(terms)] = terms
                net[row, id(terms)] = net.get((row, id(terms)), 0) + sign
        for (row, number), difference in net.items():
            if not difference:
                continue
            known = self._held_by.get(number)
            for held in known[1] if known is not None else self._find_held(by_id[number]):
                held.by_row.move(row, difference)
                held.total += difference
                if not held.total:
                    self._holders[held.kind].drop(held.term)
                    self._held_by.clear()
        self._terms_version = sum([holders.version for holders in self._holders.values()])
        self._has_holders = any(self._holders.values())

    def _find_held(self, terms: PodTerms) -> tuple[_Held, ...]:
        held = tuple(self._holders[kind].of(term) for kind in terms for term in terms[kind])
        if len(self._held_by) >= _MOST_SHAPES:
            self._held_by.clear()
        self._held_by[id(terms)] = (terms, held)
        return held

    def _all_pods(self) -> Iterable[tuple[int, PodInfo]]:
        table = self._table
        for row in np.flatnonzero(table.alive).tolist():
            for pod in table.pods(row):
                yield row, pod
