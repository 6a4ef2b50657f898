"""How figures are computed, and the page that shows them."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree as ET

import msgspec
import pytest

from asched.model.meta import ObjectMeta
from asched.model.pod import Pod
from asched.state.records import (
    AnyRecord,
    Assigned,
    Bound,
    ObjectObserved,
    PodObserved,
    TurnStarted,
)
from benchmarks import chart, page, results
from benchmarks.engine_run import Run, StuckError, Workload, pods_of
from benchmarks.journal_times import Timeline
from benchmarks.kinds import KINDS
from benchmarks.measurement import Measurements, Percentiles, throughput
from benchmarks.pods import PodTracker


class FakeProcess:
    """A process that uses ten milliseconds of CPU between two reads."""

    def __init__(self) -> None:
        self._reads = 0

    def cpu_s(self) -> float:
        self._reads += 1
        return self._reads / 100

    async def settled_cpu_s(self) -> float:
        return self.cpu_s()


def test_percentiles_match_scheduler_perf() -> None:
    assert Percentiles.of(list(range(1, 201))) == Percentiles(100.5, 100, 180, 190, 198)
    assert Percentiles.of([7.0]) == Percentiles(7, 7, 7, 7, 7)
    assert Percentiles.of([]) is None


@pytest.mark.parametrize(
    ("bound_s", "samples"),
    [
        ([], []),
        ([10.2, 10.4], []),  # less than a second
        ([10.2, 10.4, 11.5], [2]),  # the last second is incomplete
        ([12.5, 12.6, 13.5], [2]),  # seconds before the first pod do not count
        (
            [10.1, 12.1, 12.2, 12.3, 12.4, 13.0],
            [1, 2, 2],
        ),  # an idle second shares the count of the next
    ],
)
def test_throughput_is_sampled_by_second(bound_s: list[float], samples: list[float]) -> None:
    assert throughput(bound_s, begin_s=10.0) == samples


async def test_phase_counts_matching_pods_bound_during_phase() -> None:
    now_s = 0.0
    pods = PodTracker(lambda: now_s)
    for namespace, name in (("a", "early"), ("a", "1"), ("a", "2"), ("a", "never"), ("b", "1")):
        pods.created(namespace, name, {"app": "x"})
    pods.created("a", "other", {"app": "y"})
    by_name = {(pod.namespace, pod.name): pod for pod in pods}
    by_name["a", "early"].bound_s = 0.5
    now_s = 1.0
    measurements = Measurements(pods, FakeProcess(), lambda: now_s)
    async with measurements.measuring("p", ("a",), {"app": "x"}):
        for number, key in enumerate((("a", "1"), ("a", "2"), ("a", "other"), ("b", "1"))):
            by_name[key].bound_s = 2.0 + number
    (phase,) = measurements.phases
    assert (phase.name, phase.pods, phase.duration_s, phase.pods_per_s) == ("p", 2, 2.0, 1.0)
    assert phase.scheduler_cpu_ms_per_pod == 5.0
    assert phase.created_to_bound_ms == Percentiles(2500, 2000, 3000, 3000, 3000)


def test_timeline_contains_observed_decided_and_bound_times() -> None:
    timeline = Timeline()
    copied = PodObserved(template=1, key="ns/copy", uid="u2")
    placed = PodObserved(template=1, key="ns/placed", uid="u3", node_name="n")
    records: list[AnyRecord] = [
        TurnStarted(100),
        ObjectObserved(Pod(metadata=ObjectMeta(name="first", namespace="ns", uid="u1"))),
        placed,
        Assigned("ns/first", "u1", "n", 1, 1),
        TurnStarted(250),
        copied,
        Bound("ns/first", "u1", "n"),
        TurnStarted(300),
        Assigned("ns/copy", "u2", "n", 1, 1),
        TurnStarted(420),
    ]
    for record in records:
        timeline.apply(record)
    assert sorted(timeline.times) == ["u1", "u2"]
    first, copy = timeline.times["u1"], timeline.times["u2"]
    assert (first.observed_ns, first.decided_ns, first.bound_ns) == (100, 250, 250)
    assert (copy.observed_ns, copy.decided_ns, copy.bound_ns) == (250, 420, 0)


# -- the engine alone
# -------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS.values(), ids=list(KINDS))
def test_run_schedules_every_kind(kind: object) -> None:
    found = next(each for each in KINDS.values() if each is kind)
    pods = pods_of(found, 30, 20)
    costs = Run(Workload(found, 30, pods, shapes=3)).measure()
    unschedulable = pods // 10 if found.unschedulable else 0
    assert costs.assigned == pods - unschedulable
    assert costs.rejected >= unschedulable
    assert costs.observe_ns > 0
    assert costs.assign_ns > 0
    assert costs.fold_ns > 0
    assert costs.total_ns == sum(
        (costs.observe_ns, costs.assign_ns, costs.reject_ns, costs.fold_ns)
    )


def test_run_rejects_and_then_assigns_preemptors() -> None:
    pods = pods_of(KINDS["preemption"], 8, None)
    costs = Run(Workload(KINDS["preemption"], 8, pods)).measure()
    assert costs.assigned == 8
    assert costs.rejected >= 8


def test_run_fails_if_pods_never_fit() -> None:
    with pytest.raises(StuckError, match="were not placed"):
        Run(Workload(KINDS["anti-affinity"], 5, 9)).measure()


# -- the page
# ---------------------------------------------------------------------------------------


def test_page_is_filled_between_marks() -> None:
    text = "before\n<!-- figures: growth -->\nold\n<!-- end -->\nafter\n"
    once = page.rendered(text, results.Results())
    assert "Not measured yet." in once
    assert "old" not in once
    assert once.startswith("before\n<!-- figures: growth -->\n")
    assert once.endswith("<!-- end -->\nafter\n")
    assert page.rendered(once, results.Results()) == once


def test_documentation_page_shows_saved_figures() -> None:
    text = page.PAGE.read_text()
    assert page.rendered(text, results.load(page.RESULTS)) == text
    shown = re.findall(r"^<!-- figures: (\S+) -->$", text, re.MULTILINE)
    assert set(shown) == {field.name for field in msgspec.structs.fields(results.Results)}


def test_saved_figures_are_loaded(tmp_path: Path) -> None:
    figures = results.Results(
        machine={"engine": results.Machine("today", "a processor", 2, "3.11", 0.5)}
    )
    results.save(tmp_path / "results.json", figures)
    assert results.load(tmp_path / "results.json") == figures
    assert results.load(tmp_path / "none.json") == results.Results()


def test_targets_name_existing_kinds() -> None:
    assert {target.kind for target in results.ENGINE_TARGETS} <= KINDS.keys()


def test_chart_shows_saved_figures() -> None:
    assert chart.CHART.read_text() == chart.drawn(results.load(page.RESULTS).comparison)


def test_bars_are_parts_of_the_longer_one() -> None:
    result = results.ComparisonResult("A/b", "a & b", [1.0, 3.0, 2.0], [8.0, 9.0, 7.0])
    drawn = chart.drawn([result])
    assert result.ratio == 0.25
    widths = [int(width) for width in re.findall(r'y="\d\d" width="(\d+)" height="14"', drawn)]
    assert widths[-2:] == [105, 420]
    assert "a &amp; b" in drawn
    assert "2.00  (4.0 times less)" in drawn
    ET.fromstring(drawn)
