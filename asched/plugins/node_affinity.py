"""NodeAffinity: ``spec.nodeSelector`` and ``spec.affinity.nodeAffinity``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import ClassVar

import numpy as np

from asched.framework.cluster import Handle
from asched.framework.cycle_state import CycleState, StateKey
from asched.framework.events import ActionType, ClusterEventWithHint, EventResource, QueueingHint
from asched.framework.interface import (
    Arguments,
    EnqueueExtensions,
    FilterAllPlugin,
    NormalizeScore,
    PreFilterPlugin,
    PreFilterResult,
    PreScorePlugin,
    Scope,
    ScoreAllPlugin,
)
from asched.framework.node_matching import selector_matches, term_matches
from asched.framework.nodes import FilterResult, Int64Column, Nodes
from asched.framework.pod_info import PodInfo
from asched.framework.scoring import normalize_to_highest
from asched.framework.status import SUCCESS, Status
from asched.model.meta import Object
from asched.model.node import Node
from asched.model.pod import NodeAffinity as NodeAffinityTerms
from asched.model.pod import Pod
from asched.model.selectors import (
    NODE_NAME_FIELD,
    NodeSelector,
    NodeSelectorTerm,
    PreferredSchedulingTerm,
    check_term,
)
from asched.plugins.shared import (
    PROCEED,
    SKIP,
    Requirement,
    queue_if,
    required_nodes,
    required_terms,
)

MISMATCH = Status.unresolvable("node(s) didn't match Pod's node affinity/selector")
ENFORCED_MISMATCH = Status.unresolvable("node(s) didn't match scheduler-enforced node affinity")
CONFLICT = Status.unresolvable("pod affinity terms conflict")

_CONFLICTING = PreFilterResult(CONFLICT)


class NodeAffinityArgs(Arguments, frozen=True):
    """``addedAffinity`` applies to every pod of the profile, in addition to the pod's own."""

    added_affinity: NodeAffinityTerms | None = None
    """Node affinity of every pod of the profile, in addition to its own."""

    def __post_init__(self) -> None:
        added = self.added_affinity
        if added is None:
            return
        required = added.required.node_selector_terms if added.required is not None else ()
        if added.required is not None and not required:
            raise ValueError("addedAffinity: nodeSelectorTerms needs at least one term")
        for where, terms in (
            ("requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms", required),
            (
                "preferredDuringSchedulingIgnoredDuringExecution",
                [weighted.preference for weighted in added.preferred],
            ),
        ):
            for index, term in enumerate(terms):
                try:
                    check_term(term)
                except ValueError as error:
                    raise ValueError(f"addedAffinity.{where}[{index}].{error}") from None


_REQUIRED: StateKey[Requirement] = StateKey("NodeAffinity/filter")
_PREFERRED: StateKey[tuple[PreferredSchedulingTerm, ...]] = StateKey("NodeAffinity/score")


class NodeAffinityPlugin(
    PreFilterPlugin,
    FilterAllPlugin,
    PreScorePlugin,
    ScoreAllPlugin,
    NormalizeScore,
    EnqueueExtensions,
):
    """Rejects nodes that the pod or ``addedAffinity`` does not select; scores by the weights of the
    matching preferred terms."""

    name: ClassVar[str] = "NodeAffinity"
    api_version: ClassVar[int] = 1
    arguments: ClassVar[type[NodeAffinityArgs]] = NodeAffinityArgs
    scope: ClassVar[Scope] = Scope.NODE_OBJECT
    by_extremes: ClassVar[bool] = True

    def __init__(self, args: NodeAffinityArgs, handle: Handle) -> None:
        super().__init__(args, handle)
        added = args.added_affinity or NodeAffinityTerms()
        self._added_required, self._added_preferred = added.required, added.preferred

    def pre_filter(self, state: CycleState, pod: PodInfo, nodes: Nodes) -> PreFilterResult:
        required = required_terms(pod.shape.affinity)
        if required is None and self._added_required is None and pod.shape.node_selector is None:
            return SKIP
        state.write(_REQUIRED, required_nodes(pod.shape))
        names = _named_nodes(required)
        if names is None:
            return PROCEED
        return PreFilterResult(SUCCESS, names) if names else _CONFLICTING

    def filter_all(self, state: CycleState, pod: PodInfo, nodes: Nodes) -> FilterResult:
        requirement = state.get(_REQUIRED) or required_nodes(pod.shape)
        codes = (~requirement.rows(nodes)).astype(np.int16)
        if self._added_required is None:
            return FilterResult(codes, (MISMATCH,))
        codes[~selector_matches(self._added_required, nodes)] = 2
        return FilterResult(codes, (MISMATCH, ENFORCED_MISMATCH))

    def pre_score(self, state: CycleState, pod: PodInfo, nodes: Nodes) -> Status:
        affinity = pod.shape.affinity
        own = affinity.node_affinity.preferred if affinity and affinity.node_affinity else ()
        if not own and not self._added_preferred:
            return Status.skip()
        try:
            for weighted in own:
                check_term(weighted.preference)
        except ValueError as error:
            return Status.error(f"parsing preferred node affinity: {error}")
        state.write(_PREFERRED, tuple(_scoring_terms((*self._added_preferred, *own))))
        return SUCCESS

    def score_all(self, state: CycleState, pod: PodInfo, nodes: Nodes) -> Int64Column:
        total: Int64Column = np.zeros(nodes.size, np.int64)
        for weighted in state.read(_PREFERRED):
            total += term_matches(weighted.preference, nodes) * np.int64(weighted.weight)
        return total

    def normalize(self, state: CycleState, pod: PodInfo, scores: Int64Column) -> Int64Column:
        return normalize_to_highest(scores)

    def events_to_register(self) -> Sequence[ClusterEventWithHint]:
        changed = ActionType.ADD | ActionType.UPDATE_NODE_LABEL
        return (ClusterEventWithHint.on(EventResource.NODE, changed, self._starts_to_match),)

    def _starts_to_match(self, pod: Pod, old: Object | None, new: Object | None) -> QueueingHint:
        """Queue if the node matches now and did not match before."""
        if not isinstance(new, Node):
            return QueueingHint.SKIP
        requirement = required_nodes(pod.spec)
        matched_before = isinstance(old, Node) and self._selects(requirement, old)
        return queue_if(self._selects(requirement, new) and not matched_before)

    def _selects(self, requirement: Requirement, node: Node) -> bool:
        added = self._added_required
        return requirement.matches(node) and (
            added is None or added.matches(node.metadata.labels, node.name)
        )


def _scoring_terms(terms: Sequence[PreferredSchedulingTerm]) -> Iterator[PreferredSchedulingTerm]:
    """Terms that can add to a score: with a weight and a requirement."""
    return (term for term in terms if term.weight and not term.preference.is_empty)


def _named_nodes(required: NodeSelector | None) -> frozenset[str] | None:
    """The only nodes that can match, by name; None if a term does not restrict the name."""
    if required is None or not required.node_selector_terms:
        return None
    names: set[str] = set()
    for term in required.node_selector_terms:
        of_term = _named_by_term(term)
        if of_term is None:
            return None
        names |= of_term
    return frozenset(names)


def _named_by_term(term: NodeSelectorTerm) -> frozenset[str] | None:
    names: frozenset[str] | None = None
    for requirement in term.match_fields:
        if requirement.key == NODE_NAME_FIELD and requirement.operator == "In":
            named = frozenset(requirement.values)
            names = named if names is None else names & named
    return names
