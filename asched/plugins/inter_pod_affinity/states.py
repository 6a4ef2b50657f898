"""The counts that pods of one shape, namespace and labels share: of the pods that their terms
select, and of existing pods with terms that select them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from asched.framework.caching import LruCache
from asched.framework.cluster import Cluster
from asched.framework.pod_info import LabelSet, PodShape
from asched.framework.pod_queries import PodQuery, TermKind
from asched.framework.term_table import TermTable
from asched.framework.topology import DomainCounts, DomainIndex
from asched.plugins.inter_pod_affinity.existing import (
    ExistingTerms,
    SelectedPods,
    WeightedQuery,
)
from asched.plugins.inter_pod_affinity.preferred import PreferredAffinityScores, TermWeight
from asched.plugins.inter_pod_affinity.queries import TermQueries
from asched.plugins.inter_pod_affinity.required import (
    AffinityQueries,
    ExistingTermCounts,
    IncomingCounts,
    IncomingTerm,
    IncomingTermCounts,
    ViolationCache,
)

CACHE_BYTES = 1 << 26
_ROW_BYTES = 25
"""Size of the columns of a :class:`DomainCounts`, for each row."""
STATE_BYTES = 1 << 16
"""An estimate for the objects of one entry: it limits the number of entries in small clusters."""
_MAX_SHARED = 64

_TermsAtVersion = tuple[ExistingTerms | None, tuple[int, int]]
"""With the generation and size of the table that they were looked up for."""
_NO_TERMS: _TermsAtVersion = (None, (-1, -1))
_NO_NUMBER = -1


class AffinityState:
    """The counts for pods of one shape, namespace and labels. Refreshed in this order: the counts
    of their own terms, existing terms, what is linked to both, scores."""

    __slots__ = (
        "counts_for_score",
        "existing_anti_affinity",
        "existing_terms",
        "incoming",
        "linked_counts",
        "own_terms",
        "scored_version",
        "scores",
        "size_bytes",
        "terms_version",
        "version",
        "violations",
    )

    def __init__(self, incoming: IncomingCounts, size_bytes: int) -> None:
        self.size_bytes = size_bytes
        self.version = (-1, -1)
        """The versions of nodes and pods for which all counts are up to date."""
        self.scored_version = (-1, -1)
        """The versions for which :attr:`scores` are up to date."""
        self.counts_for_score = False
        """Whether any pod counts in :attr:`scores`."""
        self.terms_version = (-1, -1)
        """The versions of nodes and terms for which :attr:`existing_terms` are up to date."""
        self.incoming = incoming
        self.own_terms = incoming.all
        self.existing_terms: dict[TermKind, _TermsAtVersion] = {}
        """By kind: the terms of existing pods that select the pod, summed by topology key."""
        self.linked_counts: list[object] | None = None
        """Changes with the counts that :attr:`existing_terms` hold."""
        self.existing_anti_affinity: Sequence[ExistingTermCounts] = ()
        self.violations = ViolationCache()
        """Shared by pods without required terms that the same existing terms select."""
        self.scores: PreferredAffinityScores | None = None
        """None if no term counts."""

    def clone(self) -> AffinityState:
        """Dry runs do not change it."""
        return self


class _CachedCounts(NamedTuple):
    counts: DomainCounts
    size_bytes: int


class AffinityStates:
    """The states of pods, kept within limits. Pods with other labels that the same terms select
    share what is counted and computed."""

    def __init__(
        self, cluster: Cluster, queries: TermQueries, factors: Mapping[TermKind, int]
    ) -> None:
        """``factors`` of the weights of existing pods' terms in the score."""
        self._cluster = cluster
        self._queries = queries
        self._factors = factors
        self._existing_kinds = (TermKind.REQUIRED_ANTI_AFFINITY, *factors)
        self._domains = DomainIndex()
        self._counts: LruCache[tuple[PodQuery, str], _CachedCounts] = LruCache(
            CACHE_BYTES, lambda cached: cached.size_bytes
        )
        # The caches below depend on namespace labels.
        self._namespaces_version = -1
        self._sums: LruCache[object, ExistingTerms] = LruCache(
            CACHE_BYTES, lambda sums: sums.size_bytes
        )
        self._scores: LruCache[tuple[TermWeight, ...], PreferredAffinityScores] = LruCache(
            _MAX_SHARED
        )
        self._violations: LruCache[tuple[ExistingTermCounts, ...], ViolationCache] = LruCache(
            _MAX_SHARED
        )
        self._states: LruCache[tuple[PodShape, int], AffinityState] = LruCache(
            CACHE_BYTES, lambda state: state.size_bytes
        )

    def _check_namespaces(self) -> None:
        version = self._queries.check_namespaces()
        if version != self._namespaces_version:
            self._namespaces_version = version
            self._states.clear()
            self._sums.clear()
            self._scores.clear()
            self._violations.clear()

    def of(self, shape: PodShape, labels: LabelSet) -> AffinityState:
        """The up-to-date counts for a pod."""
        cluster = self._cluster
        self._check_namespaces()
        found = self._states.get(
            (shape, labels.number), lambda: self._new_state(shape, labels.namespace)
        )
        nodes = cluster.nodes
        version = (nodes.version, cluster.pods_version)
        if found.version == version:
            return found
        for selected, key, counts, _ in found.own_terms:
            counts.follow(self._domains.of(nodes, key), selected.by_row(cluster))
        terms_version = (nodes.version, cluster.affinity_terms_version)
        if found.terms_version != terms_version:
            self._update_existing(found, labels)
            found.terms_version = terms_version
        found.version = version
        return found

    def _new_state(self, shape: PodShape, namespace: str) -> AffinityState:
        terms = self._terms_of(self._queries.of(shape, namespace))
        return AffinityState(terms, self._size_bytes(1 + len(terms.all)))

    def _size_bytes(self, columns: int) -> int:
        return columns * (STATE_BYTES + _ROW_BYTES * self._cluster.nodes.size)

    def _update_existing(self, found: AffinityState, labels: LabelSet) -> None:
        """Update the sums of terms of existing pods, and what refers to them."""
        cluster = self._cluster
        version: list[object] = []
        for kind in self._existing_kinds:
            table = cluster.affinity_terms(kind)
            if not table.size:
                found.existing_terms.pop(kind, None)
                continue
            stamp = (table.generation, table.size)
            sums, known = found.existing_terms.get(kind, _NO_TERMS)
            if sums is None or known != stamp:
                sums = self._existing_terms_of(kind, table, labels)
                found.existing_terms[kind] = (sums, stamp)
            sums.update(table, cluster.nodes, self._domains)
            version += (sums, sums.version)
        if version != found.linked_counts:
            self._link_counts(found)
            found.linked_counts = version

    def _existing_terms_of(
        self, kind: TermKind, table: TermTable, labels: LabelSet
    ) -> ExistingTerms:
        distinguished = table.distinguished(labels)

        def compute() -> ExistingTerms:
            equivalent = LabelSet(labels.namespace, dict(distinguished), _NO_NUMBER)
            namespace_labels = self._queries.namespace_labels(labels.namespace)
            return ExistingTerms(equivalent, namespace_labels, self._size_bytes(2))

        key = (kind, table.generation, labels.namespace, distinguished)
        return self._sums.get(key, compute)

    def _link_counts(self, found: AffinityState) -> None:
        """Set what refers to the present counts of existing terms: rejections and scores."""
        weights = [TermWeight(term.counts, term.weight) for term in found.incoming.preferred]
        existing = []
        for kind, (sums, _) in found.existing_terms.items():
            for key, counts in sums.counts.items() if sums is not None else ():
                if kind is TermKind.REQUIRED_ANTI_AFFINITY:
                    existing.append(ExistingTermCounts(key, counts))
                else:
                    weights.append(TermWeight(counts, self._factors[kind]))
        found.existing_anti_affinity = existing
        found.scores = (
            self._scores.get(tuple(weights), lambda: PreferredAffinityScores(weights))
            if weights
            else None
        )
        own = found.incoming.affinity or found.incoming.anti_affinity
        found.violations = (
            ViolationCache() if own else self._violations.get(tuple(existing), ViolationCache)
        )

    def _terms_of(self, queries: AffinityQueries) -> IncomingCounts:
        return IncomingCounts(
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
        cluster = self._cluster
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
