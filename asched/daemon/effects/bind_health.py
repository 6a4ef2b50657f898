"""Whether bindings succeed: a condition of readiness."""

from __future__ import annotations

from typing import Final

from asched.kube.timing import Clock
from asched.kube.write_outcomes import BindOutcome, OutcomeUnknown, WriteRejected

UNUSABLE_AFTER_S: Final = 8.0
"""Time without a carried out binding after which the daemon is not ready: a probe has 2 s to see it
within 10 s."""
_RECENT_S: Final = 60.0
"""How long after the last request a failure counts: longer than a request and a backoff take."""


class BindHealth:
    """Remembers since when the API server carried out no binding.

    Other requests may succeed meanwhile. An answer about the pod, such as that it is gone or bound
    elsewhere, shows that bindings are processed.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._failing_since_s: float | None = None
        self._requested_at_s = 0.0

    def requested(self) -> None:
        """A binding is about to be sent."""
        self._requested_at_s = self._clock.monotonic_s()
        if self._failing_since_s is None:
            self._failing_since_s = self._requested_at_s

    def answered(self, outcome: BindOutcome) -> None:
        if not _is_failure(outcome):
            self._failing_since_s = None

    def problem(self) -> str:
        """What is wrong, in one line; empty if bindings succeed or none is sent."""
        if self._failing_since_s is None:
            return ""
        now_s = self._clock.monotonic_s()
        if now_s - self._requested_at_s > _RECENT_S:
            self._failing_since_s = None
            return ""
        failing_s = now_s - self._failing_since_s
        if failing_s < UNUSABLE_AFTER_S:
            return ""
        return f"no binding has succeeded for {failing_s:.0f} s"


def _is_failure(outcome: BindOutcome) -> bool:
    """Whether the outcome is due to the API server or the way to it, not to the pod."""
    if isinstance(outcome, WriteRejected):
        return not outcome.status or outcome.status in (401, 429) or outcome.status >= 500
    return isinstance(outcome, OutcomeUnknown)
