"""Scoring nodes by their resources: what NodeResourcesFit and NodeResourcesBalancedAllocation share.

Source: ``resourceAllocationScorer`` of kube-scheduler 1.36. Which resources count depends on the
pod's shape alone, so it is worked out once and kept in the CycleState.
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
    """A resource that counts in a score; a weight of 0 means the default, 1."""

    name: str
    weight: int = 1

    def __post_init__(self) -> None:
        if not 0 <= self.weight <= MAX_RESOURCE_WEIGHT:
            raise ValueError(
                f"resource weight of {self.name} is {self.weight},"
                f" not in the range 1 to {MAX_RESOURCE_WEIGHT}"
            )


def with_defaults(resources: Sequence[ResourceWeight]) -> tuple[ResourceWeight, ...]:
    """kube-scheduler's defaulting: cpu and memory where none is named, weight 1 where it is 0."""
    return tuple(
        msgspec.structs.replace(resource, weight=resource.weight or 1)
        for resource in resources or (ResourceWeight(CPU), ResourceWeight(MEMORY))
    )


class ScoredResource(NamedTuple):
    """A resource that counts for one pod shape, and what the pod would add to it."""

    name: str
    weight: int
    asked: int


def scored_resources(
    resources: Sequence[ResourceWeight], shape: PodShape, *, assume_defaults: bool
) -> tuple[ScoredResource, ...]:
    """The resources that can count for a pod of this shape.

    Left out: extended resources and the like that the pod does not ask for, and names that are no
    resource of nodes. With ``assume_defaults`` containers that ask for no cpu or memory count with
    the amounts that scoring assumes (100m, 200 MiB).
    """
    asks = shape.scoring_asks if assume_defaults else shape.requests
    found = []
    for resource in resources:
        asked = asks.get(resource.name, 0)
        native = resource.name in (CPU, MEMORY, EPHEMERAL_STORAGE)
        if native or (asked and is_scalar_resource(resource.name)):
            found.append(ScoredResource(resource.name, resource.weight, asked))
    return tuple(found)


def in_use(resource: str, nodes: Nodes, *, assume_defaults: bool) -> Int64Column:
    """What the pods on each node use of a resource, in the reading that the score takes."""
    if assume_defaults and resource == CPU:
        return nodes.scoring_cpu_milli
    if assume_defaults and resource == MEMORY:
        return nodes.scoring_memory_bytes
    return nodes.requested(resource)


def in_use_on(resource: str, node: NodeInfo, *, assume_defaults: bool) -> int:
    """:func:`in_use` for one node."""
    if assume_defaults and resource == CPU:
        return node.scoring_cpu_milli
    if assume_defaults and resource == MEMORY:
        return node.scoring_memory_bytes
    return node.requested(resource)
