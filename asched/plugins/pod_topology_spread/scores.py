"""How good nodes are by soft topology spread constraints: the fewer pods near by, the better.

Zones and the like are few, so what a score consists of is the same for all nodes of a zone. Hosts are many,
but few numbers of pods on a host occur. So nodes are told apart by zone and by the number of pods on the
host, and scores worked out for each of those classes.
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
from asched.plugins.pod_topology_spread.constraints import Plan, Spread

_MOST_DOMAINS = 64
"""With more, hardly any two nodes are of one class."""

FloatColumn = NDArray[np.floating[Any]]


def score_of(spread: Spread, held: Int64Column, size: int) -> FloatColumn:
    """What a constraint adds where so many pods are ``held``. Many small domains weigh as much as few
    large ones; skews below ``maxSkew`` weigh little."""
    score: FloatColumn = held * math.log(size + 2)
    score += spread.constraint.max_skew - 1
    return score


class SpreadClasses:
    """The classes of nodes, where every node has every topology key
    (:class:`~asched.framework.scoring.NodeClasses`). Memory, not state."""

    __slots__ = (
        "_cursor",
        "_domains",
        "_latest",
        "_on_host",
        "_parts",
        "_spreads",
        "moved",
        "of_row",
        "sizes",
    )

    def __init__(self, spreads: Sequence[Spread]) -> None:
        self._spreads = spreads
        self.sizes: Sequence[int] = ()
        """How many domains the feasible nodes are in now, by constraint."""
        self._on_host: RowCounts | None = None
        self._domains = 1
        """By how much the class differs for each pod on the host; less than that is by domain."""
        of_row: Int64Column = np.zeros(len(spreads[0].domains.of_row), np.int64)
        for spread in spreads:
            if spread.by_host:
                self._on_host = spread.on_node
            else:
                of_row += spread.domains.of_row * np.int64(self._domains)
                self._domains *= spread.domains.number
        self._cursor = 0
        if self._on_host is not None:
            of_row += self._on_host.column * np.int64(self._domains)
            self._cursor = self._on_host.moves.cursor
        self.of_row = of_row
        """The class by row."""
        self.moved: ChangeLog[int] = ChangeLog()
        """Rows that came to be of another class."""
        # What was asked about last, which mostly is asked about again.
        self._latest: Int64Column | None = None
        self._parts: Sequence[Int64Column] = ()

    @staticmethod
    def suit(spreads: Sequence[Spread]) -> bool:
        """Whether there are few classes of nodes."""
        hosts = sum([spread.by_host for spread in spreads])
        domains = math.prod([s.domains.number for s in spreads if not s.by_host])
        complete = all(spread.missing is None for spread in spreads)
        return complete and hosts <= 1 and domains <= _MOST_DOMAINS

    def follow(self) -> bool:
        """Take note of the pods that came to hosts or left them; False where it is too late for that."""
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
        return all(spread.on_node is on_host for spread in self._spreads if spread.by_host)

    def raw_of(self, classes: Int64Column) -> Int64Column:
        """The scores of nodes of these classes."""
        if classes is not self._latest:
            self._latest, self._parts = classes, self._parts_of(classes)
        total = np.zeros(len(classes), np.float64)
        for spread, part, size in zip(self._spreads, self._parts, self.sizes, strict=True):
            total += score_of(spread, part if spread.by_host else spread.in_domain.sums[part], size)
        return np.rint(total).astype(np.int64)

    def _parts_of(self, classes: Int64Column) -> Sequence[Int64Column]:
        """What classes consist of, by constraint: pods on the host, or a domain."""
        on_host, rest = np.divmod(classes, self._domains)
        parts: list[Int64Column] = []
        for spread in self._spreads:
            part = on_host
            if not spread.by_host:
                rest, part = np.divmod(rest, spread.domains.number)
            parts.append(part)
        return parts


class Evenness:
    """What the soft constraints of like pods say of nodes, followed from attempt to attempt."""

    __slots__ = ("_classes", "_domains", "_plan", "_sizes", "left_out")

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._classes: SpreadClasses | None = None
        self._domains: object = None
        self._sizes: Sequence[int] = ()
        self.left_out: BoolColumn | None = None
        """Which of the feasible nodes lack a topology key, where that matters and there are any."""

    def prepare(self, cluster: Cluster, nodes: Nodes) -> None:
        """Bring everything up to date, for an attempt in which these nodes are feasible."""
        plan = self._plan
        plan.refresh(cluster)
        considered, self.left_out = nodes.size, None
        if plan.incomplete is not None:
            self.left_out = nodes.align(plan.incomplete)
            considered -= int(np.count_nonzero(self.left_out))
        self._sizes = [
            considered if spread.by_host else spread.distinct(nodes, self.left_out)
            for spread in plan.spreads
        ]

    @property
    def classes(self) -> SpreadClasses | None:
        """The classes of nodes; None where they are not to be told by classes."""
        spreads, classes = self._plan.spreads, self._classes
        domains = spreads[0].domains
        if self._domains is not domains:
            # Nodes are others, and all constraints were surveyed anew.
            self._domains, classes = domains, None
        elif classes is None:
            return None
        if classes is None or not classes.follow():
            classes = SpreadClasses(spreads) if SpreadClasses.suit(spreads) else None
        if classes is not None:
            classes.sizes = self._sizes
        self._classes = classes
        return classes

    @property
    def raw(self) -> Int64Column:
        """By row of the whole table."""
        alone = len(self._plan.spreads) == 1
        total = np.zeros(len(self._plan.spreads[0].domains.of_row), np.float64)
        for spread, size in zip(self._plan.spreads, self._sizes, strict=True):
            held = spread.on_node.column if spread.by_host else spread.in_domain.sums
            score = score_of(spread, held, size)
            if alone:
                # Rounded while it is one number a domain.
                np.rint(score, out=score)
            if not spread.by_host:
                # Every row has a place, so there is nothing to clip, but no time goes into looking.
                score = score.take(spread.domains.of_row, mode="clip")
            if spread.missing is not None:
                score[spread.missing] = 0.0
            total += score
        if not alone:
            np.rint(total, out=total)
        raw: Int64Column = total.astype(np.int64)
        if self._plan.incomplete is not None:
            raw[self._plan.incomplete] = 0
        return raw
