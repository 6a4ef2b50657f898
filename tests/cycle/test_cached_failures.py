"""Cached results that were computed with a failing or without a skipped plugin."""

from __future__ import annotations

from typing import ClassVar

import msgspec

from asched.cycle.decide import Decider
from asched.framework.cycle_state import CycleState
from asched.framework.interface import FilterPlugin, Scope
from asched.framework.nodes import NodeInfo
from asched.framework.pod_info import PodInfo
from asched.framework.runtime.profile import BreakerSpec, PluginPolicy
from asched.framework.status import SUCCESS, Status
from asched.plugins.default_preemption.plugin import DefaultPreemption
from asched.plugins.node_resources.fit import NodeResourcesFit
from asched.state import records as r
from asched.state.checkpoint import checkpoint_of, restore
from tests.cycle.scheduling import Scheduling, nodes_of, the_one
from tests.state.objects import a_node, a_pod
from tests.state.profiles import loader, profile_of


class Confused(FilterPlugin):
    """Returns an error for nodes with the label."""

    name: ClassVar[str] = "Confused"
    api_version: ClassVar[int] = 1
    scope: ClassVar[Scope] = Scope.NODE_OBJECT

    def filter(self, state: CycleState, pod: PodInfo, node: NodeInfo) -> Status:
        wrong = node.labels.get("wrong")
        return Status.error(f"wrong: {wrong}") if wrong else SUCCESS


def test_error_of_first_node_is_reported() -> None:
    """Not the error that occurred first."""
    scheduling = Scheduling(Confused)
    scheduling.see(a_node("n0"), a_node("n1", labels={"wrong": "second"}))
    scheduling.see(a_pod("a"))
    before = the_one(scheduling.decide())
    scheduling.see(a_node("n0", labels={"wrong": "first"}), a_pod("b"))
    expected = Decider(scheduling.state).next()
    assert scheduling.next() == expected
    messages = [d.message for d in (before, *expected) if isinstance(d, r.AttemptFailed)]
    assert [message.split()[-1] for message in messages] == ["second", "first"]


class Touchy(Confused):
    """Also raises for nodes with a certain pod, also a hypothetical one."""

    name: ClassVar[str] = "Touchy"
    scope: ClassVar[Scope] = Scope.NODE

    def filter(self, state: CycleState, pod: PodInfo, node: NodeInfo) -> Status:
        if any(other.name == "guest" for other in node.pods):
            raise RuntimeError("not with that pod")
        return super().filter(state, pod, node)


def test_nominated_node_is_tried_alone_after_an_earlier_error() -> None:
    scheduling = Scheduling(Touchy)
    scheduling.see(a_node("n0", labels={"wrong": "x"}), a_node("n1"), a_pod("a"))
    assert isinstance(the_one(scheduling.decide()), r.AttemptFailed)
    scheduling.see(a_node("n0"), a_pod("b", nominated="n1"), a_pod("guest", nominated="n0"))
    expected = Decider(scheduling.state).next()
    assert scheduling.next() == expected
    assert nodes_of(expected) == {"default/b": "n1"}


class Choosy(FilterPlugin):
    """Fails while a flag is set; otherwise accepts one node."""

    name: ClassVar[str] = "Choosy"
    api_version: ClassVar[int] = 1
    scope: ClassVar[Scope] = Scope.NODE_OBJECT
    in_the_mood: ClassVar[bool] = True

    def filter(self, state: CycleState, pod: PodInfo, node: NodeInfo) -> Status:
        if self.in_the_mood:
            raise RuntimeError("not today")
        return SUCCESS if node.name == "n0" else Status.unschedulable("not here")


def test_preemption_results_without_a_plugin_are_not_reused_with_it() -> None:
    Choosy.in_the_mood = True
    policy = PluginPolicy("Choosy", optional=True, breaker=BreakerSpec(1, 60.0, 30.0))
    plugins = (NodeResourcesFit, Choosy, DefaultPreemption)
    spec = msgspec.structs.replace(profile_of(*plugins), policies=(policy,))
    scheduling = Scheduling(*plugins, profiles=(spec,))
    scheduling.pass_time(1000)
    for name in ("n0", "n1"):
        scheduling.see(a_node(name), a_pod(f"on-{name}", {"cpu": "4"}, on=name))
    scheduling.see(a_pod("fails", {"cpu": "1m"}))
    assert isinstance(the_one(scheduling.decide()), r.AttemptFailed)
    scheduling.see(a_pod("first", {"cpu": "3"}, priority=5))
    first = the_one(scheduling.decide())
    assert isinstance(first, r.Rejected)
    assert first.victims
    Choosy.in_the_mood = False
    scheduling.pass_time(30)
    scheduling.see(a_pod("second", {"cpu": "3"}, priority=5))
    restored = restore(checkpoint_of(scheduling.state), loader(*plugins))
    expected = Decider(restored.state).next()
    assert scheduling.next() == expected
    second = the_one(expected)
    assert isinstance(second, r.Rejected)
    assert (second.key, second.victims) == ("default/second", ())
