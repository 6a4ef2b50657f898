"""Devices in explanations: what decisions record about them, and single changes of devices and
claims that may make a node feasible for a pending pod."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from functools import partial
from typing import Final, NamedTuple, TypeVar

import msgspec
from msgspec.structs import replace

from asched.audit.hypotheticals import HypotheticalState
from asched.dra.diagnosis import RequestDiagnosis
from asched.model.meta import ObjectMeta
from asched.model.node import NO_EXECUTE, NO_SCHEDULE, Node
from asched.model.pod import claim_names
from asched.model.resource_claims import (
    EXACT_COUNT,
    AllocationResult,
    Device,
    DeviceClaim,
    DeviceTaint,
    ExactDeviceRequest,
    ResourceClaim,
    ResourcePool,
    ResourceSlice,
    ResourceSliceSpec,
)
from asched.plugins.dynamic_resources import DynamicResources
from asched.plugins.dynamic_resources.reservation import DeviceReservation
from asched.state.records import Assigned, Rejected

# -- decisions ------------------------------------------------------------------------------------

SPECIAL_CLAIM = "(extended resources)"
"""Replaces the name of a special claim, which is not known when it is decided."""


def allocated_devices(record: Assigned) -> tuple[str, ...]:
    """The devices that the pod got: ``claim/request: driver/pool/device``."""
    for reservation in record.reservations:
        if reservation.plugin == DynamicResources.name:
            return tuple(_devices(DeviceReservation.from_record(reservation.value)))
    return ()


def _devices(reservation: DeviceReservation) -> Iterator[str]:
    for claim in reservation.claims:
        yield from _of_claim(claim.name, claim.allocation)
    special = reservation.special
    if special is not None:
        yield from _of_claim(special.name or SPECIAL_CLAIM, special.allocation)


def _of_claim(name: str, allocation: AllocationResult | None) -> Iterator[str]:
    if allocation is not None:
        for result in allocation.devices.results:
            device = f"{result.driver}/{result.pool}/{result.device}"
            yield f"{name}/{result.request}: {device}"


def released_claim(record: Rejected) -> str:
    """The key of the claim that is released for the pod; empty for none."""
    released = record.released_claim
    return "" if released is None else released.claim.key


# -- requests ----------------------------------------------------------------------------------


class DeviceRequestExplanation(msgspec.Struct, frozen=True, rename="camel"):
    """What a request of a claim finds on a node."""

    claim: str
    request: str
    wanted: int | None
    """The number of devices; None for all devices."""
    considered: int
    """The devices that the node sees."""
    suitable: int
    """Those that a request for one device could have if it were alone."""
    refused: dict[str, int] = {}
    """By reason, the most frequent first."""
    limited_by: dict[str, int] = {}
    """Constraints and counters, and how many of the suitable devices each allows at a time."""
    missing: int = 0
    """How many more devices the request needs, at least."""
    users: tuple[str, ...] = ()
    """Claims that use matching devices."""
    matching: str = ""
    """The class and the selectors of the request."""


def request_explanation(found: RequestDiagnosis) -> DeviceRequestExplanation:
    return DeviceRequestExplanation(
        claim=found.claim,
        request=found.request,
        wanted=found.wanted,
        considered=found.considered,
        suitable=found.suitable,
        refused=dict(found.refused),
        limited_by=dict(found.limited_by),
        missing=0 if found.wanted is None else max(0, found.wanted - found.attainable),
        users=found.users,
        matching=found.matching,
    )


# -- changes --------------------------------------------------------------------------------------

_MAX_CLAIMS: Final = 20
"""Claims that are tried without their allocation."""
_MAX_MODELS: Final = 3
"""Devices that are tried as the model of additional ones: of a pool, and of all other nodes."""
MAX_MORE: Final = 32
"""Additional devices that are tried; a claim has at most as many."""


class DeviceChange(NamedTuple):
    """A change that may help, and how to apply it."""

    summary: str
    applied: AbstractContextManager[None]
    taint: DeviceTaint | None = None
    """The taint that is removed."""
    claim: str = ""
    """The claim that loses its allocation."""
    devices: int = 0
    """How many devices are added."""


MoreDevices = Callable[[int], DeviceChange]
"""The change that adds a number of devices, at most :data:`MAX_MORE`."""


def taint_changes(state: HypotheticalState, node: Node) -> Iterator[DeviceChange]:
    """Each taint is removed from all devices of one pool."""
    for pool, slices in _pools(state, node).items():
        taints = {
            (taint.key, taint.value, taint.effect): taint
            for item in slices
            for device in item.spec.devices
            for taint in device.taints
            if taint.effect in (NO_SCHEDULE, NO_EXECUTE)
        }
        for taint in taints.values():
            label = f"{taint.key}={taint.value}" if taint.value else taint.key
            yield DeviceChange(
                f"without the taint {label}:{taint.effect} on the devices of {pool}",
                state.replaced(*(_without_taint(item, taint) for item in slices)),
                taint=taint,
            )


def claim_changes(state: HypotheticalState, node: Node) -> Iterator[DeviceChange]:
    """Each claim that has devices of the node's pools loses its allocation; the pod's own claims
    come first."""
    pools = {(s.spec.driver, s.spec.pool.name) for s in _slices(state, node)}
    own = {*claim_names(state.pod)}

    def is_own(claim: ResourceClaim) -> bool:
        return claim.namespace == state.pod.namespace and claim.name in own

    found = [
        claim
        for claim in state.state.objects(ResourceClaim).values()
        if claim.status.allocation is not None
        and (
            is_own(claim)
            or any((r.driver, r.pool) in pools for r in claim.status.allocation.devices.results)
        )
    ]
    found.sort(key=lambda claim: (not is_own(claim), claim.key))
    for claim in found[:_MAX_CLAIMS]:
        yield DeviceChange(
            f"after claim {claim.key} gives back its devices",
            state.deallocated(claim),
            claim=claim.key,
        )


def claim_spec_changes(state: HypotheticalState) -> Iterator[DeviceChange]:
    """Each unallocated claim of the pod loses one constraint or one selector, or a request of it
    has a lower count."""
    claims = state.state.objects(ResourceClaim)
    for name in claim_names(state.pod):
        claim = claims.get(f"{state.pod.namespace}/{name}")
        if claim is None or claim.status.allocation is not None:
            continue
        for what, asked in _less_asked(claim.spec.devices):
            changed = replace(claim, spec=replace(claim.spec, devices=asked))
            summary = f"claim {claim.key} {what}"
            yield DeviceChange(summary, state.replaced(changed), claim=claim.key)


def _less_asked(asked: DeviceClaim) -> Iterator[tuple[str, DeviceClaim]]:
    """What is left out or reduced, and the claim then."""
    for index, constraint in enumerate(asked.constraints):
        rest = _without(asked.constraints, index)
        if constraint.match_attribute is not None:
            what = f"matchAttribute {constraint.match_attribute}"
        else:
            what = f"distinctAttribute {constraint.distinct_attribute}"
        yield f"without the constraint {what}", replace(asked, constraints=rest)
    for index, request in enumerate(asked.requests):
        body = request.exactly
        if body is None:
            continue

        def with_body(less: ExactDeviceRequest, index: int = index) -> DeviceClaim:
            requests = list(asked.requests)
            requests[index] = replace(requests[index], exactly=less)
            return replace(asked, requests=tuple(requests))

        for number, selector in enumerate(body.selectors):
            expression = "" if selector.cel is None else selector.cel.expression
            what = f"without selector #{number} of request {request.name}: {expression}"
            yield what, with_body(replace(body, selectors=_without(body.selectors, number)))
        if body.allocation_mode == EXACT_COUNT and body.count > 1:
            what = f"with count {body.count - 1} instead of {body.count} in request {request.name}"
            yield what, with_body(replace(body, count=body.count - 1))


_ItemT = TypeVar("_ItemT")


def _without(items: tuple[_ItemT, ...], index: int) -> tuple[_ItemT, ...]:
    return items[:index] + items[index + 1 :]


def more_devices(state: HypotheticalState, node: Node) -> Iterator[MoreDevices]:
    """For each model: more devices like it, in its pool on the node."""
    for item, device in _models(_slices(state, node)):
        yield partial(_more_in_pool, state, item, device)


def devices_of_others(state: HypotheticalState, node: Node) -> Iterator[MoreDevices]:
    """For each model on other nodes: devices like it in a new pool of the node."""
    own = {item.key for item in _slices(state, node)}
    others = (item for item in state.state.objects(ResourceSlice).values() if item.key not in own)
    plain = (item for item in others if not item.spec.shared_counters)
    found = _models(sorted(plain, key=lambda item: item.name), by_pool=False)
    for item, device in found:
        if not device.consumes_counters:
            yield partial(_more_on_node, state, node, item, device)


def _models(
    slices: Iterable[ResourceSlice], *, by_pool: bool = True
) -> Iterator[tuple[ResourceSlice, Device]]:
    """Devices that differ in more than their names, a few of each pool or of all."""
    models: dict[str, list[Device]] = {}
    for item in slices:
        known = models.setdefault(_pool_name(item) if by_pool else "", [])
        for device in item.spec.devices:
            if len(known) < _MAX_MODELS and not any(_alike(device, other) for other in known):
                known.append(device)
                yield item, device


def _pool_name(item: ResourceSlice) -> str:
    return f"{item.spec.driver}/{item.spec.pool.name}"


def _more_in_pool(
    state: HypotheticalState, item: ResourceSlice, model: Device, count: int
) -> DeviceChange:
    name = f"{_pool_name(item)}/{model.name}"
    summary = f"{count} more device{'s' if count > 1 else ''} like {name}"
    return DeviceChange(summary, state.replaced(_with_more(item, model, count)), devices=count)


def _more_on_node(
    state: HypotheticalState, node: Node, item: ResourceSlice, model: Device, count: int
) -> DeviceChange:
    name = f"{_pool_name(item)}/{model.name}"
    devices = [
        replace(model, name=f"more-{number}", node_name="", node_selector=None, all_nodes=False)
        for number in range(count)
    ]
    pool = ResourcePool(name=f"more-devices-on-{node.name}", resource_slice_count=1)
    spec = ResourceSliceSpec(
        driver=item.spec.driver, pool=pool, node_name=node.name, devices=tuple(devices)
    )
    added = ResourceSlice(metadata=ObjectMeta(name=pool.name, uid=pool.name), spec=spec)
    summary = f"{count} device{'s' if count > 1 else ''} like {name} of another node"
    return DeviceChange(summary, state.added(added), devices=count)


def _slices(state: HypotheticalState, node: Node) -> list[ResourceSlice]:
    """The slices with devices for the node, by name."""
    slices = state.state.objects(ResourceSlice).values()
    return sorted((s for s in slices if _offers(s, node)), key=lambda s: s.name)


def _pools(state: HypotheticalState, node: Node) -> dict[str, list[ResourceSlice]]:
    pools: dict[str, list[ResourceSlice]] = {}
    for item in _slices(state, node):
        pools.setdefault(_pool_name(item), []).append(item)
    return pools


def _offers(item: ResourceSlice, node: Node) -> bool:
    spec = item.spec
    if spec.per_device_node_selection:
        return any(_is_for(device, node) for device in spec.devices)
    return _is_for(spec, node)


def _is_for(source: ResourceSliceSpec | Device, node: Node) -> bool:
    selector = source.node_selector
    return (
        source.all_nodes
        or source.node_name == node.name
        or (selector is not None and selector.matches(node.labels, node.name))
    )


def _without_taint(item: ResourceSlice, removed: DeviceTaint) -> ResourceSlice:
    def same(taint: DeviceTaint) -> bool:
        return (taint.key, taint.value, taint.effect) == (
            removed.key,
            removed.value,
            removed.effect,
        )

    devices = tuple(
        replace(device, taints=tuple(t for t in device.taints if not same(t)))
        for device in item.spec.devices
    )
    return replace(item, spec=replace(item.spec, devices=devices))


def _alike(first: Device, second: Device) -> bool:
    """Whether they differ in their names alone."""
    return replace(first, name="") == replace(second, name="")


def _with_more(item: ResourceSlice, model: Device, count: int) -> ResourceSlice:
    names = {device.name for device in item.spec.devices}
    new = (f"{model.name}-more-{number}" for number in range(count + len(names)))
    added = [replace(model, name=name) for name in new if name not in names][:count]
    return replace(item, spec=replace(item.spec, devices=(*item.spec.devices, *added)))
