"""InterPodAffinity: pod affinity and anti-affinity, of the incoming pod and of existing pods."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from asched.framework.caching import LruCache, RowCounts
from asched.framework.cluster import Handle
from asched.framework.cycle_state import CycleState, StateKey
from asched.framework.events import ActionType, ClusterEventWithHint, EventResource, QueueingHint
from asched.framework.interface import (
    Arguments,
    EnqueueExtensions,
    FilterAllPlugin,
    PreFilterExtensions,
    PreFilterPlugin,
    PreFilterResult,
    PreScorePlugin,
    Scope,
)
from asched.framework.nodes import MAX_NODE_SCORE, FilterResult, Int64Column, NodeInfo, Nodes
from asched.framework.pod_info import LabelSet, PodInfo, PodShape, label_set_of, shape_of
from asched.framework.pod_queries import (
    AffinityTerm,
    PodQuery,
    PodTerms,
    Selector,
    TermKind,
    WeightedTerm,
    terms_of,
)
from asched.framework.scoring import NodeClasses, ScoresByClass, of_each_value
from asched.framework.status import SUCCESS, Status
from asched.framework.topology import DomainCounts, DomainIndex
from asched.model.meta import Object
from asched.model.node import Node
from asched.model.pod import Pod
from asched.model.selectors import LabelSelector
from asched.model.workloads import Namespace
from asched.plugins.common import PROCEED, SKIP, queue_if
from asched.plugins.inter_pod_affinity.preferred import PreferredAffinityScores, TermWeight
from asched.plugins.inter_pod_affinity.required import (
    AffinityTerms,
    ExistingTermCounts,
    IncomingTermCounts,
    RequiredAffinity,
    ViolationCache,
)

AFFINITY_UNMET = Status.unresolvable("node(s) didn't match pod affinity rules")
ANTI_AFFINITY_UNMET = Status.unschedulable("node(s) didn't match pod anti-affinity rules")
EXISTING_ANTI_AFFINITY_UNMET = Status.unschedulable(
    "node(s) didn't satisfy existing pods anti-affinity rules"
)

# Index: the bits of Rule, minus 1. The first failing rule is reported.
_STATUSES = (
    AFFINITY_UNMET,
    ANTI_AFFINITY_UNMET,
    AFFINITY_UNMET,
    EXISTING_ANTI_AFFINITY_UNMET,
    AFFINITY_UNMET,
    ANTI_AFFINITY_UNMET,
    AFFINITY_UNMET,
)
_EVERYTHING = Selector(LabelSelector())

_NO_TERMS = AffinityTerms()

_MAX_SHAPES = 256
_MAX_LABEL_SETS = 1024
_MAX_COUNTS = 256
_MAX_HARD_WEIGHT = 100


class InterPodAffinityArgs(Arguments, frozen=True):
    """The weight of *required* affinity terms of existing pods in the score, and whether preferred
    terms of existing pods count for a pod without preferred terms."""

    hard_pod_affinity_weight: int = 1
    ignore_preferred_terms_of_existing_pods: bool = False

    def __post_init__(self) -> None:
        weight = self.hard_pod_affinity_weight
        if not 0 <= weight <= _MAX_HARD_WEIGHT:
            raise ValueError(
                f"hardPodAffinityWeight: Invalid value: {weight}: not in valid range [0, 100]"
            )


@dataclass(slots=True)
class AffinityState:
    """The counts for pods of one shape, namespace and labels. Valid while the set of affinity terms
    of existing pods is the same."""

    terms_version: int = -1
    version: tuple[int, int] = (-1, -1)
    """The versions of nodes and pods for which the counts are up to date."""
    terms: AffinityTerms = _NO_TERMS
    existing: Sequence[ExistingTermCounts] = ()
    violations: ViolationCache = field(default_factory=ViolationCache)
    scores: PreferredAffinityScores | None = None
    """None if no term counts."""
    tracked: Sequence[ExistingTermCounts | IncomingTermCounts] = ()
    """All counts that the pod depends on."""


_REQUIRED: StateKey[RequiredAffinity] = StateKey("InterPodAffinity/filter")
_PREFERRED: StateKey[PreferredAffinityScores] = StateKey("InterPodAffinity/score")


class InterPodAffinity(
    PreFilterPlugin,
    FilterAllPlugin,
    PreFilterExtensions,
    PreScorePlugin,
    ScoresByClass,
    EnqueueExtensions,
):
    """Filters by the required terms of the pod and of existing pods; scores by the preferred terms
    of both, and by the required affinity of existing pods."""

    name: ClassVar[str] = "InterPodAffinity"
    api_version: ClassVar[int] = 1
    arguments: ClassVar[type[InterPodAffinityArgs]] = InterPodAffinityArgs
    scope: ClassVar[Scope] = Scope.CLUSTER

    def __init__(self, args: InterPodAffinityArgs, handle: Handle) -> None:
        super().__init__(args, handle)
        # Factors of the weights of existing pods' terms.
        factors = {
            TermKind.REQUIRED_AFFINITY: args.hard_pod_affinity_weight,
            TermKind.PREFERRED_AFFINITY: 1,
            TermKind.PREFERRED_ANTI_AFFINITY: -1,
        }
        self._factors = [(kind, factor) for kind, factor in factors.items() if factor]
        self._needs_own_preferences = args.ignore_preferred_terms_of_existing_pods
        self._domains = DomainIndex()
        self._counts: LruCache[tuple[object, str], DomainCounts] = LruCache(_MAX_COUNTS)
        # The caches below depend on namespace labels.
        self._namespaces_version = -1
        self._terms: LruCache[tuple[PodShape, str], AffinityTerms] = LruCache(_MAX_SHAPES)
        self._states: LruCache[tuple[PodShape, int], AffinityState] = LruCache(_MAX_LABEL_SETS)

    def applies_to(self, pod: PodInfo) -> bool:
        return pod.shape.names_pods or self.handle.cluster.has_term_holders

    def pre_filter(self, state: CycleState, pod: PodInfo, nodes: Nodes) -> PreFilterResult:
        affinity = self._affinity_state(pod.shape, pod.label_set)
        terms = affinity.terms
        existing = [term for term in affinity.existing if term.counts.total]
        if not existing and not terms.affinity and not terms.anti_affinity:
            return SKIP
        namespace_labels = self._namespace_labels(pod.namespace)
        cache = affinity.violations
        state.write(_REQUIRED, RequiredAffinity(pod, namespace_labels, terms, existing, cache))
        return PROCEED

    def filter_all(self, state: CycleState, pod: PodInfo, nodes: Nodes) -> FilterResult:
        violations = state.read(_REQUIRED).violations(nodes)
        if violations is None:
            return FilterResult.passing(nodes.size)
        return FilterResult(violations, _STATUSES)

    def add_pod(self, state: CycleState, pod: PodInfo, added: PodInfo, node: NodeInfo) -> Status:
        state.read(_REQUIRED).update(added, node, 1)
        return SUCCESS

    def remove_pod(
        self, state: CycleState, pod: PodInfo, removed: PodInfo, node: NodeInfo
    ) -> Status:
        state.read(_REQUIRED).update(removed, node, -1)
        return SUCCESS

    def pre_score(self, state: CycleState, pod: PodInfo, nodes: Nodes) -> Status:
        affinity = self._affinity_state(pod.shape, pod.label_set)
        if self._needs_own_preferences and not affinity.terms.preferred:
            return Status.skip()
        scores = affinity.scores
        if scores is None or not scores.total:
            return Status.skip()
        scores.refresh()
        state.write(_PREFERRED, scores)
        return SUCCESS

    def score_all(self, state: CycleState, pod: PodInfo, nodes: Nodes) -> Int64Column:
        return nodes.align(state.read(_PREFERRED).raw)

    def node_classes(self, state: CycleState) -> NodeClasses:
        return state.read(_PREFERRED)

    def normalize(self, state: CycleState, pod: PodInfo, scores: Int64Column) -> Int64Column:
        """Scale to 0 (lowest) to 100 (highest) in floating point, truncated; 0 if all are equal."""
        if not len(scores):
            return scores.copy()
        preferred = state.read(_PREFERRED)
        if preferred.is_raw(scores):
            scaled = preferred.scaled(_scale)
            return np.zeros(len(scores), np.int64) if scaled is None else scaled
        lowest = int(scores.min())
        span = int(scores.max()) - lowest
        if not span:
            return np.zeros(len(scores), np.int64)
        return of_each_value(lambda some: _scale(some, lowest, span), scores, lowest, lowest + span)

    def _affinity_state(self, shape: PodShape, labels: LabelSet) -> AffinityState:
        """The up-to-date counts for a pod."""
        cluster = self.handle.cluster
        self._check_namespaces()
        found = self._states.get((shape, labels.number), AffinityState)
        nodes = cluster.nodes
        version = (nodes.version, cluster.pods_version)
        if found.version == version:
            return found
        found.version = version
        terms_version = cluster.terms_version
        if found.terms_version != terms_version:
            self._rebuild(found, shape, labels)
            found.terms_version = terms_version
        for term in found.tracked:
            if isinstance(term, ExistingTermCounts):
                by_row = term.by_row
            else:
                by_row = cluster.row_counts(term.query)
            term.counts.follow(self._domains.of(nodes, term.topology_key), by_row)
        return found

    def _rebuild(self, found: AffinityState, shape: PodShape, labels: LabelSet) -> None:
        terms = found.terms = self._terms_of(shape, labels.namespace)
        existing = self._existing_terms(TermKind.REQUIRED_ANTI_AFFINITY, labels, 1)
        scored = [
            term
            for kind, factor in self._factors
            for term in self._existing_terms(kind, labels, factor)
        ]
        weights = [TermWeight(term.counts, term.weight) for term in terms.preferred]
        weights += [TermWeight(term.counts, term.weight) for term in scored]
        found.existing = existing
        found.scores = PreferredAffinityScores(weights) if weights else None
        found.tracked = (
            *terms.affinity, *terms.anti_affinity, *terms.preferred, *existing, *scored,
        )  # fmt: skip
        found.violations = ViolationCache()

    def _existing_terms(
        self, kind: TermKind, labels: LabelSet, factor: int
    ) -> list[ExistingTermCounts]:
        """Terms of existing pods that select a pod with these labels."""
        namespace_labels = self._namespace_labels(labels.namespace)
        found = []
        for term, weight, by_row in self.handle.cluster.term_holders(kind):
            if term.matches(labels, namespace_labels):
                key = term.topology_key
                counts = self._counts_of((kind, term, weight), key, by_row)
                found.append(ExistingTermCounts(key, counts, weight * factor, by_row))
        return found

    def _counts_of(self, source: object, key: str, counts: RowCounts) -> DomainCounts:
        """The shared counts of a source by topology key."""
        domains = self._domains.of(self.handle.cluster.nodes, key)
        return self._counts.get((source, key), lambda: DomainCounts(domains, counts))

    def _terms_of(self, shape: PodShape, namespace: str) -> AffinityTerms:
        self._check_namespaces()
        if shape.affinity is None:
            return _NO_TERMS
        return self._terms.get(
            (shape, namespace), lambda: self._resolve(terms_of(shape, namespace))
        )

    def _resolve(self, terms: PodTerms) -> AffinityTerms:
        required = [weighted.term for weighted in terms[TermKind.REQUIRED_AFFINITY]]
        keys = dict.fromkeys(term.topology_key for term in required)
        return AffinityTerms(
            tuple(self._term_counts(required, key, 1) for key in keys),
            self._each(terms[TermKind.REQUIRED_ANTI_AFFINITY], -1),
            self._each(terms[TermKind.PREFERRED_AFFINITY], 1)
            + self._each(terms[TermKind.PREFERRED_ANTI_AFFINITY], -1),
        )

    def _each(self, terms: Sequence[WeightedTerm], sign: int) -> tuple[IncomingTermCounts, ...]:
        return tuple(
            self._term_counts([term], term.topology_key, sign * weight) for term, weight in terms
        )

    def _term_counts(
        self, terms: Sequence[AffinityTerm], key: str, weight: int
    ) -> IncomingTermCounts:
        """The pods that match every term, in namespaces that all terms list or select."""
        namespaces: frozenset[str] | None = None
        for term in terms:
            of_term = self._namespaces_of(term)
            if of_term is not None:
                namespaces = of_term if namespaces is None else namespaces & of_term
        query = PodQuery(tuple(term.selector for term in terms), namespaces)
        counts = self.handle.cluster.row_counts(query)
        return IncomingTermCounts(query, key, self._counts_of(query, key, counts), weight)

    def _namespaces_of(self, term: AffinityTerm) -> frozenset[str] | None:
        """The listed and the selected namespaces; None for all, also unknown ones."""
        selector = term.namespace_selector
        if selector == _EVERYTHING:
            return None
        if selector.selects_nothing:
            return term.namespaces
        known = self.handle.cluster.objects(Namespace).values()
        return term.namespaces | {ns.name for ns in known if selector.matches(ns.labels)}

    def _namespace_labels(self, name: str) -> Mapping[str, str]:
        namespace = self.handle.cluster.objects(Namespace).get(name)
        return {} if namespace is None else namespace.labels

    def _check_namespaces(self) -> None:
        version = self.handle.cluster.objects_version(Namespace)
        if version != self._namespaces_version:
            self._namespaces_version = version
            self._terms.clear()
            self._states.clear()

    def events_to_register(self) -> Sequence[ClusterEventWithHint]:
        pod_changes = ActionType.ADD | ActionType.UPDATE_POD_LABEL | ActionType.DELETE
        node_changes = ActionType.ADD | ActionType.UPDATE_NODE_LABEL
        return (
            ClusterEventWithHint.on(EventResource.POD, pod_changes, self._pod_changed),
            ClusterEventWithHint.on(EventResource.NODE, node_changes, self._node_changed),
        )

    def _pod_changed(self, pod: Pod, old: Object | None, new: Object | None) -> QueueingHint:
        """Queue if an assigned pod starts to match the required affinity, stops to match an
        anti-affinity term, or is deleted and had an anti-affinity term that selects the pod.
        kube-scheduler requires *all* anti-affinity terms to match, and ignores the terms of a
        deleted pod, so pods wait for the next flush."""
        before = old if isinstance(old, Pod) else None
        after = new if isinstance(new, Pod) else None
        if any(other is not None and not other.node_name for other in (before, after)):
            return QueueingHint.SKIP
        terms = self._terms_of(shape_of(pod), pod.namespace)
        for term in terms.affinity[:1]:
            if _matches(term.query, after) and not _matches(term.query, before):
                return QueueingHint.QUEUE
        for term in terms.anti_affinity:
            if _matches(term.query, before) and not _matches(term.query, after):
                return QueueingHint.QUEUE
        return queue_if(before is not None and after is None and self._is_repelled_by(pod, before))

    def _is_repelled_by(self, pod: Pod, other: Pod) -> bool:
        """Whether the other pod's required anti-affinity selects this one."""
        terms = terms_of(shape_of(other), other.namespace)[TermKind.REQUIRED_ANTI_AFFINITY]
        namespace_labels = self._namespace_labels(pod.namespace)
        return any(term.matches(label_set_of(pod), namespace_labels) for term, _ in terms)

    def _node_changed(self, pod: Pod, old: Object | None, new: Object | None) -> QueueingHint:
        """Queue if a new node has the required topology keys, or a node changes its domain of a
        relevant topology key."""
        if not isinstance(new, Node):
            return QueueingHint.SKIP
        terms = self._terms_of(shape_of(pod), pod.namespace)
        if not isinstance(old, Node):
            suits = all(term.topology_key in new.labels for term in terms.affinity)
            return queue_if(suits)
        existing = self._affinity_state(shape_of(pod), label_set_of(pod)).existing
        keys = [term.topology_key for term in (*terms.affinity, *terms.anti_affinity)]
        keys += [term.topology_key for term in existing]
        return queue_if(any(old.labels.get(key) != new.labels.get(key) for key in keys))


def _scale(scores: Int64Column, lowest: int, span: int) -> Int64Column:
    return (MAX_NODE_SCORE * ((scores - lowest) / span)).astype(np.int64)


def _matches(query: PodQuery, pod: Pod | None) -> bool:
    return pod is not None and query.matches(label_set_of(pod))
