"""ServiceAffinity: places pods of one service on nodes with equal labels, and spreads them over
others.

The predicate ``CheckServiceAffinity`` and the priority ``ServiceAntiAffinity`` of former
kube-scheduler policies as one plugin for single nodes. ``score`` is the map function, ``normalize``
the reduce function. ``affinityLabels`` must have equal values on all nodes of a service; its pods
are spread over the values of ``antiAffinityLabels``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import ClassVar

import numpy as np

from asched.framework import (
    MAX_NODE_SCORE,
    SUCCESS,
    ActionType,
    Arguments,
    ClusterEvent,
    ClusterEventWithHint,
    CycleState,
    EnqueueExtensions,
    EventResource,
    FilterPlugin,
    Handle,
    Int64Column,
    NodeInfo,
    Nodes,
    NormalizeScore,
    PodInfo,
    PodQuery,
    PreFilterPlugin,
    PreFilterResult,
    PreScorePlugin,
    ScorePlugin,
    Selector,
    StateKey,
    Status,
)
from asched.model import LabelSelector, Service

_REJECTED = Status.unschedulable("node(s) didn't match service affinity")

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
        """Collect the required labels: those of the pod's node selector, and those of the first
        node with another pod of the service."""
        selected = pod.pod.spec.node_selector or {}
        labels = self._args.affinity_labels
        wanted = {label: selected[label] for label in labels if label in selected}
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
        return SUCCESS if fits else _REJECTED

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
        # Labels of the feasible nodes, in the order of the scores in normalize().
        values = [nodes.label(label).values() for label in self._args.anti_affinity_labels]
        state.write(_VALUES, values)
        return SUCCESS

    def score(self, state: CycleState, pod: PodInfo, node: NodeInfo) -> int:
        """Map: the number of pods of the service on the node."""
        selector = state.read(_SELECTOR)
        return sum(
            other.namespace == pod.namespace and selector.matches(other.labels)
            for other in node.pods
        )

    def normalize(self, state: CycleState, pod: PodInfo, scores: Int64Column) -> Int64Column:
        """Reduce: a smaller share of the service's pods on nodes with the same label value is
        better. A node without the label scores 0."""
        counts, total = scores.tolist(), int(scores.sum())
        by_label = state.read(_VALUES)
        result = np.zeros(len(counts), np.float64)
        for values in by_label:
            groups: Counter[str | None] = Counter()
            for value, count in zip(values, counts, strict=True):
                groups[value] += count
            for row, value in enumerate(values):
                if value is not None:
                    share = groups[value] / total if total else 0.0
                    result[row] += MAX_NODE_SCORE * (1 - share) / len(by_label)
        return result.astype(np.int64)

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
