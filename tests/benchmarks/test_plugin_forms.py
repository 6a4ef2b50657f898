"""The benchmark of plugin forms compares plugins with equal results."""

from __future__ import annotations

import pytest

from asched.framework import Plugin
from asched.testing import node, pod, profile, run_filter, schedule, scores
from asched.testing.checks import CheckOutcome, check_plugin
from benchmarks.plugin_forms import AllNodesPlugin, NodeScopedPlugin, PerNodePlugin, decision_ms

FORMS: tuple[type[Plugin], ...] = (PerNodePlugin, NodeScopedPlugin, AllNodesPlugin)


@pytest.mark.parametrize("form", FORMS)
def test_decision_is_measured_for_each_form(form: type[Plugin]) -> None:
    assert decision_ms([form], nodes=8, pods=3) > 0


def test_all_forms_give_equal_results() -> None:
    cluster = [
        node("red", labels={"team": "red"}),
        node("blue", labels={"team": "blue"}),
        node("shared"),
        node("full", cpu="1"),
        pod("bound", memory="8Gi", node="red"),
    ]
    incoming = pod("p", cpu="2", labels={"team": "red"})
    passing = [
        [name for name, status in run_filter(form, incoming, cluster).items() if status.is_success]
        for form in FORMS
    ]
    assert passing == [["red", "shared"]] * 3
    assert [scores(form, incoming, cluster) for form in FORMS] == [{"red": 75, "shared": 100}] * 3
    placed = [schedule(profile(form), cluster, [incoming]).nodes["p"] for form in FORMS]
    assert len({*placed}) == 1


@pytest.mark.parametrize("form", FORMS)
def test_forms_pass_plugin_checks(form: type[Plugin]) -> None:
    assert [f.message for f in check_plugin(form) if f.outcome is CheckOutcome.FAILED] == []
