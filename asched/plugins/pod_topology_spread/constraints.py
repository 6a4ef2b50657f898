"""Topology spread constraints: the eligible domains, and the matching pods in each.

The counts of a constraint are the same for all identical pods and change little between attempts,
so they are kept and updated incrementally.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from typing import NamedTuple

import numpy as np

from asched.framework.caching import LruCache, RowCounts
from asched.framework.cluster import Cluster
from asched.framework.nodes import BoolColumn, FilterResult, Int64Column, Nodes
from asched.framework.pod_info import LabelSet, PodShape
from asched.framework.pod_queries import PodQuery, Selector
from asched.framework.topology import DomainCounts, Domains
from asched.model.node import HOSTNAME_LABEL
from asched.model.pod import Toleration, TopologySpreadConstraint
from asched.model.selectors import LabelSelector, LabelSelectorRequirement
from asched.plugins.shared import repels, required_nodes

_MOST_LABEL_SETS = 64
_MOST_PATTERNS = 16
_FEW_DOMAINS = 64

_EVERYTHING = Selector(LabelSelector())
_NOTHING = Selector(None)


class Constraint(NamedTuple):
    """One constraint of a pod, and the pods that it selects."""

    topology_key: str
    max_skew: int
    min_domains: int
    honors_affinity: bool
    honors_taints: bool
    query: PodQuery

    @property
    def counted(self) -> PodQuery:
        """The existing pods that count. As in ``countPodsMatchSelector`` of kube-scheduler, an
        empty selector matches every pod but counts none."""
        query = self.query
        if query.selectors == (_EVERYTHING,):
            return PodQuery((_NOTHING,), query.namespaces, query.count_terminating)
        return query


class ConstraintCounts:
    """The domains of one constraint, and the number of matching pods in each."""

    __slots__ = ("_counts", "by_row", "constraint", "counted", "domains", "is_hostname", "missing")

    def __init__(self, constraint: Constraint) -> None:
        self.constraint = constraint
        self.counted = constraint.counted
        self.is_hostname = constraint.topology_key == HOSTNAME_LABEL
        self.by_row = RowCounts()
        """Matching pods by row."""
        self._counts: DomainCounts | None = None

    def rebuild(self, domains: Domains, missing: BoolColumn | None) -> None:
        """Take other domains. ``missing``: rows without the label; None if every node has it."""
        self.domains = domains
        self.missing = missing

    @property
    def by_domain(self) -> DomainCounts:
        """Matching pods by domain; summed on access, because not all callers need it."""
        if self._counts is None:
            self._counts = DomainCounts(self.domains, self.by_row)
        else:
            self._counts.follow(self.domains, self.by_row)
        return self._counts

    def max_count(self, adjustments: Mapping[int, int], *, self_match: bool) -> int:
        """How many matching pods a domain may have at most before the pod is added. The skew (pods
        in the domain minus pods in the domain with the fewest) must not exceed ``maxSkew``. With
        fewer domains than ``minDomains``, the minimum is 0."""
        live = self.domains.live
        minimum = 0
        if live and live >= self.constraint.min_domains:
            minimum = int(adjusted(self.by_domain.sums, adjustments)[:live].min())
        return self.constraint.max_skew + minimum - self_match

    def count_domains(self, nodes: Nodes, excluded: BoolColumn | None) -> int:
        """The number of domains of these nodes without the excluded ones."""
        if nodes.size == nodes.cluster_size and excluded is None and self.missing is None:
            return self.domains.number
        domains = nodes.align(self.domains.of_row)
        found = np.zeros(self.domains.number + 1, np.bool_)
        found[domains if excluded is None else domains[~excluded]] = True
        return int(np.count_nonzero(found))


class ConstraintSet:
    """The hard or the soft constraints of identical pods."""

    def __init__(
        self, constraints: Sequence[Constraint], shape: PodShape, *, require_all_keys: bool
    ) -> None:
        """``require_all_keys``: exclude nodes that lack any of the topology keys."""
        self.counts = tuple(ConstraintCounts(constraint) for constraint in constraints)
        self.missing_keys: BoolColumn | None = None
        """Rows that lack a topology key, if all keys are required; None if there are none."""
        self._require_all_keys = require_all_keys
        self._shape = shape
        self._version = -1
        self._self_matches: LruCache[int, Sequence[bool]] = LruCache(_MOST_LABEL_SETS)
        self._results: LruCache[tuple[bytes, ...], FilterResult] = LruCache(_MOST_PATTERNS)

    def refresh(self, cluster: Cluster) -> None:
        if cluster.nodes.version != self._version:
            self._rebuild(cluster.nodes)
            self._version = cluster.nodes.version
        for each in self.counts:
            each.by_row = cluster.row_counts(each.counted)

    def self_matches(self, labels: LabelSet) -> Sequence[bool]:
        """For each constraint, whether it selects a pod with these labels."""
        return self._self_matches.get(
            labels.number,
            lambda: [each.constraint.query.matches(labels) for each in self.counts],
        )

    def cached_result(
        self, exceeding: Sequence[BoolColumn], compute: Callable[[], FilterResult]
    ) -> FilterResult:
        """The result for all nodes, given the domains that exceed each constraint. With few
        domains, the same combinations recur."""
        if sum([len(domains) for domains in exceeding]) > _FEW_DOMAINS:
            return compute()
        return self._results.get(tuple([domains.tobytes() for domains in exceeding]), compute)

    def _rebuild(self, nodes: Nodes) -> None:
        self._results.clear()
        included = nodes.alive
        self.missing_keys = None
        if self._require_all_keys:
            keys = {each.constraint.topology_key for each in self.counts}
            complete = included
            for key in keys:
                complete = complete & nodes.label(key).present
            if (complete != included).any():
                self.missing_keys = ~complete
            included = complete
        find = cache(partial(self._domains, nodes, included))
        for each in self.counts:
            of = each.constraint
            each.rebuild(*find(of.topology_key, of.honors_affinity, of.honors_taints))

    def _domains(
        self,
        nodes: Nodes,
        included: BoolColumn,
        topology_key: str,
        honors_affinity: bool,
        honors_taints: bool,
    ) -> tuple[Domains, BoolColumn | None]:
        """Domains in which the pods on eligible rows count, and the rows without the label."""
        counted = included
        if honors_affinity:
            counted = counted & required_nodes(self._shape).rows(nodes)
        if honors_taints:
            counted = counted & _tolerated(self._shape.tolerations, nodes)
        label = nodes.label(topology_key)
        missing = ~label.present
        if not (missing & nodes.alive).any():
            return Domains(label, counted), None
        return Domains(label, counted, absent_is_empty=not self._require_all_keys), missing


def missing_match_labels(
    constraint: TopologySpreadConstraint, labels: Mapping[str, str]
) -> tuple[LabelSelectorRequirement, ...]:
    """Requirements for ``matchLabelKeys`` that the API server has not merged into the selector. It
    merges them since Kubernetes 1.34."""
    selector = constraint.label_selector
    if selector is None or not constraint.match_label_keys:
        return ()
    found = [
        LabelSelectorRequirement(key=key, operator="In", values=(labels[key],))
        for key in constraint.match_label_keys
        if key in labels and selector.match_labels.get(key) != labels[key]
    ]
    return tuple(each for each in found if each not in selector.match_expressions)


def adjusted(sums: Int64Column, adjustments: Mapping[int, int]) -> Int64Column:
    """Sums by domain after adjustments of some of them."""
    if adjustments:
        sums = sums.copy()
        for domain, change in adjustments.items():
            sums[domain] += change
    return sums


def _tolerated(tolerations: Sequence[Toleration], nodes: Nodes) -> BoolColumn:
    column = nodes.taints
    admits = np.array([not repels(taints, tolerations) for taints in column.sets], np.bool_)
    return admits[column.ids]
