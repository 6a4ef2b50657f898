"""PodGroups, Queues of batch schedulers, and Workloads.

``PodGroup`` is a kind in four API groups. The name of the struct identifies it in the journal.
:class:`PodGroup` is that of ``scheduling.k8s.io``. The other three are custom resources of
kube-batch and Volcano, with equal fields and meaning.
"""

from __future__ import annotations

from asched.model.meta import ApiStruct, Int32, Object
from asched.model.quantity import QuantityText

# -- custom resources -------------------------------------------------------------------------


class CustomPodGroupSpec(ApiStruct):
    """Size, queue and priority of the group."""

    min_member: Int32 = 0
    queue: str = ""
    priority_class_name: str = ""
    min_resources: dict[str, QuantityText] = {}


class CustomPodGroupCondition(ApiStruct):
    """A condition without times and transition id, so that a repetition is no change."""

    type: str = ""
    status: str = ""
    reason: str = ""
    message: str = ""


class CustomPodGroupStatus(ApiStruct):
    """The status that a scheduler wrote."""

    phase: str = ""
    conditions: tuple[CustomPodGroupCondition, ...] = ()
    running: Int32 = 0
    succeeded: Int32 = 0
    failed: Int32 = 0


class CustomPodGroup(Object):
    """A gang of kube-batch. Base of one struct for each API group."""

    spec: CustomPodGroupSpec = CustomPodGroupSpec()
    status: CustomPodGroupStatus = CustomPodGroupStatus()


class IncubatorPodGroup(CustomPodGroup, tag_field="kind", tag="IncubatorPodGroup"):
    """``scheduling.incubator.k8s.io/v1alpha1``, the first of kube-batch."""


class SigsPodGroup(CustomPodGroup, tag_field="kind", tag="SigsPodGroup"):
    """``scheduling.sigs.dev/v1alpha2``, the second of kube-batch."""


class VolcanoPodGroup(CustomPodGroup, tag_field="kind", tag="VolcanoPodGroup"):
    """``scheduling.volcano.sh/v1beta1``."""


class CustomQueueSpec(ApiStruct):
    """A queue's share of the cluster."""

    weight: Int32 = 0
    capability: dict[str, QuantityText] = {}


class CustomQueue(Object):
    """A queue of jobs. Base of one struct for each API group."""

    spec: CustomQueueSpec = CustomQueueSpec()


class IncubatorQueue(CustomQueue, tag_field="kind", tag="IncubatorQueue"):
    """``scheduling.incubator.k8s.io/v1alpha1``."""


class SigsQueue(CustomQueue, tag_field="kind", tag="SigsQueue"):
    """``scheduling.sigs.dev/v1alpha2``."""


class VolcanoQueue(CustomQueue, tag_field="kind", tag="VolcanoQueue"):
    """``scheduling.volcano.sh/v1beta1``."""


CUSTOM_POD_GROUPS: tuple[type[CustomPodGroup], ...] = (
    IncubatorPodGroup,
    SigsPodGroup,
    VolcanoPodGroup,
)
"""In order of precedence for groups of equal names."""
CUSTOM_QUEUES: tuple[type[CustomQueue], ...] = (IncubatorQueue, SigsQueue, VolcanoQueue)
"""As :data:`CUSTOM_POD_GROUPS`."""


# -- scheduling.k8s.io ---------------------------------------------------------------------------
#
# One form for all versions of the API: that of 1.37 (v1alpha3, v1beta1), with names instead of
# unions. asched.model.group_versions decodes each version to it.


class GangPolicy(ApiStruct):
    min_count: Int32 = 0


class SchedulingPolicy(ApiStruct):
    """Without ``gang`` the pods are scheduled one by one."""

    gang: GangPolicy | None = None


class TopologyConstraint(ApiStruct):
    """All pods run on nodes with the same value of a label."""

    key: str = ""


class SchedulingConstraints(ApiStruct):
    topology: tuple[TopologyConstraint, ...] = ()


class WorkloadReference(ApiStruct):
    """The template from which a controller created the group."""

    workload_name: str = ""
    template_name: str = ""


class GroupSpec(ApiStruct):
    """What PodGroups, CompositePodGroups and their templates have in common."""

    scheduling_constraints: SchedulingConstraints | None = None
    disruption_mode: str = ""
    """``Single``, ``All``, or empty, which means ``Single``."""
    priority_class_name: str = ""
    priority: Int32 | None = None
    """Set by admission from the priority class."""
    preemption_policy: str = ""
    """``PreemptLowerPriority``, ``Never``, or empty. Only in 1.37."""
    unsupported: str = ""
    """The first value that asched does not know, with its field and the known ones, else empty.
    Such a group is not scheduled. Not a field of the API."""


class PodGroupSpec(GroupSpec):
    """How the pods of the group are scheduled."""

    scheduling_policy: SchedulingPolicy = SchedulingPolicy()
    workload_ref: WorkloadReference | None = None
    parent_composite_pod_group_name: str = ""
    """A CompositePodGroup of the same namespace; empty for none. Only in 1.37."""


class PodGroupCondition(ApiStruct):
    """A condition without its time, as :class:`CustomPodGroupCondition`."""

    type: str = ""
    status: str = ""
    reason: str = ""
    message: str = ""


class PodGroupStatus(ApiStruct):
    conditions: tuple[PodGroupCondition, ...] = ()
    """``PodGroupScheduled`` means ``PodGroupInitiallyScheduled`` of 1.37, and for
    ``CompositePodGroupInitiallyScheduled``."""


class NativeGroup(Object):
    """Base of PodGroup and CompositePodGroup of ``scheduling.k8s.io``."""

    status: PodGroupStatus = PodGroupStatus()


class PodGroup(NativeGroup, tag_field="kind", tag="PodGroup"):
    """A group of pods, which name it in ``spec.schedulingGroup.podGroupName``."""

    spec: PodGroupSpec = PodGroupSpec()

    @property
    def min_count(self) -> int:
        """Minimum size of the gang; 0 if the group is not a gang."""
        gang = self.spec.scheduling_policy.gang
        return 0 if gang is None else gang.min_count


class CompositeGangPolicy(ApiStruct):
    min_group_count: Int32 = 0


class CompositeSchedulingPolicy(ApiStruct):
    """Without ``gang`` the child groups are scheduled independently of each other."""

    gang: CompositeGangPolicy | None = None


class CompositePodGroupSpec(GroupSpec):
    """How the child groups are scheduled."""

    scheduling_policy: CompositeSchedulingPolicy = CompositeSchedulingPolicy()
    workload_ref: WorkloadReference | None = None
    parent_composite_pod_group_name: str = ""
    """As for :class:`PodGroupSpec`."""


class CompositePodGroup(NativeGroup, tag_field="kind", tag="CompositePodGroup"):
    """A group of PodGroups and CompositePodGroups, which name it as their parent."""

    spec: CompositePodGroupSpec = CompositePodGroupSpec()

    @property
    def min_group_count(self) -> int:
        """How many child groups must run together; 0 if each runs on its own."""
        gang = self.spec.scheduling_policy.gang
        return 0 if gang is None else gang.min_group_count


class PodGroupTemplate(GroupSpec):
    """The specification of PodGroups to be created."""

    name: str = ""
    scheduling_policy: SchedulingPolicy = SchedulingPolicy()


class CompositePodGroupTemplate(GroupSpec):
    """The specification of CompositePodGroups to be created, and of their child groups."""

    name: str = ""
    scheduling_policy: CompositeSchedulingPolicy = CompositeSchedulingPolicy()
    pod_group_templates: tuple[PodGroupTemplate, ...] = ()
    composite_pod_group_templates: tuple[CompositePodGroupTemplate, ...] = ()


class WorkloadSpec(ApiStruct):
    """The groups of the workload."""

    pod_group_templates: tuple[PodGroupTemplate, ...] = ()
    composite_pod_group_templates: tuple[CompositePodGroupTemplate, ...] = ()


class Workload(Object, tag_field="kind", tag="Workload"):
    """A template from which controllers create PodGroups."""

    spec: WorkloadSpec = WorkloadSpec()
