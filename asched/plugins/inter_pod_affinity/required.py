"""Required affinity and anti-affinity of an incoming pod and of existing pods, for all nodes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import IntEnum
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from asched.framework.cluster import Cluster
from asched.framework.nodes import BoolColumn, FilterResult, Int64Column, NodeInfo, Nodes
from asched.framework.pod_info import LabelSet, PodInfo
from asched.framework.pod_queries import PodQuery, TermKind, terms_of
from asched.framework.topology import DomainCounts
from asched.plugins.inter_pod_affinity.existing import SelectedPods

_MAX_LABEL_SETS = 1024
ViolationBits = NDArray[np.int16]


class ExistingTermCounts(NamedTuple):
    """Existing pods with a required anti-affinity term that selects the incoming pod."""

    topology_key: str
    counts: DomainCounts
    """Must be updated before use."""


class IncomingTerm(NamedTuple):
    """Which existing pods a term of the incoming pod selects."""

    query: PodQuery
    topology_key: str
    weight: int
    """Negative for anti-affinity."""


class AffinityQueries(NamedTuple):
    """The terms of an incoming pod, with the namespaces that they select now."""

    affinity: tuple[IncomingTerm, ...] = ()
    """For each topology key of the required affinity: pods that match *all* its terms."""
    anti_affinity: tuple[IncomingTerm, ...] = ()
    """For each required anti-affinity term."""
    preferred: tuple[IncomingTerm, ...] = ()

    @property
    def all(self) -> tuple[IncomingTerm, ...]:
        return (*self.affinity, *self.anti_affinity, *self.preferred)


class IncomingTermCounts(NamedTuple):
    """Existing pods that terms of the incoming pod with the same topology key select."""

    selected: SelectedPods
    topology_key: str
    counts: DomainCounts
    """Must be updated before use."""
    weight: int
    """The factor of the counts in the score."""


class IncomingCounts(NamedTuple):
    """The counts of :class:`AffinityQueries`, one for each topology key."""

    affinity: tuple[IncomingTermCounts, ...] = ()
    anti_affinity: tuple[IncomingTermCounts, ...] = ()
    preferred: tuple[IncomingTermCounts, ...] = ()
    """Affinity and anti-affinity are separate."""

    @property
    def all(self) -> tuple[IncomingTermCounts, ...]:
        return (*self.affinity, *self.anti_affinity, *self.preferred)


class Violation(IntEnum):
    """Why a node is rejected, in the order in which it is reported."""

    AFFINITY = 1
    ANTI_AFFINITY = 2
    EXISTING_ANTI_AFFINITY = 4


Adjustments = dict[tuple[Violation, str], dict[str, int]]
"""By violation and topology key: the change of the count by domain."""


_Matched = dict[int, Sequence[tuple[Violation, str, int]]]
"""By label set: violation, topology key and weight of each term that selects it."""


class ViolationCache:
    """The last result of :meth:`RequiredAffinity.violations` for all nodes. Valid until a domain
    gets its first matching pod or loses its last one."""

    __slots__ = ("_bits", "_version", "rejections")

    def __init__(self) -> None:
        self.rejections: tuple[ViolationBits | None, FilterResult | None] = (None, None)
        """Bits that :meth:`get` returned, and a result with equal codes."""
        self._version: object = None
        self._bits: ViolationBits | None = None

    def get(
        self, version: object, compute: Callable[[], ViolationBits | None]
    ) -> ViolationBits | None:
        """The same array as long as it is equal; None if no node fails."""
        if version != self._version:
            found = compute()
            if found is None or not found.any():
                self._bits = None
            elif self._bits is None or not np.array_equal(found, self._bits):
                self._bits = found
            self._version = version
        return self._bits


class RequiredAffinity:
    """The matching pods in the domains of each node, for one attempt. The counts are shared and not
    changed here: :meth:`update` keeps hypothetical changes separately."""

    __slots__ = (
        "_adjustments", "_cache", "_counts", "_existing", "_known", "_namespace_labels", "_pod",
        "_terms",
    )  # fmt: skip

    def __init__(
        self,
        pod: PodInfo,
        namespace_labels: Mapping[str, str],
        terms: IncomingCounts,
        existing: Sequence[ExistingTermCounts],
        cache: ViolationCache | None = None,
        adjustments: Adjustments | None = None,
        known: _Matched | None = None,
    ) -> None:
        """``cache`` must belong to pods with the same ``terms`` and ``existing``, and ``known`` to
        those with the same ``terms``."""
        self._cache = ViolationCache() if cache is None else cache
        self._pod = pod
        self._namespace_labels = namespace_labels
        self._terms = terms
        self._existing = existing
        self._counts: dict[Violation, Sequence[ExistingTermCounts | IncomingTermCounts]] = {
            Violation.AFFINITY: terms.affinity,
            Violation.ANTI_AFFINITY: terms.anti_affinity,
            Violation.EXISTING_ANTI_AFFINITY: existing,
        }
        self._known: _Matched = {} if known is None else known
        """By label set; shared with clones."""
        self._adjustments: Adjustments = {} if adjustments is None else adjustments

    def clone(self) -> RequiredAffinity:
        adjustments = {place: dict(by_value) for place, by_value in self._adjustments.items()}
        return RequiredAffinity(
            self._pod,
            self._namespace_labels,
            self._terms,
            self._existing,
            adjustments=adjustments,
            known=self._known,
        )

    def unavoidable(self, cluster: Cluster) -> BoolColumn | None:
        """Where an anti-affinity term of the pod selects a pod on another node of the domain: no
        preemption on the node itself helps. None if that is unknown."""
        if self._terms.affinity or self._adjustments:
            return None
        violated: BoolColumn | None = None
        for term in self._terms.anti_affinity:
            here = term.counts.by_row > term.selected.by_row(cluster).column
            violated = here if violated is None else violated | here
        return violated

    def update(self, other: PodInfo, node: NodeInfo, sign: int) -> None:
        """Add another pod to the node (1), or remove it (-1)."""
        labels = node.labels
        for term_holder in terms_of(other.shape, other.namespace)[TermKind.REQUIRED_ANTI_AFFINITY]:
            if term_holder.term.matches(self._pod.label_set, self._namespace_labels):
                self._adjust(
                    Violation.EXISTING_ANTI_AFFINITY, term_holder.term.topology_key, labels, sign
                )
        for violation, key, number in self._matched(other.label_set):
            self._adjust(violation, key, labels, sign * number)

    def _matched(self, labels: LabelSet) -> Sequence[tuple[Violation, str, int]]:
        """What a pod with these labels adds to the counts of the pod's own terms."""
        known = self._known.get(labels.number)
        if known is None:
            if len(self._known) >= _MAX_LABEL_SETS:
                self._known.clear()
            known = self._known[labels.number] = [
                (violation, term.topology_key, weight)
                for violation, terms in (
                    (Violation.AFFINITY, self._terms.affinity),
                    (Violation.ANTI_AFFINITY, self._terms.anti_affinity),
                )
                for term in terms
                for query, weight in term.selected.queries
                if query.matches(labels)
            ]
        return known

    def _adjust(
        self, violation: Violation, topology_key: str, labels: Mapping[str, str], sign: int
    ) -> None:
        domain = labels.get(topology_key)
        if domain is not None:
            by_value = self._adjustments.setdefault((violation, topology_key), {})
            by_value[domain] = by_value.get(domain, 0) + sign

    def violations(self, nodes: Nodes) -> ViolationBits | None:
        """By row, the bits of each :class:`Violation` that rejects the node; None if no node is
        rejected."""
        version: list[object] = [self._is_first_of_group]
        has_match = None
        for terms in self._counts.values():
            for term in terms:
                counts = term.counts
                has_match = counts.has_match
                version += (id(counts), counts.match_version)
        if self._adjustments or has_match is None or nodes.align(has_match) is not has_match:
            return self._compute_violations(nodes)
        return self._cache.get(version, lambda: self._compute_violations(nodes))

    def _compute_violations(self, nodes: Nodes) -> ViolationBits | None:
        found: ViolationBits | None = None
        for violation in Violation:
            if not self._counts[violation] and not self._adjustments:
                continue
            if violation is Violation.AFFINITY:
                violated = self._affinity_violations(nodes)
            else:
                violated = self._anti_affinity_violations(violation, nodes)
            if violated is not None:
                bits = np.multiply(violated, np.int16(violation), dtype=np.int16)
                found = bits if found is None else found | bits
        return found

    def _affinity_violations(self, nodes: Nodes) -> BoolColumn | None:
        """Where a topology key is missing or, unless the pod is the first of its group, no matching
        pod is in the domain."""
        violated: BoolColumn | None = None
        is_first = self._is_first_of_group
        for key in dict.fromkeys(term.topology_key for term in self._terms.affinity):
            here = ~nodes.label(key).present if is_first else self._without_match(key, nodes)
            violated = here if violated is None else violated | here
        return violated

    def _anti_affinity_violations(self, violation: Violation, nodes: Nodes) -> BoolColumn | None:
        """Where a matching pod is in a domain of the node."""
        violated: BoolColumn | None = None
        if not self._adjustments:
            for term in self._counts[violation]:
                here = nodes.align(term.counts.has_match)
                violated = here if violated is None else violated | here
            return violated
        keys = (term.topology_key for term in self._counts[violation])
        adjusted = (key for of_violation, key in self._adjustments if of_violation is violation)
        for key in dict.fromkeys((*keys, *adjusted)):
            here = self._matches(violation, key, nodes) > 0
            violated = here if violated is None else violated | here
        return violated

    def _without_match(self, topology_key: str, nodes: Nodes) -> BoolColumn:
        """Where no pod that matches the required affinity is in the domain; true without the
        label."""
        counts = [t.counts for t in self._terms.affinity if t.topology_key == topology_key]
        if len(counts) == 1 and not self._adjustments:
            return ~nodes.align(counts[0].has_match)
        return self._matches(Violation.AFFINITY, topology_key, nodes) <= 0

    def _matches(self, violation: Violation, topology_key: str, nodes: Nodes) -> Int64Column:
        """The number of matching pods in the domain of each node; 0 without the label."""
        number: Int64Column | None = None
        for term in self._counts[violation]:
            if term.topology_key == topology_key:
                column = nodes.align(term.counts.by_row)
                number = column if number is None else number + column
        if number is None:
            number = np.zeros(nodes.size, np.int64)
        for value, change in self._adjustments.get((violation, topology_key), {}).items():
            number = number + nodes.label(topology_key).is_in((value,)) * np.int64(change)
        return number

    @property
    def _is_first_of_group(self) -> bool:
        """Whether no existing pod matches the required affinity, but the pod itself does."""
        for term in self._terms.affinity:
            adjusted = self._adjustments.get((Violation.AFFINITY, term.topology_key), {})
            if term.counts.total + sum(adjusted.values()):
                return False
        return all(
            query.matches(self._pod.label_set)
            for term in self._terms.affinity
            for query, _ in term.selected.queries
        )
