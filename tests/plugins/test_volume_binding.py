"""VolumeBinding: unusable claims, assumed volumes and arguments."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from asched.framework.cycle_state import CycleState
from asched.framework.nodes import Nodes
from asched.framework.pod_info import PodInfo
from asched.framework.status import Code, Status
from asched.model.meta import Object
from asched.plugins.volume_binding.plugin import MAX_MATCHED_CLAIMS, VolumeBinding
from asched.state.cluster import ClusterState
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

NO_MATCH = "node(s) didn't find available persistent volumes to bind"
NODE_CONFLICT = "node(s) didn't match PersistentVolume's node affinity"


def late_class(name: str = "late", provisioner: str = "kubernetes.io/no-provisioner") -> Object:
    return api(
        "StorageClass", name, provisioner=provisioner, volumeBindingMode="WaitForFirstConsumer"
    )


def late_claim(name: str, size: str = "1Gi", **spec: Any) -> Object:
    return a_claim(name, size, **{"storageClassName": "late", **spec})


def late_volume(name: str, size: str = "1Gi", **spec: Any) -> Object:
    return a_volume(name, size, **{"storageClassName": "late", **spec})


def pod_with(*claims: str, name: str = "p") -> PodInfo:
    return PodInfo(a_pod(name, *map(claim_volume, claims)))


class Scheduler:
    """Runs the plugin through a cycle as the framework does."""

    def __init__(self, *objects: Object) -> None:
        self.cluster: ClusterState = cluster_of(*objects)
        self.plugin = build(VolumeBinding, self.cluster)

    def refused(self, pod: PodInfo, nodes: Nodes | None = None) -> dict[str, Status] | Status:
        return rejections(self.plugin, pod, nodes or self.cluster.nodes)

    def reserve(self, pod: PodInfo, node: str) -> dict[str, Any]:
        """Assign the pod. Returns the reservation."""
        state = CycleState()
        assert self.plugin.pre_filter(state, pod, self.cluster.nodes).status.is_success
        result = self.plugin.reserve(state, pod, node)
        assert result.status.is_success
        self.plugin.on_reserved(pod, node, result.reservation)
        return result.reservation or {}

    def volumes_for(self, pod: PodInfo, node: str) -> dict[str, str]:
        reservation = self.reserve(pod, node)
        return {binding["claim"][1]: binding["volume"] for binding in reservation["bindings"]}


# -- unusable claims ------------------------------------------------------------------------


def owned_claim(owner_uid: str) -> Object:
    owner = {"kind": "Pod", "name": "p", "uid": owner_uid, "controller": True}
    return api(
        "PersistentVolumeClaim", "p-v0", "d", ownerReferences=[owner],
        spec={"storageClassName": "late"},
    )  # fmt: skip


@pytest.mark.parametrize(
    ("claim", "reason"),
    [
        (None, 'persistentvolumeclaim "c" not found'),
        (
            a_claim("c", bound_to="gone", status={"phase": "Lost"}),
            'persistentvolumeclaim "c" bound to non-existent persistentvolume "gone"',
        ),
        (
            api("PersistentVolumeClaim", "c", "d", deletionTimestamp="2026-01-01T00:00:00Z"),
            'persistentvolumeclaim "c" is being deleted',
        ),
        (a_claim("c"), "pod has unbound immediate PersistentVolumeClaims"),
        (
            a_claim("c", storageClassName="no-such-class"),
            "pod has unbound immediate PersistentVolumeClaims",
        ),
        (
            late_claim("c", volumeName="pv-not-bound-yet"),
            "pod has unbound immediate PersistentVolumeClaims",
        ),
    ],
)
def test_unusable_claim_rejects_the_pod(claim: Object | None, reason: str) -> None:
    scheduler = Scheduler(a_node("n"), late_class(), *([claim] if claim else []))
    assert scheduler.refused(pod_with("c")) == Status.unresolvable(reason)


def ephemeral_pod() -> PodInfo:
    return PodInfo(a_pod("p", {"ephemeral": {}}))


def test_ephemeral_claim_must_exist_and_belong_to_the_pod() -> None:
    pod = ephemeral_pod()
    waiting = "waiting for ephemeral volume controller to create the persistentvolumeclaim"
    scheduler = Scheduler(a_node("n"), late_class("late", "d.example.com"))
    assert scheduler.refused(pod) == Status.unresolvable(f'{waiting} "p-v0"')
    put(scheduler.cluster, owned_claim("another"))
    alien = "PVC d/p-v0 was not created for pod d/p (pod is not owner)"
    assert scheduler.refused(pod) == Status.unresolvable(alien)
    put(scheduler.cluster, owned_claim(pod.uid))
    assert scheduler.refused(pod) == {}
    assert scheduler.reserve(pod, "n")["provisions"] == [
        ["d", "p-v0", "PersistentVolumeClaim-p-v0"]
    ]


def test_pod_without_claims_is_skipped() -> None:
    scheduler = Scheduler(a_node("n"))
    pod = PodInfo(a_pod("p", {"emptyDir": {}}))
    answer = scheduler.refused(pod)
    assert isinstance(answer, Status)
    assert answer.is_skip
    assert scheduler.plugin.reserve(CycleState(), pod, "n").reservation is None
    assert scheduler.plugin.pre_score(CycleState(), pod, scheduler.cluster.nodes).is_skip


def test_bound_claim_without_volume_rejects_nodes() -> None:
    scheduler = Scheduler(a_node("n"), a_claim("c", bound_to="gone"))
    gone = "node(s) unavailable due to one or more pvc(s) bound to non-existent pv(s)"
    assert scheduler.refused(pod_with("c")) == {"n": Status.unresolvable(gone)}


# -- what is chosen -------------------------------------------------------------------------------


def test_smallest_fitting_volume_is_used_once() -> None:
    scheduler = Scheduler(
        a_node("n"),
        late_class(),
        *(late_volume(f"pv-{size}", f"{size}Gi") for size in (8, 3, 5)),
        late_claim("large", "2Gi"),
        late_claim("small", "1Gi"),
        late_claim("huge", "4Gi"),
    )
    assert scheduler.volumes_for(pod_with("large", "small"), "n") == {
        "small": "pv-3",
        "large": "pv-5",
    }
    assert scheduler.volumes_for(pod_with("huge", name="q"), "n") == {"huge": "pv-8"}


def test_too_many_claims_for_existing_volumes_are_rejected() -> None:
    """The time to choose a volume for each is cubic in their number."""
    names = [f"claim-{number:03}" for number in range(MAX_MATCHED_CLAIMS + 1)]
    scheduler = Scheduler(
        a_node("n"),
        late_class(),
        late_class("made", "csi.example"),
        *(late_volume(f"pv-{number}") for number in range(len(names))),
        *(late_claim(name) for name in names),
        *(late_claim(f"{name}-made", storageClassName="made") for name in names),
    )
    refused = scheduler.refused(pod_with(*names))
    assert isinstance(refused, Status)
    assert refused.message == "too expensive: 65 claims for existing volumes, at most 64"
    assert len(scheduler.volumes_for(pod_with(*names[1:]), "n")) == 64
    assert scheduler.refused(pod_with(*(f"{name}-made" for name in names))) == {}


def test_too_large_selectors_of_claims_are_rejected() -> None:
    values = [f"v{number}" for number in range(500)]
    expression = {"key": "disk", "operator": "NotIn", "values": values}
    scheduler = Scheduler(
        a_node("n"),
        late_class(),
        *(late_volume(f"pv-{number}") for number in range(5000)),
        late_claim("c", selector={"matchExpressions": [expression]}),
    )
    refused = scheduler.refused(pod_with("c"))
    assert isinstance(refused, Status)
    assert refused.message == (
        "too expensive: 2,505,000 tests of volumes with selectors of claims, at most 2,000,000"
    )


def test_volume_needs_capacity_and_every_access_mode() -> None:
    both = ["ReadWriteOnce", "ReadOnlyMany"]
    scheduler = Scheduler(
        a_node("n"), late_class(), late_volume("pv-1", "1Gi", accessModes=both),
        late_volume("pv-2", "2Gi"), late_claim("large", "2Gi"), late_claim("huge", "3Gi"),
        late_claim("shared", accessModes=both), late_claim("large-shared", "2Gi", accessModes=both),
    )  # fmt: skip
    refused = {"n": Status.unresolvable(NO_MATCH)}
    assert scheduler.refused(pod_with("large")) == {}
    assert scheduler.refused(pod_with("huge")) == refused
    assert scheduler.refused(pod_with("large-shared")) == refused
    assert scheduler.volumes_for(pod_with("shared"), "n") == {"shared": "pv-1"}


def test_two_claims_do_not_share_a_network_volume() -> None:
    scheduler = Scheduler(
        a_node("n"), a_node("m"), a_node("o"), late_class(), late_claim("a"), late_claim("b"),
        late_volume("pv-1", on=["n", "m"]), late_volume("pv-2", on=["m", "o"]),
    )  # fmt: skip
    refused = Status.unresolvable(NO_MATCH)
    assert scheduler.refused(pod_with("a", "b")) == {"n": refused, "o": refused}
    assert scheduler.volumes_for(pod_with("a", "b"), "m") == {"a": "pv-1", "b": "pv-2"}


def test_first_claim_that_cannot_be_provisioned_is_reported() -> None:
    tracked = api("CSIDriver", "pool.example.com", spec={"storageCapacity": True})
    scheduler = Scheduler(
        a_node("n"), late_class(), late_class("pooled", "pool.example.com"), tracked,
        a_claim("a", "1Gi", storageClassName="pooled"), late_claim("b", "2Gi"),
        late_claim("c", "512Mi"),
    )  # fmt: skip
    no_space = Status.unresolvable("node(s) did not have enough free storage")
    assert scheduler.refused(pod_with("a", "b")) == {"n": no_space}
    assert scheduler.refused(pod_with("a", "c")) == {"n": Status.unresolvable(NO_MATCH)}


def test_first_failing_bound_claim_is_reported() -> None:
    scheduler = Scheduler(
        a_node("n"), a_node("m"), a_claim("a", bound_to="pv"), a_volume("pv", on=["m"]),
        a_claim("b", bound_to="gone"),
    )  # fmt: skip
    gone = "node(s) unavailable due to one or more pvc(s) bound to non-existent pv(s)"
    assert scheduler.refused(pod_with("a", "b")) == {
        "n": Status.unresolvable(NODE_CONFLICT),
        "m": Status.unresolvable(gone),
    }


def test_assumed_volume_is_not_reused_until_unreserved() -> None:
    scheduler = Scheduler(
        a_node("n"), late_class(), late_volume("pv"), late_claim("a"), late_claim("b")
    )
    first, second = pod_with("a", name="first"), pod_with("b", name="second")
    reservation = scheduler.reserve(first, "n")
    assert scheduler.refused(second) == {"n": Status.unresolvable(NO_MATCH)}
    scheduler.plugin.unreserve(first, "n", reservation)
    assert scheduler.refused(second) == {}


def test_pods_with_the_same_claim_share_the_assumed_volume() -> None:
    scheduler = Scheduler(
        a_node("n"), a_node("m"), late_class(), late_claim("shared"),
        late_volume("pv-1", on=["n"]), late_volume("pv-2", on=["m"]),
    )  # fmt: skip
    first, second = pod_with("shared", name="first"), pod_with("shared", name="second")
    reservation = scheduler.reserve(first, "n")
    assert scheduler.refused(second) == {"m": Status.unresolvable(NO_MATCH)}
    assert scheduler.volumes_for(second, "n") == {"shared": "pv-1"}
    scheduler.plugin.unreserve(first, "n", reservation)
    # The second pod still uses it.
    assert scheduler.refused(pod_with("shared", name="third")) == {
        "m": Status.unresolvable(NO_MATCH)
    }


def test_claim_to_provision_stays_on_its_selected_node() -> None:
    scheduler = Scheduler(
        a_node("n"), a_node("m"), late_class("late", "d.example.com"), late_claim("shared")
    )
    reservation = scheduler.reserve(pod_with("shared", name="first"), "n")
    assert reservation["provisions"] == [["d", "shared", "PersistentVolumeClaim-shared"]]
    assert scheduler.refused(pod_with("shared", name="second")) == {
        "m": Status.unresolvable(NO_MATCH)
    }


def test_objects_replace_assumed_volumes_after_binding() -> None:
    scheduler = Scheduler(
        a_node("n"), late_class(), late_volume("pv"), late_claim("a"), late_claim("b")
    )
    pod = pod_with("a", name="first")
    reservation = scheduler.reserve(pod, "n")
    reference = {"namespace": "d", "name": "a", "uid": "PersistentVolumeClaim-a"}
    put(scheduler.cluster, late_volume("pv", claimRef=reference))
    put(scheduler.cluster, late_claim("a", bound_to="pv"))
    scheduler.plugin.on_bound(pod, "n", reservation)
    other = pod_with("b", name="second")
    assert scheduler.refused(other) == {"n": Status.unresolvable(NO_MATCH)}
    # The volume was released and cleared, so it is no longer assumed.
    put(scheduler.cluster, late_volume("pv"))
    assert scheduler.refused(other) == {}


def test_assumed_volumes_are_rebuilt_from_notes() -> None:
    objects = [a_node("n"), late_class(), late_volume("pv"), late_claim("a"), late_claim("b")]
    live = Scheduler(*objects)
    reservation = live.reserve(pod_with("a", name="first"), "n")
    replayed = Scheduler(*objects)
    replayed.plugin.on_reserved(pod_with("a", name="first"), "n", reservation)
    second = pod_with("b", name="second")
    assert replayed.refused(second) == live.refused(second) != {}


# -- where a bound volume is ----------------------------------------------------------------------


def zonal(name: str, label: str) -> Object:
    expression = {"key": label, "operator": "In", "values": ["a"]}
    affinity = {"required": {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}}
    return a_volume(name, awsElasticBlockStore={"volumeID": "vol-1"}, nodeAffinity=affinity)


def test_migrated_volume_uses_csi_topology() -> None:
    zone, csi_zone = "topology.kubernetes.io/zone", "topology.ebs.csi.aws.com/zone"
    migrated = {"storage.alpha.kubernetes.io/migrated-plugins": "kubernetes.io/aws-ebs,x"}
    scheduler = Scheduler(
        a_node("in-tree", {zone: "a"}),
        a_node("migrated", {csi_zone: "a"}),
        a_node("migrated-elsewhere", {zone: "a", csi_zone: "b"}),
        *(
            api("CSINode", name, annotations=migrated)
            for name in ("migrated", "migrated-elsewhere")
        ),
        a_claim("c", bound_to="pv"),
        zonal("pv", zone),
    )
    conflict = Status.unresolvable(NODE_CONFLICT)
    assert scheduler.refused(pod_with("c")) == {"migrated-elsewhere": conflict}


def test_volume_that_requires_a_node_name_is_inaccessible() -> None:
    field = {"key": "metadata.name", "operator": "In", "values": ["n"]}
    affinity = {"required": {"nodeSelectorTerms": [{"matchFields": [field]}]}}
    scheduler = Scheduler(
        a_node("n"), a_claim("c", bound_to="pv"), a_volume("pv", nodeAffinity=affinity)
    )
    assert scheduler.refused(pod_with("c")) == {"n": Status.unresolvable(NODE_CONFLICT)}


def test_local_volumes_are_found_on_their_nodes() -> None:
    names = [f"n{i}" for i in range(50)]
    scheduler = Scheduler(
        *map(a_node, names),
        late_class(),
        late_claim("a"),
        *(late_volume(f"pv-{name}", on=[name]) for name in names[:40]),
    )
    refused = scheduler.refused(pod_with("a"))
    assert isinstance(refused, dict)
    assert sorted(refused) == sorted(names[40:])
    rows = np.array([7, 45], np.intp)
    some = scheduler.refused(pod_with("a"), scheduler.cluster.nodes.take(rows))
    assert some == {"n45": Status.unresolvable(NO_MATCH)}
    assert scheduler.volumes_for(pod_with("a"), "n7") == {"a": "pv-n7"}


# -- arguments ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ({"bindTimeoutSeconds": -1}, "bindTimeoutSeconds: -1 is negative"),
        ({"shape": [{"utilization": 0, "score": 0}]}, "StorageCapacityScoring is off"),
    ],
)
def test_invalid_arguments_are_rejected(arguments: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        build(VolumeBinding, cluster_of(), **arguments)


@pytest.mark.parametrize(
    ("arguments", "timeout_s"),
    [({}, 600), ({"bindTimeoutSeconds": 5}, 5), ({"bindTimeoutSeconds": None, "shape": None}, 600)],
)
def test_bind_timeout_is_configurable(arguments: dict[str, Any], timeout_s: float) -> None:
    plugin = build(VolumeBinding, cluster_of(), **arguments)
    assert plugin.time_limit_s > timeout_s
    assert plugin.time_limit_s == timeout_s + 600


def test_reserve_on_deleted_node_fails() -> None:
    scheduler = Scheduler(a_node("n"), late_class(), late_volume("pv"), late_claim("a"))
    state, pod = CycleState(), pod_with("a")
    scheduler.plugin.pre_filter(state, pod, scheduler.cluster.nodes)
    assert scheduler.plugin.reserve(state, pod, "gone").status.code is Code.ERROR
