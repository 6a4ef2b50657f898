"""Counting by topology domain: how many pods a zone, a rack or a host holds.

A topology key is a node label; nodes with the same value form a domain. Counts are followed rather
than computed: a column of counts by row hardly changes between two questions, so only the rows that
differ are carried over to their domains.
"""

from __future__ import annotations

import numpy as np

from asched.framework.nodes import BoolColumn, Int64Column, LabelColumn, Nodes, RowArray


class Domains:
    """The domains of one topology key, numbered from 0; first those with counted rows."""

    __slots__ = ("_first", "_order", "counted", "live", "number", "of_row")

    def __init__(
        self,
        label: LabelColumn,
        counted: BoolColumn | None = None,
        *,
        absent_is_empty: bool = False,
    ) -> None:
        """``counted``: the rows whose pods count, None for all that have the label.

        ``absent_is_empty`` takes rows without the label for rows with an empty value.
        """
        ids = label.ids
        highest = int(ids.max(initial=-1))
        if absent_is_empty:
            empty = label.number("")
            if not 0 <= empty <= highest:
                empty = highest = highest + 1
            ids = np.where(ids < 0, empty, ids)
        self.counted: BoolColumn = ids >= 0 if counted is None else counted & (ids >= 0)
        live = np.zeros(highest + 2, np.bool_)
        live[ids[self.counted]] = True
        others = np.zeros(highest + 2, np.bool_)
        others[ids] = True
        # The last place is where -1, no label, points to.
        live[-1] = others[-1] = False
        others &= ~live
        self.live = int(live.sum())
        """How many domains have counted rows."""
        self.number = self.live + int(others.sum())
        """How many domains there are."""
        rank = np.full(highest + 2, self.number, np.intp)
        rank[live] = np.arange(self.live)
        rank[others] = np.arange(self.live, self.number)
        self.of_row: RowArray = rank[ids]
        """The domain by row; :attr:`number` where there is none."""
        self._order: RowArray | None = None
        self._first: RowArray | None = None

    def rows(self, domain: int) -> RowArray:
        """The rows of a domain."""
        if self._order is None or self._first is None:
            self._order = np.argsort(self.of_row, kind="stable")
            sizes = np.bincount(self.of_row, minlength=self.number + 1)
            self._first = np.concatenate([[0], np.cumsum(sizes)])
        return self._order[self._first[domain] : self._first[domain + 1]]


class DomainCounts:
    """A column of counts by row, summed by domain and moved on as it changes."""

    __slots__ = ("_seen", "_version", "by_row", "domains", "sums", "total")

    _AT_ONCE = 32
    """Beyond this many changed rows, summing anew is cheaper."""
    _LARGE_SHARE = 8
    """Domains with more than one row in this many are spread to their rows all at once."""

    def __init__(self, domains: Domains, column: Int64Column) -> None:
        self._version = -1
        self._sum(domains, column)

    def follow(self, domains: Domains, column: Int64Column, version: int) -> None:
        """Bring the sums up to what the column says now. ``version`` is that of the pods on nodes
        (``Cluster.pods_version``): with the same, the column is the same."""
        if domains is not self.domains:
            self._sum(domains, column)
            self._version = version
            return
        if version == self._version:
            return
        self._version = version
        changed = (column != self._seen).nonzero()[0]
        if len(changed) > self._AT_ONCE:
            self._sum(domains, column)
        elif len(changed):
            for row in changed.tolist():
                self._move(row, int(column[row] - self._seen[row]))
            self._seen[changed] = column[changed]

    def _sum(self, domains: Domains, column: Int64Column) -> None:
        self.domains = domains
        self._seen = column.copy()
        counted = np.where(domains.counted, column, 0)
        # The place after the last stands for rows without a domain and stays zero.
        sums = np.bincount(domains.of_row, weights=counted, minlength=domains.number + 1)
        self.sums: Int64Column = sums.astype(np.int64)
        """By domain, with a zero after the last."""
        self.by_row: Int64Column = self.sums[domains.of_row]
        """The sum of each row's domain; 0 where it has none."""
        self.total = int(self.sums.sum())

    def _move(self, row: int, difference: int) -> None:
        domains = self.domains
        if not domains.counted[row]:
            return
        domain = int(domains.of_row[row])
        self.sums[domain] += difference
        self.total += difference
        rows = domains.rows(domain)
        if len(rows) * self._LARGE_SHARE > len(self.by_row):
            np.take(self.sums, domains.of_row, out=self.by_row, mode="clip")
        else:
            self.by_row[rows] += difference


class DomainIndex:
    """The domains of every topology key that was asked for, for as long as the nodes stay alike."""

    __slots__ = ("_by_key", "_version")

    def __init__(self) -> None:
        self._by_key: dict[str, Domains] = {}
        self._version = -1

    def of(self, nodes: Nodes, key: str) -> Domains:
        """The domains of a key among all nodes of the cluster."""
        if nodes.version != self._version:
            self._by_key.clear()
            self._version = nodes.version
        domains = self._by_key.get(key)
        if domains is None:
            domains = self._by_key[key] = Domains(nodes.label(key))
        return domains
