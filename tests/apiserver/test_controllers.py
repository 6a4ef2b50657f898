"""Controllers make the pods of workloads, replace them and delete objects without an owner."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asched.apiserver.api import DeleteOptions
from asched.apiserver.cluster import EmbeddedCluster
from asched.apiserver.controllers.dependents import counted, is_active, is_ready
from asched.apiserver.controllers.manager import Controllers
from asched.apiserver.kubelet import Kubelets, KubeletTimings
from tests.apiserver.objects import FakeClock, node
from tests.run_size import examples

Object = dict[str, Any]


class Sim:
    """A cluster with controllers, kubelets and a scheduler that binds each pod where it may go."""

    def __init__(self, nodes: int = 3) -> None:
        self.clock = FakeClock()
        self.cluster = EmbeddedCluster(clock=self.clock, seed=1)
        for index in range(nodes):
            self.cluster.create("nodes", node(f"n{index}", zone=f"z{index % 2}"))
        self.kubelets = Kubelets(self.cluster, KubeletTimings(start_s=1.0, terminate_s=1.0))
        self.controllers = Controllers(self.cluster)
        self.kubelets.attach()
        self.controllers.attach()

    def step(self) -> None:
        """A second passes."""
        self.clock.advance(1.0)
        self.kubelets.step()
        self.controllers.step()
        nodes = [stored.obj["metadata"]["name"] for stored in self.cluster.stored("nodes")]
        for pod in self.pods():
            if not pod["spec"].get("nodeName") and nodes:
                self.cluster.bind("default", pod["metadata"]["name"], _target(pod) or nodes[0])

    def settle(self, steps: int = 40) -> None:
        self.controllers.step()
        for _ in range(steps):
            self.step()

    def create(self, resource: str, name: str, **spec: Any) -> Object:
        labels = {"app": name}
        template = spec.pop("template", None) or {"spec": {}}
        template.setdefault("metadata", {})["labels"] = labels
        template["spec"].setdefault("containers", [{"name": "c", "image": "x:1"}])
        body = {"metadata": {"name": name}, "spec": {"template": template, **spec}}
        if resource != "jobs":
            body["spec"]["selector"] = {"matchLabels": labels}
        return self.cluster.create(resource, body, namespace="default")

    def patch(self, resource: str, name: str, spec: Object) -> None:
        self.cluster.patch(resource, name, {"spec": spec}, namespace="default")

    def set_image(self, resource: str, name: str, image: str) -> None:
        containers = [{"name": "c", "image": image}]
        self.patch(resource, name, {"template": {"spec": {"containers": containers}}})

    def get(self, resource: str, name: str) -> Object:
        return self.cluster.get(resource, name, namespace="default")

    def pods(self, app: str = "") -> list[Object]:
        return self.cluster.list("pods", labels=f"app={app}" if app else "")

    def active(self, app: str) -> list[Object]:
        return [pod for pod in self.pods(app) if is_active(pod)]

    def images(self, app: str) -> set[str]:
        return {pod["spec"]["containers"][0]["image"] for pod in self.active(app)}

    def finish(self, pod: Object, phase: str) -> None:
        status = {"phase": phase, "conditions": []}
        name = pod["metadata"]["name"]
        self.cluster.patch(
            "pods", name, {"status": status}, namespace="default", subresource="status"
        )


def _target(pod: Object) -> str:
    """The only node of a pod of a DaemonSet."""
    affinity = (pod["spec"].get("affinity") or {}).get("nodeAffinity") or {}
    required = affinity.get("requiredDuringSchedulingIgnoredDuringExecution")
    return required["nodeSelectorTerms"][0]["matchFields"][0]["values"][0] if required else ""


def names(objects: list[Object]) -> list[str]:
    return sorted(each["metadata"]["name"] for each in objects)


def test_deployment_has_its_pods_and_reports_them() -> None:
    sim = Sim()
    sim.create("deployments", "web", replicas=3)
    sim.settle()
    status = sim.get("deployments", "web")["status"]
    counts = ("replicas", "updatedReplicas", "readyReplicas", "availableReplicas")
    assert [status[field] for field in counts] == [3, 3, 3, 3]
    assert status["observedGeneration"] == 1
    conditions = {c["type"]: (c["status"], c["reason"]) for c in status["conditions"]}
    assert conditions["Progressing"] == ("True", "NewReplicaSetAvailable")
    assert conditions["Available"][0] == "True"
    (replica_set,) = sim.cluster.list("replicasets")
    hashed = replica_set["metadata"]["labels"]["pod-template-hash"]
    assert replica_set["metadata"]["name"] == f"web-{hashed}"
    assert {pod["metadata"]["labels"]["pod-template-hash"] for pod in sim.pods()} == {hashed}
    sim.patch("deployments", "web", {"replicas": 1})
    sim.settle()
    assert len(sim.active("web")) == 1


def test_deleted_pod_is_replaced_and_the_oldest_stay_in_a_scale_down() -> None:
    sim = Sim()
    sim.create("replicasets", "web", replicas=3)
    sim.settle()
    before = names(sim.active("web"))
    sim.cluster.delete("pods", before[0], namespace="default")
    sim.settle()
    assert len(sim.active("web")) == 3
    sim.patch("replicasets", "web", {"replicas": 2})
    sim.settle()
    assert names(sim.active("web")) == before[1:]


@pytest.mark.parametrize(
    ("surge", "unavailable"), [(1, 0), (0, 1), ("25%", "25%"), ("100%", 0), (0, "50%"), (0, 0)]
)
def test_rolling_update_stays_within_its_limits(surge: int | str, unavailable: int | str) -> None:
    sim, replicas = Sim(), 6
    strategy = {"rollingUpdate": {"maxSurge": surge, "maxUnavailable": unavailable}}
    sim.create("deployments", "web", replicas=replicas, strategy=strategy)
    sim.settle()
    sim.set_image("deployments", "web", "x:2")
    most = replicas + counted(surge, replicas, up=True)
    down = counted(unavailable, replicas, up=False)
    least = replicas - (down if most > replicas or down else 1)
    for _ in range(60):
        sim.step()
        active = sim.active("web")
        assert len(active) <= most
        assert sum(map(is_ready, active)) >= least
    assert sim.images("web") == {"x:2"}
    assert sim.get("deployments", "web")["status"]["updatedReplicas"] == replicas


def test_rollback_uses_the_earlier_replica_set() -> None:
    sim = Sim()
    first = sim.create("deployments", "web", replicas=2)["spec"]["template"]
    sim.settle()
    (before,) = names(sim.cluster.list("replicasets"))
    sim.set_image("deployments", "web", "x:2")
    sim.settle()
    assert len(sim.cluster.list("replicasets")) == 2
    # As kubectl writes it: with fields that are null or empty.
    metadata = {**first["metadata"], "creationTimestamp": None, "annotations": {}}
    containers = [{**first["spec"]["containers"][0], "resources": {}}]
    template = {"metadata": metadata, "spec": {**first["spec"], "containers": containers}}
    sim.patch("deployments", "web", {"template": template})
    sim.settle()
    sizes = {r["metadata"]["name"]: r["spec"]["replicas"] for r in sim.cluster.list("replicasets")}
    assert sizes.pop(before) == 2
    assert [*sizes.values()] == [0]
    revision = "deployment.kubernetes.io/revision"
    assert sim.get("deployments", "web")["metadata"]["annotations"][revision] == "3"
    assert sim.get("replicasets", before)["metadata"]["annotations"][revision] == "3"


def test_recreate_ends_all_old_pods_first() -> None:
    sim = Sim()
    sim.create("deployments", "web", replicas=3, strategy={"type": "Recreate"})
    sim.settle()
    sim.set_image("deployments", "web", "x:2")
    for _ in range(20):
        sim.step()
        images = {pod["spec"]["containers"][0]["image"] for pod in sim.pods("web")}
        assert len(images) <= 1
    assert images == {"x:2"}


def test_history_is_limited_and_a_pause_holds_an_update() -> None:
    sim = Sim()
    sim.create("deployments", "web", replicas=1, revisionHistoryLimit=1)
    for number in range(2, 6):
        sim.set_image("deployments", "web", f"x:{number}")
        sim.settle(10)
    assert len(sim.cluster.list("replicasets")) == 2
    sim.patch("deployments", "web", {"paused": True})
    sim.set_image("deployments", "web", "x:9")
    sim.settle(10)
    assert sim.images("web") == {"x:5"}
    sim.patch("deployments", "web", {"paused": False})
    sim.settle(10)
    assert sim.images("web") == {"x:9"}


def test_a_refused_pod_is_reported() -> None:
    sim = Sim()
    sim.create("replicasets", "web", template={"spec": {"priorityClassName": "missing"}})
    sim.settle(3)
    (condition,) = sim.get("replicasets", "web")["status"]["conditions"]
    assert (condition["type"], condition["reason"]) == ("ReplicaFailure", "FailedCreate")
    assert "missing" in condition["message"]


def test_stateful_set_in_order() -> None:
    sim = Sim()
    claim = {"metadata": {"name": "data"}, "spec": {"accessModes": ["ReadWriteOnce"]}}
    sim.create("statefulsets", "db", replicas=3, serviceName="db", volumeClaimTemplates=[claim])
    sim.controllers.step()
    seen = [names(sim.pods("db"))]
    for _ in range(12):
        sim.step()
        if names(sim.pods("db")) != seen[-1]:
            seen.append(names(sim.pods("db")))
    assert seen == [["db-0"], ["db-0", "db-1"], ["db-0", "db-1", "db-2"]]
    assert names(sim.cluster.list("persistentvolumeclaims")) == [f"data-db-{i}" for i in range(3)]
    sim.set_image("statefulsets", "db", "x:2")
    replaced = []
    for _ in range(30):
        before = {p["metadata"]["name"]: p["metadata"]["uid"] for p in sim.pods("db")}
        sim.step()
        for pod in sim.pods("db"):
            name, uid = pod["metadata"]["name"], pod["metadata"]["uid"]
            if before.get(name) != uid:
                replaced.append(name)
    assert replaced == ["db-2", "db-1", "db-0"]
    sim.patch("statefulsets", "db", {"replicas": 1})
    sim.settle()
    assert names(sim.pods("db")) == ["db-0"]
    # Volume claims stay.
    assert len(sim.cluster.list("persistentvolumeclaims")) == 3
    assert sim.get("statefulsets", "db")["status"]["readyReplicas"] == 1


def test_partition_keeps_lower_pods_and_parallel_does_not_wait() -> None:
    sim = Sim()
    strategy = {"rollingUpdate": {"partition": 2}}
    sim.create(
        "statefulsets",
        "db",
        replicas=3,
        podManagementPolicy="Parallel",
        updateStrategy=strategy,
        ordinals={"start": 5},
    )
    sim.controllers.step()
    assert names(sim.pods("db")) == ["db-5", "db-6", "db-7"]
    sim.settle()
    sim.patch("statefulsets", "db", {"updateStrategy": {"rollingUpdate": {"partition": 7}}})
    sim.set_image("statefulsets", "db", "x:2")
    sim.settle()
    images = {p["metadata"]["name"]: p["spec"]["containers"][0]["image"] for p in sim.pods("db")}
    assert images == {"db-5": "x:1", "db-6": "x:1", "db-7": "x:2"}


def test_daemon_set_follows_nodes_labels_and_taints() -> None:
    sim = Sim(nodes=3)
    sim.create("daemonsets", "agent", template={"spec": {"nodeSelector": {"zone": "z0"}}})
    sim.settle()
    status = sim.get("daemonsets", "agent")["status"]
    assert (status["desiredNumberScheduled"], status["numberReady"]) == (2, 2)
    assert sorted(p["spec"]["nodeName"] for p in sim.active("agent")) == ["n0", "n2"]
    sim.cluster.create("nodes", node("n9", zone="z0"))
    taint = {"spec": {"taints": [{"key": "k", "effect": "NoExecute"}]}}
    sim.cluster.patch("nodes", "n0", taint)
    # A cordoned node keeps its pods: they tolerate that.
    cordon = [{"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}]
    sim.cluster.patch("nodes", "n2", {"spec": {"unschedulable": True, "taints": cordon}})
    sim.settle()
    assert sorted(p["spec"]["nodeName"] for p in sim.active("agent")) == ["n2", "n9"]
    sim.set_image("daemonsets", "agent", "x:2")
    for _ in range(20):
        sim.step()
        assert sum(map(is_ready, sim.active("agent"))) >= 1
    assert sim.images("agent") == {"x:2"}


@pytest.mark.parametrize("indexed", [False, True])
def test_job_runs_until_enough_pods_succeed(indexed: bool) -> None:
    sim = Sim()
    mode = "Indexed" if indexed else "NonIndexed"
    sim.create("jobs", "work", completions=5, parallelism=2, completionMode=mode)
    sim.settle(3)
    assert len(sim.active("work")) == 2
    failed = sim.active("work")[0]
    sim.finish(failed, "Failed")
    for _ in range(30):
        sim.step()
        assert len(sim.active("work")) <= 2
        for pod in sim.active("work"):
            if is_ready(pod):
                sim.finish(pod, "Succeeded")
    status = sim.get("jobs", "work")["status"]
    assert (status["succeeded"], status["failed"], status.get("active", 0)) == (5, 1, 0)
    assert [c["type"] for c in status["conditions"]] == ["Complete"]
    assert status.get("completedIndexes") == ("0-4" if indexed else None)
    labels = sim.pods("work")[0]["metadata"]["labels"]
    assert labels["batch.kubernetes.io/job-name"] == "work"


def test_job_fails_after_its_backoff_limit_and_a_suspended_one_waits() -> None:
    sim = Sim()
    sim.create("jobs", "bad", backoffLimit=1)
    sim.create("jobs", "later", suspend=True)
    for _ in range(10):
        sim.step()
        for pod in sim.active("bad"):
            sim.finish(pod, "Failed")
    (condition,) = sim.get("jobs", "bad")["status"]["conditions"]
    assert (condition["type"], condition["reason"]) == ("Failed", "BackoffLimitExceeded")
    assert len(sim.pods("bad")) == 2
    assert sim.pods("later") == []
    sim.patch("jobs", "later", {"suspend": False})
    sim.settle(3)
    assert len(sim.active("later")) == 1


def test_garbage_of_deleted_owners_goes_and_orphans_stay() -> None:
    sim = Sim()
    sim.create("deployments", "web", replicas=2)
    sim.create("deployments", "kept", replicas=2)
    sim.settle()
    sim.cluster.delete("deployments", "web", namespace="default")
    orphan = DeleteOptions(propagation="Orphan")
    sim.cluster.api.delete(sim.cluster.resource("deployments"), "default", "kept", orphan)
    sim.settle()
    assert sim.pods("web") == []
    (left,) = sim.cluster.list("replicasets")
    assert "ownerReferences" not in left["metadata"]
    assert len(sim.active("kept")) == 2


def test_pods_of_a_deleted_node_go_and_are_replaced() -> None:
    sim = Sim()
    sim.create("deployments", "web", replicas=2)
    sim.settle()
    assert {pod["spec"]["nodeName"] for pod in sim.pods("web")} == {"n0"}
    before = names(sim.pods("web"))
    sim.cluster.delete("nodes", "n0")
    sim.settle()
    assert {pod["spec"]["nodeName"] for pod in sim.pods("web")} == {"n1"}
    assert not set(before) & set(names(sim.pods("web")))


OPERATIONS = st.one_of(
    st.tuples(st.just("scale"), st.integers(0, 6)),
    st.tuples(st.just("image"), st.integers(1, 3)),
    st.tuples(st.just("delete pod"), st.integers(0, 9)),
    st.tuples(st.just("fail pod"), st.integers(0, 9)),
    st.tuples(st.just("delete node"), st.integers(0, 2)),
    st.tuples(st.just("add node"), st.integers(0, 2)),
    st.tuples(st.just("wait"), st.integers(1, 3)),
)
KINDS = {"web": "deployments", "db": "statefulsets", "agent": "daemonsets"}


@settings(max_examples=examples(40))
@given(st.lists(st.tuples(st.sampled_from(sorted(KINDS)), OPERATIONS), max_size=15))
def test_any_history_ends_in_what_the_workloads_ask_for(
    history: list[tuple[str, tuple[str, int]]],
) -> None:
    sim = Sim()
    wanted, image = {"web": 3, "db": 2, "agent": 0}, dict.fromkeys(KINDS, "x:1")
    sim.create("deployments", "web", replicas=3)
    sim.create("statefulsets", "db", replicas=2, serviceName="db")
    sim.create("daemonsets", "agent")
    for name, (operation, value) in history:
        pods, nodes = sim.pods(name), names(sim.cluster.list("nodes"))
        if operation == "scale" and name != "agent":
            wanted[name] = value
            sim.patch(KINDS[name], name, {"replicas": value})
        elif operation == "image":
            image[name] = f"x:{value}"
            sim.set_image(KINDS[name], name, image[name])
        elif operation == "delete pod" and pods:
            chosen = pods[value % len(pods)]["metadata"]["name"]
            sim.cluster.delete("pods", chosen, namespace="default")
        elif operation == "fail pod" and pods:
            sim.finish(pods[value % len(pods)], "Failed")
        elif operation == "delete node" and f"n{value}" in nodes and len(nodes) > 1:
            sim.cluster.delete("nodes", f"n{value}")
        elif operation == "add node" and f"n{value}" not in nodes:
            sim.cluster.create("nodes", node(f"n{value}"))
        elif operation == "wait":
            sim.settle(value)
    sim.settle(80)
    nodes = names(sim.cluster.list("nodes"))
    for name, resource in KINDS.items():
        pods = sim.active(name)
        assert len(pods) == (len(nodes) if name == "agent" else wanted[name])
        assert all(map(is_ready, pods))
        assert sim.images(name) <= {image[name]}
        assert {pod["spec"]["nodeName"] for pod in pods} <= set(nodes)
        sim.cluster.delete(resource, name, namespace="default")
    sim.settle(10)
    assert [pod for pod in sim.pods() if is_active(pod)] == []
