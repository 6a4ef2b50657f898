"""Each violated invariant is reported in one line."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from asched.framework.pod_info import HostPort, PodInfo, QueuedPod
from asched.model.node import Taint
from asched.state import records as r
from asched.state.cluster import ClusterState, PlacementState
from asched.state.waiting_pods import WaitingPodState
from asched.testing.invariants import InvariantChecker, check
from tests.state.objects import a_node, a_pod
from tests.state.profiles import DEFAULT, a_fold


def _lose_from_queue(state: ClusterState) -> None:
    state.queue.remove("default/pending")


def _forget_pod(state: ClusterState) -> None:
    del state.pods["default/pending"]


def _count_twice(state: ClusterState) -> None:
    state.nodes.add_pod("n0", PodInfo(a_pod("ghost")))


def _count_nowhere(state: ClusterState) -> None:
    entry = state.pods["default/placed"]
    state.nodes.remove_pod("n0", entry.info)


def _nominate_placed(state: ClusterState) -> None:
    state.nominator.nominate(state.pods["default/placed"].info, "n0")


def _wait_unassumed(state: ClusterState) -> None:
    info = state.pods["default/placed"].info
    state.waiting_pods.add(WaitingPodState(info, "n0", 0, {"Doorman": 1}, was_nominated=False))


def _bound_in_queue(state: ClusterState) -> None:
    state.pods["default/pending"].placement_state = PlacementState.BOUND
    state.pods["default/pending"].node = "n0"


def _wrong_amount(state: ClusterState) -> None:
    state.nodes.columns.requested["cpu"][0] += 1


def _wrong_label(state: ClusterState) -> None:
    state.nodes.label_index.columns["zone"][0] = -1


def _extra_label(state: ClusterState) -> None:
    state.nodes.label_index.set_row(0, {"left": "over"}, {}, 64)


def _wrong_taint(state: ClusterState) -> None:
    state.nodes.columns.taint_ids[0] = 0


def _extra_port(state: ClusterState) -> None:
    state.nodes.port_index.add(0, (HostPort("TCP", 80, "0.0.0.0"),))


def _missing_image(state: ClusterState) -> None:
    state.nodes.image_index.set_row(0, ())


def _forget_gate(state: ClusterState) -> None:
    info = state.pods["default/pending"].info
    state.queue.remove("default/pending")
    queued = QueuedPod(info, 0)
    queued.gating_plugin = "SchedulingGates"
    state.queue._waiting.add_gated(queued)


@pytest.mark.parametrize(
    ("breach", "message"),
    [
        (_lose_from_queue, "pod default/pending is pending but nowhere in the queue"),
        (_forget_pod, "the queue holds another pod default/pending than the state"),
        (_count_twice, "2 pods are counted on nodes, 1 are placed"),
        (_count_nowhere, "pod default/placed is bound on n0 but not counted there"),
        (_nominate_placed, "pod default/placed is nominated to n0 but is not pending as such"),
        (_wait_unassumed, "pod default/placed waits on Permit on n0 but is not assumed there"),
        (_bound_in_queue, "pod default/pending is bound but active"),
        (_wrong_amount, "node n0: column requested cpu is 501, expected 500"),
        (_wrong_label, "label zone differs from the nodes"),
        (_extra_label, "label left differs from the nodes"),
        (_wrong_taint, "taints differ from the nodes"),
        (_extra_port, "ports differ from the pods on the nodes"),
        (
            _forget_gate,
            "pod default/pending is gated by SchedulingGates, but no PreEnqueue plugin rejects it",
        ),
        (_missing_image, "images differ from the nodes"),
    ],
)
@pytest.mark.parametrize("check", [check, InvariantChecker().check], ids=["once", "each record"])
def test_violation_is_reported(
    check: Callable[[ClusterState], None], breach: Callable[[ClusterState], None], message: str
) -> None:
    fold = a_fold(*DEFAULT)
    marked = a_node("n0", labels={"zone": "a"}, taints=(Taint(key="x"),), images={"app:v1": 9})
    for item in (marked, a_pod("placed", on="n0"), a_pod("pending")):
        fold.apply(r.ObjectObserved(item))
    check(fold.state)
    breach(fold.state)
    with pytest.raises(AssertionError) as caught:
        check(fold.state)
    assert str(caught.value) == message
