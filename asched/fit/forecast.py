"""When pods start: the state continues on the virtual clock, many times, with drawn lifetimes.

Each sample draws how long running and pending pods run, and simulates the real queue and scheduling
cycles from there. Bindings take their usual time; nodes do not change.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from random import Random
from typing import Final, NamedTuple

from msgspec.structs import replace

from asched.audit.lookup import AuditError
from asched.audit.whatif.pod_lifetime import as_created
from asched.fit.forms import StartEstimate
from asched.fit.lifetimes import LifetimeModel, draw_ns, ran_ns
from asched.fit.survival import SurvivalCurve
from asched.framework.pod_groups import group_of
from asched.framework.runtime.profile import PluginLoader
from asched.model.pod import Pod
from asched.model.quantity import NS_PER_S
from asched.model.resource_claims import ResourceClaim
from asched.simulator.loop import SchedulerSettings, Simulation
from asched.simulator.trace import PodCreated, PodRun, TraceEvent, WorkloadTrace
from asched.state.records import Bound

LOW: Final = 0.1
HIGH: Final = 0.9
"""The quantiles of the 80 % interval."""
MAX_ARRIVALS: Final = 1_000_000
"""Pods that a sample creates at most, if it needs the whole horizon: more take minutes each."""
_PARTS: Final = (64, 16, 4, 1)
"""Divisors of the horizon: a sample that needs all of it takes a third longer."""


class ForecastSettings(NamedTuple):
    """How start times are sampled."""

    samples: int = 100
    seed: int = 0
    horizon_s: float = 14_400.0
    """A sample ends after this virtual time."""
    arrivals: bool = True
    """Whether pods arrive as in the history; otherwise none do."""


SampleListener = Callable[[], None]
"""Called after each sample."""


def ignore_sample() -> None:
    """The listener for callers that show no progress."""


class StartingPoint(NamedTuple):
    """A state from which samples continue."""

    trace: WorkloadTrace
    """The objects and pods of the state, as events at its time."""
    scheduler: SchedulerSettings
    claim_templates: tuple[ResourceClaim, ...] = ()

    @property
    def now_ns(self) -> int:
        return self.trace.begin_ns


class PodHistory:
    """What was known about pods at a time."""

    def __init__(self, runs: Iterable[PodRun], begin_ns: int, now_ns: int) -> None:
        """``runs`` since ``begin_ns``; what happened after ``now_ns`` is not used."""
        known = [run for run in runs if run.created_ns <= now_ns]
        self.begin_ns, self.now_ns = begin_ns, now_ns
        self.lifetimes = LifetimeModel(known, now_ns)
        self.ages_ns: dict[str, int] = {
            run.key: ran_ns(run, now_ns)
            for run in known
            if run.ended_ns is None or run.ended_ns > now_ns
        }
        """How long the pods that exist have been running, by key."""
        self.arrived = [
            run
            for run in known
            if run.created_ns > begin_ns and not run.pod.spec.node_name and _alone(run.pod)
        ]
        """The pods that were created pending, and can arrive again."""
        self.grouped = sum(not _alone(run.pod) and run.created_ns > begin_ns for run in known)
        """The pods that are no part of simulated arrivals."""


def _alone(pod: Pod) -> bool:
    """Whether a copy of the pod needs no objects of its own."""
    return group_of(pod) is None and not pod.spec.resource_claims


class Forecast:
    """Samples start times of pods."""

    def __init__(
        self,
        start: StartingPoint,
        history: PodHistory,
        settings: ForecastSettings,
        load: PluginLoader,
        on_sample: SampleListener = ignore_sample,
    ) -> None:
        self._start, self._history, self._settings = start, history, settings
        self._load, self._on_sample = load, on_sample
        self._horizon_ns = round(settings.horizon_s * NS_PER_S)
        self._fixed: list[TraceEvent] = []
        self._pods: list[tuple[PodCreated, SurvivalCurve, int]] = []
        """With the curve of their lifetimes and their age."""
        for event in start.trace.events:
            if isinstance(event, PodCreated):
                self._pods.append((event, self._curve(event.pod), self._age_ns(event.pod)))
            else:
                self._fixed.append(event)

    @property
    def notes(self) -> tuple[str, ...]:
        """What the reader should know about the samples."""
        found = [f"lifetimes of {self._history.lifetimes.pods} recorded pods"]
        if self._settings.arrivals and self._history.grouped:
            number = self._history.grouped
            found.append(f"{number} recorded pods of groups or with claims do not arrive again")
        return tuple(found)

    def start_times_s(self, added: Sequence[Pod], wanted: Iterable[str]) -> list[dict[str, float]]:
        """For each sample, the seconds from now until the pods started, by uid; those that did not
        start before the horizon are missing.

        ``added`` pods are created now, ``wanted`` are the uids of pods of the state or of added
        ones. Raises AuditError for more than :data:`MAX_ARRIVALS`, SimulationStuckError,
        ProfileError.
        """
        self._check_arrivals()
        uids = frozenset(wanted)
        curves = [(pod, self._curve(pod)) for pod in added]
        found = []
        for number in range(self._settings.samples):
            found.append(self._sample(number, curves, uids))
            self._on_sample()
        return found

    def _check_arrivals(self) -> None:
        history = self._history
        period_ns = history.now_ns - history.begin_ns
        if not self._settings.arrivals or period_ns <= 0:
            return
        number = len(history.arrived) * self._horizon_ns // period_ns
        if number > MAX_ARRIVALS:
            raise AuditError(
                f"an estimate would create {number:,} pods in each sample:"
                f" {len(history.arrived):,} arrived in {period_ns / NS_PER_S:,.0f} s of the"
                " journal; choose a shorter --horizon, or --no-arrivals"
            )

    def _curve(self, pod: Pod) -> SurvivalCurve:
        return self._history.lifetimes.curve(pod)

    def _age_ns(self, pod: Pod) -> int:
        age_ns = self._history.ages_ns.get(pod.key)
        started = pod.status.start_time
        if pod.spec.node_name and started is not None:
            # The pod may have been running before the history begins.
            return max(age_ns or 0, self._start.now_ns - round(started.timestamp() * NS_PER_S))
        return age_ns or 0

    def _sample(
        self, number: int, added: Sequence[tuple[Pod, SurvivalCurve]], wanted: frozenset[str]
    ) -> dict[str, float]:
        """Arrivals are drawn for a part of the horizon, and for more only if a pod did not start.

        Equal seeds draw equal beginnings, so the result is that of the whole horizon. A short
        history with many arrivals repeats often within it.
        """
        started: dict[str, float] = {}
        for part in _PARTS if self._settings.arrivals else _PARTS[-1:]:
            random = Random(f"{self._settings.seed}/{number}")
            started = self._simulated(random, added, wanted, self._horizon_ns // part)
            if len(started) == len(wanted):
                break
        return started

    def _simulated(
        self,
        random: Random,
        added: Sequence[tuple[Pod, SurvivalCurve]],
        wanted: frozenset[str],
        horizon_ns: int,
    ) -> dict[str, float]:
        now_ns = self._start.now_ns
        events = list(self._fixed)
        for created, curve, age_ns in self._pods:
            run_ns = draw_ns(curve, age_ns, random)
            ends = created.pod.metadata.deletion_timestamp
            if ends is not None:
                run_ns = max(0, round(ends.timestamp() * NS_PER_S) - now_ns)
            events.append(replace(created, run_ns=run_ns))
        events += [
            PodCreated(now_ns, as_created(pod), draw_ns(curve, 0, random)) for pod, curve in added
        ]
        if self._settings.arrivals:
            events += self._arrivals(random, horizon_ns)
        end_ns = now_ns + horizon_ns
        trace = WorkloadTrace(tuple(events), now_ns, end_ns, self._start.claim_templates)
        return _started(Simulation(trace, self._start.scheduler, self._load), wanted, now_ns)

    def _arrivals(self, random: Random, horizon_ns: int) -> Iterator[PodCreated]:
        """The arrivals of the history again, from a random time on, and from its begin after its
        end (a circular block bootstrap): rates and bursts remain."""
        history, now_ns = self._history, self._start.now_ns
        period_ns = history.now_ns - history.begin_ns
        if not history.arrived or period_ns <= 0:
            return
        offset_ns = round(random.random() * period_ns)
        due = sorted(
            ((run.created_ns - history.begin_ns - offset_ns) % period_ns, index)
            for index, run in enumerate(history.arrived)
        )
        number, round_ns = 0, 0
        while round_ns <= horizon_ns:
            for after_ns, index in due:
                if round_ns + after_ns > horizon_ns:
                    return
                number += 1
                pod = _arriving(history.arrived[index].pod, number)
                run_ns = draw_ns(self._curve(pod), 0, random)
                yield PodCreated(now_ns + 1 + round_ns + after_ns, pod, run_ns)
            round_ns += period_ns


def _arriving(pod: Pod, number: int) -> Pod:
    own = f"arrival-{number}"
    metadata = replace(pod.metadata, name=f"{pod.name}-{own}", uid=own, deletion_timestamp=None)
    return as_created(replace(pod, metadata=metadata))


def _started(simulation: Simulation, wanted: frozenset[str], now_ns: int) -> dict[str, float]:
    """When the pods are bound, until all of them are or the simulation ends."""
    found: dict[str, float] = {}
    for turn in simulation.turns():
        for record in turn.records:
            if isinstance(record, Bound) and record.uid in wanted and record.uid not in found:
                found[record.uid] = (turn.now_ns - now_ns) / NS_PER_S
        if len(found) == len(wanted):
            break
    return found


def quantile(values: Sequence[float], samples: int, share: float) -> float | None:
    """The time until which this share of all samples started; None if fewer did."""
    needed = max(1, -(-round(share * samples * 1000) // 1000))
    ordered = sorted(values)
    return ordered[needed - 1] if needed <= len(ordered) else None


def interval(values: Sequence[float], samples: int) -> tuple[float | None, float | None]:
    """The ends of the 80 % interval, from the times of the samples that started.

    An end is None if it is after the horizon. The interval between the j-th and the k-th of n
    samples holds one more draw with probability (k - j) / (n + 1); j and k are chosen for at least
    80 %. Too few samples have no lower or no upper end: it is 0 or None then.
    """
    ordered = sorted(values)
    first, last = (
        math.floor(round(LOW * (samples + 1), 6)),
        math.ceil(round(HIGH * (samples + 1), 6)),
    )
    low = 0.0 if first < 1 else ordered[first - 1] if first <= len(ordered) else None
    return low, ordered[last - 1] if last <= len(ordered) else None


def estimate(
    forecast: Forecast,
    added: Sequence[Pod],
    wanted: Sequence[str],
    settings: ForecastSettings,
) -> StartEstimate:
    """When the last of the wanted pods starts. Raises as :meth:`Forecast.start_times_s`."""
    samples = forecast.start_times_s(added, wanted)
    whole = [max(times.values()) for times in samples if len(times) == len(wanted)]
    number = len(samples)
    low_s, high_s = interval(whole, number)
    return StartEstimate(
        samples=number,
        started=len(whole),
        horizon_s=settings.horizon_s,
        median_s=quantile(whole, number, 0.5),
        low_s=low_s,
        high_s=high_s,
        arrivals=settings.arrivals,
        seed=settings.seed,
        notes=forecast.notes,
    )


def by_uid(samples: Sequence[Mapping[str, float]], uid: str) -> list[float]:
    """The start times of one pod in the samples in which it started."""
    return [times[uid] for times in samples if uid in times]
