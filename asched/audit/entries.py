"""Entries of a pod's timeline, which are also its JSON form (``docs/how-to/history.md``)."""

from __future__ import annotations

from datetime import datetime

import msgspec


class TimelineEntry(msgspec.Struct, frozen=True, rename="camel", tag_field="event"):
    """Base of all entries."""

    seq: int
    """The journal record."""
    at: datetime
    """The time of its turn."""


class ObservedEntry(TimelineEntry, frozen=True, tag="observed"):
    """The pod appeared in a watch or list."""

    scheduler_name: str
    priority: int
    node: str = ""
    """The node to which it was already bound."""
    gates: tuple[str, ...] = ()


class ChangeEntry(TimelineEntry, frozen=True, tag="changed"):
    """A field that scheduling reads changed in the API."""

    changes: tuple[str, ...]
    """``field old -> new``."""


class QueueMoveEntry(TimelineEntry, frozen=True, tag="queued"):
    """The pod moved to another queue."""

    queue: str
    """``active``, ``backoff``, ``unschedulable`` or ``gated``."""
    before: str
    """The previous queue; may be empty."""
    cause: str


class AssignmentEntry(TimelineEntry, frozen=True, tag="assigned"):
    """Decision: the pod gets a node. The binding follows after Permit."""

    attempt: int
    node: str
    feasible_nodes: int
    score: int
    ties: int
    evaluated_nodes: int = 0
    """0 for all nodes."""
    permit_waits: tuple[str, ...] = ()
    """The Permit plugins that delay the binding."""
    devices: tuple[str, ...] = ()
    """The devices that the pod got: ``claim/request: driver/pool/device``."""


class RejectionEntry(TimelineEntry, frozen=True, tag="rejected"):
    """Decision: no node. The message is written to the pod's ``PodScheduled`` condition."""

    attempt: int
    message: str
    unschedulable_plugins: tuple[str, ...]
    pending_plugins: tuple[str, ...] = ()
    nominated_node: str = ""
    victims: tuple[str, ...] = ()
    released_claim: str = ""
    """The ResourceClaim that is deallocated or deleted for the pod."""


class AttemptFailureEntry(TimelineEntry, frozen=True, tag="failed"):
    """The attempt ended with an error."""

    attempt: int
    plugin: str
    message: str


class ExtenderCallEntry(TimelineEntry, frozen=True, tag="extendersCalled"):
    """The attempt waits for replies of extenders."""

    attempt: int
    verb: str
    """``filter``, ``prioritize`` or ``preempt``."""
    extenders: tuple[str, ...]


class ExtenderReplyEntry(TimelineEntry, frozen=True, tag="extenderReplied"):
    attempt: int
    verb: str
    extender: str
    failure: str = ""
    """The error if the call failed."""


class PermitEntry(TimelineEntry, frozen=True, tag="permit"):
    """A Permit plugin allowed or rejected the waiting pod."""

    plugin: str
    allowed: bool
    message: str = ""


class BindingEntry(TimelineEntry, frozen=True, tag="bound"):
    """The API server confirmed the binding."""

    node: str


class BindingFailureEntry(TimelineEntry, frozen=True, tag="bindFailed"):
    node: str
    code: str
    plugin: str
    message: str


class PreemptionEntry(TimelineEntry, frozen=True, tag="preempted"):
    """Decision: evict the pod for another one."""

    by: str
    node: str


class EvictionEntry(TimelineEntry, frozen=True, tag="evicted"):
    """The API server accepted the deletion."""


class EvictionFailureEntry(TimelineEntry, frozen=True, tag="evictionFailed"):
    message: str


class ClaimReleaseEntry(TimelineEntry, frozen=True, tag="claimReleased"):
    """The ResourceClaim that a rejection released was written, or could not be."""

    message: str = ""
    """Why it was not written; empty if it was."""


class DeletionEntry(TimelineEntry, frozen=True, tag="deleted"):
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
    | PermitEntry
    | BindingEntry
    | BindingFailureEntry
    | PreemptionEntry
    | EvictionEntry
    | EvictionFailureEntry
    | ClaimReleaseEntry
    | DeletionEntry
)


class PodTimeline(msgspec.Struct, rename="camel"):
    """The entries of one pod, oldest first."""

    namespace: str
    name: str
    uid: str
    entries: list[Entry] = []
