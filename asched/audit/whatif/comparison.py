"""Compares two runs of the same history, and formats their figures as table rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime
from typing import Final, NamedTuple

import msgspec

from asched.audit.timeline import time_of
from asched.audit.whatif.measures import (
    Figures,
    MeasuredRun,
    measured,
    node_of,
    to_place,
)
from asched.audit.whatif.occupancy import Steps, percentile, workload_of
from asched.model.quantity import NS_PER_S
from asched.pricing.prices import Prices
from asched.simulator.trace import PodRun, WorkloadRun

MAX_POINTS: Final = 240
"""Points of a series in the JSON form."""


class PlacedElsewhere(msgspec.Struct, frozen=True, rename="camel"):
    """A pod that the two runs placed on different nodes."""

    pod: str
    uid: str
    baseline: str
    candidate: str
    """The nodes are those of the first placement."""


class PlacedOnce(msgspec.Struct, frozen=True, rename="camel"):
    """A pod that only one run placed."""

    pod: str
    uid: str
    node: str
    message: str
    """The last rejection message of the other run; empty if it has none, or if the pod is gone."""


class TimeSeries(msgspec.Struct, frozen=True, rename="camel"):
    """A value over time: ``values[i]`` applies from ``seconds[i]`` after the beginning. Series with
    more than :data:`MAX_POINTS` changes contain averages of equal intervals."""

    seconds: list[float]
    values: list[float]

    @classmethod
    def of(cls, steps: Steps) -> TimeSeries:
        thin = steps.thinned(MAX_POINTS)
        seconds = ((thin.at_ns - thin.start_ns) / NS_PER_S).round(3)
        return cls(seconds.tolist(), thin.values.round(6).tolist())


WAIT_PERCENTS: Final = (0, 5, 10, 20, 30, 40, 50, 60, 70, 80, 90, 95, 99, 99.9, 100)


class WaitPercentiles(msgspec.Struct, frozen=True, rename="camel"):
    """The distribution of the time to bind: ``percents[i]`` of the bound pods waited at most
    ``seconds[i]``. Empty without bound pods."""

    percents: tuple[float, ...] = ()
    seconds: tuple[float, ...] = ()

    @classmethod
    def of(cls, ordered_ns: Sequence[int]) -> WaitPercentiles:
        """``ordered_ns`` ascending."""
        if not ordered_ns:
            return cls()
        found = (percentile(ordered_ns, percent) or 0 for percent in WAIT_PERCENTS)
        return cls(WAIT_PERCENTS, tuple(ns / NS_PER_S for ns in found))


class RunReport(msgspec.Struct, frozen=True, rename="camel"):
    """The figures and series of one run."""

    name: str
    figures: Figures
    waits: WaitPercentiles
    pending: TimeSeries
    placed: TimeSeries
    """Pods placed at least once so far."""
    evicted: TimeSeries
    """Evictions so far."""
    utilisation: dict[str, TimeSeries]
    fragmentation: dict[str, TimeSeries]

    @classmethod
    def of(cls, name: str, run: MeasuredRun) -> RunReport:
        series = TimeSeries.of
        return cls(
            name=name,
            figures=run.figures,
            waits=WaitPercentiles.of(run.to_bind_ns),
            pending=series(run.pending),
            placed=series(run.placed),
            evicted=series(run.evicted),
            utilisation={resource: series(steps) for resource, steps in run.utilisation.items()},
            fragmentation={
                resource: series(steps) for resource, steps in run.fragmentation.items()
            },
        )


class DiffReport(msgspec.Struct, frozen=True, rename="camel"):
    """The JSON form of a comparison (see ``docs/how-to/what-if.md``)."""

    begin: datetime
    end: datetime
    baseline: RunReport
    candidate: RunReport
    recorded: RunReport | None
    placed_elsewhere: tuple[PlacedElsewhere, ...]
    placed_in_baseline_only: tuple[PlacedOnce, ...]
    placed_in_candidate_only: tuple[PlacedOnce, ...]
    notes: tuple[str, ...] = ()


class NamedRun(NamedTuple):
    """A run and its display name."""

    name: str
    run: WorkloadRun


class Comparison(NamedTuple):
    """The measured runs, and the pods that differ."""

    baseline: MeasuredRun
    candidate: MeasuredRun
    recorded: MeasuredRun | None
    names: tuple[str, str]
    placed_elsewhere: tuple[PlacedElsewhere, ...]
    placed_in_baseline_only: tuple[PlacedOnce, ...]
    placed_in_candidate_only: tuple[PlacedOnce, ...]
    notes: tuple[str, ...]

    @property
    def equal(self) -> bool:
        """Whether both runs placed every pod on the same node."""
        return not (
            self.placed_elsewhere or self.placed_in_baseline_only or self.placed_in_candidate_only
        )

    def report(self) -> DiffReport:
        run = self.baseline.run
        recorded = self.recorded
        return DiffReport(
            begin=time_of(run.begin_ns),
            end=time_of(run.end_ns),
            baseline=RunReport.of(self.names[0], self.baseline),
            candidate=RunReport.of(self.names[1], self.candidate),
            recorded=None if recorded is None else RunReport.of("as recorded", recorded),
            placed_elsewhere=self.placed_elsewhere,
            placed_in_baseline_only=self.placed_in_baseline_only,
            placed_in_candidate_only=self.placed_in_candidate_only,
            notes=self.notes,
        )


def compare(
    baseline: NamedRun,
    candidate: NamedRun,
    recorded: WorkloadRun | None = None,
    notes: Iterable[str] = (),
    *,
    prices: Prices | None = None,
) -> Comparison:
    """Compares the pods, by uid, and the figures of two runs of one history. ``prices`` adds
    costs."""
    workload = workload_of(baseline.run.pods)
    before = {pod.uid: pod for pod in to_place(baseline.run)}
    after = {pod.uid: pod for pod in to_place(candidate.run)}
    elsewhere: list[PlacedElsewhere] = []
    only: dict[bool, list[PlacedOnce]] = {True: [], False: []}
    for uid, one in before.items():
        other = after.get(uid)
        if other is None:
            continue
        first, second = node_of(one), node_of(other)
        if first and second and first != second:
            elsewhere.append(PlacedElsewhere(one.key, uid, first, second))
        elif bool(first) != bool(second):
            placed, not_placed = (one, other) if first else (other, one)
            only[bool(first)].append(_once(placed, not_placed))
    return Comparison(
        baseline=measured(baseline.run, workload, prices),
        candidate=measured(candidate.run, workload, prices),
        recorded=None if recorded is None else measured(recorded, workload, prices),
        names=(baseline.name, candidate.name),
        placed_elsewhere=tuple(elsewhere),
        placed_in_baseline_only=tuple(only[True]),
        placed_in_candidate_only=tuple(only[False]),
        notes=tuple(notes),
    )


def _once(placed: PodRun, not_placed: PodRun) -> PlacedOnce:
    return PlacedOnce(placed.key, placed.uid, node_of(placed), not_placed.message)


NONE: Final = "–"
Number = int | float


class ReportRow(NamedTuple):
    """One figure of each run, as text."""

    label: str
    values: tuple[str, ...]
    change: str
    """From the first run to the second; may be empty."""


class _Unit(NamedTuple):
    text: Callable[[Number], str]
    change: Callable[[Number], str]


def duration(seconds: Number) -> str:
    """Three significant digits, in a suitable unit.

    >>> duration(0.0421), duration(95), duration(5400), duration(0)
    ('42.1 ms', '95 s', '90 min', '0 s')
    """
    size = abs(seconds)
    for least, unit, name in ((172_800, 86_400, "d"), (7_200, 3_600, "h"), (120, 60, "min")):
        if size >= least:
            return f"{_digits(seconds / unit)} {name}"
    return f"{_digits(seconds * 1000)} ms" if 0 < size < 1 else f"{_digits(seconds)} s"


def _digits(number: float) -> str:
    """Three significant digits, without an exponent."""
    return f"{number:,.0f}" if abs(number) >= 1000 else f"{number:.3g}"


_COUNT: Final = _Unit(lambda n: f"{n:,}", lambda n: f"{n:+,}")
_TIME: Final = _Unit(duration, lambda s: ("+" if s > 0 else "") + duration(s))
_COST: Final = _Unit(lambda n: f"{n:,.2f}", lambda n: f"{n:+,.2f}")
_SHARE: Final = _Unit(lambda s: f"{s:.1%}", lambda s: f"{s * 100:+.1f} points")


def figure_rows(runs: Sequence[Figures]) -> list[ReportRow]:
    """The table rows of these runs; ``change`` compares the first two."""
    rows = []
    for label, unit, values in _figures(runs):
        texts = tuple(NONE if value is None else unit.text(value) for value in values)
        rows.append(ReportRow(label, texts, _change(unit, values)))
    return rows


_Line = tuple[str, _Unit, tuple[Number | None, ...]]


def _change(unit: _Unit, values: Sequence[Number | None]) -> str:
    if len(values) < 2:
        return ""
    before, after = values[0], values[1]
    if before is None or after is None or unit.text(before) == unit.text(after):
        return ""
    return unit.change(after - before)


def _figures(runs: Sequence[Figures]) -> Iterator[_Line]:
    def line(label: str, unit: _Unit, of: Callable[[Figures], Number | None]) -> _Line:
        return label, unit, tuple(of(run) for run in runs)

    yield line("pods to place", _COUNT, lambda f: f.pods)
    yield line("placed", _COUNT, lambda f: f.placed)
    yield line("pending at the end", _COUNT, lambda f: f.pending_at_end)
    yield line("time to bind, p50", _TIME, lambda f: f.time_to_bind.p50_seconds)
    yield line("time to bind, p99", _TIME, lambda f: f.time_to_bind.p99_seconds)
    yield line("time to bind, mean", _TIME, lambda f: f.time_to_bind.mean_seconds)
    yield line("time pending, p99", _TIME, lambda f: f.time_pending.p99_seconds)
    yield line("time pending, total", _TIME, lambda f: f.time_pending.total_seconds)
    yield line("attempts", _COUNT, lambda f: f.attempts)
    yield line("rejections", _COUNT, lambda f: f.rejections)
    yield line("preemptions", _COUNT, lambda f: f.preemptions)
    for resource in dict.fromkeys(name for run in runs for name in run.resources):
        yield from _of_resource(resource, runs)
    if any(run.costs for run in runs):
        yield from _of_costs(runs)
    if any(run.spread.constraints for run in runs):
        for label, of in (
            ("hard spread violations, at placement", lambda f: f.spread.hard_at_placement),
            ("soft spread violations, at placement", lambda f: f.spread.soft_at_placement),
            ("hard spread violations, at the end", lambda f: f.spread.hard_at_end),
            ("soft spread violations, at the end", lambda f: f.spread.soft_at_end),
        ):
            yield line(label, _COUNT, of)


def _of_costs(runs: Sequence[Figures]) -> Iterator[_Line]:
    found = [run.costs for run in runs]
    currency = next((costs.currency for costs in found if costs and costs.currency), "")
    unit = f" ({currency})" if currency else ""
    for label, name in (
        ("cost of nodes", "nodes"),
        ("of this, not requested", "idle"),
        ("cost of waits", "waits"),
    ):
        yield label + unit, _COST, tuple(getattr(costs, name, None) for costs in found)


def _of_resource(resource: str, runs: Sequence[Figures]) -> Iterator[_Line]:
    found = [run.resources.get(resource) for run in runs]
    for measure, last in (("utilisation", "peak"), ("fragmentation", "end")):
        shares = [getattr(one, measure, None) for one in found]
        for name in ("mean", last) if any(shares) else ():
            values = tuple(getattr(share, name, None) for share in shares)
            yield f"{resource} {measure}, {name}", _SHARE, values
