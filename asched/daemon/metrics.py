"""Prometheus metrics. Where kube-scheduler has a metric, its name, labels and buckets are used."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import StrEnum

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from asched.daemon.reload_metrics import ReloadMetrics
from asched.daemon.session_metrics import SessionMetrics
from asched.kube.reflector import Reflector
from asched.state.cluster import ClusterState, PodPhase

_ATTEMPT_BUCKETS_S = tuple(0.001 * 2**n for n in range(15))
"""``metrics.ExponentialBuckets(0.001, 2, 15)`` of kube-scheduler."""
_APPEND_BUCKETS_S = tuple(0.0005 * 2**n for n in range(14))
_BATCH_BUCKETS = tuple(4**n for n in range(8))


class AttemptResult(StrEnum):
    """How an attempt to schedule a pod ended, in kube-scheduler's words."""

    SCHEDULED = "scheduled"
    UNSCHEDULABLE = "unschedulable"
    ERROR = "error"


class Metrics:
    """All metrics of one daemon, in a registry of their own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.sessions = SessionMetrics(self.registry)
        self.reloads = ReloadMetrics(self.registry)
        labels = ("result", "profile")
        self._attempts = Counter(
            "scheduler_schedule_attempts",
            "Attempts to schedule pods, by the result; 'unschedulable' means that no node would do,"
            " 'error' an internal problem.",
            labels,
            registry=self.registry,
        )
        self._attempt_duration = Histogram(
            "scheduler_scheduling_attempt_duration_seconds",
            "Scheduling attempt latency (from the decision to the end of its binding).",
            labels,
            buckets=_ATTEMPT_BUCKETS_S,
            registry=self.registry,
        )
        self._of_attempts: dict[tuple[AttemptResult, str], tuple[Counter, Histogram]] = {}
        self._algorithm_duration = Histogram(
            "scheduler_scheduling_algorithm_duration_seconds",
            "Latency of one decision.",
            buckets=_ATTEMPT_BUCKETS_S,
            registry=self.registry,
        )
        self._append_duration = Histogram(
            "asched_journal_append_duration_seconds",
            "Time until a batch of records was durable.",
            buckets=_APPEND_BUCKETS_S,
            registry=self.registry,
        )
        self._batch_records = Histogram(
            "asched_journal_batch_records",
            "Records in a batch.",
            buckets=_BATCH_BUCKETS,
            registry=self.registry,
        )
        self._append_failures = Counter(
            "asched_journal_append_failures",
            "Appends to the journal that had to be repeated.",
            registry=self.registry,
        )

    def decided(self, duration_s: float) -> None:
        """One decision was made, in ``duration_s``."""
        self._algorithm_duration.observe(duration_s)

    def attempt_ended(self, result: AttemptResult, profile: str, duration_s: float) -> None:
        """An attempt came to its end: for a scheduled pod that is when it is bound."""
        # Finding the child of some labels costs more than counting on it.
        found = self._of_attempts.get((result, profile))
        if found is None:
            labels = (result.value, profile)
            found = self._attempts.labels(*labels), self._attempt_duration.labels(*labels)
            self._of_attempts[result, profile] = found
        count, duration = found
        count.inc()
        duration.observe(duration_s)

    def appended(self, records: int, duration_s: float) -> None:
        """A batch is durable."""
        self._append_duration.observe(duration_s)
        self._batch_records.observe(records)

    def append_failed(self) -> None:
        self._append_failures.inc()

    def watch(self, cluster: ClusterState, reflectors: Sequence[Reflector]) -> None:
        """Show these as well: they are read when somebody asks, at no cost until then."""
        self.registry.register(_Present(cluster, reflectors))


class _Present(Collector):
    """What is true at the moment of asking."""

    def __init__(self, cluster: ClusterState, reflectors: Sequence[Reflector]) -> None:
        self._cluster = cluster
        self._reflectors = reflectors

    def collect(self) -> Iterator[Metric]:
        yield self._pending()
        yield self._cache()
        yield self._requests("lists", "Lists that were asked for.", "lists")
        yield self._requests("watches", "Watches that were begun.", "watches")
        yield self._requests("watch_failures", "Lists and watches that failed.", "failures")

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

    def _cache(self) -> Metric:
        assumed = sum(p.phase is PodPhase.ASSUMED for p in self._cluster.pods.values())
        gauge = GaugeMetricFamily(
            "scheduler_cache_size", "Nodes, pods and assumed (bound) pods known.", labels=["type"]
        )
        gauge.add_metric(["nodes"], self._cluster.nodes.cluster_size)
        gauge.add_metric(["pods"], len(self._cluster.pods))
        gauge.add_metric(["assumed_pods"], assumed)
        return gauge

    def _requests(self, name: str, text: str, field: str) -> Metric:
        counter = CounterMetricFamily(f"asched_reflector_{name}", text, labels=["resource"])
        for reflector in self._reflectors:
            counter.add_metric([reflector.resource.label], getattr(reflector.counts, field))
        return counter
