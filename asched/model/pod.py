"""Pods."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import msgspec

from asched.model.meta import ApiStruct, Int32, Int64, Object, Timestamp
from asched.model.node import Taint
from asched.model.quantity import QuantityText
from asched.model.selectors import LabelSelector, NodeSelector, PreferredSchedulingTerm

DEFAULT_SCHEDULER_NAME = "default-scheduler"
"""The default of ``spec.schedulerName``."""

SUCCEEDED = "Succeeded"
FAILED = "Failed"
FINISHED = (SUCCEEDED, FAILED)
"""The phases of a pod that no longer uses resources."""

POD_SCHEDULED = "PodScheduled"
_USED_CONDITIONS = frozenset({POD_SCHEDULED, "DisruptionTarget", "PodResizePending"})


class ResourceRequirements(ApiStruct):
    """Requests and limits, with quantities as written."""

    requests: dict[str, QuantityText] = {}
    limits: dict[str, QuantityText] = {}


class ContainerPort(ApiStruct):
    """A host port of a container."""

    host_port: Int32 = 0
    protocol: str = "TCP"
    host_ip: str = msgspec.field(default="", name="hostIP")


class ContainerRestartRule(ApiStruct):
    action: str = ""


class Container(ApiStruct):
    """A container."""

    name: str = ""
    image: str = ""
    resources: ResourceRequirements = ResourceRequirements()
    ports: tuple[ContainerPort, ...] = ()
    """Host ports only; others do not affect scheduling."""
    restart_policy: str = ""
    restart_policy_rules: tuple[ContainerRestartRule, ...] = ()

    def __post_init__(self) -> None:
        if self.ports:
            host_ports = tuple([port for port in self.ports if port.host_port > 0])
            msgspec.structs.force_setattr(self, "ports", host_ports)

    @property
    def restartable(self) -> bool:
        """Whether an init container is a sidecar (KEP-753)."""
        return self.restart_policy == "Always"


class Toleration(ApiStruct):
    """A taint, or kind of taint, that a pod tolerates."""

    key: str = ""
    operator: str = ""
    value: str = ""
    effect: str = ""

    def tolerates(self, taint: Taint) -> bool:
        """``Toleration.ToleratesTaint``, without operators Lt and Gt (off in 1.36)."""
        if self.effect and self.effect != taint.effect:
            return False
        if self.key and self.key != taint.key:
            return False
        if self.operator in ("", "Equal"):
            # As in Kubernetes, an empty key with Equal matches an empty taint value only.
            return self.value == taint.value
        return self.operator == "Exists"


class PodAffinityTerm(ApiStruct):
    """A pod affinity or anti-affinity term."""

    label_selector: LabelSelector | None = None
    namespaces: tuple[str, ...] = ()
    namespace_selector: LabelSelector | None = None
    topology_key: str = ""
    match_label_keys: tuple[str, ...] = ()
    mismatch_label_keys: tuple[str, ...] = ()


class WeightedPodAffinityTerm(ApiStruct):
    """A preferred term with its weight."""

    weight: Int32 = 0
    pod_affinity_term: PodAffinityTerm = PodAffinityTerm()


class NodeAffinity(ApiStruct):
    """Required and preferred nodes."""

    required: NodeSelector | None = msgspec.field(
        default=None, name="requiredDuringSchedulingIgnoredDuringExecution"
    )
    preferred: tuple[PreferredSchedulingTerm, ...] = msgspec.field(
        default=(), name="preferredDuringSchedulingIgnoredDuringExecution"
    )


class PodAffinity(ApiStruct):
    """The type of both ``podAffinity`` and ``podAntiAffinity``."""

    required: tuple[PodAffinityTerm, ...] = msgspec.field(
        default=(), name="requiredDuringSchedulingIgnoredDuringExecution"
    )
    preferred: tuple[WeightedPodAffinityTerm, ...] = msgspec.field(
        default=(), name="preferredDuringSchedulingIgnoredDuringExecution"
    )


class Affinity(ApiStruct):
    """``spec.affinity``."""

    node_affinity: NodeAffinity | None = None
    pod_affinity: PodAffinity | None = None
    pod_anti_affinity: PodAffinity | None = None


class TopologySpreadConstraint(ApiStruct):
    """One entry of ``spec.topologySpreadConstraints``."""

    max_skew: Int32 = 1
    topology_key: str = ""
    when_unsatisfiable: str = "DoNotSchedule"
    label_selector: LabelSelector | None = None
    min_domains: Int32 | None = None
    node_affinity_policy: str = "Honor"
    node_taints_policy: str = "Ignore"
    match_label_keys: tuple[str, ...] = ()


class SchedulingGate(ApiStruct):
    """Prevents scheduling until it is removed."""

    name: str = ""


class PersistentVolumeClaimSource(ApiStruct):
    claim_name: str = ""
    read_only: bool = False


class EphemeralVolumeSource(ApiStruct):
    """A generic ephemeral volume: its claim is named ``<pod>-<volume>``."""


class GCEPersistentDisk(ApiStruct):
    pd_name: str = ""
    read_only: bool = False


class AWSElasticBlockStore(ApiStruct):
    volume_id: str = msgspec.field(default="", name="volumeID")
    read_only: bool = False


class AzureDisk(ApiStruct):
    data_disk_uri: str = msgspec.field(default="", name="diskURI")


class CinderVolumeSource(ApiStruct):
    volume_id: str = msgspec.field(default="", name="volumeID")


class PortworxVolumeSource(ApiStruct):
    volume_id: str = msgspec.field(default="", name="volumeID")


class MigratedVolumeSource(ApiStruct):
    """An in-tree source that a CSI driver replaces; only its presence matters."""


class ISCSIVolume(ApiStruct):
    iqn: str = ""
    read_only: bool = False


class RBDVolume(ApiStruct):
    monitors: tuple[str, ...] = ()
    image: str = ""
    pool: str = "rbd"
    read_only: bool = False


class CSIVolumeSource(ApiStruct):
    driver: str = ""


class ImageVolumeSource(ApiStruct):
    """An image mounted as a volume, which ImageLocality scores as an image of the pod."""

    reference: str = ""


class Volume(ApiStruct):
    """A volume of a pod, with the sources that affect scheduling."""

    name: str = ""
    persistent_volume_claim: PersistentVolumeClaimSource | None = None
    ephemeral: EphemeralVolumeSource | None = None
    csi: CSIVolumeSource | None = None
    image: ImageVolumeSource | None = None
    gce_persistent_disk: GCEPersistentDisk | None = None
    aws_elastic_block_store: AWSElasticBlockStore | None = None
    azure_disk: AzureDisk | None = None
    cinder: CinderVolumeSource | None = None
    portworx_volume: PortworxVolumeSource | None = None
    azure_file: MigratedVolumeSource | None = None
    vsphere_volume: MigratedVolumeSource | None = None
    iscsi: ISCSIVolume | None = None
    rbd: RBDVolume | None = None


class PodResourceClaim(ApiStruct):
    """One entry of ``spec.resourceClaims``."""

    name: str = ""
    resource_claim_name: str = ""
    resource_claim_template_name: str = ""


class PodSchedulingGroup(ApiStruct):
    """``spec.schedulingGroup``."""

    pod_group_name: str = ""


class PodSpec(ApiStruct):
    """``spec`` of a pod."""

    node_name: str = ""
    scheduler_name: str = DEFAULT_SCHEDULER_NAME
    priority: Int32 = 0
    priority_class_name: str = ""
    preemption_policy: str = "PreemptLowerPriority"
    containers: tuple[Container, ...] = ()
    init_containers: tuple[Container, ...] = ()
    resources: ResourceRequirements | None = None
    overhead: dict[str, QuantityText] = {}
    node_selector: dict[str, str] | None = None
    affinity: Affinity | None = None
    tolerations: tuple[Toleration, ...] = ()
    topology_spread_constraints: tuple[TopologySpreadConstraint, ...] = ()
    scheduling_gates: tuple[SchedulingGate, ...] = ()
    volumes: tuple[Volume, ...] = ()
    host_network: bool = False
    host_users: bool | None = None
    resource_claims: tuple[PodResourceClaim, ...] = ()
    scheduling_group: PodSchedulingGroup | None = None
    termination_grace_period_seconds: Int64 | None = None
    oversized: str = ""
    """The limit that a stub exceeds (:mod:`asched.model.limits`). Not a field of the API."""


class PodCondition(ApiStruct):
    """A pod condition."""

    type: str = ""
    status: str = ""
    reason: str = ""
    message: str = ""
    """Used in shadow mode only; not recorded."""


class ContainerStatus(ApiStruct):
    """Actual and allocated resources of a container, for in-place resize."""

    name: str = ""
    resources: ResourceRequirements | None = None
    allocated_resources: dict[str, QuantityText] | None = None


class PodResourceClaimStatus(ApiStruct):
    """The claim that was generated from a template of the pod; without a name, none is needed."""

    name: str = ""
    resource_claim_name: str | None = None


class ContainerExtendedResourceRequest(ApiStruct):
    """The claim's request that serves an extended resource of a container."""

    container_name: str = ""
    resource_name: str = ""
    request_name: str = ""


class PodStatus(ApiStruct):
    """``status`` of a pod."""

    phase: str = ""
    conditions: tuple[PodCondition, ...] = ()
    nominated_node_name: str = ""
    start_time: Timestamp | None = None
    container_statuses: tuple[ContainerStatus, ...] = ()
    init_container_statuses: tuple[ContainerStatus, ...] = ()
    resource_claim_statuses: tuple[PodResourceClaimStatus, ...] = ()
    resources: ResourceRequirements | None = None
    """Actual resources at pod level, for in-place resize."""
    allocated_resources: dict[str, QuantityText] | None = None

    @property
    def reports_resources(self) -> bool:
        """Whether a kubelet reported container statuses or pod-level resources."""
        return bool(
            self.container_statuses
            or self.init_container_statuses
            or self.resources is not None
            or self.allocated_resources is not None
        )


class Pod(Object, tag_field="kind", tag="Pod"):
    """A pod."""

    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()

    @property
    def terminal(self) -> bool:
        """Whether the pod finished: it uses no resources."""
        return self.status.phase in FINISHED

    @property
    def terminating(self) -> bool:
        return self.metadata.deletion_timestamp is not None

    @property
    def node_name(self) -> str:
        return self.spec.node_name


def claim_names(pod: Pod) -> Iterator[str]:
    """The names of the pod's ResourceClaims; of those from templates once they exist."""
    statuses = pod.status.resource_claim_statuses
    generated = {each.name: each.resource_claim_name for each in statuses}
    for entry in pod.spec.resource_claims:
        name = entry.resource_claim_name or generated.get(entry.name)
        if name:
            yield name


def statuses_repeat_template(pod: Pod) -> bool:
    """Whether the pod and every container have the resources of the template; only a pod resized in
    place differs."""
    at_pod_level = pod.spec.resources
    if at_pod_level is not None and not _repeats(pod.status, at_pod_level.requests):
        return False
    containers, statuses = pod.spec.containers, pod.status.container_statuses
    if pod.spec.init_containers or pod.status.init_container_statuses:
        containers = (*containers, *pod.spec.init_containers)
        statuses = (*statuses, *pod.status.init_container_statuses)
    if len(containers) == len(statuses) == 1 and containers[0].name == statuses[0].name:
        return _repeats(statuses[0], containers[0].resources.requests)
    requested = {container.name: container.resources.requests for container in containers}
    return all(_repeats(status, requested.get(status.name)) for status in statuses)


def _repeats(
    status: PodStatus | ContainerStatus, requested: Mapping[str, QuantityText] | None
) -> bool:
    """Whether actual and allocated requests are missing or equal to ``requested``."""
    actual, allocated = status.resources, status.allocated_resources
    return (actual is None or actual.requests == requested) and (
        allocated is None or allocated == requested
    )


def reduced_pod(pod: Pod) -> Pod:
    """The pod without unused conditions and without statuses that repeat its template."""
    status, replace = pod.status, msgspec.structs.replace
    reports = status.reports_resources
    if not status.conditions and not reports:
        return pod
    conditions: tuple[PodCondition, ...] = tuple(
        [
            replace(condition, message="")
            for condition in status.conditions
            if condition.type in _USED_CONDITIONS
            # A scheduled pod has a node, so only another status of this condition adds anything.
            and (condition.type != POD_SCHEDULED or condition.status != "True")
        ]
    )
    redundant = reports and statuses_repeat_template(pod)
    if redundant and any(c.type == "PodResizePending" for c in conditions):
        redundant = False
    if conditions == status.conditions and not redundant:
        return pod
    if not redundant:
        return replace(pod, status=replace(status, conditions=conditions))
    reduced = replace(
        status,
        conditions=conditions,
        container_statuses=(),
        init_container_statuses=(),
        resources=None,
        allocated_resources=None,
    )
    return replace(pod, status=reduced)
