"""What a pod asks of a node: resources, host ports, and the defaults that scoring assumes.

The rules are those of ``k8s.io/component-helpers/resource.PodRequests`` as kube-scheduler 1.36
calls it: containers add up; init containers count with the sidecars started before them; a pod
resized in place counts at the largest of what is asked, allocated and in use; pod-level requests
replace the sum for cpu, memory and huge pages; overhead comes on top.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from asched.model.pod import Container, ContainerPort, ContainerStatus, Pod
from asched.model.quantity import MAX_INT64, QuantityText, milli_value, value

CPU = "cpu"
MEMORY = "memory"
EPHEMERAL_STORAGE = "ephemeral-storage"
PODS = "pods"
HUGEPAGES_PREFIX = "hugepages-"

DEFAULT_MILLI_CPU = 100
"""What scoring assumes for a container that requests no cpu (thousandths of a core)."""
DEFAULT_MEMORY_BYTES = 200 * 1024 * 1024
"""What scoring assumes for a container that requests no memory."""

Amounts = dict[str, int]
"""Resource name to amount: cpu in thousandths, everything else in whole units."""

_Read = Callable[[Container, ContainerStatus | None], Mapping[str, QuantityText]]


def amount(resource: str, quantity: QuantityText) -> int:
    """A quantity in the unit the scheduler counts ``resource`` in."""
    return milli_value(quantity) if resource == CPU else value(quantity)


def amounts(quantities: Mapping[str, QuantityText]) -> Amounts:
    return {name: amount(name, quantity) for name, quantity in quantities.items()}


def pod_requests(pod: Pod) -> Amounts:
    """The effective requests of a pod. Sums are held within 64 bits."""
    return _requests(pod, {})


def pod_scoring_requests(pod: Pod) -> tuple[int, int]:
    """(cpu in thousandths, memory in bytes) with :data:`DEFAULT_MILLI_CPU` and
    :data:`DEFAULT_MEMORY_BYTES` for containers that ask for none (``NonZeroRequested``).
    """
    real = _requests(pod, {})
    defaults = {CPU: DEFAULT_MILLI_CPU, MEMORY: DEFAULT_MEMORY_BYTES}
    if _has_pod_level_requests(pod):
        # With pod-level requests a default stands in only for what neither level asks for.
        defaults = {name: amount for name, amount in defaults.items() if name not in real}
    assumed = _requests(pod, defaults) if defaults else real
    return assumed.get(CPU, 0), assumed.get(MEMORY, 0)


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


def _requests(pod: Pod, defaults: Amounts) -> Amounts:
    total = _container_requests(pod, defaults)
    if pod.spec.resources is not None:
        for name, quantity in pod.spec.resources.requests.items():
            if is_pod_level_resource(name):
                total[name] = amount(name, quantity)
    _add(total, amounts(pod.spec.overhead))
    return total


def _container_requests(pod: Pod, defaults: Amounts) -> Amounts:
    spec_total = _aggregate(pod, defaults, _asked)
    if not pod.status.container_statuses and not pod.status.init_container_statuses:
        return spec_total
    infeasible = _resize_infeasible(pod)

    def allocated(
        container: Container, status: ContainerStatus | None
    ) -> Mapping[str, QuantityText]:
        if status is not None and status.allocated_resources is not None:
            return status.allocated_resources
        return {} if infeasible else container.resources.requests

    def actuated(
        container: Container, status: ContainerStatus | None
    ) -> Mapping[str, QuantityText]:
        if status is not None and status.resources is not None and status.resources.requests:
            return status.resources.requests
        return allocated(container, status)

    total: Amounts = {} if infeasible else spec_total
    for read in (allocated, actuated):
        _raise_to(total, _aggregate(pod, defaults, read))
    return total


def _asked(container: Container, _: ContainerStatus | None) -> Mapping[str, QuantityText]:
    return container.resources.requests


def _resize_infeasible(pod: Pod) -> bool:
    for condition in pod.status.conditions:
        if condition.type == "PodResizePending":
            return condition.reason == "Infeasible"
    return False


def _aggregate(pod: Pod, defaults: Amounts, read: _Read) -> Amounts:
    statuses = {
        status.name: status
        for status in (*pod.status.init_container_statuses, *pod.status.container_statuses)
    }
    total: Amounts = {}
    for container in pod.spec.containers:
        asked = amounts(read(container, statuses.get(container.name)))
        _add(total, _with_defaults(asked, defaults))
    if not pod.spec.init_containers:
        return total
    sidecars: Amounts = {}
    peak: Amounts = {}
    for container in pod.spec.init_containers:
        asked = _with_defaults(amounts(read(container, statuses.get(container.name))), defaults)
        if container.restartable:
            _add(total, asked)
            _add(sidecars, asked)
            _raise_to(peak, sidecars)
        else:
            _add(asked, sidecars)
            _raise_to(peak, asked)
    _raise_to(total, peak)
    return total


def _with_defaults(asked: Amounts, defaults: Amounts) -> Amounts:
    return {**defaults, **asked} if defaults else asked


def _add(total: Amounts, more: Amounts) -> None:
    for name, number in more.items():
        total[name] = min(MAX_INT64, total.get(name, 0) + number)


def _raise_to(total: Amounts, floor: Amounts) -> None:
    for name, number in floor.items():
        if number > total.get(name, -1):
            total[name] = number
