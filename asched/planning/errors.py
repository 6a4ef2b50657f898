"""Errors of planning."""

from __future__ import annotations


class PlanningError(Exception):
    """Work that cannot be planned or executed. Its text is one line for the user."""


class ExecutionError(PlanningError):
    """The execution ended early; the same call may succeed later."""


class ForeignWorkerError(ExecutionError):
    """A worker has other code, plugins or data than the process that plans."""


class LostWorkersError(ExecutionError):
    """A worker process ended during its work, several times for the same item."""
