"""Claims from templates, their end, and kubelets that wait for them."""

from __future__ import annotations

from typing import Any

import pytest

from asched.apiserver.cluster import EmbeddedCluster
from asched.apiserver.dra.controller import FINALIZER, POD_CLAIM, ResourceClaimController
from asched.apiserver.kubelet import Kubelets, KubeletTimings
from tests.apiserver.objects import FakeClock, node, pod

Object = dict[str, Any]

REQUESTS = [{"name": "r", "exactly": {"deviceClassName": "gpu"}}]


class Sim:
    """A cluster with the controller of claims and kubelets."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.cluster = EmbeddedCluster(clock=self.clock, seed=1)
        self.cluster.create("nodes", node("n"))
        self.kubelets = Kubelets(self.cluster, KubeletTimings(start_s=1.0, terminate_s=1.0))
        self.controller = ResourceClaimController(self.cluster)
        self.kubelets.attach()
        self.controller.attach()

    def settle(self, seconds: float = 0.0) -> None:
        self.clock.advance(seconds)
        for _ in range(5):
            self.controller.step()
            self.kubelets.step()

    def add_template(self, name: str = "gpus", **metadata: Any) -> None:
        spec = {"metadata": metadata, "spec": {"devices": {"requests": REQUESTS}}}
        body = {"metadata": {"name": name, "namespace": "default"}, "spec": spec}
        self.cluster.create("resourceclaimtemplates", body)

    def add_claim(self, name: str = "c") -> Object:
        spec = {"devices": {"requests": REQUESTS}}
        body = {"metadata": {"name": name, "namespace": "default"}, "spec": spec}
        return self.cluster.create("resourceclaims", body)

    def add_pod(self, name: str = "p", *, template: str = "", claim: str = "") -> Object:
        entry = {"name": "gpu"}
        if template:
            entry["resourceClaimTemplateName"] = template
        else:
            entry["resourceClaimName"] = claim
        return self.cluster.create("pods", pod(name, resourceClaims=[entry]))

    def pod(self, name: str = "p") -> Object:
        return self.cluster.get("pods", name, namespace="default")

    def generated(self, name: str = "p") -> Object:
        (status,) = self.pod(name)["status"]["resourceClaimStatuses"]
        return self.claim(status["resourceClaimName"])

    def claim(self, name: str = "c") -> Object:
        return self.cluster.get("resourceclaims", name, namespace="default")

    def allocate(self, name: str, *pods: Object, **result: Any) -> None:
        """As a scheduler does it."""
        device = {"request": "r", "driver": "d.example.com", "pool": "n", "device": "gpu-0"}
        status = {
            "allocation": {"devices": {"results": [device | result]}},
            "reservedFor": [
                {"resource": "pods", "name": p["metadata"]["name"], "uid": p["metadata"]["uid"]}
                for p in pods
            ],
        }
        where = {"namespace": "default"}
        finalizers = {"metadata": {"finalizers": [FINALIZER]}}
        self.cluster.patch("resourceclaims", name, finalizers, **where)
        self.cluster.patch(
            "resourceclaims", name, {"status": status}, subresource="status", **where
        )


@pytest.fixture
def sim() -> Sim:
    return Sim()


def test_claim_is_generated_from_its_template(sim: Sim) -> None:
    sim.add_template(labels={"a": "b"}, annotations={"x": "y"})
    made = sim.add_pod(template="gpus")
    sim.settle()
    claim = sim.generated()
    metadata = claim["metadata"]
    assert metadata["name"].startswith("p-gpu-")
    assert metadata["labels"] == {"a": "b"}
    assert metadata["annotations"] == {"x": "y", POD_CLAIM: "gpu"}
    (owner,) = metadata["ownerReferences"]
    assert (owner["kind"], owner["uid"]) == ("Pod", made["metadata"]["uid"])
    assert claim["spec"]["devices"]["requests"][0]["exactly"]["count"] == 1
    revision = sim.cluster.revision
    sim.settle()
    assert sim.cluster.revision == revision


def test_template_may_come_later(sim: Sim) -> None:
    sim.add_pod(template="gpus")
    sim.settle()
    assert "resourceClaimStatuses" not in sim.pod()["status"]
    sim.add_template()
    sim.settle()
    assert sim.generated()


def test_deleted_claim_is_generated_again(sim: Sim) -> None:
    sim.add_template()
    sim.add_pod(template="gpus")
    sim.settle()
    first = sim.generated()["metadata"]
    sim.cluster.delete("resourceclaims", first["name"], namespace="default")
    sim.settle()
    assert sim.generated()["metadata"]["uid"] != first["uid"]


def test_claim_ends_with_its_pod(sim: Sim) -> None:
    sim.add_template()
    made = sim.add_pod(template="gpus")
    sim.settle()
    name = sim.generated()["metadata"]["name"]
    sim.allocate(name, made)
    sim.settle()
    sim.cluster.delete("pods", "p", namespace="default", grace_period_s=0)
    sim.settle()
    assert sim.cluster.count("resourceclaims") == 0


def test_shared_claim_is_deallocated_after_its_last_pod(sim: Sim) -> None:
    sim.add_claim()
    pods = [sim.add_pod(name, claim="c") for name in ("p", "q")]
    sim.allocate("c", *pods)
    sim.settle()
    sim.cluster.delete("pods", "p", namespace="default", grace_period_s=0)
    sim.settle()
    (left,) = sim.claim()["status"]["reservedFor"]
    assert left["name"] == "q"
    sim.cluster.patch(
        "pods", "q", {"status": {"phase": "Succeeded"}}, namespace="default", subresource="status"
    )
    sim.settle()
    assert sim.claim()["status"] == {}
    assert not sim.claim()["metadata"].get("finalizers")


def test_deleted_claim_goes_once_it_is_unused(sim: Sim) -> None:
    sim.add_claim()
    made = sim.add_pod(claim="c")
    sim.allocate("c", made)
    sim.cluster.delete("resourceclaims", "c", namespace="default")
    sim.settle()
    assert sim.claim()["status"]["allocation"]
    sim.cluster.delete("pods", "p", namespace="default", grace_period_s=0)
    sim.settle()
    assert sim.cluster.count("resourceclaims") == 0


def test_claim_of_a_pod_bound_by_hand_is_reserved(sim: Sim) -> None:
    sim.add_claim()
    sim.allocate("c", sim.add_pod("first", claim="c"))
    sim.add_pod("p", claim="c")
    sim.cluster.bind("default", "p", "n")
    sim.settle()
    assert [each["name"] for each in sim.claim()["status"]["reservedFor"]] == ["first", "p"]


def test_pod_starts_once_its_claim_is_reserved_for_it(sim: Sim) -> None:
    sim.add_claim()
    made = sim.add_pod(claim="c")
    sim.cluster.bind("default", "p", "n")
    sim.settle(1.0)
    assert sim.pod()["status"]["phase"] == "Pending"
    sim.allocate("c")
    sim.settle()
    assert sim.pod()["status"]["phase"] == "Running"
    assert sim.claim()["status"]["reservedFor"][0]["uid"] == made["metadata"]["uid"]


def test_driver_reports_binding_conditions(sim: Sim) -> None:
    sim.add_claim()
    conditions = {"bindingConditions": ["Attached"], "bindingFailureConditions": ["Broken"]}
    sim.allocate("c", sim.add_pod(claim="c"), **conditions)
    sim.settle()
    assert "devices" not in sim.claim()["status"]
    sim.settle(1.0)
    (device,) = sim.claim()["status"]["devices"]
    assert (device["driver"], device["pool"], device["device"]) == ("d.example.com", "n", "gpu-0")
    (condition,) = device["conditions"]
    assert (condition["type"], condition["status"]) == ("Attached", "True")
    revision = sim.cluster.revision
    sim.settle(5.0)
    assert sim.cluster.revision == revision
