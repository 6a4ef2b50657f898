"""Two runs over the same history, side by side."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Final, NamedTuple

import msgspec

from asched.audit.timeline import time_of
from asched.audit.whatif.measures import NS_PER_S, Figures, MeasuredRun, measured, node_of, to_place
from asched.audit.whatif.occupancy import workload_of
from asched.audit.whatif.steps import Steps
from asched.sim.virtual.outcome import PodRun, Run

MOST_POINTS: Final = 240
"""Points of one series in the JSON form."""


class PlacedElsewhere(msgspec.Struct, frozen=True, rename="camel"):
    """A pod that the two runs placed on different nodes."""

    pod: str
    uid: str
    baseline: str
    candidate: str
    """The nodes on which it was placed first."""


class PlacedOnce(msgspec.Struct, frozen=True, rename="camel"):
    """A pod that only one of the runs placed."""

    pod: str
    uid: str
    node: str
    message: str
    """What the other run said of it last; empty where it did not get to it, or the pod was gone."""


class Series(msgspec.Struct, frozen=True, rename="camel"):
    """A value over time: ``values[i]`` holds from ``seconds[i]`` after the beginning. Where there
    were more than :data:`MOST_POINTS` changes, means of equal parts of the time."""

    seconds: list[float]
    values: list[float]

    @classmethod
    def of(cls, steps: Steps) -> Series:
        thin = steps.thinned(MOST_POINTS)
        seconds = ((thin.at_ns - thin.start_ns) / NS_PER_S).round(3)
        return cls(seconds.tolist(), thin.values.round(6).tolist())


class RunReport(msgspec.Struct, frozen=True, rename="camel"):
    """One of the runs."""

    name: str
    figures: Figures
    pending: Series
    utilisation: dict[str, Series]
    fragmentation: dict[str, Series]

    @classmethod
    def of(cls, name: str, run: MeasuredRun) -> RunReport:
        return cls(
            name,
            run.figures,
            Series.of(run.pending),
            {resource: Series.of(steps) for resource, steps in run.utilisation.items()},
            {resource: Series.of(steps) for resource, steps in run.fragmentation.items()},
        )


class DiffReport(msgspec.Struct, frozen=True, rename="camel"):
    """What a comparison found. This is the JSON form (see ``docs/what-if.md``)."""

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
    """A run, and what a reader calls it."""

    name: str
    run: Run


class Comparison(NamedTuple):
    """Both runs measured, with the pods that fared differently."""

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
        """Every pod was placed alike."""
        return not (
            self.placed_elsewhere or self.placed_in_baseline_only or self.placed_in_candidate_only
        )

    def report(self) -> DiffReport:
        run = self.baseline.run
        return DiffReport(
            time_of(run.begin_ns),
            time_of(run.end_ns),
            RunReport.of(self.names[0], self.baseline),
            RunReport.of(self.names[1], self.candidate),
            None if self.recorded is None else RunReport.of("as recorded", self.recorded),
            self.placed_elsewhere,
            self.placed_in_baseline_only,
            self.placed_in_candidate_only,
            self.notes,
        )


def compare(
    baseline: NamedRun,
    candidate: NamedRun,
    recorded: Run | None = None,
    notes: Iterable[str] = (),
) -> Comparison:
    """Compare two runs of one history, pod by pod (by uid) and in their figures."""
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
        measured(baseline.run, workload),
        measured(candidate.run, workload),
        None if recorded is None else measured(recorded, workload),
        (baseline.name, candidate.name),
        tuple(elsewhere),
        tuple(only[True]),
        tuple(only[False]),
        tuple(notes),
    )


def _once(placed: PodRun, not_placed: PodRun) -> PlacedOnce:
    return PlacedOnce(placed.key, placed.uid, node_of(placed), not_placed.message)
