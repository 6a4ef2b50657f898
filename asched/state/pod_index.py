"""Indexes of the pods on nodes: matches of queries, holders of affinity terms, mounted volumes.

Each index is computed from all pods when it is first used, and then updated from the table's pod
log. Indexes are caches, not state: dropping one changes no answer.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from asched.framework.caching import RowCounts
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
from asched.framework.volumes import is_attachable, is_disk
from asched.state.node_table import NodeTable

Change = tuple[int, PodInfo, int]
"""A row, and a pod that was added to it (1) or removed from it (-1)."""

_MAX_QUERIES = 1024
_MAX_SHAPES = 1024
_MAX_LABEL_SETS = 1024
"""Cached matches per query: each rollout of a workload has label sets of its own."""


class _Matches:
    """Matching pods by row, for one query."""

    def __init__(self, query: PodQuery) -> None:
        self._query = query
        self._known: dict[int, bool] = {}
        self.by_row = RowCounts()
        self.cursor = -1

    def count_all(self, changes: Iterable[Change]) -> None:
        # An updated pod is removed and added, which mostly cancels out.
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
            if len(self._known) >= _MAX_LABEL_SETS:
                self._known.clear()
            hit = self._known[labels.number] = self._query.matches(labels)
        return hit


class _Held:
    """The pods on nodes with one term, by row and in total."""

    def __init__(self, kind: TermKind, term: WeightedTerm, size: int) -> None:
        self.kind = kind
        self.term = term
        self.by_row = RowCounts(np.zeros(size, np.int64))
        self.total = 0


class _Holders:
    """The terms of one kind of the pods on nodes."""

    def __init__(self, kind: TermKind) -> None:
        self.version = 0
        """Changes with the set of terms."""
        self._kind = kind
        self._held: dict[WeightedTerm, _Held] = {}
        self._size = 0
        self._answer: tuple[TermHolders, ...] | None = None

    def __len__(self) -> int:
        return len(self._held)

    def of(self, term: WeightedTerm) -> _Held:
        """The holders of the term; none for a new term."""
        held = self._held.get(term)
        if held is None:
            held = self._held[term] = _Held(self._kind, term, self._size)
            self._changed()
        return held

    def drop(self, term: WeightedTerm) -> None:
        """No pod has the term any longer."""
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
        """The same object until the set of terms changes."""
        if self._answer is None:
            self._answer = tuple(
                TermHolders(weighted.term, weighted.weight, held.by_row)
                for weighted, held in self._held.items()
            )
        return self._answer


class PodIndex:
    """Pods by :class:`PodQuery` and by affinity term."""

    def __init__(self, table: NodeTable) -> None:
        self._table = table
        self.volumes = VolumeIndex(table)
        self._counts: OrderedDict[PodQuery, _Matches] = OrderedDict()
        self._holders = {kind: _Holders(kind) for kind in TermKind}
        # By the id of the terms, which similar pods share. Stored with them, so ids stay unique.
        self._held_by: dict[int, tuple[PodTerms, tuple[_Held, ...]]] = {}
        self._holders_cursor = -1
        self._holders_size = 0
        self._terms_version = 0
        self._has_holders = False
        self._priorities: Counter[int] = Counter()
        self._priorities_cursor = -1

    def count_pods(self, query: PodQuery) -> Int64Column:
        """Matching pods by row. Read-only; valid until the next change."""
        return self.row_counts(query).column

    def row_counts(self, query: PodQuery) -> RowCounts:
        """:meth:`count_pods` with a log of recent changes."""
        counts = self._counts.get(query)
        if counts is None:
            counts = self._counts[query] = _Matches(query)
            if len(self._counts) > _MAX_QUERIES:
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
            counts.count_all(_all_pods(self._table))
        else:
            by_row.resize(size)
            counts.count_all(changes)
        counts.cursor = cursor
        return by_row

    def term_holders(self, kind: TermKind) -> Sequence[TermHolders]:
        """Every distinct term of that kind of the pods on nodes, in order of appearance."""
        self._update_holders()
        return self._holders[kind].answer()

    @property
    def terms_version(self) -> int:
        """Changes with the answer of :meth:`term_holders` for any kind."""
        self._update_holders()
        return self._terms_version

    @property
    def has_term_holders(self) -> bool:
        """Whether any pod on a node has a term."""
        if self._holders_cursor != self._table.pods_cursor:
            self._update_holders()
        return self._has_holders

    @property
    def lowest_priority(self) -> int | None:
        """The lowest priority of all pods on nodes; None if there are none."""
        changes = self._table.pods_changed_since(self._priorities_cursor)
        if changes is None:
            self._priorities.clear()
            changes = [*_all_pods(self._table)]
        for _, pod, sign in changes:
            priority = pod.priority
            self._priorities[priority] += sign
            if not self._priorities[priority]:
                del self._priorities[priority]
        self._priorities_cursor = self._table.pods_cursor
        return min(self._priorities, default=None)

    def _update_holders(self) -> None:
        table = self._table
        if self._holders_cursor == table.pods_cursor and self._holders_size == table.size:
            return
        changes = table.pods_changed_since(self._holders_cursor)
        if changes is None:
            for kind in self._holders.values():
                kind.clear()
            self._held_by.clear()
            self._move_holders(_all_pods(table))
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
        # An updated pod is removed and added, mostly with the same terms.
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
            for held in known[1] if known is not None else self._held_for(by_id[number]):
                held.by_row.move(row, difference)
                held.total += difference
                if not held.total:
                    self._holders[held.kind].drop(held.term)
                    self._held_by.clear()
        self._terms_version = sum([holders.version for holders in self._holders.values()])
        self._has_holders = any(self._holders.values())

    def _held_for(self, terms: PodTerms) -> tuple[_Held, ...]:
        held = tuple(self._holders[kind].of(term) for kind in terms for term in terms[kind])
        if len(self._held_by) >= _MAX_SHAPES:
            self._held_by.clear()
        self._held_by[id(terms)] = (terms, held)
        return held


class VolumeIndex:
    """The :class:`asched.framework.cluster.MountedVolumes` of the node table."""

    def __init__(self, table: NodeTable) -> None:
        self._table = table
        self._cursor = -1
        self._claims: Counter[str] = Counter()
        self._disks: dict[int, dict[str, PodInfo]] = {}
        self._attachable: Int64Column = np.zeros(0, np.int64)

    def pods_with_claim(self, key: str) -> int:
        self._update()
        return self._claims[key]

    def pods_with_disks(self) -> Mapping[int, Mapping[str, PodInfo]]:
        self._update()
        return self._disks

    @property
    def attachable(self) -> Int64Column:
        self._update()
        return self._attachable

    def _update(self) -> None:
        table = self._table
        changes: Iterable[Change] | None = table.pods_changed_since(self._cursor)
        if changes is None:
            self._claims.clear()
            self._disks.clear()
            self._attachable = np.zeros(table.size, np.int64)
            changes = _all_pods(table)
        if len(self._attachable) != table.size:
            longer = np.zeros(table.size, np.int64)
            longer[: len(self._attachable)] = self._attachable
            self._attachable = longer
        for row, pod, sign in changes:
            if pod.pod.spec.volumes:
                self._count(row, pod, sign)
        self._cursor = table.pods_cursor

    def _count(self, row: int, pod: PodInfo, sign: int) -> None:
        has_disk = False
        for volume in pod.pod.spec.volumes:
            claim = volume.persistent_volume_claim
            if claim is not None:
                key = f"{pod.namespace}/{claim.claim_name}"
                self._claims[key] += sign
                if not self._claims[key]:
                    del self._claims[key]
            if is_attachable(volume):
                self._attachable[row] += sign
            has_disk = has_disk or is_disk(volume)
        if has_disk and sign > 0:
            self._disks.setdefault(row, {})[pod.uid] = pod
        elif has_disk:
            here = self._disks[row]
            del here[pod.uid]
            if not here:
                del self._disks[row]


def _all_pods(table: NodeTable) -> Iterable[Change]:
    for row in np.flatnonzero(table.alive).tolist():
        for pod in table.pods(row):
            yield row, pod, 1
