"""InterPodAffinity: near the pods one wants to be near, away from those one does not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum
from typing import ClassVar, NamedTuple

import numpy as np

from asched.framework.cycle_state import CycleState, StateKey
from asched.framework.events import (
    ActionType,
    ClusterEvent,
    ClusterEventWithHint,
    EventResource,
    QueueingHint,
)
from asched.framework.interface import (
    Arguments,
    EnqueueExtensions,
    FilterAllPlugin,
    Handle,
    NormalizeScore,
    PreFilterExtensions,
    PreFilterPlugin,
    PreFilterResult,
    PreScorePlugin,
    Scope,
    ScoreAllPlugin,
)
from asched.framework.labels import LabelSet, label_set_of
from asched.framework.memo import Memo
from asched.framework.nodes import MAX_NODE_SCORE, Int64Column, NodeInfo, Nodes, Verdicts
from asched.framework.pod_info import PodInfo, PodShape, shape_of
from asched.framework.pod_queries import (
    AffinityTerm,
    PodQuery,
    PodTerms,
    Selector,
    TermHolders,
    TermKind,
    WeightedTerm,
    terms_of,
)
from asched.framework.status import SUCCESS, Status
from asched.framework.topology import DomainCounts, DomainIndex
from asched.model.meta import Object
from asched.model.node import Node
from asched.model.pod import Pod
from asched.model.selectors import LabelSelector
from asched.model.workloads import Namespace

AFFINITY_UNMET = Status.unresolvable("node(s) didn't match pod affinity rules")
ANTI_AFFINITY_UNMET = Status.unschedulable("node(s) didn't match pod anti-affinity rules")
EXISTING_ANTI_AFFINITY_UNMET = Status.unschedulable(
    "node(s) didn't satisfy existing pods anti-affinity rules"
)

_STATUSES = (AFFINITY_UNMET, ANTI_AFFINITY_UNMET, EXISTING_ANTI_AFFINITY_UNMET)
_SKIP = PreFilterResult(Status.skip())
_PROCEED = PreFilterResult(SUCCESS)
_EVERYTHING = Selector(LabelSelector())

_MOST_SHAPES = 1024
_MOST_LABEL_SETS = 1024
_MOST_COUNTS = 256
_MAX_HARD_WEIGHT = 100


class InterPodAffinityArgs(Arguments, frozen=True):
    """What a *required* affinity of an existing pod is worth to the pods it wants near it, and
    whether preferences of existing pods count for a pod that has none itself."""

    hard_pod_affinity_weight: int = 1
    ignore_preferred_terms_of_existing_pods: bool = False

    def __post_init__(self) -> None:
        weight = self.hard_pod_affinity_weight
        if not 0 <= weight <= _MAX_HARD_WEIGHT:
            raise ValueError(
                f"hardPodAffinityWeight: Invalid value: {weight}: not in valid range [0, 100]"
            )


class Wanted(NamedTuple):
    """Pods that a term of the incoming pod speaks of, and the domains it counts them by."""

    query: PodQuery
    topology_key: str
    weight: int
    """Negative where they are to be kept away from."""


class Wishes(NamedTuple):
    """The terms of an incoming pod, with the namespaces they select as they are now."""

    together: PodQuery | None
    """The pods that satisfy *all* required affinity terms; None where there are none."""
    together_keys: tuple[str, ...]
    apart: tuple[Wanted, ...]
    preferred: tuple[Wanted, ...]


class Rule(Enum):
    """What can keep a pod off a node, in the order in which it is reported."""

    TOGETHER = 0
    APART = 1
    EXISTING_APART = 2


class Neighbours:
    """How many pods that matter to a rule the domains of each topology key hold.

    The counts are shared and never changed here; :meth:`shift` notes what is supposed to be
    otherwise.
    """

    __slots__ = ("_counts", "_namespace_labels", "_pod", "_shifts", "wishes")

    def __init__(self, pod: PodInfo, wishes: Wishes, namespace_labels: Mapping[str, str]) -> None:
        self.wishes = wishes
        self._pod = pod
        self._namespace_labels = namespace_labels
        self._counts: dict[Rule, dict[str, list[DomainCounts]]] = {rule: {} for rule in Rule}
        self._shifts: dict[tuple[Rule, str], dict[str, int]] = {}

    def count(self, rule: Rule, topology_key: str, counts: DomainCounts) -> None:
        self._counts[rule].setdefault(topology_key, []).append(counts)

    def clone(self) -> Neighbours:
        twin = Neighbours(self._pod, self.wishes, self._namespace_labels)
        twin._counts = self._counts
        twin._shifts = {place: dict(by_value) for place, by_value in self._shifts.items()}
        return twin

    def shift(self, other: PodInfo, node: NodeInfo, sign: int) -> None:
        """As if another pod were on the node too (1), or not there (-1)."""
        for held in terms_of(other.shape, other.namespace)[TermKind.REQUIRED_ANTI_AFFINITY]:
            if held.term.matches(self._pod.label_set, self._namespace_labels):
                self._shift(Rule.EXISTING_APART, held.term.topology_key, node, sign)
        together = self.wishes.together
        if together is not None and together.matches(other.label_set):
            for key in self.wishes.together_keys:
                self._shift(Rule.TOGETHER, key, node, sign)
        for wanted in self.wishes.apart:
            if wanted.query.matches(other.label_set):
                self._shift(Rule.APART, wanted.topology_key, node, sign)

    def _shift(self, rule: Rule, topology_key: str, node: NodeInfo, sign: int) -> None:
        domain = node.labels.get(topology_key)
        if domain is not None:
            by_value = self._shifts.setdefault((rule, topology_key), {})
            by_value[domain] = by_value.get(domain, 0) + sign

    def keys(self, rule: Rule) -> Sequence[str]:
        """The topology keys by which anything is counted for a rule."""
        shifted = (key for of_rule, key in self._shifts if of_rule is rule)
        return tuple(dict.fromkeys((*self._counts[rule], *shifted)))

    def near(self, rule: Rule, topology_key: str, nodes: Nodes) -> Int64Column:
        """How many pods are in the domain of each node; zero where the node has no such label."""
        number: Int64Column | None = None
        for counts in self._counts[rule].get(topology_key, ()):
            column = nodes.align(counts.by_row)
            number = column if number is None else number + column
        if number is None:
            number = np.zeros(nodes.size, np.int64)
        for value, shift in self._shifts.get((rule, topology_key), {}).items():
            number = number + nodes.label(topology_key).is_in((value,)) * np.int64(shift)
        return number

    @property
    def alone(self) -> bool:
        """Whether no pod in any domain satisfies the required affinity, but the pod itself would:
        then it may be the first of its group."""
        for key in self.wishes.together_keys:
            number = sum(counts.total for counts in self._counts[Rule.TOGETHER][key])
            if number + sum(self._shifts.get((Rule.TOGETHER, key), {}).values()):
                return False
        together = self.wishes.together
        return together is not None and together.matches(self._pod.label_set)


_NEIGHBOURS: StateKey[Neighbours] = StateKey("InterPodAffinity/filter")
_RAW_SCORES: StateKey[Int64Column] = StateKey("InterPodAffinity/score")


class InterPodAffinity(
    PreFilterPlugin,
    FilterAllPlugin,
    PreFilterExtensions,
    PreScorePlugin,
    ScoreAllPlugin,
    NormalizeScore,
    EnqueueExtensions,
):
    """Rejects nodes by required affinity and anti-affinity, of the pod and of the pods that are
    there; scores by the preferred terms of both, and by the required affinity of existing pods."""

    name: ClassVar[str] = "InterPodAffinity"
    api_version: ClassVar[int] = 1
    arguments: ClassVar[type[InterPodAffinityArgs]] = InterPodAffinityArgs
    scope: ClassVar[Scope] = Scope.CLUSTER

    def __init__(self, args: InterPodAffinityArgs, handle: Handle) -> None:
        super().__init__(args, handle)
        self._hard_weight = args.hard_pod_affinity_weight
        self._needs_own_preferences = args.ignore_preferred_terms_of_existing_pods
        self._domains = DomainIndex()
        self._counts: Memo[tuple[object, str], DomainCounts] = Memo(_MOST_COUNTS)
        # What depends on the labels of namespaces is forgotten when any of those change.
        self._namespaces_version = -1
        self._wishes: Memo[tuple[PodShape, str], Wishes] = Memo(_MOST_SHAPES)
        self._holders: Memo[tuple[TermKind, int], _Matching] = Memo(_MOST_LABEL_SETS)

    # -- filter -------------------------------------------------------------------------------

    def pre_filter(self, state: CycleState, pod: PodInfo, nodes: Nodes) -> PreFilterResult:
        wishes = self._wishes_of(pod.shape, pod.namespace)
        neighbours = Neighbours(pod, wishes, self._namespace_labels(pod.namespace))
        existing = self._terms_for(pod.label_set, TermKind.REQUIRED_ANTI_AFFINITY)
        anyone = False
        for held in existing:
            counts = self._holders_by_domain(TermKind.REQUIRED_ANTI_AFFINITY, held)
            if counts.total:
                anyone = True
                neighbours.count(Rule.EXISTING_APART, held.term.topology_key, counts)
        if not anyone and wishes.together is None and not wishes.apart:
            return _SKIP
        if wishes.together is not None:
            for key in wishes.together_keys:
                neighbours.count(Rule.TOGETHER, key, self._pods_by_domain(wishes.together, key))
        for query, key, _ in wishes.apart:
            neighbours.count(Rule.APART, key, self._pods_by_domain(query, key))
        state.write(_NEIGHBOURS, neighbours)
        return _PROCEED

    def filter_all(self, state: CycleState, pod: PodInfo, nodes: Nodes) -> Verdicts:
        neighbours = state.read(_NEIGHBOURS)
        codes = np.zeros(nodes.size, np.int16)
        # From the last to be reported to the first, so that the first is what remains.
        for code, rule in ((3, Rule.EXISTING_APART), (2, Rule.APART)):
            for key in neighbours.keys(rule):
                np.putmask(codes, neighbours.near(rule, key, nodes) > 0, np.int16(code))
        if neighbours.wishes.together_keys:
            self._refuse_lonely(neighbours, nodes, codes)
        return Verdicts(codes, _STATUSES)

    @staticmethod
    def _refuse_lonely(neighbours: Neighbours, nodes: Nodes, codes: np.ndarray) -> None:
        """Where a required affinity is not met: all keys must be there, and near pods, unless the
        pod is the first of its group."""
        alone = neighbours.alone
        for key in neighbours.wishes.together_keys:
            if alone:
                lonely = ~nodes.label(key).present
            else:
                # A node without the label is near nobody.
                lonely = neighbours.near(Rule.TOGETHER, key, nodes) <= 0
            np.putmask(codes, lonely, np.int16(1))

    def add_pod(self, state: CycleState, pod: PodInfo, added: PodInfo, node: NodeInfo) -> Status:
        state.read(_NEIGHBOURS).shift(added, node, 1)
        return SUCCESS

    def remove_pod(
        self, state: CycleState, pod: PodInfo, removed: PodInfo, node: NodeInfo
    ) -> Status:
        state.read(_NEIGHBOURS).shift(removed, node, -1)
        return SUCCESS

    # -- score --------------------------------------------------------------------------------

    def pre_score(self, state: CycleState, pod: PodInfo, nodes: Nodes) -> Status:
        wishes = self._wishes_of(pod.shape, pod.namespace)
        if self._needs_own_preferences and not wishes.preferred:
            return Status.skip()
        worth = [
            (self._pods_by_domain(query, key), weight) for query, key, weight in wishes.preferred
        ]
        for kind, factor in (
            (TermKind.REQUIRED_AFFINITY, self._hard_weight),
            (TermKind.PREFERRED_AFFINITY, 1),
            (TermKind.PREFERRED_ANTI_AFFINITY, -1),
        ):
            if factor:
                worth += [
                    (self._holders_by_domain(kind, held), held.weight * factor)
                    for held in self._terms_for(pod.label_set, kind)
                ]
        total: Int64Column | None = None
        for counts, weight in worth:
            if counts.total:
                score = counts.by_row * np.int64(weight)
                total = score if total is None else np.add(total, score, out=total)
        if total is None:
            return Status.skip()
        state.write(_RAW_SCORES, total)
        return SUCCESS

    def score_all(self, state: CycleState, pod: PodInfo, nodes: Nodes) -> Int64Column:
        return nodes.align(state.read(_RAW_SCORES))

    def normalize(self, state: CycleState, pod: PodInfo, scores: Int64Column) -> Int64Column:
        """From the lowest to the highest, in floating point, cut off; 0 where all are equal."""
        lowest = int(scores.min(initial=np.iinfo(np.int64).max))
        span = int(scores.max(initial=np.iinfo(np.int64).min)) - lowest
        if span <= 0:
            return np.zeros(len(scores), np.int64)
        scaled: Int64Column = (MAX_NODE_SCORE * ((scores - lowest) / span)).astype(np.int64)
        return scaled

    # -- what is counted ----------------------------------------------------------------------

    def _pods_by_domain(self, query: PodQuery, key: str) -> DomainCounts:
        return self._by_domain(query, key, self.handle.cluster.count_pods(query))

    def _holders_by_domain(self, kind: TermKind, held: TermHolders) -> DomainCounts:
        term = held.term
        source = (kind, term, held.weight)
        return self._by_domain(source, term.topology_key, held.holders)

    def _by_domain(self, source: object, key: str, column: Int64Column) -> DomainCounts:
        domains = self._domains.of(self.handle.cluster.nodes, key)
        counts = self._counts.get((source, key), lambda: DomainCounts(domains, column))
        counts.follow(domains, column)
        return counts

    def _terms_for(self, labels: LabelSet, kind: TermKind) -> Sequence[TermHolders]:
        """The terms of pods on nodes that mean a pod with these labels."""
        every = self.handle.cluster.term_holders(kind)
        if not every:
            return ()
        self._heed_namespaces()
        matching = self._holders.get((kind, labels.number), _Matching)
        if matching.of is not every:
            namespace_labels = self._namespace_labels(labels.namespace)
            matching.of = every
            matching.terms = [held for held in every if held.term.matches(labels, namespace_labels)]
        return matching.terms

    def _wishes_of(self, shape: PodShape, namespace: str) -> Wishes:
        self._heed_namespaces()
        return self._wishes.get(
            (shape, namespace), lambda: self._resolve(terms_of(shape, namespace))
        )

    def _resolve(self, terms: PodTerms) -> Wishes:
        required = [weighted.term for weighted in terms[TermKind.REQUIRED_AFFINITY]]
        return Wishes(
            self._all_of(required) if required else None,
            tuple(dict.fromkeys(term.topology_key for term in required)),
            self._wanted(terms[TermKind.REQUIRED_ANTI_AFFINITY], -1),
            self._wanted(terms[TermKind.PREFERRED_AFFINITY], 1)
            + self._wanted(terms[TermKind.PREFERRED_ANTI_AFFINITY], -1),
        )

    def _all_of(self, terms: Sequence[AffinityTerm]) -> PodQuery:
        """The pods that satisfy every one of the terms."""
        namespaces: frozenset[str] | None = None
        for term in terms:
            of_term = self._namespaces_of(term)
            if of_term is not None:
                namespaces = of_term if namespaces is None else namespaces & of_term
        return PodQuery(tuple(term.selector for term in terms), namespaces)

    def _wanted(self, terms: Sequence[WeightedTerm], sign: int) -> tuple[Wanted, ...]:
        return tuple(
            Wanted(self._all_of([term]), term.topology_key, sign * weight) for term, weight in terms
        )

    def _namespaces_of(self, term: AffinityTerm) -> frozenset[str] | None:
        """Those named and those selected; None for any, known or not."""
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

    def _heed_namespaces(self) -> None:
        version = self.handle.cluster.objects_version(Namespace)
        if version != self._namespaces_version:
            self._namespaces_version = version
            self._wishes.clear()
            self._holders.clear()

    # -- queueing hints -----------------------------------------------------------------------

    def events_to_register(self) -> Sequence[ClusterEventWithHint]:
        return (
            ClusterEventWithHint(
                ClusterEvent(
                    EventResource.POD,
                    ActionType.ADD | ActionType.UPDATE_POD_LABEL | ActionType.DELETE,
                ),
                self._neighbour_changed,
            ),
            ClusterEventWithHint(
                ClusterEvent(EventResource.NODE, ActionType.ADD | ActionType.UPDATE_NODE_LABEL),
                self._domain_changed,
            ),
        )

    def _neighbour_changed(self, pod: Pod, old: Object | None, new: Object | None) -> QueueingHint:
        """A pod on a node came to be one that the waiting pod must be near, or ceased to be one
        that it must be away from or that wants it away.

        kube-scheduler looks at neither of the last two closely: it asks whether *all* anti-affinity
        terms of the waiting pod match, and not at all for terms of the pod that went, which leaves
        pods waiting for the next flush. Here either wakes it.
        """
        before = old if isinstance(old, Pod) else None
        after = new if isinstance(new, Pod) else None
        if any(other is not None and not other.node_name for other in (before, after)):
            return QueueingHint.SKIP
        wishes = self._wishes_of(shape_of(pod), pod.namespace)
        if _satisfies(after, wishes.together) and not _satisfies(before, wishes.together):
            return QueueingHint.QUEUE
        for wanted in wishes.apart:
            if _satisfies(before, wanted.query) and not _satisfies(after, wanted.query):
                return QueueingHint.QUEUE
        if before is not None and after is None and self._kept_away(pod, before):
            return QueueingHint.QUEUE
        return QueueingHint.SKIP

    def _kept_away(self, pod: Pod, other: Pod) -> bool:
        """Whether the other pod's required anti-affinity means this one."""
        terms = terms_of(shape_of(other), other.namespace)[TermKind.REQUIRED_ANTI_AFFINITY]
        namespace_labels = self._namespace_labels(pod.namespace)
        return any(term.matches(label_set_of(pod), namespace_labels) for term, _ in terms)

    def _domain_changed(self, pod: Pod, old: Object | None, new: Object | None) -> QueueingHint:
        """A node came that could meet the required affinity, or one moved to another domain of a
        topology key by which pods are kept apart or together."""
        if not isinstance(new, Node):
            return QueueingHint.SKIP
        wishes = self._wishes_of(shape_of(pod), pod.namespace)
        if not isinstance(old, Node):
            suits = all(key in new.labels for key in wishes.together_keys)
            return QueueingHint.QUEUE if suits else QueueingHint.SKIP
        existing = self._terms_for(label_set_of(pod), TermKind.REQUIRED_ANTI_AFFINITY)
        keys = (
            *wishes.together_keys,
            *(wanted.topology_key for wanted in wishes.apart),
            *(held.term.topology_key for held in existing),
        )
        moved = any(old.labels.get(key) != new.labels.get(key) for key in keys)
        return QueueingHint.QUEUE if moved else QueueingHint.SKIP


class _Matching:
    """Of the terms on nodes, as they were at the last look, those that mean one label set."""

    __slots__ = ("of", "terms")

    def __init__(self) -> None:
        self.of: Sequence[TermHolders] = ()
        self.terms: Sequence[TermHolders] = ()


def _satisfies(pod: Pod | None, query: PodQuery | None) -> bool:
    return pod is not None and query is not None and query.matches(label_set_of(pod))
