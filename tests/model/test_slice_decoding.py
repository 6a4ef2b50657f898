"""Slices with known devices decode as all others do, and share their devices."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from asched.model.resource_claims import ResourceSlice
from asched.model.resources import DecodeError, Resource, decode
from asched.model.slice_decoding import SliceDecoder

Json = dict[str, Any]

GPU = {
    "name": "gpu-0",
    "attributes": {"model": {"string": "A100"}},
    "capacity": {"memory": {"value": "80Gi"}},
}


def json_of(name: str, *devices: Json, **spec: Any) -> bytes:
    made = {"driver": "d", "pool": {"name": name, "resourceSliceCount": 1}, "devices": devices}
    meta = {"name": name, "uid": f"uid of {name}", "labels": {"of": name}}
    return json.dumps({"metadata": meta, "spec": {**made, **spec}}).encode()


def decoded(raw: bytes) -> ResourceSlice:
    found = decode(Resource.RESOURCE_SLICES, raw)
    assert isinstance(found, ResourceSlice)
    return found


def test_slices_with_equal_devices_share_them_and_nothing_else() -> None:
    first = decoded(json_of("a", GPU, nodeName="a"))
    raw = json_of("b", GPU, nodeName="b", pool={"name": "p", "generation": 7})
    second = decoded(raw)
    assert second.spec.devices is first.spec.devices
    assert second == msgspec.json.decode(raw, type=ResourceSlice)


@pytest.mark.parametrize(
    "spec",
    [
        {"allNodes": True},
        {"nodeSelector": {"nodeSelectorTerms": [{"matchExpressions": []}]}},
        {"perDeviceNodeSelection": True},
        {"sharedCounters": [{"name": "s", "counters": {"c": {"value": "1"}}}]},
        {"sharedCounters": None, "nodeSelector": None},
    ],
)
def test_every_field_is_decoded_for_known_devices(spec: Json) -> None:
    decoded(json_of("first", GPU))
    given = {name: value for name, value in spec.items() if value is not None}
    expected = msgspec.json.decode(json_of("c", GPU, **given), type=ResourceSlice)
    assert decoded(json_of("c", GPU, **spec)) == expected


@pytest.mark.parametrize(
    "raw",
    [
        json_of("", GPU),
        json_of(
            "bad counter", GPU, sharedCounters=[{"name": "s", "counters": {"c": {"value": "x"}}}]
        ),
        json_of("bad pool", GPU, pool=7),
        json_of("too large", GPU, nodeName="n" * 300_000),
    ],
)
def test_invalid_slice_with_known_devices_is_rejected(raw: bytes) -> None:
    decoded(json_of("first", GPU))
    with pytest.raises(DecodeError):
        decode(Resource.RESOURCE_SLICES, raw)


def test_rejected_devices_are_rejected_again() -> None:
    broken = {"name": "gpu", "capacity": {"memory": {"value": "much"}}}
    for name in ("first", "second"):
        with pytest.raises(DecodeError, match="memory"):
            decode(Resource.RESOURCE_SLICES, json_of(name, broken))


def test_lists_are_kept_up_to_their_limit_the_latest_longest() -> None:
    calls: list[bytes] = []

    def decode_all(raw: bytes | msgspec.Raw) -> ResourceSlice:
        calls.append(bytes(raw))
        return msgspec.json.decode(raw, type=ResourceSlice)

    raws = [json_of(name, {"name": f"gpu-{name}"}) for name in "abc"]
    size = len(json.dumps([{"name": "gpu-a"}]))
    decoder = SliceDecoder(decode_all, kept_bytes=2 * size)
    for raw in (raws[0], raws[1], raws[0], raws[2], raws[0], raws[1]):
        decoder.decode(raw)
    assert len(decoder) == 2
    assert calls == [raws[0], raws[1], raws[2], raws[1]]
