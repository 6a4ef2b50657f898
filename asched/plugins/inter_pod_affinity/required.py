"""Required affinity and anti-affinity of an incoming pod and of existing pods, for all nodes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import IntEnum
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from asched.framework.nodes import BoolColumn, Int64Column, NodeInfo, Nodes
from asched.framework.pod_info import PodInfo
from asched.framework.pod_queries import PodQuery, TermKind, terms_of
from asched.framework.topology import DomainCounts

Codes = NDArray[np.int16]


class ExistingTermCounts(NamedTuple):
    """Existing pods with a required anti-affinity term that selects the incoming pod."""

    topology_key: str
    counts: DomainCounts


class IncomingTermCounts(NamedTuple):
    """Existing pods that a term of the incoming pod selects."""

    query: PodQuery
    topology_key: str
    counts: DomainCounts
    """Must be updated before use."""
    weight: int
    """Negative for anti-affinity."""


class AffinityTerms(NamedTuple):
    """The terms of an incoming pod, with the namespaces that they select now."""

    affinity: tuple[IncomingTermCounts, ...] = ()
    """For each topology key of the required affinity: pods that match *all* its terms."""
    anti_affinity: tuple[IncomingTermCounts, ...] = ()
    """For each required anti-affinity term."""
    preferred: tuple[IncomingTermCounts, ...] = ()


class Rule(IntEnum):
    """Why a node is rejected, in the order in which it is reported."""

    AFFINITY = 1
    ANTI_AFFINITY = 2
    EXISTING_ANTI_AFFINITY = 4


Adjustments = dict[tuple[Rule, str], dict[str, int]]
"""By rule and topology key: the change of the count by domain."""


class FailureCache:
    """The last result of :meth:`RequiredAffinity.failures` for all nodes.

    Valid until a domain gets its first matching pod or loses its last one.
    """

    __slots__ = ("_codes", "_version")

    def __init__(self) -> None:
        self._version: object = None
        self._codes: Codes | None = None

    def get(self, version: object, compute: Callable[[], Codes | None]) -> Codes | None:
        """None if no node fails."""
        if version != self._version:
            codes = compute()
            self._codes = None if codes is None or not codes.any() else codes
            self._version = version
        return self._codes


class RequiredAffinity:
    """The matching pods in the domains of each node, for one attempt.

    The counts are shared and not changed here: :meth:`update` keeps hypothetical changes
    separately.
    """

    __slots__ = ("_adjustments", "_cache", "_counts", "_namespace_labels", "_pod", "_terms")

    def __init__(
        self,
        pod: PodInfo,
        namespace_labels: Mapping[str, str],
        terms: AffinityTerms,
        existing: Sequence[ExistingTermCounts],
        cache: FailureCache | None = None,
        adjustments: Adjustments | None = None,
    ) -> None:
        """``cache`` must belong to pods with the same ``terms`` and ``existing``."""
        self._cache = FailureCache() if cache is None else cache
        self._pod = pod
        self._namespace_labels = namespace_labels
        self._terms = terms
        self._counts: dict[Rule, Sequence[ExistingTermCounts | IncomingTermCounts]] = {
            Rule.AFFINITY: terms.affinity,
            Rule.ANTI_AFFINITY: terms.anti_affinity,
            Rule.EXISTING_ANTI_AFFINITY: existing,
        }
        self._adjustments: Adjustments = {} if adjustments is None else adjustments

    # -- AddPod and RemovePod -----------------------------------------------------------------

    def clone(self) -> RequiredAffinity:
        existing = [
            ExistingTermCounts(term.topology_key, term.counts)
            for term in self._counts[Rule.EXISTING_ANTI_AFFINITY]
        ]
        adjustments = {place: dict(by_value) for place, by_value in self._adjustments.items()}
        return RequiredAffinity(
            self._pod, self._namespace_labels, self._terms, existing, adjustments=adjustments
        )

    def update(self, other: PodInfo, node: NodeInfo, sign: int) -> None:
        """Add another pod to the node (1), or remove it (-1)."""
        for held in terms_of(other.shape, other.namespace)[TermKind.REQUIRED_ANTI_AFFINITY]:
            if held.term.matches(self._pod.label_set, self._namespace_labels):
                self._adjust(Rule.EXISTING_ANTI_AFFINITY, held.term.topology_key, node, sign)
        for rule, terms in (
            (Rule.AFFINITY, self._terms.affinity),
            (Rule.ANTI_AFFINITY, self._terms.anti_affinity),
        ):
            for term in terms:
                if term.query.matches(other.label_set):
                    self._adjust(rule, term.topology_key, node, sign)

    def _adjust(self, rule: Rule, topology_key: str, node: NodeInfo, sign: int) -> None:
        domain = node.labels.get(topology_key)
        if domain is not None:
            by_value = self._adjustments.setdefault((rule, topology_key), {})
            by_value[domain] = by_value.get(domain, 0) + sign

    # -- filter -------------------------------------------------------------------------------

    def failures(self, nodes: Nodes) -> Codes | None:
        """By row, the bits of each :class:`Rule` that rejects the node; None if no node is
        rejected."""
        version: list[object] = [self._is_first_of_group]
        near = None
        for terms in self._counts.values():
            for term in terms:
                counts = term.counts
                near = counts.near
                version += (id(counts), counts.crossings)
        if self._adjustments or near is None or nodes.align(near) is not near:
            return self._compute_failures(nodes)
        return self._cache.get(version, lambda: self._compute_failures(nodes))

    def _compute_failures(self, nodes: Nodes) -> Codes | None:
        codes: Codes | None = None
        for rule in Rule:
            if not self._counts[rule] and not self._adjustments:
                continue
            if rule is Rule.AFFINITY:
                failing = self._affinity_failures(nodes)
            else:
                failing = self._anti_affinity_failures(rule, nodes)
            if failing is not None:
                bits = np.multiply(failing, np.int16(rule), dtype=np.int16)
                codes = bits if codes is None else codes | bits
        return codes

    def _affinity_failures(self, nodes: Nodes) -> BoolColumn | None:
        """Where a topology key is missing or, unless the pod is the first of its group, no matching
        pod is in the domain."""
        failing: BoolColumn | None = None
        is_first = self._is_first_of_group
        for key in dict.fromkeys(term.topology_key for term in self._terms.affinity):
            here = ~nodes.label(key).present if is_first else self._without_match(key, nodes)
            failing = here if failing is None else failing | here
        return failing

    def _anti_affinity_failures(self, rule: Rule, nodes: Nodes) -> BoolColumn | None:
        """Where a matching pod is in a domain of the node."""
        failing: BoolColumn | None = None
        if not self._adjustments:
            for term in self._counts[rule]:
                here = nodes.align(term.counts.near)
                failing = here if failing is None else failing | here
            return failing
        keys = (term.topology_key for term in self._counts[rule])
        adjusted = (key for of_rule, key in self._adjustments if of_rule is rule)
        for key in dict.fromkeys((*keys, *adjusted)):
            here = self._matches(rule, key, nodes) > 0
            failing = here if failing is None else failing | here
        return failing

    def _without_match(self, topology_key: str, nodes: Nodes) -> BoolColumn:
        """Where no pod that matches the required affinity is in the domain; true without the
        label."""
        counts = [t.counts for t in self._terms.affinity if t.topology_key == topology_key]
        if len(counts) == 1 and not self._adjustments:
            return ~nodes.align(counts[0].near)
        return self._matches(Rule.AFFINITY, topology_key, nodes) <= 0

    def _matches(self, rule: Rule, topology_key: str, nodes: Nodes) -> Int64Column:
        """The number of matching pods in the domain of each node; 0 without the label."""
        number: Int64Column | None = None
        for term in self._counts[rule]:
            if term.topology_key == topology_key:
                column = nodes.align(term.counts.by_row)
                number = column if number is None else number + column
        if number is None:
            number = np.zeros(nodes.size, np.int64)
        for value, change in self._adjustments.get((rule, topology_key), {}).items():
            number = number + nodes.label(topology_key).is_in((value,)) * np.int64(change)
        return number

    @property
    def _is_first_of_group(self) -> bool:
        """Whether no existing pod matches the required affinity, but the pod itself does."""
        for term in self._terms.affinity:
            adjusted = self._adjustments.get((Rule.AFFINITY, term.topology_key), {})
            if term.counts.total + sum(adjusted.values()):
                return False
        return all(term.query.matches(self._pod.label_set) for term in self._terms.affinity)
