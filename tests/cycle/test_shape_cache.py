"""Shared results change no decision: warm and new deciders decide the same, with both plugin
forms."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asched.cycle.decide import Decider
from asched.framework.interface import Plugin
from asched.plugins.node_affinity import NodeAffinityPlugin
from asched.state import records as r
from asched.state.cluster import ClusterState
from asched.state.fold import Fold
from tests.cycle.plugins import (
    ByLabel,
    Crowd,
    EmptiestForAll,
    EmptiestForOne,
    FewPods,
    Gatekeeper,
    Labelled,
    Moody,
    NoScoring,
    RoomForAll,
    RoomForOne,
    RoomForOneUnshared,
)
from tests.cycle.scheduling import Scheduling, nodes_of, the_one
from tests.state.objects import a_node, a_pod
from tests.state.profiles import loader, profile_of

NODES = tuple(f"n{i}" for i in range(5))
SETS: tuple[tuple[type[Plugin], ...], ...] = (
    (RoomForAll, EmptiestForAll, FewPods),
    (RoomForOne, Crowd, EmptiestForOne, ByLabel),
    (Gatekeeper, RoomForAll, Moody, EmptiestForAll),
    (RoomForOneUnshared, NoScoring, Moody, FewPods),
    (RoomForAll, Labelled, FewPods),
)

steps = st.lists(
    st.one_of(
        st.tuples(
            st.just("node"),
            st.sampled_from(NODES),
            st.sampled_from(("0", "1", "2", "4")),
            st.dictionaries(
                st.sampled_from(("mood", "score")), st.sampled_from(("1", "9")), max_size=1
            ),
        ),
        st.tuples(st.just("gone"), st.sampled_from(NODES)),
        st.tuples(
            st.just("pods"),
            st.integers(1, 3),
            st.sampled_from(("250m", "500m", "1")),
            st.dictionaries(
                st.sampled_from(("only", "refuse", "skip")), st.sampled_from(NODES), max_size=1
            ),
        ),
        st.tuples(st.just("leave"), st.integers(0, 20)),
        st.tuples(st.just("time"), st.sampled_from((1, 20))),
    ),
    max_size=14,
)


def _take(scheduling: Scheduling, step: tuple[object, ...], number: int) -> None:
    match step:
        case ("node", str(name), str(cpu), dict(labels)):
            scheduling.see(a_node(name, {"cpu": cpu, "pods": "110"}, labels=labels))
        case ("gone", str(name)):
            scheduling.apply(r.ObjectDeleted("Node", name))
        case ("pods", int(count), str(cpu), dict(labels)):
            for i in range(count):
                scheduling.see(a_pod(f"p{number}-{i}", {"cpu": cpu}, labels=labels))
        case ("leave", int(which)):
            entries = list(scheduling.state.pods.values())
            if entries:
                info = entries[which % len(entries)].info
                scheduling.apply(r.ObjectDeleted("Pod", info.key, info.uid))
        case ("time", int(seconds)):
            scheduling.pass_time(seconds)


@given(plugins=st.sampled_from(SETS), steps=steps, percentage=st.sampled_from((0, 0, 30)))
def test_warm_and_new_decider_decide_the_same(
    plugins: tuple[type[Plugin], ...], steps: list[tuple[object, ...]], percentage: int
) -> None:
    profile = profile_of(*plugins, percentage=percentage)
    scheduling = Scheduling(*plugins, profiles=(profile,))
    for number, step in enumerate(steps):
        _take(scheduling, step, number)
        while True:
            fresh = Fold(ClusterState(), loader(*plugins))
            fresh.apply_all(scheduling.records)
            expected = Decider(fresh.state).next()
            assert scheduling.next() == expected
            if not expected:
                break


def _likewise(*plugins: type[Plugin]) -> list[r.Decision]:
    scheduling = Scheduling(*plugins)
    for number, name in enumerate(NODES):
        scheduling.see(a_node(name, {"cpu": str(1 + number), "pods": "110"}))
    for number in range(40):
        scheduling.see(a_pod(f"p{number}", {"cpu": ("300m", "500m")[number % 2]}))
    return scheduling.decide()


@pytest.mark.parametrize("room", [RoomForOne, RoomForOneUnshared])
def test_both_forms_of_a_plugin_decide_the_same(room: type[Plugin]) -> None:
    for_all = _likewise(RoomForAll, EmptiestForAll)
    assert _likewise(room, EmptiestForOne) == for_all
    assert len(nodes_of(for_all)) == 37
    assert isinstance(for_all[-1], r.Rejected)


def test_failing_scorer_does_not_fail_pod_with_one_feasible_node() -> None:
    scheduling = Scheduling(RoomForAll, Moody)
    scheduling.see(a_node("n0", {"cpu": "2", "pods": "9"}), a_node("n1", {"cpu": "2", "pods": "9"}))
    scheduling.see(a_pod("first", {"cpu": "1500m"}))
    first = nodes_of(scheduling.decide())
    failing = next(name for name in ("n0", "n1") if name not in first.values())
    scheduling.see(a_node(failing, {"cpu": "2", "pods": "9"}, labels={"mood": "bad"}))
    scheduling.see(a_pod("second", {"cpu": "1500m"}))
    assert nodes_of(scheduling.decide()) == {"default/second": failing}


@pytest.mark.parametrize("arrivals", [1, 40])
def test_shared_plugin_that_reads_nodes_runs_again_after_changes(arrivals: int) -> None:
    """Skips and rejections from before a node had the label no longer count."""
    scheduling = Scheduling(RoomForAll, Labelled)
    offers = {"cpu": "4", "pods": "9"}
    scheduling.see(*(a_node(f"n{i}", offers) for i in range(3)))
    scheduling.see(a_pod("before"), a_pod("needy", {"cpu": "1"}))
    before = scheduling.decide()
    assert set(nodes_of(before)) == {"default/before"}
    labelled = [a_node(f"g{i}", offers, labels={"score": "1"}) for i in range(arrivals)]
    scheduling.see(*labelled, a_pod("after"), a_pod("needy-too", {"cpu": "1"}))
    fresh = Fold(ClusterState(), loader(RoomForAll, Labelled))
    fresh.apply_all(scheduling.records)
    expected = Decider(fresh.state).next()
    [decision] = scheduling.next()
    assert (decision,) == expected
    assert isinstance(decision, r.Assigned)
    assert decision.node.startswith("g")
    if arrivals > 1:
        assert decision.score == 100
    rest = nodes_of(scheduling.decide())
    assert rest["default/needy-too"].startswith("g")


def test_node_that_reuses_a_row_is_counted() -> None:
    """Also if its result equals that of the empty row."""
    scheduling = Scheduling(NodeAffinityPlugin, RoomForAll)
    scheduling.see(*(a_node(f"n{i}") for i in range(3)))
    scheduling.apply(r.ObjectDeleted("Node", "n1"))
    messages = []
    for number in range(2):
        pod = a_pod(f"p{number}")
        spec = msgspec.structs.replace(pod.spec, node_selector={"disk": "ssd"})
        scheduling.see(msgspec.structs.replace(pod, spec=spec))
        rejected = the_one(scheduling.decide())
        assert isinstance(rejected, r.Rejected)
        messages.append(rejected.message)
        scheduling.see(a_node("n3"))
    assert messages == [
        f"0/{nodes} nodes are available: {nodes} node(s) didn't match Pod's node affinity/selector."
        for nodes in (2, 3)
    ]
