"""Compares the stored form of each record kind with its recorded form."""

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
    current_forms,
    incompatibilities,
    merged,
    problems,
    stored_forms,
)


def test_every_record_has_form_of_its_version() -> None:
    """The message of a failure names the remedy."""
    assert problems(stored_forms(), current_forms()) == []


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


def sample_with(*fields: Any) -> Forms:
    """The form of :class:`Sample` with these fields."""
    return forms_of(
        msgspec.defstruct("Sample", fields, bases=(Record,), tag="Sample", kw_only=True)
    )


class Sample(Record):
    key: str
    inner: tuple[Inner, ...] = ()
    score: int = 0


KEY = ("key", str)
INNER = ("inner", tuple[Inner, ...], ())
SCORE = ("score", int, 0)


def test_equal_fields_have_equal_form() -> None:
    assert problems(forms_of(Sample), sample_with(KEY, INNER, SCORE)) == []


@pytest.mark.parametrize(
    ("fields", "change"),
    [
        ((KEY, INNER), "Sample.score was removed"),
        ((KEY, INNER, ("points", int, 0)), "Sample.score was removed"),
        ((KEY, INNER, ("score", float, 0)), "Sample.score was"),
        ((KEY, INNER, ("score", int, 1)), "Sample.score was"),
        ((KEY, INNER, ("score", int)), "Sample.score was"),
        ((KEY, INNER, SCORE, ("more", str)), "Sample.more has no default"),
        ((KEY, ("inner", tuple[str, ...], ()), SCORE), "Sample.inner was"),
    ],
)
def test_change_without_new_version_is_rejected(fields: tuple[Any, ...], change: str) -> None:
    changed = sample_with(*fields)
    found = problems(forms_of(Sample), changed)
    assert any(
        line.startswith(f"Sample v1 has an incompatible form: {change}")
        and "upcaster from v1 in asched/journal/codec.py" in line
        for line in found
    ), found
    with pytest.raises(ValueError, match="Sample v1 has an incompatible form"):
        merged(forms_of(Sample), changed)


def test_nested_change_is_detected() -> None:
    changed = deepcopy(forms_of(Sample))
    del changed["Sample"]["1"]["Inner"]["properties"]["size"]
    [line] = problems(forms_of(Sample), changed)
    assert "Inner.size was removed" in line


def test_new_field_with_default_must_be_documented() -> None:
    extended = sample_with(KEY, INNER, SCORE, ("more", str, ""))
    assert problems(forms_of(Sample), extended) == [
        f"Sample v1 was extended: record its form with `{COMMAND}`"
    ]
    assert problems(merged(forms_of(Sample), extended), extended) == []


def test_new_version_keeps_old_form() -> None:
    second = forms_of(Sample, version=2)
    del second["Sample"]["2"]["Sample"]["properties"]["score"]
    assert problems(forms_of(Sample), second) == [
        f"Sample v2 is new: record its form with `{COMMAND}`"
    ]
    both = merged(forms_of(Sample), second)
    assert both["Sample"].keys() == {"1", "2"}
    assert problems(both, second) == []
    assert both["Sample"]["1"] == forms_of(Sample)["Sample"]["1"]


def test_kind_must_not_be_removed() -> None:
    [line] = problems({**forms_of(Sample), "Gone": {"1": {}}}, forms_of(Sample))
    assert line == "Gone was removed, but journals contain such records: keep it"


def test_additional_enum_values_are_allowed() -> None:
    old: Form = {"T": {"properties": {"a": {"enum": [1, 2]}, "b": {"anyOf": [{"type": "null"}]}}}}
    new = deepcopy(old)
    new["T"]["properties"]["a"]["enum"].append(3)
    new["T"]["properties"]["b"]["anyOf"].append({"type": "string"})
    assert incompatibilities(old, new) == []
    assert len(incompatibilities(new, old)) == 2
