"""Reads Kubernetes' definitions of scheduler workloads.

These are the files ``performance-config.yaml`` in ``test/integration/scheduler_perf`` of the
Kubernetes repository. An unknown operation or field is an error.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar, Literal

import msgspec
import yaml

PERFORMANCE = "performance"
"""Label of the workloads that Kubernetes' CI measures."""


class WorkloadError(ValueError):
    """A workload that cannot be run; the message names it and the reason."""


class _Part(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True, kw_only=True):
    """Base of all structs in a definition."""


class CsiAllocatable(_Part, frozen=True):
    count: int


class NodeAllocatable(_Part, frozen=True):
    """Volume limits of nodes."""

    node_allocatable: dict[str, str] = {}
    csi_node_allocatable: dict[str, CsiAllocatable] = {}
    migrated_plugins: tuple[str, ...] = ()


class NodeLabels(_Part, frozen=True):
    """A label with values assigned to the nodes round-robin."""

    label_key: str
    label_values: tuple[str, ...] = ()


class UniqueNodeLabel(_Part, frozen=True):
    """A label with a unique value for each node."""

    label_key: str


class Operation(_Part, frozen=True, tag_field="opcode"):
    """One step of a workload."""


class _Counted(Operation, frozen=True, tag_field="opcode"):
    count: int = 0
    count_param: str = ""


class CreateNodes(_Counted, frozen=True, tag="createNodes"):
    node_template_path: str = ""
    node_allocatable_strategy: NodeAllocatable | None = None
    label_node_prepare_strategy: NodeLabels | None = None
    unique_node_label_strategy: UniqueNodeLabel | None = None


class CreateNamespaces(_Counted, frozen=True, kw_only=True, tag="createNamespaces"):
    prefix: str
    namespace_template_path: str = ""


class CreatePods(_Counted, frozen=True, tag="createPods"):
    namespace: str = ""
    """Empty: a namespace for this step."""
    pod_template_path: str = ""
    collect_metrics: bool = False
    skip_wait_to_completion: bool = False
    steady_state: bool = False
    """Replace each scheduled pod by a new one, for ``duration``."""
    steady_state_param: str = ""
    duration: str = ""
    duration_param: str = ""
    persistent_volume_template_path: str = ""
    persistent_volume_claim_template_path: str = ""


class CreatePodSets(_Counted, frozen=True, kw_only=True, tag="createPodSets"):
    namespace_prefix: str
    create_pods_op: CreatePods


class CreateAny(_Counted, frozen=True, kw_only=True, tag="createAny"):
    template_path: str
    namespace: str = ""


class UpdateAny(_Counted, frozen=True, kw_only=True, tag="updateAny"):
    template_path: str
    namespace: str = ""
    update_per_second: int = 0
    """0: no limit."""
    subresources: tuple[str, ...] = ()


class DeletePods(Operation, frozen=True, tag="deletePods"):
    namespace: str
    label_selector: dict[str, str] = {}
    skip_wait_to_completion: bool = False
    delete_pods_per_second: int = 0
    """0: no limit."""


class Churn(Operation, frozen=True, tag="churn"):
    """Creates objects, or creates and deletes them, until the workload ends."""

    mode: Literal["create", "recreate"]
    template_paths: tuple[str, ...]
    number: int = 0
    interval_milliseconds: int = 500
    namespace: str = ""


class Barrier(Operation, frozen=True, tag="barrier"):
    namespaces: tuple[str, ...] = ()
    label_selector: dict[str, str] = {}
    stage_requirement: Literal["Scheduled", "Attempted"] = "Scheduled"


class Sleep(Operation, frozen=True, tag="sleep"):
    duration: str = ""
    duration_param: str = ""


class CreateResourceDriver(Operation, frozen=True, kw_only=True, tag="createResourceDriver"):
    """Publishes devices on all nodes with names that match the pattern."""

    driver_name: str
    nodes: str
    """A pattern of :mod:`fnmatch`."""
    max_claims_per_node: int = 0
    max_claims_per_node_param: str = ""


class AllocResourceClaims(Operation, frozen=True, tag="allocResourceClaims"):
    """Allocates devices to the claims of a namespace that have none."""

    namespace: str = ""


class StartCollectingMetrics(Operation, frozen=True, tag="startCollectingMetrics"):
    namespaces: tuple[str, ...]
    name: str = ""
    label_selector: dict[str, str] = {}


class StopCollectingMetrics(Operation, frozen=True, tag="stopCollectingMetrics"):
    pass


AnyOperation = (
    CreateNodes
    | CreateNamespaces
    | CreatePods
    | CreatePodSets
    | CreateAny
    | UpdateAny
    | DeletePods
    | Churn
    | Barrier
    | Sleep
    | CreateResourceDriver
    | AllocResourceClaims
    | StartCollectingMetrics
    | StopCollectingMetrics
)


class WorkloadSize(_Part, frozen=True):
    """One size of a case."""

    name: str
    labels: tuple[str, ...] = ()
    params: dict[str, Any] = {}
    threshold: float | dict[str, float] | None = None
    """Pods per second that Kubernetes' CI requires of kube-scheduler."""
    feature_gates: dict[str, bool] = {}
    """Feature gates of kube-scheduler; ignored."""


class Case(_Part, frozen=True):
    """Steps, and the sizes to run them in."""

    name: str
    workload_template: tuple[AnyOperation, ...]
    workloads: tuple[WorkloadSize, ...]
    default_pod_template_path: str = ""
    scheduler_config_path: str = ""
    """A KubeSchedulerConfiguration."""
    feature_gates: dict[str, bool] = {}


class Workload(msgspec.Struct, frozen=True):
    """A case in one size, and the folder of its templates."""

    case: Case
    size: WorkloadSize
    folder: Path

    _UNITS_S: ClassVar[dict[str, float]] = {"ms": 0.001, "s": 1, "m": 60, "h": 3600}

    @property
    def name(self) -> str:
        return f"{self.case.name}/{self.size.name}"

    def param(self, reference: str) -> Any:
        """The value of a parameter ``$name``. Raises :class:`WorkloadError`."""
        try:
            return self.size.params[reference.removeprefix("$")]
        except KeyError:
            raise WorkloadError(f"{self.name}: unknown parameter {reference}") from None

    def count(self, operation: _Counted, default: int = 0) -> int:
        if operation.count_param:
            return int(self.param(operation.count_param))
        return operation.count or default

    def is_steady(self, operation: CreatePods) -> bool:
        """Whether scheduled pods are replaced by new ones."""
        if operation.steady_state_param:
            return bool(self.param(operation.steady_state_param))
        return operation.steady_state

    def scheduler_profiles(self) -> list[dict[str, Any]]:
        """The profiles of the case's KubeSchedulerConfiguration; empty for the defaults.

        Raises :class:`WorkloadError`.
        """
        if not self.case.scheduler_config_path:
            return []
        path = self.folder / self.case.scheduler_config_path
        try:
            profiles: list[dict[str, Any]] = yaml.safe_load(path.read_text())["profiles"]
        except (OSError, yaml.YAMLError, KeyError, TypeError) as error:
            raise WorkloadError(f"{path}: {error}") from None
        return profiles

    def devices_per_node(self, operation: CreateResourceDriver) -> int:
        if operation.max_claims_per_node_param:
            return int(self.param(operation.max_claims_per_node_param))
        return operation.max_claims_per_node

    def duration_s(self, operation: CreatePods | Sleep) -> float:
        """The duration, such as ``1m`` or ``500ms``, in seconds. Raises :class:`WorkloadError`."""
        reference = operation.duration_param
        text = str(self.param(reference)) if reference else operation.duration
        number = text.rstrip("hms")
        unit = text[len(number) :]
        try:
            return float(number) * self._UNITS_S[unit]
        except (KeyError, ValueError):
            raise WorkloadError(f"{self.name}: {text!r} is not a duration") from None


def load(path: Path) -> list[Workload]:
    """All workloads of a file, in order. Raises :class:`WorkloadError`."""
    try:
        cases = msgspec.convert(yaml.safe_load(path.read_text()), list[Case])
    except (OSError, yaml.YAMLError, msgspec.ValidationError) as error:
        raise WorkloadError(f"{path}: {error}") from None
    return [Workload(case, size, path.parent) for case in cases for size in case.workloads]


def find(workloads: list[Workload], name: str) -> Workload:
    """The workload with this name: ``Case/Size``, a case, or a size that only one case has.

    For a case, its first size that Kubernetes' CI measures is preferred.

    Raises :class:`WorkloadError`.
    """
    exact = [workload for workload in workloads if workload.name == name]
    of_case = [workload for workload in workloads if workload.case.name == name]
    measured = [workload for workload in of_case if PERFORMANCE in workload.size.labels]
    of_size = [workload for workload in workloads if workload.size.name == name]
    for found in (exact, measured, of_case):
        if found:
            return found[0]
    if len(of_size) == 1:
        return of_size[0]
    known = ", ".join(workload.name for workload in of_size or workloads)
    raise WorkloadError(f"unknown workload {name!r}; available: {known}")
