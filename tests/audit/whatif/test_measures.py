"""Measures of runs, against manual results and simple counts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asched.audit.whatif.measures import measured, node_of, pending_spans
from asched.audit.whatif.occupancy import RecordedWorkload, Steps, occupancy, workload_of
from asched.model.quantity import NS_PER_S
from asched.model.requests import pod_requests
from asched.simulator.trace import EndReason, NodeSpan, PodPlacement, PodRun, WorkloadRun
from tests.audit.recording import node
from tests.audit.whatif.runs import placement, pod_run, run_of, span


def at(steps: Steps, ns: int) -> float:
    return float(steps.values[steps.at_ns <= ns][-1])


# -- figures by hand ------------------------------------------------------------------------------


def test_figures_of_a_run() -> None:
    run = run_of(
        pod_run("a", placement("n", 10, 60), created_s=5),
        pod_run("b", placement("n", 20), created_s=20, cpu="2"),
        pod_run("given", placement("n", 0), nodeName="n"),
        pod_run("stuck", created_s=40, cpu="8"),
        nodes=(span(node("n", "4")),),
    )
    found = measured(run, workload_of(run.pods))
    figures = found.figures
    assert (figures.pods, figures.placed, figures.pending_at_end) == (3, 2, 1)
    assert found.to_bind_ns == [0, 5 * NS_PER_S]
    assert figures.time_to_bind.p50_seconds == 0.0
    assert figures.time_to_bind.p99_seconds == figures.time_to_bind.max_seconds == 5.0
    assert figures.time_to_bind.mean_seconds == 2.5
    assert figures.time_pending.total_seconds == 5 + 60
    assert [at(found.pending, s * NS_PER_S) for s in (0, 5, 10, 40, 99)] == [0, 1, 0, 1, 1]
    # One core is in use from the start; a uses one from 10 to 60, b two from 20 on.
    cpu = figures.resources["cpu"].utilisation
    assert cpu.mean == pytest.approx((100 * 1 + 50 * 1 + 80 * 2) / 400)
    assert (cpu.peak, cpu.end) == (1.0, 0.75)
    assert "memory" not in figures.resources


def test_fragmentation_is_free_but_unusable() -> None:
    # Two kinds of pods, equally frequent: one core, three cores.
    small, large = pod_run("small", placement("a", 0)), pod_run("large", placement("b", 0), cpu="3")
    run = run_of(small, large, nodes=(span(node("a", "3")), span(node("b", "8"))))
    # a has two free cores, too few for the large kind; b has five, enough for both.
    fragmentation = occupancy(run, workload_of(run.pods)).fragmentation["cpu"]
    assert at(fragmentation, 0) == pytest.approx((2 * 0.5) / 7)


def test_cordoned_and_full_nodes_do_not_count_for_fragmentation() -> None:
    cordoned = node("a", "1")
    cordoned_span = NodeSpan(
        type(cordoned)(
            metadata=cordoned.metadata,
            spec=type(cordoned.spec)(unschedulable=True),
            status=cordoned.status,
        ),
        0,
    )
    run = run_of(
        pod_run("p", placement("b", 0), cpu="2"), nodes=(cordoned_span, span(node("b", "2")))
    )
    found = occupancy(run, workload_of(run.pods))
    assert at(found.fragmentation["cpu"], 0) == 0.0
    assert at(found.utilisation["cpu"], 0) == pytest.approx(2 / 3)


def test_preemption_with_recreated_victim() -> None:
    away = placement("n", 10, 50, EndReason.PREEMPTED, by="default/high", evicted_ns=40 * NS_PER_S)
    low = pod_run("low", away, placement("m", 70), created_s=10)
    bare = pod_run(
        "bare", placement("n", 10, 50, EndReason.PREEMPTED, evicted_ns=40 * NS_PER_S), created_s=10
    )
    under_way = pod_run(
        "leaving", PodPlacement("m", 0, 0, by="default/high", evicted_ns=99 * NS_PER_S), created_s=0
    )
    run = run_of(low, bare, under_way, nodes=(span("n"), span("m")))
    figures = measured(run, workload_of(run.pods)).figures
    assert figures.preemptions == 3
    assert figures.time_pending.total_seconds == 20.0
    assert figures.pending_at_end == 0


def test_failed_binding_is_not_a_placement() -> None:
    failed = PodPlacement("gone", 0, None, 5 * NS_PER_S, EndReason.BIND_FAILED)
    assert node_of(pod_run("p", failed, placement("n", 9))) == "n"
    assert node_of(pod_run("p", failed, ends=False)) == ""
    assert pending_spans(pod_run("p", failed, placement("n", 9)), 100 * NS_PER_S) == [
        (0, 9 * NS_PER_S)
    ]


def test_replacement_bound_before_deletion_was_not_pending() -> None:
    overlapping = pod_run("p", placement("n", 0, 50, EndReason.PREEMPTED), placement("m", 30))
    assert pending_spans(overlapping, 100 * NS_PER_S) == []


def test_violated_soft_spread() -> None:
    def constraint(when: str) -> list[dict[str, object]]:
        selector = {
            "matchLabels": {},
            "matchExpressions": [{"key": "x", "operator": "DoesNotExist"}],
        }
        return [
            {
                "maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": when,
                "labelSelector": selector,
            }
        ]  # fmt: skip

    nodes = (span(node("a", zone="a")), span(node("b", zone="b")))
    soft = [
        pod_run(
            name, placement("a", at_s), created_s=at_s,
            topologySpreadConstraints=constraint("ScheduleAnyway"),
        )
        for name, at_s in (("p", 1), ("q", 2), ("r", 3))
    ]  # fmt: skip
    spread = measured(run_of(*soft, nodes=nodes), workload_of(soft)).figures.spread
    # The first makes a skew of one, which is allowed; the second makes two, the third three.
    assert (spread.constraints, spread.soft_at_placement, spread.soft_at_end) == (1, 2, 1)
    assert (spread.hard_at_placement, spread.hard_at_end) == (0, 0)
    hard = pod_run(
        "h", placement("a", 9), topologySpreadConstraints=constraint("DoNotSchedule"), created_s=9
    )
    even = pod_run("e", placement("b", 10), placement("b", 11), created_s=10)
    spread = measured(run_of(*soft, hard, even, nodes=nodes), workload_of(soft)).figures.spread
    assert (spread.hard_at_placement, spread.soft_at_placement) == (1, 2)
    assert (spread.hard_at_end, spread.soft_at_end) == (1, 1)


# -- against simple counts ------------------------------------------------------------------------

NODES = {"n0": "2", "n1": "3", "n2": "5"}
SECONDS = st.integers(0, 30)


@st.composite
def pod_runs(draw: st.DrawFn, number: int) -> PodRun:
    times = sorted(draw(st.lists(SECONDS, min_size=0, max_size=5)))
    placements = []
    for first, last in zip(times[1::2], [*times[2::2], None], strict=False):
        name = draw(st.sampled_from([*NODES, "elsewhere"]))
        placements.append(placement(name, first, last))
    return pod_run(
        f"p{number}",
        *placements,
        cpu=draw(st.sampled_from("123")),
        created_s=times[0] if times else 0,
    )


@st.composite
def runs(draw: st.DrawFn) -> WorkloadRun:
    pods = [draw(pod_runs(number)) for number in range(draw(st.integers(1, 6)))]
    spans = []
    for name, cpu in NODES.items():
        begin, end = draw(SECONDS), draw(st.none() | SECONDS)
        if end is None or end > begin:
            spans.append(span(node(name, cpu), begin, end))
    return run_of(*pods, nodes=tuple(spans), end_s=30)


def naive(run: WorkloadRun, second: int) -> tuple[float, float]:
    """Utilization and fragmentation of cpu at a time, counted by node and pod."""
    asks = [pod_requests(one.pod)["cpu"] for one in run.pods]
    allocatable = used = free = in_vain = 0.0
    for one in run.nodes:
        if one.from_ns <= second * NS_PER_S and (
            one.to_ns is None or second * NS_PER_S < one.to_ns
        ):
            offered = int(one.node.status.allocatable["cpu"]) * 1000
            taken = sum(
                pod_requests(of.pod)["cpu"]
                for of in run.pods
                for s in of.placements
                if s.node == one.node.name
                and s.assigned_ns <= second * NS_PER_S
                and (s.ended_ns is None or second * NS_PER_S < s.ended_ns)
            )
            room = max(0, offered - taken)
            allocatable, used, free = allocatable + offered, used + taken, free + room
            in_vain += room * sum(ask > room for ask in asks) / len(asks)
    return (used / allocatable if allocatable else 0.0), (in_vain / free if free else 0.0)


@given(runs())
def test_occupancy_equals_a_count_at_every_time(run: WorkloadRun) -> None:
    found = occupancy(run, workload_of(run.pods))
    if not run.nodes:
        assert found.utilisation == {}
        return
    for second in range(31):
        utilisation, fragmentation = naive(run, second)
        assert at(found.utilisation["cpu"], second * NS_PER_S) == pytest.approx(utilisation)
        assert at(found.fragmentation["cpu"], second * NS_PER_S) == pytest.approx(fragmentation)


@given(runs())
def test_pending_equals_a_count_at_every_time(run: WorkloadRun) -> None:
    found = measured(run, workload_of(run.pods))
    for second in range(30):
        waiting = 0
        for one in run.pods:
            there = one.created_ns <= second * NS_PER_S and (
                one.ended_ns is None or second * NS_PER_S < one.ended_ns
            )
            placed = any(
                s.assigned_ns <= second * NS_PER_S
                and (s.ended_ns is None or second * NS_PER_S < s.ended_ns)
                for s in one.placements
            )
            waiting += there and not placed
        assert at(found.pending, second * NS_PER_S) == waiting
    total_s = found.figures.time_pending.total_seconds
    assert total_s == pytest.approx(found.pending.mean * 30, abs=1e-6)


def test_workload_has_the_most_frequent_kinds() -> None:
    pods = [pod_run(f"p{n}", cpu=str(1 + n % 3)) for n in range(9)]
    workload = workload_of([*pods, pod_run("given", cpu="7", nodeName="n")])
    assert workload.resources == ("cpu", "pods")
    assert sorted(workload.requests[:, 0].tolist()) == [1000, 2000, 3000]
    assert workload.weights[:, 0].tolist() == pytest.approx([1 / 3] * 3)
    assert isinstance(workload, RecordedWorkload)
