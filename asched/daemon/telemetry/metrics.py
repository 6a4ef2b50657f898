"""Prometheus metrics, described in docs/metrics.md.

Metrics that kube-scheduler has too use its name, labels and buckets.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from prometheus_client import CollectorRegistry, GCCollector, Info, PlatformCollector
from prometheus_client.registry import Collector

from asched import __version__
from asched.daemon.telemetry.batch_metrics import SessionMetrics
from asched.daemon.telemetry.collectors import (
    Backlog,
    BacklogMetrics,
    CircuitMetrics,
    EventMetrics,
    FailureMetrics,
    JournalFileMetrics,
    ProcessMetrics,
    QueueMetrics,
    WatchMetrics,
)
from asched.daemon.telemetry.scheduler_metrics import (
    CycleMetrics,
    EngineMetrics,
    ReloadMetrics,
    RequestMetrics,
    SchedulingMetrics,
)
from asched.daemon.telemetry.stopwatch import CycleSink
from asched.framework.runtime.observation import FAILURES
from asched.kube.events import EventRecorder
from asched.kube.reflector import Reflector
from asched.state.cluster import ClusterState


class Metrics:
    """All metrics of one daemon, in their own registry."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.scheduling = SchedulingMetrics(self.registry)
        self.cycles = CycleMetrics(self.registry)
        self.cycle_sinks: list[CycleSink] = [self.cycles]
        """Receivers of sampled cycles."""
        self.engine = EngineMetrics(self.registry)
        self.requests = RequestMetrics(self.registry)
        self.sessions = SessionMetrics(self.registry)
        self.reloads = ReloadMetrics(self.registry)
        self.show(ProcessMetrics(), FailureMetrics(FAILURES))
        GCCollector(self.registry)
        PlatformCollector(self.registry)
        Info("asched_build", "Version of the running process.", registry=self.registry).info(
            {"version": __version__}
        )

    def show(self, *collectors: Collector) -> None:
        """Add collectors, which are read at each scrape."""
        for collector in collectors:
            self.registry.register(collector)

    def watch(self, cluster: ClusterState, reflectors: Callable[[], Sequence[Reflector]]) -> None:
        """Add metrics of the cache, the queue and the reflectors."""
        self.show(QueueMetrics(cluster), CircuitMetrics(cluster), WatchMetrics(reflectors))

    def watch_work(
        self,
        backlog: Callable[[], Backlog],
        effects: Callable[[], int],
        events: EventRecorder | None,
    ) -> None:
        """Add metrics of the engine's backlog, effects and Events."""
        self.show(BacklogMetrics(backlog, effects))
        if events is not None:
            self.show(EventMetrics(events))

    def watch_journal_file(self, path: Path | None) -> None:
        """Add the size of the journal, if it is a file."""
        if path is not None:
            self.show(JournalFileMetrics(path))
