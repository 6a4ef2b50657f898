"""No record changes its stored form unseen: each is compared with what is written down of it."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import msgspec
import pytest

from asched.journal.codec import CODEC, KINDS
from asched.state.records import Record
from tests.journal.record_forms import (
    COMMAND,
    Form,
    Forms,
    breaches,
    complaints,
    current_forms,
    merged,
    stored_forms,
)


def test_every_record_has_form_of_its_version() -> None:
    """Where this fails, its lines say what to do."""
    assert complaints(stored_forms(), current_forms()) == []


def test_every_stored_version_is_documented() -> None:
    stored = stored_forms()
    for kind, version in CODEC.versions.items():
        assert stored.get(kind, {}).keys() >= {str(n) for n in range(1, version + 1)}
    assert stored.keys() == KINDS.keys()


class Inner(msgspec.Struct):
    name: str
    size: int = 0


def forms_of(kind: type[msgspec.Struct], version: int = 1) -> Forms:
    name = kind.__name__
    return current_forms({name: kind}, {name: version})


def told_as(*fields: Any) -> Forms:
    """The form of a record that once was :class:`Told` and has these fields today."""
    return forms_of(msgspec.defstruct("Told", fields, bases=(Record,), tag="Told", kw_only=True))


class Told(Record):
    key: str
    inner: tuple[Inner, ...] = ()
    score: int = 0


KEY = ("key", str)
INNER = ("inner", tuple[Inner, ...], ())
SCORE = ("score", int, 0)


def test_equal_fields_have_equal_form() -> None:
    assert complaints(forms_of(Told), told_as(KEY, INNER, SCORE)) == []


@pytest.mark.parametrize(
    ("fields", "breach"),
    [
        ((KEY, INNER), "Told.score is gone"),
        ((KEY, INNER, ("points", int, 0)), "Told.score is gone"),
        ((KEY, INNER, ("score", float, 0)), "Told.score was"),
        ((KEY, INNER, ("score", int, 1)), "Told.score was"),
        ((KEY, INNER, ("score", int)), "Told.score was"),
        ((KEY, INNER, SCORE, ("more", str)), "Told.more has no default"),
        ((KEY, ("inner", tuple[str, ...], ()), SCORE), "Told.inner was"),
    ],
)
def test_change_without_new_version_is_rejected(fields: tuple[Any, ...], breach: str) -> None:
    changed = told_as(*fields)
    found = complaints(forms_of(Told), changed)
    assert any(
        line.startswith(f"Told v1 is stored in another form: {breach}")
        and "upcaster from v1 in asched/journal/codec.py" in line
        for line in found
    ), found
    with pytest.raises(ValueError, match="Told v1 is stored in another form"):
        merged(forms_of(Told), changed)


def test_nested_change_is_detected() -> None:
    changed = deepcopy(forms_of(Told))
    del changed["Told"]["1"]["Inner"]["properties"]["size"]
    [line] = complaints(forms_of(Told), changed)
    assert "Inner.size is gone" in line


def test_new_field_with_default_must_be_documented() -> None:
    grown = told_as(KEY, INNER, SCORE, ("more", str, ""))
    assert complaints(forms_of(Told), grown) == [
        f"Told v1 has grown: write its form down with `{COMMAND}`"
    ]
    assert complaints(merged(forms_of(Told), grown), grown) == []


def test_new_version_keeps_old_form() -> None:
    second = forms_of(Told, version=2)
    del second["Told"]["2"]["Told"]["properties"]["score"]
    assert complaints(forms_of(Told), second) == [
        f"Told v2 is new: write its form down with `{COMMAND}`"
    ]
    both = merged(forms_of(Told), second)
    assert both["Told"].keys() == {"1", "2"}
    assert complaints(both, second) == []
    assert both["Told"]["1"] == forms_of(Told)["Told"]["1"]


def test_kind_must_not_be_removed() -> None:
    [line] = complaints({**forms_of(Told), "Gone": {"1": {}}}, forms_of(Told))
    assert line == "Gone is known no more, but journals hold such records: keep it"


def test_additional_enum_values_are_allowed() -> None:
    old: Form = {"T": {"properties": {"a": {"enum": [1, 2]}, "b": {"anyOf": [{"type": "null"}]}}}}
    new = deepcopy(old)
    new["T"]["properties"]["a"]["enum"].append(3)
    new["T"]["properties"]["b"]["anyOf"].append({"type": "string"})
    assert breaches(old, new) == []
    assert len(breaches(new, old)) == 2
