"""DefaultPreemption: eligibility, victims, candidate nodes, messages and waiting for evictions."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar

import msgspec
import pytest

from asched.cycle.inspect import inspect
from asched.framework.cluster import PodRef
from asched.framework.cycle_state import CycleState
from asched.framework.interface import (
    PermitPlugin,
    PermitResult,
    Plugin,
    ReservePlugin,
    ReserveResult,
)
from asched.framework.pod_info import PodInfo
from asched.framework.runtime.profile import parse_arguments
from asched.framework.status import Code, Status
from asched.model.meta import ObjectMeta
from asched.model.pod import (
    Affinity,
    Pod,
    PodAffinity,
    PodAffinityTerm,
    PodCondition,
)
from asched.model.selectors import LabelSelector
from asched.model.workloads import (
    PodDisruptionBudget,
    PodDisruptionBudgetSpec,
    PodDisruptionBudgetStatus,
)
from asched.plugins.default_preemption.plugin import DefaultPreemption, DefaultPreemptionArgs
from asched.plugins.dynamic_resources import DynamicResources
from asched.plugins.inter_pod_affinity.plugin import InterPodAffinity
from asched.plugins.node_filters import NodeUnschedulable
from asched.plugins.node_resources.fit import NodeResourcesFit
from asched.state import records as r
from asched.state.checkpoint import checkpoint_of, restore
from tests.cycle.scheduling import Scheduling, nodes_of, pod_of, the_one
from tests.state.objects import a_node, a_pod, deleted
from tests.state.profiles import loader, profile_of

START = datetime(2026, 1, 1, tzinfo=UTC)
PLUGINS: tuple[type[Plugin], ...] = (NodeUnschedulable, NodeResourcesFit, DefaultPreemption)
BY_SCHEDULER = PodCondition(type="DisruptionTarget", status="True", reason="PreemptionByScheduler")


def on(node: str, name: str, cpu: str = "2", *, priority: int = 0, minute: int = 0) -> Pod:
    """A pod that runs on a node since ``minute``."""
    pod = a_pod(name, {"cpu": cpu}, on=node, priority=priority, labels={"app": name})
    status = msgspec.structs.replace(pod.status, start_time=START + timedelta(minutes=minute))
    return msgspec.structs.replace(pod, status=status)


def urgent(name: str = "urgent", cpu: str = "2", **fields: Any) -> Pod:
    return a_pod(name, {"cpu": cpu}, priority=fields.pop("priority", 100), **fields)


def budget(app: str, allowed: int) -> PodDisruptionBudget:
    return PodDisruptionBudget(
        metadata=ObjectMeta(name=app, namespace="default", uid=f"budget-{app}"),
        spec=PodDisruptionBudgetSpec(selector=LabelSelector(match_labels={"app": app})),
        status=PodDisruptionBudgetStatus(disruptions_allowed=allowed),
    )


def rejection(scheduling: Scheduling, pod: Pod) -> r.Rejected:
    scheduling.see(pod)
    decision = the_one(scheduling.decide())
    assert isinstance(decision, r.Rejected)
    return decision


def victims(decision: r.Rejected) -> list[str]:
    return [victim.key.removeprefix("default/") for victim in decision.victims]


# -- who may preempt ------------------------------------------------------------------------------


def test_ineligible_pod_does_not_preempt() -> None:
    scheduling = Scheduling(*PLUGINS)
    scheduling.see(a_node("n"), on("n", "low", "4"))
    pod = urgent()
    spec = msgspec.structs.replace(pod.spec, preemption_policy="Never")
    rejected = rejection(scheduling, msgspec.structs.replace(pod, spec=spec))
    assert rejected.message == (
        "0/1 nodes are available: 1 Insufficient cpu."
        " preemption: not eligible due to preemptionPolicy=Never."
    )
    assert rejected.victims == ()
    assert rejected.nominated_node is None


@pytest.mark.parametrize(
    ("leaving", "unschedulable", "waits"),
    [
        ({"conditions": (BY_SCHEDULER,), "deleted_at": START}, False, True),
        ({"conditions": (), "deleted_at": START}, False, False),
        ({"conditions": (BY_SCHEDULER,), "deleted_at": None}, False, False),
        # The nominated node is unresolvable now, so the pod does not wait for it.
        ({"conditions": (BY_SCHEDULER,), "deleted_at": START}, True, False),
    ],
)
def test_preemptor_waits_for_terminating_victims(
    leaving: Mapping[str, Any], unschedulable: bool, waits: bool
) -> None:
    scheduling = Scheduling(*PLUGINS)
    scheduling.see(a_node("n0", unschedulable=unschedulable), a_node("n1"))
    scheduling.see(a_pod("leaving", {"cpu": "4"}, on="n0", **leaving))
    scheduling.see(on("n1", "other", "4"))
    rejected = rejection(scheduling, urgent(nominated="n0"))
    if waits:
        assert rejected.message.endswith(
            "preemption: not eligible due to a terminating pod on the nominated node."
        )
        assert rejected.nominated_node is None
    else:
        assert rejected.nominated_node


# -- victims
# -----------------------------------------------------------------------------------------


def test_fewest_and_least_important_pods_are_victims() -> None:
    scheduling = Scheduling(*PLUGINS)
    scheduling.see(a_node("n"))
    scheduling.see(
        on("n", "old", "1", minute=1),
        on("n", "young", "1", minute=9),
        on("n", "better", "1", priority=5, minute=10),
        on("n", "equal", "1", priority=100),
    )
    rejected = rejection(scheduling, urgent(cpu="1"))
    assert victims(rejected) == ["young"]
    assert rejected.nominated_node == "n"
    assert rejected.message == "0/1 nodes are available: 1 Insufficient cpu."


def test_victims_are_sorted_by_importance() -> None:
    scheduling = Scheduling(*PLUGINS)
    scheduling.see(a_node("n"), budget("first", 0))
    scheduling.see(on("n", "second", minute=5), on("n", "first", priority=1))
    assert victims(rejection(scheduling, urgent(cpu="4"))) == ["first", "second"]


def test_protected_pods_are_reprieved_first() -> None:
    scheduling = Scheduling(*PLUGINS)
    scheduling.see(a_node("n"), budget("protected", 0))
    scheduling.see(on("n", "protected", minute=9), on("n", "important", priority=50))
    assert victims(rejection(scheduling, urgent())) == ["important"]


def test_terminating_victim_is_not_evicted_again() -> None:
    scheduling = Scheduling(*PLUGINS)
    scheduling.see(a_node("n"), deleted(on("n", "leaving"), START), on("n", "staying"))
    rejected = rejection(scheduling, urgent(cpu="4"))
    assert victims(rejected) == ["staying"]
    assert rejected.nominated_node == "n"


def test_victim_of_another_preemptor_is_not_evicted_again() -> None:
    scheduling = Scheduling(*PLUGINS)
    scheduling.see(a_node("n"), on("n", "low", "4"))
    assert victims(rejection(scheduling, urgent("first", "1"))) == ["low"]
    second = rejection(scheduling, urgent("second", "1"))
    assert victims(second) == []
    assert second.nominated_node == "n"


def test_anti_affinity_of_victim_counts() -> None:
    scheduling = Scheduling(*PLUGINS, InterPodAffinity)
    node = a_node("n", labels={"kubernetes.io/hostname": "n"})
    term = PodAffinityTerm(
        label_selector=LabelSelector(match_labels={"app": "urgent"}),
        topology_key="kubernetes.io/hostname",
    )
    hermit = on("n", "hermit", "100m")
    affinity = Affinity(pod_anti_affinity=PodAffinity(required=(term,)))
    spec = msgspec.structs.replace(hermit.spec, affinity=affinity)
    scheduling.see(node, msgspec.structs.replace(hermit, spec=spec), on("n", "sociable", "100m"))
    rejected = rejection(scheduling, urgent(labels={"app": "urgent"}))
    assert victims(rejected) == ["hermit"]


# -- where ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "pods",
    [
        # Fewer violations of budgets.
        [on("bad", "protected"), on("good", "a", priority=50)],
        # A lower highest priority.
        [on("bad", "a", priority=2), on("good", "b", priority=1), on("good", "c", priority=1)],
        # A smaller sum of priorities.
        [
            on("bad", "a", "1", priority=3), on("bad", "b", "1", priority=2),
            on("good", "c", "1", priority=3), on("good", "d", "1", priority=1),
        ],
        # Fewer victims: a negative priority counts for more than none.
        [
            on("bad", "a", "1", priority=-9), on("bad", "b", "1", priority=-9),
            on("good", "c", "2", priority=-9),
        ],
        # The later start of the most important victim.
        [on("bad", "a", minute=1), on("good", "b", minute=2)],
    ],
)  # fmt: skip
@pytest.mark.parametrize("seed", range(4))
def test_node_with_lowest_cost_is_nominated(pods: list[Pod], seed: int) -> None:
    scheduling = Scheduling(*PLUGINS, seed=seed)
    scheduling.see(
        a_node("bad", {"cpu": "2", "pods": "9"}), a_node("good", {"cpu": "2", "pods": "9"})
    )
    scheduling.see(budget("protected", 0), *pods)
    assert rejection(scheduling, urgent()).nominated_node == "good"


def nominated_node(seed: int) -> str | None:
    scheduling = Scheduling(*PLUGINS, seed=seed)
    for number in range(8):
        scheduling.see(a_node(f"n{number}"), on(f"n{number}", f"low{number}", "4"))
    return rejection(scheduling, urgent()).nominated_node


def test_recorded_seed_breaks_ties_between_candidates() -> None:
    drawn = [nominated_node(seed) for seed in range(12)]
    assert drawn == [nominated_node(seed) for seed in range(12)]
    assert len(set(drawn)) > 3


def test_next_preemptor_avoids_nominated_node() -> None:
    scheduling = Scheduling(*PLUGINS)
    for number in range(3):
        scheduling.see(a_node(f"n{number}"), on(f"n{number}", f"low{number}", "4"))
    scheduling.see(*(urgent(f"p{number}", "3") for number in range(4)))
    decisions = [d for d in scheduling.decide() if isinstance(d, r.Rejected)]
    assert sorted(d.nominated_node or "" for d in decisions) == ["", "n0", "n1", "n2"]


def test_search_ends_with_enough_candidates() -> None:
    arguments = {"minCandidateNodesPercentage": 0, "minCandidateNodesAbsolute": 2}
    profile = profile_of(*PLUGINS, arguments={DefaultPreemption.name: arguments})
    found = set()
    for seed in range(20):
        scheduling = Scheduling(*PLUGINS, profiles=[profile], seed=seed)
        for number in range(6):
            node = f"n{number}"
            scheduling.see(a_node(node), on(node, f"low{number}", "4", priority=number))
        found.add(rejection(scheduling, urgent()).nominated_node)
    # The draw is neither always the best nor always the second worst.
    assert found <= {"n0", "n1", "n2", "n3", "n4"}
    assert len(found) > 1


def test_search_continues_until_candidate_without_violation() -> None:
    arguments = {"minCandidateNodesPercentage": 0, "minCandidateNodesAbsolute": 1}
    profile = profile_of(*PLUGINS, arguments={DefaultPreemption.name: arguments})
    for seed in range(8):
        scheduling = Scheduling(*PLUGINS, profiles=[profile], seed=seed)
        scheduling.see(budget("protected", 0), a_node("free"), on("free", "low", "4"))
        for number in range(4):
            pod = on(f"n{number}", f"p{number}", "4")
            metadata = msgspec.structs.replace(pod.metadata, labels={"app": "protected"})
            scheduling.see(a_node(f"n{number}"), msgspec.structs.replace(pod, metadata=metadata))
        assert rejection(scheduling, urgent()).nominated_node == "free"


@pytest.mark.parametrize(
    ("percentage", "absolute", "nodes", "enough"),
    [(10, 100, 5, 5), (10, 100, 500, 100), (10, 100, 5000, 500), (0, 1, 9, 1), (100, 0, 9, 9)],
)
def test_enough_candidates_by_percentage_and_minimum(
    percentage: int, absolute: int, nodes: int, enough: int
) -> None:
    assert DefaultPreemptionArgs(percentage, absolute).num_candidates(nodes) == enough


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ({"minCandidateNodesPercentage": 101}, r"Percentage.*not in valid range \[0, 100\]"),
        ({"minCandidateNodesPercentage": -1}, r"Percentage.*not in valid range \[0, 100\]"),
        ({"minCandidateNodesAbsolute": -1}, r"Absolute.*not in valid range \[0, inf\)"),
        (
            {"minCandidateNodesPercentage": 0, "minCandidateNodesAbsolute": 0},
            "cannot be zero at the same time",
        ),
        ({"minCandidateNodes": 1}, "unknown field"),
    ],
)
def test_invalid_arguments_are_rejected(arguments: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        parse_arguments(DefaultPreemption, arguments)


# -- what is said ---------------------------------------------------------------------------------


def test_message_if_preemption_does_not_help() -> None:
    scheduling = Scheduling(*PLUGINS)
    scheduling.see(
        a_node("cordoned", unschedulable=True),
        a_node("peers"), on("peers", "equal", "4", priority=100),
        a_node("mixed"), on("mixed", "above", "3", priority=200), on("mixed", "below", "1"),
        a_node("small", {"cpu": "1", "pods": "9"}),
    )  # fmt: skip
    scheduling.see(urgent(nominated="peers"))
    # The pod is tried again, because its nomination ended.
    rejected, again = scheduling.decide()
    assert isinstance(rejected, r.Rejected)
    assert isinstance(again, r.Rejected)
    assert again.message == rejected.message
    assert rejected.message == (
        "0/4 nodes are available: 1 node(s) were unschedulable, 3 Insufficient cpu."
        " preemption: 0/4 nodes are available: 1 Insufficient cpu,"
        " 1 No preemption victims found for incoming pod,"
        " 2 Preemption is not helpful for scheduling."
    )
    assert rejected.nominated_node == ""
    assert scheduling.state.nominator.node_of("default/urgent") == ""


def test_dynamic_resources_reason_comes_first() -> None:
    scheduling = Scheduling(NodeResourcesFit, DynamicResources, DefaultPreemption)
    scheduling.see(a_node("n", {"cpu": "1", "pods": "9"}))
    assert rejection(scheduling, urgent()).message == (
        "0/1 nodes are available: 1 Insufficient cpu. no new claims to deallocate,"
        " preemption: 0/1 nodes are available: 1 Preemption is not helpful for scheduling."
    )


# -- meanwhile ------------------------------------------------------------------------------------


def evicted(scheduling: Scheduling, name: str) -> None:
    scheduling.apply(r.EvictionSucceeded(f"default/{name}", f"pod-{name}"))


def gone(scheduling: Scheduling, name: str) -> None:
    scheduling.apply(r.ObjectDeleted("Pod", f"default/{name}", f"pod-{name}"))


def test_preemptor_waits_for_evictions_while_others_are_scheduled() -> None:
    scheduling = Scheduling(*PLUGINS)
    scheduling.see(a_node("n"), a_node("m", {"cpu": "1", "pods": "9"}))
    scheduling.see(on("n", "a", minute=1), on("n", "b", minute=2))
    assert victims(rejection(scheduling, urgent(cpu="4"))) == ["a", "b"]
    scheduling.see(a_pod("small"))
    assert nodes_of(scheduling.decide()) == {"default/small": "m"}
    scheduling.pass_time(20)
    # The pod would fit after the first eviction, but the other is still in progress.
    gone(scheduling, "a")
    assert list(scheduling.state.queue.gated) == ["default/urgent"]
    assert scheduling.decide() == []
    evicted(scheduling, "b")
    gone(scheduling, "b")
    assert nodes_of(scheduling.decide()) == {"default/urgent": "n"}


def test_nominated_room_is_kept_from_pods_of_lower_priority() -> None:
    scheduling = Scheduling(*PLUGINS)
    scheduling.see(a_node("n"), on("n", "low", "4"))
    rejection(scheduling, urgent(cpu="4"))
    gone(scheduling, "low")
    scheduling.see(a_pod("thief", {"cpu": "1"}, priority=99), urgent("peer", "1"))
    decided = {pod_of(d): d for d in scheduling.decide()}
    thief = decided["default/thief"]
    assert isinstance(thief, r.Rejected)
    assert thief.message.startswith("0/1 nodes are available: 1 Insufficient cpu.")


def test_failed_eviction_requeues_the_preemptor() -> None:
    scheduling = Scheduling(*PLUGINS)
    scheduling.see(a_node("n"), on("n", "a", minute=1), on("n", "b", minute=2))
    rejection(scheduling, urgent(cpu="4"))
    scheduling.pass_time(20)
    gone(scheduling, "b")
    assert scheduling.decide() == []
    scheduling.apply(r.EvictionFailed("default/a", "pod-a", "forbidden"))
    assert victims(_rejected(scheduling)) == ["a"]


@pytest.mark.parametrize("restarted", [False, True])
def test_preemptor_missing_from_stale_list_keeps_waiting(restarted: bool) -> None:
    scheduling = Scheduling(*PLUGINS)
    scheduling.see(a_node("n"), on("n", "low", "4"))
    rejection(scheduling, urgent())
    gone(scheduling, "urgent")
    scheduling.see(urgent())
    fold = scheduling.fold
    if restarted:
        fold = restore(checkpoint_of(scheduling.state), loader(*PLUGINS))
    assert [*fold.state.queue.gated] == ["default/urgent"]
    fold.apply(r.ObjectDeleted("Pod", "default/low", "pod-low"))
    assert [*fold.state.queue.active] == ["default/urgent"]


def _rejected(scheduling: Scheduling) -> r.Rejected:
    decision = the_one(scheduling.decide())
    assert isinstance(decision, r.Rejected)
    return decision


def test_victim_deleted_by_another_client_releases_preemptor() -> None:
    scheduling = Scheduling(*PLUGINS)
    victim = on("n", "low", "4")
    scheduling.see(a_node("n"), victim)
    rejection(scheduling, urgent())
    scheduling.see(deleted(victim, START))
    assert not scheduling.state.evictions


def test_nominations_of_lower_priority_are_cleared() -> None:
    scheduling = Scheduling(*PLUGINS)
    scheduling.see(a_node("n"), on("n", "low", "4"))
    scheduling.see(
        a_pod("lesser", {"cpu": "9"}, priority=50, nominated="n"),
        a_pod("peer", {"cpu": "1"}, priority=100, nominated="n"),
    )
    scheduling.see(urgent(cpu="3", priority=101))
    first = scheduling.next()[0]
    assert isinstance(first, r.Rejected)
    displaced = {victim.key for victim in first.cleared_nominations}
    assert displaced == {"default/lesser", "default/peer"}
    assert scheduling.state.nominator.node_of("default/lesser") == ""
    assert scheduling.state.nominator.node_of("default/urgent") == "n"


class Doorkeeper(PermitPlugin, ReservePlugin):
    """Makes every pod of low priority wait for a long time."""

    name: ClassVar[str] = "Doorkeeper"
    api_version: ClassVar[int] = 1

    def reserve(self, state: CycleState, pod: PodInfo, node_name: str) -> ReserveResult:
        return ReserveResult()

    def permit(self, state: CycleState, pod: PodInfo, node_name: str) -> PermitResult:
        return PermitResult(Status(Code.WAIT), 600) if pod.priority < 10 else PermitResult()


def test_waiting_victim_is_rejected_and_not_deleted() -> None:
    scheduling = Scheduling(*PLUGINS, Doorkeeper)
    scheduling.see(a_node("n"), a_pod("held", {"cpu": "4"}))
    assert nodes_of(scheduling.decide()) == {"default/held": "n"}
    scheduling.see(urgent())
    rejected, turned_away = scheduling.next()
    assert isinstance(rejected, r.Rejected)
    assert rejected.victims == ()
    assert rejected.nominated_node == "n"
    assert turned_away == r.PermitRejected(
        "default/held", "pod-held", "DefaultPreemption", "preempted"
    )


@pytest.mark.parametrize("restarted", [False, True])
def test_rejected_waiting_victim_is_retried(restarted: bool) -> None:
    scheduling = Scheduling(*PLUGINS, Doorkeeper)
    scheduling.see(a_node("n"), a_node("m"), on("m", "settled", "4", priority=200))
    scheduling.see(a_pod("held", {"cpu": "4"}))
    scheduling.decide()
    scheduling.see(urgent())
    scheduling.decide()
    fold = scheduling.fold
    if restarted:
        fold = restore(checkpoint_of(scheduling.state), loader(*PLUGINS, Doorkeeper))
    queue = fold.state.queue
    assert not queue.unschedulable
    assert "default/held" in queue.backoff


def test_inspection_does_not_reject_waiting_pods() -> None:
    scheduling = Scheduling(*PLUGINS, Doorkeeper)
    scheduling.see(a_node("n"), a_pod("held", {"cpu": "4"}))
    scheduling.decide()
    profile = scheduling.state.profiles["default-scheduler"]
    looked = inspect(scheduling.state, profile, PodInfo(urgent()))
    assert looked.message == "0/1 nodes are available: 1 Insufficient cpu."
    scheduling.see(a_pod("next", {"cpu": "9"}))
    assert [type(decision) for decision in scheduling.next()] == [r.Rejected]


def test_victims_have_key_and_uid() -> None:
    scheduling = Scheduling(*PLUGINS)
    scheduling.see(a_node("n"), on("n", "low", "4"))
    assert rejection(scheduling, urgent()).victims == (PodRef("default/low", "pod-low"),)


def test_message_without_potential_victims_equals_dry_run_message() -> None:
    """The difference is a pod of lower priority on a node that is too small."""

    def message(*lesser: Pod) -> str:
        scheduling = Scheduling(*PLUGINS)
        scheduling.see(a_node("full"), a_node("small", {"cpu": "2", "pods": "9"}))
        scheduling.see(on("full", "equal", "4", priority=100), *lesser)
        return rejection(scheduling, urgent(cpu="3")).message

    tried = message(on("small", "lesser", "1", priority=-1))
    assert message() == tried
    assert "1 No preemption victims found for incoming pod" in tried
    assert "1 Preemption is not helpful for scheduling" in tried
