"""Decoding of API objects."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from asched.model.node import Node
from asched.model.pod import Pod
from asched.model.resources import DecodeError, Resource, decode

SECRET = "hunter2"

POD: dict[str, Any] = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {
        "name": "p",
        "namespace": "d",
        "uid": "u",
        "labels": {"app": "web"},
        "annotations": {"secret": SECRET, "scheduling.k8s.io/group-name": "gang"},
        "managedFields": [{"manager": SECRET}],
    },
    "spec": {
        "serviceAccountName": SECRET,
        "containers": [
            {
                "name": "c",
                "image": "nginx",
                "command": [SECRET],
                "args": [SECRET],
                "env": [{"name": "PASSWORD", "value": SECRET}],
                "envFrom": [{"secretRef": {"name": SECRET}}],
                "resources": {"requests": {"cpu": "100m"}, "limits": {"cpu": 1}},
                "ports": [{"containerPort": 80, "hostPort": 80, "hostIP": "10.0.0.1"}],
            }
        ],
        "volumes": [
            {"name": "s", "secret": {"secretName": SECRET}},
            {"name": "i", "image": {"reference": "model:v1", "pullPolicy": "Always"}},
        ],
    },
    "status": {"phase": "Pending", "message": SECRET},
}


def decoded(resource: Resource, raw: Any) -> Any:
    return decode(resource, json.dumps(raw).encode())


def test_unknown_fields_are_dropped() -> None:
    pod = decoded(Resource.PODS, POD)
    assert isinstance(pod, Pod)
    assert SECRET not in repr(pod)
    assert SECRET not in msgspec.json.encode(pod).decode()
    assert pod.metadata.annotations.group_name == "gang"
    assert pod.spec.containers[0].resources.requests == {"cpu": "100m"}
    assert pod.spec.containers[0].ports[0].host_ip == "10.0.0.1"
    assert pod.spec.volumes[0].image is not None
    assert pod.spec.volumes[0].image.reference == "model:v1"


def test_encode_decode_round_trip() -> None:
    pod = decoded(Resource.PODS, POD)
    assert decode(Resource.PODS, msgspec.json.encode(pod)) == pod


def test_null_means_absent() -> None:
    raw = {
        "metadata": {"name": "p", "labels": None, "annotations": None, "ownerReferences": None},
        "spec": {
            "containers": [{"name": "c", "resources": {"requests": None}, "ports": None}],
            "tolerations": None,
            "affinity": None,
            "nodeSelector": None,
        },
        "status": None,
    }
    pod = decoded(Resource.PODS, raw)
    assert pod == decoded(
        Resource.PODS, {"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c"}]}}
    )
    node = decoded(Resource.NODES, {"metadata": {"name": "n"}, "spec": {"taints": None}})
    assert isinstance(node, Node)
    assert node.spec.taints == ()


def test_empty_node_selector_differs_from_missing() -> None:
    """NodeAffinity is skipped only for pods without a selector."""
    assert decoded(Resource.PODS, {"metadata": {"name": "p"}}).spec.node_selector is None
    empty = decoded(Resource.PODS, {"metadata": {"name": "p"}, "spec": {"nodeSelector": {}}})
    assert empty.spec.node_selector == {}


@pytest.mark.parametrize(
    ("resource", "raw", "complaint"),
    [
        (Resource.PODS, {}, "without metadata.name"),
        (Resource.PODS, {"metadata": {"name": ""}}, "without metadata.name"),
        (Resource.PODS, [], "array"),
        (Resource.PODS, {"metadata": {"name": 5}}, "metadata.name"),
        (Resource.PODS, {"metadata": {"name": "p"}, "spec": {"priority": "high"}}, "priority"),
        (Resource.PODS, {"metadata": {"name": "p"}, "spec": {"containers": {}}}, "containers"),
        (
            Resource.PODS,
            {"metadata": {"name": "p", "namespace": "d"}, "spec": {
                "containers": [{}, {"resources": {"requests": {"cpu": "lots"}}}]}},
            r"d/p: spec.containers\[1\].resources.requests.cpu: 'lots' is not a quantity",
        ),
        (
            Resource.PODS,
            {"metadata": {"name": "p"}, "spec": {
                "initContainers": [{"resources": {"requests": {"memory": "9" * 5000}}}]}},
            r"spec.initContainers\[0\].resources.requests.memory",
        ),
        (
            Resource.PODS,
            {"metadata": {"name": "p"}, "spec": {"resources": {"requests": {"cpu": "1Q"}}}},
            "spec.resources.requests.cpu",
        ),
        (
            Resource.PODS,
            {"metadata": {"name": "p"}, "spec": {"overhead": {"cpu": "-"}}},
            "spec.overhead.cpu",
        ),
        (
            Resource.PODS,
            {"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c"}]}, "status": {
                "containerStatuses": [{"name": "c", "resources": {"requests": {"cpu": "?"}}}]}},
            r"status.containerStatuses\[0\].resources.requests.cpu",
        ),
        (
            Resource.PODS,
            {"metadata": {"name": "p"}, "status": {
                "initContainerStatuses": [{"name": "c", "allocatedResources": {"cpu": "?"}}]}},
            r"status.initContainerStatuses\[0\].allocatedResources.cpu",
        ),
        (
            Resource.NODES,
            {"metadata": {"name": "n"}, "status": {"allocatable": {"pods": "many"}}},
            "n: status.allocatable.pods",
        ),
    ],
)  # fmt: skip
def test_invalid_object_error_names_field(resource: Resource, raw: Any, complaint: str) -> None:
    with pytest.raises(DecodeError, match=complaint):
        decoded(resource, raw)


@pytest.mark.parametrize("raw", [b"", b"{", b'{"metadata":', b"\xff\xfe", b"[" * 100_000])
def test_malformed_json_is_rejected(raw: bytes) -> None:
    for resource in Resource:
        with pytest.raises(DecodeError, match="does not decode"):
            decode(resource, raw)


def test_extreme_numbers_are_decoded_or_rejected() -> None:
    for number in ("1e400", "9" * 5000):
        raw = b'{"metadata":{"name":"n"},"status":{"allocatable":{"cpu":%s}}}' % number.encode()
        with pytest.raises(DecodeError):
            decode(Resource.NODES, raw)
    big = {"metadata": {"name": "n"}, "status": {"allocatable": {"memory": 10**30}}}
    assert decoded(Resource.NODES, big).status.allocatable == {"memory": 10**30}


@pytest.mark.parametrize("resource", list(Resource))
def test_longest_names_decode(resource: Resource) -> None:
    name = "x" * 253
    found = decoded(resource, {"metadata": {"name": name, "namespace": name}})
    assert found.key == f"{name}/{name}"


def test_irrelevant_volumes_are_dropped() -> None:
    """Admission adds a token volume with a random name to each pod."""

    def copy(number: int, *volumes: dict[str, Any]) -> Pod:
        token = {"serviceAccountToken": {"path": "token", "expirationSeconds": 3607}}
        admitted = {"name": f"kube-api-access-{number:05}", "projected": {"sources": [token]}}
        raw = {
            "metadata": {"name": "p"},
            "spec": {"volumes": [{"name": "cache", "emptyDir": {}}, *volumes, admitted]},
        }
        decoded = decode(Resource.PODS, msgspec.json.encode(raw))
        assert isinstance(decoded, Pod)
        return decoded

    assert copy(1) == copy(2)
    assert copy(1).spec.volumes == ()
    claim = {"name": "data", "persistentVolumeClaim": {"claimName": "c"}}
    scratch = {"name": "scratch", "ephemeral": {"volumeClaimTemplate": {"spec": {}}}}
    kept = copy(1, claim, scratch)
    assert [volume.name for volume in kept.spec.volumes] == ["data", "scratch"]
    assert kept == copy(2, claim, scratch)
