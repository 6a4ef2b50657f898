"""What pods near each node add to its score, kept from attempt to attempt."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from asched.framework.nodes import Int64Column, RowArray
from asched.framework.normalize import of_each_value
from asched.framework.topology import DomainCounts

_LARGE_SHARE = 8
"""Below one domain in so many rows, all is worked out by domain and spread to the rows."""
_MOST_PATCHES = 32

Scale = Callable[[Int64Column, int, int], Int64Column]
"""From scores to normalised ones, given the lowest and the highest of all: each by itself."""


class Worth(NamedTuple):
    """What each pod counted adds to the score of the nodes of its domain."""

    counts: DomainCounts
    weight: int


class Tally:
    """The weighted sum of counts by row, and what becomes of it when it is scaled over all rows.

    Memory, not state: it is brought up to what the counts say before each use.
    """

    __slots__ = (
        "_by_domain",
        "_changed",
        "_cursors",
        "_lowest",
        "_scaled",
        "_span",
        "_worth",
        "raw",
    )

    def __init__(self, worth: Sequence[Worth]) -> None:
        self._worth = worth
        self._cursors: list[int] | None = None
        self.raw: Int64Column = np.zeros(0, np.int64)
        """By row of the table; to be read only."""
        self._by_domain: Int64Column | None = None
        # Rows that changed since they were scaled; None for all.
        self._changed: list[RowArray] | None = None
        self._scaled: Int64Column | None = None
        self._lowest = self._span = 0

    @property
    def total(self) -> int:
        """Whether anything was counted: 0 where nothing was."""
        return sum([worth.counts.total for worth in self._worth])

    def refresh(self) -> Int64Column:
        """Bring :attr:`raw` up to what the counts say by now."""
        cursors = [worth.counts.changes.cursor for worth in self._worth]
        if cursors == self._cursors:
            return self.raw
        changed = self._changes(cursors)
        if changed is None:
            self._add_up()
            self._changed = None
        else:
            if self._by_domain is not None:
                self._by_domain = self._sums()
            self._patch(changed)
            if self._changed is not None:
                self._changed += changed
                if len(self._changed) > _MOST_PATCHES:
                    self._changed = None
        self._cursors = cursors
        return self.raw

    def _changes(self, cursors: Sequence[int]) -> list[RowArray] | None:
        if self._cursors is None or len(self.raw) != len(self._worth[0].counts.domains.of_row):
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
            self.raw[rows] = total
        for row in alone:
            self.raw[row] = sum([w.counts.by_row.item(row) * w.weight for w in self._worth])

    def _sums(self) -> Int64Column:
        """By domain, where all counts are by the same."""
        sums = np.zeros(self._worth[0].counts.domains.number + 1, np.int64)
        for counts, weight in self._worth:
            sums += counts.sums * weight
        return sums

    def _add_up(self) -> None:
        domains = self._worth[0].counts.domains
        size = len(domains.of_row)
        self._by_domain = None
        if domains.number * _LARGE_SHARE <= size and all(
            worth.counts.domains is domains for worth in self._worth
        ):
            self._by_domain = self._sums()
            if len(self.raw) != size:
                self.raw = np.zeros(size, np.int64)
            np.take(self._by_domain, domains.of_row, out=self.raw, mode="clip")
            return
        total = np.zeros(size, np.int64)
        for counts, weight in self._worth:
            total += counts.by_row if weight == 1 else counts.by_row * np.int64(weight)
        self.raw = total

    def scaled(self, scale: Scale) -> Int64Column | None:
        """:attr:`raw` scaled, always by the same ``scale``; None where all rows are equal. To be read
        only, and good until the next refresh."""
        values = self.raw
        if self._by_domain is not None:
            # The last place stands for rows without a domain; there need not be any.
            domains = self._worth[0].counts.domains
            values = self._by_domain if domains.incomplete else self._by_domain[:-1]
        lowest = values.item(values.argmin())
        span = values.item(values.argmax()) - lowest
        if not span:
            self._changed = None
            return None
        same = self._scaled is not None and (lowest, span) == (self._lowest, self._span)
        if self._scaled is None or len(self._scaled) != len(self.raw):
            self._scaled, same = np.zeros(len(self.raw), np.int64), False
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
