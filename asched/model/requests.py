"""Resource requests and host ports of pods, with the defaults of scoring.

The rules are those of ``k8s.io/component-helpers/resource.PodRequests`` in kube-scheduler 1.36:

- Requests of containers are added up.
- Init containers count together with the sidecars started before them.
- A pod on a node that is resized in place counts with the maximum of desired, allocated and actual
  resources, for each container and at pod level.
- Pod-level requests replace the sum for cpu, memory and huge pages.
- Overhead is added.

Quantities are added in thousandths, and the total is rounded up once.
"""

from __future__ import annotations

from collections.abc import Mapping

from asched.model.pod import (
    Container,
    ContainerPort,
    ContainerStatus,
    Pod,
    ResourceRequirements,
)
from asched.model.quantity import QuantityText, milli_value, saturated, thousandths, value

CPU = "cpu"
"""Counted in thousandths."""
MEMORY = "memory"
"""Counted in bytes."""
EPHEMERAL_STORAGE = "ephemeral-storage"
"""Local storage of the node, in bytes."""
PODS = "pods"
"""Maximum number of pods on a node."""
HUGEPAGES_PREFIX = "hugepages-"
"""Prefix of the names of huge pages."""

DEFAULT_MILLI_CPU = 100
"""Scoring assumes this if a container requests no cpu."""
DEFAULT_MEMORY_BYTES = 200 * 1024 * 1024
"""Scoring assumes this if a container requests no memory."""

Amounts = dict[str, int]
"""Amounts by resource name: cpu in thousandths, others in whole units."""


def amount(resource: str, quantity: QuantityText) -> int:
    """A quantity in the unit of ``resource``."""
    return milli_value(quantity) if resource == CPU else value(quantity)


def amounts(quantities: Mapping[str, QuantityText]) -> Amounts:
    """Quantities by resource, each in its unit."""
    return {name: amount(name, quantity) for name, quantity in quantities.items()}


def pod_requests(pod: Pod) -> Amounts:
    """The effective requests of a pod, limited to 64 bits."""
    return _rounded(_requests(pod, {}))


def pod_scoring_requests(pod: Pod) -> tuple[int, int]:
    """(cpu in thousandths, memory in bytes) with :data:`DEFAULT_MILLI_CPU` and
    :data:`DEFAULT_MEMORY_BYTES` for containers that ask for none (``NonZeroRequested``).
    """
    defaults = _SCORING_DEFAULTS
    if _has_pod_level_requests(pod):
        # With pod-level requests, a default applies only if neither level requests the resource.
        real = _requests(pod, {})
        defaults = {name: amount for name, amount in defaults.items() if name not in real}
    assumed = _rounded(_requests(pod, defaults))
    return assumed.get(CPU, 0), assumed.get(MEMORY, 0)


def pod_scoring_asks(pod: Pod) -> Amounts:
    """The requests of a pending pod in NodeResourcesFit's score.

    Uses the defaults of :func:`pod_scoring_requests` but not pod-level requests, which
    kube-scheduler 1.36 counts in this score only for pods on nodes.
    """
    total = _container_requests(pod, _SCORING_DEFAULTS)
    _add(total, _exact(pod.spec.overhead))
    return _rounded(total)


def host_ports(pod: Pod) -> tuple[ContainerPort, ...]:
    """The host ports of containers and sidecars."""
    sidecars = (c for c in pod.spec.init_containers if c.restartable)
    return tuple(
        port
        for container in (*pod.spec.containers, *sidecars)
        for port in container.ports
        if port.host_port > 0
    )


def is_extended_resource(name: str) -> bool:
    """Whether a name is an extended resource such as ``nvidia.com/gpu``
    (``IsExtendedResourceName``)."""
    native = "/" not in name or "kubernetes.io/" in name
    return not native and not name.startswith("requests.")


def is_scalar_resource(name: str) -> bool:
    """Whether a name is an extended or ``kubernetes.io/`` resource, a huge page size or a number of
    attachable volumes (``IsScalarResourceName``)."""
    return (
        is_extended_resource(name)
        or name.startswith((HUGEPAGES_PREFIX, "attachable-volumes-"))
        or "kubernetes.io/" in name
    )


def is_pod_level_resource(name: str) -> bool:
    return name in (CPU, MEMORY) or name.startswith(HUGEPAGES_PREFIX)


def _has_pod_level_requests(pod: Pod) -> bool:
    resources = pod.spec.resources
    return resources is not None and any(is_pod_level_resource(name) for name in resources.requests)


# Below, amounts of all resources are in thousandths.

_SCORING_DEFAULTS: Amounts = {CPU: DEFAULT_MILLI_CPU, MEMORY: DEFAULT_MEMORY_BYTES * 1000}


def _exact(quantities: Mapping[str, QuantityText]) -> Amounts:
    return {name: thousandths(quantity) for name, quantity in quantities.items()}


def _rounded(exact: Amounts) -> Amounts:
    return {
        name: saturated(number if name == CPU else -(-number // 1000))
        for name, number in exact.items()
    }


def _requests(pod: Pod, defaults: Amounts) -> Amounts:
    total = _container_requests(pod, defaults)
    if pod.spec.resources is not None:
        total |= _pod_level_requests(pod, pod.spec.resources)
    _add(total, _exact(pod.spec.overhead))
    return total


def _pod_level_requests(pod: Pod, desired: ResourceRequirements) -> Amounts:
    """The requests at pod level, only of resources that ``desired`` names: the maximum of desired,
    allocated and actual requests once the pod on a node reports actual resources."""
    requests = {
        name: quantity for name, quantity in desired.requests.items() if is_pod_level_resource(name)
    }
    actual = pod.status.resources
    if actual is None or not pod.spec.node_name:
        return _exact(requests)
    counted = dict.fromkeys(requests, 0) if _resize_infeasible(pod) else _exact(requests)
    for reported in (actual.requests, pod.status.allocated_resources or {}):
        _raise_to(counted, _exact({n: q for n, q in reported.items() if n in requests}))
    return counted


def _container_requests(pod: Pod, defaults: Amounts) -> Amounts:
    """The sum of containers and sidecars, or the peak while init containers run if higher."""
    reported = (*pod.status.init_container_statuses, *pod.status.container_statuses)
    # The status of a pod without a node does not count.
    statuses = {status.name: status for status in reported if pod.spec.node_name}
    infeasible = bool(statuses) and _resize_infeasible(pod)

    def asked(container: Container) -> Amounts:
        counted = _counted(container, statuses.get(container.name), infeasible)
        return _with_defaults(counted, defaults)

    total: Amounts = {}
    for container in pod.spec.containers:
        _add(total, asked(container))
    sidecars: Amounts = {}
    peak: Amounts = {}
    for container in pod.spec.init_containers:
        amounts_here = (
            asked(container)
            if container.restartable
            else _with_defaults(_exact(container.resources.requests), defaults)
        )
        if container.restartable:
            _add(total, amounts_here)
            _add(sidecars, amounts_here)
            _raise_to(peak, sidecars)
        else:
            _add(amounts_here, sidecars)
            _raise_to(peak, amounts_here)
    _raise_to(total, peak)
    return total


def _counted(container: Container, status: ContainerStatus | None, infeasible: bool) -> Amounts:
    """The resources of a container: the maximum of desired, allocated and actual resources once it
    reports them. Desired resources of an infeasible resize do not count."""
    if status is None or status.resources is None:
        return _exact(container.resources.requests)
    counted = {} if infeasible else _exact(container.resources.requests)
    _raise_to(counted, _exact(status.resources.requests))
    _raise_to(counted, _exact(status.allocated_resources or {}))
    return counted


def _resize_infeasible(pod: Pod) -> bool:
    for condition in pod.status.conditions:
        if condition.type == "PodResizePending":
            return condition.reason == "Infeasible"
    return False


def _with_defaults(asked: Amounts, defaults: Amounts) -> Amounts:
    return {**defaults, **asked} if defaults else asked


def _add(total: Amounts, more: Amounts) -> None:
    for name, number in more.items():
        total[name] = total.get(name, 0) + number


def _raise_to(total: Amounts, floor: Amounts) -> None:
    for name, number in floor.items():
        if number > total.get(name, -1):
            total[name] = number
