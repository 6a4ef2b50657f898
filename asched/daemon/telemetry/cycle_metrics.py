"""What extension points, plugins and queueing hints take: kube-scheduler's metrics of its framework.

kube-scheduler looks at each extension point always and at plugins in a tenth of the cycles. Here both
are measured in a tenth: a cycle takes so little time that measuring more would be felt.
"""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Histogram

from asched.daemon.telemetry.buckets import exponential
from asched.daemon.telemetry.stopwatch import WatchedCycle

SHARE = 0.1
"""``pluginMetricsSamplePercent`` of kube-scheduler."""
_EVALUATION_POINTS = frozenset({"PreFilter", "Filter", "PreScore", "Score"})
_POINT_BUCKETS_S = exponential(0.0001, 2, 12)
_PLUGIN_BUCKETS_S = exponential(0.00001, 1.5, 20)
_NS_PER_S = 1e9


class CycleMetrics:
    """A :class:`~asched.daemon.telemetry.stopwatch.CycleSink` and ``HintSink``."""

    def __init__(self, registry: CollectorRegistry, share: float = SHARE) -> None:
        self.share = share
        self._point_duration = Histogram(
            "scheduler_framework_extension_point_duration_seconds",
            "Latency for running all plugins of a specific extension point, in a tenth of the cycles.",
            ["extension_point", "status", "profile"],
            buckets=_POINT_BUCKETS_S,
            registry=registry,
        )
        self._plugin_duration = Histogram(
            "scheduler_plugin_execution_duration_seconds",
            "Duration for running a plugin at a specific extension point, for all nodes together, in"
            " a tenth of the cycles.",
            ["plugin", "extension_point", "status"],
            buckets=_PLUGIN_BUCKETS_S,
            registry=registry,
        )
        self._evaluations = Counter(
            "scheduler_plugin_evaluation",
            "Attempts to schedule pods in which the plugin was asked (PreFilter, Filter, PreScore and"
            " Score), estimated: each in a watched tenth of the cycles counts for ten.",
            ["plugin", "extension_point", "profile"],
            registry=registry,
        )
        self._hint_duration = Histogram(
            "scheduler_queueing_hint_execution_duration_seconds",
            "Duration for running a queueing hint function of a plugin, in a tenth of the turns.",
            ["plugin", "event", "hint"],
            buckets=_PLUGIN_BUCKETS_S,
            registry=registry,
        )
        self._event_duration = Histogram(
            "scheduler_event_handling_duration_seconds",
            "Time to record and fold what a watch showed, in a tenth of the turns.",
            ["event"],
            buckets=_POINT_BUCKETS_S,
            registry=registry,
        )

    def cycle(self, watched: WatchedCycle) -> None:
        profile = watched.profile
        for point in watched.points:
            labels = (point.point, point.status, profile)
            self._point_duration.labels(*labels).observe(point.busy_ns / _NS_PER_S)
        for plugin in watched.plugins:
            duration_s = plugin.busy_ns / _NS_PER_S
            self._plugin_duration.labels(plugin.plugin, plugin.point, plugin.status).observe(
                duration_s
            )
            if plugin.point in _EVALUATION_POINTS:
                asked = self._evaluations.labels(plugin.plugin, plugin.point, profile)
                asked.inc(1 / self.share)

    def hint(self, plugin: str, event: str, answer: str, duration_ns: int) -> None:
        self._hint_duration.labels(plugin, event, answer).observe(duration_ns / _NS_PER_S)

    def event_handled(self, event: str, duration_ns: int) -> None:
        """``event`` as in :attr:`~asched.framework.events.ClusterEvent.label`."""
        self._event_duration.labels(event).observe(duration_ns / _NS_PER_S)
