"""Pods that belong together: PodGroups, the Queues of batch schedulers, Workloads.

``PodGroup`` is a kind in four API groups, and objects of one name may exist in all of them. Each has
a type of its own, and the type's name is how the fold and the journal tell them apart:
:class:`PodGroup` is Kubernetes' own, the others are custom resources that kube-batch and its
descendants read. Those three have the same fields and mean the same.
"""

from __future__ import annotations

from asched.model.meta import ApiStruct, Object
from asched.model.quantity import QuantityText

# -- custom resources -------------------------------------------------------------------------


class CustomPodGroupSpec(ApiStruct):
    """How many pods run together, of which queue, and how important they are."""

    min_member: int = 0
    queue: str = ""
    priority_class_name: str = ""
    min_resources: dict[str, QuantityText] = {}


class CustomPodGroupCondition(ApiStruct):
    """Without its times and the session that set it: who only repeats it says nothing new."""

    type: str = ""
    status: str = ""
    reason: str = ""
    message: str = ""


class CustomPodGroupStatus(ApiStruct):
    """What a scheduler wrote last."""

    phase: str = ""
    conditions: tuple[CustomPodGroupCondition, ...] = ()
    running: int = 0
    succeeded: int = 0
    failed: int = 0


class CustomPodGroup(Object):
    """A gang as kube-batch knows it. The base of one type for each API group."""

    spec: CustomPodGroupSpec = CustomPodGroupSpec()
    status: CustomPodGroupStatus = CustomPodGroupStatus()


class IncubatorPodGroup(CustomPodGroup, tag_field="kind", tag="IncubatorPodGroup"):
    """``scheduling.incubator.k8s.io/v1alpha1``, kube-batch's first."""


class SigsPodGroup(CustomPodGroup, tag_field="kind", tag="SigsPodGroup"):
    """``scheduling.sigs.dev/v1alpha2``, kube-batch's second."""


class VolcanoPodGroup(CustomPodGroup, tag_field="kind", tag="VolcanoPodGroup"):
    """``scheduling.volcano.sh/v1beta1``."""


class CustomQueueSpec(ApiStruct):
    """A queue's share of the cluster."""

    weight: int = 0
    capability: dict[str, QuantityText] = {}


class CustomQueue(Object):
    """A share of the cluster that jobs wait for. The base of one type for each API group."""

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
"""In the order in which they are looked through: the first that has a group of a name is meant."""
CUSTOM_QUEUES: tuple[type[CustomQueue], ...] = (IncubatorQueue, SigsQueue, VolcanoQueue)
"""As :data:`CUSTOM_POD_GROUPS`."""


# -- Kubernetes' own (KEP-4671, scheduling.k8s.io/v1alpha2 of 1.36) -----------------------------


class BasicPolicy(ApiStruct):
    """Its pods are scheduled one by one."""


class GangPolicy(ApiStruct):
    min_count: int = 0


class SchedulingPolicy(ApiStruct):
    """One of these is given."""

    basic: BasicPolicy | None = None
    gang: GangPolicy | None = None


class WorkloadTemplateRef(ApiStruct):
    workload_name: str = ""
    pod_group_template_name: str = ""


class PodGroupTemplateRef(ApiStruct):
    workload: WorkloadTemplateRef | None = None


class PodGroupSpec(ApiStruct):
    """How the pods of the group are to be scheduled."""

    pod_group_template_ref: PodGroupTemplateRef | None = None
    scheduling_policy: SchedulingPolicy = SchedulingPolicy()


class PodGroupCondition(ApiStruct):
    """Without its time, as :class:`CustomPodGroupCondition`."""

    type: str = ""
    status: str = ""
    reason: str = ""
    message: str = ""


class PodGroupStatus(ApiStruct):
    conditions: tuple[PodGroupCondition, ...] = ()


class PodGroup(Object, tag_field="kind", tag="PodGroup"):
    """Pods of its namespace name it in ``spec.schedulingGroup.podGroupName``."""

    spec: PodGroupSpec = PodGroupSpec()
    status: PodGroupStatus = PodGroupStatus()

    @property
    def min_count(self) -> int:
        """How many pods make the gang; 0 for a group that is none."""
        gang = self.spec.scheduling_policy.gang
        return 0 if gang is None else gang.min_count


class PodGroupTemplate(ApiStruct):
    name: str = ""
    scheduling_policy: SchedulingPolicy = SchedulingPolicy()


class WorkloadSpec(ApiStruct):
    """The groups that a workload consists of."""

    pod_group_templates: tuple[PodGroupTemplate, ...] = ()


class Workload(Object, tag_field="kind", tag="Workload"):
    """What controllers make PodGroups from."""

    spec: WorkloadSpec = WorkloadSpec()
