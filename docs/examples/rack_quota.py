"""RackQuota: at most a number of pods of one app in each rack.

A filter that depends on pods of other nodes: whether a node is feasible follows from what runs in
its rack. docs/how-to/plugins/across-nodes.md explains it step by step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, ClassVar

import msgspec
import numpy as np

from asched.framework import (
    SUCCESS,
    ActionType,
    Arguments,
    ClusterEvent,
    ClusterEventWithHint,
    CycleState,
    EnqueueExtensions,
    EventResource,
    FilterAllPlugin,
    FilterPlugin,
    FilterResult,
    Handle,
    NodeInfo,
    Nodes,
    PodInfo,
    PodQuery,
    PreFilterExtensions,
    PreFilterPlugin,
    PreFilterResult,
    QueueingHint,
    Selector,
    StateKey,
    Status,
)
from asched.model import LabelSelector, Object, Pod

APP = "app"
FULL = Status.unschedulable("node(s) were in a rack with the maximum number of pods of the app")

_COUNTS: StateKey[Mapping[str, int]] = StateKey("RackQuota/counts")


class RackQuotaArgs(Arguments, frozen=True):
    """How many pods, and what a rack is."""

    most: Annotated[int, msgspec.Meta(ge=1)] = 2
    """Pods with equal values of the label ``app``, and of one namespace, in a rack."""
    rack_label: str = "topology.kubernetes.io/rack"
    """The label of nodes that names their rack. Nodes without it are in none."""


class RackQuota(
    PreFilterPlugin, PreFilterExtensions, FilterPlugin, FilterAllPlugin, EnqueueExtensions
):
    """Limits the pods of one app in each rack, so that the loss of a rack costs few of them."""

    name: ClassVar[str] = "RackQuota"
    api_version: ClassVar[int] = 1
    arguments: ClassVar[type[RackQuotaArgs]] = RackQuotaArgs

    def __init__(self, args: RackQuotaArgs, handle: Handle) -> None:
        super().__init__(args, handle)
        self._args = args

    def applies_to(self, pod: PodInfo) -> bool:
        return APP in pod.labels

    # -- counting: once for each attempt --------------------------------------------------------

    def pre_filter(self, state: CycleState, pod: PodInfo, nodes: Nodes) -> PreFilterResult:
        """Count the pods of the app in each rack."""
        cluster = self.handle.cluster
        by_row = cluster.count_pods(_like(pod))
        label = self._args.rack_label
        counts: dict[str, int] = {}
        for row in np.flatnonzero(by_row).tolist():
            rack = cluster.nodes.node(row).labels.get(label)
            if rack is not None:
                counts[rack] = counts.get(rack, 0) + int(by_row[row])
        state.write(_COUNTS, counts)
        return PreFilterResult()

    def add_pod(self, state: CycleState, pod: PodInfo, added: PodInfo, node: NodeInfo) -> Status:
        return self._count(state, pod, added, node, 1)

    def remove_pod(
        self, state: CycleState, pod: PodInfo, removed: PodInfo, node: NodeInfo
    ) -> Status:
        return self._count(state, pod, removed, node, -1)

    def _count(
        self, state: CycleState, pod: PodInfo, other: PodInfo, node: NodeInfo, change: int
    ) -> Status:
        rack = node.labels.get(self._args.rack_label)
        if rack is not None and _are_alike(pod, other):
            counts = state.read(_COUNTS)
            state.write(_COUNTS, {**counts, rack: counts.get(rack, 0) + change})
        return SUCCESS

    # -- filtering ------------------------------------------------------------------------------

    def filter(self, state: CycleState, pod: PodInfo, node: NodeInfo) -> Status:
        rack = node.labels.get(self._args.rack_label)
        full = rack is not None and state.read(_COUNTS).get(rack, 0) >= self._args.most
        return FULL if full else SUCCESS

    def filter_all(self, state: CycleState, pod: PodInfo, nodes: Nodes) -> FilterResult:
        """The same on columns."""
        counts = state.read(_COUNTS)
        full = [rack for rack, count in counts.items() if count >= self._args.most]
        return FilterResult.reject(nodes.label(self._args.rack_label).is_in(full), FULL)

    # -- what may help a rejected pod -----------------------------------------------------------

    def events_to_register(self) -> Sequence[ClusterEventWithHint]:
        gone = ClusterEvent(EventResource.ASSIGNED_POD, ActionType.DELETE)
        rack = ActionType.ADD | ActionType.UPDATE_NODE_LABEL
        return (
            ClusterEventWithHint(gone, self._of_the_app),
            ClusterEventWithHint(ClusterEvent(EventResource.NODE, rack)),
        )

    def _of_the_app(self, pod: Pod, old: Object | None, new: Object | None) -> QueueingHint:
        """Whether the deleted pod counted."""
        if not isinstance(old, Pod):
            return QueueingHint.QUEUE
        alike = (old.namespace, old.metadata.labels.get(APP)) == (
            pod.namespace,
            pod.metadata.labels.get(APP),
        )
        return QueueingHint.QUEUE if alike else QueueingHint.SKIP


def _like(pod: PodInfo) -> PodQuery:
    """The pods of the app that count: those that are being deleted still do."""
    selector = Selector(LabelSelector(match_labels={APP: pod.labels[APP]}))
    return PodQuery((selector,), frozenset({pod.namespace}))


def _are_alike(pod: PodInfo, other: PodInfo) -> bool:
    return (pod.namespace, pod.labels[APP]) == (other.namespace, other.labels.get(APP))
