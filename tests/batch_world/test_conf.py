"""kube-batch's configuration is parsed as in kube-batch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from asched.config.batch import (
    DEFAULT_CONF,
    ConfError,
    ConfSyntaxError,
    SessionConf,
    UnknownActionError,
    parse_conf,
)
from asched.framework.sessions import Callback, PluginOption, Tier

ACTIONS = ("allocate", "backfill", "preempt", "reclaim")


def conf(text: str) -> SessionConf:
    return parse_conf(text, ACTIONS)


def only_plugin(fields: str) -> PluginOption:
    [[option]] = conf(f"actions: allocate\ntiers:\n- plugins:\n  - {fields}\n").tiers
    return option


def test_default_configuration() -> None:
    found = conf(DEFAULT_CONF)
    assert found.actions == ("allocate", "backfill")
    assert [[option.name for option in tier] for tier in found.tiers] == [
        ["priority", "gang"],
        ["drf", "predicates", "proportion", "nodeorder"],
    ]
    assert all(not o.disabled and not o.arguments for tier in found.tiers for o in tier)


def test_action_names_are_trimmed_and_may_repeat() -> None:
    assert conf('actions: " allocate ,  preempt,allocate"').actions == (
        "allocate",
        "preempt",
        "allocate",
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('actions: "allocate, enqueue"', "failed to found Action  enqueue, ignore it"),
        ("actions: 3", "failed to found Action 3, ignore it"),
        ('actions: ""', "failed to found Action , ignore it"),
        ("actions: allocate,", "failed to found Action , ignore it"),
        ("tiers: []", "failed to found Action , ignore it"),
        ("", "failed to found Action , ignore it"),
    ],
)
def test_unknown_action_is_named(text: str, message: str) -> None:
    with pytest.raises(UnknownActionError) as error:
        conf(text)
    assert str(error.value) == message


@pytest.mark.parametrize(
    ("word", "enabled"),
    [
        ("yes", True), ("no", False), ("On", True), ("OFF", False), ("true", True),
        ("False", False), ("y", True), ("n", False), ("~", True), ("", True),
    ],
)  # fmt: skip
def test_booleans_are_yaml_1_1(word: str, enabled: bool) -> None:
    option = only_plugin(f"{{name: gang, enableJobReady: {word}}}")
    assert (Callback.JOB_READY not in option.disabled) is enabled


def test_disabled_flags_are_ordered_and_unknown_keys_ignored() -> None:
    option = only_plugin(
        "{name: drf, enableTaskOrder: false, enableJobOrder: no, enableWonders: false}"
    )
    assert option == PluginOption("drf", (Callback.JOB_ORDER, Callback.TASK_ORDER))


def test_numbers_and_booleans_are_accepted_as_strings() -> None:
    option = only_plugin("{name: 7, arguments: {a: 20, b: true, c: 1.50, 4: x, d: ~, e: 0x10}}")
    assert option.name == "7"
    assert option.arguments == {"a": "20", "b": "true", "c": "1.50", "4": "x", "d": "", "e": "0x10"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('actions: "allocate"\ntiers:\n- plugins:\n  - name: gang\n   - name: drf\n', "line 5"),
        ("actions: [allocate]", "line 1: expected a text, found a list"),
        ("actions: allocate\ntiers: many", 'line 2: expected a list, found "many"'),
        ("[]", "line 1: expected a mapping, found a list"),
        ("actions: \t{", "line 1"),
        ("actions: allocate\ntiers: [{plugins: [{enableJobOrder: maybe}]}]", "a boolean"),
        ("actions: !!python/object:os.system x", "expected a text"),
    ],
)
def test_invalid_configuration_is_rejected_with_its_line(text: str, message: str) -> None:
    with pytest.raises(ConfSyntaxError, match=r"^yaml: ") as error:
        conf(text)
    assert message in str(error.value)


def shown(tiers: tuple[Tier, ...]) -> list[list[dict[str, Any]]]:
    """Tiers in the form of the recorded cases."""
    return [
        [
            {"name": option.name}
            | ({"disabled": [*option.disabled]} if option.disabled else {})
            | ({"arguments": option.arguments} if option.arguments else {})
            for option in tier
        ]
        for tier in tiers
    ]


@pytest.mark.shared
def test_all_recorded_configurations(shared_dir: Path) -> None:
    files = sorted((shared_dir / "golden" / "batch").glob("*/*.json"))
    errors = 0
    for file in files:
        document = json.loads(file.read_text())
        expected = document["expect"]["stable"]
        error = expected.get("loadError")
        if error is None:
            found = conf(document["conf"])
            assert [*found.actions] == expected["actions"], file
            assert shown(found.tiers) == expected["tiers"], file
            continue
        errors += 1
        with pytest.raises(ConfError) as raised:
            conf(document["conf"])
        if not error.startswith("yaml:"):
            assert str(raised.value) == error
    assert len(files) > 100
    assert errors >= 3
