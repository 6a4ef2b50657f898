"""The counts that like pods share: of the pods that their terms select, and of existing pods with
terms that select them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from asched.framework.caching import LruCache
from asched.framework.cluster import Cluster
from asched.framework.pod_info import LabelSet, PodShape
from asched.framework.pod_queries import PodQuery, TermKind
from asched.framework.scoring import CommonAnswer
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
_MAX_LABEL_SETS = 1024
_NO_NUMBER = -1

Distinguished = tuple[tuple[str, str], ...]
"""Labels: :meth:`TermTable.distinguished`."""


class LabelClass:
    """Label sets of a namespace that the same terms of existing pods select. Interned."""

    __slots__ = ("by_kind", "namespace")

    def __init__(
        self, namespace: str, by_kind: Sequence[tuple[TermKind, int, Distinguished]]
    ) -> None:
        self.namespace = namespace
        self.by_kind = by_kind
        """For each kind with terms: the generation of their table, and labels."""


class _LabelClasses:
    """The classes of label sets. New terms can divide a class."""

    def __init__(self, cluster: Cluster, kinds: Sequence[TermKind]) -> None:
        self._cluster = cluster
        self._kinds = kinds
        self._tables: list[tuple[TermKind, TermTable]] = []
        self._classes: LruCache[object, LabelClass] = LruCache(_MAX_LABEL_SETS)
        self._known: LruCache[int, LabelClass] = LruCache(_MAX_LABEL_SETS)
        self._terms_version = -1
        self._distinctions: list[tuple[int, int]] = []
        """Those of the tables for which :attr:`_known` is valid."""

    def of(self, labels: LabelSet) -> LabelClass:
        version = self._cluster.affinity_terms_version
        if version != self._terms_version:
            if not self._tables:
                self._tables = [(kind, self._cluster.affinity_terms(kind)) for kind in self._kinds]
            distinctions = [table.distinctions for _, table in self._tables]
            if distinctions != self._distinctions:
                self._known.clear()
                self._distinctions = distinctions
            self._terms_version = version
        return self._known.get(labels.number, lambda: self._class_of(labels))

    def _class_of(self, labels: LabelSet) -> LabelClass:
        by_kind = [
            (kind, table.generation, table.distinguished(labels))
            for kind, table in self._tables
            if table.size
        ]
        key = (labels.namespace, *by_kind)
        return self._classes.get(key, lambda: LabelClass(labels.namespace, by_kind))


class AffinityState:
    """The counts for pods with the same terms of their own and the same class of labels. Refreshed
    in this order: the counts of their own terms, existing terms, what is linked to both, scores."""

    __slots__ = (
        "common_answer",
        "counts_for_score",
        "existing_anti_affinity",
        "existing_terms",
        "incoming",
        "linked_versions",
        "own_terms",
        "scored_version",
        "scores",
        "size_bytes",
        "terms_version",
        "version",
        "violations",
    )

    def __init__(
        self,
        incoming: IncomingCounts,
        existing_terms: Mapping[TermKind, ExistingTerms],
        size_bytes: int,
    ) -> None:
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
        self.existing_terms = existing_terms
        """By kind: the terms of existing pods that select the pod, summed by topology key."""
        self.linked_versions: list[int] | None = None
        """Those of :attr:`existing_terms` when the following were linked to their counts."""
        self.existing_anti_affinity: Sequence[ExistingTermCounts] = ()
        self.violations = ViolationCache()
        self.scores: PreferredAffinityScores | None = None
        """None if no term counts."""
        self.common_answer: tuple[tuple[int, int], CommonAnswer] | None = None
        """The answer for pods without own terms, with the :attr:`terms_version` that it is for."""

    def clone(self) -> AffinityState:
        """Dry runs do not change it."""
        return self


class _CachedCounts(NamedTuple):
    counts: DomainCounts
    size_bytes: int


class AffinityStates:
    """The states of pods, kept within limits."""

    def __init__(
        self, cluster: Cluster, queries: TermQueries, factors: Mapping[TermKind, int]
    ) -> None:
        """``factors`` of the weights of existing pods' terms in the score."""
        self._cluster = cluster
        self._queries = queries
        self._factors = factors
        self._classes = _LabelClasses(cluster, (TermKind.REQUIRED_ANTI_AFFINITY, *factors))
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
        self._states: LruCache[tuple[PodShape | None, LabelClass], AffinityState] = LruCache(
            CACHE_BYTES, lambda state: state.size_bytes
        )

    def _check_namespaces(self) -> None:
        version = self._queries.check_namespaces()
        if version != self._namespaces_version:
            self._namespaces_version = version
            self._states.clear()
            self._sums.clear()
            self._scores.clear()

    def of(self, shape: PodShape, labels: LabelSet) -> AffinityState:
        """The up-to-date counts for a pod."""
        cluster = self._cluster
        self._check_namespaces()
        label_class = self._classes.of(labels)
        own = shape if shape.names_pods else None
        found = self._states.get((own, label_class), lambda: self._new_state(own, label_class))
        nodes = cluster.nodes
        version = (nodes.version, cluster.pods_version)
        if found.version == version:
            return found
        for selected, key, counts, _ in found.own_terms:
            counts.follow(self._domains.of(nodes, key), selected.by_row(cluster))
        terms_version = (nodes.version, cluster.affinity_terms_version)
        if found.terms_version != terms_version:
            self._update_existing(found)
            found.terms_version = terms_version
        found.version = version
        return found

    def _new_state(self, own: PodShape | None, label_class: LabelClass) -> AffinityState:
        """``own``: the shape, if it has terms."""
        incoming = IncomingCounts()
        if own is not None:
            incoming = self._terms_of(self._queries.of(own, label_class.namespace))
        existing = {
            kind: self._sums_of(kind, generation, label_class.namespace, labels)
            for kind, generation, labels in label_class.by_kind
        }
        return AffinityState(incoming, existing, self._size_bytes(1 + len(incoming.all)))

    def _sums_of(
        self, kind: TermKind, generation: int, namespace: str, distinguished: Distinguished
    ) -> ExistingTerms:
        def compute() -> ExistingTerms:
            labels = LabelSet(namespace, dict(distinguished), _NO_NUMBER)
            namespace_labels = self._queries.namespace_labels(namespace)
            return ExistingTerms(labels, namespace_labels, self._size_bytes(2))

        return self._sums.get((kind, generation, namespace, distinguished), compute)

    def _size_bytes(self, columns: int) -> int:
        return columns * (STATE_BYTES + _ROW_BYTES * self._cluster.nodes.size)

    def _update_existing(self, found: AffinityState) -> None:
        """Update the sums of terms of existing pods, and what refers to them."""
        cluster = self._cluster
        for kind, sums in found.existing_terms.items():
            sums.update(cluster.affinity_terms(kind), cluster.nodes, self._domains)
        versions = [sums.version for sums in found.existing_terms.values()]
        if versions != found.linked_versions:
            self._link_counts(found)
            found.linked_versions = versions

    def _link_counts(self, found: AffinityState) -> None:
        """Set what refers to the present counts of existing terms: rejections and scores."""
        weights = [TermWeight(term.counts, term.weight) for term in found.incoming.preferred]
        existing = []
        for kind, sums in found.existing_terms.items():
            for key, counts in sums.counts.items():
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
        found.violations = ViolationCache()

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
