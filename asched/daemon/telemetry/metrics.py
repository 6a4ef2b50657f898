"""Prometheus metrics of a daemon: the registry, and functions that read the state when scraped.

Where kube-scheduler has a metric, its name, labels and buckets are used.
"""

from __future__ import annotations

import asyncio
import os
import resource
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

from prometheus_client import CollectorRegistry, GCCollector, Info, PlatformCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from asched import __version__
from asched.comparer.comparer import ComparisonCounts
from asched.core.held_updates import HeldUpdates
from asched.daemon.engine.inbox import Inbox
from asched.daemon.telemetry.batch_metrics import SessionMetrics
from asched.daemon.telemetry.scheduler_metrics import (
    CycleMetrics,
    EngineMetrics,
    ReloadMetrics,
    RequestMetrics,
    SchedulingMetrics,
)
from asched.daemon.telemetry.stopwatch import CycleSink
from asched.framework.runtime.observation import FAILURES
from asched.kube.events import EventRecorder
from asched.kube.reflector import Reflector
from asched.state.attempt_budget import BURST_NS
from asched.state.cluster import ClusterState, PlacementState
from asched.state.queue import SchedulingQueue

MetricSource = Callable[[], Iterable[Metric]]
"""Reads metrics; called at each scrape."""


class SourceCollector(Collector):
    """The metrics of one source."""

    def __init__(self, source: MetricSource) -> None:
        self._source = source

    def collect(self) -> Iterable[Metric]:
        return self._source()


Values = Iterable[tuple[Sequence[str], float]]
"""Label values, and the metric's value for them."""


def gauge(name: str, text: str, labels: Sequence[str], values: Values) -> Metric:
    family = GaugeMetricFamily(name, text, labels=labels)
    for label_values, value in values:
        family.add_metric(label_values, value)
    return family


def counter(name: str, text: str, labels: Sequence[str], values: Values) -> Metric:
    """``name``: without the suffix ``_total``."""
    family = CounterMetricFamily(name, text, labels=labels)
    for label_values, value in values:
        family.add_metric(label_values, value)
    return family


def queue_metrics(cluster: ClusterState) -> Iterator[Metric]:
    """kube-scheduler's metrics of the scheduling queue."""
    queue = cluster.queue
    yield gauge(
        "scheduler_pending_pods",
        "Number of pending pods, by the queue type. 'active' means number of pods in activeQ;"
        " 'backoff' means number of pods in backoffQ; 'unschedulable' means number of pods in"
        " unschedulablePods that the scheduler attempted to schedule and failed; 'gated' is the"
        " number of unschedulable pods that the scheduler never attempted to schedule because"
        " they are gated.",
        ["queue"],
        [
            (["active"], len(queue.active)),
            (["backoff"], len(queue.backoff)),
            (["unschedulable"], len(queue.unschedulable)),
            (["gated"], len(queue.gated)),
        ],
    )
    yield gauge(
        "scheduler_unschedulable_pods",
        "The number of unschedulable pods broken down by plugin name. A pod will increment the"
        " gauge for all plugins that caused it to not schedule and so this metric have meaning"
        " only when broken down by plugin.",
        ["plugin", "profile"],
        sorted(_unschedulable_pods(queue).items()),
    )
    yield counter(
        "scheduler_queue_incoming_pods",
        "Number of pods added to scheduling queues by event and queue type.",
        ["queue", "event"],
        sorted(queue.incoming.items()),
    )
    inflight = Counter((queued.event.label,) for queued in queue.events)
    yield gauge(
        "scheduler_inflight_events",
        "Number of events currently tracked in the scheduling queue.",
        ["event"],
        sorted(inflight.items()),
    )


def _unschedulable_pods(queue: SchedulingQueue) -> Counter[tuple[str, str]]:
    """Number of pods by plugin and profile."""
    count: Counter[tuple[str, str]] = Counter()
    for pods in (queue.unschedulable, queue.backoff):
        for pod in pods.values():
            profile = pod.info.pod.spec.scheduler_name
            for plugin in pod.unschedulable_plugins | pod.pending_plugins:
                count[plugin, profile] += 1
    for pod in queue.gated.values():
        count[pod.gating_plugin, pod.info.pod.spec.scheduler_name] += 1
    return count


def cache_metrics(cluster: ClusterState) -> Iterator[Metric]:
    """kube-scheduler's metric of its cache, and the plugins' circuit breakers."""
    assumed = sum(p.placement_state is PlacementState.ASSUMED for p in cluster.pods.values())
    yield gauge(
        "scheduler_cache_size",
        "Number of nodes, pods, and assumed (bound) pods in the scheduler cache.",
        ["type"],
        [
            (["nodes"], cluster.nodes.cluster_size),
            (["pods"], len(cluster.pods)),
            (["assumed_pods"], assumed),
        ],
    )
    yield gauge(
        "asched_plugin_circuit_open",
        "Whether the plugin's circuit breaker is open (1), so that the plugin is skipped.",
        ["plugin", "profile"],
        [
            ([plugin, profile], circuit.is_open)
            for profile, plugin, circuit in cluster.guards.circuits
        ],
    )


def budget_metrics(cluster: ClusterState) -> Iterator[Metric]:
    """Pods and namespaces that are limited."""
    yield GaugeMetricFamily(
        "asched_pods_quarantined",
        "Pods that are not attempted, because the process died twice while it decided on them.",
        value=len(cluster.guards.quarantined),
    )
    owing = [at_ns for _, at_ns in cluster.guards.budgets.snapshot()]
    yield GaugeMetricFamily(
        "asched_attempt_budget_namespaces",
        "Namespaces that used up their budget of decision time.",
        value=sum(at_ns - BURST_NS > cluster.now_ns for at_ns in owing),
    )


def held_update_metrics(held: HeldUpdates) -> Iterator[Metric]:
    """Updates of namespaces that used up their budget of journal bytes."""
    yield GaugeMetricFamily(
        "asched_updates_held",
        "Objects with an update that is held back, because their namespaces used up their budget"
        " of journal bytes.",
        value=len(held),
    )
    yield GaugeMetricFamily(
        "asched_journal_budget_namespaces",
        "Namespaces that used up their budget of journal bytes.",
        value=held.namespaces,
    )
    yield CounterMetricFamily(
        "asched_updates_deferred",
        "Updates that were held back, also those that a newer one replaced.",
        value=held.deferred,
    )


def comparer_metrics(counts: Mapping[str, ComparisonCounts]) -> Iterator[Metric]:
    """Comparisons of the state, by what it is compared with: ``cluster`` or ``journal``."""
    for name, field, text in (
        ("comparisons", "passes", "Comparisons of the whole state that ended."),
        ("compared", "compared", "Objects or records that were compared."),
        ("state_differences", "differences", "Differences between the state and its source."),
        ("state_repairs", "repairs", "Lists that were requested because of differences."),
        ("comparison_failures", "failures", "Resources or journals that were not compared."),
    ):
        values = [([source], getattr(of, field)) for source, of in counts.items()]
        yield counter(f"asched_{name}", text, ["source"], values)


def watch_metrics(reflectors: Sequence[Reflector]) -> Iterator[Metric]:
    """Lists and watches of the reflectors."""
    lists, watches, failures, events, skipped = (
        CounterMetricFamily(f"asched_reflector_{name}", text, labels=["resource"])
        for name, text in (
            ("lists", "Lists requested."),
            ("watches", "Watches started, including restarts."),
            ("watch_failures", "Failed lists and watches."),
            ("events", "Watch events received."),
            ("objects_skipped", "Objects and watch lines that could not be decoded."),
        )
    )
    for reflector in reflectors:
        labels, counts = [reflector.resource.label], reflector.counts
        lists.add_metric(labels, counts.lists)
        watches.add_metric(labels, counts.watches)
        failures.add_metric(labels, counts.failures)
        events.add_metric(labels, reflector.decoder.counts.events)
        skipped.add_metric(labels, reflector.decoder.counts.skipped)
    yield from (lists, watches, failures, events, skipped)
    yield gauge(
        "asched_reflector_synced",
        "Whether the resource was listed (1) or not yet (0).",
        ["resource"],
        [([reflector.resource.label], reflector.synced) for reflector in reflectors],
    )


def backlog_metrics(inbox: Inbox, effects: int) -> Iterator[Metric]:
    """The engine's backlog, and effects in flight."""
    yield GaugeMetricFamily(
        "asched_inbox_length",
        "Changes and outcomes that are not folded yet.",
        value=len(inbox),
    )
    yield GaugeMetricFamily(
        "asched_fold_lag_seconds",
        "Age of the oldest change that is not folded yet.",
        value=inbox.oldest_age_s,
    )
    yield GaugeMetricFamily(
        "asched_effects_under_way",
        "Pods with effects (bindings, conditions, evictions) in flight.",
        value=effects,
    )


def event_metrics(events: EventRecorder) -> Iterator[Metric]:
    """The Events that the scheduler writes."""
    counts = events.counts
    yield counter(
        "asched_events",
        "Events by outcome: recorded, sent, dropped (queue full), failed, limited (too many about"
        " one object).",
        ["outcome"],
        [
            (["recorded"], counts.recorded),
            (["sent"], counts.sent),
            (["dropped"], counts.dropped),
            (["failed"], counts.failed),
            (["limited"], counts.limited),
        ],
    )
    yield GaugeMetricFamily(
        "asched_events_queue_length", "Events waiting to be sent.", value=events.waiting
    )


def journal_file_metrics(path: Path) -> Iterator[Metric]:
    """The size of a SQLite journal."""
    sizes: list[tuple[list[str], float]] = []
    for label, suffix in (("database", ""), ("wal", "-wal")):
        with suppress(FileNotFoundError):
            sizes.append(([label], Path(f"{path}{suffix}").stat().st_size))
    text = "Size of the SQLite journal by file: database, write-ahead log."
    yield gauge("asched_journal_file_bytes", text, ["file"], sizes)


def failure_metrics() -> Iterator[Metric]:
    """Failures of plugins."""
    yield counter(
        "asched_plugin_failures",
        "Plugin failures by extension point and reason.",
        ["plugin", "extension_point", "reason"],
        [
            ([failure.plugin, failure.extension_point, failure.reason.value], number)
            for failure, number in sorted(FAILURES.counts.items())
        ],
    )


_PROC = Path("/proc/self")


def process_metrics() -> Iterator[Metric]:
    """``process_*``, and the tasks of the event loop.

    The Prometheus client's own collector needs ``/proc/stat``, which systemd's ``ProcSubset=pid``
    hides. This one does not, and without ``/proc`` it still reports what system calls provide.
    """
    times = os.times()
    yield CounterMetricFamily(
        "process_cpu_seconds",
        "Total user and system CPU time spent in seconds.",
        value=times.user + times.system,
    )
    yield from _memory_and_start()
    yield from _files()
    with suppress(RuntimeError):  # no running event loop
        tasks = len(asyncio.all_tasks())
        yield GaugeMetricFamily("asched_tasks", "Tasks of the event loop.", value=tasks)


def _memory_and_start() -> Iterator[Metric]:
    try:
        # The command name may contain spaces and parentheses.
        fields = (_PROC / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return
    virtual_bytes, resident_pages, started_ticks = map(float, (fields[20], fields[21], fields[19]))
    resident_bytes = resident_pages * os.sysconf("SC_PAGE_SIZE")
    booted_s = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
    started_s = booted_s + started_ticks / os.sysconf("SC_CLK_TCK")
    for name, text, value in (
        ("virtual_memory_bytes", "Virtual memory size in bytes.", virtual_bytes),
        ("resident_memory_bytes", "Resident memory size in bytes.", resident_bytes),
        ("start_time_seconds", "Start time of the process since unix epoch in seconds.", started_s),
    ):
        yield GaugeMetricFamily(f"process_{name}", text, value=value)


def _files() -> Iterator[Metric]:
    try:
        is_open = len(os.listdir(_PROC / "fd"))
    except OSError:
        return
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield GaugeMetricFamily("process_open_fds", "Number of open file descriptors.", value=is_open)
    yield GaugeMetricFamily(
        "process_max_fds", "Maximum number of open file descriptors.", value=soft
    )


class Metrics:
    """All metrics of one daemon, in their own registry."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.scheduling = SchedulingMetrics(self.registry)
        self.cycles = CycleMetrics(self.registry)
        self.cycle_sinks: list[CycleSink] = [self.cycles]
        """Receivers of sampled cycles."""
        self.engine = EngineMetrics(self.registry)
        self.requests = RequestMetrics(self.registry)
        self.sessions = SessionMetrics(self.registry)
        self.reloads = ReloadMetrics(self.registry)
        self.show(process_metrics, failure_metrics)
        GCCollector(self.registry)
        PlatformCollector(self.registry)
        Info("asched_build", "Version of the running process.", registry=self.registry).info(
            {"version": __version__}
        )

    def show(self, *sources: MetricSource) -> None:
        """Add metrics."""
        for source in sources:
            self.registry.register(SourceCollector(source))

    def watch(self, cluster: ClusterState, reflectors: Callable[[], Sequence[Reflector]]) -> None:
        """Add metrics of the cache, the queue and the reflectors."""
        self.show(
            partial(queue_metrics, cluster),
            partial(cache_metrics, cluster),
            partial(budget_metrics, cluster),
            lambda: watch_metrics(reflectors()),
        )

    def watch_work(
        self, inbox: Inbox, effects: Callable[[], int], events: EventRecorder | None
    ) -> None:
        """Add metrics of the engine's backlog, effects and Events."""
        self.show(lambda: backlog_metrics(inbox, effects()))
        if events is not None:
            self.show(partial(event_metrics, events))

    def watch_held_updates(self, held: HeldUpdates) -> None:
        """Add the updates that are held back."""
        self.show(partial(held_update_metrics, held))

    def watch_comparisons(self, counts: Mapping[str, ComparisonCounts]) -> None:
        """Add the comparisons of the state."""
        self.show(partial(comparer_metrics, counts))

    def watch_journal_file(self, path: Path | None) -> None:
        """Add the size of the journal, if it is a file."""
        if path is not None:
            self.show(partial(journal_file_metrics, path))
