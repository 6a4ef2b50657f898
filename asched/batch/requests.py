"""What pods ask and nodes offer, in a session's units."""

from __future__ import annotations

from typing import NamedTuple

from asched.framework.pod_info import PodInfo, PodShape
from asched.framework.resource_vector import CPU, MEMORY, ResourceVector
from asched.model.pod import Container, Pod
from asched.model.quantity import QuantityText, milli_value, value
from asched.model.requests import PODS, is_scalar_resource

SCALAR_UNIT = 1000.0
"""Sessions count resources other than cpu and memory in thousandths."""


class Requests(NamedTuple):
    """What a pod uses while it runs, and what it needs to start."""

    running: ResourceVector
    starting: ResourceVector


def effective_requests(shape: PodShape) -> Requests:
    """As kube-scheduler counts: one amount for all of a pod's life, init containers, sidecars and
    overhead included."""
    amounts = {
        name: float(number) if name in (CPU, MEMORY) else number * SCALAR_UNIT
        for name, number in shape.requests.items()
        if name != PODS
    }
    vector = ResourceVector.of(amounts)
    return Requests(vector, vector)


def requests_as_kube_batch(pod: Pod) -> Requests:
    """The sum over containers, and the largest of that and each init container. Ephemeral storage,
    sidecars and overhead are unknown to kube-batch."""
    running = ResourceVector()
    for container in pod.spec.containers:
        running.add(container_request(container))
    starting = running.copy()
    for container in pod.spec.init_containers:
        _raise_to(starting, container_request(container))
    return Requests(running, starting)


def container_request(container: Container) -> ResourceVector:
    return ResourceVector.of(
        {
            name: scalar_amount(name, quantity)
            for name, quantity in container.resources.requests.items()
            if is_counted(name)
        }
    )


def is_counted(resource: str) -> bool:
    """Whether kube-batch counts the resource."""
    return resource in (CPU, MEMORY) or is_scalar_resource(resource)


def scalar_amount(resource: str, quantity: QuantityText) -> float:
    """A quantity in the unit that sessions count ``resource`` in."""
    return float(value(quantity) if resource == MEMORY else milli_value(quantity))


def _raise_to(vector: ResourceVector, floor: ResourceVector) -> None:
    vector.milli_cpu = max(vector.milli_cpu, floor.milli_cpu)
    vector.memory_bytes = max(vector.memory_bytes, floor.memory_bytes)
    for name, number in (floor.scalars or {}).items():
        if vector.scalars is None:
            vector.scalars = {}
        vector.scalars[name] = max(vector.scalars.get(name, 0.0), number)


class RequestMemo:
    """The requests of pods, worked out once for each shape."""

    def __init__(self, *, count_all: bool) -> None:
        """``count_all``: effective requests; else kube-batch's."""
        self._count_all = count_all
        self._known: dict[PodShape, Requests] = {}

    def of(self, info: PodInfo) -> Requests:
        known = self._known.get(info.shape)
        if known is None:
            known = (
                effective_requests(info.shape)
                if self._count_all
                else requests_as_kube_batch(info.pod)
            )
            self._known[info.shape] = known
        return known
