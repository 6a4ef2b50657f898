"""Profiles of given plugin classes, and some plugins for them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from asched.framework.cluster import Handle
from asched.framework.cycle_state import CycleState
from asched.framework.events import (
    ActionType,
    ClusterEvent,
    ClusterEventWithHint,
    EventResource,
    QueueingHint,
)
from asched.framework.feature_gates import DEFAULT_FEATURE_GATES, FeatureGates
from asched.framework.interface import (
    EnqueueExtensions,
    ExtensionPoint,
    FilterAllPlugin,
    Plugin,
    ReservePlugin,
    ReserveResult,
)
from asched.framework.nodes import FilterResult, Nodes
from asched.framework.pod_info import PodInfo
from asched.framework.runtime.profile import PluginLoader, PluginWeight, ProfileSpec
from asched.model.meta import Object
from asched.model.pod import Pod
from asched.plugins.queue_and_bind import DefaultBinder, PrioritySort, SchedulingGates
from asched.state.cluster import ClusterState
from asched.state.fold import Fold
from asched.state.records import ProfilesLoaded, QueueSettings

ESSENTIAL: tuple[type[Plugin], ...] = (PrioritySort, DefaultBinder)


def profile_of(
    *plugins: type[Plugin],
    name: str = "default-scheduler",
    weights: Mapping[str, int] | None = None,
    percentage: int = 0,
    arguments: Mapping[str, dict[str, Any]] | None = None,
) -> ProfileSpec:
    """A profile that enables each plugin at every point it serves, in the order given."""
    served = [*plugins]
    for essential, base in zip(ESSENTIAL, _REQUIRED_POINTS, strict=True):
        if not any(base.served_by(plugin) for plugin in plugins):
            served.append(essential)
    points = {
        point.field: tuple(
            PluginWeight(p.name, (weights or {}).get(p.name, 1) if _is_score(point) else 1)
            for p in served
            if point.served_by(p)
        )
        for point in ExtensionPoint
    }
    return ProfileSpec(
        scheduler_name=name,
        points=points,
        arguments=dict(arguments or {}),
        percentage_of_nodes_to_score=percentage,
    )


_REQUIRED_POINTS = (ExtensionPoint.QUEUE_SORT, ExtensionPoint.BIND)


def _is_score(point: ExtensionPoint) -> bool:
    return point in {ExtensionPoint.SCORE, ExtensionPoint.PLACEMENT_SCORE}


def loader(*plugins: type[Plugin]) -> PluginLoader:
    """Finds exactly these plugins, and those that every profile needs."""
    return {plugin.name: plugin for plugin in (*ESSENTIAL, *plugins)}.__getitem__


def a_fold(
    *plugins: type[Plugin],
    profiles: Sequence[ProfileSpec] = (),
    settings: QueueSettings | None = None,
    gates: FeatureGates = DEFAULT_FEATURE_GATES,
) -> Fold:
    """A fold over an empty state with one profile of these plugins, or with ``profiles``."""
    fold = Fold(ClusterState(), loader(*plugins))
    specs = tuple(profiles) or (profile_of(*plugins),)
    fold.apply(ProfilesLoaded(specs, settings or QueueSettings(), feature_gates=gates))
    return fold


class NodeWatcher(FilterAllPlugin, EnqueueExtensions):
    """Registers all node events."""

    name: ClassVar[str] = "NodeWatcher"
    api_version: ClassVar[int] = 1

    def filter_all(self, state: CycleState, pod: PodInfo, nodes: Nodes) -> FilterResult:
        return FilterResult.passing(nodes.size)

    def events_to_register(self) -> Sequence[ClusterEventWithHint]:
        any_node_event = ClusterEvent(EventResource.NODE, ActionType.ADD | ActionType.UPDATE)
        return (ClusterEventWithHint(any_node_event),)


class RoomWatcher(FilterAllPlugin, EnqueueExtensions):
    """Registers deletions of assigned pods, and label updates of the pod itself."""

    name: ClassVar[str] = "RoomWatcher"
    api_version: ClassVar[int] = 1

    def filter_all(self, state: CycleState, pod: PodInfo, nodes: Nodes) -> FilterResult:
        return FilterResult.passing(nodes.size)

    def events_to_register(self) -> Sequence[ClusterEventWithHint]:
        return (
            ClusterEventWithHint(
                ClusterEvent(EventResource.ASSIGNED_POD, ActionType.DELETE), left_a_node
            ),
            ClusterEventWithHint(
                ClusterEvent(EventResource.TARGET_POD, ActionType.UPDATE_POD_LABEL)
            ),
        )


def left_a_node(pod: Pod, old: Object | None, new: Object | None) -> QueueingHint:
    on_a_node = isinstance(old, Pod) and bool(old.spec.node_name)
    return QueueingHint.QUEUE if on_a_node else QueueingHint.SKIP


class Ledger(ReservePlugin):
    """Records its reservations."""

    name: ClassVar[str] = "Ledger"
    api_version: ClassVar[int] = 1

    def __init__(self, args: Any, handle: Handle) -> None:
        super().__init__(args, handle)
        self.books: dict[str, tuple[str, dict[str, Any] | None]] = {}

    def reserve(self, state: CycleState, pod: PodInfo, node_name: str) -> ReserveResult:
        return ReserveResult(reservation={"node": node_name})

    def on_reserved(self, pod: PodInfo, node_name: str, reservation: dict[str, Any] | None) -> None:
        assert pod.uid not in self.books
        self.books[pod.uid] = (node_name, reservation)

    def unreserve(self, pod: PodInfo, node_name: str, reservation: dict[str, Any] | None) -> None:
        assert self.books.pop(pod.uid) == (node_name, reservation)


DEFAULT = (SchedulingGates, NodeWatcher, RoomWatcher, Ledger)
