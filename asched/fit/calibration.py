"""Compares estimates at past moments with what happened: a reliability table.

At some moments of a journal, the start times of all waiting pods are estimated from what was known
then. An estimate states a probability for each of several times; pods for which the same
probability is stated should start until then equally often.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Final, NamedTuple

import msgspec

from asched.audit.lookup import AuditError, fold_before
from asched.audit.whatif.recorded_history import (
    RecordedHistory,
    TraceExtractor,
    recorded_history,
)
from asched.fit.forecast import (
    Forecast,
    ForecastSettings,
    PodHistory,
    SampleListener,
    StartingPoint,
    by_uid,
    ignore_sample,
    interval,
)
from asched.framework.runtime.profile import PluginLoader
from asched.journal.checkpoints import apply_stored
from asched.journal.store import JournalStore
from asched.model.quantity import NS_PER_S
from asched.simulator.trace import PodRun, WorkloadTrace
from asched.state.cluster import ClusterState
from asched.state.records import TurnStarted

WITHIN_S: Final = (300.0, 900.0, 1800.0, 3600.0, 7200.0, 14_400.0)
"""The times for which an estimate states a probability; those up to the horizon count."""
BOUNDS: Final = (0.0, 0.1, 0.3, 0.5, 0.7, 0.9, 1.0)
"""Bounds of the rows of stated probabilities."""
_FIRST: Final = 0.25
"""No moment is in this first part of the history: lifetimes are unknown then."""


class ReliabilityRow(msgspec.Struct, frozen=True, rename="camel"):
    """Statements with similar probabilities."""

    low: float
    high: float
    """From ``low``, below ``high``; the last row includes 1."""
    statements: int
    stated: float | None
    """The mean of the stated probabilities; None without statements."""
    observed: float | None
    """The share of pods that started in time."""


class Calibration(msgspec.Struct, frozen=True, rename="camel"):
    """How well estimates agree with what happened."""

    moments: int
    pods: int
    """Waiting pods of all moments together; a pod that waits long counts at several."""
    samples: int
    horizon_s: float
    arrivals: bool
    rows: tuple[ReliabilityRow, ...]
    brier: float | None
    """Mean squared difference of stated probability and outcome; 0 is perfect."""
    base_brier: float | None
    """That of always stating the overall share of each time."""
    covered: float | None
    """The share of starts within the 80 % interval."""
    intervals: int
    """The number of pods with a known answer: they started before the horizon or not."""


class StartStatement(NamedTuple):
    """A probability that was stated, and whether the pod started in time."""

    within_s: float
    stated: float
    happened: bool


class PodOutcomeAfter(NamedTuple):
    """What happened to a waiting pod after a moment."""

    started_s: float | None
    """None if no start is known."""
    known_s: float
    """Without a known start: until then, the pod is known not to have started."""
    history_s: float
    """The history ends then."""

    def started_within(self, within_s: float) -> bool | None:
        """None if that is not known, or if the history is shorter.

        Of a shorter history, early starts would count and late ones would not.
        """
        if within_s > self.history_s:
            return None
        if self.started_s is not None:
            return self.started_s <= within_s
        return False if self.known_s >= within_s else None


class Examined(NamedTuple):
    """What a calibration is based on."""

    moments: int
    pods: int
    settings: ForecastSettings


class _Snapshot(NamedTuple):
    trace: WorkloadTrace
    waiting: tuple[str, ...]
    """Uids of the pods that wait."""


async def calibrate(
    journal: JournalStore,
    load: PluginLoader,
    settings: ForecastSettings,
    moments: int,
    on_sample: SampleListener = ignore_sample,
) -> Calibration:
    """Estimates at that many past moments at most. Raises AuditError if no pod ever waited,
    JournalError, ProfileError, SimulationStuckError."""
    history = await recorded_history(journal, load)
    times = _moments(history.recorded.pods, history, moments)
    if not times:
        raise AuditError(
            "no pod waits in the last three quarters of the journal: there is nothing to compare"
        )
    snapshots = await _snapshots(journal, load, times)
    statements: list[StartStatement] = []
    covered: list[bool] = []
    pods = 0
    for snapshot in snapshots:
        pods += len(snapshot.waiting)
        compared = _Comparison(history, snapshot, settings, load, on_sample)
        statements += compared.statements()
        covered += compared.covered()
    return summarized(statements, covered, Examined(len(snapshots), pods, settings))


def _moments(pods: Sequence[PodRun], history: RecordedHistory, most: int) -> list[int]:
    """Times at which a pod waits after a rejection, spread over the history."""
    run = history.recorded
    first_ns = run.begin_ns + round(_FIRST * (run.end_ns - run.begin_ns))
    step_ns = (run.end_ns - first_ns) // (most + 1)
    waits = [
        (pod.created_ns, pod.bound_ns if pod.bound_ns is not None else pod.ended_ns or run.end_ns)
        for pod in pods
        if pod.rejections and not pod.pod.spec.node_name
    ]
    times = [first_ns + step_ns * (number + 1) for number in range(most)]
    return [
        at_ns
        for at_ns in dict.fromkeys(times)
        if any(begin_ns < at_ns < end_ns for begin_ns, end_ns in waits)
    ]


async def _snapshots(
    journal: JournalStore, load: PluginLoader, times: Sequence[int]
) -> list[_Snapshot]:
    """The states at these times."""
    archived = (await journal.archived()).seq
    fold = await fold_before(journal, load, archived + 1)
    found: list[_Snapshot] = []
    async for stored in journal.read(archived):
        record = stored.record
        if isinstance(record, TurnStarted) and record.now_ns > times[len(found)]:
            state = fold.state
            # The state holds until this record: what it decides next is not known yet.
            trace = TraceExtractor(fold, state.now_ns).trace(state.now_ns)
            found.append(_Snapshot(trace, tuple(_waiting(state))))
            if len(found) == len(times):
                break
        apply_stored(fold, stored)
    return found


def _waiting(state: ClusterState) -> Iterator[str]:
    for queued in state.queue:
        if queued.info.key not in state.queue.gated:
            yield queued.info.uid


class _Comparison:
    """The estimates of one moment and what happened after it."""

    def __init__(
        self,
        history: RecordedHistory,
        snapshot: _Snapshot,
        settings: ForecastSettings,
        load: PluginLoader,
        on_sample: SampleListener,
    ) -> None:
        run, now_ns = history.recorded, snapshot.trace.begin_ns
        runs = {pod.uid: pod for pod in run.pods}
        self._settings = settings
        start = StartingPoint(snapshot.trace, history.scheduler)
        known = PodHistory(run.pods, run.begin_ns, now_ns)
        wanted = [uid for uid in snapshot.waiting if uid in runs]
        forecast = Forecast(start, known, settings, load, on_sample)
        self._samples = forecast.start_times_s((), wanted)
        self._outcomes = {uid: outcome_after(runs[uid], now_ns, run.end_ns) for uid in wanted}

    def statements(self) -> Iterator[StartStatement]:
        number = len(self._samples)
        for uid, outcome in self._outcomes.items():
            times = by_uid(self._samples, uid)
            for within_s in WITHIN_S:
                happened = outcome.started_within(within_s)
                if happened is not None and within_s <= self._settings.horizon_s:
                    stated = sum(time_s <= within_s for time_s in times) / number
                    yield StartStatement(within_s, stated, happened)

    def covered(self) -> Iterator[bool]:
        """Whether each start is within its 80 % interval. Omits pods for which it is unknown
        whether they started before the horizon."""
        number = len(self._samples)
        for uid, outcome in self._outcomes.items():
            started = outcome.started_within(self._settings.horizon_s)
            if started is None:
                continue
            low, high = interval(by_uid(self._samples, uid), number)
            start_s = outcome.started_s
            if not started or start_s is None:
                # After the horizon, which is where an interval without an end reaches.
                yield high is None
            else:
                yield low is not None and low <= start_s and (high is None or start_s <= high)


def outcome_after(run: PodRun, now_ns: int, end_ns: int) -> PodOutcomeAfter:
    """What happened to a pod that waits at ``now_ns``; the history ends at ``end_ns``."""
    history_s = (end_ns - now_ns) / NS_PER_S
    if run.bound_ns is not None:
        return PodOutcomeAfter((run.bound_ns - now_ns) / NS_PER_S, 0.0, history_s)
    last_ns = end_ns if run.ended_ns is None else min(end_ns, run.ended_ns)
    return PodOutcomeAfter(None, (last_ns - now_ns) / NS_PER_S, history_s)


def summarized(
    statements: Sequence[StartStatement], covered: Sequence[bool], examined: Examined
) -> Calibration:
    """The reliability table."""
    shares: dict[float, list[bool]] = {}
    for one in statements:
        shares.setdefault(one.within_s, []).append(one.happened)
    base = {within_s: sum(found) / len(found) for within_s, found in shares.items()}
    settings = examined.settings
    return Calibration(
        moments=examined.moments,
        pods=examined.pods,
        samples=settings.samples,
        horizon_s=settings.horizon_s,
        arrivals=settings.arrivals,
        rows=tuple(_row(low, high, statements) for low, high in pairwise(BOUNDS)),
        brier=_mean([(one.stated - one.happened) ** 2 for one in statements]),
        base_brier=_mean([(base[one.within_s] - one.happened) ** 2 for one in statements]),
        covered=_mean(covered),
        intervals=len(covered),
    )


def _row(low: float, high: float, statements: Sequence[StartStatement]) -> ReliabilityRow:
    last = high == BOUNDS[-1]
    found = [one for one in statements if low <= one.stated < high or (last and one.stated == high)]
    return ReliabilityRow(
        low,
        high,
        len(found),
        _mean([one.stated for one in found]),
        _mean([one.happened for one in found]),
    )


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None
