"""The entries of a pod's timeline, which are also its JSON form (see ``docs/history.md``)."""

from __future__ import annotations

from datetime import datetime

import msgspec


class Event(msgspec.Struct, frozen=True, rename="camel", tag_field="event"):
    """Base of all entries: the record of the journal, and the time of its turn."""

    seq: int
    at: datetime


class Observed(Event, frozen=True, tag="seen"):
    """The pod appeared in a watch or list."""

    scheduler_name: str
    priority: int
    node: str = ""
    """Where it was bound already."""
    gates: tuple[str, ...] = ()


class Change(Event, frozen=True, tag="changed"):
    """The API server showed the pod changed."""

    changes: tuple[str, ...]
    """``what old -> new``, of what scheduling reads."""


class QueueMove(Event, frozen=True, tag="queued"):
    """The pod came into another queue."""

    queue: str
    """``active``, ``backoff``, ``unschedulable`` or ``gated``."""
    before: str
    """The queue it left; empty where it was in none."""
    cause: str


class Assignment(Event, frozen=True, tag="assigned"):
    """Decided: the pod goes to this node. The binding follows, unless plugins hold it."""

    attempt: int
    node: str
    feasible: int
    score: int
    ties: int
    examined: int = 0
    held_by: tuple[str, ...] = ()


class Rejection(Event, frozen=True, tag="rejected"):
    """Decided: no node, or a plugin said no. The message is written to the pod's condition."""

    attempt: int
    message: str
    plugins: tuple[str, ...]
    pending_plugins: tuple[str, ...] = ()
    nominated_node: str = ""
    victims: tuple[str, ...] = ()


class Failure(Event, frozen=True, tag="failed"):
    """The attempt ended in an error."""

    attempt: int
    plugin: str
    message: str


class ExtenderInquiry(Event, frozen=True, tag="extenderAsked"):
    """The attempt waits for the answers of these extenders."""

    attempt: int
    verb: str
    """``filter``, ``prioritize`` or ``preempt``."""
    extenders: tuple[str, ...]


class ExtenderReply(Event, frozen=True, tag="extenderAnswered"):
    attempt: int
    verb: str
    extender: str
    failure: str = ""
    """Why there was no answer."""


class PermitAnswer(Event, frozen=True, tag="permit"):
    """A plugin that held the pod let it go, or turned it away."""

    plugin: str
    allowed: bool
    message: str = ""


class Binding(Event, frozen=True, tag="bound"):
    """Effect and outcome: the API server confirmed the binding."""

    node: str


class BindingFailure(Event, frozen=True, tag="bindFailed"):
    node: str
    code: str
    plugin: str
    message: str


class Preemption(Event, frozen=True, tag="preempted"):
    """Decided: the pod is to be evicted to make room for another."""

    by: str
    node: str


class Eviction(Event, frozen=True, tag="evicted"):
    """Effect and outcome: the API server accepted the deletion."""


class EvictionFailure(Event, frozen=True, tag="evictionFailed"):
    message: str


class Deletion(Event, frozen=True, tag="gone"):
    """The pod was deleted, finished, or missing from a list."""


Entry = (
    Observed
    | Change
    | QueueMove
    | Assignment
    | Rejection
    | Failure
    | ExtenderInquiry
    | ExtenderReply
    | PermitAnswer
    | Binding
    | BindingFailure
    | Preemption
    | Eviction
    | EvictionFailure
    | Deletion
)


class PodTimeline(msgspec.Struct, rename="camel"):
    """All that happened to one pod, oldest first."""

    namespace: str
    name: str
    uid: str
    entries: list[Entry] = []
