"""Objects above a limit are reduced or rejected; others are kept as they are."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from asched.model import limits
from asched.model.meta import Object
from asched.model.node import Node
from asched.model.pod import Pod
from asched.model.requests import host_ports, pod_requests
from asched.model.resources import DeclaredAnnotations, DecodeError, Resource, decode
from tests.security.hostile_objects import (
    ALLOWED_CLASSES,
    OTHER_CLASSES,
    POD_CLASSES,
    SMALL,
    HostileClass,
    a_pod,
)

CLASSES = pytest.mark.parametrize("hostile", POD_CLASSES, ids=lambda c: c.name)
OTHERS = pytest.mark.parametrize("hostile", OTHER_CLASSES, ids=lambda c: c.name)


def kept(resource: Resource, made: dict[str, Any]) -> Object:
    return decode(resource, json.dumps(made).encode())


def kept_pod(made: dict[str, Any]) -> Pod:
    pod = kept(Resource.PODS, made)
    assert isinstance(pod, Pod)
    return pod


@CLASSES
def test_large_pod_becomes_a_stub(hostile: HostileClass) -> None:
    raw = hostile.raw(1)
    pod = decode(hostile.resource, raw)
    assert isinstance(pod, Pod)
    assert ", at most " in pod.spec.oversized
    assert len(msgspec.json.encode(pod)) < 32 * limits.KIB
    assert pod.key == f"evil/{msgspec.json.decode(raw)['metadata']['name']}"


@CLASSES
def test_small_pod_is_kept(hostile: HostileClass) -> None:
    pod = decode(hostile.resource, hostile.raw(1, SMALL))
    assert isinstance(pod, Pod)
    assert not pod.spec.oversized


@pytest.mark.parametrize("hostile", ALLOWED_CLASSES, ids=lambda c: c.name)
def test_pod_at_its_limit_is_kept(hostile: HostileClass) -> None:
    pod = decode(hostile.resource, hostile.raw(1))
    assert isinstance(pod, Pod)
    assert not pod.spec.oversized


@OTHERS
def test_large_object_of_another_kind_is_not_kept(hostile: HostileClass) -> None:
    with pytest.raises(DecodeError, match=r"is too large: [\d,]+ KiB of fields.*at most 32 KiB"):
        decode(hostile.resource, hostile.raw(1))
    assert decode(hostile.resource, hostile.raw(1, SMALL))


def test_stub_counts_on_its_node() -> None:
    made = a_pod(
        "bound", 1, nodeName="n1", priority=7, tolerations=[{"key": f"{i}"} for i in range(300)]
    )
    made["spec"]["overhead"] = {"cpu": "50m"}
    made["spec"]["containers"][0]["ports"] = [{"containerPort": 80, "hostPort": 8080}]
    made["metadata"]["labels"] = {"app": "web"}
    made["status"] = {"phase": "Running"}
    pod = kept_pod(made)
    assert pod.spec.oversized == "300 tolerations, at most 256"
    assert pod_requests(pod) == {"cpu": 150, "memory": 64 << 20}
    assert [port.host_port for port in host_ports(pod)] == [8080]
    assert (pod.node_name, pod.spec.priority, pod.status.phase) == ("n1", 7, "Running")
    assert pod.labels == {"app": "web"}


def test_stub_counts_native_resources_first() -> None:
    requests = {f"a{i}.io/r": "3" for i in range(1000)} | {"cpu": "1", "memory": "1Gi"}
    made = a_pod("many", 1, containers=[{"name": "c", "resources": {"requests": requests}}])
    found = pod_requests(kept_pod(made))
    assert (found["cpu"], found["memory"], len(found)) == (1000, 1 << 30, limits.MAX_RESOURCE_NAMES)


def test_patches_of_large_labels_are_equal() -> None:
    hostile = next(c for c in POD_CLASSES if c.name == "labels")
    first = json.loads(hostile.raw(1))
    second = json.loads(hostile.raw(1))
    second["metadata"]["labels"] = dict.fromkeys(first["metadata"]["labels"], "y" * 60)
    assert kept_pod(first) == kept_pod(second)


def test_large_declared_annotation() -> None:
    declared = DeclaredAnnotations(["example.com/a"])
    raw = json.dumps(
        a_pod("annotated", 1, meta={"annotations": {"example.com/a": "v" * 200_000}})
    ).encode()
    pod = decode(Resource.PODS, raw)
    assert isinstance(pod, Pod)
    stub = declared.add_to(pod, raw)
    assert stub.spec.oversized.startswith("196 KiB of annotations that plugins read, at most 16")
    assert not stub.metadata.declared_annotations
    assert declared.add_to(stub, raw) is stub


def test_large_node_keeps_counting() -> None:
    images = [{"names": [f"{i}" + "n" * 1000], "sizeBytes": 1} for i in range(500)]
    made: dict[str, Any] = {
        "metadata": {"name": "n", "uid": "u", "labels": {"a": "b"}},
        "status": {"allocatable": {"cpu": "4"}, "images": images},
    }
    node = kept(Resource.NODES, made)
    assert isinstance(node, Node)
    assert (node.labels, node.status.images, node.spec.unschedulable) == ({"a": "b"}, (), False)
    made["metadata"]["labels"] = {f"l{i}": "v" * 60 for i in range(5000)}
    node = kept(Resource.NODES, made)
    assert isinstance(node, Node)
    assert node.spec.unschedulable
    assert node.status.allocatable == {"cpu": "4"}
    assert len(msgspec.json.encode(node)) < limits.KIB
