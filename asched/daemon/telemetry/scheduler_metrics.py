"""Metrics that are counted as events happen: kube-scheduler's, client-go's and asched's own.

kube-scheduler times extension points in every cycle and plugins in a tenth of them. Here both are
timed in a tenth: cycles are so short that timing all of them would cost noticeably.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter as Counts
from collections.abc import Callable, Iterator, Sequence
from enum import StrEnum
from functools import partial
from itertools import accumulate
from random import Random

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from asched.daemon.telemetry.stopwatch import SampledCycle
from asched.kube.timing import Backoff, RetryPolicy
from asched.model.quantity import NS_PER_S

# The Prometheus client takes a lock and looks labels up for each observation, some four
# microseconds. The following classes take a tenth of that. They must be used in the event loop's
# thread, which also serves /metrics.


class FastHistogram(Collector):
    """Values by labels: durations in nanoseconds, shown in seconds, or counts."""

    def __init__(
        self,
        name: str,
        text: str,
        *,
        labels: Sequence[str] = (),
        buckets: Sequence[float],
        registry: CollectorRegistry,
        unit: int = NS_PER_S,
    ) -> None:
        """``buckets``: upper bounds as shown; ``unit``: the value that is shown as 1."""
        self._new_family = partial(HistogramMetricFamily, name, text, labels=labels)
        self._unit = unit
        self._bounds = [bound * unit for bound in buckets]
        self._shown_bounds = [*map(floatToGoString, buckets), "+Inf"]
        self._counts: dict[tuple[str, ...], list[int]] = {}
        self._sums: dict[tuple[str, ...], int] = {}
        if not labels:
            self._begin(())
        registry.register(self)

    def _begin(self, labels: tuple[str, ...]) -> list[int]:
        self._sums[labels] = 0
        counts = self._counts[labels] = [0] * len(self._shown_bounds)
        return counts

    def observe(self, labels: tuple[str, ...], value: int) -> None:
        """``labels``: values in the order of the names."""
        counts = self._counts.get(labels) or self._begin(labels)
        counts[bisect_left(self._bounds, value)] += 1
        self._sums[labels] += value

    def collect(self) -> Iterator[Metric]:
        family = self._new_family()
        for labels, counts in sorted(self._counts.items()):
            buckets = [*zip(self._shown_bounds, accumulate(counts), strict=True)]
            family.add_metric(labels, buckets, self._sums[labels] / self._unit)
        yield family


class FastCounter(Collector):
    """Counts by labels."""

    def __init__(
        self, name: str, text: str, *, labels: Sequence[str], registry: CollectorRegistry
    ) -> None:
        """``name``: without the suffix ``_total``."""
        self._new_family = partial(CounterMetricFamily, name, text, labels=labels)
        self._counts: Counts[tuple[str, ...]] = Counts()
        registry.register(self)

    def inc(self, labels: tuple[str, ...]) -> None:
        """``labels``: values in the order of the names."""
        self._counts[labels] += 1

    def collect(self) -> Iterator[Metric]:
        family = self._new_family()
        for labels, count in sorted(self._counts.items()):
            family.add_metric(labels, count)
        yield family


def exponential_buckets(start: float, factor: float, count: int) -> tuple[float, ...]:
    """As ``ExponentialBuckets`` of Prometheus' Go client, rounded to nine digits."""
    return tuple(float(f"{start * factor**n:.9g}") for n in range(count))


_ATTEMPT_BUCKETS_S = exponential_buckets(0.001, 2, 15)
_SLI_BUCKETS_S = exponential_buckets(0.01, 2, 20)
_MAX_ATTEMPTS_LABEL = 15
"""Higher numbers share one label value (``getAttemptsLabel``)."""


class AttemptResult(StrEnum):
    """kube-scheduler's label values for the result of a scheduling attempt."""

    SCHEDULED = "scheduled"
    UNSCHEDULABLE = "unschedulable"
    ERROR = "error"


class SchedulingMetrics:
    """Attempts to schedule pods."""

    def __init__(self, registry: CollectorRegistry) -> None:
        histogram = partial(FastHistogram, registry=registry)
        labels = ("result", "profile")
        self._attempts = FastCounter(
            "scheduler_schedule_attempts",
            "Number of attempts to schedule pods, by the result. 'unschedulable' means a pod could"
            " not be scheduled, while 'error' means an internal scheduler problem.",
            labels=labels,
            registry=registry,
        )
        self._attempt_duration = histogram(
            "scheduler_scheduling_attempt_duration_seconds",
            "Scheduling attempt latency in seconds (scheduling algorithm + binding)",
            labels=labels,
            buckets=_ATTEMPT_BUCKETS_S,
        )
        self._algorithm_duration = histogram(
            "scheduler_scheduling_algorithm_duration_seconds",
            "Scheduling algorithm latency in seconds",
            buckets=_ATTEMPT_BUCKETS_S,
        )
        self._sli_duration = histogram(
            "scheduler_pod_scheduling_sli_duration_seconds",
            "E2e latency for a pod being scheduled, from the time the pod enters the scheduling"
            " queue and might involve multiple scheduling attempts.",
            labels=("attempts",),
            buckets=_SLI_BUCKETS_S,
        )
        self._attempts_needed = _count_histogram(
            registry,
            "scheduler_pod_scheduling_attempts",
            "Number of attempts to successfully schedule a pod.",
            5,
        )
        self._preemption_attempts = Counter(
            "scheduler_preemption_attempts",
            "Total preemption attempts in the cluster till now",
            registry=registry,
        )
        self._preemption_victims = _count_histogram(
            registry, "scheduler_preemption_victims", "Number of selected preemption victims", 7
        )
        self._permit_wait = Histogram(
            "scheduler_permit_wait_duration_seconds",
            "Duration of waiting on permit.",
            ["result"],
            buckets=_ATTEMPT_BUCKETS_S,
            registry=registry,
        )

    def decided(self, duration_s: float) -> None:
        """One decision took ``duration_s``."""
        self._algorithm_duration.observe((), round(duration_s * NS_PER_S))

    def attempt_ended(self, result: AttemptResult, profile: str, duration_s: float) -> None:
        """An attempt ended; that of a scheduled pod ends with its binding."""
        self._attempts.inc((result, profile))
        self._attempt_duration.observe((result, profile), round(duration_s * NS_PER_S))

    def scheduled(self, attempts: int, waited_s: float) -> None:
        """A pod was bound, ``waited_s`` after it entered the active queue first."""
        label = str(attempts) if attempts < _MAX_ATTEMPTS_LABEL else f"{_MAX_ATTEMPTS_LABEL}+"
        self._sli_duration.observe((label,), round(max(0.0, waited_s) * NS_PER_S))
        self._attempts_needed.observe((), attempts)

    def preempted(self, victims: int) -> None:
        """A preemption attempt selected ``victims`` pods; 0 if it failed."""
        self._preemption_attempts.inc()
        if victims:
            self._preemption_victims.observe((), victims)

    def permit_ended(self, result: str, waited_s: float) -> None:
        """``result``: the title of a status code, Success if the pod was allowed."""
        self._permit_wait.labels(result).observe(max(0.0, waited_s))


def _count_histogram(
    registry: CollectorRegistry, name: str, text: str, buckets: int
) -> FastHistogram:
    bounds = exponential_buckets(1, 2, buckets)
    return FastHistogram(name, text, buckets=bounds, registry=registry, unit=1)


SHARE = 0.1
"""``pluginMetricsSamplePercent`` of kube-scheduler."""
_EVALUATION_POINTS = frozenset({"PreFilter", "Filter", "PreScore", "Score"})
_POINT_BUCKETS_S = exponential_buckets(0.0001, 2, 12)
_PLUGIN_BUCKETS_S = exponential_buckets(0.00001, 1.5, 20)


class CycleMetrics(Collector):
    """Durations in sampled cycles and turns: a
    :class:`~asched.daemon.telemetry.stopwatch.CycleSink`."""

    numbered = False

    def __init__(self, registry: CollectorRegistry, share: float = SHARE) -> None:
        histogram = partial(FastHistogram, registry=registry)
        self.share = share
        self._points = histogram(
            "scheduler_framework_extension_point_duration_seconds",
            "Latency for running all plugins of a specific extension point.",
            labels=("extension_point", "status", "profile"),
            buckets=_POINT_BUCKETS_S,
        )
        self._plugins = histogram(
            "scheduler_plugin_execution_duration_seconds",
            "Duration for running a plugin at a specific extension point.",
            labels=("plugin", "extension_point", "status"),
            buckets=_PLUGIN_BUCKETS_S,
        )
        self._hints = histogram(
            "scheduler_queueing_hint_execution_duration_seconds",
            "Latency for running a queueing hint function of a plugin.",
            labels=("plugin", "event", "hint"),
            buckets=_PLUGIN_BUCKETS_S,
        )
        self._events = histogram(
            "scheduler_event_handling_duration_seconds",
            "Event handling latency in seconds.",
            labels=("event",),
            buckets=_POINT_BUCKETS_S,
        )
        self._evaluations: Counts[tuple[str, str, str]] = Counts()
        registry.register(self)

    def cycle(self, cycle: SampledCycle) -> None:
        profile = cycle.profile
        for point in cycle.points:
            self._points.observe((point.point, point.status, profile), point.busy_ns)
        for plugin in cycle.plugins:
            labels = (plugin.plugin, plugin.point, plugin.status)
            self._plugins.observe(labels, plugin.busy_ns)
            if plugin.point in _EVALUATION_POINTS:
                self._evaluations[plugin.plugin, plugin.point, profile] += 1

    def hint(self, plugin: str, event: str, result: str, duration_ns: int) -> None:
        self._hints.observe((plugin, event, result), duration_ns)

    def event_handled(self, event: str, duration_ns: int) -> None:
        """``event``: as in :attr:`~asched.framework.events.ClusterEvent.label`."""
        self._events.observe((event,), duration_ns)

    def collect(self) -> Iterator[Metric]:
        counter = CounterMetricFamily(
            "scheduler_plugin_evaluation",
            "Number of attempts to schedule pods by each plugin and the extension point (available"
            " only in PreFilter, Filter, PreScore, and Score).",
            labels=("plugin", "extension_point", "profile"),
        )
        for labels, number in sorted(self._evaluations.items()):
            counter.add_metric(labels, number / self.share)
        yield counter


_APPEND_BUCKETS_S = exponential_buckets(0.0005, 2, 14)
_BATCH_BUCKETS = exponential_buckets(1, 4, 8)


class EngineMetrics:
    """Turns, the journal and effects."""

    def __init__(self, registry: CollectorRegistry) -> None:
        histogram = partial(FastHistogram, registry=registry)
        counter = partial(Counter, registry=registry)
        self._turn_duration = histogram(
            "asched_turn_duration_seconds",
            "Duration of engine turns that produced records, including the journal append.",
            buckets=_APPEND_BUCKETS_S,
        )
        self._append_duration = histogram(
            "asched_journal_append_duration_seconds",
            "Time until a batch of records was durable.",
            buckets=_APPEND_BUCKETS_S,
        )
        self._batch_records = histogram(
            "asched_journal_batch_records",
            "Records in a batch.",
            buckets=_BATCH_BUCKETS,
            unit=1,
        )
        self._append_failures = counter(
            "asched_journal_append_failures",
            "Journal appends that were retried.",
        )
        self._records = Gauge(
            "asched_journal_records",
            "Sequence number of the last durable record.",
            registry=registry,
        )
        self._clock_steps = counter(
            "asched_clock_steps",
            "Steps of the wall clock that were detected.",
        )
        self._clock_held = Gauge(
            "asched_clock_held_seconds",
            "Step of the wall clock that dates of records do not follow yet.",
            registry=registry,
        )
        self._retries = counter(
            "asched_effect_retries",
            "Retries of effects on the cluster (a binding, a status).",
        )
        self._refused = counter(
            "asched_pods_refused",
            "Observed pods that were not recorded, because another pod has their uid.",
        )
        self._put_off = counter(
            "asched_attempts_put_off",
            "Attempts that were put off, because their namespace used up its budget of decision"
            " time.",
        )

    def attempt_put_off(self) -> None:
        self._put_off.inc()

    def turned(self, duration_s: float) -> None:
        """A turn that produced records ended."""
        self._turn_duration.observe((), round(duration_s * NS_PER_S))

    def appended(self, records: int, last_seq: int, duration_s: float) -> None:
        """A batch is durable."""
        self._append_duration.observe((), round(duration_s * NS_PER_S))
        self._batch_records.observe((), records)
        self._records.set(last_seq)

    def append_failed(self) -> None:
        self._append_failures.inc()

    def pods_refused(self, number: int) -> None:
        self._refused.inc(number)

    def clock_stepped(self) -> None:
        """A step of the wall clock was detected."""
        self._clock_steps.inc()

    def clock_held(self, step_s: float) -> None:
        """Dates of records differ by this much from the wall clock."""
        self._clock_held.set(step_s)

    def effect_retried(self) -> None:
        self._retries.inc()


class CountedBackoff(Backoff):
    """A backoff that calls ``on_retry`` with each delay."""

    def __init__(self, policy: RetryPolicy, random: Random, on_retry: Callable[[], None]) -> None:
        super().__init__(policy, random)
        self._on_retry = on_retry

    def next_s(self, at_least_s: float | None = None) -> float:
        self._on_retry()
        return super().next_s(at_least_s)


_DURATION_BUCKETS_S = (0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0)
"""Those of component-base."""

NO_ANSWER = "<error>"
"""client-go's ``code`` of a request without a response."""


class RequestMetrics:
    """client-go's metrics of requests. A :class:`~asched.kube.transport.RequestObserver`."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._requests = FastCounter(
            "rest_client_requests",
            "Number of HTTP requests, partitioned by status code, method, and host.",
            labels=("code", "method", "host"),
            registry=registry,
        )
        self._duration = FastHistogram(
            "rest_client_request_duration_seconds",
            "Request latency in seconds. Broken down by verb, and host.",
            labels=("verb", "host"),
            buckets=_DURATION_BUCKETS_S,
            registry=registry,
        )

    def request_finished(self, method: str, host: str, status: int, duration_s: float) -> None:
        self._requests.inc((str(status) if status else NO_ANSWER, method, host))
        self._duration.observe((method, host), round(duration_s * NS_PER_S))


class ReloadMetrics:
    """Reloads of the configuration. Alertmanager and others use the same names."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._reloads = Counter(
            "asched_config_reloads",
            "Configuration reloads by result; an unchanged configuration counts as success.",
            ("result",),
            registry=registry,
        )
        for result in ("success", "failure"):
            self._reloads.labels(result)
        self._successful = Gauge(
            "asched_config_last_reload_successful",
            "Whether the last configuration reload succeeded.",
            registry=registry,
        )
        self._successful.set(1)

    def ended(self, *, success: bool) -> None:
        self._reloads.labels("success" if success else "failure").inc()
        self._successful.set(success)
