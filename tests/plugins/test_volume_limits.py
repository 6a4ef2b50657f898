"""NodeVolumeLimits: which volumes count for a node."""

from __future__ import annotations

from typing import Any

from asched.framework.pod_info import PodInfo
from asched.framework.status import Code, Status
from asched.model.meta import Object
from asched.plugins.node_volume_limits import TOO_MANY, NodeVolumeLimits
from tests.plugins.volume_clusters import (
    a_claim,
    a_node,
    a_pod,
    a_volume,
    api,
    build,
    claim_volume,
    cluster_of,
    rejections,
)

EBS = "ebs.csi.aws.com"


def csi_node(name: str, migrated: str = "", **limits: int) -> Object:
    drivers = [
        {"name": driver.replace("_", "."), "allocatable": {"count": count}}
        for driver, count in limits.items()
    ]
    annotations = {"storage.alpha.kubernetes.io/migrated-plugins": migrated}
    return api("CSINode", name, annotations=annotations, spec={"drivers": drivers})


def volume(name: str, driver: str = EBS, handle: str = "") -> Object:
    return a_volume(name, csi={"driver": driver, "volumeHandle": handle or name})


def claims(*names: str) -> list[Object]:
    """Claims, each bound to its own volume."""
    return [item for n in names for item in (a_claim(n, bound_to=f"pv-{n}"), volume(f"pv-{n}"))]


def refused(objects: list[Object], *mounted: dict[str, Any]) -> dict[str, Status] | Status:
    cluster = cluster_of(*objects)
    plugin = build(NodeVolumeLimits, cluster)
    return rejections(plugin, PodInfo(a_pod("p", *mounted)), cluster.nodes)


def full_node(*more: Object, limit: int = 1) -> list[Object]:
    """Node n allows ``limit`` EBS volumes; a pod there uses the claim ``held``."""
    held = a_pod("other", claim_volume("held"), node="n")
    return [a_node("n"), csi_node("n", ebs_csi_aws_com=limit), *claims("held", "c"), held, *more]


def test_volume_beyond_limit_is_rejected() -> None:
    assert refused(full_node(), claim_volume("c")) == {"n": TOO_MANY}
    assert refused(full_node(limit=2), claim_volume("c")) == {}


def test_volume_counts_once_per_node() -> None:
    assert refused(full_node(), claim_volume("held")) == {}
    twin = [a_claim("twin", bound_to="twin"), volume("twin", handle="pv-held")]
    assert refused(full_node(*twin), claim_volume("twin")) == {}


def test_nodes_and_drivers_without_limit_pass() -> None:
    assert refused([*full_node(), a_node("m")], claim_volume("c")) == {"n": TOO_MANY}
    other = [a_claim("o", bound_to="o"), volume("o", driver="other.example.com")]
    assert refused(full_node(*other), claim_volume("o")) == {}


def test_attached_volumes_count_without_a_pod() -> None:
    source = {"persistentVolumeName": "pv-left"}
    spec = {"attacher": EBS, "nodeName": "n", "source": source}
    left = [volume("pv-left"), api("VolumeAttachment", "a", spec=spec)]
    assert refused(full_node(limit=2), claim_volume("c")) == {}
    assert refused(full_node(*left, limit=2), claim_volume("c")) == {"n": TOO_MANY}


def test_unbound_claims_count_for_their_provisioner() -> None:
    made_by = api("StorageClass", "late", provisioner=EBS)
    in_tree = api("StorageClass", "old", provisioner="kubernetes.io/aws-ebs")
    to_come = [a_claim("new", storageClassName="late"), a_claim("old", storageClassName="old")]
    objects = full_node(made_by, in_tree, *to_come)
    assert refused(objects, claim_volume("new")) == {"n": TOO_MANY}
    assert refused(objects, claim_volume("old")) == {"n": TOO_MANY}
    assert refused([*objects, a_claim("classless")], claim_volume("classless")) == {}


def test_in_tree_volumes_count_as_their_csi_driver() -> None:
    named: dict[str, Any] = {"awsElasticBlockStore": {"volumeID": "vol-1"}}
    assert refused(full_node(), named) == {"n": TOO_MANY}
    in_tree = [a_claim("t", bound_to="t"), a_volume("t", **named)]
    assert refused(full_node(*in_tree), claim_volume("t")) == {"n": TOO_MANY}
    held = a_volume("pv-held", awsElasticBlockStore={"volumeID": "aws://zone/vol-1"})
    assert refused(full_node(held), named) == {}
    assert refused(full_node(), {"azureFile": {"shareName": "s"}}) == {}


def test_portworx_counts_on_nodes_that_list_it() -> None:
    objects = [
        a_node("n"), csi_node("n", pxd_portworx_com=0),
        a_node("m"), csi_node("m", "kubernetes.io/portworx-volume", pxd_portworx_com=0),
    ]  # fmt: skip
    assert refused(objects, {"portworxVolume": {"volumeID": "x"}}) == {"m": TOO_MANY}


def test_missing_claims_are_reported() -> None:
    missing = 'looking up PVC d/gone: persistentvolumeclaim "gone" not found'
    assert refused(full_node(), claim_volume("gone")) == {"n": Status.unresolvable(missing)}
    orphan = a_pod("orphan", claim_volume("gone"), node="n")
    assert refused(full_node(orphan), claim_volume("c")) == {"n": TOO_MANY}
    alien = refused(full_node(api("PersistentVolumeClaim", "p-v0", "d")), {"ephemeral": {}})
    assert isinstance(alien, dict)
    assert alien["n"].code is Code.ERROR
    assert "pod is not owner" in alien["n"].message


def test_pods_without_attachable_volumes_are_skipped() -> None:
    answer = refused(full_node(), {"emptyDir": {}}, {"iscsi": {"iqn": "i"}})
    assert isinstance(answer, Status)
    assert answer.is_skip
