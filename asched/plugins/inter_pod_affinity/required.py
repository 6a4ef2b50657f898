"""The pods near each node, as required affinity and anti-affinity look at them."""

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


class CountedTerm(NamedTuple):
    """Pods that matter to a rule, by the domains of a topology key."""

    topology_key: str
    counts: DomainCounts


class WantedTerm(NamedTuple):
    """Pods that terms of the incoming pod speak of, and the domains it counts them by."""

    query: PodQuery
    topology_key: str
    counts: DomainCounts
    """As of the last look; to be followed before use."""
    weight: int
    """Negative where the pods are to be kept away from."""


class AffinityTerms(NamedTuple):
    """The terms of an incoming pod, with the namespaces they select as they are now."""

    together: tuple[WantedTerm, ...] = ()
    """The pods that satisfy *all* required affinity terms, for each topology key of those."""
    apart: tuple[WantedTerm, ...] = ()
    """For each required anti-affinity term."""
    preferred: tuple[WantedTerm, ...] = ()


class RequiredTerm(IntEnum):
    """What can keep a pod off a node, in the order in which it is reported."""

    TOGETHER = 1
    APART = 2
    EXISTING_APART = 4


class KnownFailures:
    """What :meth:`RequiredAffinity.failures` found of all nodes, good while no domain begins or ceases to
    hold pods. Memory, not state."""

    __slots__ = ("_as_of", "_codes")

    def __init__(self) -> None:
        self._as_of: object = None
        self._codes: NDArray[np.int16] | None = None

    def get(
        self, as_of: object, work_out: Callable[[], NDArray[np.int16] | None]
    ) -> NDArray[np.int16] | None:
        """None where no node fails."""
        if as_of != self._as_of:
            codes = work_out()
            self._codes = None if codes is None or not codes.any() else codes
            self._as_of = as_of
        return self._codes


class RequiredAffinity:
    """How many pods that matter to a rule are near each node.

    The counts are shared and never changed here; :meth:`shift` notes what is supposed to be
    otherwise.
    """

    __slots__ = ("_counted", "_known", "_namespace_labels", "_pod", "_shifts", "_wishes")

    def __init__(
        self,
        pod: PodInfo,
        namespace_labels: Mapping[str, str],
        wishes: AffinityTerms,
        existing: Sequence[CountedTerm],
        known: KnownFailures | None = None,
    ) -> None:
        """``existing``: the pods whose required anti-affinity means the incoming pod. ``known``: of
        pods with these wishes, as long as the same pods on nodes have terms that mean them."""
        self._known = KnownFailures() if known is None else known
        self._pod = pod
        self._namespace_labels = namespace_labels
        self._wishes = wishes
        self._counted: dict[RequiredTerm, Sequence[CountedTerm | WantedTerm]] = {
            RequiredTerm.TOGETHER: wishes.together,
            RequiredTerm.APART: wishes.apart,
            RequiredTerm.EXISTING_APART: existing,
        }
        self._shifts: dict[tuple[RequiredTerm, str], dict[str, int]] = {}

    # -- suppositions -------------------------------------------------------------------------

    def clone(self) -> RequiredAffinity:
        existing = [
            CountedTerm(c.topology_key, c.counts)
            for c in self._counted[RequiredTerm.EXISTING_APART]
        ]
        twin = RequiredAffinity(self._pod, self._namespace_labels, self._wishes, existing)
        twin._shifts = {place: dict(by_value) for place, by_value in self._shifts.items()}
        return twin

    def shift(self, other: PodInfo, node: NodeInfo, sign: int) -> None:
        """As if another pod were on the node too (1), or not there (-1)."""
        for held in terms_of(other.shape, other.namespace)[TermKind.REQUIRED_ANTI_AFFINITY]:
            if held.term.matches(self._pod.label_set, self._namespace_labels):
                self._shift(RequiredTerm.EXISTING_APART, held.term.topology_key, node, sign)
        for rule, wishes in (
            (RequiredTerm.TOGETHER, self._wishes.together),
            (RequiredTerm.APART, self._wishes.apart),
        ):
            for wanted in wishes:
                if wanted.query.matches(other.label_set):
                    self._shift(rule, wanted.topology_key, node, sign)

    def _shift(self, rule: RequiredTerm, topology_key: str, node: NodeInfo, sign: int) -> None:
        domain = node.labels.get(topology_key)
        if domain is not None:
            by_value = self._shifts.setdefault((rule, topology_key), {})
            by_value[domain] = by_value.get(domain, 0) + sign

    # -- answers ------------------------------------------------------------------------------

    def failures(self, nodes: Nodes) -> NDArray[np.int16] | None:
        """The rules that each node fails, as bits of :class:`RequiredTerm`; None where no node fails any."""
        as_of: list[object] = [self._may_be_first]
        near = None
        for of_rule in self._counted.values():
            for counted in of_rule:
                counts = counted.counts
                near = counts.near
                as_of += (id(counts), counts.crossings)
        if self._shifts or near is None or nodes.align(near) is not near:
            return self._failures(nodes)
        return self._known.get(as_of, lambda: self._failures(nodes))

    def _failures(self, nodes: Nodes) -> NDArray[np.int16] | None:
        codes: NDArray[np.int16] | None = None
        for rule in RequiredTerm:
            if not self._counted[rule] and not self._shifts:
                continue
            crowding = rule is not RequiredTerm.TOGETHER
            failing = self._crowded(rule, nodes) if crowding else self._lonely(nodes)
            if failing is not None:
                bits = np.multiply(failing, np.int16(rule), dtype=np.int16)
                codes = bits if codes is None else codes | bits
        return codes

    def _lonely(self, nodes: Nodes) -> BoolColumn | None:
        """Where a required affinity is not met: all topology keys must be there, and pods near by
        each of them, unless the pod is the first of its group."""
        failing: BoolColumn | None = None
        may_be_first = self._may_be_first
        for key in dict.fromkeys(wanted.topology_key for wanted in self._wishes.together):
            if may_be_first:
                here = ~nodes.label(key).present
            else:
                # A node without the label is near nobody.
                here = self._alone(key, nodes)
            failing = here if failing is None else failing | here
        return failing

    def _crowded(self, rule: RequiredTerm, nodes: Nodes) -> BoolColumn | None:
        """Where any pod of the rule is near."""
        failing: BoolColumn | None = None
        if not self._shifts:
            for counted in self._counted[rule]:
                here = nodes.align(counted.counts.near)
                failing = here if failing is None else failing | here
            return failing
        keys = (c.topology_key for c in self._counted[rule])
        supposed = (key for of_rule, key in self._shifts if of_rule is rule)
        for key in dict.fromkeys((*keys, *supposed)):
            here = self._near(rule, key, nodes) > 0
            failing = here if failing is None else failing | here
        return failing

    def _alone(self, topology_key: str, nodes: Nodes) -> BoolColumn:
        """Where no pod that the pod wants to be with is near by that key."""
        held = [w.counts for w in self._wishes.together if w.topology_key == topology_key]
        if len(held) == 1 and not self._shifts:
            return ~nodes.align(held[0].near)
        return self._near(RequiredTerm.TOGETHER, topology_key, nodes) <= 0

    def _near(self, rule: RequiredTerm, topology_key: str, nodes: Nodes) -> Int64Column:
        """How many pods are in the domain of each node; none where the node has no such label."""
        number: Int64Column | None = None
        for counted in self._counted[rule]:
            if counted.topology_key == topology_key:
                column = nodes.align(counted.counts.by_row)
                number = column if number is None else number + column
        if number is None:
            number = np.zeros(nodes.size, np.int64)
        for value, shift in self._shifts.get((rule, topology_key), {}).items():
            number = number + nodes.label(topology_key).is_in((value,)) * np.int64(shift)
        return number

    @property
    def _may_be_first(self) -> bool:
        """Whether no pod in any domain satisfies the required affinity, but the pod itself would:
        then it need not wait for a first pod of its group."""
        for wanted in self._wishes.together:
            supposed = self._shifts.get((RequiredTerm.TOGETHER, wanted.topology_key), {})
            if wanted.counts.total + sum(supposed.values()):
                return False
        return all(w.query.matches(self._pod.label_set) for w in self._wishes.together)
