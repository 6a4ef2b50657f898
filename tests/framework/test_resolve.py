"""Profiles: defaults, merging, MultiPoint expansion and arguments of kube-scheduler."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asched.config.kube_scheduler import (
    KubeSchedulerConfiguration,
    PluginRef,
    Plugins,
    PluginSet,
    ProfileConfig,
)
from asched.config.registry import PluginRegistry
from asched.config.resolve import DEFAULT_PLUGINS, find_ineffective, resolve
from asched.framework.interface import ExtensionPoint
from asched.framework.runtime.profile import PluginOrigin, ProfileSpec
from asched.framework.runtime.strict import ConfigurationError
from tests.framework.decoding import decode_configuration
from tests.framework.sample_plugins import SAMPLES

REGISTRY = PluginRegistry().including(*SAMPLES)
HEAD = {"apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "KubeSchedulerConfiguration"}
DEFAULT_FILTER = ["NodeName", "TaintToleration", "NodeResourcesFit"]
DEFAULT_SCORE = [("TaintToleration", 3), ("NodeResourcesFit", 1), ("ImageLocality", 1)]


def profiles(*written: dict[str, Any], **more: Any) -> tuple[ProfileSpec, ...]:
    return resolve(decode_configuration({**HEAD, "profiles": list(written), **more}), REGISTRY)


def with_plugins(plugins: dict[str, Any]) -> ProfileSpec:
    (spec,) = profiles({"plugins": plugins})
    return spec


def names(spec: ProfileSpec, point: ExtensionPoint) -> list[str]:
    return [entry.name for entry in spec.plugins_at(point)]


def score(spec: ProfileSpec) -> list[tuple[str, int]]:
    return [(entry.name, entry.weight) for entry in spec.plugins_at(ExtensionPoint.SCORE)]


def refs(*written: str) -> list[dict[str, Any]]:
    """``name`` or ``name=weight``."""
    split = [item.partition("=") for item in written]
    return [{"name": n, **({"weight": int(w)} if w else {})} for n, _, w in split]


def errors(*written: dict[str, Any], **more: Any) -> list[str]:
    with pytest.raises(ConfigurationError) as caught:
        profiles(*written, **more)
    return [str(problem) for problem in caught.value.problems]


@pytest.mark.parametrize("document", [HEAD, {**HEAD, "profiles": []}, {**HEAD, "profiles": [{}]}])
def test_missing_profiles_select_default_profile(document: dict[str, Any]) -> None:
    (spec,) = resolve(decode_configuration(document), REGISTRY)
    assert spec.scheduler_name == "default-scheduler"
    assert names(spec, ExtensionPoint.QUEUE_SORT) == ["PrioritySort"]
    assert names(spec, ExtensionPoint.FILTER) == DEFAULT_FILTER
    assert names(spec, ExtensionPoint.PRE_SCORE) == ["TaintToleration", "NodeResourcesFit"]
    assert score(spec) == DEFAULT_SCORE
    assert names(spec, ExtensionPoint.BIND) == ["DefaultBinder"]
    assert spec.percentage_of_nodes_to_score == 0
    assert spec.arguments == {
        "NodeResourcesFit": {
            "type": "LeastAllocated",
            "resources": [{"name": "cpu", "weight": 1}, {"name": "memory", "weight": 1}],
            "minFree": 0,
        }
    }
    assert PluginOrigin("NodeName", "", "") in spec.origins


@pytest.mark.parametrize(
    ("plugins", "expected"),
    [
        ({"score": {"disabled": refs("TaintToleration")}}, DEFAULT_SCORE[1:]),
        ({"score": {"disabled": refs("*")}}, []),
        (
            {"score": {"disabled": refs("*"), "enabled": refs("Third=4", "ImageLocality")}},
            [("Third", 4), ("ImageLocality", 1)],
        ),
        # What overrides a MultiPoint plugin comes first, in the order written at the point.
        (
            {"score": {"enabled": refs("ImageLocality=7", "TaintToleration=5")}},
            [("ImageLocality", 7), ("TaintToleration", 5), ("NodeResourcesFit", 1)],
        ),
        # What MultiPoint does not have comes last.
        (
            {"score": {"enabled": refs("Third=9", "ImageLocality=7")}},
            [("ImageLocality", 7), ("TaintToleration", 3), ("NodeResourcesFit", 1), ("Third", 9)],
        ),
        # Enabled at the point wins over disabled there; being disabled, it overrides nothing.
        (
            {
                "score": {
                    "enabled": refs("TaintToleration=5"),
                    "disabled": refs("TaintToleration"),
                }
            },
            [("NodeResourcesFit", 1), ("ImageLocality", 1), ("TaintToleration", 5)],
        ),
        # Enabled again at MultiPoint: the place stays, the weight is the new one, and none means 1.
        (
            {"multiPoint": {"enabled": refs("ImageLocality=8", "TaintToleration")}},
            [("TaintToleration", 1), ("NodeResourcesFit", 1), ("ImageLocality", 8)],
        ),
        (
            {"multiPoint": {"enabled": refs("Third=2")}},
            [*DEFAULT_SCORE, ("Third", 2)],
        ),
        (
            {
                "multiPoint": {"enabled": refs("Third=2", "ImageLocality=8")},
                "score": {"enabled": refs("ImageLocality=3")},
            },
            [("ImageLocality", 3), ("TaintToleration", 3), ("NodeResourcesFit", 1), ("Third", 2)],
        ),
        # A plugin disabled and enabled at MultiPoint moves to the end.
        (
            {
                "multiPoint": {
                    "disabled": refs("TaintToleration"),
                    "enabled": refs("TaintToleration=4"),
                }
            },
            [("NodeResourcesFit", 1), ("ImageLocality", 1), ("TaintToleration", 4)],
        ),
        (
            {
                "multiPoint": {
                    "disabled": refs("*"),
                    "enabled": refs("Third", "PrioritySort", "DefaultBinder"),
                }
            },
            [("Third", 1)],
        ),
        ({"multiPoint": {"disabled": refs("TaintToleration")}}, DEFAULT_SCORE[1:]),
        ({"filter": {"disabled": refs("*")}}, DEFAULT_SCORE),
        ({"score": None, "multiPoint": {"enabled": None}}, DEFAULT_SCORE),
    ],
)
def test_score_plugins_are_merged(plugins: dict[str, Any], expected: list[tuple[str, int]]) -> None:
    assert score(with_plugins(plugins)) == expected


def test_default_plugin_missing_from_registry_is_omitted() -> None:
    small = PluginRegistry().including(
        *(plugin for plugin in SAMPLES if plugin.name != "TaintToleration")
    )
    (spec,) = resolve(KubeSchedulerConfiguration(), small)
    assert score(spec) == DEFAULT_SCORE[1:]
    assert "VolumeBinding" in {ref.name for ref in DEFAULT_PLUGINS}


def test_profile_percentage_overrides_global_percentage() -> None:
    first, second = profiles(
        {"schedulerName": "a", "percentageOfNodesToScore": 0},
        {"schedulerName": "b"},
        percentageOfNodesToScore=30,
    )
    assert (first.percentage_of_nodes_to_score, second.percentage_of_nodes_to_score) == (0, 30)


ALL_OFF = {"disabled": refs("*")}


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        (
            [{"plugins": {"score": {"enabled": refs("Third", "Third")}}}],
            ["profiles[0].plugins.score.enabled[1]: plugin Third is enabled twice"],
        ),
        (
            [{"plugins": {"multiPoint": {"enabled": refs("Third", "Third")}}}],
            ["profiles[0].plugins.multiPoint.enabled[1]: plugin Third is enabled twice"],
        ),
        (
            [{"plugins": {"multiPoint": {"enabled": refs("NodeName", "NodeName")}}}],
            ["profiles[0].plugins.multiPoint.enabled[0]: plugin NodeName is enabled twice"],
        ),
        (
            [{"plugins": {"score": {"enabled": refs("NodeName")}}}],
            [
                (
                    "profiles[0].plugins.score.enabled[0]: plugin NodeName does not serve score;"
                    " it serves filter"
                )
            ],
        ),
        (
            [{"plugins": {"filter": {"enabled": refs("NodeNam")}}}],
            [
                (
                    'profiles[0].plugins.filter.enabled[0].name: unknown plugin "NodeNam";'
                    " did you mean NodeName?"
                )
            ],
        ),
        (
            [{"plugins": {"filter": {"enabled": refs("VolumeZone")}}}],
            [
                (
                    "profiles[0].plugins.filter.enabled[0].name: plugin VolumeZone of"
                    " kube-scheduler is not provided by this installation"
                )
            ],
        ),
        (
            [{"plugins": {"queueSort": ALL_OFF, "bind": ALL_OFF}}],
            [
                "profiles[0].plugins.queueSort: exactly one queueSort plugin is needed, got none",
                "profiles[0].plugins.bind: at least one bind plugin is needed",
            ],
        ),
        (
            [{"plugins": {"queueSort": {"enabled": refs("OtherSort")}}}],
            [
                (
                    "profiles[0].plugins.queueSort: exactly one queueSort plugin is needed, got"
                    " PrioritySort, OtherSort"
                )
            ],
        ),
        (
            [{"schedulerName": "a"}, {"schedulerName": "a"}, {}],
            [
                "profiles[2].schedulerName: required where there are several profiles",
                'profiles[1].schedulerName: "a" is already used by profiles[0]',
            ],
        ),
        (
            [
                {"schedulerName": "a"},
                {
                    "schedulerName": "b",
                    "plugins": {"queueSort": {**ALL_OFF, "enabled": refs("OtherSort")}},
                },
            ],
            [
                (
                    "profiles[1].plugins.queueSort: must be the same, with the same arguments,"
                    " as in profiles[0]: all profiles share one queue"
                )
            ],
        ),
    ],
)
def test_invalid_configuration_is_rejected(
    written: list[dict[str, Any]], expected: list[str]
) -> None:
    assert errors(*written) == expected


def test_custom_queue_sort_for_all_profiles() -> None:
    plugins = {"queueSort": {**ALL_OFF, "enabled": refs("OtherSort")}}
    found = profiles(
        {"schedulerName": "a", "plugins": plugins}, {"schedulerName": "b", "plugins": plugins}
    )
    assert [names(spec, ExtensionPoint.QUEUE_SORT) for spec in found] == [["OtherSort"]] * 2


def with_args(args: Any, name: str = "NodeResourcesFit") -> dict[str, Any]:
    return {"pluginConfig": [{"name": name, "args": args}]}


def test_arguments_get_defaults() -> None:
    (spec,) = profiles(
        with_args(
            {
                "apiVersion": HEAD["apiVersion"],
                "kind": "NodeResourcesFitArgs",
                "type": "MostAllocated",
                "resources": [{"name": "cpu"}],
                "minFree": None,
            }
        )
    )
    assert spec.arguments["NodeResourcesFit"] == {
        "type": "MostAllocated",
        "resources": [{"name": "cpu", "weight": 1}],
        "minFree": 0,
    }


@pytest.mark.parametrize(
    ("profile", "expected"),
    [
        (
            with_args({"type": "Foo", "mni": 3}),
            [
                "args.mni: unknown field; expected one of minFree, resources, type",
                'args.type: unknown value "Foo"; expected one of LeastAllocated, MostAllocated',
            ],
        ),
        (with_args({"minFree": 101}), ["args: minFree must be at most 100, got 101"]),
        (
            with_args({"kind": "FooArgs", "apiVersion": "v1"}),
            [
                'args.apiVersion: expected kubescheduler.config.k8s.io/v1, got "v1"',
                'args.kind: expected NodeResourcesFitArgs, got "FooArgs"',
            ],
        ),
        (with_args({"a": 1}, "ImageLocality"), ["args.a: plugin ImageLocality takes no arguments"]),
        (
            with_args({}, "ImageLocalty"),
            ['name: unknown plugin "ImageLocalty"; did you mean ImageLocality?'],
        ),
    ],
)
def test_invalid_arguments_are_rejected(profile: dict[str, Any], expected: list[str]) -> None:
    assert errors(profile) == [f"profiles[0].pluginConfig[0].{line}" for line in expected]


def test_duplicate_plugin_config_is_rejected() -> None:
    entry = {"name": "NodeResourcesFit", "args": {}}
    assert errors({"pluginConfig": [entry, entry]}) == [
        "profiles[0].pluginConfig[1].name: plugin NodeResourcesFit is configured twice"
    ]


def test_ineffective_settings_are_warnings() -> None:
    config = decode_configuration(
        {
            **HEAD,
            "profiles": [
                {
                    "plugins": {"score": {"disabled": refs("ImageLocalty", "VolumeBinding")}},
                    "pluginConfig": [{"name": "Third", "args": {}}, {"name": "VolumeBinding"}],
                }
            ],
        }
    )
    assert resolve(config, REGISTRY)
    assert [str(problem) for problem in find_ineffective(config, REGISTRY)] == [
        'profiles[0].plugins.score.disabled[0].name: no effect: unknown plugin "ImageLocalty"',
        "profiles[0].pluginConfig[0]: no effect: plugin Third is not enabled in this profile",
        (
            "profiles[0].pluginConfig[1]: no effect: plugin VolumeBinding is not enabled in this"
            " profile"
        ),
    ]


SCORING = ["TaintToleration", "NodeResourcesFit", "ImageLocality", "Third"]
references = st.lists(
    st.builds(PluginRef, st.sampled_from(SCORING), st.integers(0, 5)),
    max_size=4,
    unique_by=lambda ref: ref.name,
).map(tuple)
sets = st.builds(
    PluginSet,
    references,
    st.lists(st.sampled_from(SCORING), max_size=3).map(lambda ns: tuple(map(PluginRef, ns))),
)


@given(at_score=sets, multi_point=sets)
def test_merge_equals_declarative_rules(at_score: PluginSet, multi_point: PluginSet) -> None:
    """Compares with a declarative definition of the merge."""
    plugins = Plugins(score=at_score, multi_point=multi_point)
    config = KubeSchedulerConfiguration(profiles=(ProfileConfig(plugins=plugins),))
    (spec,) = resolve(config, REGISTRY)
    own = {ref.name: ref.weight for ref in at_score.enabled}
    off_here = {ref.name for ref in at_score.disabled}
    wide = {ref.name: ref.weight for ref in DEFAULT_PLUGINS if ref.name in SCORING}
    for ref in multi_point.disabled:
        wide.pop(ref.name, None)
    wide |= {ref.name: ref.weight for ref in multi_point.enabled}
    found = dict(score(spec))
    assert found == {
        name: (own[name] if name in own else wide[name]) or 1
        for name in SCORING
        if name in own or (name in wide and name not in off_here)
    }
    order = [name for name, _ in score(spec)]
    assert len(order) == len(set(order))
    places = [(0 if n in wide and n not in off_here else 2) if n in own else 1 for n in order]
    assert places == sorted(places)
    written = [ref.name for ref in at_score.enabled]
    for place in (0, 2):
        group = [n for n, p in zip(order, places, strict=True) if p == place]
        assert group == [n for n in written if n in group]
    assert resolve(config, REGISTRY) == (spec,)


@pytest.mark.shared
def test_recorded_configurations_decode(shared_dir: Path) -> None:
    found = 0
    for path in sorted((shared_dir / "golden" / "kube").glob("*/*.json")):
        config = json.loads(path.read_bytes())["config"]
        if config is not None:
            assert decode_configuration(config).profiles[0].scheduler_name == "default-scheduler"
            found += 1
    assert found > 0
