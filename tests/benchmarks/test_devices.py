"""Workloads with devices: their definitions, the simulated driver, and claims in use."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from asched.model.resource_claims import ResourceSlice
from asched.model.resources import Resource, decode
from benchmarks import workload_files as w
from benchmarks.devices import DeviceId, FreeDevices, allocation, slice_of
from benchmarks.kinds import Json
from benchmarks.suite import OWN_WORKLOADS
from benchmarks.templates import Template
from tests.benchmarks.test_operations import Bench

CONFIGURATION = OWN_WORKLOADS / "dra" / "performance-config.yaml"
CLAIM: Json = {"spec": {"devices": {"requests": [{"name": "a"}, {"name": "b"}]}}}
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


def test_free_devices_exclude_those_in_use_and_end() -> None:
    used = DeviceId("d", "n", "instance-1")
    status = {"allocation": {"devices": {"results": [used._asdict()]}}}
    free = FreeDevices([slice_of("d", "n", 3)], [{"status": status}])
    taken = [free.take() for _ in range(3)]
    assert {each.device for each in taken if each} == {"instance-0", "instance-2"}
    assert taken[2] is None


def test_allocation_has_one_device_for_each_request() -> None:
    free = FreeDevices([slice_of("d", "n", 3)], [])
    found = allocation(CLAIM, free.take)
    assert found is not None
    results = found["devices"]["results"]
    assert [result["request"] for result in results] == ["a", "b"]
    assert len({result["device"] for result in results}) == 2
    assert found["nodeSelector"]["nodeSelectorTerms"][0]["matchFields"][0]["values"] == ["n"]
    assert allocation(CLAIM, free.take) is None


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
