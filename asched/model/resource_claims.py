"""ResourceClaims, ResourceSlices and DeviceClasses (``resource.k8s.io/v1``).

The names are those of the Kubernetes API. Fields that neither allocation nor what is written with
an allocation depends on are left out.
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec.structs import force_setattr

from asched.model.meta import ApiStruct, Int64, Object, Timestamp
from asched.model.nesting import limited_json
from asched.model.quantity import QuantityText
from asched.model.selectors import NodeSelector

EXACT_COUNT = "ExactCount"
ALL_DEVICES = "All"

# -- what a claim asks for ------------------------------------------------------------------------


class CELDeviceSelector(ApiStruct):
    """An expression over one device (:mod:`asched.cel`)."""

    expression: str = ""


class DeviceSelector(ApiStruct):
    """A condition that a device must satisfy."""

    cel: CELDeviceSelector | None = None


class DeviceToleration(ApiStruct):
    """Tolerates device taints. An empty key with ``Exists`` matches all taints."""

    key: str = ""
    operator: str = "Equal"
    value: str = ""
    effect: str = ""
    toleration_seconds: Int64 | None = None


class CapacityRequirements(ApiStruct):
    """The capacity that a request needs of each device, by capacity name."""

    requests: dict[str, QuantityText] = {}


class ExactDeviceRequest(ApiStruct):
    """A request for devices of one class."""

    device_class_name: str = ""
    selectors: tuple[DeviceSelector, ...] = ()
    allocation_mode: str = EXACT_COUNT
    count: Int64 = 0
    """The API server stores 1 for a request of ``ExactCount`` without a count."""
    admin_access: bool = False
    tolerations: tuple[DeviceToleration, ...] = ()
    capacity: CapacityRequirements | None = None


class DeviceSubRequest(ApiStruct):
    """One alternative of a request with ``firstAvailable``."""

    name: str = ""
    device_class_name: str = ""
    selectors: tuple[DeviceSelector, ...] = ()
    allocation_mode: str = EXACT_COUNT
    count: Int64 = 0
    tolerations: tuple[DeviceToleration, ...] = ()
    capacity: CapacityRequirements | None = None


class DeviceRequest(ApiStruct):
    """A request of a claim: either :attr:`exactly` or :attr:`first_available`."""

    name: str = ""
    exactly: ExactDeviceRequest | None = None
    first_available: tuple[DeviceSubRequest, ...] = ()


class DeviceConstraint(ApiStruct):
    """A condition on all devices of the named requests, or of all requests if none is named."""

    requests: tuple[str, ...] = ()
    match_attribute: str | None = None
    distinct_attribute: str | None = None


class OpaqueDeviceConfiguration(ApiStruct):
    """Parameters for a driver. They are copied into the allocation, never interpreted."""

    driver: str = ""
    parameters: Any = None

    def __post_init__(self) -> None:
        force_setattr(self, "parameters", limited_json(self.parameters))


class DeviceClaimConfiguration(ApiStruct):
    """Configuration of the devices of the named requests, or of all if none is named."""

    requests: tuple[str, ...] = ()
    opaque: OpaqueDeviceConfiguration | None = None


class DeviceClaim(ApiStruct):
    """``spec.devices`` of a ResourceClaim."""

    requests: tuple[DeviceRequest, ...] = ()
    constraints: tuple[DeviceConstraint, ...] = ()
    config: tuple[DeviceClaimConfiguration, ...] = ()


class ResourceClaimSpec(ApiStruct):
    """``spec`` of a ResourceClaim."""

    devices: DeviceClaim = DeviceClaim()


# -- what a claim has -----------------------------------------------------------------------------


class DeviceRequestAllocationResult(ApiStruct):
    """One allocated device."""

    request: str = ""
    """The request's name, or ``request/subrequest``."""
    driver: str = ""
    pool: str = ""
    device: str = ""
    admin_access: bool | None = None
    tolerations: tuple[DeviceToleration, ...] = ()
    binding_conditions: tuple[str, ...] = ()
    binding_failure_conditions: tuple[str, ...] = ()
    share_id: str | None = msgspec.field(default=None, name="shareID")
    consumed_capacity: dict[str, QuantityText] = {}


class DeviceAllocationConfiguration(ApiStruct):
    """Configuration as it is written with an allocation."""

    source: str = ""
    """``FromClass`` or ``FromClaim``."""
    requests: tuple[str, ...] = ()
    opaque: OpaqueDeviceConfiguration | None = None


class DeviceAllocationResult(ApiStruct):
    """The devices of an allocation, with their configuration."""

    results: tuple[DeviceRequestAllocationResult, ...] = ()
    config: tuple[DeviceAllocationConfiguration, ...] = ()


class AllocationResult(ApiStruct):
    """``status.allocation``: the devices, and the nodes on which they can be used."""

    devices: DeviceAllocationResult = DeviceAllocationResult()
    node_selector: NodeSelector | None = None
    allocation_timestamp: Timestamp | None = None


class ResourceClaimConsumerReference(ApiStruct):
    """A user of a claim; only pods are served."""

    api_group: str = ""
    resource: str = ""
    name: str = ""
    uid: str = ""


class DeviceCondition(ApiStruct):
    """A condition that a driver reports about a device."""

    type: str = ""
    status: str = ""
    observed_generation: Int64 = 0
    last_transition_time: Timestamp | None = None
    reason: str = ""
    message: str = ""


class AllocatedDeviceStatus(ApiStruct):
    """What a driver reports about an allocated device."""

    driver: str = ""
    pool: str = ""
    device: str = ""
    share_id: str | None = msgspec.field(default=None, name="shareID")
    conditions: tuple[DeviceCondition, ...] = ()
    data: Any = None
    network_data: Any = None
    """Not interpreted, but every change may let a pod be scheduled."""

    def __post_init__(self) -> None:
        force_setattr(self, "data", limited_json(self.data))
        force_setattr(self, "network_data", limited_json(self.network_data))


class ResourceClaimStatus(ApiStruct):
    """``status`` of a ResourceClaim."""

    allocation: AllocationResult | None = None
    reserved_for: tuple[ResourceClaimConsumerReference, ...] = ()
    devices: tuple[AllocatedDeviceStatus, ...] = ()


class ResourceClaim(Object, tag_field="kind", tag="ResourceClaim"):
    """Devices that a pod asks for, and those that it got."""

    spec: ResourceClaimSpec = ResourceClaimSpec()
    status: ResourceClaimStatus = ResourceClaimStatus()


# -- what drivers publish -------------------------------------------------------------------------


class DeviceAttribute(ApiStruct):
    """A value of one type; exactly one field is set."""

    integer: Int64 | None = msgspec.field(default=None, name="int")
    boolean: bool | None = msgspec.field(default=None, name="bool")
    string: str | None = None
    version: str | None = None


class CapacityRequestPolicyRange(ApiStruct):
    min: QuantityText | None = None
    max: QuantityText | None = None
    step: QuantityText | None = None


class CapacityRequestPolicy(ApiStruct):
    """How requests for a capacity are rounded and limited."""

    default: QuantityText | None = None
    valid_values: tuple[QuantityText, ...] = ()
    valid_range: CapacityRequestPolicyRange | None = None


def _zero() -> QuantityText:
    """The default of an amount. msgspec omits a default when it encodes if the value is the same
    object, which depends on the decoder; the result of a function it never omits."""
    return "0"


class DeviceCapacity(ApiStruct):
    """One capacity of a device, in the units of its name."""

    value: QuantityText = msgspec.field(default_factory=_zero)
    request_policy: CapacityRequestPolicy | None = None


class Counter(ApiStruct):
    """An amount of a counter."""

    value: QuantityText = msgspec.field(default_factory=_zero)


class CounterSet(ApiStruct):
    """Counters that the devices of a pool share."""

    name: str = ""
    counters: dict[str, Counter] = {}


class DeviceCounterConsumption(ApiStruct):
    """What a device takes from a counter set of its pool."""

    counter_set: str = ""
    counters: dict[str, Counter] = {}


class DeviceTaint(ApiStruct):
    """A taint of a device."""

    key: str = ""
    value: str = ""
    effect: str = ""
    time_added: Timestamp | None = None


class Device(ApiStruct):
    """A device of a ResourceSlice."""

    name: str = ""
    attributes: dict[str, DeviceAttribute] = {}
    capacity: dict[str, DeviceCapacity] = {}
    consumes_counters: tuple[DeviceCounterConsumption, ...] = ()
    node_name: str = ""
    node_selector: NodeSelector | None = None
    all_nodes: bool = False
    taints: tuple[DeviceTaint, ...] = ()
    binds_to_node: bool = False
    binding_conditions: tuple[str, ...] = ()
    binding_failure_conditions: tuple[str, ...] = ()
    allow_multiple_allocations: bool = False


class ResourcePool(ApiStruct):
    """The pool that a slice belongs to. Only slices of the highest generation count."""

    name: str = ""
    generation: Int64 = 0
    resource_slice_count: Int64 = 0


class ResourceSliceSpec(ApiStruct):
    """``spec`` of a ResourceSlice."""

    driver: str = ""
    pool: ResourcePool = ResourcePool()
    node_name: str = ""
    node_selector: NodeSelector | None = None
    all_nodes: bool = False
    per_device_node_selection: bool = False
    devices: tuple[Device, ...] = ()
    shared_counters: tuple[CounterSet, ...] = ()


class ResourceSlice(Object, tag_field="kind", tag="ResourceSlice"):
    """Devices of one pool of a driver."""

    spec: ResourceSliceSpec = ResourceSliceSpec()


# -- classes --------------------------------------------------------------------------------------


class DeviceClassConfiguration(ApiStruct):
    """Configuration of all devices of a class."""

    opaque: OpaqueDeviceConfiguration | None = None


class DeviceClassSpec(ApiStruct):
    """``spec`` of a DeviceClass."""

    selectors: tuple[DeviceSelector, ...] = ()
    config: tuple[DeviceClassConfiguration, ...] = ()
    extended_resource_name: str | None = None


class DeviceClass(Object, tag_field="kind", tag="DeviceClass"):
    """What devices of a class have in common, and their default configuration."""

    spec: DeviceClassSpec = DeviceClassSpec()
