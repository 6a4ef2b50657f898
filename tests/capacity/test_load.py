"""Scaled and resampled arrivals."""

from __future__ import annotations

from collections import Counter
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asched.audit.lookup import AuditError
from asched.capacity.load import HOUR_NS, LoadForecast, with_load
from asched.framework.pod_groups import group_of
from asched.model.pod import Pod
from asched.simulator.expansion import expand
from asched.simulator.scenario import read_scenario
from asched.simulator.trace import ObjectSet, PodCreated, PodDeleted, TraceEvent, WorkloadTrace
from tests.planning.journals import SCENARIO
from tests.run_size import examples

BEGIN_NS = 10**18
ARRIVALS = expand(read_scenario(SCENARIO), "default-scheduler")


def pod(name: str, **metadata: Any) -> Pod:
    given = {"metadata": {"name": name, "namespace": "ns", "uid": f"{name}-uid", **metadata}}
    return msgspec.convert(given, Pod)


def created(trace: WorkloadTrace) -> list[PodCreated]:
    return [event for event in trace.events if isinstance(event, PodCreated)]


@st.composite
def traces(draw: st.DrawFn) -> WorkloadTrace:
    """Pods that arrive in three days, some of one controller or deleted later."""
    events: list[TraceEvent] = []
    for number, minute in enumerate(draw(st.lists(st.integers(0, 3 * 1440), max_size=20))):
        at_ns = BEGIN_NS + minute * HOUR_NS // 60
        owner = draw(st.sampled_from([None, "a", "b"]))
        owners = [] if owner is None else [{"name": owner, "uid": owner, "controller": True}]
        one = pod(f"p{number}", ownerReferences=owners)
        events.append(PodCreated(at_ns, one, run_ns=HOUR_NS))
        if draw(st.booleans()):
            events.append(PodDeleted(at_ns + HOUR_NS // 2, one.key, one.metadata.uid))
    events.sort(key=lambda event: event.at_ns)
    return WorkloadTrace(tuple(events), BEGIN_NS, BEGIN_NS + 72 * HOUR_NS)


@given(traces(), st.floats(0, 4), st.sampled_from(["", "hour", "day"]), st.integers(0, 99))
def test_changed_traces_are_consistent(
    trace: WorkloadTrace, scale: float, resample: Any, seed: int
) -> None:
    """Each deleted pod was created before; equal seeds give equal traces; the constructor of a
    trace checks the order and that uids are unique."""
    forecast = LoadForecast(scale, resample)
    changed = with_load(trace, forecast, seed).trace
    at_ns = {event.pod.metadata.uid: event.at_ns for event in created(changed)}
    for event in changed.events:
        if isinstance(event, PodDeleted):
            assert event.at_ns - at_ns[event.uid] == HOUR_NS // 2
    assert len({event.pod.key for event in created(changed)}) == len(at_ns)
    assert changed == with_load(trace, forecast, seed).trace
    assert max(at_ns.values(), default=BEGIN_NS) <= BEGIN_NS + 73 * HOUR_NS


@given(traces(), st.floats(0, 3), st.floats(0, 3), st.integers(0, 9))
@settings(max_examples=examples(40))
def test_a_larger_scale_contains_a_smaller_one(
    trace: WorkloadTrace, one: float, other: float, seed: int
) -> None:
    found = [
        {(e.at_ns, e.pod.metadata.uid) for e in created(with_load(trace, load, seed).trace)}
        for load in map(LoadForecast, sorted((one, other)))
    ]
    assert found[0] <= found[1]


@given(traces(), st.integers(0, 3), st.integers(0, 9))
@settings(max_examples=examples(40))
def test_whole_scales_keep_the_hours(trace: WorkloadTrace, scale: int, seed: int) -> None:
    """Of pods without a controller: the first pod of a unit determines the hour."""

    def hours(of: WorkloadTrace) -> Counter[int]:
        alone = (event for event in created(of) if event.pod.metadata.controller is None)
        return Counter((event.at_ns - BEGIN_NS) // HOUR_NS for event in alone)

    changed = with_load(trace, LoadForecast(float(scale)), seed).trace
    assert hours(changed) == Counter({hour: scale * n for hour, n in hours(trace).items() if scale})


def test_scale_on_average() -> None:
    pods = len(created(ARRIVALS))
    found = [len(created(with_load(ARRIVALS, LoadForecast(1.3), seed).trace)) for seed in range(40)]
    assert sum(found) / len(found) == pytest.approx(1.3 * pods, rel=0.05)
    assert len(set(found)) > 3


def test_hours_come_from_the_same_hour_of_another_day() -> None:
    events = [PodCreated(BEGIN_NS + n * HOUR_NS + 1, pod(f"p{n}")) for n in range(72)]
    trace = WorkloadTrace(tuple(events), BEGIN_NS, BEGIN_NS + 72 * HOUR_NS)
    moved = 0
    for event in created(with_load(trace, LoadForecast(resample="hour"), 3).trace):
        origin = int(event.pod.metadata.name.partition("-")[0][1:])
        hour = (event.at_ns - BEGIN_NS) // HOUR_NS
        assert hour % 24 == origin % 24
        moved += hour != origin
    assert moved > 20
    by_day = with_load(trace, LoadForecast(resample="day"), 3).trace
    days = set()
    for event in created(by_day):
        origin = int(event.pod.metadata.name.partition("-")[0][1:])
        days.add(((event.at_ns - BEGIN_NS) // HOUR_NS // 24, origin // 24))
    assert len(days) == 3, "each day consists of the hours of one day"


def test_pods_at_the_beginning_are_not_resampled() -> None:
    running = msgspec.convert(
        {"metadata": {"name": "r", "uid": "r"}, "spec": {"nodeName": "n"}}, Pod
    )
    events = (PodCreated(BEGIN_NS, running), PodCreated(BEGIN_NS, pod("pending")))
    trace = WorkloadTrace(events, BEGIN_NS, BEGIN_NS + 3 * HOUR_NS)
    assert with_load(trace, LoadForecast(resample="hour"), 0).trace == trace
    scaled = created(with_load(trace, LoadForecast(2.0), 0).trace)
    assert [event.pod.metadata.name for event in scaled if event.pod.spec.node_name] == ["r"]
    assert len(scaled) == 3


def test_groups_are_copied_with_their_pods() -> None:
    group = msgspec.convert(
        {"metadata": {"name": "g", "namespace": "ns", "uid": "g"}, "spec": {"minMember": 2}},
        incubator_group(),
    )
    members = [pod(f"m{n}", annotations={"scheduling.k8s.io/group-name": "g"}) for n in range(2)]
    events: tuple[TraceEvent, ...] = (
        ObjectSet(BEGIN_NS, group),
        *(PodCreated(BEGIN_NS + HOUR_NS * 2 * n, one) for n, one in enumerate(members)),
    )
    trace = WorkloadTrace(events, BEGIN_NS, BEGIN_NS + 9 * HOUR_NS)
    changed = with_load(trace, LoadForecast(2.0), 0).trace
    names = Counter(group_of(event.pod) for event in created(changed))
    assert {key.key: count for key, count in names.items() if key} == {"ns/g": 2, "ns/g-x1": 2}
    groups = [e.object.metadata.name for e in changed.events if isinstance(e, ObjectSet)]
    assert sorted(groups) == ["g", "g-x1"]


def incubator_group() -> Any:
    from asched.model.resources import KINDS

    return KINDS["IncubatorPodGroup"]


def test_short_periods_cannot_be_resampled() -> None:
    trace = WorkloadTrace((), BEGIN_NS, BEGIN_NS + HOUR_NS)
    with pytest.raises(AuditError, match="at least two hours"):
        with_load(trace, LoadForecast(resample="hour"), 0)
