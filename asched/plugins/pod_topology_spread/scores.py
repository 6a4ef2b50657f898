"""Scores by soft topology spread constraints: the fewer matching pods, the better.

There are few zones, and a score by zone is the same for all nodes of a zone. There are many hosts,
but few different numbers of matching pods on a host. So nodes are classified by zone and by the
number of pods on the host, and scores are computed per class.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from asched.framework.caching import ChangeLog, RowCounts
from asched.framework.cluster import Cluster
from asched.framework.nodes import BoolColumn, Int64Column, Nodes
from asched.plugins.pod_topology_spread.constraints import ConstraintCounts, ConstraintSet

_MAX_DOMAINS = 64
"""With more domains, hardly any two nodes are in the same class."""

FloatColumn = NDArray[np.floating[Any]]


def score_of(counts: ConstraintCounts, held: Int64Column, size: int) -> FloatColumn:
    """What a constraint adds for ``held`` matching pods, with ``size`` domains. Many small domains
    weigh as much as few large ones; skews below ``maxSkew`` weigh little."""
    score: FloatColumn = held * math.log(size + 2)
    score += counts.constraint.max_skew - 1
    return score


class SpreadClasses:
    """The :class:`~asched.framework.scoring.NodeClasses` if every node has every topology key."""

    steady = False

    def __init__(self, counts: Sequence[ConstraintCounts]) -> None:
        self._counts = counts
        self.sizes: Sequence[int] = ()
        """Number of domains of the feasible nodes, by constraint."""
        self._on_host: RowCounts | None = None
        self._domains = 1
        """Number of combinations of domains: the class is ``pods * _domains + combination``."""
        of_row: Int64Column = np.zeros(len(counts[0].domains.of_row), np.int64)
        for each in counts:
            if each.is_hostname:
                self._on_host = each.by_row
            else:
                of_row += each.domains.of_row * np.int64(self._domains)
                self._domains *= each.domains.number
        self._cursor = 0
        if self._on_host is not None:
            of_row += self._on_host.column * np.int64(self._domains)
            self._cursor = self._on_host.moves.cursor
        self.of_row = of_row
        """The class by row."""
        self.moved: ChangeLog[int] = ChangeLog()
        """Rows with another class."""
        # Usually the next call has the same argument.
        self._last_classes: Int64Column | None = None
        self._parts: Sequence[Int64Column] = ()

    @staticmethod
    def are_few(counts: Sequence[ConstraintCounts]) -> bool:
        hosts = sum([each.is_hostname for each in counts])
        domains = math.prod([s.domains.number for s in counts if not s.is_hostname])
        complete = all(each.missing is None for each in counts)
        return complete and hosts <= 1 and domains <= _MAX_DOMAINS

    def update(self) -> bool:
        """Update from the pods on hosts. Returns False if the change log is too short for that."""
        on_host = self._on_host
        if on_host is None or (on_host.moves.cursor == self._cursor and self._is_source(on_host)):
            return True
        moves = on_host.moves.since(self._cursor) if self._is_source(on_host) else None
        if moves is None:
            return False
        for row, difference in moves:
            self.of_row[row] += difference * self._domains
            self.moved.append(row)
        self._cursor = on_host.moves.cursor
        return True

    def _is_source(self, on_host: RowCounts) -> bool:
        return all(each.by_row is on_host for each in self._counts if each.is_hostname)

    def raw_of(self, classes: Int64Column) -> Int64Column:
        if classes is not self._last_classes:
            self._last_classes, self._parts = classes, self._parts_of(classes)
        total = np.zeros(len(classes), np.float64)
        for each, part, size in zip(self._counts, self._parts, self.sizes, strict=True):
            held = part if each.is_hostname else each.by_domain.sums[part]
            total += score_of(each, held, size)
        return np.rint(total).astype(np.int64)

    def _parts_of(self, classes: Int64Column) -> Sequence[Int64Column]:
        """The classes by constraint: pods on the host, or a domain."""
        on_host, rest = np.divmod(classes, self._domains)
        parts: list[Int64Column] = []
        for each in self._counts:
            part = on_host
            if not each.is_hostname:
                rest, part = np.divmod(rest, each.domains.number)
            parts.append(part)
        return parts


class SpreadScores:
    """The scores by the soft constraints of identical pods, updated incrementally."""

    __slots__ = ("_classes", "_constraints", "_domains", "_sizes", "excluded")

    def __init__(self, constraints: ConstraintSet) -> None:
        self._constraints = constraints
        self._classes: SpreadClasses | None = None
        self._domains: object = None
        self._sizes: Sequence[int] = ()
        self.excluded: BoolColumn | None = None
        """Which feasible nodes lack a topology key, if all keys are required; None if there are
        none."""

    def prepare(self, cluster: Cluster, nodes: Nodes) -> None:
        """Update for an attempt with these feasible nodes."""
        constraints = self._constraints
        constraints.refresh(cluster)
        considered, self.excluded = nodes.size, None
        if constraints.missing_keys is not None:
            self.excluded = nodes.align(constraints.missing_keys)
            considered -= int(np.count_nonzero(self.excluded))
        self._sizes = [
            considered if each.is_hostname else each.count_domains(nodes, self.excluded)
            for each in constraints.counts
        ]

    @property
    def classes(self) -> SpreadClasses | None:
        """The classes of nodes; None if there are too many."""
        counts, classes = self._constraints.counts, self._classes
        domains = counts[0].domains
        if self._domains is not domains:
            # Nodes changed, and all counts were rebuilt.
            self._domains, classes = domains, None
        elif classes is None:
            return None
        if classes is None or not classes.update():
            classes = SpreadClasses(counts) if SpreadClasses.are_few(counts) else None
        if classes is not None:
            classes.sizes = self._sizes
        self._classes = classes
        return classes

    @property
    def raw(self) -> Int64Column:
        """By row of the whole table."""
        alone = len(self._constraints.counts) == 1
        total = np.zeros(len(self._constraints.counts[0].domains.of_row), np.float64)
        for each, size in zip(self._constraints.counts, self._sizes, strict=True):
            held = each.by_row.column if each.is_hostname else each.by_domain.sums
            score = score_of(each, held, size)
            if alone:
                # Rounded here, because there are fewer domains than rows.
                np.rint(score, out=score)
            if not each.is_hostname:
                # No index is out of range; "clip" is faster than the check.
                score = score.take(each.domains.of_row, mode="clip")
            if each.missing is not None:
                score[each.missing] = 0.0
            total += score
        if not alone:
            np.rint(total, out=total)
        raw: Int64Column = total.astype(np.int64)
        if self._constraints.missing_keys is not None:
            raw[self._constraints.missing_keys] = 0
        return raw
