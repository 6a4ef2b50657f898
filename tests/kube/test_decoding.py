"""Decoding of lines, events and lists, valid and invalid."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from asched.core.inputs import Deleted, Upserted
from asched.kube.decoding import (
    LineSplitter,
    MalformedResponseError,
    ObjectDecoder,
    WatchEvent,
    WatchEventType,
    identity_of,
    parse_event,
    resource_version,
    version_of,
)
from asched.model.node import Node
from asched.model.pod import Pod
from asched.model.resources import Resource
from tests.kube.harness import event_line, json_bytes


def event(kind: WatchEventType, item: object) -> WatchEvent:
    return WatchEvent(kind, msgspec.Raw(json_bytes(item)))


@given(st.lists(st.binary(max_size=20).map(lambda b: b.replace(b"\n", b""))), st.data())
def test_lines_are_independent_of_chunks(lines: list[bytes], data: st.DataObject) -> None:
    stream = b"".join(line + b"\n" for line in lines)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)))))
    splitter = LineSplitter()
    found: list[bytes] = []
    for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        found += splitter.feed(stream[start:end])
    assert found == [line for line in lines if line]
    assert splitter.overlong == 0


def test_large_line_is_complete() -> None:
    line = b"x" * 5_000_000
    splitter = LineSplitter()
    chunks = [line[i : i + 65536] for i in range(0, len(line), 65536)]
    assert [found for chunk in chunks for found in splitter.feed(chunk)] == []
    assert splitter.feed(b"\nnext\n") == [line, b"next"]


def test_line_over_limit_is_dropped() -> None:
    splitter = LineSplitter(limit_bytes=100)
    assert splitter.feed(b"y" * 90) == []
    assert splitter.feed(b"y" * 90) == []
    assert splitter.feed(b"y\nshort\n") == [b"short"]
    assert splitter.overlong == 1


@pytest.mark.parametrize(
    "line",
    [
        b"not json",
        b'{"type":"MODIFIED","object":{"kind":',
        b'{"type":"STRANGE","object":{}}',
        b'{"type":"ADDED"}',
        b"[]",
        b"\xff\xfe",
        b'{"type":"ADDED","object":' + b"[" * 100_000,
    ],
)
def test_invalid_event_is_malformed(line: bytes) -> None:
    with pytest.raises(MalformedResponseError):
        parse_event(line)


def test_resource_version_of_any_object() -> None:
    parsed = parse_event(event_line("BOOKMARK", {"metadata": {"resourceVersion": "7"}}))
    assert parsed.type is WatchEventType.BOOKMARK
    assert resource_version(parsed.object) == "7"
    assert resource_version(b'{"metadata":{"resourceVersion":7}}') == ""
    assert resource_version(b'"text"') == ""


def test_undecodable_object_is_logged_once_per_version() -> None:
    decoder = ObjectDecoder(Resource.NODES)

    def broken(version: str) -> WatchEvent:
        meta = {"name": "n1", "resourceVersion": version}
        item = {"metadata": meta, "status": {"allocatable": {"cpu": "lots"}}}
        return event(WatchEventType.MODIFIED, item)

    with capture_logs() as logs:
        assert decoder.change(broken("5")) is None
        assert decoder.change(broken("5")) is None
        assert decoder.change(broken("6")) is None
    assert [(entry["key"], entry["resource_version"]) for entry in logs] == [
        ("n1", "5"),
        ("n1", "6"),
    ]
    assert "status.allocatable.cpu" in logs[0]["error"]
    assert logs[0]["resource"] == "nodes"
    assert decoder.counts.skipped == 3


def test_deletion_of_undecodable_object_is_delivered() -> None:
    decoder = ObjectDecoder(Resource.PODS)
    gone = {"metadata": {"name": "p", "namespace": "a", "uid": "u"}, "spec": {"priority": "high"}}
    change = decoder.change(event(WatchEventType.DELETED, gone))
    assert isinstance(change, Deleted)
    assert (change.object.key, change.object.uid) == ("a/p", "u")


@pytest.mark.parametrize(
    "item",
    [{}, {"metadata": {}}, {"metadata": {"name": ""}}, {"metadata": 3}, [], None, "pod"],
)
def test_objects_without_a_name_are_skipped(item: object) -> None:
    decoder = ObjectDecoder(Resource.PODS)
    for kind in (WatchEventType.ADDED, WatchEventType.DELETED):
        assert decoder.change(event(kind, item)) is None
    assert decoder.counts.skipped == 2


def test_list_reports_undecodable_objects() -> None:
    decoder = ObjectDecoder(Resource.PODS)
    items = [
        {"metadata": {"name": "good", "namespace": "a"}},
        {"metadata": {"name": "bad", "namespace": "a"}, "spec": {"nodeName": 4}},
        {"spec": {}},
    ]
    body = json_bytes({"metadata": {"resourceVersion": "9"}, "items": items})
    assert decoder.page(body).resource_version == "9"
    listed = decoder.listed(body)
    assert [item.key for item in listed.objects] == ["a/good"]
    assert listed.unreadable == {"a/bad"}
    assert decoder.counts.skipped == 2


@pytest.mark.parametrize("body", [b"", b"<html>", b"[]", b'{"items":{}}'])
def test_invalid_list_is_error(body: bytes) -> None:
    with pytest.raises(MalformedResponseError):
        ObjectDecoder(Resource.PODS).page(body)


def test_null_items_are_empty_list() -> None:
    assert ObjectDecoder(Resource.PODS).page(b'{"metadata":{},"items":null}').objects == ()


def test_name_of_253_characters() -> None:
    name = ".".join(["n" * 62] * 4)[:253]
    change = ObjectDecoder(Resource.NODES).change(
        event(WatchEventType.ADDED, {"metadata": {"name": name}})
    )
    assert isinstance(change, Upserted)
    assert isinstance(change.object, Node)
    assert change.object.key == name


def nested(depth: int) -> bytes:
    """A pod with managed fields that are nested this deep, which decoding drops."""
    fields = b'{"f:a":' * depth + b"{}" + b"}" * depth
    meta = b'{"name":"deep","namespace":"a","uid":"u","managedFields":[{"fieldsV1":' + fields
    return b'{"metadata":' + meta + b'}]},"spec":{"priority":7,"containers":null}}'


@pytest.mark.parametrize("depth", [50, 300, 900, 1_000, 100_000])
def test_deeply_nested_pod_is_decoded(depth: int) -> None:
    decoder = ObjectDecoder(Resource.PODS)
    body = b'{"items":[{"metadata":{"name":"good"}},' + nested(depth) + b"]}"
    assert [item.key for item in decoder.listed(body).objects] == ["good", "a/deep"]
    line = b'{"type":"ADDED","object":' + nested(depth) + b"}"
    change = decoder.change(parse_event(line))
    assert isinstance(change, Upserted)
    assert isinstance(change.object, Pod)
    assert change.object.spec.priority == 7
    assert decoder.counts.skipped == 0


def test_invalid_utf8_skips_one_object() -> None:
    decoder = ObjectDecoder(Resource.PODS)
    invalid = b'{"metadata":{"name":"bad","namespace":"a","labels":{"x":"\xff"}}}'
    with capture_logs() as logs:
        listed = decoder.listed(b'{"items":[{"metadata":{"name":"good"}},' + invalid + b"]}")
        assert decoder.change(WatchEvent(WatchEventType.ADDED, msgspec.Raw(invalid))) is None
    assert [item.key for item in listed.objects] == ["good"]
    assert listed.unreadable == {"a/bad"}
    assert logs[0]["key"] == "a/bad"
    assert "not UTF-8" in logs[0]["error"]


@pytest.mark.parametrize("name", [None, 3, "", []])
def test_deletion_without_a_valid_name_is_skipped(name: object) -> None:
    decoder = ObjectDecoder(Resource.PODS)
    gone = {"metadata": {"name": name, "namespace": "a"}, "spec": 3}
    assert decoder.change(event(WatchEventType.DELETED, gone)) is None
    assert decoder.counts.skipped == 1


@pytest.mark.parametrize(
    "spec",
    [{"priority": 2**31}, {"priority": 10**30}, {"terminationGracePeriodSeconds": 2**63}],
)
def test_number_beyond_its_type_skips_the_object(spec: dict[str, int]) -> None:
    raw = str({"metadata": {"name": "p"}, "spec": spec}).replace("'", '"').encode()
    decoder = ObjectDecoder(Resource.PODS)
    assert decoder.change(WatchEvent(WatchEventType.ADDED, msgspec.Raw(raw))) is None


def test_time_without_zone_skips_the_object() -> None:
    meta = {"name": "p", "creationTimestamp": "2026-01-01T00:00:00"}
    decoder = ObjectDecoder(Resource.PODS)
    assert decoder.change(event(WatchEventType.ADDED, {"metadata": meta})) is None


NAMES = st.sampled_from(["p", "a.b-c", "", 'quo"te', "\u00fc", "x\\u0031"])
FIELDS: dict[str, st.SearchStrategy[Any]] = {
    "name": NAMES,
    "generateName": NAMES,
    "namespace": NAMES,
    "uid": NAMES,
    "resourceVersion": st.sampled_from(["1", "0", "007", "", "x", "9" * 18, "9" * 19, "\u0663"]),
    "labels": st.just({"uid": "other", "resourceVersion": "4"}),
}


@given(st.data(), st.booleans(), st.booleans())
def test_identity_is_that_of_whole_object(data: st.DataObject, kind: bool, ordered: bool) -> None:
    names = data.draw(st.lists(st.sampled_from([*FIELDS]), unique=True))
    if ordered:
        names = [name for name in FIELDS if name in names]
    metadata: dict[str, Any] = {name: data.draw(FIELDS[name]) for name in names}
    item: dict[str, Any] = {"kind": "Pod", "apiVersion": "v1"} if kind else {}
    item["metadata"] = metadata
    raw = msgspec.json.encode(item)
    key, uid, version = identity_of(raw)
    namespace, name = metadata.get("namespace"), metadata.get("name", "")
    assert key == (f"{namespace}/{name}" if namespace else name)
    assert uid == metadata.get("uid", "")
    number = metadata.get("resourceVersion", "")
    readable = number.isascii() and number.isdecimal() and len(number) < 19
    assert version == version_of(raw) == (int(number) if readable else 0)
    assert resource_version(raw) == number
