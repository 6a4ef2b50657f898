"""Statuses that plugins return. A rejection is a status with reasons; an exception is a failure."""

from __future__ import annotations

from enum import IntEnum

import msgspec


class Code(IntEnum):
    """The status codes of kube-scheduler's framework, with its meanings."""

    SUCCESS = 0
    ERROR = 1
    """An internal failure. The pod is retried with backoff."""
    UNSCHEDULABLE = 2
    """Rejected; preemption or another change in the cluster may help."""
    UNSCHEDULABLE_AND_UNRESOLVABLE = 3
    """Rejected; preemption would not help."""
    WAIT = 4
    """Permit only: wait until the pod is allowed or rejected, or until the timeout."""
    SKIP = 5
    """PreFilter, PreScore: skip this plugin for this pod. Bind: call the next plugin."""
    PENDING = 6
    """Rejected until an external event; then retried without backoff."""

    @property
    def title(self) -> str:
        """The name that Kubernetes prints, such as ``UnschedulableAndUnresolvable``."""
        return self.name.title().replace("_", "")


REJECTIONS = frozenset({Code.UNSCHEDULABLE, Code.UNSCHEDULABLE_AND_UNRESOLVABLE, Code.PENDING})
"""The codes of a rejection."""


class Status(msgspec.Struct, frozen=True, gc=False):
    """A code with reasons, and the plugin that returned it, which the framework sets.

    >>> Status.unschedulable("node(s) were unschedulable").is_rejection
    True
    """

    code: Code = Code.SUCCESS
    """What the plugin decided."""
    reasons: tuple[str, ...] = ()
    """Why, as in the message ``0/3 nodes are available: 2 Insufficient cpu``."""
    plugin: str = ""
    """The name of the plugin; set by the framework."""

    @classmethod
    def unschedulable(cls, *reasons: str) -> Status:
        """A rejection that preemption or another change may resolve."""
        return cls(Code.UNSCHEDULABLE, reasons)

    @classmethod
    def unresolvable(cls, *reasons: str) -> Status:
        """A rejection that preemption would not resolve."""
        return cls(Code.UNSCHEDULABLE_AND_UNRESOLVABLE, reasons)

    @classmethod
    def error(cls, *reasons: str) -> Status:
        """An internal failure. The pod is retried with backoff."""
        return cls(Code.ERROR, reasons)

    @classmethod
    def skip(cls) -> Status:
        """Skip this plugin (PreFilter, PreScore), or call the next one (Bind)."""
        return _SKIP

    @classmethod
    def pending(cls, *reasons: str) -> Status:
        """A rejection until an external event; then the pod is retried without backoff."""
        return cls(Code.PENDING, reasons)

    @property
    def is_success(self) -> bool:
        """Success."""
        return self.code is Code.SUCCESS

    @property
    def is_skip(self) -> bool:
        """Skip."""
        return self.code is Code.SKIP

    @property
    def is_rejection(self) -> bool:
        """Unschedulable, UnschedulableAndUnresolvable or Pending."""
        return self.code in REJECTIONS

    @property
    def message(self) -> str:
        """The reasons, separated by commas."""
        return ", ".join(self.reasons)

    def by(self, plugin: str) -> Status:
        """The same status with the name of the plugin."""
        return self if self.plugin == plugin else msgspec.structs.replace(self, plugin=plugin)


class ObjectErrorStatus(Status, frozen=True):
    """An error that an object causes, such as a selector that fails at run time. It fails the
    attempt, but is no failure of the plugin. Not part of the public API."""


SUCCESS = Status()
"""The shared Success status."""
_SKIP = Status(Code.SKIP)
