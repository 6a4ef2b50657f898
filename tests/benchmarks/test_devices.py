"""Workloads with devices: their definitions, the simulated driver, and claims in use."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from asched.model.resource_claims import AllocationResult, ResourceSlice
from asched.model.resources import Resource, decode
from benchmarks import workload_files as w
from benchmarks.devices import ClaimAllocator, slice_of
from benchmarks.kinds import Json
from benchmarks.suite import OWN_WORKLOADS
from benchmarks.templates import Template
from tests.benchmarks.test_operations import Bench

CONFIGURATION = OWN_WORKLOADS / "dra" / "performance-config.yaml"
NODES = w.CreateNodes(count=3)
DRIVER = w.CreateResourceDriver(
    driver_name="gpu.example.com", nodes="node-*", max_claims_per_node=2
)
CLASS = w.CreateAny(template_path=str(OWN_WORKLOADS / "dra" / "class.yaml"))


def test_all_templates_of_device_workloads_are_readable() -> None:
    for workload in w.load(CONFIGURATION):
        for operation in workload.case.workload_template:
            for name in ("node_template_path", "pod_template_path", "template_path"):
                path = getattr(operation, name, "")
                if path:
                    assert Template(workload.folder / path).render(0, 1)["kind"]


def test_every_case_has_a_measured_and_a_short_size() -> None:
    labels: dict[str, set[str]] = {}
    for workload in w.load(CONFIGURATION):
        labels.setdefault(workload.case.name, set()).update(workload.size.labels)
    assert all(found == {"short", "performance"} for found in labels.values())


def test_slice_is_one_complete_pool_of_its_node() -> None:
    published = decode(Resource.RESOURCE_SLICES, msgspec.json.encode(slice_of("d", "n", 3)))
    assert isinstance(published, ResourceSlice)
    assert published.spec.node_name == published.spec.pool.name == "n"
    assert published.spec.pool.resource_slice_count == 1
    assert [device.name for device in published.spec.devices] == [f"instance-{i}" for i in range(3)]


def claim(name: str, *requests: Json, allocation: Json | None = None) -> Json:
    return {
        "kind": "ResourceClaim",
        "metadata": {"name": name, "namespace": "init"},
        "spec": {"devices": {"requests": list(requests)}},
        "status": {"allocation": allocation} if allocation else {},
    }


def request(name: str, *selectors: str) -> Json:
    cel = [{"cel": {"expression": each}} for each in selectors]
    exactly = {"deviceClassName": "gpu", "allocationMode": "ExactCount", "count": 1}
    return {"name": name, "exactly": {**exactly, "selectors": cel}}


def allocator(devices: int) -> ClaimAllocator:
    device_class = {"kind": "DeviceClass", "metadata": {"name": "gpu"}, "spec": {}}
    node = {"metadata": {"name": "n"}}
    return ClaimAllocator([node], [slice_of("d", "n", devices)], [device_class])


def devices_of(found: AllocationResult | None) -> list[str]:
    assert found is not None
    return [result.device for result in found.devices.results]


def test_devices_in_use_are_not_allocated_again() -> None:
    device = {"driver": "d", "pool": "n", "device": "instance-1", "request": "a"}
    used = {"devices": {"results": [device]}}
    devices = allocator(3)
    assert devices_of(devices.allocate(claim("used", allocation=used))) == ["instance-1"]
    assert devices_of(devices.allocate(claim("x", request("a")))) == ["instance-0"]
    assert devices_of(devices.allocate(claim("y", request("a")))) == ["instance-2"]
    assert devices.allocate(claim("z", request("a"))) is None


def test_allocation_respects_selectors_and_has_a_device_for_each_request() -> None:
    wanted = 'device.attributes["dra.example.com"].numa == 2'
    found = allocator(3).allocate(claim("x", request("a", wanted), request("b")))
    assert devices_of(found) == ["instance-2", "instance-0"]
    assert found is not None
    assert found.node_selector is not None
    assert found.node_selector.node_selector_terms[0].match_fields[0].values == ("n",)


async def test_driver_publishes_a_slice_for_each_matching_node(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    await bench.run(NODES, w.CreateNodes(count=1, node_template_path="node.yaml"), DRIVER)
    published = bench.objects("resourceslices")
    assert len(published) == 3
    assert {len(each["spec"]["devices"]) for each in published} == {2}


async def test_claims_are_allocated_to_free_devices(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    claims = w.CreateAny(
        template_path=str(OWN_WORKLOADS / "dra" / "claim.yaml"), namespace="init", count=6
    )
    await bench.run(NODES, DRIVER, CLASS, claims, w.AllocResourceClaims(namespace="init"))
    results = [
        result
        for claim in bench.objects("resourceclaims", "init")
        for result in claim["status"]["allocation"]["devices"]["results"]
    ]
    assert len({(result["pool"], result["device"]) for result in results}) == 6


async def test_more_claims_than_devices_are_an_error(tmp_path: Path) -> None:
    claims = w.CreateAny(
        template_path=str(OWN_WORKLOADS / "dra" / "claim.yaml"), namespace="init", count=7
    )
    allocate = w.AllocResourceClaims(namespace="init")
    with pytest.raises(ExceptionGroup) as caught:
        await Bench(tmp_path).run(NODES, DRIVER, CLASS, claims, allocate)
    assert caught.group_contains(w.WorkloadError, match="fewer devices than claims")
