"""Counting by topology domain: how many pods a zone, a rack or a host holds.

A topology key is a node label; nodes with the same value form a domain. Counts are followed rather
than computed: counts by row hardly change between two questions, so only what moved is carried over
to the domains.
"""

from __future__ import annotations

import numpy as np

from asched.framework.caching import ChangeLog, RowCounts
from asched.framework.nodes import BoolColumn, Int64Column, LabelColumn, Nodes, RowArray


class Domains:
    """The domains of one topology key, numbered from 0; first those with counted rows."""

    __slots__ = ("_first", "_order", "counted", "incomplete", "live", "number", "of_row")

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
        self.incomplete = bool((self.of_row == self.number).any())
        """Whether any row has none."""
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
    """Counts by row, summed by domain and moved on as they change."""

    __slots__ = (
        "_by_row",
        "_cursor",
        "_source",
        "_stale",
        "changes",
        "crossings",
        "domains",
        "near",
        "sums",
        "total",
    )

    _AT_ONCE = 32
    """Beyond this many moves, summing anew is cheaper."""
    _LARGE_SHARE = 8
    """Domains with more than one row in this many are spread to their rows all at once."""

    def __init__(self, domains: Domains, counts: RowCounts) -> None:
        self._cursor = 0
        self.crossings = 0
        """Changes whenever :attr:`near` does."""
        self.changes: ChangeLog[RowArray] = ChangeLog()
        """Rows whose :attr:`by_row` changed."""
        self._sum(domains, counts)

    def follow(self, domains: Domains, counts: RowCounts) -> None:
        """Bring the sums up to what the counts say now."""
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
        self.domains, self._source, self._cursor = domains, counts, counts.moves.cursor
        counted = np.where(domains.counted, counts.column, 0)
        # The place after the last stands for rows without a domain and stays zero.
        sums = np.bincount(domains.of_row, weights=counted, minlength=domains.number + 1)
        self.sums: Int64Column = sums.astype(np.int64)
        """By domain, with a zero after the last."""
        self._by_row: Int64Column = self.sums[domains.of_row]
        self._stale = False
        self.near: BoolColumn = self._by_row > 0
        """Where there is any."""
        self.total = int(self.sums.sum())
        self.crossings += 1
        self.changes.forget()

    @property
    def by_row(self) -> Int64Column:
        """The sum of each row's domain; 0 where it has none."""
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
        # A host is a domain of its own, and one place is written to in a tenth of the time.
        places = row if len(rows) == 1 else rows
        if (before > 0) != (before + difference > 0):
            self.near[places] = before <= 0
            self.crossings += 1
        if len(rows) * self._LARGE_SHARE > len(self._by_row):
            self._stale = True
            self.changes.forget()
        else:
            self._by_row[places] += difference
            self.changes.append(rows)


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
