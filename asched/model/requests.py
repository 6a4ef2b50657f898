"""What a pod asks of a node: resources, host ports, and the defaults that scoring assumes.

The rules are those of ``k8s.io/component-helpers/resource.PodRequests`` as kube-scheduler 1.36
calls it: containers add up; init containers count with the sidecars started before them; a pod
resized in place counts at the largest of what is asked, allocated and in use; pod-level requests
replace the sum for cpu, memory and huge pages; overhead comes on top.

Quantities are added up in thousandths and the total rounded up once, as Kubernetes does: two
containers with half a byte each need one byte.
"""

from __future__ import annotations

from collections.abc import Mapping

from asched.model.pod import Container, ContainerPort, ContainerStatus, Pod
from asched.model.quantity import QuantityText, milli_value, saturated, thousandths, value

CPU = "cpu"
"""cpu, which is counted in thousandths."""
MEMORY = "memory"
"""memory, in bytes."""
EPHEMERAL_STORAGE = "ephemeral-storage"
"""Storage on the node itself, in bytes."""
PODS = "pods"
"""How many pods a node may have."""
HUGEPAGES_PREFIX = "hugepages-"
"""What names of huge pages begin with."""

DEFAULT_MILLI_CPU = 100
"""What scoring assumes for a container that requests no cpu (thousandths of a core)."""
DEFAULT_MEMORY_BYTES = 200 * 1024 * 1024
"""What scoring assumes for a container that requests no memory."""

Amounts = dict[str, int]
"""Resource name to amount: cpu in thousandths, everything else in whole units."""


def amount(resource: str, quantity: QuantityText) -> int:
    """A quantity in the unit the scheduler counts ``resource`` in."""
    return milli_value(quantity) if resource == CPU else value(quantity)


def amounts(quantities: Mapping[str, QuantityText]) -> Amounts:
    """Quantities by resource, each in the unit that the scheduler counts it in."""
    return {name: amount(name, quantity) for name, quantity in quantities.items()}


def pod_requests(pod: Pod) -> Amounts:
    """The effective requests of a pod. Sums are held within 64 bits."""
    return _rounded(_requests(pod, {}))


def pod_scoring_requests(pod: Pod) -> tuple[int, int]:
    """(cpu in thousandths, memory in bytes) with :data:`DEFAULT_MILLI_CPU` and
    :data:`DEFAULT_MEMORY_BYTES` for containers that ask for none (``NonZeroRequested``).
    """
    real = _requests(pod, {})
    defaults = _SCORING_DEFAULTS
    if _has_pod_level_requests(pod):
        # With pod-level requests a default stands in only for what neither level asks for.
        defaults = {name: amount for name, amount in defaults.items() if name not in real}
    assumed = _rounded(_requests(pod, defaults) if defaults else real)
    return assumed.get(CPU, 0), assumed.get(MEMORY, 0)


def pod_scoring_asks(pod: Pod) -> Amounts:
    """What NodeResourcesFit's score takes a pod that is not placed yet to ask.

    The defaults stand in as in :func:`pod_scoring_requests`, and pod-level requests are left out:
    kube-scheduler 1.36 counts them in this score only once the pod is on a node.
    """
    total = _container_requests(pod, _SCORING_DEFAULTS)
    _add(total, _exact(pod.spec.overhead))
    return _rounded(total)


def host_ports(pod: Pod) -> tuple[ContainerPort, ...]:
    """Ports of containers and sidecars that claim a port of the node itself."""
    sidecars = (c for c in pod.spec.init_containers if c.restartable)
    return tuple(
        port
        for container in (*pod.spec.containers, *sidecars)
        for port in container.ports
        if port.host_port > 0
    )


def is_extended_resource(name: str) -> bool:
    """A resource of somebody's own domain, such as ``nvidia.com/gpu`` (``IsExtendedResourceName``)."""
    native = "/" not in name or "kubernetes.io/" in name
    return not native and not name.startswith("requests.")


def is_scalar_resource(name: str) -> bool:
    """What the scheduler counts besides cpu, memory, ephemeral storage and pods: extended and
    ``kubernetes.io/`` resources, huge pages, attachable volumes (``IsScalarResourceName``)."""
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


# From here to the end amounts of every resource are in thousandths.

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
        for name, quantity in pod.spec.resources.requests.items():
            if is_pod_level_resource(name):
                total[name] = thousandths(quantity)
    _add(total, _exact(pod.spec.overhead))
    return total


def _container_requests(pod: Pod, defaults: Amounts) -> Amounts:
    """Containers and sidecars together, or the peak while init containers run if that is more."""
    statuses = {
        status.name: status
        for status in (*pod.status.init_container_statuses, *pod.status.container_statuses)
    }
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
    """What a container counts for: once it reports actual resources, the largest of what is asked,
    allocated and in use. A resize that the node cannot do leaves out what is asked."""
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
