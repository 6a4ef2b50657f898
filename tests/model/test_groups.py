"""PodGroups, Queues and Workloads of several API groups."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from asched.journal.codec import CODEC
from asched.model.groups import (
    CUSTOM_POD_GROUPS,
    CUSTOM_QUEUES,
    CustomPodGroup,
    CustomPodGroupCondition,
    CustomQueue,
    PodGroup,
    VolcanoPodGroup,
    Workload,
)
from asched.model.pod import Pod
from asched.model.resources import (
    KINDS,
    DecodeError,
    GroupResource,
    Resource,
    decode,
    in_order_of_listing,
)
from asched.state.cluster import ClusterState
from asched.state.fold import Fold
from asched.state.observe import observe_object
from asched.state.records import AnyRecord, ObjectDeleted, ObjectObserved
from tests.state.profiles import loader

CUSTOM = [resource for resource in GroupResource if resource.value.group != "scheduling.k8s.io"]
GROUP: dict[str, Any] = {
    "kind": "PodGroup",
    "apiVersion": "scheduling.volcano.sh/v1beta1",
    "metadata": {
        "name": "train",
        "namespace": "ml",
        "uid": "u",
        "annotations": {"example.com/token": "s3cr3t"},
    },
    "spec": {
        "minMember": 3,
        "queue": "gold",
        "priorityClassName": "high",
        "minResources": {"cpu": "6"},
        "somebody": {"elses": "field"},
    },
    "status": {
        "phase": "Pending",
        "running": 1,
        "conditions": [
            {
                "type": "Unschedulable",
                "status": "True",
                "transitionID": "a-uuid",
                "lastTransitionTime": "2026-01-31T12:00:00Z",
                "reason": "NotEnoughResources",
                "message": "1/3 tasks in gang unschedulable",
            }
        ],
    },
}


def decoded(resource: GroupResource | Resource, value: dict[str, Any]) -> Any:
    return decode(resource, json.dumps(value).encode())


@pytest.mark.parametrize(
    "resource", [resource for resource in CUSTOM if resource.kind == "PodGroup"]
)
def test_custom_pod_groups_decode_to_their_types(
    resource: GroupResource,
) -> None:
    group = decoded(resource, GROUP)
    assert type(group) is resource.type
    assert type(group) in CUSTOM_POD_GROUPS
    assert isinstance(group, CustomPodGroup)
    assert group.key == "ml/train"
    assert (group.spec.min_member, group.spec.queue) == (3, "gold")
    assert group.spec.min_resources == {"cpu": "6"}
    assert group.status.conditions == (
        CustomPodGroupCondition(
            type="Unschedulable",
            status="True",
            reason="NotEnoughResources",
            message="1/3 tasks in gang unschedulable",
        ),
    )


def test_queues_have_weight_and_capability() -> None:
    for resource in CUSTOM:
        if resource.kind != "Queue":
            continue
        value = {
            "kind": "Queue",
            "metadata": {"name": "gold"},
            "spec": {"weight": 3, "capability": {"cpu": "10", "nvidia.com/gpu": 4}},
        }
        queue = decoded(resource, value)
        assert type(queue) in CUSTOM_QUEUES
        assert isinstance(queue, CustomQueue)
        assert queue.spec.weight == 3
        assert queue.spec.capability == {"cpu": "10", "nvidia.com/gpu": 4}


def test_nulls_and_absent_fields_have_defaults() -> None:
    bare = {"metadata": {"name": "g", "namespace": "n"}, "spec": {"minResources": None}}
    group = decoded(GroupResource.VOLCANO_POD_GROUPS, bare)
    assert group == VolcanoPodGroup(metadata=group.metadata)


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        ({"minResources": {"cpu": "much"}}, "spec.minResources.cpu"),
        ({"minMember": "x"}, "minMember"),
    ],
)
def test_invalid_pod_group_error_names_field(spec: dict[str, Any], field: str) -> None:
    value = {"metadata": {"name": "g", "namespace": "n"}, "spec": spec}
    with pytest.raises(DecodeError, match=field):
        decoded(GroupResource.SIGS_POD_GROUPS, value)


def test_equal_names_in_two_api_groups_are_two_objects() -> None:
    fold = Fold(ClusterState(), loader())
    state = fold.state
    records: list[AnyRecord] = []
    for resource in (GroupResource.INCUBATOR_POD_GROUPS, GroupResource.VOLCANO_POD_GROUPS):
        news = observe_object(state, decoded(resource, GROUP))
        assert isinstance(news, ObjectObserved)
        fold.apply(news)
        records.append(news)
        assert observe_object(state, decoded(resource, GROUP)) is None
    stored = [CODEC.encode(record) for record in records]
    assert [row.subject for row in stored] == [
        "incubatorpodgroup/ml/train",
        "volcanopodgroup/ml/train",
    ]
    back = [CODEC.decode(1, row.kind, row.version, row.subject, row.payload) for row in stored]
    assert back == records
    fold.apply(ObjectDeleted("IncubatorPodGroup", "ml/train", "u"))
    assert not state.objects(KINDS["IncubatorPodGroup"])
    assert [*state.objects(VolcanoPodGroup)] == ["ml/train"]


def test_only_known_annotations_are_kept() -> None:
    group = decoded(GroupResource.VOLCANO_POD_GROUPS, GROUP)
    pod = decoded(
        Resource.PODS,
        {
            "metadata": {
                "name": "p",
                "namespace": "ml",
                "annotations": {
                    "scheduling.k8s.io/group-name": "train",
                    "scheduling.k8s.io/group-min-member": "3",
                    "example.com/token": "s3cr3t",
                },
            }
        },
    )
    assert isinstance(pod, Pod)
    assert pod.metadata.annotations.group_name == "train"
    assert pod.metadata.annotations.group_min_member == "3"
    payloads = [CODEC.encode(ObjectObserved(thing)).payload for thing in (group, pod)]
    assert not any("s3cr3t" in payload for payload in payloads)


def test_pods_are_listed_last() -> None:
    order = in_order_of_listing(frozenset(GroupResource))
    assert order[-1] is Resource.PODS
    assert set(order) == {*Resource, *GroupResource}
    assert in_order_of_listing(frozenset()) == tuple(Resource)


@pytest.mark.shared
def test_recorded_native_pod_groups_decode(shared_dir: Path) -> None:
    exchanges = json.loads((shared_dir / "apiserver-1.36" / "podgroup-exchanges.json").read_text())
    bodies = {exchange["name"]: exchange["response"]["body"] for exchange in exchanges}
    workload = decoded(GroupResource.WORKLOADS, bodies["create-workload"])
    assert isinstance(workload, Workload)
    template = workload.spec.pod_group_templates[0]
    assert template.name == "workers"
    assert template.scheduling_policy.gang is not None
    short = decoded(GroupResource.POD_GROUPS, bodies["gang-short-podgroup-status"])
    assert isinstance(short, PodGroup)
    assert short.min_count == 3
    (condition,) = short.status.conditions
    assert (condition.type, condition.status) == ("PodGroupScheduled", "False")
    pod = decoded(Resource.PODS, bodies["create-pod-0"])
    assert isinstance(pod, Pod)
    assert pod.spec.scheduling_group is not None
    assert pod.spec.scheduling_group.pod_group_name == "pg"
