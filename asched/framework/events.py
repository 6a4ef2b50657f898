"""Cluster events and queueing hints: what may make a rejected pod schedulable.

A plugin registers the events that may lift its own rejections. A rejected pod is requeued when a
plugin that rejected it returns ``QUEUE`` for an event. All names are kube-scheduler's.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from enum import Enum, IntFlag
from typing import TYPE_CHECKING, NamedTuple

from asched.model.custom import CustomObject, CustomT
from asched.model.meta import Object
from asched.model.pod import Pod

if TYPE_CHECKING:
    from asched.framework.query_index import RejectedPods


class ActionType(IntFlag):
    """What happened to an object. Values combine with ``|``."""

    ADD = 1
    DELETE = 2
    UPDATE_NODE_ALLOCATABLE = 4
    UPDATE_NODE_LABEL = 8
    UPDATE_NODE_TAINT = 16
    """Taints or ``spec.unschedulable``."""
    UPDATE_NODE_CONDITION = 32
    UPDATE_NODE_ANNOTATION = 64
    UPDATE_NODE_DECLARED_FEATURE = 128
    UPDATE_POD_LABEL = 256
    UPDATE_POD_SCALE_DOWN = 512
    """A request became smaller."""
    UPDATE_POD_TOLERATION = 1024
    UPDATE_POD_SCHEDULING_GATES_ELIMINATED = 2048
    UPDATE_POD_GENERATED_RESOURCE_CLAIM = 4096
    UPDATE_OTHER = 8192
    """An update that no other UPDATE value describes."""
    ALL = 2 * UPDATE_OTHER - 1
    UPDATE = ALL - ADD - DELETE


class EventResource(Enum):
    """The kind of object of an event."""

    ANY = "*"
    POD = "Pod"
    """Any pod: covers the three kinds of pods below."""
    ASSIGNED_POD = "AssignedPod"
    UNSCHEDULED_POD = "UnscheduledPod"
    """Another pending pod."""
    TARGET_POD = "TargetPod"
    """The rejected pod itself."""
    NODE = "Node"
    NAMESPACE = "Namespace"
    SERVICE = "Service"
    PERSISTENT_VOLUME = "PersistentVolume"
    PERSISTENT_VOLUME_CLAIM = "PersistentVolumeClaim"
    STORAGE_CLASS = "storage.k8s.io/StorageClass"
    CSI_NODE = "storage.k8s.io/CSINode"
    CSI_DRIVER = "storage.k8s.io/CSIDriver"
    CSI_STORAGE_CAPACITY = "storage.k8s.io/CSIStorageCapacity"
    VOLUME_ATTACHMENT = "storage.k8s.io/VolumeAttachment"
    DEVICE_CLASS = "resource.k8s.io/DeviceClass"
    RESOURCE_SLICE = "resource.k8s.io/ResourceSlice"
    RESOURCE_CLAIM = "resource.k8s.io/ResourceClaim"
    POD_DISRUPTION_BUDGET = "policy/PodDisruptionBudget"
    POD_GROUP = "scheduling.k8s.io/PodGroup"
    COMPOSITE_POD_GROUP = "scheduling.k8s.io/CompositePodGroup"
    CUSTOM = "CustomObject"
    """A custom resource that a plugin declares; see :func:`custom_event`."""


_POD_RESOURCES = frozenset(
    {EventResource.ASSIGNED_POD, EventResource.UNSCHEDULED_POD, EventResource.TARGET_POD}
)


class ClusterEvent(NamedTuple):
    """An event that is registered or that occurred."""

    resource: EventResource
    action: ActionType

    def covers(self, occurred: ClusterEvent) -> bool:
        """Whether a registration for this event matches the event that ``occurred``."""
        if not self.action & occurred.action:
            return False
        if self.resource is EventResource.ANY or self.resource is occurred.resource:
            return True
        return self.resource is EventResource.POD and occurred.resource in _POD_RESOURCES

    @property
    def label(self) -> str:
        """The name in metrics and history, for example ``AssignedPodDelete``."""
        return f"{self.resource.value}{_action_title(self.action)}"


def _action_title(action: ActionType) -> str:
    if action is ActionType.UPDATE or action is ActionType.UPDATE_OTHER:
        return "Update"
    name = action.name
    if name is None or "|" in name:
        return "Update" if action & ActionType.UPDATE else "All"
    return name.title().replace("_", "")


class QueueingHint(Enum):
    """The result of a queueing hint."""

    SKIP = "QueueSkip"
    """The event does not make the pod schedulable."""
    QUEUE = "Queue"
    """The event may make the pod schedulable: requeue it."""


QueueingHintFn = Callable[[Pod, Object | None, Object | None], QueueingHint]
"""``hint(rejected_pod, old_object, new_object)``. Old is None for an addition, new for a deletion.

Must be cheap and pure. An exception counts as ``QUEUE``, so a defect cannot leave a pod waiting.
"""


HintSelection = Callable[["RejectedPods", Object | None, Object | None], Collection[str]]
"""``select(rejected_pods, old_object, new_object)``: the keys of all pods for which the hint could
return QUEUE. May include other pods."""


class ClusterEventWithHint(NamedTuple):
    """An event that may lift a plugin's rejections. Without a hint it always requeues the pod."""

    event: ClusterEvent
    hint: QueueingHintFn | None = None
    own_group: bool = False
    """The event affects only pods of its own group, and the hint is equal for all of them."""
    only_for: Callable[[], Collection[str]] | None = None
    """Returns the keys of all pods for which the hint could return QUEUE; may include other pods.
    Called once per event. For plugins that reject many pods, if an event affects few of them."""
    select: HintSelection | None = None
    """As :attr:`only_for`, with the plugin's rejected pods and the event's objects."""

    @classmethod
    def on(
        cls,
        resource: EventResource,
        action: ActionType,
        hint: QueueingHintFn | None = None,
        select: HintSelection | None = None,
    ) -> ClusterEventWithHint:
        return cls(ClusterEvent(resource, action), hint, select=select)


CustomHint = Callable[[Pod, CustomT | None, CustomT | None], QueueingHint]
"""A :data:`QueueingHintFn` with the plugin's own struct."""


def custom_event(
    kind: type[CustomT], action: ActionType, hint: CustomHint[CustomT] | None = None
) -> ClusterEventWithHint:
    """An event of a custom resource of this kind: ADD, DELETE or UPDATE_OTHER."""
    resource = kind.definition.name

    def of_kind(item: Object | None) -> CustomT | None:
        return item.typed(kind) if isinstance(item, CustomObject) else None

    def of_this_kind(pod: Pod, old: Object | None, new: Object | None) -> QueueingHint:
        item = old if new is None else new
        if not isinstance(item, CustomObject) or item.resource != resource:
            return QueueingHint.SKIP
        return QueueingHint.QUEUE if hint is None else hint(pod, of_kind(old), of_kind(new))

    return ClusterEventWithHint(ClusterEvent(EventResource.CUSTOM, action), of_this_kind)
