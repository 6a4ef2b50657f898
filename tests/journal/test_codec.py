from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given

from asched.journal.codec import CODEC, KINDS, UPCASTERS, Codec, Upcaster, subject_of
from asched.journal.errors import RecordError
from asched.model.meta import ObjectMeta
from asched.model.node import Node
from asched.model.pod import Pod
from asched.state.records import (
    AnyRecord,
    Assigned,
    Bound,
    EngineStarted,
    EvictionSucceeded,
    LeadershipGained,
    ObjectDeleted,
    ObjectObserved,
    PermitWait,
    TurnStarted,
)
from tests.journal.strategies import records, struct


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_round_trips(kind: str) -> None:
    @given(struct(KINDS[kind]))
    def round_trip(record: AnyRecord) -> None:
        encoded = CODEC.encode(record)
        decoded = CODEC.decode(1, *encoded)
        assert decoded == record
        # 1 == 1.0 == True in Python, so compare the stored forms as well.
        assert CODEC.encode(decoded) == encoded

    round_trip()


@given(records())
def test_payloads_are_single_line_json(record: AnyRecord) -> None:
    encoded = CODEC.encode(record)
    assert encoded.kind == type(record).__name__
    assert isinstance(json.loads(encoded.payload), dict)
    assert not {"\n", "\r", "\0"} & set(encoded.payload)


@pytest.mark.parametrize("key", ["ns/p", 'ns/"p"', "ns/\\", "ns/\0", "ns/\x7f", "ns/ä", "", "p"])
def test_any_key_round_trips(key: str) -> None:
    record = Bound(key, "u", "n")
    assert CODEC.decode(1, *CODEC.encode(record)) == record


def test_stored_form_is_stable() -> None:
    record = Assigned("ns/p", "u", "n", 2, 5, score=7, permit_waits=(PermitWait("Gang", 9),))
    assert tuple(CODEC.encode(record)) == (
        "Assigned",
        1,
        "pod/ns/p",
        (
            '{"uid":"u","node":"n","attempt":2,"feasible_nodes":5,"score":7,'
            '"permit_waits":[{"plugin":"Gang","deadline_ns":9}]}'
        ),
    )


@pytest.mark.parametrize(
    ("record", "subject"),
    [
        (ObjectObserved(Pod(metadata=ObjectMeta(name="p", namespace="ns"))), "pod/ns/p"),
        (ObjectObserved(Node(metadata=ObjectMeta(name="n"))), "node/n"),
        (ObjectDeleted("PersistentVolumeClaim", "ns/c"), "persistentvolumeclaim/ns/c"),
        (Bound("ns/p", "u", "n"), "pod/ns/p"),
        (EvictionSucceeded("ns/p", "u"), "pod/ns/p"),
        (TurnStarted(1), ""),
        (LeadershipGained(1), ""),
        (EngineStarted("0.1.0", 7), ""),
    ],
)
def test_subjects(record: AnyRecord, subject: str) -> None:
    assert subject_of(record) == subject


@pytest.mark.parametrize(
    ("kind", "version", "payload", "message"),
    [
        ("Nonsense", 1, "{}", r"record 7 is of unknown kind 'Nonsense': upgrade asched"),
        ("Bound", 2, "{}", r"record 7 \(Bound\) has version 2, .* reads 1 to 1: upgrade asched"),
        ("Bound", 0, "{}", r"record 7 \(Bound\) has version 0"),
        ("Bound", 1, "{", r"record 7 \(Bound v1\) cannot be decoded"),
        ("Bound", 1, '{"type":"Bound","key":1}', r"record 7 \(Bound v1\) cannot be decoded: .*key"),
        ("Bound", 1, '{"type":"TurnStarted","now_ns":1}', "record 7 .* 'TurnStarted'"),
    ],
)
def test_decode_error_names_record(kind: str, version: int, payload: str, message: str) -> None:
    with pytest.raises(RecordError, match=message):
        CODEC.decode(7, kind, version, "pod/ns/p", payload)


@pytest.mark.parametrize(
    ("column", "value"),
    [("kind", b"Bound"), ("version", "1"), ("subject", None), ("payload", b'{"uid":"u"}')],
)
def test_column_of_another_type(column: str, value: object) -> None:
    row: dict[str, Any] = {"kind": "Bound", "version": 1, "subject": "pod/ns/p", "payload": "{}"}
    with pytest.raises(RecordError, match="record 7 has a column of a wrong type"):
        CODEC.decode(7, **row | {column: value})


def _rename_host(raw: dict[str, Any]) -> dict[str, Any]:
    return {("machine" if name == "host" else name): value for name, value in raw.items()}


def _rename_machine(raw: dict[str, Any]) -> dict[str, Any]:
    return {("node" if name == "machine" else name): value for name, value in raw.items()}


def test_upcasters_apply_each_step() -> None:
    codec = Codec({"Bound": (_rename_host, _rename_machine)})
    now = Bound("ns/p", "u", "n")
    assert codec.encode(now).version == 3
    for version, field in ((1, "host"), (2, "machine"), (3, "node")):
        payload = json.dumps({"type": "Bound", "key": "ns/p", "uid": "u", field: "n"})
        assert codec.decode(1, "Bound", version, "pod/ns/p", payload) == now
    with pytest.raises(RecordError, match="not JSON"):
        codec.decode(1, "Bound", 1, "pod/ns/p", "{")
    assert codec.encode(TurnStarted(1)).version == 1


@pytest.mark.parametrize("newest", range(2, 8))
def test_upcast_applies_only_missing_steps(newest: int) -> None:
    taken: list[int] = []

    def step_from(number: int) -> Upcaster:
        def step(raw: dict[str, Any]) -> dict[str, Any]:
            taken.append(number)
            assert raw.pop(f"v{number}") == number  # the form of this step
            return {**raw, f"v{number + 1}": number + 1} if number + 1 < newest else raw

        return step

    steps = [step_from(number) for number in range(1, newest)]
    codec = Codec({"Bound": steps})
    now = Bound("ns/p", "u", "n")
    for version in range(1, newest + 1):
        taken.clear()
        old = json.loads(codec.encode(now).payload)
        if version < newest:
            old[f"v{version}"] = version
        assert codec.decode(1, "Bound", version, "pod/ns/p", json.dumps(old)) == now
        assert taken == [*range(version, newest)]
    with pytest.raises(RecordError, match=f"version {newest + 1}, this asched reads 1 to {newest}"):
        codec.decode(1, "Bound", newest + 1, "pod/ns/p", codec.encode(now).payload)


@pytest.mark.parametrize("kind", KINDS)
def test_upcast_record_of_any_kind_is_encoded_in_new_version(kind: str) -> None:
    """A step that reverts a change of version 1: every kind survives the raw JSON."""
    codec = Codec({kind: (lambda raw: {k: v for k, v in raw.items() if k != "once"},)})

    @given(struct(KINDS[kind]))
    def brought_up(record: AnyRecord) -> None:
        new = codec.encode(record)
        assert new.version == 2
        old = json.dumps({"once": 1, **json.loads(new.payload)})
        brought = codec.decode(1, kind, 1, new.subject, old)
        assert brought == record
        assert codec.encode(brought) == new

    brought_up()


def test_other_kinds_keep_version() -> None:
    codec = Codec({"Bound": (_rename_host, _rename_machine)})
    assert codec.versions["Bound"] == 3
    assert {v for kind, v in codec.versions.items() if kind != "Bound"} == {1}


@pytest.mark.parametrize("stored", ['{"type":"Bound"}', '{"host":null}', "[]", '"text"', "7"])
def test_upcaster_failure_names_record(stored: str) -> None:
    def split_host(raw: dict[str, Any]) -> dict[str, Any]:
        rack, node = raw["host"].split("/")
        return {**raw, "rack": rack, "node": node}

    codec = Codec({"Bound": (split_host,)})
    with pytest.raises(RecordError, match=r"record 9 \(Bound v1\)"):
        codec.decode(9, "Bound", 1, "pod/ns/p", stored)


def test_upcaster_with_invalid_result_names_record() -> None:
    codec = Codec({"Bound": (lambda raw: {"type": "TurnStarted", "now_ns": 1},)})
    with pytest.raises(
        RecordError, match=r"record 9 \(Bound v1\) cannot be decoded: .*'TurnStarted'"
    ):
        codec.decode(9, "Bound", 1, "pod/ns/p", "{}")
    codec = Codec({"Bound": (lambda raw: {**raw, "key": 7},)})
    with pytest.raises(RecordError, match=r"record 9 \(Bound v1\) cannot be decoded"):
        codec.decode(9, "Bound", 1, "pod/ns/p", CODEC.encode(Bound("ns/p", "u", "n")).payload)


def test_upcasters_of_unknown_kind_are_rejected() -> None:
    with pytest.raises(ValueError, match="Nonsense"):
        Codec({"Nonsense": (_rename_host,)})
    assert set(UPCASTERS) <= set(KINDS)
