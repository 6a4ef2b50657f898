"""Which pods of a tree the detection of forgotten pods reports."""

from __future__ import annotations

from collections.abc import Mapping, Set

import pytest

from asched.apiserver.cluster import EmbeddedCluster
from asched.apiserver.group_forms import KubernetesVersion
from asched.config.file import parse
from asched.model.quantity import NS_PER_S
from tests.fault_simulation.configurations import installed
from tests.fault_simulation.forgotten_pods import forgotten_pods
from tests.fault_simulation.tree_attempts import TreeAttempt

_CONFIGURATION = """\
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
profiles:
  - schedulerName: default-scheduler
    plugins:
      multiPoint: {enabled: [{name: GangScheduling}]}
      queueSort: {disabled: [{name: "*"}], enabled: [{name: GangSort}]}
    pluginConfig:
      - name: GangScheduling
        args: {groupCycle: true}
"""


@pytest.fixture
def cluster() -> EmbeddedCluster:
    """A tree needs two of three groups: the first takes the room of both others."""
    made = EmbeddedCluster(clock=lambda: 1.0, seed=1, version=KubernetesVersion.V1_37)
    add_node(made, "n1", "4")
    made.create(
        "compositepodgroups.scheduling.k8s.io",
        {
            "metadata": {"name": "tree"},
            "spec": {
                "schedulingPolicy": {"gang": {"minGroupCount": 2}},
                "workloadRef": {"workloadName": "w", "templateName": "tree"},
            },
        },
    )
    for name, cpu in ("a", "4"), ("b", "1"), ("c", "1"):
        made.create(
            "podgroups.scheduling.k8s.io",
            {
                "metadata": {"name": name},
                "spec": {
                    "schedulingPolicy": {"gang": {"minCount": 1}},
                    "workloadRef": {"workloadName": "w", "templateName": name},
                    "parentCompositePodGroupName": "tree",
                },
            },
        )
        add_pod(made, name, cpu, {"schedulingGroup": {"podGroupName": name}})
    return made


def add_node(cluster: EmbeddedCluster, name: str, cpu: str) -> None:
    amounts = {"cpu": cpu, "memory": "64Gi", "pods": "110"}
    status = {"allocatable": amounts, "capacity": amounts}
    cluster.create("nodes", {"metadata": {"name": name}, "status": status})


def add_pod(cluster: EmbeddedCluster, name: str, cpu: str, more: dict[str, object]) -> str:
    """Returns the uid."""
    container = {"name": "c", "image": "i", "resources": {"requests": {"cpu": cpu}}}
    pod = {"metadata": {"name": name}, "spec": {"containers": [container], **more}}
    uid: str = cluster.create("pods", pod, namespace="default")["metadata"]["uid"]
    return uid


def forgotten(
    cluster: EmbeddedCluster,
    placed_since: Set[str] = frozenset(),
    nominated: Mapping[str, str] | None = None,
) -> list[str]:
    registry = installed()
    configuration = parse(_CONFIGURATION, "test", registry)
    tree = cluster.get("compositepodgroups.scheduling.k8s.io", "tree", namespace="default")
    attempts = {tree["metadata"]["uid"]: TreeAttempt(0, {*placed_since}, nominated or {})}
    return forgotten_pods(cluster, configuration, registry, 10 * NS_PER_S, attempts)


def test_tree_that_is_feasible_because_of_pods_placed_since_is_not_reported(
    cluster: EmbeddedCluster,
) -> None:
    assert forgotten(cluster) == []
    uid = add_pod(cluster, "bystander", "1", {"nodeName": "n1"})
    assert forgotten(cluster, {uid}) == []


def test_tree_that_was_feasible_before_those_pods_is_reported(cluster: EmbeddedCluster) -> None:
    uid = add_pod(cluster, "bystander", "1", {"nodeName": "n1"})
    assert forgotten(cluster) == ["default/b", "default/c"]
    add_node(cluster, "n2", "8")
    assert forgotten(cluster, {uid}) == ["default/a", "default/b", "default/c"]


def test_room_of_pods_that_were_nominated_was_not_free(cluster: EmbeddedCluster) -> None:
    add_node(cluster, "n2", "8")
    uid = add_pod(cluster, "nominated", "8", {"nodeName": "n1"})
    assert forgotten(cluster, {uid}) == ["default/a", "default/b", "default/c"]
    assert forgotten(cluster, {uid}, {uid: "n2"}) == []
