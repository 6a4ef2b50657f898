"""Which plugins listen to which events, and what an event means for a waiting pod.

A part of :mod:`asched.state.queue`.

What kind of change an update is, in the vocabulary of cluster events.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from enum import IntEnum
from typing import NamedTuple

from asched.framework.events import ActionType, ClusterEvent, EventResource, QueueingHint
from asched.framework.pod_groups import GANG_ROOM
from asched.framework.pod_info import PodInfo, QueuedPod
from asched.framework.runtime.extenders import EXTENDER
from asched.framework.runtime.observation import FAILURES, reason_of
from asched.framework.runtime.profile import Profile, RegisteredEvent
from asched.model.custom import CustomObject
from asched.model.groups import CUSTOM_POD_GROUPS, PodGroup
from asched.model.meta import Object
from asched.model.node import Node
from asched.model.storage import (
    CSIDriver,
    CSINode,
    CSIStorageCapacity,
    PersistentVolume,
    PersistentVolumeClaim,
    StorageClass,
    VolumeAttachment,
)
from asched.model.workloads import Namespace, PodDisruptionBudget, Service
from asched.state.pod_groups import PodGroups
from asched.state.queue_events import QueuedClusterEvent, concerns, group_about, hint_of
from asched.state.rules import Rules

_ANY_EVENT = RegisteredEvent(EXTENDER, ClusterEvent(EventResource.ANY, ActionType.ALL), None)
"""Extenders cannot say what might change their mind, so anything may."""

_ANY_FOR_SIBLINGS = RegisteredEvent(
    GANG_ROOM, ClusterEvent(EventResource.ANY, ActionType.ALL), None
)
"""Nor does the pod that waits for its siblings to find room know what would help them."""


class Wake(IntEnum):
    """What an event means for a waiting pod (``queueingStrategy`` of kube-scheduler)."""

    NO = 0
    AFTER_BACKOFF = 1
    AT_ONCE = 2
    """A plugin that answered Pending got what it waited for: no backoff."""


class Listener(NamedTuple):
    """A plugin's registration within one profile."""

    scheduler_name: str
    registered: RegisteredEvent


class Listeners:
    """The registrations of all profiles."""

    def __init__(self, groups: PodGroups) -> None:
        """``groups``: which pods are of one group."""
        self._groups = groups
        self._profiles: Mapping[str, Profile] = {}
        self._rules = Rules.FIRST
        self._by_event: dict[ClusterEvent, Mapping[str, tuple[Listener, ...]]] = {}

    def configure(self, profiles: Mapping[str, Profile]) -> None:
        """New profiles, by scheduler name."""
        self._profiles = profiles
        self._by_event.clear()

    def follow(self, rules: Rules) -> None:
        """The rules in force from here on."""
        self._rules = rules
        self._by_event.clear()

    def of(self, event: ClusterEvent) -> Mapping[str, tuple[Listener, ...]]:
        """Registrations that cover the event, by plugin; looked up once per kind of event."""
        known = self._by_event.get(event)
        if known is not None:
            return known
        found: dict[str, tuple[Listener, ...]] = {}
        for name, profile in self._profiles.items():
            for registered in self._registered(profile):
                if registered.event.covers(event):
                    entry = Listener(name, registered)
                    found[registered.plugin] = (*found.get(registered.plugin, ()), entry)
        self._by_event[event] = found
        return found

    def _registered(self, profile: Profile) -> Iterator[RegisteredEvent]:
        yield from profile.events
        if self._rules >= Rules.SILENT_PLUGINS_HEAR_ALL:
            yield from profile.events_of_silent
        yield _ANY_EVENT
        yield _ANY_FOR_SIBLINGS

    def near(
        self,
        waiting: dict[str, QueuedPod],
        listeners: Sequence[Listener],
        happened: QueuedClusterEvent,
    ) -> dict[str, QueuedPod]:
        """Of the pods that wait for a plugin those that what it registered can concern at all."""
        if all(listener.registered.only_for is not None for listener in listeners):
            named = {key for listener in listeners for key in _named(listener.registered, waiting)}
            # In the order in which they wait.
            in_order = named if len(named) < 2 else waiting
            return {key: waiting[key] for key in in_order if key in named}
        if not all(listener.registered.own_group for listener in listeners):
            return waiting
        group = group_about(happened)
        members = () if group is None else self._groups.members(group).standings
        one = next((waiting[key].info.pod for key in members if key in waiting), None)
        if one is None or all(
            hint_of(listener.registered, one, happened) is QueueingHint.SKIP
            for listener in listeners
        ):
            return {}
        return {key: waiting[key] for key in sorted(key for key in members if key in waiting)}

    def wake(self, pod: QueuedPod, happened: QueuedClusterEvent) -> Wake:
        """``isPodWorthRequeuing`` of kube-scheduler."""
        pending = frozenset[str]() if pod.gating_plugin else pod.pending_plugins
        plugins = {pod.gating_plugin} if pod.gating_plugin else pod.unschedulable_plugins | pending
        if plugins.isdisjoint(self.of(happened.event)) or not concerns(pod, happened):
            return Wake.NO
        scheduler = pod.info.pod.spec.scheduler_name
        wake = Wake.NO
        for plugin, listeners in self.of(happened.event).items():
            if plugin not in plugins or (wake is not Wake.NO and plugin not in pending):
                continue
            if any(
                listener.scheduler_name == scheduler
                and hint_of(listener.registered, pod.info.pod, happened) is QueueingHint.QUEUE
                for listener in listeners
            ):
                if plugin in pending:
                    return Wake.AT_ONCE
                wake = Wake.AFTER_BACKOFF
        return wake


def _named(registered: RegisteredEvent, waiting: Collection[str]) -> Collection[str]:
    """Of the pods that wait those that its hint is to be asked about, as it says itself."""
    if registered.only_for is None:
        return waiting
    try:
        return [key for key in registered.only_for() if key in waiting]
    except BaseException as error:  # noqa: BLE001  a plugin's code: then the hint has to say
        FAILURES.note(registered.plugin, "QueueingHint", reason_of(error))
        return waiting


EVENT_RESOURCES: dict[type[Object], EventResource] = {
    Node: EventResource.NODE,
    Namespace: EventResource.NAMESPACE,
    Service: EventResource.SERVICE,
    PersistentVolume: EventResource.PERSISTENT_VOLUME,
    PersistentVolumeClaim: EventResource.PERSISTENT_VOLUME_CLAIM,
    StorageClass: EventResource.STORAGE_CLASS,
    CSINode: EventResource.CSI_NODE,
    CSIDriver: EventResource.CSI_DRIVER,
    CSIStorageCapacity: EventResource.CSI_STORAGE_CAPACITY,
    VolumeAttachment: EventResource.VOLUME_ATTACHMENT,
    PodDisruptionBudget: EventResource.POD_DISRUPTION_BUDGET,
    PodGroup: EventResource.POD_GROUP,
    CustomObject: EventResource.CUSTOM,
    **dict.fromkeys(CUSTOM_POD_GROUPS, EventResource.POD_GROUP),
}
"""Kinds whose changes can wake a pod."""


def node_changes(old: Node, new: Node) -> list[ClusterEvent]:
    """One event for each scheduling property of a node that differs."""
    actions = []
    if old.status.allocatable != new.status.allocatable:
        actions.append(ActionType.UPDATE_NODE_ALLOCATABLE)
    if old.metadata.labels != new.metadata.labels:
        actions.append(ActionType.UPDATE_NODE_LABEL)
    if old.spec != new.spec:
        actions.append(ActionType.UPDATE_NODE_TAINT)
    if old.status.conditions != new.status.conditions:
        actions.append(ActionType.UPDATE_NODE_CONDITION)
    if old.status.declared_features != new.status.declared_features:
        actions.append(ActionType.UPDATE_NODE_DECLARED_FEATURE)
    return [ClusterEvent(EventResource.NODE, action) for action in actions]


def pod_changes(old: PodInfo, new: PodInfo, resource: EventResource) -> list[ClusterEvent]:
    """One event for each scheduling property of a pod that differs, or one general update."""
    actions = []
    if old.pod.metadata.labels != new.pod.metadata.labels:
        actions.append(ActionType.UPDATE_POD_LABEL)
    if old.shape is not new.shape and _scaled_down(old, new):
        actions.append(ActionType.UPDATE_POD_SCALE_DOWN)
    if old.pod.spec.tolerations != new.pod.spec.tolerations:
        actions.append(ActionType.UPDATE_POD_TOLERATION)
    if old.pod.spec.scheduling_gates and not new.pod.spec.scheduling_gates:
        actions.append(ActionType.UPDATE_POD_SCHEDULING_GATES_ELIMINATED)
    return [ClusterEvent(resource, action) for action in actions or [ActionType.UPDATE_OTHER]]


def _scaled_down(old: PodInfo, new: PodInfo) -> bool:
    after = new.shape.requests
    return any(number > after.get(name, 0) for name, number in old.shape.requests.items())
