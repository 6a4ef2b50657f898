"""When a scheduler observed, decided and bound pods, according to its journal.

The journal contains the time at which a turn began. A decision takes from the beginning of the turn
that observed the pod to the beginning of the turn after the decision: an upper bound.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from asched.journal.opening import open_journal
from asched.journal.statistics import statistics
from asched.model.pod import Pod
from asched.state.records import (
    AnyRecord,
    Assigned,
    Bound,
    ObjectObserved,
    PodObserved,
    TurnStarted,
)
from benchmarks.measurement import Percentiles, Report


class PodTimes(msgspec.Struct):
    """Times of one pod, in nanoseconds since the epoch; 0 for steps that did not happen."""

    namespace: str
    observed_ns: int
    decided_ns: int = 0
    bound_ns: int = 0


class Timeline:
    """Collects the times from records."""

    def __init__(self) -> None:
        self.times: dict[str, PodTimes] = {}
        self._now_ns = 0
        self._decided: list[PodTimes] = []

    def apply(self, record: AnyRecord) -> None:
        match record:
            case TurnStarted():
                self._now_ns = record.now_ns
                for decided in self._decided:
                    decided.decided_ns = record.now_ns
                self._decided.clear()
            case PodObserved(node_name=""):
                self._observed(record.uid, record.key.partition("/")[0])
            case ObjectObserved(object=Pod() as pod) if not pod.node_name:
                self._observed(pod.metadata.uid, pod.metadata.namespace)
            case Assigned() if (times := self.times.get(record.uid)) is not None:
                self._decided.append(times)
            case Bound() if (times := self.times.get(record.uid)) is not None:
                times.bound_ns = self._now_ns

    def _observed(self, uid: str, namespace: str) -> None:
        self.times.setdefault(uid, PodTimes(namespace, self._now_ns))


async def add_journal_figures(report: Report, journal: Path) -> None:
    """Add the figures that come from the journal to ``report``."""
    timeline = Timeline()
    async with open_journal(str(journal), read_only=True) as store:
        async for stored in store.read():
            timeline.apply(stored.record)
        figures = await statistics(store)
    size = sum(path.stat().st_size for path in journal.parent.glob(f"{journal.name}*"))
    pods = max(1, report.pods_bound)
    report.journal_bytes_per_pod = round(size / pods)
    report.journal_record_bytes_per_pod = round(figures.payload_bytes / pods)
    for phase in report.phases:
        times = [t for t in timeline.times.values() if t.namespace in phase.namespaces]
        phase.observed_to_decided_ms = _milliseconds(
            [(t.observed_ns, t.decided_ns) for t in times if t.decided_ns]
        )
        phase.observed_to_bound_ms = _milliseconds(
            [(t.observed_ns, t.bound_ns) for t in times if t.bound_ns]
        )


def _milliseconds(spans_ns: list[tuple[int, int]]) -> Percentiles | None:
    return Percentiles.of([(end_ns - begin_ns) / 1e6 for begin_ns, end_ns in spans_ns])
