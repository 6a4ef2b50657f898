"""InterPodAffinity: near the pods one wants to be near, away from those one does not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar, NamedTuple

import numpy as np

from asched.framework.change_log import RowCounts
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
    PreFilterExtensions,
    PreFilterPlugin,
    PreFilterResult,
    PreScorePlugin,
    Scope,
)
from asched.framework.memo import Memo
from asched.framework.node_classes import NodeClasses, ScoresByClass
from asched.framework.nodes import (
    MAX_NODE_SCORE,
    Int64Column,
    NodeInfo,
    Nodes,
    Verdicts,
)
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
from asched.framework.scoring import of_each_value
from asched.framework.status import SUCCESS, Status
from asched.framework.topology import DomainCounts, DomainIndex
from asched.model.meta import Object
from asched.model.node import Node
from asched.model.pod import Pod
from asched.model.selectors import LabelSelector
from asched.model.workloads import Namespace
from asched.plugins.inter_pod_affinity.preferred import PreferredAffinityScores, TermWeight
from asched.plugins.inter_pod_affinity.required import (
    AffinityTerms,
    CountedTerm,
    KnownFailures,
    RequiredAffinity,
    WantedTerm,
)

AFFINITY_UNMET = Status.unresolvable("node(s) didn't match pod affinity rules")
ANTI_AFFINITY_UNMET = Status.unschedulable("node(s) didn't match pod anti-affinity rules")
EXISTING_ANTI_AFFINITY_UNMET = Status.unschedulable(
    "node(s) didn't satisfy existing pods anti-affinity rules"
)

# By the bits of Rule, less one: the first rule that fails is reported.
_STATUSES = (
    AFFINITY_UNMET,
    ANTI_AFFINITY_UNMET,
    AFFINITY_UNMET,
    EXISTING_ANTI_AFFINITY_UNMET,
    AFFINITY_UNMET,
    ANTI_AFFINITY_UNMET,
    AFFINITY_UNMET,
)
_SKIP = PreFilterResult(Status.skip())
_PROCEED = PreFilterResult(SUCCESS)
_EVERYTHING = Selector(LabelSelector())

_NO_WISHES = AffinityTerms()

_MOST_SHAPES = 256
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


class Followed(NamedTuple):
    """Counts that a pod depends on, and where their column comes from."""

    counts: DomainCounts
    topology_key: str
    query: PodQuery | None
    holders: RowCounts | None
    """The counts themselves, where they are those of a term's holders."""


class AffinityState:
    """All that there is to be counted for pods that are alike, by shape, namespace and labels. Good
    while the terms of the pods on nodes are the same."""

    __slots__ = ("as_of", "existing", "failures", "followed", "tally", "terms_version", "wishes")

    def __init__(self) -> None:
        self.terms_version = -1
        self.as_of = (-1, -1)
        """The versions of nodes and of the pods on them that the counts are up to date with."""
        self.wishes = _NO_WISHES
        self.existing: Sequence[CountedTerm] = ()
        """Pods whose required anti-affinity means such a pod."""
        self.failures = KnownFailures()
        self.tally: PreferredAffinityScores | None = None
        """What pods near by are worth; None where none counts."""
        self.followed: Sequence[Followed] = ()


_NEIGHBOURS: StateKey[RequiredAffinity] = StateKey("InterPodAffinity/filter")
_TALLY: StateKey[PreferredAffinityScores] = StateKey("InterPodAffinity/score")


class InterPodAffinity(
    PreFilterPlugin,
    FilterAllPlugin,
    PreFilterExtensions,
    PreScorePlugin,
    ScoresByClass,
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
        # What a term of an existing pod is worth to the pods it means, as a share of its weight.
        factors = {
            TermKind.REQUIRED_AFFINITY: args.hard_pod_affinity_weight,
            TermKind.PREFERRED_AFFINITY: 1,
            TermKind.PREFERRED_ANTI_AFFINITY: -1,
        }
        self._factors = [(kind, factor) for kind, factor in factors.items() if factor]
        self._needs_own_preferences = args.ignore_preferred_terms_of_existing_pods
        self._domains = DomainIndex()
        self._counts: Memo[tuple[object, str], DomainCounts] = Memo(_MOST_COUNTS)
        # What depends on the labels of namespaces is forgotten when any of those change.
        self._namespaces_version = -1
        self._wishes: Memo[tuple[PodShape, str], AffinityTerms] = Memo(_MOST_SHAPES)
        self._outlooks: Memo[tuple[PodShape, int], AffinityState] = Memo(_MOST_LABEL_SETS)

    # -- filter -------------------------------------------------------------------------------

    def concerns(self, pod: PodInfo) -> bool:
        return pod.shape.names_pods or self.handle.cluster.has_term_holders

    def pre_filter(self, state: CycleState, pod: PodInfo, nodes: Nodes) -> PreFilterResult:
        outlook = self._outlook(pod.shape, pod.label_set)
        wishes = outlook.wishes
        existing = [counted for counted in outlook.existing if counted.counts.total]
        if not existing and not wishes.together and not wishes.apart:
            return _SKIP
        namespace_labels = self._namespace_labels(pod.namespace)
        known = outlook.failures
        state.write(_NEIGHBOURS, RequiredAffinity(pod, namespace_labels, wishes, existing, known))
        return _PROCEED

    def filter_all(self, state: CycleState, pod: PodInfo, nodes: Nodes) -> Verdicts:
        failures = state.read(_NEIGHBOURS).failures(nodes)
        return Verdicts.passing(nodes.size) if failures is None else Verdicts(failures, _STATUSES)

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
        outlook = self._outlook(pod.shape, pod.label_set)
        if self._needs_own_preferences and not outlook.wishes.preferred:
            return Status.skip()
        tally = outlook.tally
        if tally is None or not tally.total:
            return Status.skip()
        tally.refresh()
        state.write(_TALLY, tally)
        return SUCCESS

    def score_all(self, state: CycleState, pod: PodInfo, nodes: Nodes) -> Int64Column:
        return nodes.align(state.read(_TALLY).raw)

    def node_classes(self, state: CycleState) -> NodeClasses:
        return state.read(_TALLY)

    def normalize(self, state: CycleState, pod: PodInfo, scores: Int64Column) -> Int64Column:
        """From the lowest to the highest, in floating point, cut off; 0 where all are equal."""
        if not len(scores):
            return scores.copy()
        tally = state.read(_TALLY)
        if tally.is_raw(scores):
            scaled = tally.scaled(_scale)
            return np.zeros(len(scores), np.int64) if scaled is None else scaled
        lowest = int(scores.min())
        span = int(scores.max()) - lowest
        if not span:
            return np.zeros(len(scores), np.int64)
        return of_each_value(lambda some: _scale(some, lowest, span), scores, lowest, lowest + span)

    # -- what is counted ----------------------------------------------------------------------

    def _outlook(self, shape: PodShape, labels: LabelSet) -> AffinityState:
        """What is to be counted for a pod, as of now."""
        cluster = self.handle.cluster
        self._heed_namespaces()
        outlook = self._outlooks.get((shape, labels.number), AffinityState)
        nodes, seen = cluster.nodes, cluster.pods_version
        as_of = (nodes.version, seen)
        if outlook.as_of == as_of:
            return outlook
        outlook.as_of = as_of
        terms_version = cluster.terms_version
        if outlook.terms_version != terms_version:
            self._survey(outlook, shape, labels)
            outlook.terms_version = terms_version
        domains_of = self._domains.of
        for counts, key, query, holders in outlook.followed:
            if query is not None:
                holders = cluster.row_counts(query)
            if holders is not None:
                counts.follow(domains_of(nodes, key), holders)
        return outlook

    def _survey(self, outlook: AffinityState, shape: PodShape, labels: LabelSet) -> None:
        wishes = outlook.wishes = self._wishes_of(shape, labels.namespace)
        existing = self._held(TermKind.REQUIRED_ANTI_AFFINITY, labels)
        outlook.existing = [CountedTerm(f.topology_key, f.counts) for f, _ in existing]
        worth = [TermWeight(wanted.counts, wanted.weight) for wanted in wishes.preferred]
        followed = [
            Followed(wanted.counts, wanted.topology_key, wanted.query, None)
            for wanted in (*wishes.together, *wishes.apart, *wishes.preferred)
        ]
        followed += [of_term for of_term, _ in existing]
        for kind, factor in self._factors:
            for of_term, weight in self._held(kind, labels):
                worth.append(TermWeight(of_term.counts, weight * factor))
                followed.append(of_term)
        outlook.tally, outlook.followed = (
            PreferredAffinityScores(worth) if worth else None,
            followed,
        )
        outlook.failures = KnownFailures()

    def _held(self, kind: TermKind, labels: LabelSet) -> list[tuple[Followed, int]]:
        """The terms of pods on nodes that mean a pod with these labels, with their weights."""
        namespace_labels = self._namespace_labels(labels.namespace)
        return [
            (
                Followed(
                    self._counts_of((kind, held.term, held.weight), key, held.counts),
                    key,
                    None,
                    held.counts,
                ),
                held.weight,
            )
            for held in self.handle.cluster.term_holders(kind)
            if held.term.matches(labels, namespace_labels)
            for key in (held.term.topology_key,)
        ]

    def _counts_of(self, source: object, key: str, counts: RowCounts) -> DomainCounts:
        """The counts of one source by one key, shared by all who ask for them."""
        domains = self._domains.of(self.handle.cluster.nodes, key)
        return self._counts.get((source, key), lambda: DomainCounts(domains, counts))

    def _wishes_of(self, shape: PodShape, namespace: str) -> AffinityTerms:
        self._heed_namespaces()
        if shape.affinity is None:
            return _NO_WISHES
        return self._wishes.get(
            (shape, namespace), lambda: self._resolve(terms_of(shape, namespace))
        )

    def _resolve(self, terms: PodTerms) -> AffinityTerms:
        required = [weighted.term for weighted in terms[TermKind.REQUIRED_AFFINITY]]
        keys = dict.fromkeys(term.topology_key for term in required)
        return AffinityTerms(
            tuple(self._wanted(required, key, 1) for key in keys),
            self._each(terms[TermKind.REQUIRED_ANTI_AFFINITY], -1),
            self._each(terms[TermKind.PREFERRED_AFFINITY], 1)
            + self._each(terms[TermKind.PREFERRED_ANTI_AFFINITY], -1),
        )

    def _each(self, terms: Sequence[WeightedTerm], sign: int) -> tuple[WantedTerm, ...]:
        return tuple(
            self._wanted([term], term.topology_key, sign * weight) for term, weight in terms
        )

    def _wanted(self, terms: Sequence[AffinityTerm], key: str, weight: int) -> WantedTerm:
        """The pods that satisfy every one of the terms, in the namespaces that all of them name or
        select."""
        namespaces: frozenset[str] | None = None
        for term in terms:
            of_term = self._namespaces_of(term)
            if of_term is not None:
                namespaces = of_term if namespaces is None else namespaces & of_term
        query = PodQuery(tuple(term.selector for term in terms), namespaces)
        counts = self.handle.cluster.row_counts(query)
        return WantedTerm(query, key, self._counts_of(query, key, counts), weight)

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
            self._outlooks.clear()

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
        for wanted in wishes.together[:1]:
            if _satisfies(after, wanted.query) and not _satisfies(before, wanted.query):
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
            suits = all(wanted.topology_key in new.labels for wanted in wishes.together)
            return QueueingHint.QUEUE if suits else QueueingHint.SKIP
        existing = self._outlook(shape_of(pod), label_set_of(pod)).existing
        keys = (
            *(wanted.topology_key for wanted in (*wishes.together, *wishes.apart)),
            *(counted.topology_key for counted in existing),
        )
        moved = any(old.labels.get(key) != new.labels.get(key) for key in keys)
        return QueueingHint.QUEUE if moved else QueueingHint.SKIP


def _scale(scores: Int64Column, lowest: int, span: int) -> Int64Column:
    return (MAX_NODE_SCORE * ((scores - lowest) / span)).astype(np.int64)


def _satisfies(pod: Pod | None, query: PodQuery) -> bool:
    return pod is not None and query.matches(label_set_of(pod))
