"""PluginTemplate on small clusters."""

from __future__ import annotations

import pytest
from asched.framework import SUCCESS, Code
from asched.framework.runtime.strict import ConfigurationError
from asched.testing import instance, node, nodes, pod, pods, profile, run_filter, schedule, scores
from asched.testing.fixtures import ScheduleFixture

from asched_plugin_template.plugin import PluginTemplate

TOO_LITTLE = "node(s) had too little cpu left over"
CLUSTER = [
    node("empty", cpu="10"),
    node("half", cpu="10"),
    pod("there", cpu="5", node="half"),
]


def test_filter_keeps_headroom() -> None:
    found = run_filter(PluginTemplate, pod(cpu="5"), CLUSTER)
    assert found["empty"] == SUCCESS
    assert found["half"].code is Code.UNSCHEDULABLE
    assert found["half"].message == TOO_LITTLE


def test_argument_sets_headroom() -> None:
    none = {"headroomPercent": 0}
    found = run_filter(PluginTemplate, pod(cpu="5"), CLUSTER, args=none)
    assert found["half"] == SUCCESS
    assert instance(PluginTemplate).args.headroom_percent == 10


def test_invalid_argument_is_rejected() -> None:
    with pytest.raises(ConfigurationError, match="expected 0 to 100"):
        instance(PluginTemplate, args={"headroomPercent": 101})


def test_score_prefers_free_cpu() -> None:
    found = scores(PluginTemplate, pod(cpu="1"), CLUSTER)
    assert found == {"empty": 90, "half": 40}


def test_plugin_works_in_a_profile(asched_schedule: ScheduleFixture) -> None:
    """With the default plugins, and alone. The fixture repeats all decisions after the test."""
    combined = profile(PluginTemplate)
    found = asched_schedule(combined, nodes(3, cpu="10"), pods(3, cpu="9"))
    assert sorted(found.nodes.values()) == ["node-0", "node-1", "node-2"]
    alone = profile(PluginTemplate, alone=True)
    found = asched_schedule(alone, CLUSTER, pods(4, cpu="2"))
    assert [found.nodes[f"pod-{n}"] for n in range(4)] == ["empty", "empty", "empty", "half"]


def test_rejection_has_a_reason() -> None:
    small = [node("small", cpu="2")]
    found = schedule(PluginTemplate, small, [pod("large", cpu="2")])
    assert found.rejections("large")["small"].message == TOO_LITTLE
    assert found.pending["large"].startswith(f"0/1 nodes are available: 1 {TOO_LITTLE}.")
