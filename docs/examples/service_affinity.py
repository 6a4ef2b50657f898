"""ServiceAffinity: pods of one service on nodes that are alike, and spread over what they differ in.

The predicate ``CheckServiceAffinity`` and the priority ``ServiceAntiAffinity`` of kube-scheduler's
old policies as one plugin, written for one node at a time: ``score`` is the map, ``normalize`` the
reduce. ``affinityLabels`` must have equal values on all nodes that pods of a service use;
``antiAffinityLabels`` are what such pods are spread over.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import ClassVar

import numpy as np

from asched.framework.cycle_state import CycleState, StateKey
from asched.framework.events import (
    ActionType,
    ClusterEvent,
    ClusterEventWithHint,
    EventResource,
)
from asched.framework.interface import (
    Arguments,
    EnqueueExtensions,
    FilterPlugin,
    Handle,
    NormalizeScore,
    PreFilterPlugin,
    PreFilterResult,
    PreScorePlugin,
    ScorePlugin,
)
from asched.framework.nodes import MAX_NODE_SCORE, Int64Column, NodeInfo, Nodes
from asched.framework.pod_info import PodInfo
from asched.framework.pod_queries import PodQuery, Selector
from asched.framework.status import SUCCESS, Status
from asched.model.selectors import LabelSelector
from asched.model.workloads import Service

_REFUSED = Status.unschedulable("node(s) didn't match service affinity")

_WANTED: StateKey[Mapping[str, str]] = StateKey("ServiceAffinity/wanted")
_SELECTOR: StateKey[Selector] = StateKey("ServiceAffinity/selector")
_VALUES: StateKey[Sequence[Sequence[str | None]]] = StateKey("ServiceAffinity/values")


class ServiceAffinityArgs(Arguments, frozen=True):
    affinity_labels: tuple[str, ...] = ()
    anti_affinity_labels: tuple[str, ...] = ()


class ServiceAffinity(
    PreFilterPlugin, FilterPlugin, PreScorePlugin, ScorePlugin, NormalizeScore, EnqueueExtensions
):
    name: ClassVar[str] = "ServiceAffinity"
    api_version: ClassVar[int] = 1
    arguments: ClassVar[type[ServiceAffinityArgs]] = ServiceAffinityArgs

    def __init__(self, args: ServiceAffinityArgs, handle: Handle) -> None:
        super().__init__(args, handle)
        self._args = args

    # -- the predicate ------------------------------------------------------------------------

    def pre_filter(self, state: CycleState, pod: PodInfo, nodes: Nodes) -> PreFilterResult:
        """What the node must look like: what the pod asks for, and for the other labels what the
        first node with a fellow looks like."""
        asked = pod.pod.spec.node_selector or {}
        labels = self._args.affinity_labels
        wanted = {label: asked[label] for label in labels if label in asked}
        selector = self._service_of(pod)
        if selector is not None and len(wanted) < len(labels):
            query = PodQuery((selector,), frozenset({pod.namespace}))
            cluster = self.handle.cluster
            rows = np.flatnonzero(cluster.count_pods(query)).tolist()
            if rows:
                there = cluster.nodes.node(rows[0]).labels
                wanted |= {k: there[k] for k in labels if k in there and k not in wanted}
        if not wanted:
            return PreFilterResult(Status.skip())
        state.write(_WANTED, wanted)
        return PreFilterResult()

    def filter(self, state: CycleState, pod: PodInfo, node: NodeInfo) -> Status:
        wanted = state.read(_WANTED)
        fits = all(node.labels.get(label) == value for label, value in wanted.items())
        return SUCCESS if fits else _REFUSED

    def events_to_register(self) -> Sequence[ClusterEventWithHint]:
        changed = ActionType.ADD | ActionType.DELETE | ActionType.UPDATE
        return (
            ClusterEventWithHint(
                ClusterEvent(
                    EventResource.ASSIGNED_POD,
                    ActionType.ADD | ActionType.DELETE | ActionType.UPDATE_POD_LABEL,
                )
            ),
            ClusterEventWithHint(
                ClusterEvent(EventResource.NODE, ActionType.ADD | ActionType.UPDATE_NODE_LABEL)
            ),
            ClusterEventWithHint(ClusterEvent(EventResource.SERVICE, changed)),
        )

    # -- the priority -------------------------------------------------------------------------

    def pre_score(self, state: CycleState, pod: PodInfo, nodes: Nodes) -> Status:
        selector = self._service_of(pod)
        if selector is None or not self._args.anti_affinity_labels:
            return Status.skip()
        state.write(_SELECTOR, selector)
        # The feasible nodes, in the order in which the reduce will see their scores.
        values = [nodes.label(label).values() for label in self._args.anti_affinity_labels]
        state.write(_VALUES, values)
        return SUCCESS

    def score(self, state: CycleState, pod: PodInfo, node: NodeInfo) -> int:
        """The map: how many pods of the service the node has."""
        selector = state.read(_SELECTOR)
        return sum(
            other.namespace == pod.namespace and selector.matches(other.labels)
            for other in node.pods
        )

    def normalize(self, state: CycleState, pod: PodInfo, scores: Int64Column) -> Int64Column:
        """The reduce: the smaller the share of the service's pods on nodes with the same value of
        the label, the better; a node without the label is worth nothing."""
        counts, total = scores.tolist(), int(scores.sum())
        by_label = state.read(_VALUES)
        worth = np.zeros(len(counts), np.float64)
        for values in by_label:
            groups: Counter[str | None] = Counter()
            for value, count in zip(values, counts, strict=True):
                groups[value] += count
            for row, value in enumerate(values):
                if value is not None:
                    share = groups[value] / total if total else 0.0
                    worth[row] += MAX_NODE_SCORE * (1 - share) / len(by_label)
        return worth.astype(np.int64)

    def _service_of(self, pod: PodInfo) -> Selector | None:
        """The selector of the first service that selects the pod."""
        services = self.handle.cluster.objects(Service)
        for key in sorted(services):
            service = services[key]
            wanted = service.spec.selector
            if service.namespace == pod.namespace and wanted:
                selector = Selector(LabelSelector(match_labels=wanted))
                if selector.matches(pod.labels):
                    return selector
        return None
