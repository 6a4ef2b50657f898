"""Removal of deep nesting from JSON text."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asched.model.nesting import decode_any_depth, prune_nesting

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
