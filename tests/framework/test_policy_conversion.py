"""Conversion of legacy scheduler policies."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from asched.cli.main import app
from asched.config.file import ConfigFileError, Configuration, parse
from asched.config.policy_conversion import ConvertedPolicy, convert_policy_text
from asched.config.registry import PluginRegistry
from asched.framework.interface import ExtensionPoint

REGISTRY = PluginRegistry.discover()
MANDATORY = ["NodeUnschedulable", "TaintToleration"]
LATER = {"DynamicResources", "NodeDeclaredFeatures"}
"""Filters that are newer than policies and always enabled."""


def convert(**fields: Any) -> ConvertedPolicy:
    text = json.dumps({"kind": "Policy", "apiVersion": "v1", **fields})
    return convert_policy_text(text, "p.json", REGISTRY)


def checked(converted: ConvertedPolicy) -> Configuration:
    """The result, which ``asched config check`` accepts without warnings."""
    configuration = parse(converted.text, "converted", REGISTRY)
    assert configuration.warnings == ()
    return configuration


def filters(converted: ConvertedPolicy) -> list[str]:
    (profile,) = checked(converted).profiles
    found = [plugin.name for plugin in profile.plugins_at(ExtensionPoint.FILTER)]
    return [name for name in found if name not in LATER]


def scores(converted: ConvertedPolicy) -> dict[str, int]:
    (profile,) = checked(converted).profiles
    found = {p.name: p.weight for p in profile.plugins_at(ExtensionPoint.SCORE)}
    return {name: weight for name, weight in found.items() if name not in LATER}


def arguments(converted: ConvertedPolicy, plugin: str) -> dict[str, Any]:
    (profile,) = yaml.safe_load(converted.text)["profiles"]
    found: dict[str, Any] = next(
        (entry["args"] for entry in profile.get("pluginConfig", ()) if entry["name"] == plugin), {}
    )
    return found


PREDICATES = {
    "CheckNodeUnschedulable": [],
    "PodToleratesNodeTaints": [],
    "GeneralPredicates": ["NodeResourcesFit", "NodeName", "NodePorts", "NodeAffinity"],
    "HostName": ["NodeName"],
    "PodFitsHostPorts": ["NodePorts"],
    "PodFitsPorts": ["NodePorts"],
    "MatchNodeSelector": ["NodeAffinity"],
    "PodFitsResources": ["NodeResourcesFit"],
    "NoDiskConflict": ["VolumeRestrictions"],
    "MaxEBSVolumeCount": ["NodeVolumeLimits"],
    "MaxGCEPDVolumeCount": ["NodeVolumeLimits"],
    "MaxCSIVolumeCountPred": ["NodeVolumeLimits"],
    "MaxAzureDiskVolumeCount": ["NodeVolumeLimits"],
    "MaxCinderVolumeCount": ["NodeVolumeLimits"],
    "CheckVolumeBinding": ["VolumeBinding"],
    "NoVolumeZoneConflict": ["VolumeZone"],
    "EvenPodsSpread": ["PodTopologySpread"],
    "MatchInterPodAffinity": ["InterPodAffinity"],
}


@pytest.mark.parametrize("name", PREDICATES)
def test_predicate_is_converted_to_filters(name: str) -> None:
    converted = convert(predicates=[{"name": name}], priorities=[])
    assert sorted(filters(converted)) == sorted([*MANDATORY, *PREDICATES[name]])
    assert scores(converted) == {}
    assert converted.notices == ()


def test_filters_are_in_predicate_order() -> None:
    names = ["MatchInterPodAffinity", "NoDiskConflict", "HostName", "PodFitsResources"]
    converted = convert(predicates=[{"name": name} for name in names], priorities=[])
    assert filters(converted) == [
        "NodeUnschedulable",
        "NodeName",
        "NodeResourcesFit",
        "VolumeRestrictions",
        "TaintToleration",
        "InterPodAffinity",
    ]


def test_filter_enables_its_other_points() -> None:
    (profile,) = checked(convert(predicates=[{"name": "CheckVolumeBinding"}])).profiles
    for point in (ExtensionPoint.PRE_FILTER, ExtensionPoint.RESERVE, ExtensionPoint.PRE_BIND):
        assert "VolumeBinding" in [plugin.name for plugin in profile.plugins_at(point)]
    assert profile.plugins_at(ExtensionPoint.QUEUE_SORT)[0].name == "PrioritySort"
    assert profile.plugins_at(ExtensionPoint.BIND)[0].name == "DefaultBinder"
    assert "DefaultPreemption" in [p.name for p in profile.plugins_at(ExtensionPoint.POST_FILTER)]
    assert "SchedulingGates" in [p.name for p in profile.plugins_at(ExtensionPoint.PRE_ENQUEUE)]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("BalancedResourceAllocation", "NodeResourcesBalancedAllocation"),
        ("EvenPodsSpreadPriority", "PodTopologySpread"),
        ("ImageLocalityPriority", "ImageLocality"),
        ("InterPodAffinityPriority", "InterPodAffinity"),
        ("LeastRequestedPriority", "NodeResourcesFit"),
        ("MostRequestedPriority", "NodeResourcesFit"),
        ("NodeAffinityPriority", "NodeAffinity"),
        ("SelectorSpreadPriority", "PodTopologySpread"),
        ("ServiceSpreadingPriority", "PodTopologySpread"),
        ("TaintTolerationPriority", "TaintToleration"),
    ],
)
def test_priority_is_converted_to_score(name: str, expected: str) -> None:
    converted = convert(predicates=[], priorities=[{"name": name, "weight": 7}])
    assert scores(converted) == {expected: 7}
    assert filters(converted) == MANDATORY
    assert converted.notices == ()


def test_missing_lists_select_policy_defaults() -> None:
    converted = convert()
    assert filters(converted) == [
        "NodeUnschedulable",
        "NodeResourcesFit",
        "NodeName",
        "NodePorts",
        "NodeAffinity",
        "VolumeRestrictions",
        "TaintToleration",
        "NodeVolumeLimits",
        "VolumeBinding",
        "VolumeZone",
        "PodTopologySpread",
        "InterPodAffinity",
    ]
    assert scores(converted) == {
        "NodeResourcesBalancedAllocation": 1,
        "PodTopologySpread": 2,
        "ImageLocality": 1,
        "InterPodAffinity": 1,
        "NodeResourcesFit": 1,
        "NodeAffinity": 1,
        "TaintToleration": 1,
    }
    assert [notice.partition(":")[0] for notice in converted.notices] == ["p.json"] * 2
    assert "NodePreferAvoidPodsPriority: no counterpart" in converted.notices[0]
    assert "with the weight 2 of EvenPodsSpreadPriority" in converted.notices[1]


def test_empty_lists_disable_defaults() -> None:
    converted = convert(predicates=[], priorities=[])
    assert (filters(converted), scores(converted)) == (MANDATORY, {})


@pytest.mark.parametrize(
    ("priorities", "strategy"),
    [
        ([{"name": "LeastRequestedPriority", "weight": 1}], {"type": "LeastAllocated"}),
        ([{"name": "MostRequestedPriority", "weight": 1}], {"type": "MostAllocated"}),
        (
            [
                {
                    "name": "Packing",
                    "weight": 2,
                    "argument": {
                        "requestedToCapacityRatioArguments": {
                            "shape": [
                                {"utilization": 0, "score": 0},
                                {"utilization": 100, "score": 10},
                            ],
                            "resources": [
                                {"name": "example.com/gpu", "weight": 3},
                                {"name": "cpu"},
                            ],
                        }
                    },
                }
            ],
            {
                "type": "RequestedToCapacityRatio",
                "requestedToCapacityRatio": {
                    "shape": [
                        {"utilization": 0, "score": 0},
                        {"utilization": 100, "score": 10},
                    ]
                },
                "resources": [
                    {"name": "example.com/gpu", "weight": 3},
                    {"name": "cpu", "weight": 1},
                ],
            },
        ),
    ],
)
def test_resource_priority_is_converted_to_strategy(
    priorities: list[Any], strategy: dict[str, Any]
) -> None:
    converted = convert(predicates=[], priorities=priorities)
    checked(converted)
    found = arguments(converted, "NodeResourcesFit")["scoringStrategy"]
    both = {"resources": [{"name": "cpu", "weight": 1}, {"name": "memory", "weight": 1}]}
    assert found == both | strategy


def test_conflicting_strategies_are_reported() -> None:
    converted = convert(
        predicates=[],
        priorities=[
            {"name": "MostRequestedPriority", "weight": 5},
            {"name": "LeastRequestedPriority", "weight": 1},
        ],
    )
    assert scores(converted) == {"NodeResourcesFit": 1}
    assert converted.notices == (
        (
            "p.json:1: priorities[0]: MostRequestedPriority has no counterpart with"
            " LeastRequestedPriority: NodeResourcesFit has one strategy"
        ),
    )


@pytest.mark.parametrize(
    ("names", "defaulting"),
    [
        (["EvenPodsSpreadPriority"], "List"),
        (["SelectorSpreadPriority"], "System"),
        (["SelectorSpreadPriority", "EvenPodsSpreadPriority"], "System"),
    ],
)
def test_service_spreading_is_converted_to_default_constraint(
    names: list[str], defaulting: str
) -> None:
    converted = convert(predicates=[], priorities=[{"name": n, "weight": 2} for n in names])
    assert arguments(converted, "PodTopologySpread") == {"defaultingType": defaulting}
    assert scores(converted) == {"PodTopologySpread": 2}
    assert converted.notices == ()


def test_label_presence_is_converted_to_added_affinity() -> None:
    argument = {"labels": ["zone", "rack"], "presence": True}
    absent = {"labels": ["retiring"], "presence": False}
    converted = convert(
        predicates=[
            {"name": "Placed", "argument": {"labelsPresence": argument}},
            {"name": "Staying", "argument": {"labelsPresence": absent}},
            {"name": "CheckNodeLabelPresence", "argument": {"labelsPresence": argument}},
        ],
        priorities=[],
    )
    (term,) = arguments(converted, "NodeAffinity")["addedAffinity"][
        "requiredDuringSchedulingIgnoredDuringExecution"
    ]["nodeSelectorTerms"]
    assert term["matchExpressions"] == [
        {"key": "zone", "operator": "Exists"},
        {"key": "rack", "operator": "Exists"},
        {"key": "retiring", "operator": "DoesNotExist"},
    ]
    assert "NodeAffinity" in filters(converted)
    assert [notice.split(":")[2].strip() for notice in converted.notices] == [
        "predicates[0]",
        "predicates[1]",
        "predicates[2].argument",
    ]


def test_unsupported_entries_are_reported_with_line_and_comment() -> None:
    text = """kind: Policy
apiVersion: v1
predicates:
- name: RegionAffinity
  argument:
    serviceAffinity:
      labels: [region]
priorities:
- name: RackSpread
  weight: 1
  argument: {serviceAntiAffinity: {label: rack}}
- name: PreferSsd
  weight: 1
  argument: {labelPreference: {label: ssd, presence: true}}
- {name: EqualPriority, weight: 1}
alwaysCheckAllPredicates: true
"""
    converted = convert_policy_text(text, "p.yaml", REGISTRY)
    checked(converted)
    assert [notice.split(": ")[:2] for notice in converted.notices] == [
        ["p.yaml:4", "predicates[0].name"],
        ["p.yaml:11", "priorities[0].argument.serviceAntiAffinity"],
        ["p.yaml:14", "priorities[1].argument.labelPreference"],
        ["p.yaml:15", "priorities[2].name"],
        ["p.yaml:16", "alwaysCheckAllPredicates"],
    ]
    for notice in converted.notices:
        assert f"# {notice}\n" in converted.text


def test_hard_pod_affinity_weight_is_converted() -> None:
    converted = convert(hardPodAffinitySymmetricWeight=42)
    assert arguments(converted, "InterPodAffinity") == {"hardPodAffinityWeight": 42}


def test_extenders_are_converted() -> None:
    converted = convert(
        predicates=[],
        priorities=[],
        extenders=[
            {
                "urlPrefix": "https://127.0.0.1:8888/scheduler",
                "filterVerb": "filter",
                "prioritizeVerb": "prioritize",
                "preemptVerb": "preempt",
                "bindVerb": "bind",
                "weight": 5,
                "enableHttps": True,
                "tlsConfig": {"serverName": "ext", "caData": "YWJj", "keyFile": "/k"},
                "httpTimeout": 30_000_000_000,
                "nodeCacheCapable": True,
                "managedResources": [
                    {"name": "example.com/a", "ignoredByScheduler": True},
                    {"name": "example.com/b"},
                ],
                "ignorable": True,
            }
        ],
    )
    assert yaml.safe_load(converted.text)["extenders"] == [
        {
            "urlPrefix": "https://127.0.0.1:8888/scheduler",
            "filterVerb": "filter",
            "preemptVerb": "preempt",
            "prioritizeVerb": "prioritize",
            "weight": 5,
            "bindVerb": "bind",
            "enableHTTPS": True,
            "tlsConfig": {"serverName": "ext", "keyFile": "/k", "caData": "YWJj"},
            "httpTimeout": "30s",
            "nodeCacheCapable": True,
            "managedResources": [
                {"name": "example.com/a", "ignoredByScheduler": True},
                {"name": "example.com/b"},
            ],
            "ignorable": True,
        }
    ]
    (extender,) = checked(converted).scheduler.extenders
    assert extender.enable_https


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"kind": "Polity"}, ['p.json:1: kind: expected Policy, got "Polity"']),
        (
            {"predicates": [{"name": "PodFitsResource"}]},
            [
                (
                    'p.json:1: predicates[0].name: unknown predicate "PodFitsResource";'
                    " did you mean PodFitsResources?"
                )
            ],
        ),
        (
            {"priorities": [{"name": "BestPriority", "weight": 0}]},
            [
                "p.json:1: priorities[0].weight: must be in the range 1 to 2147483647, got 0",
                'p.json:1: priorities[0].name: unknown priority "BestPriority"',
            ],
        ),
        (
            {"priorities": [{"name": "RequestedToCapacityRatio", "weight": 1}]},
            ["p.json:1: priorities[0].argument: required: requestedToCapacityRatioArguments"],
        ),
        (
            {"predicates": [{"name": "X", "argument": {}}]},
            [
                (
                    "p.json:1: predicates[0].argument: expected exactly one of serviceAffinity,"
                    " labelsPresence, got 0"
                )
            ],
        ),
        (
            {"hardPodAffinitySymmetricWeight": 101},
            ["p.json:1: hardPodAffinitySymmetricWeight: must be in the range 1 to 100, got 101"],
        ),
        ({"predicate": []}, ["p.json:1: predicate: unknown field; did you mean predicates?"]),
        (
            {"extenders": [{"urlPrefix": "nowhere"}]},
            ['p.json:1: extenders[0].urlPrefix: expected an http or https URL, got "nowhere"'],
        ),
    ],
)
def test_problems_are_reported_with_lines(fields: dict[str, Any], expected: list[str]) -> None:
    with pytest.raises(ConfigFileError) as caught:
        convert(
            predicates=fields.pop("predicates", []),
            priorities=fields.pop("priorities", []),
            **fields,
        )
    assert list(caught.value.lines) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("{", "p: not valid YAML"),
        ("", "p: expected one document of kind Policy, got 0"),
        ("a: 1\n---\na: 2\n", "p: expected one document of kind Policy, got 2"),
        ("[]", "p:1: expected a mapping, got a list"),
    ],
)
def test_invalid_policy_is_rejected(text: str, expected: str) -> None:
    with pytest.raises(ConfigFileError) as caught:
        convert_policy_text(text, "p", REGISTRY)
    (line,) = caught.value.lines
    assert line.replace("p:1: not", "p: not").startswith(expected)


def test_convert_command_writes_configuration(tmp_path: Path) -> None:
    policy, out = tmp_path / "policy.json", tmp_path / "config.yaml"
    policy.write_text('{"kind": "Policy", "apiVersion": "v1", "alwaysCheckAllPredicates": true}')
    runner = CliRunner()
    result = runner.invoke(app, ["config", "convert", str(policy), "-o", str(out)])
    assert (result.exit_code, result.stdout) == (0, "")
    assert f"{policy}:1: alwaysCheckAllPredicates: no counterpart" in result.stderr
    assert runner.invoke(app, ["config", "check", str(out)]).exit_code == 0
    again = runner.invoke(app, ["config", "convert", str(policy)])
    assert again.stdout == out.read_text()
    nowhere = runner.invoke(
        app, ["config", "convert", str(policy), "-o", str(tmp_path / "a" / "b")]
    )
    assert nowhere.exit_code == 1
    missing = runner.invoke(app, ["config", "convert", str(tmp_path / "missing")])
    assert missing.exit_code == 2
