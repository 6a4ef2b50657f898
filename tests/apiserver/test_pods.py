"""Pods: admission, binding, eviction, deletion and resize."""

from __future__ import annotations

from typing import Any

import pytest

from asched.apiserver import subresources
from asched.apiserver.api import DeleteOptions
from asched.apiserver.cluster import EmbeddedCluster
from asched.apiserver.errors import StatusError
from tests.apiserver.objects import FakeClock, node, pod


@pytest.fixture
def cluster() -> EmbeddedCluster:
    return EmbeddedCluster(clock=FakeClock(), seed=1)


def created(cluster: EmbeddedCluster, **spec: Any) -> dict[str, Any]:
    return cluster.create("pods", pod(**spec))


def test_pod_spec_defaults(cluster: EmbeddedCluster) -> None:
    made = created(cluster)
    spec = made["spec"]
    assert spec["schedulerName"] == "default-scheduler"
    assert spec["restartPolicy"] == "Always"
    assert spec["priority"] == 0
    assert spec["preemptionPolicy"] == "PreemptLowerPriority"
    assert [t["key"] for t in spec["tolerations"]] == [
        "node.kubernetes.io/not-ready",
        "node.kubernetes.io/unreachable",
    ]
    assert made["status"] == {"phase": "Pending", "qosClass": "Burstable"}


def test_requests_default_to_limits_and_host_ports_to_container_ports(
    cluster: EmbeddedCluster,
) -> None:
    container = {
        "name": "c",
        "image": "x",
        "resources": {"limits": {"cpu": "1", "memory": "1Gi"}, "requests": {"cpu": "500m"}},
        "ports": [{"containerPort": 80}],
    }
    made = created(cluster, containers=[container], hostNetwork=True)["spec"]["containers"][0]
    assert made["resources"]["requests"] == {"cpu": "500m", "memory": "1Gi"}
    assert made["ports"] == [{"containerPort": 80, "hostPort": 80, "protocol": "TCP"}]
    assert made["imagePullPolicy"] == "Always"


@pytest.mark.parametrize(
    ("resources", "expected"),
    [
        ({}, "BestEffort"),
        ({"requests": {"cpu": "1"}}, "Burstable"),
        ({"limits": {"cpu": "1", "memory": "1Gi"}}, "Guaranteed"),
        (
            {
                "limits": {"cpu": "1", "memory": "1Gi"},
                "requests": {"cpu": "1000m", "memory": "1024Mi"},
            },
            "Guaranteed",
        ),
        ({"limits": {"cpu": "1", "memory": "1Gi"}, "requests": {"cpu": "999m"}}, "Burstable"),
    ],
)
def test_qos_class(cluster: EmbeddedCluster, resources: dict[str, Any], expected: str) -> None:
    containers = [{"name": "c", "image": "x", "resources": resources}]
    assert created(cluster, containers=containers)["status"]["qosClass"] == expected


def test_priority_is_set_from_the_class(cluster: EmbeddedCluster) -> None:
    high = {"metadata": {"name": "high"}, "value": 7, "preemptionPolicy": "Never"}
    cluster.create("priorityclasses", high)
    spec = created(cluster, priorityClassName="high")["spec"]
    assert (spec["priority"], spec["preemptionPolicy"]) == (7, "Never")
    system = cluster.create("pods", pod("s", priorityClassName="system-node-critical"))
    assert system["spec"]["priority"] == 2_000_001_000
    with pytest.raises(StatusError, match="no PriorityClass with name nope was found") as error:
        cluster.create("pods", pod("q", priorityClassName="nope"))
    assert error.value.code == 403
    with pytest.raises(StatusError, match="must not be provided in pod spec"):
        cluster.create("pods", pod("r", priority=3))


def test_lowest_global_default_class_applies(cluster: EmbeddedCluster) -> None:
    for name, value in (("a", 50), ("b", 20)):
        cluster.create(
            "priorityclasses", {"metadata": {"name": name}, "value": value, "globalDefault": True}
        )
    spec = created(cluster)["spec"]
    assert (spec["priorityClassName"], spec["priority"]) == ("b", 20)


def test_runtime_classes_add_overhead_and_placement(cluster: EmbeddedCluster) -> None:
    cluster.create(
        "runtimeclasses",
        {
            "metadata": {"name": "gvisor"},
            "handler": "runsc",
            "overhead": {"podFixed": {"cpu": "250m"}},
            "scheduling": {"nodeSelector": {"sandbox": "true"}},
        },
    )
    spec = created(cluster, runtimeClassName="gvisor")["spec"]
    assert spec["overhead"] == {"cpu": "250m"}
    assert spec["nodeSelector"] == {"sandbox": "true"}


def test_match_label_keys_become_part_of_the_selectors(cluster: EmbeddedCluster) -> None:
    made = pod(
        "p",
        topologySpreadConstraints=[
            {
                "maxSkew": 1,
                "topologyKey": "zone",
                "whenUnsatisfiable": "DoNotSchedule",
                "labelSelector": {"matchLabels": {"app": "x"}},
                "matchLabelKeys": ["rev", "none"],
            }
        ],
        affinity={
            "podAntiAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": [
                    {"topologyKey": "zone", "labelSelector": {}, "mismatchLabelKeys": ["rev"]}
                ]
            }
        },
    )
    made["metadata"]["labels"] = {"app": "x", "rev": "7"}
    spec = cluster.create("pods", made)["spec"]
    spread = spec["topologySpreadConstraints"][0]["labelSelector"]["matchExpressions"]
    assert spread == [{"key": "rev", "operator": "In", "values": ["7"]}]
    terms = spec["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert terms[0]["labelSelector"]["matchExpressions"] == [
        {"key": "rev", "operator": "NotIn", "values": ["7"]}
    ]


def test_binding_sets_node_and_condition(cluster: EmbeddedCluster) -> None:
    zone = {"topology.kubernetes.io/zone": "z1", "topology.kubernetes.io/region": "r1"}
    cluster.create("nodes", node("n", disk="ssd", **zone))
    created(cluster)
    cluster.patch(
        "pods",
        "p",
        {"status": {"nominatedNodeName": "n"}},
        namespace="default",
        subresource="status",
    )
    cluster.bind("default", "p", "n")
    bound = cluster.get("pods", "p", namespace="default")
    assert bound["spec"]["nodeName"] == "n"
    assert bound["metadata"]["labels"] == zone
    assert "nominatedNodeName" not in bound["status"]
    assert [(c["type"], c["status"]) for c in bound["status"]["conditions"]] == [
        ("PodScheduled", "True")
    ]
    assert bound["metadata"]["generation"] == 1


@pytest.mark.parametrize(
    ("spec", "target", "uid", "code", "message"),
    [
        ({"schedulingGates": [{"name": "g"}]}, "n", "", 409, "has non-empty .spec.schedulingGates"),
        ({"nodeName": "m"}, "n", "", 409, 'is already assigned to node "m"'),
        ({}, "n", "wrong", 409, "Precondition failed: UID in precondition: wrong"),
        ({}, "", "", 500, "target.name: Required value"),
    ],
)
def test_rejected_bindings(
    cluster: EmbeddedCluster, spec: dict[str, Any], target: str, uid: str, code: int, message: str
) -> None:
    created(cluster, **spec)
    before = cluster.get("pods", "p", namespace="default")
    with pytest.raises(StatusError) as error:
        cluster.bind("default", "p", target, uid=uid)
    assert error.value.code == code
    assert message in error.value.message
    assert cluster.get("pods", "p", namespace="default") is before


def test_unbound_pod_is_removed_at_once(cluster: EmbeddedCluster) -> None:
    created(cluster)
    last = cluster.delete("pods", "p", namespace="default")
    assert last["metadata"]["deletionGracePeriodSeconds"] == 0
    assert cluster.count("pods") == 0


def test_bound_pod_terminates_gracefully(cluster: EmbeddedCluster) -> None:
    created(cluster, nodeName="n", terminationGracePeriodSeconds=20)
    marked = cluster.delete("pods", "p", namespace="default")["metadata"]
    assert marked["deletionTimestamp"] == "2027-01-15T08:00:20Z"
    assert marked["deletionGracePeriodSeconds"] == 20
    assert marked["generation"] == 2
    with pytest.raises(StatusError, match="is being deleted, cannot be assigned to a host"):
        cluster.bind("default", "p", "n")

    longer = cluster.delete("pods", "p", namespace="default", grace_period_s=60)["metadata"]
    assert longer["deletionGracePeriodSeconds"] == 20, "only a shorter grace period may follow"
    shorter = cluster.delete("pods", "p", namespace="default", grace_period_s=5)["metadata"]
    assert shorter["deletionTimestamp"] == "2027-01-15T08:00:05Z"
    cluster.delete("pods", "p", namespace="default", grace_period_s=0)
    assert cluster.count("pods") == 0


def test_finished_pod_is_removed_at_once(cluster: EmbeddedCluster) -> None:
    created(cluster, nodeName="n")
    cluster.patch(
        "pods", "p", {"status": {"phase": "Succeeded"}}, namespace="default", subresource="status"
    )
    cluster.delete("pods", "p", namespace="default")
    assert cluster.count("pods") == 0


def test_pod_update_may_only_remove_gates(cluster: EmbeddedCluster) -> None:
    created(cluster, schedulingGates=[{"name": "a"}])
    with pytest.raises(
        StatusError, match="only deletion is allowed, but found new scheduling gate"
    ):
        cluster.patch(
            "pods", "p", {"spec": {"schedulingGates": [{"name": "b"}]}}, namespace="default"
        )
    freed = cluster.patch("pods", "p", {"spec": {"schedulingGates": []}}, namespace="default")
    assert "schedulingGates" not in freed["spec"]
    with pytest.raises(StatusError, match="pod updates may not change fields other than") as error:
        cluster.patch("pods", "p", {"spec": {"nodeName": "n"}}, namespace="default")
    assert error.value.code == 422


def test_evictions_respect_disruption_budgets(cluster: EmbeddedCluster) -> None:
    made = pod("p", nodeName="n")
    made["metadata"]["labels"] = {"app": "x"}
    cluster.create("pods", made)
    cluster.create(
        "poddisruptionbudgets",
        {
            "metadata": {"name": "b"},
            "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "x"}}},
        },
    )
    pods = cluster.resource("pods")
    with pytest.raises(StatusError) as error:
        subresources.evict(cluster.api, pods, "default", "p", DeleteOptions())
    assert error.value.code == 429
    cluster.patch(
        "poddisruptionbudgets",
        "b",
        {"status": {"disruptionsAllowed": 1}},
        namespace="default",
        subresource="status",
    )
    subresources.evict(cluster.api, pods, "default", "p", DeleteOptions())
    assert cluster.get("pods", "p", namespace="default")["metadata"]["deletionTimestamp"]


def test_resize_changes_container_resources_only(
    cluster: EmbeddedCluster,
) -> None:
    before = created(cluster)
    asked = {"requests": {"cpu": "250m"}, "limits": {"cpu": "500m"}}
    container = {**before["spec"]["containers"][0], "image": "other", "resources": asked}
    patch = {
        "metadata": {"labels": {"new": "label"}},
        "spec": {"containers": [container], "nodeName": "n"},
    }
    after = cluster.patch("pods", "p", patch, namespace="default", subresource="resize")
    (resized,) = after["spec"]["containers"]
    assert resized == {**before["spec"]["containers"][0], "resources": asked}
    assert {**after["spec"], "containers": []} == {**before["spec"], "containers": []}
    assert after["status"] == before["status"]
    assert after["metadata"].get("labels") == before["metadata"].get("labels")
    assert after["metadata"]["resourceVersion"] != before["metadata"]["resourceVersion"]


def test_invalid_resize_is_rejected(cluster: EmbeddedCluster) -> None:
    (container,) = created(cluster)["spec"]["containers"]
    wrong = {**container, "resources": {"requests": {"cpu": "-1"}}}
    patch = {"spec": {"containers": [wrong]}}
    with pytest.raises(StatusError) as error:
        cluster.patch("pods", "p", patch, namespace="default", subresource="resize")
    assert error.value.code == 422
