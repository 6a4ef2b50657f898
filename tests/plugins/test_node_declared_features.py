"""NodeDeclaredFeatures: required features of pods and declared features of nodes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from asched.framework.pod_info import PodInfo
from asched.framework.status import Status
from asched.plugins.node_declared_features import NodeDeclaredFeatures, required_features
from tests.plugins.volume_clusters import a_node, a_pod, build, cluster_of, put, rejections

RESTART = "RestartAllContainersOnContainerExits"
HOST_USERS = "UserNamespacesHostNetworkSupport"
MISSING = Status.unresolvable("node(s) didn't match Pod's required features")


def container(action: str) -> list[dict[str, Any]]:
    return [{"name": "plain"}, {"name": "c", "restartPolicyRules": [{"action": action}]}]


@pytest.mark.parametrize(
    ("spec", "needed"),
    [
        ({}, set()),
        ({"containers": container("RestartAllContainers")}, {RESTART}),
        ({"initContainers": container("RestartAllContainers")}, {RESTART}),
        ({"containers": container("Restart")}, set()),
        ({"hostNetwork": True, "hostUsers": False}, {HOST_USERS}),
        ({"hostNetwork": True, "hostUsers": True}, set()),
        ({"hostNetwork": True}, set()),
        ({"hostUsers": False}, set()),
        (
            {
                "hostNetwork": True,
                "hostUsers": False,
                "containers": container("RestartAllContainers"),
            },
            {RESTART, HOST_USERS},
        ),
    ],
)
def test_required_features_of_a_pod(spec: dict[str, Any], needed: set[str]) -> None:
    assert required_features(a_pod("p", **spec)) == needed


def test_nodes_without_features_are_rejected_also_after_changes() -> None:
    cluster = cluster_of(
        a_node("both", declaredFeatures=[HOST_USERS, RESTART]),
        a_node("one", declaredFeatures=[RESTART]),
        a_node("none"),
    )
    plugin = build(NodeDeclaredFeatures, cluster)
    spec: dict[str, Any] = {"hostNetwork": True, "hostUsers": False}
    pod = PodInfo(a_pod("p", **spec, containers=container("RestartAllContainers")))
    assert rejections(plugin, pod, cluster.nodes) == {"one": MISSING, "none": MISSING}
    some = cluster.nodes.take(np.array([2, 0], np.intp))
    assert rejections(plugin, pod, some) == {"none": MISSING}
    put(cluster, a_node("one", declaredFeatures=[HOST_USERS, RESTART]))
    put(cluster, a_node("both"))
    assert rejections(plugin, pod, cluster.nodes) == {"both": MISSING, "none": MISSING}


def test_feature_that_no_node_declares_rejects_all() -> None:
    cluster = cluster_of(a_node("n"))
    pod = PodInfo(a_pod("p", containers=container("RestartAllContainers")))
    plugin = build(NodeDeclaredFeatures, cluster)
    assert rejections(plugin, pod, cluster.nodes) == {"n": MISSING}


def test_pods_without_required_features_are_skipped() -> None:
    cluster = cluster_of(a_node("n"))
    answer = rejections(build(NodeDeclaredFeatures, cluster), PodInfo(a_pod("p")), cluster.nodes)
    assert isinstance(answer, Status)
    assert answer.is_skip
