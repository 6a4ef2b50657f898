"""asched's own: turns, the journal, effects."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from asched.daemon.telemetry.buckets import exponential
from asched.kube.timing import Backoff, RetryPolicy

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
