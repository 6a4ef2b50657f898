"""Arbitrary input: the response is a Status, and stored objects stay valid."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from asched.apiserver import protobuf
from asched.apiserver.cluster import EmbeddedCluster
from asched.apiserver.errors import StatusError
from asched.apiserver.handlers import Request, Response, handle
from asched.apiserver.requests import RequestInfo, parse_request
from asched.apiserver.storage import encode
from tests.apiserver.objects import FakeClock, node, pod

JUNK: st.SearchStrategy[Any] = st.sampled_from(
    [None, True, 0, -1, 1.5, 10**30, "", "x", "1e999", [], [None], {}, {"a": []}]
)

FULL_POD = pod(
    "p",
    nodeSelector={"a": "b"},
    tolerations=[{"key": "k", "operator": "Exists"}],
    schedulingGates=[{"name": "g"}],
    affinity={
        "podAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": [
                {
                    "topologyKey": "z",
                    "labelSelector": {"matchLabels": {"a": "b"}},
                    "matchLabelKeys": ["a"],
                }
            ]
        }
    },
    topologySpreadConstraints=[
        {
            "maxSkew": 1,
            "topologyKey": "z",
            "whenUnsatisfiable": "DoNotSchedule",
            "labelSelector": {},
            "matchLabelKeys": ["a"],
        }
    ],
    volumes=[{"name": "v"}],
    initContainers=[{"name": "i", "image": "x", "ports": [{"containerPort": 1}]}],
)
FULL_NODE = node("n", a="b") | {"spec": {"taints": [{"key": "k", "effect": "NoSchedule"}]}}


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The path of every part of a JSON value."""
    found = [path] if path else []
    if isinstance(value, dict):
        for key, below in value.items():
            found += places(below, (*path, key))
    elif isinstance(value, list):
        for index, below in enumerate(value):
            found += places(below, (*path, index))
    return found


def put(value: Any, path: tuple[Any, ...], replacement: Any) -> Any:
    changed = copy.deepcopy(value)
    holder = changed
    for part in path[:-1]:
        holder = holder[part]
    holder[path[-1]] = replacement
    return changed


def attempt(
    cluster: EmbeddedCluster, method: str, path: str, body: Any, content_type: str
) -> Response | int:
    """The response, or the code of the StatusError; other exceptions are server failures."""
    info: RequestInfo = parse_request(cluster.api.registry, method, path, {})
    raw = body if isinstance(body, bytes) else encode(body)
    try:
        return handle(cluster.api, Request(info, raw, content_type, ""))
    except StatusError as error:
        return error.code


@given(st.data())
def test_object_with_random_field_is_rejected_or_listable(data: Any) -> None:
    cluster = EmbeddedCluster(clock=FakeClock(), seed=1)
    plural, full = data.draw(st.sampled_from([("pods", FULL_POD), ("nodes", FULL_NODE)]))
    where = data.draw(st.sampled_from(places(full)))
    broken = put(full, where, data.draw(JUNK))
    path = "/api/v1/namespaces/default/pods" if plural == "pods" else "/api/v1/nodes"
    result = attempt(cluster, "POST", path, broken, "application/json")
    if isinstance(result, Response):
        info = parse_request(cluster.api.registry, "GET", path, {})
        table = "application/json;as=Table;v=v1;g=meta.k8s.io"
        assert handle(cluster.api, Request(info, b"", "application/json", table)).code == 200
        assert len(cluster.list(plural)) == 1
    else:
        assert result in (400, 403, 404, 409, 422)
        assert cluster.list(plural) == []


PATCH_TYPES = ["merge-patch", "strategic-merge-patch"]


@given(st.data())
def test_patch_with_random_field_is_rejected_or_valid(data: Any) -> None:
    cluster = EmbeddedCluster(clock=FakeClock(), seed=1)
    cluster.create("pods", FULL_POD)
    where = data.draw(st.sampled_from(places(FULL_POD)))
    patch = put(FULL_POD, where, data.draw(JUNK))
    kind = f"application/{data.draw(st.sampled_from(PATCH_TYPES))}+json"
    subresource = data.draw(st.sampled_from(["", "/status"]))
    if subresource:
        patch = {"status": {"conditions": data.draw(JUNK), "phase": data.draw(JUNK)}}
    result = attempt(
        cluster, "PATCH", f"/api/v1/namespaces/default/pods/p{subresource}", patch, kind
    )
    assert isinstance(result, Response) or result in (400, 409, 422)
    cluster.delete("pods", "p", namespace="default")
    assert cluster.count("pods") == 0


@given(st.binary(max_size=60))
@example(b"\x08" + b"\0" * 15)  # a number where a message belongs
def test_invalid_protobuf_is_a_bad_request(junk: bytes) -> None:
    for body in (junk, b"k8s\0" + junk):
        try:
            protobuf.decode(body)
        except StatusError as error:
            assert error.code in (400, 415)  # noqa: PT017 - any decoded kind is fine as well


@pytest.mark.parametrize(
    ("spec", "code"),
    [
        (b"\x0a\x00", 0),  # finalizers: [""], where Go encodes the empty string
        (b"\x12\x02\x08\x00", 0),  # a struct with a field that is 0
        (b"\x0a\x05alpha", 415),
        (b"\x08\x07", 415),
    ],
)
def test_protobuf_fields_are_read_or_rejected(spec: bytes, code: int) -> None:
    metadata = b"\x0a\x03\x0a\x01x"
    raw = metadata + b"\x12" + bytes([len(spec)]) + spec  # field 2 of a Namespace is its spec
    kind = b"\x0a\x0f\x0a\x02v1\x12\x09Namespace"
    body = b"k8s\0" + kind + b"\x12" + bytes([len(raw)]) + raw
    if not code:
        namespace = {"kind": "Namespace", "apiVersion": "v1", "metadata": {"name": "x"}}
        assert protobuf.decode(body) == namespace
        return
    with pytest.raises(StatusError, match="field 2 of Namespace in protobuf; send") as error:
        protobuf.decode(body)
    assert error.value.code == code


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"nonsense", b"[]", b"null", b'"x"', b"\xff", b"[" * 100_000],
)
@pytest.mark.parametrize(
    ("method", "path", "content_type"),
    [
        ("POST", "/api/v1/nodes", "application/json"),
        ("POST", "/api/v1/namespaces/default/pods/p/binding", "application/json"),
        ("POST", "/api/v1/namespaces/default/pods/p/eviction", "application/json"),
        ("PUT", "/api/v1/namespaces/default/pods/p", "application/json"),
        ("PATCH", "/api/v1/namespaces/default/pods/p", "application/merge-patch+json"),
        ("PATCH", "/api/v1/namespaces/default/pods/p", "application/json-patch+json"),
        ("PATCH", "/api/v1/namespaces/default/pods/p", "application/apply-patch+yaml"),
    ],
)
def test_empty_and_null_bodies(method: str, path: str, content_type: str, body: bytes) -> None:
    cluster = EmbeddedCluster(clock=FakeClock(), seed=1)
    cluster.create("pods", pod("p"))
    before = cluster.revision
    result = attempt(cluster, method, path, body, content_type)
    if isinstance(result, Response):
        assert (method, body) == ("PATCH", b"[]"), "an empty JSON patch changes nothing"
    else:
        assert result in (400, 415, 422)
    assert cluster.revision == before


@pytest.mark.parametrize("target", [None, "n", [], {"name": 5}, {"name": ["n"]}])
def test_invalid_binding_binds_nothing(target: Any) -> None:
    cluster = EmbeddedCluster(clock=FakeClock(), seed=1)
    cluster.create("pods", pod("p"))
    path = "/api/v1/namespaces/default/pods/p/binding"
    result = attempt(cluster, "POST", path, {"target": target}, "application/json")
    assert result in (400, 500)
    assert "nodeName" not in cluster.get("pods", "p", namespace="default")["spec"]
