"""Prometheus metrics of a daemon: the registry, and collectors that read the state when scraped.

Where kube-scheduler has a metric, its name, labels and buckets are used.
"""

from __future__ import annotations

import asyncio
import os
import resource
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from prometheus_client import CollectorRegistry, GCCollector, Info, PlatformCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from asched import __version__
from asched.daemon.telemetry.batch_metrics import SessionMetrics
from asched.daemon.telemetry.scheduler_metrics import (
    CycleMetrics,
    EngineMetrics,
    ReloadMetrics,
    RequestMetrics,
    SchedulingMetrics,
)
from asched.daemon.telemetry.stopwatch import CycleSink
from asched.framework.runtime.observation import FAILURES, Failures
from asched.kube.events import EventRecorder
from asched.kube.reflector import Reflector
from asched.state.cluster import ClusterState, PlacementState


class Backlog(NamedTuple):
    """Changes and outcomes that are not folded yet."""

    length: int
    oldest_age_s: float


class QueueMetrics(Collector):
    """kube-scheduler's metrics of the scheduling queue and the cache."""

    def __init__(self, cluster: ClusterState) -> None:
        self._cluster = cluster

    def collect(self) -> Iterator[Metric]:
        yield self._pending()
        yield self._unschedulable()
        yield self._incoming()
        yield self._inflight_events()
        yield self._cache()

    def _pending(self) -> Metric:
        queue = self._cluster.queue
        gauge = GaugeMetricFamily(
            "scheduler_pending_pods",
            "Number of pending pods, by the queue type. 'active' means number of pods in activeQ;"
            " 'backoff' means number of pods in backoffQ; 'unschedulable' means number of pods in"
            " unschedulablePods that the scheduler attempted to schedule and failed; 'gated' is the"
            " number of unschedulable pods that the scheduler never attempted to schedule because"
            " they are gated.",
            labels=["queue"],
        )
        gauge.add_metric(["active"], len(queue.active))
        gauge.add_metric(["backoff"], len(queue.backoff))
        gauge.add_metric(["unschedulable"], len(queue.unschedulable))
        gauge.add_metric(["gated"], len(queue.gated))
        return gauge

    def _unschedulable(self) -> Metric:
        queue = self._cluster.queue
        count: Counter[tuple[str, str]] = Counter()
        for pods in (queue.unschedulable, queue.backoff):
            for pod in pods.values():
                profile = pod.info.pod.spec.scheduler_name
                for plugin in pod.unschedulable_plugins | pod.pending_plugins:
                    count[plugin, profile] += 1
        for pod in queue.gated.values():
            count[pod.gating_plugin, pod.info.pod.spec.scheduler_name] += 1
        gauge = GaugeMetricFamily(
            "scheduler_unschedulable_pods",
            "The number of unschedulable pods broken down by plugin name. A pod will increment the"
            " gauge for all plugins that caused it to not schedule and so this metric have meaning"
            " only when broken down by plugin.",
            labels=["plugin", "profile"],
        )
        for labels, pods_there in sorted(count.items()):
            gauge.add_metric(labels, pods_there)
        return gauge

    def _incoming(self) -> Metric:
        counter = CounterMetricFamily(
            "scheduler_queue_incoming_pods",
            "Number of pods added to scheduling queues by event and queue type.",
            labels=["queue", "event"],
        )
        for labels, pods in sorted(self._cluster.queue.incoming.items()):
            counter.add_metric(labels, pods)
        return counter

    def _inflight_events(self) -> Metric:
        count = Counter(queued.event.label for queued in self._cluster.queue.events)
        gauge = GaugeMetricFamily(
            "scheduler_inflight_events",
            "Number of events currently tracked in the scheduling queue.",
            labels=["event"],
        )
        for event, events in sorted(count.items()):
            gauge.add_metric([event], events)
        return gauge

    def _cache(self) -> Metric:
        assumed = sum(
            p.placement_state is PlacementState.ASSUMED for p in self._cluster.pods.values()
        )
        gauge = GaugeMetricFamily(
            "scheduler_cache_size",
            "Number of nodes, pods, and assumed (bound) pods in the scheduler cache.",
            labels=["type"],
        )
        gauge.add_metric(["nodes"], self._cluster.nodes.cluster_size)
        gauge.add_metric(["pods"], len(self._cluster.pods))
        gauge.add_metric(["assumed_pods"], assumed)
        return gauge


class WatchMetrics(Collector):
    """Lists and watches of the reflectors."""

    def __init__(self, reflectors: Callable[[], Sequence[Reflector]]) -> None:
        """``reflectors`` returns the present ones."""
        self._reflectors = reflectors

    def collect(self) -> Iterator[Metric]:
        reflectors = self._reflectors()
        lists, watches, failures, events = (
            CounterMetricFamily(f"asched_reflector_{name}", text, labels=["resource"])
            for name, text in (
                ("lists", "Lists requested."),
                ("watches", "Watches started, including restarts."),
                ("watch_failures", "Failed lists and watches."),
                ("events", "Watch events received."),
            )
        )
        synced = GaugeMetricFamily(
            "asched_reflector_synced",
            "Whether the resource was listed (1) or not yet (0).",
            labels=["resource"],
        )
        for reflector in reflectors:
            labels, counts = [reflector.resource.label], reflector.counts
            lists.add_metric(labels, counts.lists)
            watches.add_metric(labels, counts.watches)
            failures.add_metric(labels, counts.failures)
            events.add_metric(labels, reflector.decoder.counts.events)
            synced.add_metric(labels, float(reflector.synced))
        yield from (lists, watches, failures, events, synced)


class CircuitMetrics(Collector):
    """The plugins' circuit breakers."""

    def __init__(self, cluster: ClusterState) -> None:
        self._cluster = cluster

    def collect(self) -> Iterator[Metric]:
        gauge = GaugeMetricFamily(
            "asched_plugin_circuit_open",
            "Whether the plugin's circuit breaker is open (1), so that the plugin is skipped.",
            labels=["plugin", "profile"],
        )
        for profile, plugin, circuit in self._cluster.circuits:
            gauge.add_metric([plugin, profile], float(circuit.is_open))
        yield gauge


class BacklogMetrics(Collector):
    """The engine's backlog, and effects in flight."""

    def __init__(self, backlog: Callable[[], Backlog], effects: Callable[[], int]) -> None:
        self._backlog = backlog
        self._effects = effects

    def collect(self) -> Iterator[Metric]:
        backlog = self._backlog()
        yield GaugeMetricFamily(
            "asched_inbox_length",
            "Changes and outcomes that are not folded yet.",
            value=backlog.length,
        )
        yield GaugeMetricFamily(
            "asched_fold_lag_seconds",
            "Age of the oldest change that is not folded yet.",
            value=backlog.oldest_age_s,
        )
        yield GaugeMetricFamily(
            "asched_effects_under_way",
            "Pods with effects (bindings, conditions, evictions) in flight.",
            value=self._effects(),
        )


class EventMetrics(Collector):
    """The Events that the scheduler writes."""

    def __init__(self, events: EventRecorder) -> None:
        self._events = events

    def collect(self) -> Iterator[Metric]:
        counts = self._events.counts
        counter = CounterMetricFamily(
            "asched_events",
            "Events by outcome: recorded, sent, dropped (queue full), failed.",
            labels=["outcome"],
        )
        counter.add_metric(["recorded"], counts.recorded)
        counter.add_metric(["sent"], counts.sent)
        counter.add_metric(["dropped"], counts.dropped)
        counter.add_metric(["failed"], counts.failed)
        yield counter
        yield GaugeMetricFamily(
            "asched_events_queue_length",
            "Events waiting to be sent.",
            value=self._events.waiting,
        )


class JournalFileMetrics(Collector):
    """The size of a SQLite journal."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def collect(self) -> Iterator[Metric]:
        size = GaugeMetricFamily(
            "asched_journal_file_bytes",
            "Size of the SQLite journal by file: database, write-ahead log.",
            labels=["file"],
        )
        for label, suffix in (("database", ""), ("wal", "-wal")):
            try:
                size.add_metric([label], Path(f"{self._path}{suffix}").stat().st_size)
            except FileNotFoundError:
                continue
        yield size


class FailureMetrics(Collector):
    """Failures of plugins."""

    def __init__(self, failures: Failures) -> None:
        self._failures = failures

    def collect(self) -> Iterator[Metric]:
        counter = CounterMetricFamily(
            "asched_plugin_failures",
            "Plugin failures by extension point and reason.",
            labels=["plugin", "extension_point", "reason"],
        )
        for failure, number in sorted(self._failures.counts.items()):
            counter.add_metric(
                [failure.plugin, failure.extension_point, failure.reason.value], number
            )
        yield counter


_PROC = Path("/proc/self")


class ProcessMetrics(Collector):
    """``process_*``, and the tasks of the event loop.

    The Prometheus client's own collector needs ``/proc/stat``, which systemd's ``ProcSubset=pid``
    hides. This one does not, and without ``/proc`` it still reports what system calls provide.
    """

    def __init__(self) -> None:
        self._ticks_per_s = os.sysconf("SC_CLK_TCK")
        self._page_bytes = os.sysconf("SC_PAGE_SIZE")

    def collect(self) -> Iterator[Metric]:
        times = os.times()
        yield CounterMetricFamily(
            "process_cpu_seconds",
            "Total user and system CPU time spent in seconds.",
            value=times.user + times.system,
        )
        yield from self._memory_and_start()
        yield from _files()
        tasks = _tasks()
        if tasks is not None:
            yield GaugeMetricFamily("asched_tasks", "Tasks of the event loop.", value=tasks)

    def _memory_and_start(self) -> Iterator[Metric]:
        try:
            # The command name may contain spaces and parentheses.
            fields = (_PROC / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            return
        virtual_bytes, resident_pages, started_ticks = fields[20], fields[21], fields[19]
        booted_s = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
        for name, text, value in (
            ("virtual_memory_bytes", "Virtual memory size in bytes.", float(virtual_bytes)),
            (
                "resident_memory_bytes",
                "Resident memory size in bytes.",
                float(resident_pages) * self._page_bytes,
            ),
            (
                "start_time_seconds",
                "Start time of the process since unix epoch in seconds.",
                booted_s + float(started_ticks) / self._ticks_per_s,
            ),
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


def _tasks() -> int | None:
    try:
        return len(asyncio.all_tasks())
    except RuntimeError:
        return None  # no running event loop


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
        self.show(ProcessMetrics(), FailureMetrics(FAILURES))
        GCCollector(self.registry)
        PlatformCollector(self.registry)
        Info("asched_build", "Version of the running process.", registry=self.registry).info(
            {"version": __version__}
        )

    def show(self, *collectors: Collector) -> None:
        """Add collectors, which are read at each scrape."""
        for collector in collectors:
            self.registry.register(collector)

    def watch(self, cluster: ClusterState, reflectors: Callable[[], Sequence[Reflector]]) -> None:
        """Add metrics of the cache, the queue and the reflectors."""
        self.show(QueueMetrics(cluster), CircuitMetrics(cluster), WatchMetrics(reflectors))

    def watch_work(
        self,
        backlog: Callable[[], Backlog],
        effects: Callable[[], int],
        events: EventRecorder | None,
    ) -> None:
        """Add metrics of the engine's backlog, effects and Events."""
        self.show(BacklogMetrics(backlog, effects))
        if events is not None:
            self.show(EventMetrics(events))

    def watch_journal_file(self, path: Path | None) -> None:
        """Add the size of the journal, if it is a file."""
        if path is not None:
            self.show(JournalFileMetrics(path))
