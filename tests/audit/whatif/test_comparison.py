"""Comparisons of two runs."""

from __future__ import annotations

from asched.audit.whatif.comparison import (
    NamedRun,
    PlacedElsewhere,
    PlacedOnce,
    compare,
    duration,
    figure_rows,
)
from asched.simulator.trace import PodRun, WorkloadRun
from tests.audit.recording import pod
from tests.audit.whatif.runs import placement, pod_run, run_of, span

NODES = (span("n"), span("m"))


def one_run(p: str, q: str, r: str) -> WorkloadRun:
    def placed(name: str, where: str) -> PodRun:
        if where:
            return pod_run(name, placement(where, 20))
        return PodRun(pod(name), 0, attempts=1, rejections=1, message=f"no room for {name}")

    given = pod_run("given", placement("m", 0), nodeName="m")
    return run_of(placed("p", p), placed("q", q), placed("r", r), given, nodes=NODES)


def test_comparison_lists_differing_pods() -> None:
    found = compare(
        NamedRun("old", one_run("n", "n", "")), NamedRun("new", one_run("m", "", "m")), notes=("!",)
    )
    assert not found.equal
    assert found.placed_elsewhere == (PlacedElsewhere("default/p", "uid-p", "n", "m"),)
    assert found.placed_in_baseline_only == (
        PlacedOnce("default/q", "uid-q", "n", "no room for q"),
    )
    assert found.placed_in_candidate_only == (
        PlacedOnce("default/r", "uid-r", "m", "no room for r"),
    )
    report = found.report()
    assert (report.baseline.name, report.candidate.name, report.recorded) == ("old", "new", None)
    assert report.notes == ("!",)
    assert report.baseline.pending.seconds == [0.0, 20.0]
    assert report.baseline.pending.values == [3.0, 1.0]


def test_comparison_of_equal_runs() -> None:
    run = one_run("n", "", "m")
    found = compare(NamedRun("a", run), NamedRun("b", run), recorded=run)
    assert found.equal
    assert all(row.change == "" for row in figure_rows([found.baseline.figures] * 2))


def test_rows_show_the_change_between_the_first_two_runs() -> None:
    runs = [one_run("n", "n", ""), one_run("m", "m", "m")]
    found = compare(NamedRun("a", runs[0]), NamedRun("b", runs[1]), recorded=runs[0])
    assert found.recorded is not None
    figures = [found.baseline.figures, found.candidate.figures, found.recorded.figures]
    rows = {row.label: row for row in figure_rows(figures)}
    assert rows["placed"].values == ("2", "3", "2")
    assert rows["placed"].change == "+1"
    assert rows["time pending, total"].change == "-80 s"
    assert rows["cpu utilisation, mean"].values == ("32.5%", "42.5%", "32.5%")
    assert rows["cpu utilisation, mean"].change == "+10.0 points"
    assert "hard spread violations, at placement" not in rows


def test_durations_have_three_digits() -> None:
    texts = [duration(s) for s in (0, 0.00042, 0.9994, 59.96, 119, 120, 7199, 7200, 172_800, 1e9)]
    assert texts == [
        "0 s", "0.42 ms", "999 ms", "60 s", "119 s", "2 min", "120 min", "2 h", "2 d", "11,574 d",
    ]  # fmt: skip
    assert duration(-0.25) == "-250 ms"
