"""Which resources NodeResourcesFit and NodeResourcesBalancedAllocation score, and their usage.

Source: ``resourceAllocationScorer`` of kube-scheduler 1.36.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

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
