"""Single changes after which the claims of a pod could be allocated on a node.

Every change is tried by a search of its own, so only changes that really help are listed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from msgspec.structs import replace

from asched.dra.devices import NodeView
from asched.dra.diagnosis import NodeDiagnosis, diagnose
from asched.dra.inventory import Inventory
from asched.dra.outcomes import Allocated
from asched.dra.preparation import plan_claim
from asched.dra.site_search import search_site
from asched.dra.sites import Site
from asched.dra.steps import StepMeter
from asched.dra.usage import Usage
from asched.model.resource_claims import (
    DeviceRequest,
    DeviceSubRequest,
    DeviceToleration,
    ExactDeviceRequest,
    ResourceClaim,
    ResourceClaimSpec,
)

MAX_TRIED: Final = 64
MAX_STEPS: Final = 20_000
MAX_CLAIMS: Final = 16

Specs = tuple[ResourceClaimSpec, ...]
Body = ExactDeviceRequest | DeviceSubRequest


class _Change(NamedTuple):
    text: str
    specs: Specs
    without: str = ""
    """A claim whose devices are free."""


def helpful_changes(
    inventory: Inventory, claims: Sequence[ResourceClaim], node: NodeView
) -> tuple[str, ...]:
    """The changes that help, each alone. Empty if there are none, or if nothing is in the way."""
    specs: Specs = tuple(claim.spec for claim in claims)
    found = diagnose(inventory, claims, node)
    if _is_allocatable(inventory, _Change("", specs), node):
        return ()
    changes: list[_Change] = []
    for change in _changes(specs, claims, found):
        if change.text not in {known.text for known in changes}:
            changes.append(change)
        if len(changes) == MAX_TRIED:
            break
    return tuple(change.text for change in changes if _is_allocatable(inventory, change, node))


def _is_allocatable(inventory: Inventory, change: _Change, node: NodeView) -> bool:
    usage = inventory.usage
    if change.without:
        usage = Usage()
        for key, allocation in inventory.allocations().items():
            if key != change.without:
                usage.add(allocation)
    plans = [plan_claim(index, spec, inventory) for index, spec in enumerate(change.specs)]
    outcome = search_site(plans, Site(inventory.pools_of(node)), usage, StepMeter(MAX_STEPS))
    return isinstance(outcome, Allocated)


def _changes(
    specs: Specs, claims: Sequence[ResourceClaim], found: NodeDiagnosis
) -> Iterator[_Change]:
    for key in sorted({user for request in found.requests for user in request.users})[:MAX_CLAIMS]:
        yield _Change(f"free the devices of claim {key}", specs, key)
    for index, claim in enumerate(claims):
        for text, spec in _changed_specs(claim.spec):
            changed = (*specs[:index], spec, *specs[index + 1 :])
            yield _Change(f"claim {claim.key}: {text}", changed)


def _changed_specs(spec: ResourceClaimSpec) -> Iterator[tuple[str, ResourceClaimSpec]]:
    devices = spec.devices
    for number, constraint in enumerate(devices.constraints):
        attribute = constraint.match_attribute or constraint.distinct_attribute
        rest = devices.constraints[:number] + devices.constraints[number + 1 :]
        yield (
            f"remove constraint #{number} on {attribute}",
            replace(spec, devices=replace(devices, constraints=rest)),
        )
    for index, request in enumerate(devices.requests):
        for text, changed in _changed_requests(request):
            requests = (*devices.requests[:index], changed, *devices.requests[index + 1 :])
            yield text, replace(spec, devices=replace(devices, requests=requests))


def _changed_requests(request: DeviceRequest) -> Iterator[tuple[str, DeviceRequest]]:
    if request.exactly is not None:
        for text, exactly in _changed_bodies(request.exactly):
            yield f"request {request.name}: {text}", replace(request, exactly=exactly)
    for number, alternative in enumerate(request.first_available):
        for text, changed in _changed_bodies(alternative):
            options = request.first_available
            yield (
                f"request {request.name}/{alternative.name}: {text}",
                replace(
                    request,
                    first_available=(*options[:number], changed, *options[number + 1 :]),
                ),
            )


def _changed_bodies(body: Body) -> Iterator[tuple[str, Body]]:
    for number in range(len(body.selectors)):
        rest = body.selectors[:number] + body.selectors[number + 1 :]
        yield f"remove selector #{number}", replace(body, selectors=rest)
    tolerate_all = (*body.tolerations, DeviceToleration(operator="Exists"))
    yield "tolerate the taints of devices", replace(body, tolerations=tolerate_all)
    if body.capacity is not None:
        yield "remove the requested capacity", replace(body, capacity=None)
    for fewer in _smaller_counts(body.count):
        yield f"ask for {fewer} instead of {body.count} devices", replace(body, count=fewer)


def _smaller_counts(count: int) -> Iterator[int]:
    """Some smaller counts, descending."""
    fewer = count - 1
    while fewer > 0:
        yield fewer
        fewer = min(fewer - 1, fewer * 3 // 4)
