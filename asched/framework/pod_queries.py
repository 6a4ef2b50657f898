"""Queries about pods: label selectors, affinity terms, and the selectors of a pod's workload.

The cluster caches answers per distinct query and updates them incrementally, so that repeating a
query is nearly free.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from asched.framework.caching import LruCache
from asched.framework.pod_info import LabelSet, PodShape
from asched.model.meta import OwnerReference
from asched.model.pod import Affinity, PodAffinityTerm
from asched.model.selectors import LabelSelector
from asched.model.workloads import ReplicaSet, ReplicationController, Service, StatefulSet

if TYPE_CHECKING:
    from asched.framework.cluster import Cluster

_encode = msgspec.json.Encoder(order="deterministic").encode


class Selector:
    """A hashable label selector. None selects nothing; an empty selector selects everything."""

    __slots__ = ("_selector", "encoded")

    def __init__(self, selector: LabelSelector | None) -> None:
        self._selector = selector
        self.encoded: bytes = _encode(selector)
        """Canonical JSON: equal for equal selectors."""

    def matches(self, labels: Mapping[str, str]) -> bool:
        return self._selector is not None and self._selector.matches(labels)

    @property
    def label_selector(self) -> LabelSelector | None:
        """None selects nothing."""
        return self._selector

    @property
    def selects_nothing(self) -> bool:
        return self._selector is None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Selector) and self.encoded == other.encoded

    def __hash__(self) -> int:
        return hash(self.encoded)

    def __repr__(self) -> str:
        return f"Selector({self.encoded.decode()})"


class PodQuery(NamedTuple):
    """Which pods to count."""

    selectors: tuple[Selector, ...]
    """All must match."""
    namespaces: frozenset[str] | None
    """None for any namespace."""
    count_terminating: bool = True

    def matches(self, labels: LabelSet) -> bool:
        in_scope = self.namespaces is None or labels.namespace in self.namespaces
        return in_scope and all(selector.matches(labels.labels) for selector in self.selectors)


class AffinityTerm(NamedTuple):
    """A pod affinity term with resolved namespaces."""

    selector: Selector
    namespaces: frozenset[str]
    """The listed namespaces, or the pod's own if the term neither lists nor selects any."""
    namespace_selector: Selector
    topology_key: str

    @classmethod
    def of(cls, term: PodAffinityTerm, own_namespace: str) -> AffinityTerm:
        named = frozenset(term.namespaces)
        if not named and term.namespace_selector is None:
            named = frozenset({own_namespace})
        return cls(
            Selector(term.label_selector),
            named,
            Selector(term.namespace_selector),
            term.topology_key,
        )

    def matches(self, labels: LabelSet, namespace_labels: Mapping[str, str]) -> bool:
        """Whether the term selects a pod with these labels in a namespace with those labels."""
        in_scope = self.reaches(labels.namespace, namespace_labels)
        return in_scope and self.selector.matches(labels.labels)

    def reaches(self, namespace: str, namespace_labels: Mapping[str, str]) -> bool:
        """Whether the term looks at pods of a namespace with these labels."""
        return namespace in self.namespaces or self.namespace_selector.matches(namespace_labels)


class TermKind(Enum):
    """The four lists of affinity terms of a pod."""

    REQUIRED_AFFINITY = "requiredAffinity"
    REQUIRED_ANTI_AFFINITY = "requiredAntiAffinity"
    PREFERRED_AFFINITY = "preferredAffinity"
    PREFERRED_ANTI_AFFINITY = "preferredAntiAffinity"


class WeightedTerm(NamedTuple):
    term: AffinityTerm
    weight: int
    """1 for a required term."""


PodTerms = Mapping[TermKind, Sequence[WeightedTerm]]
"""The affinity terms of a pod. Every kind has an entry."""


def terms_of(shape: PodShape, namespace: str) -> PodTerms:
    """The terms of pods of a shape in a namespace; usually the same object for equal arguments."""
    known = _large_terms_of if shape.size_bytes > _LARGE_BYTES else _small_terms_of
    return known(shape, namespace)


def _every_term_of(shape: PodShape, namespace: str) -> PodTerms:
    return {kind: _terms(shape.affinity, namespace, kind) for kind in TermKind}


_LARGE_BYTES = 4096
"""Larger shapes may have a hundred terms. The terms of a thousand would take hundreds of MB."""
_small_terms_of = lru_cache(maxsize=1024)(_every_term_of)
_large_terms_of = lru_cache(maxsize=64)(_every_term_of)


def _terms(affinity: Affinity | None, namespace: str, kind: TermKind) -> Sequence[WeightedTerm]:
    if affinity is None:
        return ()
    is_affinity = kind in (TermKind.REQUIRED_AFFINITY, TermKind.PREFERRED_AFFINITY)
    rules = affinity.pod_affinity if is_affinity else affinity.pod_anti_affinity
    if rules is None:
        return ()
    if kind in (TermKind.REQUIRED_AFFINITY, TermKind.REQUIRED_ANTI_AFFINITY):
        return [WeightedTerm(AffinityTerm.of(term, namespace), 1) for term in rules.required]
    return [
        WeightedTerm(AffinityTerm.of(entry.pod_affinity_term, namespace), entry.weight)
        for entry in rules.preferred
        if entry.weight
    ]


_WORKLOAD_KINDS = (Service, ReplicationController, ReplicaSet, StatefulSet)
_MAX_CACHED = 4096


class WorkloadSelectors:
    """The combined selectors of a pod's services and controller (``helper.DefaultSelector``).

    Combines all services that select the pod, and the ReplicationController, ReplicaSet or
    StatefulSet that controls it.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._version = -1
        self._services: dict[str, list[Service]] = {}
        self._known: LruCache[tuple[int, OwnerReference | None], tuple[Selector, ...]] = LruCache(
            _MAX_CACHED
        )

    @property
    def version(self) -> int:
        """Changes with the selectors."""
        return self._cluster.objects_version(*_WORKLOAD_KINDS)

    def of(self, labels: LabelSet, owner: OwnerReference | None) -> tuple[Selector, ...]:
        """The selectors for a pod with these labels and this controller. Pods of the same workload
        match all of them; empty if the pod has no service and no controller."""
        cluster, version = self._cluster, self.version
        if version != self._version:
            self._version = version
            self._known.clear()
            self._services = {}
            for service in cluster.objects(Service).values():
                self._services.setdefault(service.namespace, []).append(service)
        if owner is None and labels.namespace not in self._services:
            return ()
        return self._known.get((labels.number, owner), lambda: self._combine(labels, owner))

    def _combine(self, labels: LabelSet, owner: OwnerReference | None) -> tuple[Selector, ...]:
        merged: dict[str, str] = {}
        for service in self._services.get(labels.namespace, ()):
            selector = service.spec.selector
            if all(labels.labels.get(key) == value for key, value in selector.items()):
                merged.update(selector)
        further: LabelSelector | None = None
        if owner is not None:
            key = f"{labels.namespace}/{owner.name}"
            match (owner.api_version, owner.kind):
                case ("v1", "ReplicationController"):
                    controller = self._cluster.objects(ReplicationController).get(key)
                    merged.update({} if controller is None else controller.spec.selector)
                case ("apps/v1", "ReplicaSet"):
                    replica_set = self._cluster.objects(ReplicaSet).get(key)
                    further = None if replica_set is None else replica_set.spec.selector
                case ("apps/v1", "StatefulSet"):
                    stateful_set = self._cluster.objects(StatefulSet).get(key)
                    further = None if stateful_set is None else stateful_set.spec.selector
        parts = [LabelSelector(match_labels=merged)] + ([] if further is None else [further])
        return tuple(Selector(p) for p in parts if p.match_labels or p.match_expressions)
