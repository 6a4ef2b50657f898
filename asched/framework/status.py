"""What a plugin answers: an expected "no" is a value with a reason, an exception is a failure."""

from __future__ import annotations

from enum import IntEnum

import msgspec


class Code(IntEnum):
    """The status codes of kube-scheduler's framework, with its meanings."""

    SUCCESS = 0
    ERROR = 1
    """Something failed inside: a bug, or an API call. The pod is retried with backoff."""
    UNSCHEDULABLE = 2
    """Not now; evicting pods, or another change in the cluster, may help."""
    UNSCHEDULABLE_AND_UNRESOLVABLE = 3
    """Not on this node, and evicting pods would not help."""
    WAIT = 4
    """Permit only: hold the pod until it is allowed, rejected or times out."""
    SKIP = 5
    """PreFilter or PreScore: leave this plugin out for this pod. Bind: not mine."""
    PENDING = 6
    """Waiting for something outside; tried again when the plugin's event arrives, without backoff."""

    @property
    def title(self) -> str:
        """The name that Kubernetes prints, such as ``UnschedulableAndUnresolvable``."""
        return _TITLES[self]


_TITLES = {
    Code.SUCCESS: "Success",
    Code.ERROR: "Error",
    Code.UNSCHEDULABLE: "Unschedulable",
    Code.UNSCHEDULABLE_AND_UNRESOLVABLE: "UnschedulableAndUnresolvable",
    Code.WAIT: "Wait",
    Code.SKIP: "Skip",
    Code.PENDING: "Pending",
}

REJECTIONS = frozenset({Code.UNSCHEDULABLE, Code.UNSCHEDULABLE_AND_UNRESOLVABLE, Code.PENDING})
"""The codes of an expected no."""


class Status(msgspec.Struct, frozen=True, gc=False):
    """A code, the reasons for it, and the plugin that gave it (filled in by the framework).

    >>> Status.unschedulable("node(s) were unschedulable").is_rejection
    True
    """

    code: Code = Code.SUCCESS
    reasons: tuple[str, ...] = ()
    plugin: str = ""

    @classmethod
    def unschedulable(cls, *reasons: str) -> Status:
        return cls(Code.UNSCHEDULABLE, reasons)

    @classmethod
    def unresolvable(cls, *reasons: str) -> Status:
        return cls(Code.UNSCHEDULABLE_AND_UNRESOLVABLE, reasons)

    @classmethod
    def error(cls, *reasons: str) -> Status:
        return cls(Code.ERROR, reasons)

    @classmethod
    def skip(cls) -> Status:
        return _SKIP

    @classmethod
    def pending(cls, *reasons: str) -> Status:
        return cls(Code.PENDING, reasons)

    @property
    def is_success(self) -> bool:
        return self.code is Code.SUCCESS

    @property
    def is_skip(self) -> bool:
        return self.code is Code.SKIP

    @property
    def is_rejection(self) -> bool:
        """An expected no: Unschedulable, UnschedulableAndUnresolvable or Pending."""
        return self.code in REJECTIONS

    @property
    def message(self) -> str:
        return ", ".join(self.reasons)

    def by(self, plugin: str) -> Status:
        """The same status with the plugin's name on it."""
        return self if self.plugin == plugin else msgspec.structs.replace(self, plugin=plugin)


SUCCESS = Status()
"""The status that says yes: the same object for everybody."""
_SKIP = Status(Code.SKIP)
