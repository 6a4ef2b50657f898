"""VolumeZone: old and new labels, several zones, nodes without labels."""

from __future__ import annotations

import pytest

from asched.framework.pod_info import PodInfo
from asched.framework.status import Status
from asched.plugins.volume_zone import WRONG_ZONE, VolumeZone
from tests.plugins.volume_clusters import (
    a_claim,
    a_node,
    a_pod,
    a_volume,
    build,
    claim_volume,
    cluster_of,
    rejections,
)

ZONE, BETA_ZONE = "topology.kubernetes.io/zone", "failure-domain.beta.kubernetes.io/zone"
REGION = "topology.kubernetes.io/region"


@pytest.mark.parametrize(
    ("volume", "node", "allowed"),
    [
        ({ZONE: "a"}, {ZONE: "a"}, True),
        ({ZONE: "a"}, {ZONE: "b"}, False),
        ({ZONE: "a__b"}, {ZONE: "b"}, True),
        ({ZONE: "a__b"}, {ZONE: "c"}, False),
        ({ZONE: "a____b", REGION: "r"}, {ZONE: "c", REGION: "r"}, True),  # no list: passed over
        ({BETA_ZONE: "a"}, {ZONE: "a"}, True),
        ({BETA_ZONE: "a"}, {ZONE: "b"}, False),
        ({BETA_ZONE: "a"}, {BETA_ZONE: "b", ZONE: "a"}, False),
        ({BETA_ZONE: "a"}, {BETA_ZONE: "a", ZONE: "b"}, True),
        ({ZONE: "a"}, {BETA_ZONE: "a"}, False),
        ({ZONE: "a"}, {REGION: "r"}, False),
        ({ZONE: "a"}, {}, True),
        ({ZONE: "a", REGION: "r"}, {ZONE: "a", REGION: "other"}, False),
    ],
)
def test_zone_labels_of_volume_and_node_must_match(
    volume: dict[str, str], node: dict[str, str], allowed: bool
) -> None:
    cluster = cluster_of(
        a_node("n", node), a_claim("c", bound_to="pv"), a_volume("pv", labels=volume)
    )
    plugin = build(VolumeZone, cluster)
    answer = rejections(plugin, PodInfo(a_pod("p", claim_volume("c"))), cluster.nodes)
    assert answer == ({} if allowed else {"n": WRONG_ZONE})


def test_claims_without_volume() -> None:
    cluster = cluster_of(a_node("n"), a_claim("gone", bound_to="pv"), a_claim("none"))
    plugin = build(VolumeZone, cluster)
    for claim, reason in (
        ("gone", 'persistentvolume "pv" not found'),
        ("none", "PersistentVolumeClaim had no pv name and storageClass name"),
        ("missing", 'persistentvolumeclaim "missing" not found'),
    ):
        answer = rejections(plugin, PodInfo(a_pod("p", claim_volume(claim))), cluster.nodes)
        assert answer == Status.unresolvable(reason)
