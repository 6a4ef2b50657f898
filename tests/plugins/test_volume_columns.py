"""The columnar volume plugins equal the reference per node, on random clusters."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from asched.framework.cycle_state import CycleState
from asched.framework.interface import FilterAllPlugin
from asched.framework.pod_info import PodInfo
from asched.framework.status import Status
from asched.model.meta import Object
from asched.model.node import Node
from asched.model.pod import Pod
from asched.model.storage import (
    CSIDriver,
    CSINode,
    CSIStorageCapacity,
    PersistentVolume,
    PersistentVolumeClaim,
    StorageClass,
    VolumeAttachment,
)
from asched.plugins.node_volume_limits import NodeVolumeLimits
from asched.plugins.volume_binding.assumed import VolumeChoice
from asched.plugins.volume_binding.plugin import VolumeBinding
from asched.plugins.volume_restrictions import VolumeRestrictions
from asched.plugins.volume_zone import VolumeZone
from asched.state.cluster import ClusterState
from asched.state.pod_index import VolumeIndex
from tests.plugins import volume_reference as reference
from tests.plugins.volume_clusters import (
    a_claim,
    a_node,
    a_pod,
    a_volume,
    api,
    build,
    claim_volume,
    cluster_of,
    put,
    rejections,
)

NODES = ("n0", "n1", "n2", "n3")
CLAIMS = ("c0", "c1", "c2", "c3")
VOLUMES = ("v0", "v1", "v2", "v3", "v4")
ZONE, BETA_ZONE = "topology.kubernetes.io/zone", "failure-domain.beta.kubernetes.io/zone"
REGION = "topology.kubernetes.io/region"
EBS = "ebs.csi.aws.com"
SIZES = ("1Gi", "2Gi", "3Gi")
NAME_FIELD = {"gcePersistentDisk": "pdName", "awsElasticBlockStore": "volumeID"}
CLASSES = {
    "static": ("kubernetes.io/no-provisioner", []),
    "made": (EBS, []),
    "zonal": (EBS, [{"matchLabelExpressions": [{"key": ZONE, "values": ["a", "b"]}]}]),
    "pooled": ("pool.example.com", []),
}


def maybe(strategy: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.none() | strategy


zones = st.dictionaries(
    st.sampled_from((ZONE, BETA_ZONE, REGION)), st.sampled_from(("a", "b", "a__b", "a____b"))
)
node_zones = st.dictionaries(
    st.sampled_from((ZONE, BETA_ZONE, REGION)), st.sampled_from(("a", "b"))
)
inline_disks = st.builds(
    lambda kind, name, read_only: {kind: {NAME_FIELD[kind]: name, "readOnly": read_only}},
    st.sampled_from(("gcePersistentDisk", "awsElasticBlockStore")),
    st.sampled_from(("d0", "d1")),
    st.booleans(),
) | st.builds(
    lambda monitors, read_only: {
        "rbd": {"monitors": monitors, "image": "i", "readOnly": read_only}
    },
    st.lists(st.sampled_from(("m0", "m1")), min_size=1, max_size=2),
    st.booleans(),
)
mounts: st.SearchStrategy[list[dict[str, Any]]] = st.lists(
    st.sampled_from(CLAIMS).map(claim_volume) | inline_disks | st.just({"emptyDir": {}}), max_size=3
)


@st.composite
def volumes(draw: st.DrawFn, name: str) -> Object:
    spec: dict[str, Any] = {"storageClassName": draw(st.sampled_from(("static", "static", "made")))}
    if draw(st.booleans()):
        spec["csi"] = {"driver": EBS, "volumeHandle": draw(st.sampled_from(("h0", "h1", name)))}
    holder = draw(st.sampled_from((None, None, None, *CLAIMS)))
    if holder is not None:
        uid = draw(st.sampled_from(("", f"PersistentVolumeClaim-{holder}", "another")))
        spec["claimRef"] = {"namespace": "d", "name": holder, "uid": uid}
    spec["volumeMode"] = draw(st.sampled_from(("Filesystem", "Filesystem", "Block")))
    spec["volumeAttributesClassName"] = draw(st.sampled_from((None, None, "", "gold")))
    spec["accessModes"] = draw(st.sampled_from((["ReadWriteOnce"], ["ReadOnlyMany"])))
    hosts = draw(st.lists(st.sampled_from(NODES), max_size=2, unique=True))
    return a_volume(name, draw(st.sampled_from(SIZES)), on=hosts, labels=draw(zones), **spec)


@st.composite
def claims(draw: st.DrawFn, name: str) -> Object:
    bound_to = draw(st.sampled_from(("", "", "", "", *VOLUMES)))
    annotations = {}
    if not bound_to and draw(st.integers(0, 4)) == 0:
        annotations["volume.kubernetes.io/selected-node"] = draw(st.sampled_from((*NODES, "gone")))
    spec: dict[str, Any] = {"storageClassName": draw(st.sampled_from(("static", *CLASSES)))}
    spec["volumeAttributesClassName"] = draw(st.sampled_from((None, None, "", "gold")))
    if draw(st.integers(0, 9)) == 9:
        spec["selector"] = {"matchLabels": {ZONE: "a"}}
    size = draw(st.sampled_from(SIZES))
    return a_claim(name, size, bound_to=bound_to, annotations=annotations, **spec)


@st.composite
def csi_nodes(draw: st.DrawFn, name: str) -> Object:
    drivers = [
        {"name": driver, "allocatable": {"count": count}}
        for driver, count in draw(
            st.dictionaries(
                st.sampled_from((EBS, "pd.csi.storage.gke.io", "pool.example.com")),
                st.integers(0, 3),
            )
        ).items()
    ]
    return api("CSINode", name, spec={"drivers": drivers})


@st.composite
def objects(draw: st.DrawFn) -> list[Object]:
    """All objects except pods."""
    found: list[Object] = [a_node(name, draw(node_zones)) for name in NODES]
    found += [draw(volumes(name)) for name in VOLUMES if draw(st.integers(0, 3))]
    found += [draw(claims(name)) for name in CLAIMS]
    found += [draw(csi_nodes(name)) for name in NODES if draw(st.integers(0, 3))]
    for name, (provisioner, topologies) in CLASSES.items():
        found.append(
            api(
                "StorageClass",
                name,
                provisioner=provisioner,
                volumeBindingMode="WaitForFirstConsumer",
                allowedTopologies=topologies,
            )
        )
    tracked = draw(st.booleans())
    found.append(api("CSIDriver", "pool.example.com", spec={"storageCapacity": tracked}))
    for number in range(draw(st.integers(0, 2))):
        found.append(
            api(
                "CSIStorageCapacity",
                f"pool-{number}",
                "s",
                storageClassName=draw(st.sampled_from(("pooled", "made"))),
                nodeTopology=draw(maybe(st.sampled_from(({}, {"matchLabels": {ZONE: "a"}})))),
                capacity=draw(maybe(st.sampled_from(SIZES))),
                maximumVolumeSize=draw(maybe(st.sampled_from(SIZES))),
            )
        )
    for number in range(draw(st.integers(0, 2))):
        source = {"persistentVolumeName": draw(st.sampled_from(VOLUMES))}
        spec = {"attacher": EBS, "nodeName": draw(st.sampled_from(NODES)), "source": source}
        found.append(api("VolumeAttachment", f"a{number}", spec=spec))
    return found


pods_on_nodes = st.lists(st.tuples(st.sampled_from(NODES), mounts), max_size=5)


def storage_of(cluster: ClusterState) -> reference.Storage:
    return reference.Storage(
        dict(cluster.objects(PersistentVolume)),
        dict(cluster.objects(PersistentVolumeClaim)),
        dict(cluster.objects(StorageClass)),
        dict(cluster.objects(CSINode)),
        dict(cluster.objects(CSIDriver)),
        [*cluster.objects(CSIStorageCapacity).values()],
        [*cluster.objects(VolumeAttachment).values()],
    )


class Question:
    """A cluster and a pending pod."""

    def __init__(self, found: list[Object], bound: list[Any], mounted: list[Any]) -> None:
        self.others = [
            a_pod(f"p{number}", *volumes, node=node) for number, (node, volumes) in enumerate(bound)
        ]
        self.cluster = cluster_of(*found, *self.others)
        self.storage = storage_of(self.cluster)
        self.pod = PodInfo(a_pod("pending", *mounted))
        self.nodes = {
            name: node
            for name, node in self.cluster.objects(Node).items()
            if isinstance(node, Node)
        }

    def here(self, name: str) -> list[Pod]:
        return [pod for pod in self.others if pod.node_name == name]

    def refused(self, plugin: type[FilterAllPlugin]) -> dict[str, Status] | None:
        """Statuses by node; None if PreFilter rejects the pod. Checks a subset of the nodes,
        too."""
        built = build(plugin, self.cluster)
        answer = rejections(built, self.pod, self.cluster.nodes)
        if isinstance(answer, Status):
            return {} if answer.is_skip else None
        rows = np.array([3, 1], np.intp)
        some = rejections(built, self.pod, self.cluster.nodes.take(rows))
        assert some == {name: answer[name] for name in ("n3", "n1") if name in answer}
        return answer


@given(objects(), mounts)
def test_volume_binding_matches_reference(found: list[Object], mounted: list[Any]) -> None:
    question = Question(found, [], mounted)
    answer = question.refused(VolumeBinding)
    if answer is None:
        return
    plugin = build(VolumeBinding, question.cluster)
    for name, node in question.nodes.items():
        reasons, bindings, to_make = reference.volume_binding(
            question.storage, question.pod.pod, node
        )
        status = answer.get(name)
        assert list(status.reasons if status is not None else ()) == reasons
        if reasons:
            continue
        state = CycleState()
        plugin.pre_filter(state, question.pod, question.cluster.nodes)
        reservation = plugin.reserve(state, question.pod, name).reservation
        choice = (
            VolumeChoice() if reservation is None else VolumeChoice.from_reservation(reservation)
        )
        assert {claim.key: volume for claim, volume in choice.bindings} == bindings
        assert {claim.key for claim in choice.provisions} == to_make


@given(objects(), objects(), mounts)
def test_volume_binding_follows_object_changes(
    found: list[Object], later: list[Object], mounted: list[Any]
) -> None:
    """A plugin with cached objects answers like a new one after changes."""
    cluster = cluster_of(*found)
    plugin, pod = build(VolumeBinding, cluster), PodInfo(a_pod("pending", *mounted))
    rejections(plugin, pod, cluster.nodes)
    for gone in ("v1", "v2"):
        cluster.object_store.remove(PersistentVolume, gone)
    rejections(plugin, pod, cluster.nodes)
    for item in later:
        put(cluster, item)
    fresh = build(VolumeBinding, cluster)
    answer = rejections(plugin, pod, cluster.nodes)
    assert answer == rejections(fresh, pod, cluster.nodes)
    if isinstance(answer, Status):
        return
    state = CycleState()
    plugin.pre_filter(state, pod, cluster.nodes)
    for name in NODES:
        if name not in answer:
            assert plugin.reserve(state, pod, name) == fresh.reserve(state, pod, name)


@given(objects(), mounts)
def test_volume_zone_matches_reference(found: list[Object], mounted: list[Any]) -> None:
    question = Question(found, [], mounted)
    answer = question.refused(VolumeZone)
    if answer is None:
        return
    for name, node in question.nodes.items():
        allowed = reference.in_zone(question.storage, question.pod.pod, node)
        assert (name not in answer) is allowed


@given(objects(), pods_on_nodes, mounts)
def test_volume_restrictions_match_reference(
    found: list[Object], bound: list[Any], mounted: list[Any]
) -> None:
    question = Question(found, bound, mounted)
    answer = question.refused(VolumeRestrictions)
    assert answer is not None
    for name in NODES:
        conflict = reference.disk_conflict(question.pod.pod, question.here(name))
        assert (name in answer) is conflict


@given(objects(), pods_on_nodes, mounts)
def test_node_volume_limits_match_reference(
    found: list[Object], bound: list[Any], mounted: list[Any]
) -> None:
    question = Question(found, bound, mounted)
    answer = question.refused(NodeVolumeLimits)
    assert answer is not None
    for name, node in question.nodes.items():
        pod, here = question.pod.pod, question.here(name)
        assert (name in answer) is reference.too_many_volumes(question.storage, pod, node, here)


@given(objects(), st.lists(st.tuples(st.sampled_from((*NODES, "gone")), mounts), max_size=8))
def test_updated_volume_index_equals_new_index(found: list[Object], coming: list[Any]) -> None:
    cluster = cluster_of(*found)
    table, grown = cluster.nodes, cluster.volumes
    here: list[tuple[str, PodInfo]] = []
    for number, (node, mounted) in enumerate(coming):
        if number == 4:
            put(cluster, a_node("late"))
            table.remove_node("n2")
        here.append((node, PodInfo(a_pod(f"p{number}", *mounted, node=node))))
        table.add_pod(*here[-1])
        if number % 3 == 2:
            table.remove_pod(*here.pop(0))
        fresh = VolumeIndex(table)
        assert grown.pods_with_disks() == fresh.pods_with_disks()
        assert grown.attachable.tolist() == fresh.attachable.tolist()
        for name in CLAIMS:
            assert grown.pods_with_claim(f"d/{name}") == fresh.pods_with_claim(f"d/{name}")
