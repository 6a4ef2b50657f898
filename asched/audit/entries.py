"""The entries of a pod's timeline, which are also its JSON form (see ``docs/history.md``)."""

from __future__ import annotations

from datetime import datetime

import msgspec


class TimelineEntry(msgspec.Struct, frozen=True, rename="camel", tag_field="event"):
    """Base of all entries: the record of the journal, and the time of its turn."""

    seq: int
    at: datetime


class ObservedEntry(TimelineEntry, frozen=True, tag="seen"):
    """The pod appeared in a watch or list."""

    scheduler_name: str
    priority: int
    node: str = ""
    """Where it was bound already."""
    gates: tuple[str, ...] = ()


class ChangeEntry(TimelineEntry, frozen=True, tag="changed"):
    """The API server showed the pod changed."""

    changes: tuple[str, ...]
    """``what old -> new``, of what scheduling reads."""


class QueueMoveEntry(TimelineEntry, frozen=True, tag="queued"):
    """The pod came into another queue."""

    queue: str
    """``active``, ``backoff``, ``unschedulable`` or ``gated``."""
    before: str
    """The queue it left; empty where it was in none."""
    cause: str


class AssignmentEntry(TimelineEntry, frozen=True, tag="assigned"):
    """Decided: the pod goes to this node. The binding follows, unless plugins hold it."""

    attempt: int
    node: str
    feasible: int
    score: int
    ties: int
    examined: int = 0
    held_by: tuple[str, ...] = ()


class RejectionEntry(TimelineEntry, frozen=True, tag="rejected"):
    """Decided: no node, or a plugin said no. The message is written to the pod's condition."""

    attempt: int
    message: str
    plugins: tuple[str, ...]
    pending_plugins: tuple[str, ...] = ()
    nominated_node: str = ""
    victims: tuple[str, ...] = ()


class AttemptFailureEntry(TimelineEntry, frozen=True, tag="failed"):
    """The attempt ended in an error."""

    attempt: int
    plugin: str
    message: str


class ExtenderCallEntry(TimelineEntry, frozen=True, tag="extenderAsked"):
    """The attempt waits for the answers of these extenders."""

    attempt: int
    verb: str
    """``filter``, ``prioritize`` or ``preempt``."""
    extenders: tuple[str, ...]


class ExtenderReplyEntry(TimelineEntry, frozen=True, tag="extenderAnswered"):
    attempt: int
    verb: str
    extender: str
    failure: str = ""
    """Why there was no answer."""


class PermitAnswerEntry(TimelineEntry, frozen=True, tag="permit"):
    """A plugin that held the pod let it go, or turned it away."""

    plugin: str
    allowed: bool
    message: str = ""


class BindingEntry(TimelineEntry, frozen=True, tag="bound"):
    """Effect and outcome: the API server confirmed the binding."""

    node: str


class BindingFailureEntry(TimelineEntry, frozen=True, tag="bindFailed"):
    node: str
    code: str
    plugin: str
    message: str


class PreemptionEntry(TimelineEntry, frozen=True, tag="preempted"):
    """Decided: the pod is to be evicted to make room for another."""

    by: str
    node: str


class EvictionEntry(TimelineEntry, frozen=True, tag="evicted"):
    """Effect and outcome: the API server accepted the deletion."""


class EvictionFailureEntry(TimelineEntry, frozen=True, tag="evictionFailed"):
    message: str


class DeletionEntry(TimelineEntry, frozen=True, tag="gone"):
    """The pod was deleted, finished, or missing from a list."""


Entry = (
    ObservedEntry
    | ChangeEntry
    | QueueMoveEntry
    | AssignmentEntry
    | RejectionEntry
    | AttemptFailureEntry
    | ExtenderCallEntry
    | ExtenderReplyEntry
    | PermitAnswerEntry
    | BindingEntry
    | BindingFailureEntry
    | PreemptionEntry
    | EvictionEntry
    | EvictionFailureEntry
    | DeletionEntry
)


class PodTimeline(msgspec.Struct, rename="camel"):
    """All that happened to one pod, oldest first."""

    namespace: str
    name: str
    uid: str
    entries: list[Entry] = []
