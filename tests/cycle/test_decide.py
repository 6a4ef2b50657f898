"""Decisions: the order of plugin calls, messages, and the effect of plugin failures."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import ClassVar

import pytest

from asched.cycle.attempt import feasible_nodes_to_find
from asched.framework.cycle_state import CycleState
from asched.framework.interface import FilterPlugin, Scope
from asched.framework.nodes import NodeInfo
from asched.framework.pod_info import PodInfo
from asched.framework.status import SUCCESS, Status
from asched.model.quantity import NS_PER_S
from asched.plugins.node_filters import NodeUnschedulable
from asched.state import records as r
from asched.state.cluster import PlacementState
from tests.cycle.plugins import (
    Answering,
    ByLabel,
    Doorman,
    EmptiestForAll,
    FirstRescue,
    Gatekeeper,
    NoScoring,
    RoomForAll,
    SecondGatekeeper,
    SecondRescue,
)
from tests.cycle.scheduling import BACKOFF_RESPECTED, Scheduling, nodes_of, the_one
from tests.state.objects import a_node, a_pod
from tests.state.profiles import profile_of


def _rejection(scheduling: Scheduling, **labels: str) -> r.Rejected:
    scheduling.see(a_pod("p", {"cpu": "1"}, labels=labels))
    decision = the_one(scheduling.decide())
    assert isinstance(decision, r.Rejected)
    return decision


# -- messages of kube-scheduler -------------------------------------------------------------------


def test_pod_is_rejected_without_nodes() -> None:
    rejected = _rejection(Scheduling(RoomForAll))
    assert rejected.message == "no nodes available to schedule pods"
    assert rejected.unschedulable_plugins == ()


def test_message_counts_reasons_and_sorts_them_as_text() -> None:
    scheduling = Scheduling(NodeUnschedulable, RoomForAll)
    for number in range(12):
        cordoned = number >= 10
        scheduling.see(a_node(f"n{number}", {"cpu": "500m"}, unschedulable=cordoned))
    rejected = _rejection(scheduling)
    assert rejected.message == (
        "0/12 nodes are available: 10 Insufficient cpu, 2 node(s) were unschedulable."
    )
    assert rejected.unschedulable_plugins == ("NodeUnschedulable", "Room")


def test_message_has_pre_filter_rejection_once() -> None:
    scheduling = Scheduling(Gatekeeper, RoomForAll)
    scheduling.see(a_node("n0"), a_node("n1"))
    rejected = _rejection(scheduling, refuse="yes")
    assert rejected.message == "0/2 nodes are available: never this pod."
    assert rejected.unschedulable_plugins == ("Gatekeeper",)


def test_message_counts_nodes_that_pre_filter_excludes() -> None:
    scheduling = Scheduling(Gatekeeper, NodeUnschedulable, RoomForAll)
    scheduling.see(a_node("n0", unschedulable=True), a_node("n1", {"cpu": "1m"}), a_node("n2"))
    rejected = _rejection(scheduling, only="n1.absent")
    assert rejected.message == (
        "0/3 nodes are available: 1 Insufficient cpu,"
        " 2 node(s) didn't satisfy plugin(s) [Gatekeeper]."
    )
    assert rejected.unschedulable_plugins == ("Gatekeeper", "Room")


def test_disjoint_pre_filter_restrictions_reject_the_pod() -> None:
    scheduling = Scheduling(SecondGatekeeper, Gatekeeper)
    scheduling.see(a_node("n0"), a_node("n1"))
    both = _rejection(scheduling, only="n0", also="n1")
    assert both.message == (
        "0/2 nodes are available:"
        " node(s) didn't satisfy plugin(s) [Also Gatekeeper] simultaneously."
    )
    assert both.unschedulable_plugins == ("Also", "Gatekeeper")
    alone = Scheduling(Gatekeeper)
    alone.see(a_node("n0"))
    alone.see(a_pod("q", labels={"only": ""}))
    # "".split returns one empty name: a node that does not exist.
    rejected = the_one(alone.decide())
    assert isinstance(rejected, r.Rejected)
    assert rejected.message == (
        "0/1 nodes are available: 1 node(s) didn't satisfy plugin(s) [Gatekeeper]."
    )


def test_pod_restricted_to_a_node_is_assigned_to_it() -> None:
    scheduling = Scheduling(Gatekeeper, RoomForAll, EmptiestForAll)
    scheduling.see(*(a_node(f"n{number}") for number in range(5)))
    scheduling.see(a_pod("p", labels={"only": "n3"}))
    assert nodes_of(scheduling.decide()) == {"default/p": "n3"}


def test_skipped_filter_does_not_run() -> None:
    scheduling = Scheduling(Gatekeeper)
    scheduling.see(a_node("n0"))
    # The filter would fail without the data of its PreFilter.
    scheduling.see(a_pod("p", labels={"skip": "yes"}))
    assert nodes_of(scheduling.decide()) == {"default/p": "n0"}


# -- PostFilter -----------------------------------------------------------------------------------


def _rescue(**labels: str) -> r.Decision:
    scheduling = Scheduling(RoomForAll, FirstRescue, SecondRescue)
    scheduling.see(a_node("n0", {"cpu": "1m"}))
    scheduling.see(a_pod("p", labels=labels))
    return the_one(scheduling.decide())


def test_post_filters_run_until_one_succeeds() -> None:
    decision = _rescue(second="room")
    assert isinstance(decision, r.Rejected)
    assert decision.nominated_node == "n0"
    assert decision.message == "0/1 nodes are available: 1 Insufficient cpu."


def test_message_ends_with_post_filter_reasons() -> None:
    decision = _rescue()
    assert isinstance(decision, r.Rejected)
    assert decision.message == (
        "0/1 nodes are available: 1 Insufficient cpu. First: no victims., Second: no victims."
    )


def test_unresolvable_post_filter_ends_the_phase() -> None:
    decision = _rescue(first="sure", second="room")
    assert isinstance(decision, r.Rejected)
    assert decision.nominated_node is None
    assert decision.message == (
        "0/1 nodes are available: 1 Insufficient cpu. First: nothing will help"
    )


def test_post_filter_runs_after_pre_filter_rejection() -> None:
    scheduling = Scheduling(Gatekeeper, FirstRescue)
    scheduling.see(a_node("n0"))
    rejected = _rejection(scheduling, reject="yes", first="room")
    assert rejected.nominated_node == "n0"


# -- failures -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("answer", "point"),
    [
        ("filter raises", "Filter: LookupError: nothing there"),
        ("filter short", "Filter: 1 codes for 2 nodes"),
        ("filter none", "Filter: answered None, not a FilterResult"),
        ("filter beyond", "Filter: a code of 3 or 3, but 1 statuses"),
        ("filter success", "Filter: Success among the statuses of rejected nodes"),
        ("filter error", 'running "Answering" filter plugin: broken'),
        ("filter wait", 'running "Answering" filter plugin: Wait'),
        ("score raises", "Score: ZeroDivisionError: by zero"),
        ("score long", "Score: 3 scores for 2 nodes"),
        ("score square", "Score: 2x2 scores for 2 nodes"),
        ("score list", "Score: answered [0, 0], not a ndarray"),
        ("score float", "Score: scores of type float64, not integers"),
        ("normalize high", "Score: a score of 101 or 101 is outside 0..100"),
        ("normalize low", "Score: a score of -1 or -1 is outside 0..100"),
        ("normalize short", "NormalizeScore: 1 scores for 2 nodes"),
        ("normalize none", "NormalizeScore: answered None, not a ndarray"),
        ("reserve raises", "Reserve: OSError: no disk"),
        ("reserve error", "Reserve: broken"),
        ("reserve none", "Reserve: answered None, not a ReserveResult"),
        ("reserve object", "Reserve: reservation is not JSON: Encoding objects of type object"),
        ("permit raises", "Permit: OSError: no net"),
        ("permit nan", "Permit: a timeout of nan s"),
        ("permit early", "Permit: a timeout of -1.0 s"),
        ("permit none", "Permit: answered None, not a PermitResult"),
    ],
)
def test_failing_plugin_fails_only_its_pod(answer: str, point: str) -> None:
    scheduling = Scheduling(Answering)
    scheduling.see(a_node("n0"), a_node("n1"))
    scheduling.see(a_pod("bad", priority=1, labels={"answer": answer}), a_pod("good"))
    failed, assigned = scheduling.decide()
    assert isinstance(failed, r.AttemptFailed)
    assert failed.key == "default/bad"
    assert failed.plugin == "Answering"
    text = point if point.startswith("running") else f"plugin Answering at {point}"
    assert failed.message.startswith(text)
    assert isinstance(assigned, r.Assigned)
    assert assigned.key == "default/good"


def test_pre_filter_error_fails_the_attempt() -> None:
    scheduling = Scheduling(Gatekeeper)
    scheduling.see(a_node("n0"))
    scheduling.see(a_pod("p", labels={"error": "yes"}))
    failed = the_one(scheduling.decide())
    assert isinstance(failed, r.AttemptFailed)
    assert (failed.plugin, failed.message) == (
        "Gatekeeper",
        "plugin Gatekeeper at PreFilter: broken",
    )


def test_failed_attempt_is_retried_after_backoff() -> None:
    scheduling = Scheduling(Answering, gates=BACKOFF_RESPECTED)
    scheduling.see(a_node("n0"))
    scheduling.see(a_pod("p", labels={"answer": "filter raises"}))
    for attempt, backoff_s in enumerate((1, 2, 4, 8, 10, 10), start=1):
        failed = the_one(scheduling.decide())
        assert isinstance(failed, r.AttemptFailed)
        assert failed.attempt == attempt
        scheduling.pass_time(backoff_s - 0.001)
        assert scheduling.decide() == []
        scheduling.pass_time(0.001)


# -- scoring --------------------------------------------------------------------------------------


def test_weights_change_the_best_node() -> None:
    nodes = (
        a_node("empty", {"cpu": "9", "pods": "9"}, labels={"score": "0"}),
        a_node("liked", {"cpu": "1", "pods": "9"}, labels={"score": "80"}),
    )
    for weight, winner, score in ((1, "empty", 100), (2, "liked", 171)):
        profile = profile_of(EmptiestForAll, ByLabel, weights={"ByLabel": weight})
        scheduling = Scheduling(EmptiestForAll, ByLabel, profiles=(profile,))
        scheduling.see(*nodes, a_pod("p", {}))
        assigned = the_one(scheduling.decide())
        assert isinstance(assigned, r.Assigned)
        assert (assigned.node, assigned.score, assigned.feasible_nodes) == (winner, score, 2)


def test_plugin_that_skips_pre_score_does_not_score() -> None:
    scheduling = Scheduling(NoScoring, ByLabel)
    scheduling.see(a_node("n0"), a_node("n1", labels={"score": "7"}), a_pod("p"))
    assigned = the_one(scheduling.decide())
    assert isinstance(assigned, r.Assigned)
    assert (assigned.node, assigned.score, assigned.ties) == ("n1", 7, 1)


def test_seed_breaks_ties() -> None:
    chosen = set()
    for seed in range(20):
        scheduling = Scheduling(RoomForAll, seed=seed)
        scheduling.see(*(a_node(f"n{number}") for number in range(4)), a_pod("p"))
        assigned = the_one(scheduling.decide())
        assert isinstance(assigned, r.Assigned)
        assert assigned.ties == 4
        chosen.add(assigned.node)
    assert chosen == {"n0", "n1", "n2", "n3"}


_SCRIPT = """
import sys
import msgspec
from tests.cycle.plugins import Crowd, EmptiestForAll, Gatekeeper, RoomForAll, SecondGatekeeper
from tests.cycle.scheduling import Scheduling
from tests.state.objects import a_node, a_pod

scheduling = Scheduling(Gatekeeper, SecondGatekeeper, RoomForAll, Crowd, EmptiestForAll, seed=5)
scheduling.see(*(a_node(f"n{i}", {"cpu": "2"}, labels={f"l{i}": "x"}) for i in range(9)))
for i in range(60):
    only = ".".join(f"n{(i + j) % 9}" for j in range(4))
    labels = {"only": only, "also": "n1.n2.n3.n4"} if i % 3 else {}
    scheduling.see(a_pod(f"p{i}", {"cpu": "300m"}, priority=i % 4, labels=labels))
sys.stdout.write(msgspec.json.encode(scheduling.decide()).decode())
"""


def test_decisions_do_not_depend_on_set_order() -> None:
    outputs = []
    for hash_seed in ("0", "4242"):
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        done = subprocess.run(
            [sys.executable, "-c", _SCRIPT],
            cwd=Path(__file__).parents[2],
            env=environment,
            capture_output=True,
            check=True,
        )
        outputs.append(done.stdout)
    assert outputs[0] == outputs[1]
    assert b'"Rejected"' in outputs[0]
    assert b'"Assigned"' in outputs[0]


# -- percentageOfNodesToScore ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("nodes", "percentage", "enough"),
    [(50, 10, 50), (99, 1, 99), (100, 50, 100), (1000, 5, 100), (1000, 30, 300), (6000, 100, 6000)],
)
def test_feasible_nodes_to_find_matches_kube_scheduler(
    nodes: int, percentage: int, enough: int
) -> None:
    assert feasible_nodes_to_find(nodes, percentage) == enough


def test_percentage_of_nodes_to_score_rotates_start_row() -> None:
    profile = profile_of(RoomForAll, percentage=10)
    scheduling = Scheduling(RoomForAll, profiles=(profile,))
    scheduling.see(*(a_node(f"n{number:03}") for number in range(250)))
    starts = []
    for number in range(4):
        starts.append(scheduling.state.engine.next_start_row)
        scheduling.see(a_pod(f"p{number}"))
        assigned = the_one(scheduling.decide())
        assert isinstance(assigned, r.Assigned)
        assert (assigned.feasible_nodes, assigned.evaluated_nodes) == (100, 100)
        row = scheduling.state.nodes.row_of(assigned.node)
        assert row is not None
        assert (row - starts[-1]) % 250 < 100
    assert starts == [0, 100, 200, 50]


# -- nominated pods -------------------------------------------------------------------------------


def test_nominated_pod_keeps_its_room_from_pods_of_no_higher_priority() -> None:
    scheduling = Scheduling(RoomForAll)
    scheduling.see(a_node("n0", {"cpu": "1"}))
    scheduling.see(a_pod("vip", {"cpu": "1"}, priority=5, nominated="n0", gates=()))
    assert nodes_of(scheduling.next()) == {"default/vip": "n0"}
    other = Scheduling(RoomForAll)
    other.see(a_node("n0", {"cpu": "1"}))
    # A pod of another scheduler stays pending and nominated.
    other.see(a_pod("vip", {"cpu": "1"}, priority=5, nominated="n0", scheduler="else"))
    other.see(a_pod("low", {"cpu": "1"}, priority=4), a_pod("high", {"cpu": "1"}, priority=6))
    high, low = other.decide()
    assert isinstance(high, r.Assigned)
    assert isinstance(low, r.Rejected)


def test_nominated_node_is_tried_first_and_alone() -> None:
    scheduling = Scheduling(RoomForAll, EmptiestForAll)
    scheduling.see(a_node("big", {"cpu": "9"}), a_node("small", {"cpu": "1"}))
    scheduling.see(a_pod("p", nominated="small"))
    assigned = the_one(scheduling.decide())
    assert isinstance(assigned, r.Assigned)
    assert (assigned.node, assigned.feasible_nodes) == ("small", 1)


class Overcrowded(FilterPlugin):
    """Raises for a node with another pod, also a hypothetical one."""

    name: ClassVar[str] = "Overcrowded"
    api_version: ClassVar[int] = 1
    scope: ClassVar[Scope] = Scope.NODE

    def filter(self, state: CycleState, pod: PodInfo, node: NodeInfo) -> Status:
        if node.pod_count:
            raise RuntimeError("too many")
        return SUCCESS


@pytest.mark.parametrize("nominated", ["n0", "n1"])
def test_other_nominations_are_ignored_if_nominated_node_passes(nominated: str) -> None:
    scheduling = Scheduling(Overcrowded)
    scheduling.see(a_node("n0", {"cpu": "1"}), a_node("n1", {"cpu": "1"}))
    scheduling.see(a_pod("p", nominated=nominated), a_pod("later", nominated="n1"))
    decision = the_one(scheduling.next())
    assert isinstance(decision, r.Assigned if nominated == "n0" else r.AttemptFailed)


# -- Reserve and Permit ---------------------------------------------------------------------------


def test_reserve_note_equals_recorded_note() -> None:
    scheduling = Scheduling(Answering)
    scheduling.see(a_node("n0"), a_pod("p", labels={"answer": "reserve tuple"}))
    assigned = the_one(scheduling.decide())
    assert isinstance(assigned, r.Assigned)
    assert assigned.reservations == (r.Reservation("Answering", {"what": [1, 2]}),)


def _holding(**labels: str) -> Scheduling:
    scheduling = Scheduling(RoomForAll, Doorman)
    scheduling.see(a_node("n0"), a_pod("held", labels=labels))
    assigned = the_one(scheduling.decide())
    assert isinstance(assigned, r.Assigned)
    return scheduling


def test_permit_rejects_a_pod() -> None:
    scheduling = Scheduling(RoomForAll, Doorman)
    scheduling.see(a_node("n0"))
    rejected = _rejection(scheduling, deny="yes")
    assert (rejected.message, rejected.unschedulable_plugins) == ("not today", ("Doorman",))


def test_waiting_pod_keeps_its_room_until_timeout() -> None:
    scheduling = _holding(hold="10")
    scheduling.pass_time(9.9)
    assert scheduling.decide() == []
    assert scheduling.state.pods["default/held"].placement_state is PlacementState.ASSUMED
    scheduling.pass_time(0.1)
    rejected = the_one(scheduling.next())
    assert isinstance(rejected, r.PermitRejected)
    assert rejected.plugin == "Doorman"
    assert rejected.message == "rejected due to timeout after waiting 10s at plugin Doorman"
    assert scheduling.state.nodes.pod_count.tolist() == [0]


def test_permit_timeout_is_at_most_15_minutes() -> None:
    scheduling = _holding(hold="99999")
    waiting = scheduling.state.waiting["default/held"]
    assert waiting.pending_until_ns == {"Doorman": 15 * 60 * NS_PER_S}
    scheduling.pass_time(15 * 60)
    rejected = scheduling.next()[0]
    assert isinstance(rejected, r.PermitRejected)
    assert rejected.message == "rejected due to timeout after waiting 15m0s at plugin Doorman"


def test_waiting_pod_is_allowed_during_another_attempt() -> None:
    scheduling = _holding(hold="10")
    scheduling.see(a_pod("opener", labels={"open": "held"}))
    assigned, allowed = scheduling.decide()
    assert isinstance(assigned, r.Assigned)
    assert allowed == r.PermitAllowed("default/held", "pod-held", "Doorman")
    assert not scheduling.state.waiting
    assert scheduling.state.pods["default/held"].placement_state is PlacementState.ASSUMED


def test_waiting_pod_is_rejected_during_another_attempt() -> None:
    scheduling = _holding(hold="10")
    scheduling.see(a_pod("shutter", labels={"shut": "held"}))
    _, rejected = scheduling.next()
    assert rejected == r.PermitRejected("default/held", "pod-held", "Doorman", "shutter says no")
    assert scheduling.state.pods["default/held"].placement_state is PlacementState.PENDING
