"""The test kit: one plugin, or a profile, on a virtual cluster."""

from __future__ import annotations

from pathlib import Path

import pytest

from asched.config.file import ConfigFileError
from asched.framework import SUCCESS, Code
from asched.framework.runtime.plugin_calls import PluginFailure
from asched.framework.runtime.strict import ConfigurationError
from asched.testing import (
    instance,
    node,
    nodes,
    pod,
    pod_group,
    pods,
    profile,
    profile_setup,
    run_filter,
    schedule,
    scores,
)
from tests.testing.spreading import Forgetful, Raises, Teams

CLUSTER = [
    *nodes(3),
    *pods(2, "old", node="node-0", labels={"team": "a"}),
    pod("lone", node="node-1", labels={"team": "a"}),
]
MINE = pod("mine", labels={"team": "a"})


def test_run_filter_returns_status_of_each_node() -> None:
    found = run_filter(Teams, MINE, CLUSTER)
    assert found["node-1"] is found["node-2"] is SUCCESS
    assert (found["node-0"].code, found["node-0"].message, found["node-0"].plugin) == (
        Code.UNSCHEDULABLE, "too many of the team here", "Teams",
    )  # fmt: skip
    assert all(s is SUCCESS for s in run_filter(Teams, MINE, CLUSTER, args={"most": 3}).values())
    assert run_filter(Teams, MINE, CLUSTER, args=Teams.arguments(most=3)) == dict.fromkeys(
        ("node-0", "node-1", "node-2"), SUCCESS
    )


def test_run_filter_applies_pre_filter() -> None:
    gone = pod("gone", affinity=_only("node-2"))
    found = run_filter(instance_of("NodeAffinity"), gone, CLUSTER)
    assert [name for name, status in found.items() if status.is_success] == ["node-2"]
    assert found["node-0"].code is Code.UNSCHEDULABLE_AND_UNRESOLVABLE


def instance_of(name: str) -> type:
    """The class of an installed plugin."""
    return profile().registry.load(name)


def _only(name: str) -> dict[str, object]:
    term = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [name]}]}
    required = {"nodeSelectorTerms": [term]}
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}


def test_scores_cover_feasible_nodes() -> None:
    assert scores(Teams, MINE, CLUSTER) == {"node-1": 90, "node-2": 100}
    few = scores(instance_of("NodeResourcesBalancedAllocation"), pod(cpu="4"), [node("n")])
    assert few.keys() == {"n"}
    with pytest.raises(TypeError, match="Raises does not serve score"):
        scores(Raises, MINE, CLUSTER)


def test_plugin_exception_is_the_cause() -> None:
    with pytest.raises(PluginFailure, match="plugin Raises at Filter: LookupError: boom") as found:
        run_filter(Raises, MINE, CLUSTER)
    assert isinstance(found.value.__cause__, LookupError)


def test_invalid_arguments_are_rejected() -> None:
    with pytest.raises(ConfigurationError, match="expected 1 or more"):
        run_filter(Teams, MINE, CLUSTER, args={"most": 0})
    with pytest.raises(ConfigurationError, match="mots"):
        instance(Teams, args={"mots": 3})
    assert instance(Teams, args={"most": 3}).args.most == 3


def test_schedule_gives_nodes_and_messages() -> None:
    found = schedule(profile(Teams, alone=True), CLUSTER, pods(4, "new", labels={"team": "a"}))
    assert sorted(found.nodes.values()) == ["node-0", "node-0", *["node-1"] * 2, *["node-2"] * 2]
    assert found.nodes["new-0"] == "node-2"
    message = "0/3 nodes are available: 3 too many of the team here."
    assert found.pending == {"new-3": message}
    assert {name: status.message for name, status in found.rejections("new-3").items()} == (
        dict.fromkeys(("node-0", "node-1", "node-2"), "too many of the team here")
    )
    assert str(found["new-0"]) == "default/new-0 -> node-2"
    assert str(found["default/new-3"]) == f"default/new-3: {message}"
    assert found.divergence() is None
    with pytest.raises(KeyError, match="default/new-0 is on node-2"):
        found.inspection("new-0")


def test_plugin_runs_with_default_profile() -> None:
    full = [node("small", cpu="1"), node("large", cpu="4")]
    found = schedule(Teams, full, pods(3, cpu="2"))
    assert found.nodes == {"pod-0": "large", "pod-1": "large"}
    assert found.pending["pod-2"].startswith("0/2 nodes are available: ")
    assert found.rejections("pod-2")["small"].message == "Insufficient cpu"


def test_schedule_preempts_victims() -> None:
    low = pod("low", cpu="4", node="n")
    found = schedule(profile(), [node("n", cpu="4"), low], [pod("high", cpu="4", priority=9)])
    assert found.nodes == {"high": "n"}
    assert (found["low"].node, found["low"].evicted_for) == ("", "default/high")
    assert str(found["low"]) == "default/low: evicted for default/high"
    assert not found.pending


def test_schedule_places_whole_gangs() -> None:
    gang = profile("GangScheduling")
    cluster = [*nodes(2, cpu="2"), pod_group("g", 3)]
    found = schedule(gang, cluster, pods(3, cpu="2", group="g"))
    assert not found.nodes
    assert schedule(gang, [*cluster, node("third", cpu="2")], pods(3, cpu="2", group="g")).nodes


def test_divergence_finds_impure_plugin() -> None:
    Forgetful.calls.clear()
    found = schedule(profile(Forgetful, alone=True), nodes(7), pods(5))
    divergence = found.divergence()
    assert divergence is not None
    assert divergence.reason == "different decision"


CONFIG = """
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
profiles:
- schedulerName: mine
  plugins: {multiPoint: {enabled: [{name: Teams}]}}
  pluginConfig: [{name: Teams, args: {most: 1}}]
"""


def test_schedule_uses_configuration(tmp_path: Path) -> None:
    setup = profile_setup(CONFIG, Teams)
    found = schedule(setup, CLUSTER, [MINE, pod("theirs", scheduler_name="other")])
    assert found.nodes.pop("mine") == "node-2"
    assert found["theirs"].attempts == 0
    file = tmp_path / "c.yaml"
    file.write_text(CONFIG.replace("Teams", "GangScheduling").partition("  pluginConfig")[0])
    assert schedule(file, [node("n")], [MINE]).nodes == {"mine": "n"}
    with pytest.raises(ConfigFileError, match='unknown plugin "Teams"'):
        profile_setup(CONFIG)


def test_seed_breaks_ties() -> None:
    alone = profile(alone=True)
    drawn = {schedule(alone, nodes(9), [MINE], seed=seed).nodes["mine"] for seed in range(9)}
    assert len(drawn) > 2
