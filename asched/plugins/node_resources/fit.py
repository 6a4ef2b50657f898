"""NodeResourcesFit: filters by the pod's requests, and scores by the utilization of the node."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar, Literal, NamedTuple, Protocol

import numpy as np

from asched.dra.extended import IMPLICIT_PREFIX
from asched.framework.cluster import Handle
from asched.framework.cycle_state import CycleState, StateKey
from asched.framework.devices import SharedDevices
from asched.framework.events import ActionType, ClusterEventWithHint, EventResource, QueueingHint
from asched.framework.interface import (
    Arguments,
    CapacityFilter,
    EnqueueExtensions,
    FilterAllPlugin,
    FilterPlugin,
    PlacementScorePlugin,
    PreFilterPlugin,
    PreFilterResult,
    PreScorePlugin,
    Scope,
    ScoreAllPlugin,
    ScorePlugin,
)
from asched.framework.nodes import (
    MAX_NODE_SCORE,
    BoolColumn,
    FilterResult,
    Int64Column,
    NodeInfo,
    Nodes,
)
from asched.framework.placements import GroupAssignments, GroupInCycle
from asched.framework.pod_info import PodInfo, PodShape, shape_of
from asched.framework.scoring import quotient, truncated_quotient, wrapped
from asched.framework.status import SUCCESS, Status
from asched.model.meta import Object
from asched.model.node import Node
from asched.model.pod import Pod
from asched.model.requests import CPU, EPHEMERAL_STORAGE, MEMORY, PODS, amount, is_extended_resource
from asched.model.resource_claims import DeviceClass
from asched.model.selectors import is_qualified_name
from asched.plugins.node_resources.placement import placement_utilization
from asched.plugins.node_resources.scoring import (
    ResourceWeight,
    ScoredAmounts,
    ScoredResource,
    scored_resources,
    usage,
    usage_on,
    with_defaults,
)
from asched.plugins.shared import PROCEED, queue_if

TOO_MANY_PODS = "Too many pods"

_MAX_SHAPE_SCORE = 10
_MAX_UTILIZATION = 100


class UtilizationShapePoint(Arguments, frozen=True):
    """The score (0 to 10) at a utilization (percent)."""

    utilization: int
    score: int

    def __post_init__(self) -> None:
        if not 0 <= self.utilization <= _MAX_UTILIZATION:
            raise ValueError(f"utilization: {self.utilization} is not in the range 0 to 100")
        if not 0 <= self.score <= _MAX_SHAPE_SCORE:
            raise ValueError(f"score: {self.score} is not in the range 0 to {_MAX_SHAPE_SCORE}")


class RequestedToCapacityRatioParam(Arguments, frozen=True):
    """A piecewise linear function from utilization to score."""

    shape: tuple[UtilizationShapePoint, ...] = ()

    def __post_init__(self) -> None:
        if not self.shape:
            raise ValueError("shape: at least one point must be specified")
        for index in range(1, len(self.shape)):
            if self.shape[index - 1].utilization >= self.shape[index].utilization:
                raise ValueError(
                    f"shape[{index}].utilization: values must be sorted in increasing order"
                )


class ScoringStrategy(Arguments, frozen=True):
    """How to score, and by which resources."""

    type: Literal["LeastAllocated", "MostAllocated", "RequestedToCapacityRatio"] = "LeastAllocated"
    resources: tuple[ResourceWeight, ...] = ()
    requested_to_capacity_ratio: RequestedToCapacityRatioParam | None = None

    def __post_init__(self) -> None:
        if self.type == "RequestedToCapacityRatio" and self.requested_to_capacity_ratio is None:
            raise ValueError(
                "requestedToCapacityRatio: required with type RequestedToCapacityRatio"
            )


class NodeResourcesFitArgs(Arguments, frozen=True):
    """Extended resources that the filter ignores, by name or by the group before the slash, and the
    scoring strategy."""

    ignored_resources: tuple[str, ...] = ()
    """Extended resources that the filter ignores, by name."""
    ignored_resource_groups: tuple[str, ...] = ()
    """The same, by the group before the slash."""
    scoring_strategy: ScoringStrategy | None = None
    """How nodes are scored. Default: LeastAllocated by cpu and memory."""

    def __post_init__(self) -> None:
        for index, name in enumerate(self.ignored_resources):
            if not is_qualified_name(name):
                raise ValueError(f"ignoredResources[{index}]: {name!r} is not a resource name")
        for index, group in enumerate(self.ignored_resource_groups):
            if "/" in group:
                raise ValueError(
                    f"ignoredResourceGroups[{index}]: resource group name can't contain '/'"
                )
            if not is_qualified_name(group):
                raise ValueError(f"ignoredResourceGroups[{index}]: {group!r} is not a group name")


class RequestedResource(NamedTuple):
    """A resource that the filter checks, and the reason for a rejection."""

    resource: str
    asked: int
    reason: str


_REQUESTED: StateKey[tuple[RequestedResource, ...]] = StateKey("NodeResourcesFit/filter")
_SCORED: StateKey[tuple[ScoredResource, ...]] = StateKey("NodeResourcesFit/score")


class NodeResourcesFit(
    PreFilterPlugin,
    FilterAllPlugin,
    FilterPlugin,
    CapacityFilter,
    PreScorePlugin,
    ScoreAllPlugin,
    ScorePlugin,
    PlacementScorePlugin,
    EnqueueExtensions,
):
    """Rejects nodes without enough free resources; scores by the strategy, by default
    LeastAllocated.

    A request above the node's allocatable amount is unresolvable: preemption would not help.
    """

    name: ClassVar[str] = "NodeResourcesFit"
    api_version: ClassVar[int] = 1
    arguments: ClassVar[type[NodeResourcesFitArgs]] = NodeResourcesFitArgs
    scope: ClassVar[Scope] = Scope.RESOURCES
    reads_member_nodes: ClassVar[bool] = False

    def __init__(self, args: NodeResourcesFitArgs, handle: Handle) -> None:
        super().__init__(args, handle)
        strategy = args.scoring_strategy or ScoringStrategy()
        self._ignored = frozenset(args.ignored_resources)
        self._ignored_groups = frozenset(args.ignored_resource_groups)
        self._resources = with_defaults(strategy.resources)
        self._scorer = _scorer(strategy)
        self._ignores_zero_scores = strategy.type == "RequestedToCapacityRatio"
        self._devices = handle.shared(SharedDevices)
        self._delegates_to_devices = handle.feature_gates.dra_extended_resource
        scored = self._resources if self._delegates_to_devices else ()
        self._amounts = ScoredAmounts(self._devices, scored)
        self.shared_answers_version = self._amounts.version
        if self._amounts.counts_devices:
            # Equally full nodes may have different devices.
            self.scope = Scope.NODE  # type: ignore[misc]

    def pre_filter(self, state: CycleState, pod: PodInfo, nodes: Nodes) -> PreFilterResult:
        state.write(_REQUESTED, self._requested(pod.shape))
        return PROCEED

    def filter_all(self, state: CycleState, pod: PodInfo, nodes: Nodes) -> FilterResult:
        requested = state.get(_REQUESTED)
        if requested is None:
            requested = self._requested(pod.shape)
        failures = _Failures(nodes.size)
        failures.add(nodes.pod_count >= nodes.allowed_pods, TOO_MANY_PODS)
        for resource, asked, reason in requested:
            allocatable = nodes.capacity(resource)
            # Allocatable amounts are not negative, so the difference fits into 64 bits.
            lacking = nodes.requested(resource) > allocatable - asked
            if self._by_devices(resource):
                lacking &= allocatable > 0
            if failures.add(lacking, reason):
                failures.add(lacking & (allocatable < asked), None)
        return failures.result()

    def filter(self, state: CycleState, pod: PodInfo, node: NodeInfo) -> Status:
        requested = state.get(_REQUESTED)
        if requested is None:
            requested = self._requested(pod.shape)
        reasons: list[str | None] = []
        if node.pod_count >= node.allowed_pods:
            reasons.append(TOO_MANY_PODS)
        for resource, asked, reason in requested:
            allocatable = node.allocatable(resource)
            if allocatable <= 0 and self._by_devices(resource):
                continue
            if allocatable - node.requested(resource) < asked:
                reasons.append(reason)
                if allocatable < asked:
                    reasons.append(None)
        return _status(tuple(reasons)) if reasons else SUCCESS

    def capacity(self, pod: PodInfo, nodes: Nodes) -> Int64Column:
        found = nodes.allowed_pods - nodes.pod_count
        for resource, asked, _ in self._requested(pod.shape):
            allocatable = nodes.allocatable(resource)
            fitting = (allocatable - nodes.requested(resource)) // asked
            if self._by_devices(resource):
                fitting = np.where(allocatable > 0, fitting, found)
            found = np.minimum(found, fitting)
        most: Int64Column = np.maximum(found, 0)
        return most

    def _requested(self, shape: PodShape) -> tuple[RequestedResource, ...]:
        """In kube-scheduler's order; extended resources, which have none there, by name."""
        native = (CPU, MEMORY, EPHEMERAL_STORAGE)
        others = sorted(name for name in shape.requests if name not in native)
        return tuple(
            RequestedResource(name, shape.requests[name], f"Insufficient {name}")
            for name in (*native, *others)
            if shape.requests.get(name, 0) > 0 and not self._ignores(name)
        )

    def _by_devices(self, resource: str) -> bool:
        """Whether DynamicResources serves the resource on nodes without a device plugin for it."""
        return (
            resource not in (CPU, MEMORY, EPHEMERAL_STORAGE)
            and self._delegates_to_devices
            and self._devices.extended.class_of(resource) is not None
        )

    def _ignores(self, name: str) -> bool:
        return is_extended_resource(name) and (
            name in self._ignored or name.partition("/")[0] in self._ignored_groups
        )

    def pre_score(self, state: CycleState, pod: PodInfo, nodes: Nodes) -> Status:
        state.write(_SCORED, scored_resources(self._resources, pod.shape, assume_defaults=True))
        return SUCCESS

    def score_all(self, state: CycleState, pod: PodInfo, nodes: Nodes) -> Int64Column:
        total = np.zeros(nodes.size, np.int64)
        # A single entry while the weights are the same for all nodes.
        weights = np.zeros(1, np.int64)
        for name, weight, asked in state.read(_SCORED):
            capacity, used = self._amounts.of_all(name, usage(name, nodes), nodes)
            requested = used + asked
            score = self._scorer.of_all(requested, capacity)
            total += score if weight == 1 else score * weight
            counts = capacity > 0
            if self._ignores_zero_scores:
                counts = counts & (score > 0)
            weights = weights + (counts if weight == 1 else counts * np.int64(weight))
        weights = np.maximum(weights, 1)
        if self._ignores_zero_scores:
            rounded: Int64Column = np.floor(total / weights + 0.5).astype(np.int64)
            return rounded
        return truncated_quotient(total, weights)

    def score(self, state: CycleState, pod: PodInfo, node: NodeInfo) -> int:
        total = weights = 0
        for name, weight, asked in state.read(_SCORED):
            capacity, used = node.allocatable(name), usage_on(name, node)
            if self._amounts.counts_devices and not capacity:
                row = self.handle.cluster.nodes.row_of(node.name)
                capacity, used = self._amounts.of_row(name, used, row)
            requested = wrapped(used + asked)
            score = self._scorer.of_node(requested, capacity)
            total += score * weight
            if capacity > 0 and (score > 0 or not self._ignores_zero_scores):
                weights += weight
        weights = max(weights, 1)
        if self._ignores_zero_scores:
            return math.floor(total / weights + 0.5)
        return quotient(total, weights)

    def score_placement(self, group: GroupInCycle, assignments: GroupAssignments) -> int:
        """As kube-scheduler, by MostAllocated, whatever the strategy for nodes."""
        return placement_utilization(assignments, self._resources, self.handle.cluster.nodes)

    def events_to_register(self) -> Sequence[ClusterEventWithHint]:
        freed = ActionType.DELETE | ActionType.UPDATE_POD_SCALE_DOWN
        grown = ActionType.ADD | ActionType.UPDATE_NODE_ALLOCATABLE
        named = ActionType.ADD | ActionType.UPDATE
        events = (
            ClusterEventWithHint.on(EventResource.POD, freed, self._pod_freed_resources),
            ClusterEventWithHint.on(EventResource.NODE, grown, self._node_may_fit),
        )
        if not self._delegates_to_devices:
            return events
        classes = EventResource.DEVICE_CLASS
        return (*events, ClusterEventWithHint.on(classes, named, class_provides_resource))

    def _pod_freed_resources(
        self, pod: Pod, old: Object | None, new: Object | None
    ) -> QueueingHint:
        """Queue if an assigned pod is deleted, or a pod requests less of a relevant resource."""
        if not isinstance(old, Pod):
            return QueueingHint.SKIP
        if not isinstance(new, Pod):
            return queue_if(bool(old.spec.node_name))
        if new.uid == pod.uid:
            return QueueingHint.QUEUE
        if not new.spec.node_name:
            return QueueingHint.SKIP
        before, after = shape_of(old).requests, shape_of(new).requests
        relevant = [r.resource for r in self._requested(shape_of(pod))]
        return queue_if(any(before.get(name, 0) > after.get(name, 0) for name in relevant))

    def _node_may_fit(self, pod: Pod, old: Object | None, new: Object | None) -> QueueingHint:
        """Queue if the pod fits the empty node, and the node is new or a relevant resource grew."""
        if not isinstance(new, Node):
            return QueueingHint.SKIP
        requested = (RequestedResource(PODS, 1, TOO_MANY_PODS), *self._requested(shape_of(pod)))
        own = [r for r in requested if not self._delegates(new, r.resource)]
        if any(r.asked > _allocatable(new, r.resource) for r in own):
            return QueueingHint.SKIP
        grew = (
            not isinstance(old, Node)
            or len(own) < len(requested)
            or any(_allocatable(new, r.resource) > _allocatable(old, r.resource) for r in own)
        )
        return queue_if(grew)

    def _delegates(self, node: Node, resource: str) -> bool:
        return _allocatable(node, resource) <= 0 and self._by_devices(resource)


def class_provides_resource(pod: Pod, old: Object | None, new: Object | None) -> QueueingHint:
    """Queue if a class was added, or got another extended resource, that the pod requests."""
    if not isinstance(new, DeviceClass):
        return QueueingHint.QUEUE
    asked, resource = shape_of(pod).requests, new.spec.extended_resource_name
    if isinstance(old, DeviceClass):
        if (old.spec.extended_resource_name or "") == (resource or ""):
            return QueueingHint.SKIP
    elif IMPLICIT_PREFIX + new.name in asked:
        return QueueingHint.QUEUE
    return queue_if(resource is not None and resource in asked)


def _allocatable(node: Node, resource: str) -> int:
    quantity = node.status.allocatable.get(resource)
    return 0 if quantity is None else amount(resource, quantity)


class _Failures:
    """Collects the reasons of each row, one reason at a time. The reason ``None`` marks a row as
    unresolvable."""

    __slots__ = ("_codes", "_combinations")

    _COMPRESS_ABOVE = 256

    def __init__(self, size: int) -> None:
        self._codes = np.zeros(size, np.int64)
        self._combinations: list[tuple[str | None, ...]] = [()]

    def add(self, where: BoolColumn, reason: str | None) -> bool:
        """Returns whether any row has the reason."""
        if not np.count_nonzero(where):  # faster than any()
            return False
        self._codes += where * np.int64(len(self._combinations))
        self._combinations += [(*combination, reason) for combination in self._combinations]
        if len(self._combinations) > self._COMPRESS_ABOVE:
            self._compress()
        return True

    def _compress(self) -> None:
        """Drop combinations that no row has, except the first: no reasons."""
        held = np.bincount(self._codes, minlength=len(self._combinations)) > 0
        held[0] = True
        self._codes = (np.cumsum(held) - 1)[self._codes]
        self._combinations = [self._combinations[i] for i in np.flatnonzero(held).tolist()]

    def result(self) -> FilterResult:
        if len(self._combinations) == 1:
            return FilterResult.passing(len(self._codes))
        self._compress()
        statuses = [_status(combination) for combination in self._combinations[1:]]
        return FilterResult(self._codes.astype(np.int16), statuses)


def _status(combination: tuple[str | None, ...]) -> Status:
    reasons = tuple(reason for reason in combination if reason is not None)
    if None in combination:
        return Status.unresolvable(*reasons)
    return Status.unschedulable(*reasons)


# -- strategies -----------------------------------------------------------------------------------
# Products wrap at 64 bits as in kube-scheduler: a node with 8Ei of memory scores 0 for memory.


def _scorer(strategy: ScoringStrategy) -> ResourceScorer:
    ratio = strategy.requested_to_capacity_ratio
    if strategy.type == "RequestedToCapacityRatio" and ratio is not None:
        return _ByUtilization(ratio.shape)
    return _MostAllocated() if strategy.type == "MostAllocated" else _LeastAllocated()


class ResourceScorer(Protocol):
    """Scores a resource 0 to 100 by the requested amount, the pod included; 0 without capacity."""

    def of_all(self, requested: Int64Column, capacity: Int64Column) -> Int64Column: ...

    def of_node(self, requested: int, capacity: int) -> int: ...


class _LeastAllocated:
    def of_all(self, requested: Int64Column, capacity: Int64Column) -> Int64Column:
        free = capacity - requested
        np.maximum(free, 0, out=free)
        free *= MAX_NODE_SCORE
        return truncated_quotient(free, np.maximum(capacity, 1))

    def of_node(self, requested: int, capacity: int) -> int:
        free = max(wrapped(capacity - requested), 0)
        return quotient(wrapped(free * MAX_NODE_SCORE), max(capacity, 1))


class _MostAllocated:
    def of_all(self, requested: Int64Column, capacity: Int64Column) -> Int64Column:
        used = np.minimum(requested, capacity)
        return truncated_quotient(used * MAX_NODE_SCORE, np.maximum(capacity, 1))

    def of_node(self, requested: int, capacity: int) -> int:
        used = min(requested, capacity)
        return quotient(wrapped(used * MAX_NODE_SCORE), max(capacity, 1))


class _ByUtilization:
    def __init__(self, shape: Sequence[UtilizationShapePoint]) -> None:
        percents = range(_MAX_UTILIZATION + 1)
        self._scores = np.array([_score_at(shape, percent) for percent in percents], np.int64)

    def of_all(self, requested: Int64Column, capacity: Int64Column) -> Int64Column:
        percent = truncated_quotient(requested * _MAX_UTILIZATION, np.maximum(capacity, 1))
        percent[requested > capacity] = _MAX_UTILIZATION
        scores: Int64Column = self._scores[np.clip(percent, 0, _MAX_UTILIZATION)]
        return scores * (capacity > 0)

    def of_node(self, requested: int, capacity: int) -> int:
        if capacity <= 0:
            return 0
        percent = quotient(wrapped(requested * _MAX_UTILIZATION), capacity)
        if requested > capacity:
            percent = _MAX_UTILIZATION
        return int(self._scores[min(max(percent, 0), _MAX_UTILIZATION)])


def _score_at(shape: Sequence[UtilizationShapePoint], percent: int) -> int:
    """The score at a utilization, in the integer arithmetic of ``BuildBrokenLinearFunction``."""
    scale = MAX_NODE_SCORE // _MAX_SHAPE_SCORE
    for index, point in enumerate(shape):
        if percent <= point.utilization:
            if index == 0:
                return point.score * scale
            before = shape[index - 1]
            rise = (point.score - before.score) * scale * (percent - before.utilization)
            run = point.utilization - before.utilization
            return before.score * scale + (rise // run if rise >= 0 else -(-rise // run))
    return shape[-1].score * scale
