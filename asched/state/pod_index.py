"""Indexes of the pods on nodes: matches of queries, holders of affinity terms, mounted volumes.

Each index is computed from all pods when it is first used, and then updated from the table's pod
log. Indexes are caches, not state: dropping one changes no answer.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterable, Mapping
from operator import attrgetter

import numpy as np

from asched.framework.caching import RowCounts
from asched.framework.nodes import Int64Column
from asched.framework.pod_info import PodInfo
from asched.framework.pod_queries import (
    PodQuery,
    PodTerms,
    TermKind,
    terms_of,
)
from asched.framework.term_table import TermTable
from asched.framework.volumes import is_attachable, is_disk
from asched.state.node_table import KEPT_PODS, NodeTable
from asched.state.pod_columns import PodColumns

Change = tuple[int, PodInfo, int]
"""A row, and a pod that was added to it (1) or removed from it (-1)."""

_MAX_COUNTED = 1 << 23
"""Rows of all cached queries together: 64 MiB."""
_ROWS_OF_QUERY = 256
"""A query without its rows takes as much memory as this many rows, also in a small cluster."""
_AT_ONCE = 1024
"""With more changes than this, counting from columns is cheaper."""
_FOLLOWED = KEPT_PODS // 2
_RECENT = 1 << 17
"""Columns that were read within this number of changes follow the log."""
_priority_of = attrgetter("priority")
_shape_of = attrgetter("shape")
_MAX_LABEL_SETS = 1024
"""Cached matches per query: each rollout of a workload has label sets of its own."""


class _Matches:
    """Matching pods by row, for one query."""

    def __init__(self, query: PodQuery) -> None:
        self._query = query
        self._known: dict[int, bool] = {}
        self.by_row = RowCounts()
        self.cursor = -1

    def count_all(self, column: Int64Column) -> None:
        """Replace the counts."""
        self.by_row.begin(0)
        self.by_row.column = column

    def count_changes(self, changes: Iterable[Change]) -> None:
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


class PodIndex:
    """Pods by :class:`PodQuery` and by affinity term."""

    def __init__(self, table: NodeTable) -> None:
        self._table = table
        self.volumes = VolumeIndex(table)
        self._counts: OrderedDict[PodQuery, _Matches] = OrderedDict()
        self._columns = PodColumns()
        self._columns_cursor = -1
        self._columns_used = -1
        """When the columns were last read."""
        self._terms = {kind: TermTable() for kind in TermKind}
        self._has_terms = False
        self._terms_version = 0
        self._terms_cursor = -1
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
            # Many at once after nodes were added.
            most = max(1, _MAX_COUNTED // (_ROWS_OF_QUERY + self._table.size))
            while len(self._counts) > most:
                self._counts.popitem(last=False)
        else:
            self._counts.move_to_end(query)
        size, cursor = self._table.size, self._table.pods_cursor
        by_row = counts.by_row
        if counts.cursor == cursor and len(by_row.column) == size:
            return by_row
        changes = self._table.pods_changed_since(counts.cursor)
        if changes is None or len(changes) > _AT_ONCE:
            counts.count_all(self._pod_columns().count(query, size))
        else:
            by_row.resize(size)
            counts.count_changes(changes)
        counts.cursor = cursor
        return by_row

    def _pod_columns(self) -> PodColumns:
        self._columns_used = self._table.pods_cursor
        return self._follow_columns()

    def _follow_columns(self) -> PodColumns:
        changes: Iterable[Change] | None = self._table.pods_changed_since(self._columns_cursor)
        if changes is None:
            self._columns = PodColumns()
            changes = _all_pods(self._table)
        self._columns.apply(changes)
        self._columns_cursor = self._table.pods_cursor
        return self._columns

    def affinity_terms(self, kind: TermKind) -> TermTable:
        """The terms of that kind of the pods on nodes."""
        self._update_terms()
        return self._terms[kind]

    @property
    def has_affinity_terms(self) -> bool:
        """Whether any pod on a node has a term."""
        if self._terms_cursor != self._table.pods_cursor:
            self._update_terms()
        return self._has_terms

    def follow(self) -> None:
        """Bring the terms up to date, which takes long after many changes of pods with terms, and
        the priorities, if they were needed before."""
        self._update_terms()
        if self._priorities_cursor >= 0:
            self._follow_priorities()

    @property
    def affinity_terms_version(self) -> int:
        """Changes with the terms of pods on nodes, and with the nodes of pods that have terms."""
        if self._terms_cursor != self._table.pods_cursor:
            self._update_terms()
        return self._terms_version

    @property
    def lowest_priority(self) -> int | None:
        """The lowest priority of all pods on nodes; None if there are none."""
        self._follow_priorities()
        return min(self._priorities, default=None)

    def _follow_priorities(self) -> None:
        if self._priorities_cursor == self._table.pods_cursor:
            return
        changes = self._table.pods_changed_since(self._priorities_cursor)
        if changes is None:
            self._priorities = Counter(map(_priority_of, self._table.pods_on_rows()))
            changes = []
        for _, pod, sign in changes:
            priority = pod.priority
            self._priorities[priority] += sign
            if not self._priorities[priority]:
                del self._priorities[priority]
        self._priorities_cursor = self._table.pods_cursor

    def _update_terms(self) -> None:
        table = self._table
        if self._terms_cursor == table.pods_cursor:
            return
        behind = table.pods_cursor - self._columns_cursor
        used = self._columns_cursor >= 0 and table.pods_cursor - self._columns_used < _RECENT
        if used and behind > _FOLLOWED:
            # Following the log is cheaper than starting over when a selector is counted.
            self._follow_columns()
        changes: Iterable[Change] | None = table.pods_changed_since(self._terms_cursor)
        if changes is None:
            self._has_terms = False
            self._terms_version += 1
            for of_kind in self._terms.values():
                of_kind.clear()
            changes = _pods_with_terms(table)
        else:
            # Most pods have no terms.
            changes = [change for change in changes if change[1].shape.names_pods]
        if changes:
            self._move_terms(changes)
            self._terms_version += 1
            self._has_terms = any(self._terms.values())
        self._terms_cursor = table.pods_cursor

    def _move_terms(self, changes: Iterable[Change]) -> None:
        # An updated pod is removed and added, mostly with the same terms.
        net: dict[tuple[int, int], int] = {}
        by_id: dict[int, PodTerms] = {}
        for row, pod, sign in changes:
            terms = terms_of(pod.shape, pod.namespace)
            by_id[id(terms)] = terms
            net[row, id(terms)] = net.get((row, id(terms)), 0) + sign
        for (row, number), difference in net.items():
            if difference:
                for kind, weighted_terms in by_id[number].items():
                    for weighted in weighted_terms:
                        self._terms[kind].move(weighted, row, difference)


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


def _pods_with_terms(table: NodeTable) -> list[Change]:
    # Few clusters have any. Shapes are few: this is three times faster than to ask each pod.
    if not any(shape.names_pods for shape in set(map(_shape_of, table.pods_on_rows()))):
        return []
    return [
        (row, pod, 1)
        for row in np.flatnonzero(table.alive).tolist()
        for pod in table.pods(row)
        if pod.shape.names_pods
    ]


def _all_pods(table: NodeTable) -> Iterable[Change]:
    for row in np.flatnonzero(table.alive).tolist():
        for pod in table.pods(row):
            yield row, pod, 1
