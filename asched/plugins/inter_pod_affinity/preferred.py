"""Scores by preferred affinity and anti-affinity, updated incrementally between attempts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from asched.framework.caching import ChangeLog
from asched.framework.nodes import Int64Column, RowArray
from asched.framework.scoring import of_each_value
from asched.framework.topology import DomainCounts, Domains

_LARGE_SHARE = 8
"""With fewer domains than 1/8 of the rows, sums are computed by domain and spread to the rows."""
_MAX_PATCHES = 32
_FEW_ROWS = 8
"""For domains with more rows, the change log is reset instead of listing each row."""

Scale = Callable[[Int64Column, int, int], Int64Column]
"""``scale(scores, lowest, span)``: normalized scores, each independent of the others."""


class TermWeight(NamedTuple):
    """What each counted pod adds to the score of the nodes in its domain."""

    counts: DomainCounts
    weight: int


class PreferredAffinityScores:
    """The weighted sum of counts by row, and its normalization over all rows.

    A cache that is updated from the counts before each use. The classes of nodes
    (:class:`~asched.framework.scoring.NodeClasses`) are the domains, if there are few, or else the
    sums themselves.
    """

    def __init__(self, terms: Sequence[TermWeight]) -> None:
        self._terms = terms
        self._cursors: list[int] | None = None
        self._raw: Int64Column = np.zeros(0, np.int64)
        self._by_domain: Int64Column | None = None
        self._domains: Domains | None = None
        # Whether the sums by domain have been spread to the rows.
        self._spread = True
        self.moved: ChangeLog[int] = ChangeLog()
        # Rows that changed since the last normalization; None for all.
        self._changed: list[RowArray] | None = None
        self._scaled: Int64Column | None = None
        self._lowest = self._span = 0

    @property
    def total(self) -> int:
        """Number of counted pods, over all terms."""
        return sum([term.counts.total for term in self._terms])

    @property
    def raw(self) -> Int64Column:
        """By row of the table, as of the last :meth:`refresh`; read-only."""
        if not self._spread and self._by_domain is not None:
            of_row = self._terms[0].counts.domains.of_row
            if len(self._raw) != len(of_row):
                self._raw = np.zeros(len(of_row), np.int64)
            np.take(self._by_domain, of_row, out=self._raw, mode="clip")
            self._spread = True
        return self._raw

    def is_raw(self, scores: Int64Column) -> bool:
        """Whether this is the array :attr:`raw`."""
        return self._spread and scores is self._raw

    @property
    def steady(self) -> bool:
        """The sums themselves are the classes."""
        return self._domains is None

    @property
    def of_row(self) -> Int64Column:
        """The class by row."""
        return self._raw if self._domains is None else self._domains.of_row

    def raw_of(self, classes: Int64Column) -> Int64Column:
        """:attr:`raw` of nodes of these classes."""
        return classes if self._by_domain is None else self._by_domain[classes]

    def refresh(self) -> None:
        """Update from the counts."""
        cursors = [term.counts.changes.cursor for term in self._terms]
        if cursors == self._cursors:
            return
        changed = self._changes(cursors)
        if changed is None:
            self._recompute()
            self._changed = None
        else:
            if self._by_domain is not None:
                self._by_domain = self._sums()
            if self._spread:
                self._patch(changed)
            if self._changed is not None:
                self._changed += changed
                if len(self._changed) > _MAX_PATCHES:
                    self._changed = None
        self._cursors = cursors

    def _changes(self, cursors: Sequence[int]) -> list[RowArray] | None:
        size = len(self._terms[0].counts.domains.of_row)
        if self._cursors is None or (self._spread and len(self._raw) != size):
            return None
        found: list[RowArray] = []
        for term, before, now in zip(self._terms, self._cursors, cursors, strict=True):
            if before != now:
                rows = term.counts.changes.since(before)
                if rows is None:
                    return None
                found += rows
        return found if len(found) <= _MAX_PATCHES else None

    def _patch(self, changed: Sequence[RowArray]) -> None:
        single: set[int] = set()
        for rows in changed:
            if len(rows) == 1:
                single.add(rows.item())
                continue
            total = np.zeros(len(rows), np.int64)
            for counts, weight in self._terms:
                total += counts.by_row[rows] * weight
            self._raw[rows] = total
            self._log(rows)
        for row in single:
            self._raw[row] = sum([w.counts.by_row.item(row) * w.weight for w in self._terms])
        self._log([*single])

    def _log(self, rows: RowArray | list[int]) -> None:
        """Log rows with another class. If domains are the classes, changed sums do not matter."""
        if self._domains is not None:
            return
        if len(rows) > _FEW_ROWS:
            self.moved.forget()
            return
        for row in rows:
            self.moved.append(int(row))

    def _sums(self) -> Int64Column:
        """By domain, if all terms have the same domains."""
        sums = np.zeros(self._terms[0].counts.domains.number + 1, np.int64)
        for counts, weight in self._terms:
            sums += counts.sums * weight
        return sums

    def _recompute(self) -> None:
        before = self._domains
        domains = self._domains = self._few_domains()
        if domains is None or domains is not before:
            self.moved.forget()
        if domains is not None:
            self._by_domain, self._spread = self._sums(), False
            return
        self._by_domain, self._spread = None, True
        total = np.zeros(len(self._terms[0].counts.domains.of_row), np.int64)
        for counts, weight in self._terms:
            total += counts.by_row if weight == 1 else counts.by_row * np.int64(weight)
        self._raw = total

    def _few_domains(self) -> Domains | None:
        """The domains of all terms; None if they differ or are many."""
        domains = self._terms[0].counts.domains
        few = domains.number * _LARGE_SHARE <= len(domains.of_row)
        same = all(term.counts.domains is domains for term in self._terms)
        return domains if few and same else None

    def scaled(self, scale: Scale) -> Int64Column | None:
        """:attr:`raw` after ``scale``, which must always be the same function; None if all rows are
        equal. Read-only, and valid until the next :meth:`refresh`."""
        if self._by_domain is not None:
            # The last entry is for rows without a domain.
            domains = self._terms[0].counts.domains
            values = self._by_domain if domains.incomplete else self._by_domain[:-1]
        else:
            values = self.raw
        lowest = values.item(values.argmin())
        span = values.item(values.argmax()) - lowest
        if not span:
            self._changed = None
            return None
        same = self._scaled is not None and (lowest, span) == (self._lowest, self._span)
        size = len(self._terms[0].counts.domains.of_row)
        if self._scaled is None or len(self._scaled) != size:
            self._scaled, same = np.zeros(size, np.int64), False
        if same and self._changed is not None:
            for rows in self._changed:
                self._scaled[rows] = scale(self.raw[rows], lowest, span)
        elif self._by_domain is not None:
            by_domain = scale(self._by_domain, lowest, span)
            of_row = self._terms[0].counts.domains.of_row
            np.take(by_domain, of_row, out=self._scaled, mode="clip")
        else:
            self._scaled = of_each_value(
                lambda some: scale(some, lowest, span), self.raw, lowest, lowest + span
            )
        self._lowest, self._span, self._changed = lowest, span, []
        return self._scaled
