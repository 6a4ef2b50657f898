"""What extension points, plugins and queueing hints take: kube-scheduler's metrics of its framework.

kube-scheduler looks at each extension point always and at plugins in a tenth of the cycles. Here both
are measured in a tenth: a cycle takes so little time that measuring more would be felt.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

from asched.daemon.telemetry.buckets import exponential
from asched.daemon.telemetry.latencies import Latencies
from asched.daemon.telemetry.stopwatch import WatchedCycle

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
        self._evaluations: Counter[tuple[str, str, str]] = Counter()
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
