"""InterPodAffinity: pod affinity and anti-affinity, of the incoming pod and of existing pods."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import ClassVar, NamedTuple

import numpy as np

from asched.framework.caching import LruCache
from asched.framework.cluster import Handle
from asched.framework.cycle_state import CycleState, StateKey
from asched.framework.events import ActionType, ClusterEventWithHint, EventResource, QueueingHint
from asched.framework.interface import (
    Arguments,
    EnqueueExtensions,
    FilterAllPlugin,
    PreFilterPlugin,
    PreFilterResult,
    PreScorePlugin,
    Scope,
    UnavoidableRejections,
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
from asched.framework.query_index import AwaitedIndex, AwaitedQueries, RejectedPods
from asched.framework.scoring import CommonAnswer, NodeClasses, ScoresByClass, of_each_value
from asched.framework.status import SUCCESS, Status
from asched.framework.term_table import TermTable
from asched.framework.topology import DomainCounts, DomainIndex
from asched.model.meta import Object
from asched.model.node import Node
from asched.model.pod import Pod
from asched.model.selectors import LabelSelector
from asched.model.workloads import Namespace
from asched.plugins.inter_pod_affinity.existing import ExistingTerms, SelectedPods, WeightedQuery
from asched.plugins.inter_pod_affinity.preferred import PreferredAffinityScores, TermWeight
from asched.plugins.inter_pod_affinity.required import (
    AffinityQueries,
    AffinityTerms,
    ExistingTermCounts,
    IncomingTerm,
    IncomingTermCounts,
    RequiredAffinity,
    ViolationBits,
    ViolationCache,
)
from asched.plugins.shared import PROCEED, SKIP, queue_if

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
_NO_QUERIES = AffinityQueries()

_MAX_SHAPES = 1024
_CACHE_BYTES = 1 << 26
_ROW_BYTES = 25
"""Size of the columns of a :class:`DomainCounts`, for each row."""
_STATE_BYTES = 1 << 16
"""An estimate for the objects of one entry: it limits the number of entries in small clusters."""
_MAX_SCORES = 64
_MAX_HARD_WEIGHT = 100
_MAX_HINT_TERMS = 8


class InterPodAffinityArgs(Arguments, frozen=True):
    """The weight of *required* affinity terms of existing pods in the score, and whether preferred
    terms of existing pods count for a pod without preferred terms."""

    hard_pod_affinity_weight: int = 1
    """Weight of required affinity terms of existing pods in the score: 0 to 100."""
    ignore_preferred_terms_of_existing_pods: bool = False
    """Do not count preferred terms of existing pods for a pod without preferred terms."""

    def __post_init__(self) -> None:
        weight = self.hard_pod_affinity_weight
        if not 0 <= weight <= _MAX_HARD_WEIGHT:
            raise ValueError(
                f"hardPodAffinityWeight: Invalid value: {weight}: not in valid range [0, 100]"
            )


_Sums = tuple[ExistingTerms | None, tuple[int, int]]
"""With the generation and size of the table that they were looked up for."""
_NO_SUMS: _Sums = (None, (-1, -1))
_NO_NUMBER = -1


class AffinityState:
    """The counts for pods of one shape, namespace and labels."""

    __slots__ = (
        "counts_for_score",
        "existing",
        "existing_version",
        "own_terms",
        "rejections",
        "scored_version",
        "scores",
        "size_bytes",
        "sums",
        "sums_version",
        "terms",
        "version",
        "violations",
    )

    def __init__(self, terms: AffinityTerms, size_bytes: int) -> None:
        self.size_bytes = size_bytes
        self.version = (-1, -1)
        """The versions of nodes and pods for which the counts are up to date."""
        self.scored_version = (-1, -1)
        """The versions for which :attr:`scores` are up to date."""
        self.counts_for_score = False
        """Whether any pod counts in :attr:`scores`."""
        self.existing_version = (-1, -1)
        """The versions of nodes and terms for which :attr:`sums` are up to date."""
        self.terms = terms
        self.own_terms = terms.all
        self.sums: dict[TermKind, _Sums] = {}
        """The terms of existing pods that select the pod."""
        self.sums_version: list[object] | None = None
        """Changes with the counts that :attr:`sums` hold."""
        self.existing: Sequence[ExistingTermCounts] = ()
        self.violations = ViolationCache()
        self.rejections: tuple[ViolationBits | None, FilterResult | None] = (None, None)
        """The latest of :attr:`violations`, and a result with equal codes."""
        self.scores: PreferredAffinityScores | None = None
        """None if no term counts."""

    def clone(self) -> AffinityState:
        """Dry runs do not change it."""
        return self


class _CachedCounts(NamedTuple):
    counts: DomainCounts
    size_bytes: int


_NO_SCORES = Status.skip()
_NO_ANSWER = CommonAnswer(None, None)
_AFFINITY: StateKey[AffinityState] = StateKey("InterPodAffinity/state")
_REQUIRED: StateKey[RequiredAffinity] = StateKey("InterPodAffinity/filter")
_PREFERRED: StateKey[PreferredAffinityScores] = StateKey("InterPodAffinity/score")


class InterPodAffinity(
    PreFilterPlugin,
    FilterAllPlugin,
    UnavoidableRejections,
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
        self._factors = {kind: factor for kind, factor in factors.items() if factor}
        self._existing_kinds = (TermKind.REQUIRED_ANTI_AFFINITY, *self._factors)
        self._needs_own_preferences = args.ignore_preferred_terms_of_existing_pods
        self._domains = DomainIndex()
        self._counts: LruCache[tuple[PodQuery, str], _CachedCounts] = LruCache(
            _CACHE_BYTES, lambda cached: cached.size_bytes
        )
        self._sums: LruCache[object, ExistingTerms] = LruCache(
            _CACHE_BYTES, lambda sums: sums.size_bytes
        )
        # Pods with other labels that the same terms select share scores, and so groups of nodes.
        self._scores: LruCache[tuple[TermWeight, ...], PreferredAffinityScores] = LruCache(
            _MAX_SCORES
        )
        # Pods with other labels that the same terms reject from the same nodes share the result.
        self._rejections: LruCache[bytes, FilterResult] = LruCache(
            _CACHE_BYTES, lambda result: _STATE_BYTES + 2 * result.codes.nbytes
        )
        self._common: dict[tuple[PodShape, int], CommonAnswer | None] = {}
        self._common_versions = (-1, -1, -1)
        """Of nodes, terms and namespaces."""
        self._awaited_index = AwaitedIndex(self._awaited)
        # The caches below depend on namespace labels.
        self._namespaces_version = -1
        self._queries: LruCache[tuple[PodShape, str], AffinityQueries] = LruCache(_MAX_SHAPES)
        self._states: LruCache[tuple[PodShape, int], AffinityState] = LruCache(
            _CACHE_BYTES, lambda state: state.size_bytes
        )

    def applies_to(self, pod: PodInfo) -> bool:
        return pod.shape.names_pods or self.handle.cluster.has_affinity_terms

    def pre_filter(self, state: CycleState, pod: PodInfo, nodes: Nodes) -> PreFilterResult:
        affinity = self._affinity_state(pod.shape, pod.label_set)
        state.write(_AFFINITY, affinity)
        required = self._required(affinity, pod)
        if required is None:
            return SKIP
        state.write(_REQUIRED, required)
        return PROCEED

    def _required(self, affinity: AffinityState, pod: PodInfo) -> RequiredAffinity | None:
        """The required terms of the pod and of existing pods; None if there are none."""
        terms = affinity.terms
        existing = [term for term in affinity.existing if term.counts.total]
        if not existing and not terms.affinity and not terms.anti_affinity:
            return None
        namespace_labels = self._namespace_labels(pod.namespace)
        return RequiredAffinity(pod, namespace_labels, terms, existing, affinity.violations)

    def filter_all(self, state: CycleState, pod: PodInfo, nodes: Nodes) -> FilterResult:
        violations = state.read(_REQUIRED).violations(nodes)
        if violations is None:
            return FilterResult.passing(nodes.size)
        return FilterResult(violations, _STATUSES)

    def unavoidable(self, state: CycleState, pod: PodInfo, nodes: Nodes) -> FilterResult:
        violated = state.read(_REQUIRED).unavoidable(self.handle.cluster)
        if violated is None:
            return FilterResult.passing(nodes.size)
        return FilterResult(violated.astype(np.int16), (ANTI_AFFINITY_UNMET,))

    def add_pod(self, state: CycleState, pod: PodInfo, added: PodInfo, node: NodeInfo) -> Status:
        state.read(_REQUIRED).update(added, node, 1)
        return SUCCESS

    def remove_pod(
        self, state: CycleState, pod: PodInfo, removed: PodInfo, node: NodeInfo
    ) -> Status:
        state.read(_REQUIRED).update(removed, node, -1)
        return SUCCESS

    def pre_score(self, state: CycleState, pod: PodInfo, nodes: Nodes) -> Status:
        affinity = state.get(_AFFINITY) or self._affinity_state(pod.shape, pod.label_set)
        if self._needs_own_preferences and not affinity.terms.preferred:
            return _NO_SCORES
        scores = self._scores_now(affinity)
        if scores is None:
            return _NO_SCORES
        state.write(_PREFERRED, scores)
        return SUCCESS

    def common_answer(self, pod: PodInfo) -> CommonAnswer | None:
        cluster = self.handle.cluster
        versions = (
            cluster.nodes.version,
            cluster.affinity_terms_version,
            cluster.objects_version(Namespace),
        )
        known = self._common
        if versions != self._common_versions or len(known) > _MAX_SHAPES:
            self._common_versions = versions
            known.clear()
        key = (pod.shape, pod.label_set.number)
        if key not in known:
            known[key] = self._common_answer(pod)
        return known[key]

    def _scores_now(self, affinity: AffinityState) -> PreferredAffinityScores | None:
        """The up-to-date scores; None if no pod counts."""
        scores = affinity.scores
        if scores is None:
            return None
        if affinity.scored_version != affinity.existing_version or affinity.terms.preferred:
            affinity.scored_version = affinity.existing_version
            affinity.counts_for_score = bool(scores.total)
            scores.refresh()
        return scores if affinity.counts_for_score else None

    def _common_answer(self, pod: PodInfo) -> CommonAnswer | None:
        """The answer of :meth:`common_answer`, which other pods without terms do not change."""
        affinity = self._affinity_state(pod.shape, pod.label_set)
        if affinity.own_terms:
            return None
        rejections, required = None, self._required(affinity, pod)
        violations = None if required is None else required.violations(self.handle.cluster.nodes)
        if violations is not None:
            found_for, rejections = affinity.rejections
            if violations is not found_for:
                result = FilterResult(violations, _STATUSES)
                rejections = self._rejections.get(violations.tobytes(), lambda: result)
                affinity.rejections = (violations, rejections)
        scores = None if self._needs_own_preferences else self._scores_now(affinity)
        if rejections is None and scores is None:
            return _NO_ANSWER
        return CommonAnswer(rejections, scores)

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
        found = self._states.get(
            (shape, labels.number), lambda: self._new_state(shape, labels.namespace)
        )
        nodes = cluster.nodes
        version = (nodes.version, cluster.pods_version)
        if found.version == version:
            return found
        found.version = version
        for selected, key, counts, _ in found.own_terms:
            counts.follow(self._domains.of(nodes, key), selected.by_row(cluster))
        existing_version = (nodes.version, cluster.affinity_terms_version)
        if found.existing_version != existing_version:
            found.existing_version = existing_version
            self._update_existing(found, labels)
        return found

    def _new_state(self, shape: PodShape, namespace: str) -> AffinityState:
        terms = self._terms_of(self._queries_of(shape, namespace))
        return AffinityState(terms, self._size_bytes(1 + len(terms.all)))

    def _size_bytes(self, columns: int) -> int:
        return columns * (_STATE_BYTES + _ROW_BYTES * self.handle.cluster.nodes.size)

    def _update_existing(self, found: AffinityState, labels: LabelSet) -> None:
        """Update the sums of terms of existing pods, and what refers to them."""
        cluster = self.handle.cluster
        version: list[object] = []
        for kind in self._existing_kinds:
            table = cluster.affinity_terms(kind)
            if not table.size:
                continue
            stamp = (table.generation, table.size)
            sums, known = found.sums.get(kind, _NO_SUMS)
            if sums is None or known != stamp:
                sums = self._sums_of(kind, table, labels)
                found.sums[kind] = (sums, stamp)
            sums.update(table, cluster.nodes, self._domains)
            version += (sums, sums.version)
        if version != found.sums_version:
            found.sums_version = version
            self._refer(found)

    def _sums_of(self, kind: TermKind, table: TermTable, labels: LabelSet) -> ExistingTerms:
        distinguished = table.distinguished(labels)

        def compute() -> ExistingTerms:
            equivalent = LabelSet(labels.namespace, dict(distinguished), _NO_NUMBER)
            namespace_labels = self._namespace_labels(labels.namespace)
            return ExistingTerms(equivalent, namespace_labels, self._size_bytes(2))

        key = (kind, table.generation, labels.namespace, distinguished)
        return self._sums.get(key, compute)

    def _refer(self, found: AffinityState) -> None:
        """Take other sums of existing terms."""
        weights = [TermWeight(term.counts, term.weight) for term in found.terms.preferred]
        existing = []
        for kind, (sums, _) in found.sums.items():
            for key, counts in sums.counts.items() if sums is not None else ():
                if kind is TermKind.REQUIRED_ANTI_AFFINITY:
                    existing.append(ExistingTermCounts(key, counts))
                else:
                    weights.append(TermWeight(counts, self._factors[kind]))
        found.existing = existing
        found.scores = (
            self._scores.get(tuple(weights), lambda: PreferredAffinityScores(weights))
            if weights
            else None
        )
        found.violations = ViolationCache()

    def _terms_of(self, queries: AffinityQueries) -> AffinityTerms:
        return AffinityTerms(
            tuple(
                self._counts_of([(term.query, 1)], term.topology_key) for term in queries.affinity
            ),
            self._by_key(queries.anti_affinity),
            self._by_key([term for term in queries.preferred if term.weight > 0])
            + self._by_key([term for term in queries.preferred if term.weight < 0]),
        )

    def _by_key(self, terms: Sequence[IncomingTerm]) -> tuple[IncomingTermCounts, ...]:
        """The counts of terms with weights of the same sign."""
        by_key: dict[str, list[WeightedQuery]] = {}
        for query, key, weight in terms:
            by_key.setdefault(key, []).append((query, weight))
        return tuple(self._counts_of(queries, key) for key, queries in by_key.items())

    def _counts_of(self, queries: Sequence[WeightedQuery], key: str) -> IncomingTermCounts:
        """The counts of queries. Those of a single query are shared."""
        cluster = self.handle.cluster
        domains = self._domains.of(cluster.nodes, key)
        if len(queries) > 1:
            sign = 1 if queries[0][1] > 0 else -1
            selected = SelectedPods([(query, abs(weight)) for query, weight in queries])
            counts = DomainCounts(domains, selected.by_row(cluster))
            return IncomingTermCounts(selected, key, counts, sign)
        ((query, weight),) = queries
        cached = self._counts.get(
            (query, key),
            lambda: _CachedCounts(
                DomainCounts(domains, cluster.row_counts(query)), self._size_bytes(1)
            ),
        )
        return IncomingTermCounts(SelectedPods([(query, 1)]), key, cached.counts, weight)

    def _queries_of(self, shape: PodShape, namespace: str) -> AffinityQueries:
        self._check_namespaces()
        if shape.affinity is None:
            return _NO_QUERIES
        return self._queries.get(
            (shape, namespace), lambda: self._resolve(terms_of(shape, namespace))
        )

    def _resolve(self, terms: PodTerms) -> AffinityQueries:
        required = [weighted.term for weighted in terms[TermKind.REQUIRED_AFFINITY]]
        keys = dict.fromkeys(term.topology_key for term in required)
        return AffinityQueries(
            tuple(self._query(required, key, 1) for key in keys),
            self._each(terms[TermKind.REQUIRED_ANTI_AFFINITY], -1),
            self._each(terms[TermKind.PREFERRED_AFFINITY], 1)
            + self._each(terms[TermKind.PREFERRED_ANTI_AFFINITY], -1),
        )

    def _each(self, terms: Sequence[WeightedTerm], sign: int) -> tuple[IncomingTerm, ...]:
        return tuple(
            self._query([term], term.topology_key, sign * weight) for term, weight in terms
        )

    def _query(self, terms: Sequence[AffinityTerm], key: str, weight: int) -> IncomingTerm:
        """The pods that match every term, in namespaces that all terms list or select."""
        namespaces: frozenset[str] | None = None
        for term in terms:
            of_term = self._namespaces_of(term)
            if of_term is not None:
                namespaces = of_term if namespaces is None else namespaces & of_term
        query = PodQuery(tuple(term.selector for term in terms), namespaces)
        return IncomingTerm(query, key, weight)

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
            self._queries.clear()
            self._states.clear()
            self._sums.clear()
            self._scores.clear()

    def events_to_register(self) -> Sequence[ClusterEventWithHint]:
        pod_changes = ActionType.ADD | ActionType.UPDATE_POD_LABEL | ActionType.DELETE
        node_changes = ActionType.ADD | ActionType.UPDATE_NODE_LABEL
        return (
            # kube-scheduler registers all pods, and its hint skips those without a node.
            ClusterEventWithHint.on(
                EventResource.ASSIGNED_POD, pod_changes, self._pod_changed, self._select
            ),
            ClusterEventWithHint.on(EventResource.NODE, node_changes, self._node_changed),
        )

    def _awaited(self, pod: PodInfo) -> AwaitedQueries:
        """For which changes of pods :meth:`_pod_changed` queues the pod, besides deletions of pods
        with anti-affinity terms."""
        terms = self._queries_of(pod.shape, pod.namespace)
        if len(terms.anti_affinity) > _MAX_HINT_TERMS:
            return AwaitedQueries(any_pod=True)
        return AwaitedQueries(
            [term.query for term in terms.affinity[:1]],
            [term.query for term in terms.anti_affinity],
        )

    def _select(
        self, rejected: RejectedPods, old: Object | None, new: Object | None
    ) -> Collection[str]:
        """The rejected pods for which :meth:`_pod_changed` can return QUEUE."""
        before = old if isinstance(old, Pod) else None
        after = new if isinstance(new, Pod) else None
        if (before is not None and not before.node_name) or (
            after is not None and not after.node_name
        ):
            return ()
        self._check_namespaces()
        found = self._awaited_index.select(
            rejected,
            self._namespaces_version,
            None if before is None else label_set_of(before),
            None if after is None else label_set_of(after),
        )
        if before is None or after is not None or not _has_anti_affinity(before):
            return found
        return [
            key
            for key, queued in rejected.waiting.items()
            if key in found or self._is_repelled_by(queued.info, before)
        ]

    def _pod_changed(self, pod: Pod, old: Object | None, new: Object | None) -> QueueingHint:
        """Queue if an assigned pod starts to match the required affinity, stops to match an
        anti-affinity term, or is deleted and had an anti-affinity term that selects the pod.
        kube-scheduler requires *all* anti-affinity terms to match, and ignores the terms of a
        deleted pod, so pods wait for the next flush. Many terms are not evaluated: the hint is
        called for each pending pod at each change of a pod, and an attempt costs less."""
        before = old if isinstance(old, Pod) else None
        after = new if isinstance(new, Pod) else None
        if any(other is not None and not other.node_name for other in (before, after)):
            return QueueingHint.SKIP
        terms = self._queries_of(shape_of(pod), pod.namespace)
        if len(terms.anti_affinity) > _MAX_HINT_TERMS:
            return QueueingHint.QUEUE
        for term in terms.affinity[:1]:
            if _matches(term.query, after) and not _matches(term.query, before):
                return QueueingHint.QUEUE
        for term in terms.anti_affinity:
            if _matches(term.query, before) and not _matches(term.query, after):
                return QueueingHint.QUEUE
        return queue_if(
            before is not None
            and after is None
            and _has_anti_affinity(before)
            and self._is_repelled_by(PodInfo(pod), before)
        )

    def _is_repelled_by(self, pod: PodInfo, other: Pod) -> bool:
        """Whether the other pod's required anti-affinity selects this one, or has many terms."""
        terms = terms_of(shape_of(other), other.namespace)[TermKind.REQUIRED_ANTI_AFFINITY]
        if len(terms) > _MAX_HINT_TERMS:
            return True
        namespace_labels = self._namespace_labels(pod.namespace)
        return any(term.matches(pod.label_set, namespace_labels) for term, _ in terms)

    def _node_changed(self, pod: Pod, old: Object | None, new: Object | None) -> QueueingHint:
        """Queue if a new node has the required topology keys, or a node changes its domain of a
        relevant topology key."""
        if not isinstance(new, Node):
            return QueueingHint.SKIP
        affinity, anti_affinity = _required_keys(pod)
        if not isinstance(old, Node):
            return queue_if(all(key in new.labels for key in affinity))
        before, after = old.labels, new.labels
        changed = {key for key, _ in before.items() ^ after.items()}
        if not changed.isdisjoint(affinity | anti_affinity):
            return QueueingHint.QUEUE
        table = self.handle.cluster.affinity_terms(TermKind.REQUIRED_ANTI_AFFINITY)
        # Existing pods may have a hundred thousand keys.
        if not any(key in table.topology_keys for key in changed):
            return QueueingHint.SKIP
        existing = self._affinity_state(shape_of(pod), label_set_of(pod)).existing
        return queue_if(any(term.topology_key in changed for term in existing))


def _scale(scores: Int64Column, lowest: int, span: int) -> Int64Column:
    return (MAX_NODE_SCORE * ((scores - lowest) / span)).astype(np.int64)


def _has_anti_affinity(pod: Pod) -> bool:
    affinity = pod.spec.affinity
    rules = None if affinity is None else affinity.pod_anti_affinity
    return rules is not None and bool(rules.required)


def _required_keys(pod: Pod) -> tuple[set[str], set[str]]:
    """The topology keys of the pod's required affinity and anti-affinity."""
    affinity = pod.spec.affinity
    if affinity is None:
        return set(), set()
    affinity_keys, anti_affinity_keys = (
        set[str]() if rules is None else {term.topology_key for term in rules.required}
        for rules in (affinity.pod_affinity, affinity.pod_anti_affinity)
    )
    return affinity_keys, anti_affinity_keys


def _matches(query: PodQuery, pod: Pod | None) -> bool:
    return pod is not None and query.matches(label_set_of(pod))
