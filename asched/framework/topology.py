"""Pod counts by topology domain, such as a zone or a host.

A topology key is a node label; nodes with the same value form a domain. Counts by row change little
between two queries, so the counts by domain are updated incrementally.
"""

from __future__ import annotations

import numpy as np

from asched.framework.caching import ChangeLog, RowCounts
from asched.framework.nodes import BoolColumn, Int64Column, LabelColumn, Nodes, RowArray


class Domains:
    """The domains of one topology key, numbered from 0. Domains with counted rows come first."""

    __slots__ = ("_first", "_order", "counted", "incomplete", "live", "number", "of_row")

    def __init__(
        self,
        label: LabelColumn,
        counted: BoolColumn | None = None,
        *,
        absent_is_empty: bool = False,
    ) -> None:
        """``counted`` selects the rows with pods that count; None for all rows with the label.

        ``absent_is_empty`` treats rows without the label as rows with an empty value.
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
        # Index -1 (no label) is the last entry.
        live[-1] = others[-1] = False
        others &= ~live
        self.live = int(live.sum())
        """Number of domains with counted rows."""
        self.number = self.live + int(others.sum())
        rank = np.full(highest + 2, self.number, np.intp)
        rank[live] = np.arange(self.live)
        rank[others] = np.arange(self.live, self.number)
        self.of_row: RowArray = rank[ids]
        """The domain by row; :attr:`number` for a row without one."""
        self.incomplete = bool((self.of_row == self.number).any())
        """Whether any row has no domain."""
        self._order: RowArray | None = None
        self._first: RowArray | None = None

    def rows(self, domain: int) -> RowArray:
        if self._order is None or self._first is None:
            self._order = np.argsort(self.of_row, kind="stable")
            sizes = np.bincount(self.of_row, minlength=self.number + 1)
            self._first = np.concatenate([[0], np.cumsum(sizes)])
        return self._order[self._first[domain] : self._first[domain + 1]]


class DomainCounts:
    """Sums of :class:`RowCounts` by domain, updated incrementally."""

    __slots__ = (
        "_by_row",
        "_cursor",
        "_source",
        "_stale",
        "changes",
        "domains",
        "has_match",
        "match_version",
        "sums",
        "total",
    )

    _AT_ONCE = 32
    """With more changes than this, a new sum is cheaper."""
    _LARGE_SHARE = 8
    """For domains with more than 1/8 of all rows, :attr:`by_row` is recomputed as a whole."""

    def __init__(self, domains: Domains, counts: RowCounts) -> None:
        self._cursor = 0
        self.match_version = 0
        """Changes whenever :attr:`has_match` or the domains do."""
        self.changes: ChangeLog[RowArray] = ChangeLog()
        """Rows with a changed :attr:`by_row`."""
        self.has_match: BoolColumn = np.zeros(0, np.bool_)
        """Rows with a positive sum."""
        self.domains = domains
        self._sum(domains, counts)

    def follow(self, domains: Domains, counts: RowCounts) -> None:
        if domains is not self.domains or counts is not self._source:
            self._sum(domains, counts)
            return
        cursor = counts.moves.cursor
        if cursor == self._cursor:
            return
        moves = counts.moves.since(self._cursor)
        if moves is None or len(moves) > self._AT_ONCE:
            self._sum(domains, counts)
            return
        for row, difference in moves:
            self._move(row, difference)
        self._cursor = cursor

    def _sum(self, domains: Domains, counts: RowCounts) -> None:
        same_domains, self.domains = domains is self.domains, domains
        self._source, self._cursor = counts, counts.moves.cursor
        counted = np.where(domains.counted, counts.column, 0)
        # The last entry, for rows without a domain, stays zero.
        sums = np.bincount(domains.of_row, weights=counted, minlength=domains.number + 1)
        self.sums: Int64Column = sums.astype(np.int64)
        """By domain, with an additional zero at the end."""
        self._by_row: Int64Column = self.sums[domains.of_row]
        self._stale = False
        self.total = int(self.sums.sum())
        has_match: BoolColumn = self._by_row > 0
        if not same_domains or not np.array_equal(has_match, self.has_match):
            self.has_match = has_match
            self.match_version += 1
        self.changes.forget()

    @property
    def by_row(self) -> Int64Column:
        """The sum of each row's domain; 0 without a domain."""
        if self._stale:
            np.take(self.sums, self.domains.of_row, out=self._by_row, mode="clip")
            self._stale = False
        return self._by_row

    def _move(self, row: int, difference: int) -> None:
        domains = self.domains
        if not domains.counted.item(row):
            return
        domain: int = domains.of_row.item(row)
        before: int = self.sums.item(domain)
        self.sums[domain] = before + difference
        self.total += difference
        rows = domains.rows(domain)
        # A domain of one row is frequent, and an integer index is ten times faster.
        index = row if len(rows) == 1 else rows
        if (before > 0) != (before + difference > 0):
            self.has_match[index] = before <= 0
            self.match_version += 1
        if len(rows) * self._LARGE_SHARE > len(self._by_row):
            self._stale = True
            self.changes.forget()
        else:
            self._by_row[index] += difference
            self.changes.append(rows)


class DomainIndex:
    """Caches the domains of topology keys until nodes are added, removed or relabelled."""

    __slots__ = ("_by_key", "_version")

    def __init__(self) -> None:
        self._by_key: dict[str, Domains] = {}
        self._version = -1

    def of(self, nodes: Nodes, key: str) -> Domains:
        if nodes.version != self._version:
            self._by_key.clear()
            self._version = nodes.version
        domains = self._by_key.get(key)
        if domains is None:
            domains = self._by_key[key] = Domains(nodes.label(key))
        return domains
