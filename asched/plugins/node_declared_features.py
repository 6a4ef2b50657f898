"""NodeDeclaredFeatures: filters by the kubelet features that a pod requires."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from asched.framework.cluster import Handle
from asched.framework.cycle_state import CycleState, StateKey
from asched.framework.events import ActionType, ClusterEventWithHint, EventResource, QueueingHint
from asched.framework.interface import (
    EnqueueExtensions,
    FilterAllPlugin,
    PreFilterPlugin,
    PreFilterResult,
)
from asched.framework.nodes import BoolColumn, FilterResult, Nodes
from asched.framework.pod_info import PodInfo
from asched.framework.status import Status
from asched.model.meta import Object
from asched.model.node import Node
from asched.model.pod import Pod
from asched.plugins.shared import PROCEED, SKIP, added_or_changed, queue_if

MISSING_FEATURE = Status.unresolvable("node(s) didn't match Pod's required features")

RESTART_ALL_CONTAINERS = "RestartAllContainersOnContainerExits"
USER_NAMESPACES_HOST_NETWORK = "UserNamespacesHostNetworkSupport"

_REQUIRED: StateKey[frozenset[str]] = StateKey("NodeDeclaredFeatures/prefilter")


def required_features(pod: Pod) -> frozenset[str]:
    """The features that a node must declare to run the pod.

    Source: ``k8s.io/component-helpers/nodedeclaredfeatures`` of 1.36, without the features that do
    not affect scheduling.
    """
    spec = pod.spec
    found: set[str] = set()
    for container in (*spec.containers, *spec.init_containers):
        if any(rule.action == "RestartAllContainers" for rule in container.restart_policy_rules):
            found.add(RESTART_ALL_CONTAINERS)
    if spec.host_network and spec.host_users is False:
        found.add(USER_NAMESPACES_HOST_NETWORK)
    return frozenset(found)


class NodeDeclaredFeatures(PreFilterPlugin, FilterAllPlugin, EnqueueExtensions):
    """Rejects nodes without a required feature in ``status.declaredFeatures``."""

    name: ClassVar[str] = "NodeDeclaredFeatures"
    api_version: ClassVar[int] = 1
    applies_per_template: ClassVar[bool] = True

    def __init__(self, args: None, handle: Handle) -> None:
        super().__init__(args, handle)
        self._version: tuple[int, int] | None = None
        self._declared: dict[str, BoolColumn] = {}

    def applies_to(self, pod: PodInfo) -> bool:
        spec = pod.pod.spec
        if spec.host_network and spec.host_users is False:
            return True
        return any(c.restart_policy_rules for c in (*spec.containers, *spec.init_containers))

    def pre_filter(self, state: CycleState, pod: PodInfo, nodes: Nodes) -> PreFilterResult:
        required = required_features(pod.pod)
        if not required:
            return SKIP
        state.write(_REQUIRED, required)
        return PROCEED

    def filter_all(self, state: CycleState, pod: PodInfo, nodes: Nodes) -> FilterResult:
        self._update()
        missing = np.zeros(nodes.size, np.bool_)
        required = state.read(_REQUIRED)
        for feature in sorted(required):
            column = self._declared.get(feature)
            if column is None:
                return FilterResult.reject(np.ones(nodes.size, np.bool_), MISSING_FEATURE)
            missing |= ~nodes.align(column)
        return FilterResult.reject(missing, MISSING_FEATURE)

    def _update(self) -> None:
        """Rebuild the columns if a node changed."""
        cluster = self.handle.cluster
        nodes = cluster.nodes
        version = (cluster.objects_version(Node), nodes.version)
        if version == self._version:
            return
        self._version = version
        self._declared.clear()
        for row in np.flatnonzero(nodes.alive).tolist():
            for feature in nodes.node(row).status.declared_features:
                if feature not in self._declared:
                    self._declared[feature] = np.zeros(nodes.size, np.bool_)
                self._declared[feature][row] = True

    def events_to_register(self) -> Sequence[ClusterEventWithHint]:
        on, changed = (
            ClusterEventWithHint.on,
            ActionType.ADD | ActionType.UPDATE_NODE_DECLARED_FEATURE,
        )
        hint = added_or_changed(Node, lambda node: node.status.declared_features)
        return (
            on(EventResource.NODE, changed, hint),
            on(EventResource.TARGET_POD, ActionType.UPDATE, required_features_changed),
        )


def required_features_changed(pod: Pod, old: Object | None, new: Object | None) -> QueueingHint:
    if not isinstance(old, Pod) or not isinstance(new, Pod):
        return QueueingHint.SKIP
    return queue_if(required_features(old) != required_features(new))
