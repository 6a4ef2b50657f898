"""Pod annotations that plugins declare are kept."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asched.core.inputs import Upserted
from asched.kube.decoding import ObjectDecoder, WatchEvent, parse_event
from asched.model.pod import Pod
from asched.model.resources import DeclaredAnnotations, DecodeError, Resource, decode

KEYS = ("example.com/a", "b")


def raw(annotations: Any) -> bytes:
    metadata = {"name": "p", "namespace": "ns", "annotations": annotations}
    return msgspec.json.encode({"metadata": metadata, "spec": {"schedulerName": "b"}})


def kept(annotations: Any) -> dict[str, str]:
    text = raw(annotations)
    pod = decode(Resource.PODS, text)
    assert isinstance(pod, Pod)
    return DeclaredAnnotations(KEYS).add_to(pod, text).metadata.declared_annotations


@given(
    st.dictionaries(
        st.sampled_from([*KEYS, "c", "example.com/ab"]), st.text(max_size=20), max_size=4
    )
)
def test_declared_annotations_are_kept(annotations: dict[str, str]) -> None:
    assert kept(annotations) == {k: text for k, text in annotations.items() if k in KEYS}


def test_missing_annotations_are_empty() -> None:
    assert kept(None) == {}
    assert kept({"b": None}) == {}


def test_annotation_of_wrong_type_is_rejected() -> None:
    with pytest.raises(DecodeError, match="ns/p"):
        kept({"example.com/a": 5})


def test_watch_decoder_keeps_only_declared_annotations() -> None:
    event = b'{"type":"ADDED","object":' + raw({"b": "x"}) + b"}"
    decoder = ObjectDecoder(Resource.PODS)

    def seen(line: WatchEvent) -> dict[str, str]:
        change = decoder.change(line)
        assert isinstance(change, Upserted)
        return change.object.metadata.declared_annotations

    assert seen(parse_event(event)) == {}
    decoder.keep_annotations(KEYS)
    assert seen(parse_event(event)) == {"b": "x"}
