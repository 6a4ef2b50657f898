"""VolumeRestrictions: disk conflicts and ReadWriteOncePod claims."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from asched.framework.cycle_state import CycleState
from asched.framework.pod_info import PodInfo
from asched.framework.status import Status
from asched.plugins.volume_restrictions import CLAIM_IN_USE, DISK_TAKEN, VolumeRestrictions
from tests.plugins.volume_clusters import (
    a_claim,
    a_node,
    a_pod,
    api,
    build,
    claim_volume,
    cluster_of,
    rejections,
)


def gce(name: str = "d", *, read_only: bool = False) -> dict[str, Any]:
    return {"gcePersistentDisk": {"pdName": name, "readOnly": read_only}}


def ebs(name: str = "d", *, read_only: bool = False) -> dict[str, Any]:
    return {"awsElasticBlockStore": {"volumeID": name, "readOnly": read_only}}


def iscsi(name: str = "d", *, read_only: bool = False) -> dict[str, Any]:
    return {"iscsi": {"iqn": name, "readOnly": read_only}}


def rbd(*monitors: str, read_only: bool = False, **place: str) -> dict[str, Any]:
    return {"rbd": {"monitors": monitors, "image": "i", "readOnly": read_only, **place}}


@pytest.mark.parametrize(
    ("wanted", "held", "conflict"),
    [
        (gce(), gce(), True),
        (gce(read_only=True), gce(), True),
        (gce(read_only=True), gce(read_only=True), False),
        (gce("a"), gce("b"), False),
        (ebs(), ebs(), True),
        (ebs(read_only=True), ebs(read_only=True), True),
        (ebs("a"), ebs("b"), False),
        (iscsi(), iscsi(), True),
        (iscsi(read_only=True), iscsi(read_only=True), False),
        (iscsi("a"), iscsi("b"), False),
        (rbd("a", "b"), rbd("b", "c"), True),
        (rbd("a"), rbd("b"), False),
        (rbd("a", read_only=True), rbd("a", read_only=True), False),
        (rbd("a", pool="p"), rbd("a"), False),
        (rbd("a", pool="rbd"), rbd("a"), True),
        (gce(), ebs(), False),
    ],
)
def test_disk_conflicts(wanted: dict[str, Any], held: dict[str, Any], conflict: bool) -> None:
    cluster = cluster_of(a_node("n"), a_node("m"), a_pod("other", {}, held, node="n"))
    plugin, pod = build(VolumeRestrictions, cluster), PodInfo(a_pod("p", wanted))
    expected = {"n": DISK_TAKEN} if conflict else {}
    assert rejections(plugin, pod, cluster.nodes) == expected
    tried = cluster.nodes.take(np.array([1, 0], np.intp))
    assert rejections(plugin, pod, tried) == expected


def test_disk_is_free_after_its_pod_is_removed() -> None:
    other = a_pod("other", gce(), node="n")
    cluster = cluster_of(a_node("n"), other)
    nodes = cluster.nodes.take(np.array([0], np.intp))
    (held,) = nodes.pods(0)
    nodes.remove_pod(0, held)
    plugin = build(VolumeRestrictions, cluster)
    assert rejections(plugin, PodInfo(a_pod("p", gce())), nodes) == {}


def single_pod_claim(name: str) -> Any:
    return a_claim(name, accessModes=["ReadWriteOncePod"], bound_to="v")


def test_read_write_once_pod_claim_in_use_rejects_every_node() -> None:
    cluster = cluster_of(
        a_node("n"), a_node("m"), single_pod_claim("one"), a_claim("shared", bound_to="v"),
        a_pod("other", claim_volume("one"), claim_volume("shared"), node="n"),
    )  # fmt: skip
    plugin = build(VolumeRestrictions, cluster)
    pod = PodInfo(a_pod("p", claim_volume("one")))
    assert rejections(plugin, pod, cluster.nodes) == {"n": CLAIM_IN_USE, "m": CLAIM_IN_USE}
    answer = rejections(plugin, PodInfo(a_pod("p", claim_volume("shared"))), cluster.nodes)
    assert isinstance(answer, Status)
    assert answer.is_skip


def test_read_write_once_pod_claim_is_free_after_its_pods_are_removed() -> None:
    other = a_pod("other", claim_volume("one"), node="n")
    cluster = cluster_of(a_node("n"), single_pod_claim("one"), other)
    plugin, state = build(VolumeRestrictions, cluster), CycleState()
    pod, node = PodInfo(a_pod("p", claim_volume("one"))), cluster.nodes.info(0)
    assert plugin.pre_filter(state, pod, cluster.nodes).status.is_success
    tried = state.clone()
    assert plugin.remove_pod(tried, pod, PodInfo(other), node).is_success
    assert plugin.filter_all(tried, pod, cluster.nodes).status(0) is None
    assert plugin.add_pod(tried, pod, PodInfo(other), node).is_success
    elsewhere = api("Pod", "other", "another-namespace", spec={"volumes": []})
    assert plugin.remove_pod(tried, pod, PodInfo(elsewhere), node).is_success  # type: ignore[arg-type]
    assert plugin.filter_all(tried, pod, cluster.nodes).status(0) == CLAIM_IN_USE
    assert plugin.filter_all(state, pod, cluster.nodes).status(0) == CLAIM_IN_USE


def test_missing_claim_rejects_the_pod() -> None:
    cluster = cluster_of(a_node("n"))
    answer = rejections(
        build(VolumeRestrictions, cluster), PodInfo(a_pod("p", claim_volume("c"))), cluster.nodes
    )
    assert answer == Status.unresolvable('persistentvolumeclaim "c" not found')
