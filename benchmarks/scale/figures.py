"""The figures of a large cluster."""

from __future__ import annotations

import msgspec


class RunFigures(msgspec.Struct):
    """One run of a process."""

    elapsed_s: float
    """From the start of the process to the first binding, or to its end."""
    cpu_s: float
    """CPU time until then."""
    peak_mib: float
    """Highest resident memory until then."""


class ScaleFigures(msgspec.Struct):
    """A cluster of one size."""

    nodes: int
    pods: int
    start: RunFigures
    """With an empty journal."""
    churn_pods_per_s: float
    """Pods that were bound by the time from the first creation to the last binding."""
    churn_p50_ms: float
    """From creation to binding."""
    churn_p99_ms: float
    churn_cpu_ms_per_pod: float
    churn_peak_mib: float
    journal_mib: float
    checkpoint: RunFigures
    """``asched checkpoint``."""
    restart: RunFigures
    """With that checkpoint."""
