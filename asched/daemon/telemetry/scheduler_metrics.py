"""Attempts to schedule pods and what became of them: kube-scheduler's metrics.

What extension points, plugins and queueing hints take: kube-scheduler's metrics of its framework.

kube-scheduler looks at each extension point always and at plugins in a tenth of the cycles. Here both
are measured in a tenth: a cycle takes so little time that measuring more would be felt.

asched's own: turns, the journal, effects.

Requests to the API server: client-go's metrics.

Metrics of configurations that were loaded while the daemon runs.
"""

from __future__ import annotations

import collections
from collections.abc import Callable, Iterator
from enum import StrEnum
from random import Random

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

from asched.daemon.telemetry.instruments import CounterBatch, Latencies, exponential
from asched.daemon.telemetry.stopwatch import WatchedCycle
from asched.kube.timing import Backoff, RetryPolicy
from asched.model.quantity import NS_PER_S

_ATTEMPT_BUCKETS_S = exponential(0.001, 2, 15)
_SLI_BUCKETS_S = exponential(0.01, 2, 20)
_MANY_ATTEMPTS = 15
"""From here on all are one, so that the label has few values (``getAttemptsLabel``)."""


class AttemptResult(StrEnum):
    """How an attempt to schedule a pod ended, in kube-scheduler's words."""

    SCHEDULED = "scheduled"
    UNSCHEDULABLE = "unschedulable"
    ERROR = "error"


class SchedulingMetrics:
    """What is counted as attempts go on."""

    def __init__(self, registry: CollectorRegistry) -> None:
        labels = ("result", "profile")
        self._attempts = CounterBatch(
            "scheduler_schedule_attempts",
            "Attempts to schedule pods, by the result; 'unschedulable' means that no node would do,"
            " 'error' an internal problem.",
            labels,
        )
        self._attempt_duration = Latencies(
            "scheduler_scheduling_attempt_duration_seconds",
            "Scheduling attempt latency (from the decision to the end of its binding).",
            labels,
            _ATTEMPT_BUCKETS_S,
        )
        self._algorithm_duration = Latencies(
            "scheduler_scheduling_algorithm_duration_seconds",
            "Latency of one decision.",
            (),
            _ATTEMPT_BUCKETS_S,
        )
        self._sli_duration = Latencies(
            "scheduler_pod_scheduling_sli_duration_seconds",
            "From when a pod could first be tried until it was bound, over all its attempts.",
            ("attempts",),
            _SLI_BUCKETS_S,
        )
        registry.register(self._attempts)
        for latencies in (self._attempt_duration, self._algorithm_duration, self._sli_duration):
            registry.register(latencies)
        self._attempts_needed = Histogram(
            "scheduler_pod_scheduling_attempts",
            "Number of attempts to successfully schedule a pod.",
            buckets=exponential(1, 2, 5),
            registry=registry,
        )
        self._preemptions = Counter(
            "scheduler_preemption_attempts",
            "Attempts to make room for a pod that fits nowhere.",
            registry=registry,
        )
        self._victims = Histogram(
            "scheduler_preemption_victims",
            "Victims of a preemption.",
            buckets=exponential(1, 2, 7),
            registry=registry,
        )
        self._permit_wait = Histogram(
            "scheduler_permit_wait_duration_seconds",
            "How long a pod was held by Permit plugins.",
            ["result"],
            buckets=_ATTEMPT_BUCKETS_S,
            registry=registry,
        )

    def decided(self, duration_s: float) -> None:
        """One decision was made, in ``duration_s``."""
        self._algorithm_duration.observe((), round(duration_s * NS_PER_S))

    def attempt_ended(self, result: AttemptResult, profile: str, duration_s: float) -> None:
        """An attempt came to its end: for a scheduled pod that is when it is bound."""
        self._attempts.inc((result, profile))
        self._attempt_duration.observe((result, profile), round(duration_s * NS_PER_S))

    def scheduled(self, attempts: int, waited_s: float) -> None:
        """A pod is bound, ``waited_s`` after it could first be tried."""
        label = str(attempts) if attempts < _MANY_ATTEMPTS else f"{_MANY_ATTEMPTS}+"
        self._sli_duration.observe((label,), round(max(0.0, waited_s) * NS_PER_S))
        self._attempts_needed.observe(attempts)

    def preempted(self, victims: int) -> None:
        """Room was looked for, and would be made by evicting ``victims``; 0: in vain."""
        self._preemptions.inc()
        if victims:
            self._victims.observe(victims)

    def permit_ended(self, result: str, held_s: float) -> None:
        """``result`` is the title of a code: Success for a pod that was let go."""
        self._permit_wait.labels(result).observe(max(0.0, held_s))


SHARE = 0.1
"""``pluginMetricsSamplePercent`` of kube-scheduler."""
_EVALUATION_POINTS = frozenset({"PreFilter", "Filter", "PreScore", "Score"})
_POINT_BUCKETS_S = exponential(0.0001, 2, 12)
_PLUGIN_BUCKETS_S = exponential(0.00001, 1.5, 20)


class CycleMetrics(Collector):
    """A :class:`~asched.daemon.telemetry.stopwatch.CycleSink` and ``HintSink``."""

    numbered = False

    def __init__(self, registry: CollectorRegistry, share: float = SHARE) -> None:
        self.share = share
        self._points = Latencies(
            "scheduler_framework_extension_point_duration_seconds",
            "Latency for running all plugins of a specific extension point, in a tenth of the cycles.",
            ("extension_point", "status", "profile"),
            _POINT_BUCKETS_S,
        )
        self._plugins = Latencies(
            "scheduler_plugin_execution_duration_seconds",
            "Duration for running a plugin at a specific extension point, for all nodes together, in"
            " a tenth of the cycles.",
            ("plugin", "extension_point", "status"),
            _PLUGIN_BUCKETS_S,
        )
        self._hints = Latencies(
            "scheduler_queueing_hint_execution_duration_seconds",
            "Duration for running a queueing hint function of a plugin, in a tenth of the turns.",
            ("plugin", "event", "hint"),
            _PLUGIN_BUCKETS_S,
        )
        self._events = Latencies(
            "scheduler_event_handling_duration_seconds",
            "Time to record and fold what a watch showed, in a tenth of the turns.",
            ("event",),
            _POINT_BUCKETS_S,
        )
        self._evaluations: collections.Counter[tuple[str, str, str]] = collections.Counter()
        for latencies in (self._points, self._plugins, self._hints, self._events):
            registry.register(latencies)
        registry.register(self)

    def cycle(self, watched: WatchedCycle) -> None:
        profile = watched.profile
        for point in watched.points:
            self._points.observe((point.point, point.status, profile), point.busy_ns)
        for plugin in watched.plugins:
            labels = (plugin.plugin, plugin.point, plugin.status)
            self._plugins.observe(labels, plugin.busy_ns)
            if plugin.point in _EVALUATION_POINTS:
                self._evaluations[plugin.plugin, plugin.point, profile] += 1

    def hint(self, plugin: str, event: str, answer: str, duration_ns: int) -> None:
        self._hints.observe((plugin, event, answer), duration_ns)

    def event_handled(self, event: str, duration_ns: int) -> None:
        """``event`` as in :attr:`~asched.framework.events.ClusterEvent.label`."""
        self._events.observe((event,), duration_ns)

    def collect(self) -> Iterator[Metric]:
        counter = CounterMetricFamily(
            "scheduler_plugin_evaluation",
            "Attempts to schedule pods in which the plugin was asked (PreFilter, Filter, PreScore and"
            " Score), estimated: each in a watched tenth of the cycles counts for ten.",
            labels=("plugin", "extension_point", "profile"),
        )
        for labels, number in sorted(self._evaluations.items()):
            counter.add_metric(labels, number / self.share)
        yield counter


_APPEND_BUCKETS_S = exponential(0.0005, 2, 14)
_BATCH_BUCKETS = exponential(1, 4, 8)


class EngineMetrics:
    """What is counted turn by turn."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._turn_duration = Histogram(
            "asched_turn_duration_seconds",
            "Turns of the engine that recorded anything, the wait for the journal included.",
            buckets=_APPEND_BUCKETS_S,
            registry=registry,
        )
        self._append_duration = Histogram(
            "asched_journal_append_duration_seconds",
            "Time until a batch of records was durable.",
            buckets=_APPEND_BUCKETS_S,
            registry=registry,
        )
        self._batch_records = Histogram(
            "asched_journal_batch_records",
            "Records in a batch.",
            buckets=_BATCH_BUCKETS,
            registry=registry,
        )
        self._append_failures = Counter(
            "asched_journal_append_failures",
            "Appends to the journal that had to be repeated.",
            registry=registry,
        )
        self._records = Gauge(
            "asched_journal_records",
            "Number of the last record that is durable.",
            registry=registry,
        )
        self._retries = Counter(
            "asched_effect_retries",
            "Pauses before an effect on the cluster (a binding, a status) was tried again.",
            registry=registry,
        )

    def turned(self, duration_s: float) -> None:
        """A turn that recorded something is over."""
        self._turn_duration.observe(duration_s)

    def appended(self, records: int, last_seq: int, duration_s: float) -> None:
        """A batch is durable."""
        self._append_duration.observe(duration_s)
        self._batch_records.observe(records)
        self._records.set(last_seq)

    def append_failed(self) -> None:
        self._append_failures.inc()

    def effect_retried(self) -> None:
        """An effect did not succeed and is tried again."""
        self._retries.inc()


class CountedBackoff(Backoff):
    """Tells of every pause."""

    def __init__(self, policy: RetryPolicy, random: Random, told: Callable[[], None]) -> None:
        super().__init__(policy, random)
        self._told = told

    def next_s(self, at_least_s: float | None = None) -> float:
        self._told()
        return super().next_s(at_least_s)


_DURATION_BUCKETS_S = (0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0)
"""Those of component-base."""

NO_ANSWER = "<error>"
"""The ``code`` of a request without an answer, as client-go has it."""


class RequestMetrics:
    """A :class:`~asched.kube.transport.RequestWatcher`."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._requests = CounterBatch(
            "rest_client_requests",
            "Number of HTTP requests, partitioned by status code, method, and host.",
            ("code", "method", "host"),
        )
        self._duration = Latencies(
            "rest_client_request_duration_seconds",
            "Request latency in seconds. Broken down by verb, and host. Of a watch, the time until it"
            " begins.",
            ("verb", "host"),
            _DURATION_BUCKETS_S,
        )
        registry.register(self._requests)
        registry.register(self._duration)

    def answered(self, method: str, host: str, status: int, duration_s: float) -> None:
        self._requests.inc((str(status) if status else NO_ANSWER, method, host))
        self._duration.observe((method, host), round(duration_s * NS_PER_S))


class ReloadMetrics:
    """Named as other servers name theirs, so that a rule for alerts can be the same."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._reloads = Counter(
            "asched_config_reloads",
            "Configurations that were looked at while running, by the result; one that is the same as"
            " before is a success, too.",
            ("result",),
            registry=registry,
        )
        for result in ("success", "failure"):
            self._reloads.labels(result)
        self._successful = Gauge(
            "asched_config_last_reload_successful",
            "Whether the last configuration that was looked at is used.",
            registry=registry,
        )
        self._successful.set(1)

    def ended(self, *, success: bool) -> None:
        self._reloads.labels("success" if success else "failure").inc()
        self._successful.set(success)
