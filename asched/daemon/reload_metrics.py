"""Metrics of configurations that were loaded while the daemon runs."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge


class ReloadMetrics:
    """Named as other servers name theirs, so that a rule for alerts can be the same."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._reloads = Counter(
            "asched_config_reloads",
            "Configurations that were looked at while running, by the result; one that is the same as"
            " before is a success, too.",
            ("result",),
            registry=registry,
        )
        for result in ("success", "failure"):
            self._reloads.labels(result)
        self._successful = Gauge(
            "asched_config_last_reload_successful",
            "Whether the last configuration that was looked at is used.",
            registry=registry,
        )
        self._successful.set(1)

    def ended(self, *, success: bool) -> None:
        self._reloads.labels("success" if success else "failure").inc()
        self._successful.set(success)
