"""PodTopologySpread: spreads matching pods evenly over topology domains such as zones and hosts."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import ClassVar, Literal, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from asched.framework.caching import LruCache
from asched.framework.cluster import Handle
from asched.framework.cycle_state import CycleState, StateKey
from asched.framework.events import ActionType, ClusterEventWithHint, EventResource, QueueingHint
from asched.framework.interface import (
    Arguments,
    EnqueueExtensions,
    FilterAllPlugin,
    PreFilterExtensions,
    PreFilterPlugin,
    PreFilterResult,
    PreScorePlugin,
    Scope,
)
from asched.framework.nodes import (
    MAX_NODE_SCORE,
    BoolColumn,
    FilterResult,
    Int64Column,
    NodeInfo,
    Nodes,
)
from asched.framework.pod_info import LabelSet, PodInfo, PodShape, label_set_of
from asched.framework.pod_queries import PodQuery, Selector, WorkloadSelectors
from asched.framework.query_index import AwaitedIndex, AwaitedQueries, RejectedPods
from asched.framework.scoring import NodeClasses, ScoresByClass, of_each_value
from asched.framework.status import SUCCESS, Status
from asched.model.meta import Object
from asched.model.node import HOSTNAME_LABEL, ZONE_LABEL, Node
from asched.model.pod import Pod, TopologySpreadConstraint
from asched.model.selectors import LabelSelector, is_qualified_name
from asched.plugins.pod_topology_spread.constraints import (
    Constraint,
    ConstraintCounts,
    ConstraintSet,
    adjusted,
    missing_match_labels,
)
from asched.plugins.pod_topology_spread.scores import SpreadScores
from asched.plugins.shared import PROCEED, SKIP, queue_if

CONSTRAINT_UNMET = Status.unschedulable("node(s) didn't match pod topology spread constraints")
LABEL_MISSING = Status.unresolvable(
    "node(s) didn't match pod topology spread constraints (missing required label)"
)

HARD = "DoNotSchedule"
SOFT = "ScheduleAnyway"
_HONOR = "Honor"

_STATUSES = (LABEL_MISSING, CONSTRAINT_UNMET)
_SYSTEM_DEFAULTS = (
    TopologySpreadConstraint(max_skew=3, topology_key=HOSTNAME_LABEL, when_unsatisfiable=SOFT),
    TopologySpreadConstraint(max_skew=5, topology_key=ZONE_LABEL, when_unsatisfiable=SOFT),
)
_CACHE_BYTES = 1 << 27
_ROW_BYTES = 45
"""Size of the columns of a constraint, for each row."""
_CONSTRAINT_BYTES = 1 << 18
"""An estimate for the objects of one constraint: it limits their number in small clusters."""

_encode = msgspec.json.Encoder(order="deterministic").encode


class DefaultConstraint(Arguments, frozen=True):
    """A default constraint; its selector is deduced for each pod."""

    max_skew: int = 0
    topology_key: str = ""
    when_unsatisfiable: str = ""
    label_selector: dict[str, object] | None = None
    min_domains: int | None = None
    node_affinity_policy: Literal["Honor", "Ignore"] = "Honor"
    node_taints_policy: Literal["Honor", "Ignore"] = "Ignore"
    match_label_keys: tuple[str, ...] = ()
    """No effect, as in kube-scheduler: the deduced selector replaces it."""

    @property
    def problem(self) -> str:
        """The validation error, beginning with the field; empty if valid."""
        if self.max_skew <= 0:
            return f"maxSkew: Invalid value: {self.max_skew}: not in valid range (0, inf)"
        if not self.topology_key:
            return "topologyKey: Required value: can not be empty"
        if not is_qualified_name(self.topology_key):
            return f'topologyKey: Invalid value: "{self.topology_key}": not a label key'
        if not self.when_unsatisfiable:
            return "whenUnsatisfiable: Required value: can not be empty"
        if self.when_unsatisfiable not in (HARD, SOFT):
            return (
                f'whenUnsatisfiable: Unsupported value: "{self.when_unsatisfiable}":'
                f' supported values: "{HARD}", "{SOFT}"'
            )
        if self.label_selector is not None:
            return (
                "labelSelector: Forbidden: constraint must not define a selector,"
                " as they deduced for each pod"
            )
        return ""

    def as_constraint(self) -> TopologySpreadConstraint:
        return TopologySpreadConstraint(
            max_skew=self.max_skew,
            topology_key=self.topology_key,
            when_unsatisfiable=self.when_unsatisfiable,
            min_domains=self.min_domains,
            node_affinity_policy=self.node_affinity_policy,
            node_taints_policy=self.node_taints_policy,
        )


class PodTopologySpreadArgs(Arguments, frozen=True):
    """Constraints of pods without any: kube-scheduler's defaults (``System``) or ``List``."""

    default_constraints: tuple[DefaultConstraint, ...] = ()
    """With ``List``: the constraints of pods without any."""
    defaulting_type: Literal["System", "List"] = "System"
    """``System``: kube-scheduler's default constraints, by host and zone."""

    def __post_init__(self) -> None:
        constraints = self.default_constraints
        if self.defaulting_type == "System" and constraints:
            raise ValueError(
                'defaultingType: Invalid value: "System": when .defaultConstraints are not empty'
            )
        for index, constraint in enumerate(constraints):
            problem = constraint.problem
            if problem:
                raise ValueError(f"defaultConstraints[{index}].{problem}")
            pair = (constraint.topology_key, constraint.when_unsatisfiable)
            if pair in [(c.topology_key, c.when_unsatisfiable) for c in constraints[:index]]:
                text = "{" + ", ".join(pair) + "}"
                raise ValueError(f'defaultConstraints[{index}]: Duplicate value: "{text}"')


class SpreadState:
    """A pod's hard constraints and the counts for one attempt."""

    __slots__ = ("_adjustments", "_pod", "_self_matches", "constraints")

    def __init__(
        self,
        pod: PodInfo,
        constraints: ConstraintSet,
        adjustments: list[dict[int, int]] | None = None,
    ) -> None:
        self.constraints = constraints
        self._self_matches = constraints.self_matches(pod.label_set)
        self._pod = pod
        self._adjustments = [{} for _ in constraints.counts] if adjustments is None else adjustments
        """The change of the count by domain, for each constraint."""

    def clone(self) -> SpreadState:
        adjustments = [dict(by_domain) for by_domain in self._adjustments]
        return SpreadState(self._pod, self.constraints, adjustments)

    def update(self, other: PodInfo, row: int, sign: int) -> None:
        """Add another pod to the row (1), or remove it (-1). As in kube-scheduler, a terminating
        pod changes the counts, although it was never counted."""
        for counts, adjustments in zip(self.constraints.counts, self._adjustments, strict=True):
            domains = counts.domains
            if domains.counted[row] and counts.constraint.query.matches(other.label_set):
                domain = int(domains.of_row[row])
                adjustments[domain] = adjustments.get(domain, 0) + sign

    def filter(self, nodes: Nodes) -> FilterResult:
        exceeding = [
            _exceeding(counts, adjustments, self_match)
            for counts, adjustments, self_match in zip(
                self.constraints.counts, self._adjustments, self._self_matches, strict=True
            )
        ]

        def compute() -> FilterResult:
            return self._filter(nodes, exceeding)

        of_row = self.constraints.counts[0].domains.of_row
        if nodes.align(of_row) is not of_row:
            return compute()
        return self.constraints.cached_result(exceeding, compute)

    def _filter(self, nodes: Nodes, exceeding: Sequence[BoolColumn]) -> FilterResult:
        codes: NDArray[np.int16] = np.zeros(nodes.size, np.int16)
        # The last write wins: the first failing constraint is reported.
        in_reverse = zip(reversed(self.constraints.counts), reversed(exceeding), strict=True)
        for counts, domains in in_reverse:
            if domains.any():
                codes[domains[nodes.align(counts.domains.of_row)]] = 2
            if counts.missing is not None:
                codes[nodes.align(counts.missing)] = 1
        return FilterResult(codes, _STATUSES if codes.any() else ())


def _exceeding(
    counts: ConstraintCounts, adjustments: Mapping[int, int], self_match: bool
) -> BoolColumn:
    """The domains with too many pods; the last entry is for rows without a domain."""
    sums = adjusted(counts.by_domain.sums, adjustments)
    exceeding: BoolColumn = sums > counts.max_count(adjustments, self_match=self_match)
    return exceeding


_HARD_STATE: StateKey[SpreadState] = StateKey("PodTopologySpread/filter")
_SCORES: StateKey[SpreadScores] = StateKey("PodTopologySpread/score")


class _Cached(NamedTuple):
    """Constraints of one kind; None if the pod has none."""

    constraints: ConstraintSet | None
    scores: SpreadScores | None
    size_bytes: int


_NONE = _Cached(None, None, 1024)


class PodTopologySpread(
    PreFilterPlugin,
    FilterAllPlugin,
    PreFilterExtensions,
    PreScorePlugin,
    ScoresByClass,
    EnqueueExtensions,
):
    """Filters by ``DoNotSchedule`` constraints; scores by ``ScheduleAnyway`` constraints."""

    name: ClassVar[str] = "PodTopologySpread"
    api_version: ClassVar[int] = 1
    arguments: ClassVar[type[PodTopologySpreadArgs]] = PodTopologySpreadArgs
    scope: ClassVar[Scope] = Scope.CLUSTER

    def __init__(self, args: PodTopologySpreadArgs, handle: Handle) -> None:
        super().__init__(args, handle)
        self._match_label_keys = handle.feature_gates.match_label_keys_in_pod_topology_spread
        self._system_defaults = args.defaulting_type == "System"
        self._defaults = (
            _SYSTEM_DEFAULTS
            if self._system_defaults
            else tuple(constraint.as_constraint() for constraint in args.default_constraints)
        )
        self._defaulted = frozenset(c.when_unsatisfiable for c in self._defaults)
        self._workloads = WorkloadSelectors(handle.cluster)
        self._awaited_index = AwaitedIndex(self._awaited)
        self._constraint_sets: LruCache[tuple[PodShape, str, str, object], _Cached] = LruCache(
            _CACHE_BYTES, lambda cached: cached.size_bytes
        )
        self._latest: tuple[tuple[TopologySpreadConstraint, ...], bytes] = ((), b"")

    def applies_to(self, pod: PodInfo) -> bool:
        if pod.pod.spec.topology_spread_constraints:
            return True
        return bool(
            self._defaults and self._workloads.of(pod.label_set, pod.pod.metadata.controller)
        )

    def pre_filter(self, state: CycleState, pod: PodInfo, nodes: Nodes) -> PreFilterResult:
        constraints = self._cached(pod, HARD).constraints
        if constraints is None:
            return SKIP
        constraints.refresh(self.handle.cluster)
        state.write(_HARD_STATE, SpreadState(pod, constraints))
        return PROCEED

    def filter_all(self, state: CycleState, pod: PodInfo, nodes: Nodes) -> FilterResult:
        return state.read(_HARD_STATE).filter(nodes)

    def add_pod(self, state: CycleState, pod: PodInfo, added: PodInfo, node: NodeInfo) -> Status:
        return self._update(state, added, node, 1)

    def remove_pod(
        self, state: CycleState, pod: PodInfo, removed: PodInfo, node: NodeInfo
    ) -> Status:
        return self._update(state, removed, node, -1)

    def _update(self, state: CycleState, other: PodInfo, node: NodeInfo, sign: int) -> Status:
        row = self.handle.cluster.nodes.row_of(node.name)
        if row is not None:
            state.read(_HARD_STATE).update(other, row, sign)
        return SUCCESS

    def pre_score(self, state: CycleState, pod: PodInfo, nodes: Nodes) -> Status:
        scores = self._cached(pod, SOFT).scores
        if scores is None:
            return Status.skip()
        scores.prepare(self.handle.cluster, nodes)
        state.write(_SCORES, scores)
        return SUCCESS

    def score_all(self, state: CycleState, pod: PodInfo, nodes: Nodes) -> Int64Column:
        return nodes.align(state.read(_SCORES).raw)

    def node_classes(self, state: CycleState) -> NodeClasses | None:
        return state.read(_SCORES).classes

    def normalize(self, state: CycleState, pod: PodInfo, scores: Int64Column) -> Int64Column:
        """The node with the fewest pods gets 100; nodes that lack a topology key get 0."""
        excluded = state.read(_SCORES).excluded
        counting = scores if excluded is None else scores[~excluded]
        highest = int(counting.max(initial=0))
        if highest:
            lowest = int(counting.min())

            def scale(some: Int64Column) -> Int64Column:
                return (highest + lowest - some) * MAX_NODE_SCORE // highest

            scaled = of_each_value(scale, scores, 0, highest)
        else:
            scaled = np.full(len(scores), MAX_NODE_SCORE, np.int64)
        if excluded is not None:
            scaled[excluded] = 0
        return scaled

    def _cached(self, pod: PodInfo, when: str) -> _Cached:
        """The constraints of this kind with cached counts."""
        own = pod.pod.spec.topology_spread_constraints
        source: object = (
            self._encoded(own) if own else self._default_selectors(pod.pod, pod.label_set, when)
        )
        if not source:
            return _NONE
        if self._match_label_keys:
            added = [missing_match_labels(constraint, pod.labels) for constraint in own]
            if any(added):
                source = (source, *added)
        key = (pod.shape, pod.namespace, when, source)
        return self._constraint_sets.get(key, lambda: self._new_set(pod, when))

    def _new_set(self, pod: PodInfo, when: str) -> _Cached:
        constraints = self._constraints(pod.pod, when)
        if not constraints:
            return _NONE
        own = pod.pod.spec.topology_spread_constraints
        require_all_keys = bool(own) or not self._system_defaults
        found = ConstraintSet(constraints, pod.shape, require_all_keys=require_all_keys)
        each_bytes = _CONSTRAINT_BYTES + _ROW_BYTES * self.handle.cluster.nodes.size
        return _Cached(found, SpreadScores(found), len(constraints) * each_bytes)

    def _encoded(self, constraints: tuple[TopologySpreadConstraint, ...]) -> bytes:
        """A hashable form of the constraints. Pods of one template share them as one object."""
        latest, encoded = self._latest
        if constraints is not latest:
            encoded = _encode(constraints)
            self._latest = (constraints, encoded)
        return encoded

    def _default_selectors(self, pod: Pod, labels: LabelSet, when: str) -> tuple[Selector, ...]:
        if when not in self._defaulted:
            return ()
        return self._workloads.of(labels, pod.metadata.controller)

    def _constraints(self, pod: Pod, when: str) -> tuple[Constraint, ...]:
        """The pod's own constraints of this kind, or else the defaults."""
        own = pod.spec.topology_spread_constraints
        selectors = () if own else self._default_selectors(pod, label_set_of(pod), when)
        if not own and not selectors:
            return ()
        return tuple(
            Constraint(
                constraint.topology_key,
                constraint.max_skew,
                1 if constraint.min_domains is None else constraint.min_domains,
                constraint.node_affinity_policy == _HONOR,
                constraint.node_taints_policy == _HONOR,
                PodQuery(
                    selectors or (Selector(self._selector(constraint, pod)),),
                    frozenset({pod.namespace}),
                    count_terminating=False,
                ),
            )
            for constraint in own or self._defaults
            if constraint.when_unsatisfiable == when
        )

    def _selector(self, constraint: TopologySpreadConstraint, pod: Pod) -> LabelSelector | None:
        """The selector of a constraint, with the labels that ``matchLabelKeys`` names."""
        selector = constraint.label_selector
        if selector is None or not self._match_label_keys:
            return selector
        added = missing_match_labels(constraint, pod.metadata.labels)
        if not added:
            return selector
        expressions = (*selector.match_expressions, *added)
        return msgspec.structs.replace(selector, match_expressions=expressions)

    def _hard_keys(self, pod: Pod) -> list[str]:
        """The topology keys of the pod's hard constraints."""
        own = pod.spec.topology_spread_constraints
        if not own:
            return [constraint.topology_key for constraint in self._constraints(pod, HARD)]
        return [each.topology_key for each in own if each.when_unsatisfiable == HARD]

    def events_to_register(self) -> Sequence[ClusterEventWithHint]:
        both = ActionType.ADD | ActionType.DELETE
        pod_changes = both | ActionType.UPDATE_POD_LABEL | ActionType.UPDATE_POD_TOLERATION
        node_changes = both | ActionType.UPDATE_NODE_LABEL | ActionType.UPDATE_NODE_TAINT
        return (
            ClusterEventWithHint.on(
                EventResource.POD, pod_changes, self._pod_changed, self._select
            ),
            ClusterEventWithHint.on(EventResource.NODE, node_changes, self._node_changed),
        )

    def _awaited(self, pod: PodInfo) -> AwaitedQueries:
        queries = [constraint.query for constraint in self._constraints(pod.pod, HARD)]
        return AwaitedQueries(queries, queries)

    def _select(
        self, rejected: RejectedPods, old: Object | None, new: Object | None
    ) -> Collection[str]:
        """The rejected pods for which :meth:`_pod_changed` can return QUEUE."""
        before = old if isinstance(old, Pod) else None
        after = new if isinstance(new, Pod) else None
        found: Collection[str] = ()
        if (before is None or before.node_name) and (after is None or after.node_name):
            # Default constraints depend on the objects that own pods.
            version = self._workloads.version if HARD in self._defaulted else None
            found = self._awaited_index.select(
                rejected,
                version,
                None if before is None else label_set_of(before),
                None if after is None else label_set_of(after),
            )
        pod = before if after is None else after
        if pod is not None and pod.key in rejected.waiting:
            return {*found, pod.key}
        return found

    def _pod_changed(self, pod: Pod, old: Object | None, new: Object | None) -> QueueingHint:
        """Queue if an assigned pod starts or stops to match a constraint, or if the pod's own
        tolerations change, which changes the eligible nodes."""
        seen = [other for other in (old, new) if isinstance(other, Pod)]
        if not all(_is_relevant(other, pod) for other in seen):
            return QueueingHint.SKIP
        constraints = self._constraints(pod, HARD)
        matched = [{c.query.matches(label_set_of(other)) for other in seen} for c in constraints]
        if len(seen) == 1:
            return queue_if({True} in matched)
        before, after = seen
        tolerates_more = after.uid == pod.uid and before.spec.tolerations != after.spec.tolerations
        eligible_change = tolerates_more and any(c.honors_taints for c in constraints)
        return queue_if(eligible_change or {True, False} in matched)

    def _node_changed(self, pod: Pod, old: Object | None, new: Object | None) -> QueueingHint:
        """Queue if a node with all topology keys is added or deleted, or changes its domains or
        taints."""
        keys = self._hard_keys(pod)
        before, after = (
            [node.labels.get(key) for key in keys] if isinstance(node, Node) else [None]
            for node in (old, new)
        )
        complete_before, complete_after = None not in before, None not in after
        if complete_before != complete_after:
            return QueueingHint.QUEUE
        if not complete_after or not isinstance(old, Node) or not isinstance(new, Node):
            return QueueingHint.SKIP
        return queue_if(before != after or old.spec.taints != new.spec.taints)


def _is_relevant(other: Pod, pod: Pod) -> bool:
    """Whether it is the pod itself, or an assigned pod in the same namespace."""
    return other.uid == pod.uid or (bool(other.node_name) and other.namespace == pod.namespace)
