"""Namespaces, services, controllers, budgets and priority classes."""

from __future__ import annotations

from asched.model.meta import ApiStruct, Object
from asched.model.selectors import LabelSelector


class Namespace(Object, tag_field="kind", tag="Namespace"):
    """A namespace, for its labels."""


class ServiceSpec(ApiStruct):
    selector: dict[str, str] = {}


class Service(Object, tag_field="kind", tag="Service"):
    """A service, for its selector."""

    spec: ServiceSpec = ServiceSpec()


class ReplicationControllerSpec(ApiStruct):
    selector: dict[str, str] = {}


class ReplicationController(Object, tag_field="kind", tag="ReplicationController"):
    """A set of like pods of the older kind, for its selector."""

    spec: ReplicationControllerSpec = ReplicationControllerSpec()


class SelectorSpec(ApiStruct):
    """The one field of ReplicaSets and StatefulSets that scheduling reads."""

    selector: LabelSelector | None = None


class ReplicaSet(Object, tag_field="kind", tag="ReplicaSet"):
    """A set of like pods, for its selector."""

    spec: SelectorSpec = SelectorSpec()


class StatefulSet(Object, tag_field="kind", tag="StatefulSet"):
    """A set of pods with identities, for its selector."""

    spec: SelectorSpec = SelectorSpec()


class PodDisruptionBudgetSpec(ApiStruct):
    selector: LabelSelector | None = None
    min_available: int | str | None = None
    max_unavailable: int | str | None = None


class PodDisruptionBudgetStatus(ApiStruct):
    disruptions_allowed: int = 0
    disrupted_pods: dict[str, str] = {}


class PodDisruptionBudget(Object, tag_field="kind", tag="PodDisruptionBudget"):
    """How many of some pods may be evicted at a time."""

    spec: PodDisruptionBudgetSpec = PodDisruptionBudgetSpec()
    status: PodDisruptionBudgetStatus = PodDisruptionBudgetStatus()


class PriorityClass(Object, tag_field="kind", tag="PriorityClass"):
    """A name for a priority."""

    value: int = 0
    global_default: bool = False
    preemption_policy: str = "PreemptLowerPriority"
