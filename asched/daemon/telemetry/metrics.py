"""Prometheus metrics. Where kube-scheduler has a metric, its name, labels and buckets are used.

What is in them is said in docs/metrics.md.
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
    """All metrics of one daemon, in a registry of their own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.scheduling = SchedulingMetrics(self.registry)
        self.cycles = CycleMetrics(self.registry)
        self.cycle_sinks: list[CycleSink] = [self.cycles]
        """Who wants to know of cycles that are watched."""
        self.engine = EngineMetrics(self.registry)
        self.requests = RequestMetrics(self.registry)
        self.sessions = SessionMetrics(self.registry)
        self.reloads = ReloadMetrics(self.registry)
        self.show(ProcessMetrics(), FailureMetrics(FAILURES))
        GCCollector(self.registry)
        PlatformCollector(self.registry)
        Info("asched_build", "The version that runs.", registry=self.registry).info(
            {"version": __version__}
        )

    def show(self, *collectors: Collector) -> None:
        """Show these as well: they are read when somebody asks, at no cost until then."""
        for collector in collectors:
            self.registry.register(collector)

    def watch(self, cluster: ClusterState, reflectors: Callable[[], Sequence[Reflector]]) -> None:
        """Show what the caches and the queue hold, and what the reflectors there are do."""
        self.show(QueueMetrics(cluster), CircuitMetrics(cluster), WatchMetrics(reflectors))

    def watch_work(
        self,
        backlog: Callable[[], Backlog],
        effects: Callable[[], int],
        events: EventRecorder | None,
    ) -> None:
        """Show how far behind the engine and the effects are."""
        self.show(BacklogMetrics(backlog, effects))
        if events is not None:
            self.show(EventMetrics(events))

    def watch_journal_file(self, path: Path | None) -> None:
        """Show how large the journal is, where it is a file."""
        if path is not None:
            self.show(JournalFileMetrics(path))
