"""ResourceClaims and ResourceSlices with absurd content."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from asched.model.claim_limits import MAX_CLAIM_BYTES, MAX_DEVICES
from asched.model.limits import KIB
from asched.model.resource_claims import ResourceClaim, ResourceSlice
from asched.model.resources import DecodeError, Resource, decode

Json = dict[str, Any]

RESULT = {"request": "r", "driver": "d.example.com", "pool": "p", "device": "gpu-0"}
CONFIG = {"source": "FromClaim", "opaque": {"driver": "d.example.com", "parameters": {"a": "b"}}}


def claim_of(spec: Json | None = None, status: Json | None = None, **meta: Any) -> ResourceClaim:
    made = {
        "metadata": {"name": "c", "namespace": "n", "uid": "u", **meta},
        "spec": {"devices": spec or {}},
        "status": status or {},
    }
    found = decode(Resource.RESOURCE_CLAIMS, json.dumps(made).encode())
    assert isinstance(found, ResourceClaim)
    return found


def slice_of(*devices: Json, **spec: Any) -> ResourceSlice:
    made = {"metadata": {"name": "s"}, "spec": {"driver": "d", "devices": devices, **spec}}
    found = decode(Resource.RESOURCE_SLICES, json.dumps(made).encode())
    assert isinstance(found, ResourceSlice)
    return found


def test_configuration_of_an_allocation_is_not_kept() -> None:
    allocation = {
        "devices": {"results": [RESULT], "config": [CONFIG]},
        "allocationTimestamp": "2026-01-01T00:00:00Z",
    }
    claim = claim_of(status={"allocation": allocation})
    kept = claim.status.allocation
    assert kept is not None
    assert kept.devices.config == ()
    assert kept.devices.results[0].device == "gpu-0"
    assert kept.allocation_timestamp is not None


def test_large_claim_keeps_its_devices_and_fits_no_class() -> None:
    parameters = {f"k{number}": "x" * 100 for number in range(1000)}
    opaque = {"opaque": {"driver": "d.example.com", "parameters": parameters}}
    result = RESULT | {"tolerations": [{"operator": "Exists"}], "shareID": "s"}
    status = {
        "allocation": {"devices": {"results": [result]}},
        "reservedFor": [{"resource": "pods", "name": "p", "uid": "pod"}],
    }
    owner = {"kind": "Pod", "name": "p", "uid": "pod", "controller": True}
    claim = claim_of(
        {"requests": [{"name": "r", "exactly": {"deviceClassName": "gpu"}}], "config": [opaque]},
        status,
        labels={f"l{number}": "x" for number in range(1000)},
        ownerReferences=[owner],
    )
    (request,) = claim.spec.devices.requests
    assert request.name.startswith("TOO LARGE: ")
    assert request.name.endswith(" KiB, at most 64 KiB")
    assert request.exactly is not None
    assert request.exactly.device_class_name == ""
    allocation = claim.status.allocation
    assert allocation is not None
    assert [(r.device, r.share_id) for r in allocation.devices.results] == [("gpu-0", "s")]
    assert [consumer.uid for consumer in claim.status.reserved_for] == ["pod"]
    assert claim.metadata.controller is not None
    assert claim.key == "n/c"
    assert len(msgspec.json.encode(claim)) < 2 * KIB


def test_claim_with_much_irrelevant_content_is_kept() -> None:
    spec = {"requests": [{"name": "r", "exactly": {"deviceClassName": "gpu"}}]}
    claim = claim_of(spec, managedFields=["x" * MAX_CLAIM_BYTES])
    assert claim.spec.devices.requests[0].name == "r"


def test_claim_with_absurd_allocation_is_not_kept() -> None:
    results = [RESULT | {"device": f"gpu-{number}"} for number in range(10_000)]
    with pytest.raises(DecodeError, match=r"n/c is too large: .* KiB of allocated devices, at mos"):
        claim_of(status={"allocation": {"devices": {"results": results}}})


def test_slice_with_absurd_content_is_not_kept() -> None:
    devices = [{"name": f"d{number}"} for number in range(MAX_DEVICES + 1)]
    assert len(slice_of(*devices[:-1]).spec.devices) == MAX_DEVICES
    with pytest.raises(DecodeError, match="ResourceSlice s is too large: 1,025 devices, at most"):
        slice_of(*devices)
    attributes = {f"a{number}": {"string": "x" * 64} for number in range(100)}
    with pytest.raises(DecodeError, match=r"ResourceSlice s is too large: .* KiB of fields"):
        slice_of(*[{"name": f"d{number}", "attributes": attributes} for number in range(128)])


@pytest.mark.parametrize(
    ("device", "where"),
    [
        ({"capacity": {"memory": {"value": "x"}}}, "capacity.memory.value"),
        (
            {"capacity": {"memory": {"requestPolicy": {"default": "x"}}}},
            "capacity.memory.requestPolicy.default",
        ),
        (
            {"capacity": {"memory": {"requestPolicy": {"validRange": {"min": "1", "step": "x"}}}}},
            "capacity.memory.requestPolicy.step",
        ),
        (
            {"capacity": {"memory": {"requestPolicy": {"validValues": ["1", "x"]}}}},
            r"capacity.memory.requestPolicy.validValues\[1\]",
        ),
        (
            {"consumesCounters": [{"counterSet": "s", "counters": {"cpus": {"value": "x"}}}]},
            r"consumesCounters\[0\].counters.cpus.value",
        ),
    ],
)
def test_invalid_quantity_of_a_device(device: Json, where: str) -> None:
    with pytest.raises(DecodeError, match=rf"^s: spec.devices\[1\].{where}: "):
        slice_of({"name": "good"}, {"name": "bad", **device})


def test_invalid_quantity_of_shared_counters() -> None:
    counters = {"name": "set", "counters": {"cpus": {"value": "1 Gi"}}}
    with pytest.raises(DecodeError, match=r"^s: spec.sharedCounters\[0\].counters.cpus.value: "):
        slice_of(sharedCounters=[counters])


def test_invalid_quantities_of_claims() -> None:
    capacity = {"capacity": {"requests": {"memory": "x"}}}
    with pytest.raises(DecodeError, match=r"^n/c: spec.devices.requests\[0\].exactly.capacity.req"):
        claim_of({"requests": [{"name": "r", "exactly": capacity}]})
    with pytest.raises(DecodeError, match=r"requests\[0\].firstAvailable\[0\].capacity.requests"):
        claim_of({"requests": [{"name": "r", "firstAvailable": [{"name": "s", **capacity}]}]})
    result = RESULT | {"consumedCapacity": {"memory": "x"}}
    with pytest.raises(DecodeError, match=r"results\[0\].consumedCapacity.memory: "):
        claim_of(status={"allocation": {"devices": {"results": [result]}}})
