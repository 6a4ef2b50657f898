"""Devices and ResourceClaims in simulations."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import msgspec
import pytest

from asched.model.pod import PodResourceClaimStatus
from asched.model.resource_claims import ResourceClaim
from asched.model.resources import AnyObject
from asched.simulator.expansion import expand
from asched.simulator.loop import SchedulerSettings, Simulation, simulate
from asched.simulator.scenario import read_scenario
from asched.simulator.trace import ObjectRemoved, ObjectSet, TraceEvent
from asched.state.records import ObjectDeleted, ObjectObserved
from tests.cycle.default_profile import default_profiles, installed
from tests.plugins.dynamic_resources.objects import a_claim, a_class, a_pod, a_slice, an_allocation
from tests.simulator.simulate import at, comes, has, node, seconds, simulated
from tests.simulator.test_scenario import group, scenario

API = "resource.k8s.io/v1"
RESOURCE = "example.com/gpu"
DRIVER = "gpu.example.com"


def declared(devices: int, node_name: str = "n-0") -> list[dict[str, Any]]:
    """A class, a slice of one node, and a template of a claim for one device."""
    expression = f'device.driver == "{DRIVER}"'
    pool = {"name": node_name, "generation": 1, "resourceSliceCount": 1}
    listed = [{"name": f"gpu-{number}"} for number in range(devices)]
    request = {"name": "r", "exactly": {"deviceClassName": "gpu"}}
    return [
        {
            "apiVersion": API, "kind": "DeviceClass", "metadata": {"name": "gpu"},
            "spec": {
                "selectors": [{"cel": {"expression": expression}}],
                "extendedResourceName": RESOURCE,
            },
        },
        {
            "apiVersion": API, "kind": "ResourceSlice", "metadata": {"name": "s"},
            "spec": {"driver": DRIVER, "nodeName": node_name, "pool": pool, "devices": listed},
        },
        {
            "apiVersion": API, "kind": "ResourceClaimTemplate",
            "metadata": {"name": "one-gpu", "namespace": "default"},
            "spec": {"spec": {"devices": {"requests": [request]}}},
        },
    ]  # fmt: skip


def run(pods: dict[str, Any], devices: int = 1) -> tuple[Simulation, list[tuple[str, float]]]:
    """The simulation, and node and start of each placement."""
    trace = expand(read_scenario(scenario(pods, objects=declared(devices))))
    settings = SchedulerSettings(default_profiles())
    simulation = Simulation(trace, settings, installed().load)
    for _ in simulation.turns():
        pass
    placed = [
        (placement.node, seconds(placement.assigned_ns))
        for pod in simulation.result().pods
        for placement in pod.placements
    ]
    return simulation, placed


def test_pods_of_a_template_take_turns_with_a_device() -> None:
    spec = {
        "containers": [{"name": "c", "image": "i"}],
        "resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "one-gpu"}],
    }
    pods = group("a", 3, template={"spec": spec}, lifetime={"fixed": "10s"})
    simulation, placed = run(pods)
    assert [name for name, _ in placed] == ["n-0"] * 3
    starts = [start for _, start in placed]
    assert starts[0] == 0
    # The claim is deallocated before it is deleted, which requeues the next pod at once.
    assert all(10 <= later - earlier <= 20 for earlier, later in pairwise(starts))
    assert not simulation.cluster.objects(ResourceClaim)


def test_extended_resources_take_turns_with_devices() -> None:
    container = {"name": "c", "image": "i", "resources": {"limits": {RESOURCE: "1"}}}
    pods = group("a", 4, template={"spec": {"containers": [container]}}, lifetime={"fixed": "10s"})
    simulation, placed = run(pods, devices=2)
    assert [name for name, _ in placed] == ["n-0"] * 4
    assert [start for _, start in placed][:2] == [0, 0]
    assert not simulation.cluster.objects(ResourceClaim)


def test_shared_claim_is_deallocated_after_its_last_pod() -> None:
    claim = ObjectSet(at(0), a_claim("c"))
    things = [ObjectSet(at(0), a_class()), ObjectSet(at(0), a_slice("n0", "gpu-0")), claim]
    pods = [comes(a_pod(name, "c"), 1, 10, recreated=False) for name in "ab"]
    later = comes(a_pod("z", "c"), 30, 10, recreated=False)
    found = simulated([*has(node("n0")), *things, *pods, later])
    for name in "abz":
        assert [placement[0] for placement in found.placements(name)] == ["n0"]


def test_claim_that_no_node_can_use_is_deallocated() -> None:
    claim = a_claim("c", allocation=an_allocation("gone", "gpu-0"))
    things: list[AnyObject] = [a_class(), a_slice("n0", "gpu-0"), claim]
    events = [ObjectSet(at(0), item) for item in things]
    found = simulated([*has(node("n0")), *events, comes(a_pod("p", "c"), 1)])
    assert [placement[0] for placement in found.placements("p")] == ["n0"]


def test_recorded_reservations_of_pods_that_are_not_bound_do_not_count() -> None:
    recorded = a_claim(
        "c",
        allocation=an_allocation("n1", "gpu-0"),
        status={"reservedFor": [{"resource": "pods", "name": "p", "uid": "Pod-p"}]},
    )
    things: list[AnyObject] = [
        a_class(),
        a_slice("n0", "gpu-0"),
        a_slice("n1", "gpu-0"),
        recorded,
    ]
    events = [ObjectSet(at(0), item) for item in things]
    tainted = node("n1", cpu="1")
    pod = a_pod("p", "c", resources=[{"cpu": "2"}])
    found = simulated([*has(node("n0"), tainted), *events, comes(pod, 1)])
    assert [placement[0] for placement in found.placements("p")] == ["n0"]


def test_generated_claim_lives_as_long_as_its_pod() -> None:
    pods = [a_pod(name, name) for name in "pq"]
    owner = {"kind": "Pod", "name": "p", "uid": pods[0].uid, "controller": True}
    owned = a_claim("p", ownerReferences=[owner])
    things: list[AnyObject] = [a_class(), a_slice("n0", "gpu-0"), owned, a_claim("q")]
    events = [ObjectSet(at(0), item) for item in things]
    removed = ObjectRemoved(at(2), "ResourceClaim", owned.key, owned.uid)
    late = ObjectSet(at(12), owned)
    runs = [comes(pod, 1 + 2 * i, 10, recreated=False) for i, pod in enumerate(pods)]
    found = simulated([*has(node("n0")), *events, *runs, removed, late])
    (first,), (second,) = found.placements("p"), found.placements("q")
    assert (first[1], first[2]) == (1, 11)
    assert second[1] >= 11
    about = [r for r in found.records if isinstance(r, ObjectObserved | ObjectDeleted)]
    ends = [isinstance(r, ObjectDeleted) for r in about if _uid(r) == owned.uid]
    assert ends.count(True) == 1
    assert ends[-1]


@pytest.mark.parametrize("owner_uid", ["Pod-p", "replacement"])
def test_recreated_pod_gets_a_new_claim(owner_uid: str) -> None:
    """In a journal, which has no templates. The recorded claim may also be that of a pod which
    replaced the first one there."""
    template = {"name": "gpu", "resourceClaimTemplateName": "one-gpu"}
    pod = msgspec.structs.replace(a_pod("p"), spec=a_pod("p", resourceClaims=[template]).spec)
    owner = {"kind": "Pod", "name": "p", "uid": owner_uid, "controller": True}
    claim = a_claim("p-gpu-x7b2c", ownerReferences=[owner])
    named = PodResourceClaimStatus(name="gpu", resource_claim_name=claim.name)
    status = msgspec.structs.replace(pod.status, resource_claim_statuses=(named,))
    things: list[AnyObject] = [a_class(), a_slice("n0", "gpu-0"), a_slice("n1", "gpu-0"), claim]
    events = [ObjectSet(at(0), item) for item in things]
    changes: list[TraceEvent] = [
        ObjectSet(at(2), msgspec.structs.replace(pod, status=status)),
        ObjectRemoved(at(4), "Node", "n0", "uid-n0"),
        ObjectSet(at(5), node("n1")),
    ]
    found = simulated([*has(node("n0")), *events, comes(pod, 1), *changes])
    assert [placement[0] for placement in found.placements("p")] == ["n0", "n1"]
    claims = [
        record.object.metadata.uid
        for record in found.records
        if isinstance(record, ObjectObserved)
        and isinstance(record.object, ResourceClaim)
        and record.object.status.allocation
    ]
    assert claims[-1] == f"claim-{pod.uid}-1-gpu"


def _uid(record: ObjectObserved | ObjectDeleted) -> str:
    return record.uid if isinstance(record, ObjectDeleted) else record.object.metadata.uid


def test_pods_can_share_a_declared_claim() -> None:
    request = {"name": "r", "exactly": {"deviceClassName": "gpu"}}
    claim = {
        "apiVersion": API,
        "kind": "ResourceClaim",
        "metadata": {"name": "shared", "namespace": "default"},
        "spec": {"devices": {"requests": [request]}},
    }
    spec = {
        "containers": [{"name": "c", "image": "i"}],
        "resourceClaims": [{"name": "gpu", "resourceClaimName": "shared"}],
    }
    pods = group("a", 2, template={"spec": spec})
    trace = expand(read_scenario(scenario(pods, objects=[*declared(1), claim])))
    found = simulate(trace, SchedulerSettings(default_profiles()), installed().load)
    assert [pod.placements[0].node for pod in found.pods] == ["n-0"] * 2
