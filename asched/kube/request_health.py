"""Whether requests to the API server succeed: a condition of readiness."""

from __future__ import annotations

from typing import Final

from asched.kube.timing import Clock
from asched.kube.transport import RequestObserver

UNUSABLE_AFTER_S: Final = 10.0
"""Time without a successful request after which the daemon is not ready."""


class RequestHealth(RequestObserver):
    """Remembers since when every request failed.

    Failures are a missing response, 401 and 5xx: with other responses the API server works.
    """

    def __init__(self, clock: Clock, then: RequestObserver | None = None) -> None:
        """``then`` receives the requests, too."""
        self._clock = clock
        self._then = then
        self._failing_since_s: float | None = None

    def request_finished(self, method: str, host: str, status: int, duration_s: float) -> None:
        if status and status != 401 and status < 500:
            self._failing_since_s = None
        elif self._failing_since_s is None:
            self._failing_since_s = self._clock.monotonic_s() - duration_s
        if self._then is not None:
            self._then.request_finished(method, host, status, duration_s)

    def problem(self) -> str:
        """What is wrong, in one line; empty if a request succeeded within the limit."""
        if self._failing_since_s is None:
            return ""
        failing_s = self._clock.monotonic_s() - self._failing_since_s
        if failing_s < UNUSABLE_AFTER_S:
            return ""
        return f"no request to the API server has succeeded for {failing_s:.0f} s"
