"""Errors of planning."""

from __future__ import annotations


class PlanningError(Exception):
    """Work that cannot be planned or executed. Its text is one line for the user."""


class ExecutionError(PlanningError):
    """The execution ended early; the same call may succeed later."""


class ForeignWorkerError(ExecutionError):
    """A worker has other code, plugins or data than the process that plans."""


class LostWorkersError(ExecutionError):
    """Workers ended repeatedly during an item without which there is no result."""
