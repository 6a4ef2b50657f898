"""Strict decoding reports every problem with its path."""

from __future__ import annotations

from datetime import timedelta
from enum import Enum
from typing import Annotated, Any, Literal

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asched.framework.runtime.strict import StrictDecoder, format_path
from asched.model.quantity import format_duration, parse_duration


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


class Inner(msgspec.Struct, frozen=True, rename="camel"):
    name: str
    max_size: Annotated[int, msgspec.Meta(ge=1, le=10)] = 5

    def __post_init__(self) -> None:
        if self.name == "bad":
            raise ValueError("bad is no name")


class Outer(msgspec.Struct, frozen=True, rename="camel"):
    colour: Colour = Colour.RED
    mode: Literal["on", "off"] = "on"
    ratio: float = 0.5
    enabled: bool = True
    timeout: timedelta = timedelta(seconds=1)
    inner: Inner | None = None
    items: tuple[Inner, ...] = ()
    labels: dict[str, str] = {}


def problems(value: Any) -> list[str]:
    decoder = StrictDecoder()
    decoder.decode(value, Outer)
    return [str(problem) for problem in decoder.problems]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ({}, []),
        ({"colour": None, "items": None}, []),
        ({"ratio": 1}, []),
        ([], ["expected a mapping, got a list"]),
        ({"color": "red"}, ["color: unknown field; did you mean colour?"]),
        ({"Colour": "red"}, ["Colour: unknown field; did you mean colour?"]),
        (
            {"zzz": 1},
            [
                (
                    "zzz: unknown field; expected one of colour, enabled, inner, items, labels,"
                    " mode, ratio, timeout"
                )
            ],
        ),
        ({"colour": "green"}, ['colour: unknown value "green"; expected one of red, blue']),
        ({"mode": True}, ["mode: unknown value true; expected one of off, on"]),
        ({"ratio": "1"}, ['ratio: expected a number, got the string "1"']),
        ({"ratio": True}, ["ratio: expected a number, got true"]),
        ({"enabled": 1}, ["enabled: expected true or false, got 1"]),
        ({"timeout": 15}, ['timeout: expected a duration such as "15s", got 15']),
        (
            {"timeout": "15"},
            ['timeout: "15" is not a duration; write one like "15s", "1m30s", "100ms"'],
        ),
        ({"inner": {}}, ["inner.name: required"]),
        ({"inner": {"name": "bad"}}, ["inner: bad is no name"]),
        (
            {"items": [{"name": "a", "maxSize": 0}, {"name": 5}, {"name": "c", "maxSize": 11}]},
            [
                "items[0].maxSize: must be at least 1, got 0",
                "items[1].name: expected a string, got 5",
                "items[2].maxSize: must be at most 10, got 11",
            ],
        ),
        ({"items": {"name": "a"}}, ["items: expected a list, got a mapping"]),
        ({"labels": {"a": {}}}, ["labels.a: expected a string, got a mapping"]),
    ],
)
def test_each_problem_is_reported(value: Any, expected: list[str]) -> None:
    assert problems(value) == expected


def test_valid_fields_are_decoded_despite_problems() -> None:
    decoder = StrictDecoder()
    found = decoder.decode({"ratio": 0.25, "mode": "of", "timeout": "1m"}, Outer)
    assert len(decoder.problems) == 1
    assert found == Outer(ratio=0.25, timeout=timedelta(minutes=1))


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("0", 0.0),
        ("15s", 15.0),
        ("1h30m", 5400.0),
        ("1.5h", 5400.0),
        ("100ms", 0.1),
        ("250us", 0.00025),
        ("-2s", -2.0),
        ("+2s", 2.0),
        (".5s", 0.5),
    ],
)
def test_durations_use_go_notation(text: str, seconds: float) -> None:
    assert parse_duration(text).total_seconds() == seconds


@pytest.mark.parametrize(
    "text", ["", "s", "15", "15 s", "1d", "-+5s", "5s5", "PT15S", "1e3s", "s15", "9" * 400 + "h"]
)
def test_invalid_duration_is_rejected(text: str) -> None:
    with pytest.raises(ValueError, match="duration"):
        parse_duration(text)


@given(st.timedeltas(min_value=timedelta(days=-3000), max_value=timedelta(days=3000)))
def test_duration_round_trip(duration: timedelta) -> None:
    assert parse_duration(format_duration(duration)) == duration


def test_path_format_equals_kubernetes() -> None:
    assert format_path(("profiles", 0, "pluginConfig", 2, "args")) == (
        "profiles[0].pluginConfig[2].args"
    )


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(
                    ["colour", "mode", "inner", "items", "name", "maxSize", "labels", "timeout"]
                ),
                inner,
                max_size=4,
            )
        ),
        max_leaves=12,
    )
)
def test_any_value_is_decoded_or_reported(value: Any) -> None:
    decoder = StrictDecoder()
    found = decoder.decode(value, Outer)
    assert found is not None or decoder.problems
    for problem in decoder.problems:
        assert "\n" not in str(problem)
