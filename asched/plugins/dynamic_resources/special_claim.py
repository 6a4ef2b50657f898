"""The special claim of a pod with extended resources that device classes provide.

Source: ``createRequestsAndMappings`` of kube-scheduler 1.36.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import msgspec

from asched.dra.extended import ExtendedResources
from asched.framework.devices import TRUE
from asched.model.meta import Annotations, ObjectMeta, OwnerReference
from asched.model.pod import Container, ContainerExtendedResourceRequest, Pod
from asched.model.quantity import thousandths
from asched.model.resource_claims import (
    DeviceRequest,
    ExactDeviceRequest,
    ResourceClaim,
    ResourceClaimSpec,
)

IN_MEMORY_NAME = "<extended-resources>"
"""The name of a special claim that is not created yet. No claim in the API server has it."""


class SpecialRequests(NamedTuple):
    """The requests of a special claim on nodes that need DRA for the same resources."""

    requests: tuple[DeviceRequest, ...]
    mappings: tuple[ContainerExtendedResourceRequest, ...]


def in_memory_claim(pod: Pod, spec: ResourceClaimSpec | None = None) -> ResourceClaim:
    """A special claim that is not created yet. Its requests depend on the node."""
    owner = OwnerReference(
        api_version="v1", kind="Pod", name=pod.name, uid=pod.uid, controller=True
    )
    return ResourceClaim(
        metadata=ObjectMeta(
            name=IN_MEMORY_NAME,
            namespace=pod.namespace,
            owner_references=(owner,),
            annotations=Annotations(extended_resource_claim=TRUE),
        ),
        spec=spec or ResourceClaimSpec(),
    )


def with_requests(claim: ResourceClaim, requests: Sequence[DeviceRequest]) -> ResourceClaim:
    """The claim with these requests only."""
    replace = msgspec.structs.replace
    devices = replace(claim.spec.devices, requests=tuple(requests))
    return replace(claim, spec=replace(claim.spec, devices=devices))


def special_requests(
    pod: Pod, resources: Iterable[str], extended: ExtendedResources
) -> SpecialRequests:
    """The requests for ``resources``, sorted by name, and the requests that containers use."""
    requests: list[DeviceRequest] = []
    mappings: list[ContainerExtendedResourceRequest] = []
    for resource in sorted(resources):
        device_class = extended.class_of(resource)
        if device_class is not None:
            own = _OneResource(pod, resource, device_class)
            requests += own.requests
            mappings += own.mappings
    return SpecialRequests(tuple(sorted(requests, key=lambda each: each.name)), tuple(mappings))


class _OneResource:
    """The requests and mappings for one resource.

    Long-lived containers, which are ordinary ones and sidecars, have a request each. Short-lived
    ones, the other init containers, end before later containers start: they use the requests of
    those, and one request for the rest.
    """

    def __init__(self, pod: Pod, resource: str, device_class: str) -> None:
        self._resource = resource
        self._class = device_class
        self._containers = (*pod.spec.init_containers, *pod.spec.containers)
        self.mappings: list[ContainerExtendedResourceRequest] = []
        own: list[DeviceRequest | None] = [None] * len(self._containers)
        init = len(pod.spec.init_containers)
        short_lived = [i for i in range(init) if not self._containers[i].restartable]
        for index, container in enumerate(self._containers):
            if index not in short_lived:
                own[index] = self._request(index, container)
                if own[index] is not None:
                    self._map(container, own[index])
        largest = self._add_short_lived(short_lived, own)
        self.requests = [each for each in (largest, *own) if each is not None]

    def _add_short_lived(
        self, short_lived: Sequence[int], own: Sequence[DeviceRequest | None]
    ) -> DeviceRequest | None:
        """Add the mappings of short-lived containers. Returns the request that they share, if
        any."""
        largest: DeviceRequest | None = None
        replaced: set[str] = set()
        first = len(self.mappings)
        for index in short_lived:
            container = self._containers[index]
            request = self._request(index, container, self._reuse(container, own[index:]))
            if request is None:
                continue
            self._map(container, request)
            replaced.add(request.name)
            if largest is None or _count(largest) < _count(request):
                largest = request
        for place in range(first, len(self.mappings)):
            mapping = self.mappings[place]
            if largest is not None and mapping.request_name in replaced:
                self.mappings[place] = msgspec.structs.replace(mapping, request_name=largest.name)
        return largest

    def _reuse(self, container: Container, later: Sequence[DeviceRequest | None]) -> int:
        """Map the container to requests of later containers until they suffice. Returns how many
        devices they have."""
        needed = self._amount(container)
        found = 0
        for request in later:
            if found >= needed:
                break
            if request is not None:
                found += _count(request)
                self._map(container, request)
        return found

    def _request(self, index: int, container: Container, reused: int = 0) -> DeviceRequest | None:
        """A request for the devices that are not reused; None if there are enough."""
        needed = self._amount(container) - reused
        if needed <= 0:
            return None
        place = sorted(container.resources.requests).index(self._resource)
        return DeviceRequest(
            name=f"container-{index}-request-{place}",
            exactly=ExactDeviceRequest(device_class_name=self._class, count=needed),
        )

    def _amount(self, container: Container) -> int:
        """The amount that the container requests; 0 if it is no integer."""
        exact = thousandths(container.resources.requests.get(self._resource, 0))
        return 0 if exact % 1000 else exact // 1000

    def _map(self, container: Container, request: DeviceRequest | None) -> None:
        if request is not None:
            self.mappings.append(
                ContainerExtendedResourceRequest(
                    container_name=container.name,
                    resource_name=self._resource,
                    request_name=request.name,
                )
            )


def _count(request: DeviceRequest) -> int:
    return 0 if request.exactly is None else request.exactly.count
