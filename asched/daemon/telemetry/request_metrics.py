"""Requests to the API server: client-go's metrics."""

from __future__ import annotations

from prometheus_client import CollectorRegistry

from asched.daemon.telemetry.latencies import Latencies
from asched.daemon.telemetry.tallies import Tally

_DURATION_BUCKETS_S = (0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0)
"""Those of component-base."""
_NS_PER_S = 1e9
NO_ANSWER = "<error>"
"""The ``code`` of a request without an answer, as client-go has it."""


class RequestMetrics:
    """A :class:`~asched.kube.transport.RequestWatcher`."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._requests = Tally(
            "rest_client_requests",
            "Number of HTTP requests, partitioned by status code, method, and host.",
            ("code", "method", "host"),
        )
        self._duration = Latencies(
            "rest_client_request_duration_seconds",
            "Request latency in seconds. Broken down by verb, and host. Of a watch, the time until it"
            " begins.",
            ("verb", "host"),
            _DURATION_BUCKETS_S,
        )
        registry.register(self._requests)
        registry.register(self._duration)

    def answered(self, method: str, host: str, status: int, duration_s: float) -> None:
        self._requests.inc((str(status) if status else NO_ANSWER, method, host))
        self._duration.observe((method, host), round(duration_s * _NS_PER_S))
