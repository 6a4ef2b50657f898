"""Attempts to schedule pods and what became of them: kube-scheduler's metrics."""

from __future__ import annotations

from enum import StrEnum

from prometheus_client import CollectorRegistry, Counter, Histogram

from asched.daemon.telemetry.buckets import exponential
from asched.daemon.telemetry.latencies import Latencies
from asched.daemon.telemetry.tallies import Tally

_ATTEMPT_BUCKETS_S = exponential(0.001, 2, 15)
_SLI_BUCKETS_S = exponential(0.01, 2, 20)
_NS_PER_S = 1e9
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
        self._attempts = Tally(
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
        self._algorithm_duration.observe((), round(duration_s * _NS_PER_S))

    def attempt_ended(self, result: AttemptResult, profile: str, duration_s: float) -> None:
        """An attempt came to its end: for a scheduled pod that is when it is bound."""
        self._attempts.inc((result, profile))
        self._attempt_duration.observe((result, profile), round(duration_s * _NS_PER_S))

    def scheduled(self, attempts: int, waited_s: float) -> None:
        """A pod is bound, ``waited_s`` after it could first be tried."""
        label = str(attempts) if attempts < _MANY_ATTEMPTS else f"{_MANY_ATTEMPTS}+"
        self._sli_duration.observe((label,), round(max(0.0, waited_s) * _NS_PER_S))
        self._attempts_needed.observe(attempts)

    def preempted(self, victims: int) -> None:
        """Room was looked for, and would be made by evicting ``victims``; 0: in vain."""
        self._preemptions.inc()
        if victims:
            self._victims.observe(victims)

    def permit_ended(self, result: str, held_s: float) -> None:
        """``result`` is the title of a code: Success for a pod that was let go."""
        self._permit_wait.labels(result).observe(max(0.0, held_s))
