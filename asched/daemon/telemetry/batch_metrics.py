"""Prometheus metrics of batch sessions.

Metrics that kube-batch has too use its name (``volcano_...`` since kube-batch 0.5), labels and
buckets.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from asched.batch.registry import SessionRegistry
from asched.framework.session_plugins import (
    Action,
    ClosingPlugin,
    ClosingSession,
    Session,
    SessionPlugin,
)
from asched.framework.sessions import SessionOutcome
from asched.model.quantity import NS_PER_S
from asched.state.session_records import SessionExecuted

_BUCKETS = tuple(5 * 2**n for n in range(10))
"""``prometheus.ExponentialBuckets(5, 2, 10)``"""
_SESSION_BUCKETS_S = tuple(0.001 * 2**n for n in range(15))
_OPEN, _CLOSE = "OnSessionOpen", "OnSessionClose"


class SessionMetrics:
    """All metrics of batch sessions."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._action_us = Histogram(
            "volcano_action_scheduling_latency_microseconds",
            "Action scheduling latency in microseconds",
            ["action"],
            buckets=_BUCKETS,
            registry=registry,
        )
        self._plugin_us = Histogram(
            "volcano_plugin_scheduling_latency_microseconds",
            "Plugin scheduling latency in microseconds",
            ["plugin", "OnSession"],
            buckets=_BUCKETS,
            registry=registry,
        )
        self._e2e_ms = Histogram(
            "volcano_e2e_scheduling_latency_milliseconds",
            "E2e scheduling latency in milliseconds (scheduling algorithm + binding)",
            buckets=_BUCKETS,
            registry=registry,
        )
        self._attempts = Counter(
            "volcano_schedule_attempts",
            "Number of attempts to schedule pods, by the result. 'unschedulable' means a pod could"
            " not be scheduled, while 'error' means an internal scheduler problem.",
            ["result"],
            registry=registry,
        )
        self._victims = Gauge(
            "volcano_pod_preemption_victims",
            "Number of selected preemption victims",
            registry=registry,
        )
        self._preemptions = Counter(
            "volcano_total_preemption_attempts",
            "Total preemption attempts in the cluster till now",
            registry=registry,
        )
        self._unscheduled_jobs = Gauge(
            "volcano_unschedule_job_count",
            "Number of jobs could not be scheduled",
            registry=registry,
        )
        self._sessions = Counter(
            "asched_sessions",
            "Sessions by scheduler and result: ok, error.",
            ["profile", "result"],
            registry=registry,
        )
        self._duration = Histogram(
            "asched_session_duration_seconds",
            "Duration of a session's decisions.",
            ["profile"],
            buckets=_SESSION_BUCKETS_S,
            registry=registry,
        )
        self._operations = Counter(
            "asched_session_operations",
            "Operations by action: allocated, pipelined, bound, evicted, discarded.",
            ["action", "operation"],
            registry=registry,
        )
        self._plugin_calls = Counter(
            "asched_session_plugin_calls",
            "Calls of session plugins by callback.",
            ["plugin", "callback"],
            registry=registry,
        )
        self._plugin_rejections = Counter(
            "asched_session_plugin_refusals",
            "Calls of session plugins with a negative answer, by callback.",
            ["plugin", "callback"],
            registry=registry,
        )

    def executed(
        self, session: SessionExecuted, outcome: SessionOutcome | None, duration_s: float
    ) -> None:
        """A session ended; ``outcome`` is None if it failed."""
        profile = session.scheduler_name
        self._sessions.labels(profile, "error" if session.error else "ok").inc()
        self._duration.labels(profile).observe(duration_s)
        self._e2e_ms.observe(duration_s * 1e3)
        if session.error or outcome is None:
            return
        for counts in outcome.actions:
            for operation in ("allocated", "pipelined", "bound", "evicted", "discarded"):
                self._operations.labels(counts.action, operation).inc(getattr(counts, operation))
        for plugin in outcome.plugins:
            for callback, count in plugin.calls.items():
                self._plugin_calls.labels(plugin.plugin, callback).inc(count)
            for callback, count in plugin.rejections.items():
                self._plugin_rejections.labels(plugin.plugin, callback).inc(count)
        self._attempts.labels("scheduled").inc(len(outcome.binds))
        self._attempts.labels("unschedulable").inc(len(outcome.unschedulable))
        if outcome.evictions:
            self._victims.set(len(outcome.evictions))
            self._preemptions.inc(len({eviction.preemptor_uid for eviction in outcome.evictions}))
        self._unscheduled_jobs.set(sum(bool(group.conditions) for group in outcome.groups))

    def action_ran(self, action: str, duration_s: float) -> None:
        self._action_us.labels(action).observe(duration_s * 1e6)

    def plugin_ran(self, plugin: str, when: str, duration_s: float) -> None:
        self._plugin_us.labels(plugin, when).observe(duration_s * 1e6)


class TimedRegistry(SessionRegistry):
    """The installed actions and plugins, each timed."""

    def __init__(self, registry: SessionRegistry, metrics: SessionMetrics) -> None:
        super().__init__({}, {})
        self._inner = registry
        self._action = functools.cache(lambda name: _timed_action(registry.action(name), metrics))
        self._plugin = functools.cache(lambda name: _timed_plugin(registry.plugin(name), metrics))

    @property
    def plugin_names(self) -> tuple[str, ...]:
        return self._inner.plugin_names

    @property
    def action_names(self) -> tuple[str, ...]:
        return self._inner.action_names

    def action(self, name: str) -> type[Action]:
        return self._action(name)

    def plugin(self, name: str) -> type[SessionPlugin]:
        return self._plugin(name)


def _timed_action(action: type[Action], metrics: SessionMetrics) -> type[Action]:
    def execute(self: Action, session: Session) -> None:
        with _timed(functools.partial(metrics.action_ran, action.name)):
            action.execute(self, session)

    return type(action.__name__, (action,), {"execute": execute})


def _timed_plugin(plugin: type[SessionPlugin], metrics: SessionMetrics) -> type[SessionPlugin]:
    def on_open(self: SessionPlugin, session: Session) -> None:
        with _timed(functools.partial(metrics.plugin_ran, plugin.name, _OPEN)):
            plugin.on_open(self, session)

    members: dict[str, object] = {"on_open": on_open}
    if issubclass(plugin, ClosingPlugin):
        on_close = plugin.on_close

        def timed_on_close(self: ClosingPlugin, closing: ClosingSession) -> None:
            with _timed(functools.partial(metrics.plugin_ran, plugin.name, _CLOSE)):
                on_close(self, closing)

        members["on_close"] = timed_on_close
    return type(plugin.__name__, (plugin,), members)


@contextmanager
def _timed(done: Callable[[float], None]) -> Iterator[None]:
    """Calls ``done`` with the duration of the block in seconds."""
    began_ns = time.perf_counter_ns()
    try:
        yield
    finally:
        done((time.perf_counter_ns() - began_ns) / NS_PER_S)
