"""Decisions about pods with claims, and what is in use."""

from __future__ import annotations

from collections.abc import Sequence

from asched.framework.devices import SharedDevices
from asched.framework.interface import Plugin
from asched.model.resource_claims import AllocationResult, ResourceClaim
from asched.plugins.default_preemption import DefaultPreemption
from asched.plugins.dynamic_resources import DynamicResources
from asched.plugins.dynamic_resources.reservation import DeviceReservation
from asched.plugins.node_resources import NodeResourcesFit
from asched.state import records as r
from asched.state.cluster import ClusterState, ProfileHandle
from tests.cycle.scheduling import Scheduling
from tests.plugins.dynamic_resources.objects import (
    a_class,
    a_device_node,
    a_slice,
    with_allocation,
)

PLUGINS = (NodeResourcesFit, DynamicResources, DefaultPreemption)


def cluster(*devices: str, nodes: int = 1, plugins: Sequence[type[Plugin]] = PLUGINS) -> Scheduling:
    scheduling = Scheduling(*plugins)
    scheduling.pass_time(1_767_225_600)
    scheduling.see(a_class())
    for number in range(nodes):
        name = f"n{number}"
        scheduling.see(a_device_node(name, allocatable={"cpu": "8", "pods": "110"}))
        scheduling.see(a_slice(name, *devices))
    return scheduling


def reservation(decision: r.Decision) -> DeviceReservation:
    assert isinstance(decision, r.Assigned), decision
    (found,) = decision.reservations
    return DeviceReservation.from_record(found.value)


def allocation(decision: r.Decision, number: int = 0) -> AllocationResult:
    found = reservation(decision).claims[number].allocation
    assert found is not None
    return found


def devices(decision: r.Decision, number: int = 0) -> list[str]:
    return [each.device for each in allocation(decision, number).devices.results]


def shows(scheduling: Scheduling, claim: ResourceClaim, decision: r.Decision) -> ResourceClaim:
    """The watch shows the allocation of the claim."""
    changed = with_allocation(claim, allocation(decision))
    scheduling.see(changed)
    return changed


def in_use(state: ClusterState) -> int:
    """Devices in use."""
    found = ProfileHandle(state, "").shared(SharedDevices)
    usage = found.inventory.usage.snapshot()
    return sum(use.exclusive for pool in usage.values() for use in pool.values())
