"""Which resources NodeResourcesFit and NodeResourcesBalancedAllocation score, and their usage.

Source: ``resourceAllocationScorer`` of kube-scheduler 1.36.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec
import numpy as np

from asched.dra.extended import may_be_extended
from asched.framework.class_devices import ClassDevices
from asched.framework.devices import SharedDevices
from asched.framework.interface import Arguments
from asched.framework.nodes import Int64Column, NodeInfo, Nodes
from asched.framework.pod_info import PodShape
from asched.model.requests import CPU, EPHEMERAL_STORAGE, MEMORY, is_scalar_resource

MAX_RESOURCE_WEIGHT = 100


class ResourceWeight(Arguments, frozen=True):
    """A resource in the score; a weight of 0 means the default, 1."""

    name: str
    weight: int = 1

    def __post_init__(self) -> None:
        if not 0 <= self.weight <= MAX_RESOURCE_WEIGHT:
            raise ValueError(
                f"resource weight of {self.name} is {self.weight},"
                f" not in the range 1 to {MAX_RESOURCE_WEIGHT}"
            )


def with_defaults(resources: Sequence[ResourceWeight]) -> tuple[ResourceWeight, ...]:
    """kube-scheduler's defaults: cpu and memory if the list is empty, weight 1 instead of 0."""
    return tuple(
        msgspec.structs.replace(resource, weight=resource.weight or 1)
        for resource in resources or (ResourceWeight(CPU), ResourceWeight(MEMORY))
    )


class ScoredResource(NamedTuple):
    """A resource in the score of one pod shape, and the amount that the pod requests."""

    name: str
    weight: int
    asked: int


def scored_resources(
    resources: Sequence[ResourceWeight], shape: PodShape, *, assume_defaults: bool
) -> tuple[ScoredResource, ...]:
    """The resources that count for a pod of this shape.

    Extended resources that the pod does not request, and unknown names, are omitted. With
    ``assume_defaults``, a container without requests counts as 100m cpu and 200 MiB memory.
    """
    asks = shape.scoring_asks if assume_defaults else shape.requests
    found = []
    for resource in resources:
        asked = asks.get(resource.name, 0)
        native = resource.name in (CPU, MEMORY, EPHEMERAL_STORAGE)
        if native or (asked and is_scalar_resource(resource.name)):
            found.append(ScoredResource(resource.name, resource.weight, asked))
    return tuple(found)


def usage(resource: str, nodes: Nodes) -> Int64Column:
    """The amount of a resource that the pods on each node use, with those defaults."""
    if resource == CPU:
        return nodes.scoring_cpu_milli
    return nodes.scoring_memory_bytes if resource == MEMORY else nodes.requested(resource)


def usage_on(resource: str, node: NodeInfo) -> int:
    """:func:`usage` for one node."""
    if resource == CPU:
        return node.scoring_cpu_milli
    return node.scoring_memory_bytes if resource == MEMORY else node.requested(resource)


class ScoredAmounts:
    """The capacity and the usage of a resource in scores.

    Where no device plugin serves an extended resource, the devices of its class count.
    """

    def __init__(self, devices: SharedDevices, resources: Sequence[ResourceWeight]) -> None:
        self._devices = devices
        self.counts_devices = any(may_be_extended(resource.name) for resource in resources)
        self.version = devices.devices_version if self.counts_devices else devices.classes_version
        """Changes when the class of a resource changes, or devices that count."""

    def of_all(
        self, resource: str, used: Int64Column, nodes: Nodes
    ) -> tuple[Int64Column, Int64Column]:
        """(Capacity, usage) of every row; ``used`` is the usage by pods' requests."""
        found = self._class_devices(resource)
        if found is None:
            return nodes.capacity(resource), used
        capacity = nodes.allocatable(resource)
        total = nodes.align(found.total)
        by_devices = (capacity == 0) & (total > 0)
        return (
            np.where(by_devices, total, capacity),
            np.where(by_devices, nodes.align(found.used), used),
        )

    def of_row(self, resource: str, used: int, row: int | None) -> tuple[int, int]:
        """:meth:`of_all` for one row without a device plugin for the resource."""
        found = None if row is None else self._class_devices(resource)
        if found is None or not found.total[row]:
            return 0, used
        return int(found.total[row]), int(found.used[row])

    def _class_devices(self, resource: str) -> ClassDevices | None:
        if not self.counts_devices or not may_be_extended(resource):
            return None
        device_class = self._devices.extended.class_of(resource)
        return None if device_class is None else self._devices.class_devices(device_class)
