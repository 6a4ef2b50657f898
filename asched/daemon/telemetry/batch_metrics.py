"""Prometheus metrics of batch sessions. Where kube-batch has a metric, its name, labels and buckets are
used (they begin with ``volcano``, as kube-batch's did since 0.5)."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from asched.batch.registry import SessionRegistry
from asched.framework.session_plugins import Action, Closing, ClosingPlugin, Session, SessionPlugin
from asched.framework.sessions import SessionOutcome
from asched.model.quantity import NS_PER_S
from asched.state.session_records import SessionHeld

_BUCKETS = tuple(5 * 2**n for n in range(10))
"""``prometheus.ExponentialBuckets(5, 2, 10)``"""
_SESSION_BUCKETS_S = tuple(0.001 * 2**n for n in range(15))
_OPEN, _CLOSE = "OnSessionOpen", "OnSessionClose"


class _KubeBatchMetrics:
    """Those that kube-batch has."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.action_us = Histogram(
            "volcano_action_scheduling_latency_microseconds",
            "Action scheduling latency in microseconds.",
            ["action"],
            buckets=_BUCKETS,
            registry=registry,
        )
        self.plugin_us = Histogram(
            "volcano_plugin_scheduling_latency_microseconds",
            "Plugin scheduling latency in microseconds.",
            ["plugin", "OnSession"],
            buckets=_BUCKETS,
            registry=registry,
        )
        self.e2e_ms = Histogram(
            "volcano_e2e_scheduling_latency_milliseconds",
            "Latency of a session in milliseconds.",
            buckets=_BUCKETS,
            registry=registry,
        )
        self.attempts = Counter(
            "volcano_schedule_attempts",
            "Pods that sessions tried, by the result: scheduled, unschedulable.",
            ["result"],
            registry=registry,
        )
        self.victims = Gauge(
            "volcano_pod_preemption_victims",
            "Victims of the last session that evicted.",
            registry=registry,
        )
        self.preemptions = Counter(
            "volcano_total_preemption_attempts",
            "Pods that sessions made room for by evictions.",
            registry=registry,
        )
        self.unscheduled_jobs = Gauge(
            "volcano_unschedule_job_count",
            "Jobs that the last session left without their gang.",
            registry=registry,
        )


class SessionMetrics:
    """All metrics of sessions, in the registry of the daemon's metrics."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._classic = _KubeBatchMetrics(registry)
        self._sessions = Counter(
            "asched_sessions",
            "Sessions held, by scheduler and result: ok, error.",
            ["profile", "result"],
            registry=registry,
        )
        self._duration = Histogram(
            "asched_session_duration_seconds",
            "Time that a session took to decide.",
            ["profile"],
            buckets=_SESSION_BUCKETS_S,
            registry=registry,
        )
        self._operations = Counter(
            "asched_session_operations",
            "What actions did, by action and operation: allocated, pipelined, bound, evicted,"
            " discarded.",
            ["action", "operation"],
            registry=registry,
        )
        self._plugin_calls = Counter(
            "asched_session_plugin_calls",
            "Questions to session plugins, by callback.",
            ["plugin", "callback"],
            registry=registry,
        )
        self._plugin_refusals = Counter(
            "asched_session_plugin_refusals",
            "Questions that a session plugin answered with a no, by callback.",
            ["plugin", "callback"],
            registry=registry,
        )

    def held(self, session: SessionHeld, outcome: SessionOutcome | None, duration_s: float) -> None:
        """A session was held; ``outcome`` is None for one that came to nothing by an error."""
        profile = session.scheduler_name
        self._sessions.labels(profile, "error" if session.error else "ok").inc()
        self._duration.labels(profile).observe(duration_s)
        self._classic.e2e_ms.observe(duration_s * 1e3)
        if session.error or outcome is None:
            return
        for tally in outcome.actions:
            for operation in ("allocated", "pipelined", "bound", "evicted", "discarded"):
                self._operations.labels(tally.action, operation).inc(getattr(tally, operation))
        for plugin in outcome.plugins:
            for callback, count in plugin.calls.items():
                self._plugin_calls.labels(plugin.plugin, callback).inc(count)
            for callback, count in plugin.refusals.items():
                self._plugin_refusals.labels(plugin.plugin, callback).inc(count)
        self._classic.attempts.labels("scheduled").inc(len(outcome.binds))
        self._classic.attempts.labels("unschedulable").inc(len(outcome.unschedulable))
        if outcome.evictions:
            self._classic.victims.set(len(outcome.evictions))
            self._classic.preemptions.inc(
                len({eviction.preemptor_uid for eviction in outcome.evictions})
            )
        self._classic.unscheduled_jobs.set(sum(bool(group.conditions) for group in outcome.groups))

    def action_ran(self, action: str, duration_s: float) -> None:
        self._classic.action_us.labels(action).observe(duration_s * 1e6)

    def plugin_ran(self, plugin: str, when: str, duration_s: float) -> None:
        self._classic.plugin_us.labels(plugin, when).observe(duration_s * 1e6)


class TimedRegistry(SessionRegistry):
    """The installed actions and plugins, with a stopwatch on each."""

    def __init__(self, registry: SessionRegistry, metrics: SessionMetrics) -> None:
        super().__init__({}, {})
        self._inner = registry
        self._metrics = metrics
        self._timed_actions: dict[str, type[Action]] = {}
        self._timed_plugins: dict[str, type[SessionPlugin]] = {}

    @property
    def plugin_names(self) -> tuple[str, ...]:
        return self._inner.plugin_names

    @property
    def action_names(self) -> tuple[str, ...]:
        return self._inner.action_names

    def action(self, name: str) -> type[Action]:
        if name not in self._timed_actions:
            self._timed_actions[name] = _timed_action(self._inner.action(name), self._metrics)
        return self._timed_actions[name]

    def plugin(self, name: str) -> type[SessionPlugin]:
        if name not in self._timed_plugins:
            self._timed_plugins[name] = _timed_plugin(self._inner.plugin(name), self._metrics)
        return self._timed_plugins[name]


def _timed_action(action: type[Action], metrics: SessionMetrics) -> type[Action]:
    def execute(self: Action, session: Session) -> None:
        with _Stopwatch(functools.partial(metrics.action_ran, action.name)):
            action.execute(self, session)

    return type(action.__name__, (action,), {"execute": execute})


def _timed_plugin(plugin: type[SessionPlugin], metrics: SessionMetrics) -> type[SessionPlugin]:
    def on_open(self: SessionPlugin, session: Session) -> None:
        with _Stopwatch(functools.partial(metrics.plugin_ran, plugin.name, _OPEN)):
            plugin.on_open(self, session)

    members: dict[str, object] = {"on_open": on_open}
    if issubclass(plugin, ClosingPlugin):
        on_close = plugin.on_close

        def timed_on_close(self: ClosingPlugin, closing: Closing) -> None:
            with _Stopwatch(functools.partial(metrics.plugin_ran, plugin.name, _CLOSE)):
                on_close(self, closing)

        members["on_close"] = timed_on_close
    return type(plugin.__name__, (plugin,), members)


class _Stopwatch:
    """Says how long its block took, in seconds."""

    def __init__(self, done: Callable[[float], None]) -> None:
        self._done = done

    def __enter__(self) -> None:
        self._began_ns = time.perf_counter_ns()

    def __exit__(self, *exception: object) -> None:
        self._done((time.perf_counter_ns() - self._began_ns) / NS_PER_S)
