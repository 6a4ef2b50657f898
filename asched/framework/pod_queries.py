"""Questions about where pods are: how many that match are on each node, who holds which term.

Affinity and spreading ask the same few questions for thousands of pods. The answers are kept by
the state, per distinct question, and brought up to date by what changed since, so a question that
was asked before costs about nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum
from functools import lru_cache
from typing import NamedTuple

import msgspec

from asched.framework.change_log import RowCounts
from asched.framework.nodes import Int64Column
from asched.framework.pod_info import LabelSet, PodShape
from asched.model.pod import Affinity, PodAffinityTerm
from asched.model.selectors import LabelSelector

_encode = msgspec.json.Encoder(order="deterministic").encode


class Selector:
    """A label selector that can be compared and hashed. None selects nothing, empty everything."""

    __slots__ = ("_key", "_selector")

    def __init__(self, selector: LabelSelector | None) -> None:
        self._selector = selector
        self._key = _encode(selector)

    def matches(self, labels: Mapping[str, str]) -> bool:
        return self._selector is not None and self._selector.matches(labels)

    @property
    def selects_nothing(self) -> bool:
        return self._selector is None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Selector) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)

    def __repr__(self) -> str:
        return f"Selector({self._key.decode()})"


class PodQuery(NamedTuple):
    """Which pods to count."""

    selectors: tuple[Selector, ...]
    """All of them must match."""
    namespaces: frozenset[str] | None
    """None for any namespace."""
    count_terminating: bool = True

    def matches(self, labels: LabelSet) -> bool:
        in_scope = self.namespaces is None or labels.namespace in self.namespaces
        return in_scope and all(selector.matches(labels.labels) for selector in self.selectors)


class AffinityTerm(NamedTuple):
    """One pod-affinity term of a pod, its namespaces resolved as far as they can be."""

    selector: Selector
    namespaces: frozenset[str]
    """Named ones; the pod's own where the term names none and selects none."""
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
        """Whether a pod with these labels is meant; ``namespace_labels`` are its namespace's."""
        in_scope = labels.namespace in self.namespaces or self.namespace_selector.matches(
            namespace_labels
        )
        return in_scope and self.selector.matches(labels.labels)


class TermKind(Enum):
    """The four lists of terms that a pod can have."""

    REQUIRED_AFFINITY = "requiredAffinity"
    REQUIRED_ANTI_AFFINITY = "requiredAntiAffinity"
    PREFERRED_AFFINITY = "preferredAffinity"
    PREFERRED_ANTI_AFFINITY = "preferredAntiAffinity"


class WeightedTerm(NamedTuple):
    term: AffinityTerm
    weight: int
    """1 for a required term."""


class TermHolders(NamedTuple):
    """A term that pods on nodes have, and how many on each node do."""

    term: AffinityTerm
    weight: int
    counts: RowCounts

    @property
    def holders(self) -> Int64Column:
        """By row; read-only."""
        return self.counts.column


PodTerms = Mapping[TermKind, Sequence[WeightedTerm]]
"""The affinity terms of a pod; every kind has an entry."""


@lru_cache(maxsize=4096)
def terms_of(shape: PodShape, namespace: str) -> PodTerms:
    """The terms that pods of a shape have in a namespace. Like pods get the same object."""
    return {kind: _terms(shape.affinity, namespace, kind) for kind in TermKind}


def _terms(affinity: Affinity | None, namespace: str, kind: TermKind) -> Sequence[WeightedTerm]:
    if affinity is None:
        return ()
    wants_near = kind in (TermKind.REQUIRED_AFFINITY, TermKind.PREFERRED_AFFINITY)
    rules = affinity.pod_affinity if wants_near else affinity.pod_anti_affinity
    if rules is None:
        return ()
    if kind in (TermKind.REQUIRED_AFFINITY, TermKind.REQUIRED_ANTI_AFFINITY):
        return [WeightedTerm(AffinityTerm.of(term, namespace), 1) for term in rules.required]
    return [
        WeightedTerm(AffinityTerm.of(entry.pod_affinity_term, namespace), entry.weight)
        for entry in rules.preferred
        if entry.weight
    ]
