"""Devices in explanations: what decisions record about them, and single changes of devices and
claims that may make a node feasible for a pending pod."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Final, NamedTuple

import msgspec
from msgspec.structs import replace

from asched.audit.hypotheticals import HypotheticalState
from asched.dra.diagnosis import RequestDiagnosis
from asched.model.node import NO_EXECUTE, NO_SCHEDULE, Node
from asched.model.pod import claim_names
from asched.model.resource_claims import (
    AllocationResult,
    Device,
    DeviceTaint,
    ResourceClaim,
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
    """Those that the request could have if it were alone."""
    refused: dict[str, int] = {}
    """By reason, the most frequent first."""
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
        users=found.users,
        matching=found.matching,
    )


# -- changes --------------------------------------------------------------------------------------

_MAX_CLAIMS: Final = 20
"""Claims that are tried without their allocation."""
_MAX_MODELS: Final = 3
"""Devices that are tried as the model of additional ones."""
_MAX_MORE: Final = 8
"""Additional devices that are tried."""


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


def more_devices(state: HypotheticalState, node: Node) -> Iterator[Sequence[DeviceChange]]:
    """For each model: more and more devices like it in its pool. Of each sequence only the first
    change that helps is of interest."""
    models: dict[tuple[str, str], list[tuple[ResourceSlice, Device]]] = {}
    for item in _slices(state, node):
        for device in item.spec.devices:
            kinds = models.setdefault((item.spec.driver, item.spec.pool.name), [])
            if len(kinds) < _MAX_MODELS and not any(_alike(device, known) for _, known in kinds):
                kinds.append((item, device))
    for kinds in models.values():
        for item, device in kinds:
            name = f"{item.spec.driver}/{item.spec.pool.name}/{device.name}"
            yield [
                DeviceChange(
                    f"{count} more device{'s' if count > 1 else ''} like {name}",
                    state.replaced(_with_more(item, device, count)),
                    devices=count,
                )
                for count in range(1, _MAX_MORE + 1)
            ]


def _slices(state: HypotheticalState, node: Node) -> list[ResourceSlice]:
    """The slices with devices for the node, by name."""
    slices = state.state.objects(ResourceSlice).values()
    return sorted((s for s in slices if _offers(s, node)), key=lambda s: s.name)


def _pools(state: HypotheticalState, node: Node) -> dict[str, list[ResourceSlice]]:
    pools: dict[str, list[ResourceSlice]] = {}
    for item in _slices(state, node):
        pools.setdefault(f"{item.spec.driver}/{item.spec.pool.name}", []).append(item)
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
