"""Namespaces, services, controllers, disruption budgets and priority classes."""

from __future__ import annotations

from asched.model.meta import ApiStruct, Int32, Object
from asched.model.selectors import LabelSelector


class Namespace(Object, tag_field="kind", tag="Namespace"):
    """A namespace; only its labels matter."""


class ServiceSpec(ApiStruct):
    selector: dict[str, str] = {}


class Service(Object, tag_field="kind", tag="Service"):
    """A Service; only its selector matters."""

    spec: ServiceSpec = ServiceSpec()


class ReplicationControllerSpec(ApiStruct):
    selector: dict[str, str] = {}


class ReplicationController(Object, tag_field="kind", tag="ReplicationController"):
    """A ReplicationController; only its selector matters."""

    spec: ReplicationControllerSpec = ReplicationControllerSpec()


class SelectorSpec(ApiStruct):
    """``spec`` of a ReplicaSet or StatefulSet."""

    selector: LabelSelector | None = None


class ReplicaSet(Object, tag_field="kind", tag="ReplicaSet"):
    """A ReplicaSet; only its selector matters."""

    spec: SelectorSpec = SelectorSpec()


class StatefulSet(Object, tag_field="kind", tag="StatefulSet"):
    """A StatefulSet; only its selector matters."""

    spec: SelectorSpec = SelectorSpec()


class PodDisruptionBudgetSpec(ApiStruct):
    selector: LabelSelector | None = None
    min_available: Int32 | str | None = None


class PodDisruptionBudgetStatus(ApiStruct):
    disruptions_allowed: Int32 = 0
    disrupted_pods: dict[str, str] = {}


class PodDisruptionBudget(Object, tag_field="kind", tag="PodDisruptionBudget"):
    """Limits voluntary evictions."""

    spec: PodDisruptionBudgetSpec = PodDisruptionBudgetSpec()
    status: PodDisruptionBudgetStatus = PodDisruptionBudgetStatus()


class PriorityClass(Object, tag_field="kind", tag="PriorityClass"):
    """A PriorityClass."""

    value: Int32 = 0
    global_default: bool = False
    preemption_policy: str = "PreemptLowerPriority"
