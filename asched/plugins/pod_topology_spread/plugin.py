"""PodTopologySpread: pods of a kind evenly over zones, hosts or whatever nodes are labelled by."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar, Literal

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
from asched.framework.scoring import NodeClasses, ScoresByClass, of_each_value
from asched.framework.status import SUCCESS, Status
from asched.model.meta import Object
from asched.model.node import HOSTNAME_LABEL, ZONE_LABEL, Node
from asched.model.pod import Pod, TopologySpreadConstraint
from asched.model.selectors import is_qualified_name
from asched.plugins.pod_topology_spread.constraints import Constraint, Plan, Spread, shifted
from asched.plugins.pod_topology_spread.scores import Evenness

TOO_UNEVEN = Status.unschedulable("node(s) didn't match pod topology spread constraints")
LABEL_MISSING = Status.unresolvable(
    "node(s) didn't match pod topology spread constraints (missing required label)"
)

HARD = "DoNotSchedule"
SOFT = "ScheduleAnyway"
_HONOR = "Honor"

_STATUSES = (LABEL_MISSING, TOO_UNEVEN)
_SKIP = PreFilterResult(Status.skip())
_PROCEED = PreFilterResult(SUCCESS)
_SYSTEM_DEFAULTS = (
    TopologySpreadConstraint(max_skew=3, topology_key=HOSTNAME_LABEL, when_unsatisfiable=SOFT),
    TopologySpreadConstraint(max_skew=5, topology_key=ZONE_LABEL, when_unsatisfiable=SOFT),
)
_MOST_PLANS = 128

_encode = msgspec.json.Encoder(order="deterministic").encode


class DefaultConstraint(Arguments, frozen=True):
    """A constraint without a selector: that is deduced for each pod."""

    max_skew: int = 0
    topology_key: str = ""
    when_unsatisfiable: str = ""
    label_selector: dict[str, object] | None = None
    min_domains: int | None = None
    node_affinity_policy: Literal["Honor", "Ignore"] = "Honor"
    node_taints_policy: Literal["Honor", "Ignore"] = "Ignore"
    match_label_keys: tuple[str, ...] = ()
    """Accepted and without effect, as in kube-scheduler: the deduced selector replaces it."""

    @property
    def problem(self) -> str:
        """What is wrong, after the name of the field; empty if nothing is."""
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

    def as_pods_own(self) -> TopologySpreadConstraint:
        return TopologySpreadConstraint(
            max_skew=self.max_skew,
            topology_key=self.topology_key,
            when_unsatisfiable=self.when_unsatisfiable,
            min_domains=self.min_domains,
            node_affinity_policy=self.node_affinity_policy,
            node_taints_policy=self.node_taints_policy,
        )


class PodTopologySpreadArgs(Arguments, frozen=True):
    """Constraints for pods without any of their own: kube-scheduler's (``System``) or ``List``."""

    default_constraints: tuple[DefaultConstraint, ...] = ()
    defaulting_type: Literal["System", "List"] = "System"

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


class Skews:
    """A pod's hard constraints against the pods as they are, or as they are supposed to be."""

    __slots__ = ("_pod", "_shifts", "counts_itself", "plan")

    def __init__(self, pod: PodInfo, plan: Plan) -> None:
        self.plan = plan
        self.counts_itself = plan.counting(pod.label_set)
        self._pod = pod
        self._shifts: list[dict[int, int]] = [{} for _ in plan.spreads]

    def clone(self) -> Skews:
        twin = Skews(self._pod, self.plan)
        twin._shifts = [dict(shifts) for shifts in self._shifts]
        return twin

    def shift(self, other: PodInfo, row: int, sign: int) -> None:
        """As if another pod were on the row too (1), or not there (-1).

        A terminating pod shifts like any other, though it was never counted: so it does in
        kube-scheduler.
        """
        for spread, shifts in zip(self.plan.spreads, self._shifts, strict=True):
            domains = spread.domains
            if domains.counted[row] and spread.constraint.query.matches(other.label_set):
                domain = int(domains.of_row[row])
                shifts[domain] = shifts.get(domain, 0) + sign

    def verdicts(self, nodes: Nodes) -> FilterResult:
        uneven = [
            self._uneven(spread, shifts, itself)
            for spread, shifts, itself in zip(
                self.plan.spreads, self._shifts, self.counts_itself, strict=True
            )
        ]

        def spread_to_rows() -> FilterResult:
            return self._verdicts(nodes, uneven)

        of_row = self.plan.spreads[0].domains.of_row
        if nodes.align(of_row) is not of_row:
            return spread_to_rows()
        return self.plan.verdicts_where(uneven, spread_to_rows)

    def _uneven(self, spread: Spread, shifts: Mapping[int, int], counts_itself: bool) -> BoolColumn:
        """The domains that hold too many, with a place for rows without one after the last."""
        sums = shifted(spread.in_domain.sums, shifts)
        uneven: BoolColumn = sums > spread.most(shifts, counts_itself=counts_itself)
        return uneven

    def _verdicts(self, nodes: Nodes, uneven: Sequence[BoolColumn]) -> FilterResult:
        codes: NDArray[np.int16] = np.zeros(nodes.size, np.int16)
        # From the last constraint to the first, whose refusal is what is reported.
        for spread, domains in zip(reversed(self.plan.spreads), reversed(uneven), strict=True):
            if domains.any():
                codes[domains[nodes.align(spread.domains.of_row)]] = 2
            if spread.missing is not None:
                codes[nodes.align(spread.missing)] = 1
        return FilterResult(codes, _STATUSES if codes.any() else ())


_SKEWS: StateKey[Skews] = StateKey("PodTopologySpread/filter")
_EVENNESS: StateKey[Evenness] = StateKey("PodTopologySpread/score")


class PodTopologySpread(
    PreFilterPlugin,
    FilterAllPlugin,
    PreFilterExtensions,
    PreScorePlugin,
    ScoresByClass,
    EnqueueExtensions,
):
    """Rejects nodes where the pod would make the spread too uneven (``DoNotSchedule``); scores by
    the pods that are there already (``ScheduleAnyway``), fewest best."""

    name: ClassVar[str] = "PodTopologySpread"
    api_version: ClassVar[int] = 1
    arguments: ClassVar[type[PodTopologySpreadArgs]] = PodTopologySpreadArgs
    scope: ClassVar[Scope] = Scope.CLUSTER

    def __init__(self, args: PodTopologySpreadArgs, handle: Handle) -> None:
        super().__init__(args, handle)
        self._system_defaults = args.defaulting_type == "System"
        self._defaults = (
            _SYSTEM_DEFAULTS
            if self._system_defaults
            else tuple(constraint.as_pods_own() for constraint in args.default_constraints)
        )
        self._defaulted = frozenset(c.when_unsatisfiable for c in self._defaults)
        self._workloads = WorkloadSelectors(handle.cluster)
        self._plans: LruCache[tuple[PodShape, str, str, object], Plan | None] = LruCache(
            _MOST_PLANS
        )
        self._latest: tuple[tuple[TopologySpreadConstraint, ...], bytes] = ((), b"")
        self._evenness: LruCache[Plan, Evenness] = LruCache(_MOST_PLANS)

    # -- filter -------------------------------------------------------------------------------

    def applies_to(self, pod: PodInfo) -> bool:
        if pod.pod.spec.topology_spread_constraints:
            return True
        return bool(
            self._defaults and self._workloads.of(pod.label_set, pod.pod.metadata.controller)
        )

    def pre_filter(self, state: CycleState, pod: PodInfo, nodes: Nodes) -> PreFilterResult:
        plan = self._plan(pod, HARD)
        if plan is None:
            return _SKIP
        plan.refresh(self.handle.cluster)
        state.write(_SKEWS, Skews(pod, plan))
        return _PROCEED

    def filter_all(self, state: CycleState, pod: PodInfo, nodes: Nodes) -> FilterResult:
        return state.read(_SKEWS).verdicts(nodes)

    def add_pod(self, state: CycleState, pod: PodInfo, added: PodInfo, node: NodeInfo) -> Status:
        return self._suppose(state, added, node, 1)

    def remove_pod(
        self, state: CycleState, pod: PodInfo, removed: PodInfo, node: NodeInfo
    ) -> Status:
        return self._suppose(state, removed, node, -1)

    def _suppose(self, state: CycleState, other: PodInfo, node: NodeInfo, sign: int) -> Status:
        row = self.handle.cluster.nodes.row_of(node.name)
        if row is not None:
            state.read(_SKEWS).shift(other, row, sign)
        return SUCCESS

    # -- score --------------------------------------------------------------------------------

    def pre_score(self, state: CycleState, pod: PodInfo, nodes: Nodes) -> Status:
        plan = self._plan(pod, SOFT)
        if plan is None:
            return Status.skip()
        evenness = self._evenness.get(plan, lambda: Evenness(plan))
        evenness.prepare(self.handle.cluster, nodes)
        state.write(_EVENNESS, evenness)
        return SUCCESS

    def score_all(self, state: CycleState, pod: PodInfo, nodes: Nodes) -> Int64Column:
        return nodes.align(state.read(_EVENNESS).raw)

    def node_classes(self, state: CycleState) -> NodeClasses | None:
        return state.read(_EVENNESS).classes

    def normalize(self, state: CycleState, pod: PodInfo, scores: Int64Column) -> Int64Column:
        """The emptiest node gets 100; nodes that lack a topology key get 0."""
        left_out = state.read(_EVENNESS).left_out
        counting = scores if left_out is None else scores[~left_out]
        highest = int(counting.max(initial=0))
        if highest:
            lowest = int(counting.min())

            def scale(some: Int64Column) -> Int64Column:
                return (highest + lowest - some) * MAX_NODE_SCORE // highest

            scaled = of_each_value(scale, scores, 0, highest)
        else:
            scaled = np.full(len(scores), MAX_NODE_SCORE, np.int64)
        if left_out is not None:
            scaled[left_out] = 0
        return scaled

    # -- constraints --------------------------------------------------------------------------

    def _plan(self, pod: PodInfo, when: str) -> Plan | None:
        """What is kept for pods like this one; None where it has no such constraints."""
        own = pod.pod.spec.topology_spread_constraints
        by: object
        if own:
            by = self._encoded(own)
        else:
            by = self._default_selectors(pod.pod, pod.label_set, when)
            if not by:
                return None

        def work_out() -> Plan | None:
            constraints = self._constraints(pod.pod, when)
            every_key = bool(own) or not self._system_defaults
            return Plan(constraints, pod.shape, every_key=every_key) if constraints else None

        return self._plans.get((pod.shape, pod.namespace, when, by), work_out)

    def _encoded(self, constraints: tuple[TopologySpreadConstraint, ...]) -> bytes:
        """Constraints as they can be looked up. Copies of a template share theirs as one object."""
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
        """The pod's own constraints of that kind, or else the default ones."""
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
                    selectors or (Selector(constraint.label_selector),),
                    frozenset({pod.namespace}),
                    count_terminating=False,
                ),
            )
            for constraint in own or self._defaults
            if constraint.when_unsatisfiable == when
        )

    # -- queueing hints -----------------------------------------------------------------------

    def events_to_register(self) -> Sequence[ClusterEventWithHint]:
        return (
            ClusterEventWithHint.on(
                EventResource.POD,
                ActionType.ADD
                | ActionType.UPDATE_POD_LABEL
                | ActionType.UPDATE_POD_TOLERATION
                | ActionType.DELETE,
                self._pods_moved,
            ),
            ClusterEventWithHint.on(
                EventResource.NODE,
                ActionType.ADD
                | ActionType.DELETE
                | ActionType.UPDATE_NODE_LABEL
                | ActionType.UPDATE_NODE_TAINT,
                self._domains_changed,
            ),
        )

    def _pods_moved(self, pod: Pod, old: Object | None, new: Object | None) -> QueueingHint:
        """A pod that a constraint is about came to a node, went, or is or is not one any more; or
        the waiting pod tolerates more and with it counts more nodes."""
        seen = [other for other in (old, new) if isinstance(other, Pod)]
        if not all(_concerns(other, pod) for other in seen):
            return QueueingHint.SKIP
        constraints = self._constraints(pod, HARD)
        matched = [{c.query.matches(label_set_of(other)) for other in seen} for c in constraints]
        if len(seen) == 1:
            return QueueingHint.QUEUE if {True} in matched else QueueingHint.SKIP
        before, after = seen
        tolerates_more = after.uid == pod.uid and before.spec.tolerations != after.spec.tolerations
        if tolerates_more and any(c.honors_taints for c in constraints):
            return QueueingHint.QUEUE
        return QueueingHint.QUEUE if {True, False} in matched else QueueingHint.SKIP

    def _domains_changed(self, pod: Pod, old: Object | None, new: Object | None) -> QueueingHint:
        """A node with all topology keys came or went, or is in other domains, or has other taints."""
        keys = [constraint.topology_key for constraint in self._constraints(pod, HARD)]
        before, after = (
            [node.labels.get(key) for key in keys] if isinstance(node, Node) else [None]
            for node in (old, new)
        )
        complete_before, complete_after = None not in before, None not in after
        if complete_before != complete_after:
            return QueueingHint.QUEUE
        if not complete_after or not isinstance(old, Node) or not isinstance(new, Node):
            return QueueingHint.SKIP
        moved = before != after or old.spec.taints != new.spec.taints
        return QueueingHint.QUEUE if moved else QueueingHint.SKIP


def _concerns(other: Pod, pod: Pod) -> bool:
    """It is the waiting pod itself, or a pod on a node in the same namespace."""
    return other.uid == pod.uid or (bool(other.node_name) and other.namespace == pod.namespace)
