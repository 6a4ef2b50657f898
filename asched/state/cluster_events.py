"""Cluster events: which plugins registered for them, and which waiting pods they requeue."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from enum import IntEnum
from typing import NamedTuple

from asched.framework.events import ActionType, ClusterEvent, EventResource, QueueingHint
from asched.framework.pod_groups import GANG_INFEASIBLE_REASON, PodGroupKey, group_of, key_of
from asched.framework.pod_info import PodInfo, QueuedPod
from asched.framework.query_index import RejectedPods
from asched.framework.runtime.extenders import EXTENDER
from asched.framework.runtime.observation import (
    CURRENT_CALL,
    FAILURES,
    OBSERVATION,
    FailureReason,
    failure_reason,
)
from asched.framework.runtime.profile import Profile, RegisteredEvent
from asched.model import resource_claims, storage
from asched.model.custom import CustomObject
from asched.model.groups import CUSTOM_POD_GROUPS, CompositePodGroup, CustomPodGroup, PodGroup
from asched.model.limits import POD_LIMITS
from asched.model.meta import Object
from asched.model.node import Node
from asched.model.pod import Pod
from asched.model.workloads import Namespace, PodDisruptionBudget, Service
from asched.state.pod_groups import PodGroups


def _without_status(pod: Pod, old: Object | None, new: Object | None) -> QueueingHint:
    """Queue unless only the status changed, which schedulers write."""
    if not isinstance(old, Pod) or not isinstance(new, Pod):
        return QueueingHint.QUEUE
    same = (old.metadata, old.spec) == (new.metadata, new.spec)
    return QueueingHint.SKIP if same else QueueingHint.QUEUE


_ALL_EVENTS = ClusterEvent(EventResource.ANY, ActionType.ALL)
_ALWAYS_REGISTERED = (
    RegisteredEvent(EXTENDER, _ALL_EVENTS, None),
    RegisteredEvent(GANG_INFEASIBLE_REASON, _ALL_EVENTS, None),
    RegisteredEvent(
        POD_LIMITS, ClusterEvent(EventResource.TARGET_POD, ActionType.UPDATE), _without_status
    ),
)
"""Extenders, and pods that wait for their gang to fit, register no events: any may help them. A pod
above a limit can only be changed itself."""

_GANG_RETRIES = 2

SelectedPods = Mapping[str, Collection[str]]
"""Keys of pods by plugin."""
_ALL_PODS: SelectedPods = {}

_OTHER_POD_RESOURCES = frozenset({EventResource.ASSIGNED_POD, EventResource.UNSCHEDULED_POD})


class QueuedClusterEvent:
    """An event with its objects. Immutable."""

    __slots__ = ("event", "held_since_ns", "new", "nomination", "old")

    def __init__(
        self,
        event: ClusterEvent,
        old: Object | None,
        new: Object | None,
        held_since_ns: int | None = None,
        *,
        nomination: bool = False,
    ) -> None:
        self.event = event
        self.old = old
        self.new = new
        self.held_since_ns = held_since_ns
        """If a waiting pod of a group released its node: since when it waited on Permit. None if it
        was nominated to the node before."""
        self.nomination = nomination
        """A nomination ended. ``old`` is the nominated pod as if it had been on that node."""


class QueueingStrategy(IntEnum):
    """What an event does to a waiting pod (``queueingStrategy`` of kube-scheduler)."""

    SKIP = 0
    AFTER_BACKOFF = 1
    IMMEDIATELY = 2
    """A plugin that returned Pending got what it waited for."""


class RegisteredHint(NamedTuple):
    """A plugin's registration within one profile."""

    scheduler_name: str
    registered: RegisteredEvent


class QueueingHints:
    """The registrations of all profiles."""

    def __init__(self, groups: PodGroups) -> None:
        self._groups = groups
        self._profiles: Mapping[str, Profile] = {}
        self._by_event: dict[ClusterEvent, Mapping[str, tuple[RegisteredHint, ...]]] = {}

    def configure(self, profiles: Mapping[str, Profile]) -> None:
        """Replace the profiles, by scheduler name."""
        self._profiles = profiles
        self._by_event.clear()

    def for_event(self, event: ClusterEvent) -> Mapping[str, tuple[RegisteredHint, ...]]:
        """The registrations that cover the event, by plugin."""
        known = self._by_event.get(event)
        if known is not None:
            return known
        found: dict[str, tuple[RegisteredHint, ...]] = {}
        for name, profile in self._profiles.items():
            for registered in (*profile.events, *_ALWAYS_REGISTERED):
                if registered.event.covers(event):
                    entry = RegisteredHint(name, registered)
                    found[registered.plugin] = (*found.get(registered.plugin, ()), entry)
        self._by_event[event] = found
        return found

    def candidates(
        self,
        waiting: dict[str, QueuedPod],
        hints: Sequence[RegisteredHint],
        queued_event: QueuedClusterEvent,
    ) -> dict[str, QueuedPod]:
        """The pods, of those that wait for a plugin, that the plugin's hints may requeue."""
        if all(hint.registered.only_for is not None for hint in hints):
            named = {key for hint in hints for key in _named(hint.registered, waiting)}
            # In the order in which they wait.
            in_order = named if len(named) < 2 else waiting
            return {key: waiting[key] for key in in_order if key in named}
        if not all(hint.registered.own_group for hint in hints):
            return waiting
        members = {
            key for hint in hints for key in self._of_group(hint.registered, waiting, queued_event)
        }
        return {key: waiting[key] for key in sorted(members)}

    def _of_group(
        self,
        registered: RegisteredEvent,
        waiting: Mapping[str, QueuedPod],
        event: QueuedClusterEvent,
    ) -> list[str]:
        """The waiting members of the group that the event is about, if the hint requeues them: it
        is evaluated for the first one only."""
        group = _group_of_event(event)
        members = () if group is None else self._groups.members(group).statuses
        first = next((waiting[key].info.pod for key in members if key in waiting), None)
        if first is None or evaluate_hint(registered, first, event) is QueueingHint.SKIP:
            return []
        return [key for key in members if key in waiting]

    def selected(
        self, rejected: RejectedPods, hints: Sequence[RegisteredHint], event: QueuedClusterEvent
    ) -> Collection[str] | None:
        """The pods, of those that wait for a plugin, for which its hints must be evaluated; None if
        the plugin does not select them."""
        if hints[0].registered.own_group and all(hint.registered.own_group for hint in hints):
            # As candidates() finds them.
            return () if _group_of_event(event) is None else None
        found: Collection[str] = ()
        for _, registered in hints:
            if registered.own_group:
                found = {*found, *self._of_group(registered, rejected.waiting, event)}
                continue
            if registered.select is None:
                return None
            try:
                chosen = registered.select(rejected, event.old, event.new)
                found = {*found, *chosen} if found else chosen
            except BaseException as error:  # noqa: BLE001  plugin code: the hint decides for all
                FAILURES.note(registered.plugin, "QueueingHint", failure_reason(error))
                return None
        return found

    def strategy(
        self, pod: QueuedPod, queued_event: QueuedClusterEvent, selected: SelectedPods = _ALL_PODS
    ) -> QueueingStrategy:
        """``isPodWorthRequeuing`` of kube-scheduler. ``selected``: see :meth:`selected`; the hints
        of these plugins are SKIP for all other pods."""
        pending = frozenset[str]() if pod.gating_plugin else pod.pending_plugins
        plugins = {pod.gating_plugin} if pod.gating_plugin else pod.unschedulable_plugins | pending
        by_plugin = self.for_event(queued_event.event)
        if plugins.isdisjoint(by_plugin) or not _is_relevant(pod, queued_event):
            return QueueingStrategy.SKIP
        scheduler = pod.info.pod.spec.scheduler_name
        strategy = QueueingStrategy.SKIP
        for plugin, hints in by_plugin.items():
            if plugin not in plugins or (
                strategy is not QueueingStrategy.SKIP and plugin not in pending
            ):
                continue
            if plugin in selected and pod.info.key not in selected[plugin]:
                continue
            if any(
                hint.scheduler_name == scheduler
                and evaluate_hint(hint.registered, pod.info.pod, queued_event) is QueueingHint.QUEUE
                for hint in hints
            ):
                if plugin in pending:
                    return QueueingStrategy.IMMEDIATELY
                strategy = QueueingStrategy.AFTER_BACKOFF
        return strategy


def _named(registered: RegisteredEvent, waiting: Collection[str]) -> Collection[str]:
    """The waiting pods that the registration limits its hint to."""
    if registered.only_for is None:
        return waiting
    try:
        return [key for key in registered.only_for() if key in waiting]
    except BaseException as error:  # noqa: BLE001  plugin code: the hint decides for all pods
        FAILURES.note(registered.plugin, "QueueingHint", failure_reason(error))
        return waiting


def evaluate_hint(
    registered: RegisteredEvent, pod: Pod, queued_event: QueuedClusterEvent
) -> QueueingHint:
    """The answer of a plugin's hint; QUEUE if the hint fails."""
    if registered.own_group and group_of(pod) != _group_of_event(queued_event):
        return QueueingHint.SKIP
    if registered.hint is None:
        return QueueingHint.QUEUE
    hint = registered.hint
    if OBSERVATION.hints is not None:
        hint = OBSERVATION.hints.wrap_hint(registered.plugin, queued_event.event, hint)
    outer, CURRENT_CALL.call = CURRENT_CALL.call, (registered.plugin, "QueueingHint")
    try:
        answer: object = hint(pod, queued_event.old, queued_event.new)
    except BaseException as error:  # noqa: BLE001  plugin code: a bug must not block the pod
        FAILURES.note(registered.plugin, "QueueingHint", failure_reason(error))
        return QueueingHint.QUEUE
    finally:
        CURRENT_CALL.call = outer
    if not isinstance(answer, QueueingHint):
        FAILURES.note(registered.plugin, "QueueingHint", FailureReason.INVALID_ANSWER)
        return QueueingHint.QUEUE
    return answer


def _is_relevant(pod: QueuedPod, queued_event: QueuedClusterEvent) -> bool:
    """Whether hints are evaluated at all.

    A pod gets events about itself only as ``TARGET_POD``, and no others as that: when its own
    binding fails, the released resources do not help it. The end of its own nomination is
    relevant, because the pod needs another node.
    """
    resource = queued_event.event.resource
    if queued_event.nomination:
        return _is_relevant_nomination(pod, queued_event)
    if resource not in _OTHER_POD_RESOURCES and resource is not EventResource.TARGET_POD:
        return True
    subject = queued_event.new or queued_event.old
    own = subject is not None and subject.uid == pod.info.uid
    if own is not (resource is EventResource.TARGET_POD):
        return False
    return queued_event.held_since_ns is None or _is_relevant_release(pod, queued_event)


def _is_relevant_nomination(pod: QueuedPod, queued_event: QueuedClusterEvent) -> bool:
    """A nominated pod blocks pods of no higher priority (``getLEPriorityPreCheck``)."""
    nominated = queued_event.old
    return isinstance(nominated, Pod) and pod.info.priority <= nominated.spec.priority


def _is_relevant_release(pod: QueuedPod, queued_event: QueuedClusterEvent) -> bool:
    """Whether a node released by a waiting pod of a group matters to another waiting pod.

    It does not for a pod that was rejected before the node was reserved: nothing changed for it.
    Nor for a pod of the same group, which was released because that pod was rejected; trying it
    first may help, so its first rejections are an exception. Without this rule two gangs that do
    not fit would requeue each other forever.
    """
    if _group_of_event(queued_event) == group_of(pod.info.pod):
        return pod.unschedulable_count <= _GANG_RETRIES
    since_ns = queued_event.held_since_ns
    return bool(pod.gating_plugin) or since_ns is None or since_ns <= pod.rejected_at_ns


def _group_of_event(queued_event: QueuedClusterEvent) -> PodGroupKey | None:
    """The group that an event is about, or the group of its pod."""
    subject = queued_event.new or queued_event.old
    if isinstance(subject, Pod):
        return group_of(subject)
    return key_of(subject) if isinstance(subject, PodGroup | CustomPodGroup) else None


EVENT_RESOURCES: dict[type[Object], EventResource] = {
    Node: EventResource.NODE,
    Namespace: EventResource.NAMESPACE,
    Service: EventResource.SERVICE,
    storage.PersistentVolume: EventResource.PERSISTENT_VOLUME,
    storage.PersistentVolumeClaim: EventResource.PERSISTENT_VOLUME_CLAIM,
    storage.StorageClass: EventResource.STORAGE_CLASS,
    storage.CSINode: EventResource.CSI_NODE,
    storage.CSIDriver: EventResource.CSI_DRIVER,
    storage.CSIStorageCapacity: EventResource.CSI_STORAGE_CAPACITY,
    storage.VolumeAttachment: EventResource.VOLUME_ATTACHMENT,
    resource_claims.DeviceClass: EventResource.DEVICE_CLASS,
    resource_claims.ResourceSlice: EventResource.RESOURCE_SLICE,
    resource_claims.ResourceClaim: EventResource.RESOURCE_CLAIM,
    PodDisruptionBudget: EventResource.POD_DISRUPTION_BUDGET,
    PodGroup: EventResource.POD_GROUP,
    CompositePodGroup: EventResource.COMPOSITE_POD_GROUP,
    CustomObject: EventResource.CUSTOM,
    **dict.fromkeys(CUSTOM_POD_GROUPS, EventResource.POD_GROUP),
}
"""Kinds that have events."""


def node_changes(old: Node, new: Node) -> list[ClusterEvent]:
    """One event for each scheduling property of a node that changed."""
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
    """One event for each scheduling property of a pod that changed, or one UPDATE_OTHER."""
    actions = []
    if old.pod.metadata.labels != new.pod.metadata.labels:
        actions.append(ActionType.UPDATE_POD_LABEL)
    before, after = old.shape.requests, new.shape.requests
    if old.shape is not new.shape and any(n > after.get(name, 0) for name, n in before.items()):
        actions.append(ActionType.UPDATE_POD_SCALE_DOWN)
    if old.pod.spec.tolerations != new.pod.spec.tolerations:
        actions.append(ActionType.UPDATE_POD_TOLERATION)
    if old.pod.spec.scheduling_gates and not new.pod.spec.scheduling_gates:
        actions.append(ActionType.UPDATE_POD_SCHEDULING_GATES_ELIMINATED)
    if old.pod.status.resource_claim_statuses != new.pod.status.resource_claim_statuses:
        actions.append(ActionType.UPDATE_POD_GENERATED_RESOURCE_CLAIM)
    return [ClusterEvent(resource, action) for action in actions or [ActionType.UPDATE_OTHER]]
