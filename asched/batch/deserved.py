"""What queues deserve: the cluster divided by their weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from asched.framework.resource_vector import CPU, MEMORY, ResourceVector


class Claim(NamedTuple):
    """What a queue would have if it could."""

    queue: str
    weight: int
    request: ResourceVector
    capability: ResourceVector | None


def deserved_as_kube_batch(
    total: ResourceVector, claims: Sequence[Claim]
) -> dict[str, ResourceVector]:
    """kube-batch's division: a queue's part is cut to what it asks only where it asks less of
    *every* resource. Capability is ignored."""
    deserved = {claim.queue: ResourceVector() for claim in claims}
    remaining = total.copy()
    unmet = list(claims)
    while weights := sum(claim.weight for claim in unmet):
        increased, decreased = ResourceVector(), ResourceVector()
        still_unmet = []
        for claim in unmet:
            old = deserved[claim.queue]
            new = old.copy().add(remaining.multiplied(claim.weight / weights))
            if claim.request.less(new):
                new = new.minimum(claim.request)
            else:
                still_unmet.append(claim)
            deserved[claim.queue] = new
            more, less = _difference(new, old)
            increased.add(more)
            decreased.add(less)
        unmet = still_unmet
        remaining.sub(increased).add(decreased)
        if remaining.is_empty():
            break
    return deserved


def _difference(new: ResourceVector, old: ResourceVector) -> tuple[ResourceVector, ResourceVector]:
    """(what is more, what is less), for the scalars of ``new``."""
    more: dict[str, float] = {}
    less: dict[str, float] = {}
    for name in new.names():
        change = new.get(name) - old.get(name)
        (more if change > 0 else less)[name] = abs(change)
    return ResourceVector.of(more), ResourceVector.of(less)


def deserved_by_resource(
    total: ResourceVector, claims: Sequence[Claim]
) -> dict[str, ResourceVector]:
    """Each resource by itself: by weight, to nobody more than it asks and is allowed; what one
    leaves is shared out among the others."""
    parts = {name: _filled(total.get(name), _wants(name, claims)) for name in total.names()}
    return {
        claim.queue: ResourceVector.of({name: part[claim.queue] for name, part in parts.items()})
        for claim in claims
    }


def _wants(name: str, claims: Sequence[Claim]) -> Mapping[str, tuple[int, float]]:
    """By queue: its weight and the most it can use of the resource."""
    wants = {}
    for claim in claims:
        most = claim.request.get(name)
        limit = capability_of(claim.capability, name)
        if limit is not None:
            most = min(most, limit)
        wants[claim.queue] = (claim.weight, most)
    return wants


def capability_of(capability: ResourceVector | None, name: str) -> float | None:
    """The limit on one resource; None where there is none. A native resource that a capability
    leaves out reads as 0, which is no limit."""
    if capability is None:
        return None
    limit = capability.get(name)
    if name in (CPU, MEMORY):
        return limit or None
    return limit if name in (capability.scalars or {}) else None


def _filled(amount: float, wants: Mapping[str, tuple[int, float]]) -> dict[str, float]:
    """Pour ``amount`` into the queues by weight, none above what it wants."""
    parts = dict.fromkeys(wants, 0.0)
    thirsty = {queue: want for queue, want in wants.items() if want[0] > 0 and want[1] > 0}
    while thirsty and amount > 0:
        weights = sum(weight for weight, _ in thirsty.values())
        level = amount / weights
        sated = {q: most for q, (weight, most) in thirsty.items() if most <= level * weight}
        if not sated:
            for queue, (weight, _) in thirsty.items():
                parts[queue] = level * weight
            break
        for queue, most in sated.items():
            parts[queue] = most
            amount -= most
            del thirsty[queue]
    return parts
