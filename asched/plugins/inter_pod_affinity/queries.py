"""The pods that the terms of a pod select, with the namespaces that their selectors select now."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from asched.framework.caching import LruCache
from asched.framework.cluster import Cluster
from asched.framework.pod_info import PodShape
from asched.framework.pod_queries import (
    AffinityTerm,
    PodQuery,
    PodTerms,
    Selector,
    TermKind,
    WeightedTerm,
    terms_of,
)
from asched.model.selectors import LabelSelector
from asched.model.workloads import Namespace
from asched.plugins.inter_pod_affinity.required import AffinityQueries, IncomingTerm

_EVERYTHING = Selector(LabelSelector())
_NO_QUERIES = AffinityQueries()
_MAX_SHAPES = 1024


class TermQueries:
    """The queries of pods by shape and namespace. They depend on the labels of namespaces."""

    def __init__(self, cluster: Cluster) -> None:
        self.namespaces_version = -1
        """Changes whenever queries may change."""
        self._cluster = cluster
        self._known: LruCache[tuple[PodShape, str], AffinityQueries] = LruCache(_MAX_SHAPES)

    def check_namespaces(self) -> int:
        """:attr:`namespaces_version`, after an update if namespaces have changed."""
        version = self._cluster.objects_version(Namespace)
        if version != self.namespaces_version:
            self.namespaces_version = version
            self._known.clear()
        return version

    def of(self, shape: PodShape, namespace: str) -> AffinityQueries:
        """The queries of a pod's terms."""
        self.check_namespaces()
        if shape.affinity is None:
            return _NO_QUERIES
        return self._known.get(
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
        known = self._cluster.objects(Namespace).values()
        return term.namespaces | {ns.name for ns in known if selector.matches(ns.labels)}

    def namespace_labels(self, name: str) -> Mapping[str, str]:
        namespace = self._cluster.objects(Namespace).get(name)
        return {} if namespace is None else namespace.labels
