"""Prometheus metrics of batch sessions.

Metrics that kube-batch has too use its name (``volcano_...`` since kube-batch 0.5), labels and
buckets.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, partial

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


class _KubeBatchMetrics:
    def __init__(self, registry: CollectorRegistry) -> None:
        histogram = partial(Histogram, registry=registry)
        counter = partial(Counter, registry=registry)
        gauge = partial(Gauge, registry=registry)
        self.action_us = histogram(
            "volcano_action_scheduling_latency_microseconds",
            "Action scheduling latency in microseconds",
            ["action"],
            buckets=_BUCKETS,
        )
        self.plugin_us = histogram(
            "volcano_plugin_scheduling_latency_microseconds",
            "Plugin scheduling latency in microseconds",
            ["plugin", "OnSession"],
            buckets=_BUCKETS,
        )
        self.e2e_ms = histogram(
            "volcano_e2e_scheduling_latency_milliseconds",
            "E2e scheduling latency in milliseconds (scheduling algorithm + binding)",
            buckets=_BUCKETS,
        )
        self.attempts = counter(
            "volcano_schedule_attempts",
            "Number of attempts to schedule pods, by the result. 'unschedulable' means a pod could"
            " not be scheduled, while 'error' means an internal scheduler problem.",
            ["result"],
        )
        self.victims = gauge(
            "volcano_pod_preemption_victims",
            "Number of selected preemption victims",
        )
        self.preemptions = counter(
            "volcano_total_preemption_attempts",
            "Total preemption attempts in the cluster till now",
        )
        self.unscheduled_jobs = gauge(
            "volcano_unschedule_job_count",
            "Number of jobs could not be scheduled",
        )


class SessionMetrics:
    """All metrics of batch sessions."""

    def __init__(self, registry: CollectorRegistry) -> None:
        histogram = partial(Histogram, registry=registry)
        counter = partial(Counter, registry=registry)
        self._kube_batch = _KubeBatchMetrics(registry)
        self._sessions = counter(
            "asched_sessions",
            "Sessions by scheduler and result: ok, error.",
            ["profile", "result"],
        )
        self._duration = histogram(
            "asched_session_duration_seconds",
            "Duration of a session's decisions.",
            ["profile"],
            buckets=_SESSION_BUCKETS_S,
        )
        self._operations = counter(
            "asched_session_operations",
            "Operations by action: allocated, pipelined, bound, evicted, discarded.",
            ["action", "operation"],
        )
        self._plugin_calls = counter(
            "asched_session_plugin_calls",
            "Calls of session plugins by callback.",
            ["plugin", "callback"],
        )
        self._plugin_rejections = counter(
            "asched_session_plugin_refusals",
            "Calls of session plugins with a negative answer, by callback.",
            ["plugin", "callback"],
        )

    def executed(
        self, session: SessionExecuted, outcome: SessionOutcome | None, duration_s: float
    ) -> None:
        """A session ended; ``outcome`` is None if it failed."""
        profile = session.scheduler_name
        self._sessions.labels(profile, "error" if session.error else "ok").inc()
        self._duration.labels(profile).observe(duration_s)
        self._kube_batch.e2e_ms.observe(duration_s * 1e3)
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
        self._kube_batch.attempts.labels("scheduled").inc(len(outcome.binds))
        self._kube_batch.attempts.labels("unschedulable").inc(len(outcome.unschedulable))
        if outcome.evictions:
            self._kube_batch.victims.set(len(outcome.evictions))
            self._kube_batch.preemptions.inc(
                len({eviction.preemptor_uid for eviction in outcome.evictions})
            )
        self._kube_batch.unscheduled_jobs.set(
            sum(bool(group.conditions) for group in outcome.groups)
        )

    def action_ran(self, action: str, duration_s: float) -> None:
        self._kube_batch.action_us.labels(action).observe(duration_s * 1e6)

    def plugin_ran(self, plugin: str, when: str, duration_s: float) -> None:
        self._kube_batch.plugin_us.labels(plugin, when).observe(duration_s * 1e6)


class TimedRegistry(SessionRegistry):
    """The installed actions and plugins, each timed."""

    def __init__(self, registry: SessionRegistry, metrics: SessionMetrics) -> None:
        super().__init__({}, {})
        self._inner = registry
        self._action = cache(lambda name: _timed_action(registry.action(name), metrics))
        self._plugin = cache(lambda name: _timed_plugin(registry.plugin(name), metrics))

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
        with _timed(partial(metrics.action_ran, action.name)):
            action.execute(self, session)

    return type(action.__name__, (action,), {"execute": execute})


def _timed_plugin(plugin: type[SessionPlugin], metrics: SessionMetrics) -> type[SessionPlugin]:
    def on_open(self: SessionPlugin, session: Session) -> None:
        with _timed(partial(metrics.plugin_ran, plugin.name, _OPEN)):
            plugin.on_open(self, session)

    members: dict[str, object] = {"on_open": on_open}
    if issubclass(plugin, ClosingPlugin):
        on_close = plugin.on_close

        def timed_on_close(self: ClosingPlugin, closing: ClosingSession) -> None:
            with _timed(partial(metrics.plugin_ran, plugin.name, _CLOSE)):
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
