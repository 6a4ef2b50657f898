"""Removal of deep nesting from JSON text."""

from __future__ import annotations

import sys
from contextlib import suppress
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asched.model.nesting import MAX_DEPTH, decode_any_depth, prune_nesting
from asched.model.resource_claims import ResourceClaim
from asched.model.resources import Resource, decode

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
)
ANY = msgspec.json.Decoder()


def cut(value: Any, depth: int) -> Any:
    """``value`` with None in place of each container below ``depth`` containers."""
    if not isinstance(value, dict | list):
        return value
    if not depth:
        return None
    if isinstance(value, list):
        return [cut(inner, depth - 1) for inner in value]
    return {key: cut(inner, depth - 1) for key, inner in value.items()}


@given(JSON, st.integers(1, 4))
def test_containers_below_depth_become_null(value: Any, depth: int) -> None:
    assert msgspec.json.decode(prune_nesting(msgspec.json.encode(value), depth)) == cut(
        value, depth
    )


def test_brackets_in_strings_are_text() -> None:
    raw = rb'{"a":"[[[[","b\"[":[{"c":"\\"}]}'
    assert prune_nesting(raw, 2) == rb'{"a":"[[[[","b\"[":[null]}'


@pytest.mark.parametrize("opening", [b"[", b'{"a":'])
def test_endless_nesting_is_an_error(opening: bytes) -> None:
    with pytest.raises(msgspec.DecodeError):
        decode_any_depth(ANY, opening * 200_000)


@given(st.binary())
def test_any_bytes_decode_or_raise_decode_error(raw: bytes) -> None:
    prune_nesting(raw, 1)
    with suppress(msgspec.DecodeError):
        decode_any_depth(ANY, raw)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("123456789012345678901234567890", 1.2345678901234568e29),
        ("18446744073709551615", 2**64 - 1),
        ("-9223372036854775809", -9223372036854775808.0),
        ("9" * 400, sys.float_info.max),
    ],
)
def test_opaque_integers_of_any_size_can_be_stored(text: str, value: float) -> None:
    """The API server accepts them in parameters of drivers."""
    claim = _claim_with_parameters(f'{{"a": [{text}]}}')
    assert _parameters_of(claim) == {"a": [value]}
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(claim), type=ResourceClaim) == claim


def test_opaque_values_have_a_limited_depth() -> None:
    kept = _parameters_of(_claim_with_parameters('{"a":' * 300 + "1" + "}" * 300))
    for _ in range(MAX_DEPTH):
        kept = kept["a"]
    assert kept is None


def _claim_with_parameters(parameters: str) -> ResourceClaim:
    config = f'{{"opaque": {{"driver": "d", "parameters": {parameters}}}}}'
    spec = f'{{"devices": {{"config": [{config}]}}}}'
    claim = decode(
        Resource.RESOURCE_CLAIMS, f'{{"metadata": {{"name": "c"}}, "spec": {spec}}}'.encode()
    )
    assert isinstance(claim, ResourceClaim)
    return claim


def _parameters_of(claim: ResourceClaim) -> Any:
    (config,) = claim.spec.devices.config
    assert config.opaque is not None
    return config.opaque.parameters
