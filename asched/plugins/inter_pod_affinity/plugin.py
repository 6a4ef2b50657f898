"""InterPodAffinity: pod affinity and anti-affinity, of the incoming pod and of existing pods."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from asched.framework.caching import LruCache
from asched.framework.cluster import Handle
from asched.framework.cycle_state import CycleState, StateKey
from asched.framework.events import ClusterEventWithHint
from asched.framework.interface import (
    Arguments,
    EnqueueExtensions,
    FilterAllPlugin,
    PreFilterPlugin,
    PreFilterResult,
    PreScorePlugin,
    Scope,
    UnavoidableRejections,
)
from asched.framework.nodes import MAX_NODE_SCORE, FilterResult, Int64Column, NodeInfo, Nodes
from asched.framework.pod_info import PodInfo
from asched.framework.pod_queries import TermKind
from asched.framework.scoring import CommonAnswer, NodeClasses, ScoresByClass, of_each_value
from asched.framework.status import SUCCESS, Status
from asched.plugins.inter_pod_affinity.hints import AffinityHints
from asched.plugins.inter_pod_affinity.preferred import PreferredAffinityScores
from asched.plugins.inter_pod_affinity.queries import TermQueries
from asched.plugins.inter_pod_affinity.required import RequiredAffinity
from asched.plugins.inter_pod_affinity.states import (
    CACHE_BYTES,
    STATE_BYTES,
    AffinityState,
    AffinityStates,
)
from asched.plugins.shared import PROCEED, SKIP

AFFINITY_UNMET = Status.unresolvable("node(s) didn't match pod affinity rules")
ANTI_AFFINITY_UNMET = Status.unschedulable("node(s) didn't match pod anti-affinity rules")
EXISTING_ANTI_AFFINITY_UNMET = Status.unschedulable(
    "node(s) didn't satisfy existing pods anti-affinity rules"
)

# Index: the bits of :class:`Violation`, minus 1. The lowest bit decides the status.
_STATUSES = (
    AFFINITY_UNMET,
    ANTI_AFFINITY_UNMET,
    AFFINITY_UNMET,
    EXISTING_ANTI_AFFINITY_UNMET,
    AFFINITY_UNMET,
    ANTI_AFFINITY_UNMET,
    AFFINITY_UNMET,
)
_MAX_HARD_WEIGHT = 100


class InterPodAffinityArgs(Arguments, frozen=True):
    """The weight of *required* affinity terms of existing pods in the score, and whether preferred
    terms of existing pods count for a pod without preferred terms."""

    hard_pod_affinity_weight: int = 1
    """Weight of required affinity terms of existing pods in the score: 0 to 100."""
    ignore_preferred_terms_of_existing_pods: bool = False
    """Do not count preferred terms of existing pods for a pod without preferred terms."""

    def __post_init__(self) -> None:
        weight = self.hard_pod_affinity_weight
        if not 0 <= weight <= _MAX_HARD_WEIGHT:
            raise ValueError(
                f"hardPodAffinityWeight: Invalid value: {weight}: not in valid range [0, 100]"
            )


_NO_SCORES = Status.skip()
_NO_ANSWER = CommonAnswer(None, None)
_AFFINITY: StateKey[AffinityState] = StateKey("InterPodAffinity/state")
_REQUIRED: StateKey[RequiredAffinity] = StateKey("InterPodAffinity/filter")
_PREFERRED: StateKey[PreferredAffinityScores] = StateKey("InterPodAffinity/score")


class InterPodAffinity(
    PreFilterPlugin,
    FilterAllPlugin,
    UnavoidableRejections,
    PreScorePlugin,
    ScoresByClass,
    EnqueueExtensions,
):
    """Filters by the required terms of the pod and of existing pods; scores by the preferred terms
    of both, and by the required affinity of existing pods."""

    name: ClassVar[str] = "InterPodAffinity"
    api_version: ClassVar[int] = 1
    arguments: ClassVar[type[InterPodAffinityArgs]] = InterPodAffinityArgs
    scope: ClassVar[Scope] = Scope.CLUSTER

    def __init__(self, args: InterPodAffinityArgs, handle: Handle) -> None:
        super().__init__(args, handle)
        # Factors of the weights of existing pods' terms.
        factors = {
            TermKind.REQUIRED_AFFINITY: args.hard_pod_affinity_weight,
            TermKind.PREFERRED_AFFINITY: 1,
            TermKind.PREFERRED_ANTI_AFFINITY: -1,
        }
        used = {kind: factor for kind, factor in factors.items() if factor}
        self._needs_own_preferences = args.ignore_preferred_terms_of_existing_pods
        self._queries = TermQueries(handle.cluster)
        self._states = AffinityStates(handle.cluster, self._queries, used)
        self._hints = AffinityHints(handle.cluster, self._queries, self._states)
        # Pods with other labels that the same terms reject from the same nodes share the result.
        self._rejections: LruCache[bytes, FilterResult] = LruCache(
            CACHE_BYTES, lambda result: STATE_BYTES + 2 * result.codes.nbytes
        )

    def applies_to(self, pod: PodInfo) -> bool:
        return pod.shape.names_pods or self.handle.cluster.has_affinity_terms

    def pre_filter(self, state: CycleState, pod: PodInfo, nodes: Nodes) -> PreFilterResult:
        affinity = self._states.of(pod.shape, pod.label_set)
        state.write(_AFFINITY, affinity)
        required = self._required(affinity, pod)
        if required is None:
            return SKIP
        state.write(_REQUIRED, required)
        return PROCEED

    def _required(self, affinity: AffinityState, pod: PodInfo) -> RequiredAffinity | None:
        """The required terms of the pod and of existing pods; None if there are none."""
        terms = affinity.incoming
        existing = [term for term in affinity.existing_anti_affinity if term.counts.total]
        if not existing and not terms.affinity and not terms.anti_affinity:
            return None
        namespace_labels = self._queries.namespace_labels(pod.namespace)
        return RequiredAffinity(pod, namespace_labels, terms, existing, affinity.violations)

    def filter_all(self, state: CycleState, pod: PodInfo, nodes: Nodes) -> FilterResult:
        violations = state.read(_REQUIRED).violations(nodes)
        if violations is None:
            return FilterResult.passing(nodes.size)
        return FilterResult(violations, _STATUSES)

    def unavoidable(self, state: CycleState, pod: PodInfo, nodes: Nodes) -> FilterResult:
        violated = state.read(_REQUIRED).unavoidable(self.handle.cluster)
        if violated is None:
            return FilterResult.passing(nodes.size)
        return FilterResult(violated.astype(np.int16), (ANTI_AFFINITY_UNMET,))

    def add_pod(self, state: CycleState, pod: PodInfo, added: PodInfo, node: NodeInfo) -> Status:
        state.read(_REQUIRED).update(added, node, 1)
        return SUCCESS

    def remove_pod(
        self, state: CycleState, pod: PodInfo, removed: PodInfo, node: NodeInfo
    ) -> Status:
        state.read(_REQUIRED).update(removed, node, -1)
        return SUCCESS

    def pre_score(self, state: CycleState, pod: PodInfo, nodes: Nodes) -> Status:
        affinity = state.get(_AFFINITY) or self._states.of(pod.shape, pod.label_set)
        if self._needs_own_preferences and not affinity.incoming.preferred:
            return _NO_SCORES
        scores = self._scores_now(affinity)
        if scores is None:
            return _NO_SCORES
        state.write(_PREFERRED, scores)
        return SUCCESS

    def common_answer(self, pod: PodInfo) -> CommonAnswer | None:
        affinity = self._states.of(pod.shape, pod.label_set)
        if affinity.own_terms:
            return None
        known = affinity.common_answer
        if known is None or known[0] != affinity.terms_version:
            known = affinity.common_answer = (
                affinity.terms_version,
                self._common_answer(affinity, pod),
            )
        return known[1]

    def _scores_now(self, affinity: AffinityState) -> PreferredAffinityScores | None:
        """The up-to-date scores; None if no pod counts."""
        scores = affinity.scores
        if scores is None:
            return None
        if affinity.scored_version != affinity.terms_version or affinity.incoming.preferred:
            affinity.counts_for_score = bool(scores.total)
            scores.refresh()
            affinity.scored_version = affinity.terms_version
        return scores if affinity.counts_for_score else None

    def _common_answer(self, affinity: AffinityState, pod: PodInfo) -> CommonAnswer:
        """The answer for a pod without own terms. Other pods without terms do not change it."""
        rejections, required = None, self._required(affinity, pod)
        violations = None if required is None else required.violations(self.handle.cluster.nodes)
        if violations is not None:
            found_for, rejections = affinity.violations.rejections
            if violations is not found_for:
                result = FilterResult(violations, _STATUSES)
                rejections = self._rejections.get(violations.tobytes(), lambda: result)
                affinity.violations.rejections = (violations, rejections)
        scores = None if self._needs_own_preferences else self._scores_now(affinity)
        if rejections is None and scores is None:
            return _NO_ANSWER
        return CommonAnswer(rejections, scores, True if violations is None else violations == 0)

    def score_all(self, state: CycleState, pod: PodInfo, nodes: Nodes) -> Int64Column:
        return nodes.align(state.read(_PREFERRED).raw)

    def node_classes(self, state: CycleState) -> NodeClasses:
        return state.read(_PREFERRED)

    def normalize(self, state: CycleState, pod: PodInfo, scores: Int64Column) -> Int64Column:
        """Scale to 0 (lowest) to 100 (highest) in floating point, truncated; 0 if all are equal."""
        if not len(scores):
            return scores.copy()
        preferred = state.read(_PREFERRED)
        if preferred.is_raw(scores):
            scaled = preferred.scaled(_scale)
            return np.zeros(len(scores), np.int64) if scaled is None else scaled
        lowest = int(scores.min())
        span = int(scores.max()) - lowest
        if not span:
            return np.zeros(len(scores), np.int64)
        return of_each_value(lambda some: _scale(some, lowest, span), scores, lowest, lowest + span)

    def events_to_register(self) -> Sequence[ClusterEventWithHint]:
        return self._hints.events()


def _scale(scores: Int64Column, lowest: int, span: int) -> Int64Column:
    return (MAX_NODE_SCORE * ((scores - lowest) / span)).astype(np.int64)
