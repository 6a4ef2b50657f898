"""What pods near each node add to its score, kept from attempt to attempt."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from asched.framework.change_log import ChangeLog
from asched.framework.nodes import Int64Column, RowArray
from asched.framework.scoring import of_each_value
from asched.framework.topology import DomainCounts, Domains

_LARGE_SHARE = 8
"""Below one domain in so many rows, all is worked out by domain and spread to the rows."""
_MOST_PATCHES = 32
_FEW_ROWS = 8
"""Up to so many rows of a domain are told one by one as those that moved."""

Scale = Callable[[Int64Column, int, int], Int64Column]
"""From scores to normalised ones, given the lowest and the highest of all: each by itself."""


class TermWeight(NamedTuple):
    """What each pod counted adds to the score of the nodes of its domain."""

    counts: DomainCounts
    weight: int


class PreferredAffinityScores:
    """The weighted sum of counts by row, and what becomes of it when it is scaled over all rows.

    Memory, not state: it is brought up to what the counts say before each use. Rows are classes of nodes
    (:class:`~asched.framework.node_classes.NodeClasses`) by domain, where there are few, or else by the sum
    itself.
    """

    __slots__ = (
        "_by_domain",
        "_changed",
        "_cursors",
        "_domains",
        "_lowest",
        "_raw",
        "_scaled",
        "_span",
        "_spread",
        "_worth",
        "moved",
    )

    def __init__(self, worth: Sequence[TermWeight]) -> None:
        self._worth = worth
        self._cursors: list[int] | None = None
        self._raw: Int64Column = np.zeros(0, np.int64)
        self._by_domain: Int64Column | None = None
        self._domains: Domains | None = None
        # Whether what is known by domain was spread to the rows.
        self._spread = True
        self.moved: ChangeLog[int] = ChangeLog()
        # Rows that changed since they were scaled; None for all.
        self._changed: list[RowArray] | None = None
        self._scaled: Int64Column | None = None
        self._lowest = self._span = 0

    @property
    def total(self) -> int:
        """Whether anything was counted: 0 where nothing was."""
        return sum([worth.counts.total for worth in self._worth])

    @property
    def raw(self) -> Int64Column:
        """By row of the table, as of the last :meth:`refresh`; to be read only."""
        if not self._spread and self._by_domain is not None:
            of_row = self._worth[0].counts.domains.of_row
            if len(self._raw) != len(of_row):
                self._raw = np.zeros(len(of_row), np.int64)
            np.take(self._by_domain, of_row, out=self._raw, mode="clip")
            self._spread = True
        return self._raw

    def is_raw(self, scores: Int64Column) -> bool:
        """Whether these are :attr:`raw` itself."""
        return self._spread and scores is self._raw

    @property
    def of_row(self) -> Int64Column:
        """The class by row."""
        return self._raw if self._domains is None else self._domains.of_row

    def raw_of(self, classes: Int64Column) -> Int64Column:
        """:attr:`raw` of nodes of these classes."""
        return classes if self._by_domain is None else self._by_domain[classes]

    def refresh(self) -> None:
        """Bring :attr:`raw` up to what the counts say by now."""
        cursors = [worth.counts.changes.cursor for worth in self._worth]
        if cursors == self._cursors:
            return
        changed = self._changes(cursors)
        if changed is None:
            self._add_up()
            self._changed = None
        else:
            if self._by_domain is not None:
                self._by_domain = self._sums()
            if self._spread:
                self._patch(changed)
            if self._changed is not None:
                self._changed += changed
                if len(self._changed) > _MOST_PATCHES:
                    self._changed = None
        self._cursors = cursors

    def _changes(self, cursors: Sequence[int]) -> list[RowArray] | None:
        size = len(self._worth[0].counts.domains.of_row)
        if self._cursors is None or (self._spread and len(self._raw) != size):
            return None
        found: list[RowArray] = []
        for worth, before, now in zip(self._worth, self._cursors, cursors, strict=True):
            if before != now:
                rows = worth.counts.changes.since(before)
                if rows is None:
                    return None
                found += rows
        return found if len(found) <= _MOST_PATCHES else None

    def _patch(self, changed: Sequence[RowArray]) -> None:
        alone: set[int] = set()
        for rows in changed:
            if len(rows) == 1:
                alone.add(rows.item())
                continue
            total = np.zeros(len(rows), np.int64)
            for counts, weight in self._worth:
                total += counts.by_row[rows] * weight
            self._raw[rows] = total
            self._note(rows)
        for row in alone:
            self._raw[row] = sum([w.counts.by_row.item(row) * w.weight for w in self._worth])
        self._note([*alone])

    def _note(self, rows: RowArray | list[int]) -> None:
        """The sums of these rows are others; only without domains are they of another class by that."""
        if self._domains is not None:
            return
        if len(rows) > _FEW_ROWS:
            self.moved.forget()
            return
        for row in rows:
            self.moved.append(int(row))

    def _sums(self) -> Int64Column:
        """By domain, where all counts are by the same."""
        sums = np.zeros(self._worth[0].counts.domains.number + 1, np.int64)
        for counts, weight in self._worth:
            sums += counts.sums * weight
        return sums

    def _add_up(self) -> None:
        before = self._domains
        domains = self._domains = self._few_domains()
        if domains is None or domains is not before:
            self.moved.forget()
        if domains is not None:
            self._by_domain, self._spread = self._sums(), False
            return
        self._by_domain, self._spread = None, True
        total = np.zeros(len(self._worth[0].counts.domains.of_row), np.int64)
        for counts, weight in self._worth:
            total += counts.by_row if weight == 1 else counts.by_row * np.int64(weight)
        self._raw = total

    def _few_domains(self) -> Domains | None:
        """The domains that everything is counted by; None where they differ, or are many."""
        domains = self._worth[0].counts.domains
        few = domains.number * _LARGE_SHARE <= len(domains.of_row)
        alike = all(worth.counts.domains is domains for worth in self._worth)
        return domains if few and alike else None

    def scaled(self, scale: Scale) -> Int64Column | None:
        """:attr:`raw` scaled, always by the same ``scale``; None where all rows are equal. To be read
        only, and good until the next refresh."""
        if self._by_domain is not None:
            # The last place stands for rows without a domain; there need not be any.
            domains = self._worth[0].counts.domains
            values = self._by_domain if domains.incomplete else self._by_domain[:-1]
        else:
            values = self.raw
        lowest = values.item(values.argmin())
        span = values.item(values.argmax()) - lowest
        if not span:
            self._changed = None
            return None
        same = self._scaled is not None and (lowest, span) == (self._lowest, self._span)
        size = len(self._worth[0].counts.domains.of_row)
        if self._scaled is None or len(self._scaled) != size:
            self._scaled, same = np.zeros(size, np.int64), False
        if same and self._changed is not None:
            for rows in self._changed:
                self._scaled[rows] = scale(self.raw[rows], lowest, span)
        elif self._by_domain is not None:
            by_domain = scale(self._by_domain, lowest, span)
            of_row = self._worth[0].counts.domains.of_row
            np.take(by_domain, of_row, out=self._scaled, mode="clip")
        else:
            self._scaled = of_each_value(
                lambda some: scale(some, lowest, span), self.raw, lowest, lowest + span
            )
        self._lowest, self._span, self._changed = lowest, span, []
        return self._scaled
