"""Topology spread constraints as columns: the domains that count, and the pods in each.

What one constraint needs to know of the cluster is the same for all pods that are alike, and hardly
changes from one attempt to the next, so it is kept and moved on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from asched.framework.caching import LruCache, RowCounts
from asched.framework.cluster import Cluster
from asched.framework.node_matching import labels_match, selector_matches
from asched.framework.nodes import BoolColumn, FilterResult, Int64Column, Nodes
from asched.framework.pod_info import LabelSet, PodShape
from asched.framework.pod_queries import PodQuery, Selector
from asched.framework.topology import DomainCounts, Domains
from asched.model.node import HOSTNAME_LABEL, NO_EXECUTE, NO_SCHEDULE, Taint
from asched.model.pod import Toleration
from asched.model.selectors import LabelSelector, matchable

_MOST_LABEL_SETS = 64
_MOST_PATTERNS = 16
_FEW_DOMAINS = 64

_EVERYTHING = Selector(LabelSelector())
_NOTHING = Selector(None)


class Constraint(NamedTuple):
    """One constraint of a pod, with the pods that it is about."""

    topology_key: str
    max_skew: int
    min_domains: int
    honors_affinity: bool
    honors_taints: bool
    query: PodQuery

    @property
    def counted(self) -> PodQuery:
        """The pods on nodes that count. An empty selector, though every pod matches it, counts
        none, as ``countPodsMatchSelector`` of kube-scheduler does."""
        if self.query.selectors == (_EVERYTHING,):
            return self.query._replace(selectors=(_NOTHING,))
        return self.query


class Spread:
    """Where the pods that one constraint is about are, followed from attempt to attempt."""

    __slots__ = ("_counts", "by_host", "constraint", "counted", "domains", "missing", "on_node")

    def __init__(self, constraint: Constraint) -> None:
        self.constraint = constraint
        self.counted = constraint.counted
        self.by_host = constraint.topology_key == HOSTNAME_LABEL
        self.on_node = RowCounts()
        """The pods that match, by row."""
        self._counts: DomainCounts | None = None

    def survey(self, nodes: Nodes, counted: BoolColumn, *, absent_is_empty: bool) -> None:
        """Number the domains anew; only pods on ``counted`` rows count."""
        label = nodes.label(self.constraint.topology_key)
        missing = ~label.present
        self.missing: BoolColumn | None = missing if (missing & nodes.alive).any() else None
        """Rows without the label; None where every node has it."""
        absent_is_empty = absent_is_empty and self.missing is not None
        self.domains = Domains(label, counted, absent_is_empty=absent_is_empty)

    def follow(self, counts: RowCounts) -> None:
        """Take note of the pods that match now, by row."""
        self.on_node = counts

    @property
    def in_domain(self) -> DomainCounts:
        """The pods that match, by domain, as of the last :meth:`follow`: added up when asked for, as not
        everybody asks."""
        if self._counts is None:
            self._counts = DomainCounts(self.domains, self.on_node)
        else:
            self._counts.follow(self.domains, self.on_node)
        return self._counts

    def most(self, shifts: Mapping[int, int], *, counts_itself: bool) -> int:
        """How many pods a domain may hold at most before the pod comes.

        The skew, pods there less pods in the emptiest domain, must not exceed ``maxSkew``. With
        fewer domains than ``minDomains`` the emptiest one is taken to hold none.
        """
        live = self.domains.live
        emptiest = 0
        if live and live >= self.constraint.min_domains:
            emptiest = int(shifted(self.in_domain.sums, shifts)[:live].min())
        return self.constraint.max_skew + emptiest - counts_itself

    def distinct(self, nodes: Nodes, but: BoolColumn | None) -> int:
        """The number of domains that these nodes are in, leaving some of them out."""
        if nodes.size == nodes.cluster_size and but is None and self.missing is None:
            return self.domains.number
        domains = nodes.align(self.domains.of_row)
        found = np.zeros(self.domains.number + 1, np.bool_)
        found[domains if but is None else domains[~but]] = True
        return int(np.count_nonzero(found))


class Plan:
    """The constraints, hard or soft, of pods that are alike."""

    __slots__ = (
        "_counting",
        "_every_key",
        "_shape",
        "_verdicts",
        "_version",
        "incomplete",
        "spreads",
    )

    def __init__(
        self, constraints: Sequence[Constraint], shape: PodShape, *, every_key: bool
    ) -> None:
        """``every_key``: nodes that lack any of the topology keys are out of all of it."""
        self.spreads = tuple(Spread(constraint) for constraint in constraints)
        self.incomplete: BoolColumn | None = None
        """Rows that lack a topology key, where that matters and there are any."""
        self._every_key = every_key
        self._shape = shape
        self._version = -1
        self._counting: LruCache[int, Sequence[bool]] = LruCache(_MOST_LABEL_SETS)
        self._verdicts: LruCache[tuple[bytes, ...], FilterResult] = LruCache(_MOST_PATTERNS)

    def refresh(self, cluster: Cluster) -> None:
        """Bring everything up to date with the cluster."""
        if cluster.nodes.version != self._version:
            self._survey(cluster.nodes)
            self._version = cluster.nodes.version
        for spread in self.spreads:
            spread.follow(cluster.row_counts(spread.counted))

    def counting(self, labels: LabelSet) -> Sequence[bool]:
        """For each constraint whether a pod with these labels is one of those it is about."""
        return self._counting.get(
            labels.number,
            lambda: [spread.constraint.query.matches(labels) for spread in self.spreads],
        )

    def verdicts_where(
        self, uneven: Sequence[BoolColumn], work_out: Callable[[], FilterResult]
    ) -> FilterResult:
        """What is said of all nodes where these domains are too full, by constraint: the same again and
        again where there are few domains."""
        if sum([len(domains) for domains in uneven]) > _FEW_DOMAINS:
            return work_out()
        return self._verdicts.get(tuple([domains.tobytes() for domains in uneven]), work_out)

    def _survey(self, nodes: Nodes) -> None:
        self._verdicts.clear()
        included = nodes.alive
        self.incomplete = None
        if self._every_key:
            keys = {spread.constraint.topology_key for spread in self.spreads}
            complete = included
            for key in keys:
                complete = complete & nodes.label(key).present
            if (complete != included).any():
                self.incomplete = ~complete
            included = complete
        for spread in self.spreads:
            counted = included
            if spread.constraint.honors_affinity:
                counted = counted & _selected(self._shape, nodes)
            if spread.constraint.honors_taints:
                counted = counted & _tolerated(self._shape.tolerations, nodes)
            spread.survey(nodes, counted, absent_is_empty=not self._every_key)


def shifted(sums: Int64Column, shifts: Mapping[int, int]) -> Int64Column:
    """Sums by domain as they would be with so many pods more in some of them."""
    if shifts:
        sums = sums.copy()
        for domain, shift in shifts.items():
            sums[domain] += shift
    return sums


def _selected(shape: PodShape, nodes: Nodes) -> BoolColumn:
    """Nodes that the pod's node selector and required node affinity admit."""
    selected = labels_match(shape.node_selector or {}, nodes)
    affinity = shape.affinity.node_affinity if shape.affinity is not None else None
    if affinity is not None and affinity.required is not None:
        selected = selected & selector_matches(matchable(affinity.required), nodes)
    return selected


def _tolerated(tolerations: Sequence[Toleration], nodes: Nodes) -> BoolColumn:
    """Nodes whose taints the pod tolerates, but for those that merely advise against."""
    column = nodes.taints
    admits = np.array([_admits(taints, tolerations) for taints in column.sets], np.bool_)
    return admits[column.ids]


def _admits(taints: Iterable[Taint], tolerations: Sequence[Toleration]) -> bool:
    return all(
        any(toleration.tolerates(taint) for toleration in tolerations)
        for taint in taints
        if taint.effect in (NO_SCHEDULE, NO_EXECUTE)
    )
