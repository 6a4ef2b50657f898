"""The benchmark of plugins' forms measures what it says: plugins that decide alike."""

from __future__ import annotations

import pytest

from asched.framework import Plugin
from asched.testing import node, pod, profile, run_filter, schedule, scores
from asched.testing.checks import CheckOutcome, check_plugin
from benchmarks.plugin_forms import AllAtOnce, OneByOne, OneByOneOfNode, decision_ms

FORMS: tuple[type[Plugin], ...] = (OneByOne, OneByOneOfNode, AllAtOnce)


@pytest.mark.parametrize("form", FORMS)
def test_a_form_is_measured(form: type[Plugin]) -> None:
    assert decision_ms([form], nodes=8, pods=3) > 0


def test_all_forms_say_the_same() -> None:
    cluster = [
        node("mine", labels={"team": "red"}), node("theirs", labels={"team": "blue"}),
        node("anybody's"), node("full", cpu="1"), pod("there", memory="8Gi", node="mine"),
    ]  # fmt: skip
    asks = pod("p", cpu="2", labels={"team": "red"})
    passing = [
        [name for name, status in run_filter(form, asks, cluster).items() if status.is_success]
        for form in FORMS
    ]
    assert passing == [["anybody's", "mine"]] * 3
    assert [scores(form, asks, cluster) for form in FORMS] == [{"anybody's": 100, "mine": 75}] * 3
    placed = [schedule(profile(form), cluster, [asks]).nodes["p"] for form in FORMS]
    assert len({*placed}) == 1


@pytest.mark.parametrize("form", FORMS)
def test_they_keep_the_contract(form: type[Plugin]) -> None:
    assert [f.message for f in check_plugin(form) if f.outcome is CheckOutcome.FAILED] == []
