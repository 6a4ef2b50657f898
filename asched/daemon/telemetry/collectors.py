"""What is true at the moment of asking: it costs nothing until somebody asks.

``process_*`` of this process, and the tasks of its event loop.

The Prometheus client's own collector shows nothing where ``/proc/stat`` cannot be read, as under
systemd's ``ProcSubset=pid``: it wants to know when the machine was booted. That can be had without.
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

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from asched.framework.runtime.observation import Failures
from asched.kube.events import EventRecorder
from asched.kube.reflector import Reflector
from asched.state.cluster import ClusterState, PodPhase


class Backlog(NamedTuple):
    """What has been seen and is not folded yet."""

    length: int
    oldest_age_s: float


class QueueMetrics(Collector):
    """The scheduling queue and the caches, in kube-scheduler's metrics."""

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
            "scheduler_pending_pods", "Pending pods, by the queue they are in.", labels=["queue"]
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
            "Unschedulable pods by the plugins that turned them away: a pod counts for each of them.",
            labels=["plugin", "profile"],
        )
        for labels, pods_there in sorted(count.items()):
            gauge.add_metric(labels, pods_there)
        return gauge

    def _incoming(self) -> Metric:
        counter = CounterMetricFamily(
            "scheduler_queue_incoming_pods",
            "Pods that came into a scheduling queue, by queue and by the event that brought them.",
            labels=["queue", "event"],
        )
        for labels, pods in sorted(self._cluster.queue.arrivals.items()):
            counter.add_metric(labels, pods)
        return counter

    def _inflight_events(self) -> Metric:
        count = Counter(happened.event.label for happened in self._cluster.queue.events)
        gauge = GaugeMetricFamily(
            "scheduler_inflight_events",
            "Events kept for pods in flight, which may miss them otherwise.",
            labels=["event"],
        )
        for event, events in sorted(count.items()):
            gauge.add_metric([event], events)
        return gauge

    def _cache(self) -> Metric:
        assumed = sum(p.phase is PodPhase.ASSUMED for p in self._cluster.pods.values())
        gauge = GaugeMetricFamily(
            "scheduler_cache_size", "Nodes, pods and assumed (bound) pods known.", labels=["type"]
        )
        gauge.add_metric(["nodes"], self._cluster.nodes.cluster_size)
        gauge.add_metric(["pods"], len(self._cluster.pods))
        gauge.add_metric(["assumed_pods"], assumed)
        return gauge


class WatchMetrics(Collector):
    """The reflectors."""

    def __init__(self, reflectors: Callable[[], Sequence[Reflector]]) -> None:
        """``reflectors``: those there are at the moment of asking."""
        self._reflectors = reflectors

    def collect(self) -> Iterator[Metric]:
        reflectors = self._reflectors()
        lists, watches, failures, events = (
            CounterMetricFamily(f"asched_reflector_{name}", text, labels=["resource"])
            for name, text in (
                ("lists", "Lists that were asked for."),
                ("watches", "Watches that were begun, the first and every time one had ended."),
                ("watch_failures", "Lists and watches that failed."),
                ("events", "Objects that watches showed."),
            )
        )
        synced = GaugeMetricFamily(
            "asched_reflector_synced",
            "Whether the resource was listed (1) or is still waited for (0).",
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
    """Circuit breakers of plugins, as the fold keeps them."""

    def __init__(self, cluster: ClusterState) -> None:
        self._cluster = cluster

    def collect(self) -> Iterator[Metric]:
        gauge = GaugeMetricFamily(
            "asched_plugin_circuit_open",
            "Whether the plugin is left alone (1) because it failed too often; for plugins with a"
            " circuit breaker.",
            labels=["plugin", "profile"],
        )
        for profile, plugin, circuit in self._cluster.circuits:
            gauge.add_metric([plugin, profile], float(circuit.is_open))
        yield gauge


class BacklogMetrics(Collector):
    """How far the engine is behind, and the effects under way."""

    def __init__(self, backlog: Callable[[], Backlog], effects: Callable[[], int]) -> None:
        self._backlog = backlog
        self._effects = effects

    def collect(self) -> Iterator[Metric]:
        backlog = self._backlog()
        yield GaugeMetricFamily(
            "asched_inbox_length",
            "Changes and outcomes that have arrived and are not folded yet.",
            value=backlog.length,
        )
        yield GaugeMetricFamily(
            "asched_fold_lag_seconds",
            "How long the oldest change that is not folded yet has waited.",
            value=backlog.oldest_age_s,
        )
        yield GaugeMetricFamily(
            "asched_effects_under_way",
            "Pods with effects (bindings, conditions, evictions) that have not ended.",
            value=self._effects(),
        )


class EventMetrics(Collector):
    """The Events that are sent to the cluster."""

    def __init__(self, events: EventRecorder) -> None:
        self._events = events

    def collect(self) -> Iterator[Metric]:
        counts = self._events.counts
        counter = CounterMetricFamily(
            "asched_events",
            "Events about pods by what became of them: recorded, sent, dropped because the queue was"
            " full, failed.",
            labels=["outcome"],
        )
        counter.add_metric(["recorded"], counts.recorded)
        counter.add_metric(["sent"], counts.sent)
        counter.add_metric(["dropped"], counts.dropped)
        counter.add_metric(["failed"], counts.failed)
        yield counter
        yield GaugeMetricFamily(
            "asched_events_queue_length",
            "Events that wait to be sent.",
            value=self._events.waiting,
        )


class JournalFileMetrics(Collector):
    """The size of a journal that is a file."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def collect(self) -> Iterator[Metric]:
        size = GaugeMetricFamily(
            "asched_journal_file_bytes",
            "Size of the SQLite journal, by file: database, its write-ahead log.",
            labels=["file"],
        )
        for label, suffix in (("database", ""), ("wal", "-wal")):
            try:
                size.add_metric([label], Path(f"{self._path}{suffix}").stat().st_size)
            except FileNotFoundError:
                continue
        yield size


class FailureMetrics(Collector):
    """Plugins that failed."""

    def __init__(self, failures: Failures) -> None:
        self._failures = failures

    def collect(self) -> Iterator[Metric]:
        counter = CounterMetricFamily(
            "asched_plugin_failures",
            "Failures of plugins, by extension point and the way in which they failed.",
            labels=["plugin", "extension_point", "reason"],
        )
        for failure, number in sorted(self._failures.counts.items()):
            counter.add_metric(
                [failure.plugin, failure.extension_point, failure.reason.value], number
            )
        yield counter


_PROC = Path("/proc/self")


class ProcessMetrics(Collector):
    """Where there is no ``/proc``, only what the system calls tell."""

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
            # The name may hold spaces and parentheses; numbers follow its last one.
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
        return None  # asked from outside of an event loop
