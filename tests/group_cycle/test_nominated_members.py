"""Members that are nominated to nodes with terminating pods; groups that must not preempt."""

from __future__ import annotations

from datetime import UTC, datetime

import msgspec
import pytest

from asched.framework.interface import Plugin
from asched.model.node import Node
from asched.model.pod import Pod
from asched.plugins.gang_scheduling import GangScheduling
from asched.plugins.node_affinity import NodeAffinityPlugin
from asched.plugins.node_resources.fit import NodeResourcesFit
from asched.state.group_records import GroupOutcome, PodGroupAttempted
from tests.cycle.scheduling import Scheduling, nodes_of
from tests.group_cycle.groups import (
    PLUGINS,
    RACK,
    GroupScheduling,
    a_group,
    messages,
    outcomes,
    victims,
)
from tests.plugins.gangs import member
from tests.state.objects import a_node, a_pod, bound, deleted
from tests.state.profiles import profile_of

_replace = msgspec.structs.replace
NOT_SUPPORTED = (
    "workload aware preemption is not supported for pod groups with scheduling constraints"
)


def a_node_of(name: str, cpu: int, **labels: str) -> Node:
    return a_node(name, {"cpu": str(cpu), "memory": "64Gi", "pods": "9"}, labels=labels)


def nominated(pod: Pod, node: str) -> Pod:
    return _replace(pod, status=_replace(pod.status, nominated_node_name=node))


def test_nomination_of_a_member_keeps_no_room_from_an_earlier_one() -> None:
    """As in kube-scheduler: the member is placed in the same cycle."""
    s = GroupScheduling()
    s.see(a_node_of("n0", 1), a_group("a", 1))
    s.see(member("a", "a0"), nominated(member("a", "a1"), "n0"))
    assert nodes_of(s.next()) == {"default/a0": "n0"}


def test_nomination_keeps_room_if_the_group_does_not_fit_otherwise() -> None:
    """Victims were evicted for that room. The first member prefers the node with most room."""
    s = GroupScheduling(plugins=(NodeAffinityPlugin, *PLUGINS), weights={NodeResourcesFit.name: 1})
    s.see(a_node_of("n0", 8, disk="ssd"), a_node_of("n1", 1), a_group("a", 2))
    second = member("a", "a1", "8")
    second = _replace(second, spec=_replace(second.spec, node_selector={"disk": "ssd"}))
    s.see(member("a", "a0"), nominated(second, "n0"))
    # The first one arrived first, and is tried first.
    assert nodes_of(s.next()) == {"default/a0": "n1", "default/a1": "n0"}


@pytest.mark.parametrize(("rack", "plugins"), [("", PLUGINS), ("r0", PLUGINS), ("r0", PLUGINS[:5])])
def test_group_that_must_not_preempt_in_a_domain_says_so(
    rack: str, plugins: tuple[type[Plugin], ...]
) -> None:
    """Also without any domain, and without the plugin that generates them."""
    arguments = {
        GangScheduling.name: {
            "groupCycle": True,
            "groupPreemption": True,
            "topologyPreemption": False,
        }
    }
    s = Scheduling(*plugins, profiles=[profile_of(*plugins, arguments=arguments)])
    s.see(a_node_of("n0", 1, **({RACK: rack} if rack else {})))
    s.see(bound(a_pod("v", {"cpu": "1"}), "n0"))
    s.see(a_group("a", 1, rack=True, priority=10), member("a", "a0", priority=10))
    decisions = s.next()
    assert outcomes(decisions) == [GroupOutcome.UNSCHEDULABLE]
    (message,) = (d.message for d in decisions if isinstance(d, PodGroupAttempted))
    assert message.endswith(f", {NOT_SUPPORTED}")
    if not rack:
        assert messages(decisions)["a0"] == f"no feasible placements found, {NOT_SUPPORTED}"


@pytest.mark.parametrize("group_preemption", [False, True])
def test_pod_that_terminates_counts_as_gone(group_preemption: bool) -> None:
    """Its node is nominated without a victim, so that the other member may evict one."""
    s = GroupScheduling(group_preemption=group_preemption)
    s.see(a_node_of("n0", 1), a_node_of("n1", 1), a_group("a", 2, priority=10))
    s.see(deleted(bound(a_pod("v0", {"cpu": "1"}), "n0"), datetime(2026, 1, 1, tzinfo=UTC)))
    s.see(bound(a_pod("v1", {"cpu": "1"}), "n1"))
    s.see(*(member("a", name, priority=10) for name in ("a0", "a1")))
    decisions = s.next()
    assert outcomes(decisions) == [GroupOutcome.WAITING]
    assert victims(decisions) == ["v1"]


def test_group_evicts_no_pod_of_its_own() -> None:
    """A less important member that runs counts for the minimum."""
    s = GroupScheduling(group_preemption=True)
    s.see(a_node_of("n0", 1), a_node_of("n1", 1), a_group("a", 2, priority=10))
    s.see(bound(member("a", "a0"), "n0"), bound(a_pod("v", {"cpu": "1"}), "n1"))
    s.see(member("a", "a1", priority=10))
    decisions = s.next()
    assert outcomes(decisions) == [GroupOutcome.WAITING]
    assert victims(decisions) == ["v"]
