"""Writes the tables of docs/reference/metrics.md from the metrics that a daemon registers.

python -m tests.docs.metrics_page
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from asched.comparer.comparer import ComparisonCounts
from asched.core.held_updates import HeldUpdates
from asched.daemon.engine.inbox import Inbox
from asched.daemon.ha.leadership import leader_metrics
from asched.daemon.ha.lease import LeaseName
from asched.daemon.plugin_host.guarded_loop import Watchdog
from asched.daemon.signing.signer import HeadSigner, head_metrics
from asched.daemon.telemetry.metrics import Metrics
from asched.journal.memory import MemoryStore
from asched.journal.sealing import BEGINNING
from asched.kube.events import EventCounts
from asched.kube.reflector import Reflector
from asched.kube.timing import SystemClock
from asched.state.cluster import ClusterState

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "metrics.md"
BEGIN, END = "<!-- metrics: begin -->\n", "<!-- metrics: end -->\n"
_SUFFIXES = {
    "counter": ("_total",),
    "gauge": ("",),
    "info": ("_info",),
    "histogram": ("_bucket", "_sum", "_count"),
}
_GROUPS = (
    ("scheduler_", "kube-scheduler"),
    ("rest_client_", "client-go"),
    ("leader_election_", "client-go, leader election (`docs/how-to/high-availability.md`)"),
    ("volcano_", "kube-batch (batch sessions)"),
    ("asched_", "asched"),
    ("", "The process and Python"),
)


class Described(NamedTuple):
    """A registered metric."""

    name: str
    type: str
    labels: tuple[str, ...]
    text: str

    @property
    def samples(self) -> tuple[str, ...]:
        return tuple(f"{self.name}{suffix}" for suffix in _SUFFIXES[self.type])


class _NoEvents:
    """An :class:`~asched.kube.events.EventRecorder` without Events."""

    counts = EventCounts()
    waiting = 0


@cache
def described() -> dict[str, Described]:
    """All metrics of a daemon, by name."""
    metrics = Metrics()
    metrics.watch(ClusterState(), _no_reflectors)
    events: Any = _NoEvents()
    metrics.watch_work(Inbox(), lambda: 0, events)
    metrics.watch_held_updates(HeldUpdates(ClusterState()))
    metrics.watch_comparisons({"cluster": ComparisonCounts()})
    metrics.watch_journal_file(Path("none"))
    metrics.show(Watchdog(lambda plugin: 1.0).metrics)
    signer = HeadSigner(MemoryStore(), BEGINNING, SystemClock())
    metrics.show(partial(head_metrics, signer))
    election: Any = _NoElection()
    metrics.show(partial(leader_metrics, election))
    found = {}
    for collector in [*_collectors(metrics)]:
        for metric in collector.collect():
            found[metric.name] = Described(
                metric.name, metric.type, _labels(collector, metric), metric.documentation
            )
    # Missing here, because there is no event loop.
    found["asched_tasks"] = Described("asched_tasks", "gauge", (), "Tasks of the event loop.")
    return found


class _NoElection:
    lease = LeaseName("kube-system", "asched")
    slow_renewals = 0

    def leads(self) -> bool:
        return False


def _no_reflectors() -> tuple[Reflector, ...]:
    return ()


def _collectors(metrics: Metrics) -> Iterator[Collector]:
    # The registry has no public access to its collectors.
    yield from metrics.registry._collector_to_names


def _labels(collector: Collector, metric: Metric) -> tuple[str, ...]:
    """The label names, which without a sample only the collector or the family has."""
    names: tuple[str, ...] = getattr(collector, "_labelnames", ())
    names = names or getattr(metric, "_labelnames", ())
    if not names and metric.samples:
        names = tuple(metric.samples[0].labels)
    return tuple(name for name in names if name != "le")


def table() -> str:
    """The tables of the page, in Markdown."""
    left, lines = dict(sorted(described().items())), []
    for prefix, title in _GROUPS:
        here = [left.pop(name) for name in [*left] if name.startswith(prefix)]
        lines += [
            f"### {title}",
            "",
            "| metric | type | labels | description |",
            "|---|---|---|---|",
        ]
        for metric in here:
            shown = metric.name + (
                "" if metric.type == "histogram" else metric.samples[0][len(metric.name) :]
            )
            labels = ", ".join(f"`{label}`" for label in metric.labels)
            lines.append(f"| `{shown}` | {metric.type} | {labels} | {metric.text} |")
        lines.append("")
    return "\n".join(lines)


def main() -> None:
    before, _, rest = PAGE.read_text().partition(BEGIN)
    PAGE.write_text(f"{before}{BEGIN}\n{table()}\n{END}{rest.partition(END)[2]}")


if __name__ == "__main__":
    main()
